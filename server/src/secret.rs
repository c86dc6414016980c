//! Files whose first line is a secret.

use std::{
    io::{self, Read},
    path::Path,
};

use sluicegate_store::file;

/// The shortest secret, in bytes. A shorter one can be guessed.
pub(crate) const SECRET_MIN: usize = 16;

/// The beginning of a regular file, with the first line.
pub(crate) fn open(path: &Path) -> io::Result<impl Read> {
    Ok(file::open(path)?.take(file::SECRET_BYTES_MAX))
}
