//! Files whose first line is a secret.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// The shortest secret, in bytes. A shorter one can be guessed.
pub(crate) const SECRET_MIN: usize = 16;

/// What is read of a file, in bytes.
const FILE_MAX: u64 = 64 << 10;

/// The beginning of a file, with the first line.
pub(crate) fn open(path: &Path) -> io::Result<impl Read> {
    Ok(File::open(path)?.take(FILE_MAX))
}
