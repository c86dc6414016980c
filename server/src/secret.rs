//! Files whose first line is a secret.

use std::{
    io::{self, Read},
    path::Path,
};

/// The shortest secret, in bytes. A shorter one can be guessed.
pub(crate) const SECRET_MIN: usize = 16;

/// The beginning of a regular file, with the first line.
pub(crate) fn open(path: &Path) -> io::Result<impl Read> {
    Ok(sluicegate_files::open(path)?.take(sluicegate_files::SECRET_BYTES_MAX))
}
