//! Files whose first line is a secret: the admin token, the salt of key hashes.

use std::{
    io,
    path::{Path, PathBuf},
};

use thiserror::Error;

/// The shortest secret, in bytes. A shorter one can be guessed.
const SECRET_MIN: usize = 16;

/// Why a secret cannot be read or generated.
#[derive(Debug, Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system does not provide random bytes.
    #[error("no random bytes from the system")]
    NoRandomness(#[from] getrandom::Error),
    /// The first line of the file is too short.
    #[error("the first line of {} has less than {SECRET_MIN} bytes", .0.display())]
    TooShort(PathBuf),
}

/// The first line of a file, without the white space around it.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn first_line(path: &Path) -> Result<Vec<u8>, SecretError> {
    sluicegate_files::first_line(path)
        .map_err(|source| SecretError::Unreadable { path: path.to_owned(), source })
}

/// Checks that the first line of a file is long enough for a secret.
///
/// # Errors
/// The line is too short.
pub(crate) fn check_length(line: &[u8], path: &Path) -> Result<(), SecretError> {
    if line.len() < SECRET_MIN { Err(SecretError::TooShort(path.to_owned())) } else { Ok(()) }
}

/// The secret in the first line of a file.
///
/// # Errors
/// The file cannot be read, or the line is too short.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, SecretError> {
    let line = first_line(path)?;
    check_length(&line, path)?;
    Ok(line)
}

/// A random secret.
///
/// # Errors
/// The system does not provide random bytes.
pub(crate) fn random() -> Result<[u8; 32], SecretError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_secret() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            read(&file).map_err(|error| error.to_string())
        };
        assert_eq!(read("  0123456789abcdef\r\nmore").unwrap(), b"0123456789abcdef");
        for short in ["", "\n0123456789abcdef", "0123456789abcde"] {
            assert!(read(short).unwrap_err().ends_with(" has less than 16 bytes"), "{short:?}");
        }
        let error = super::read(Path::new("/nowhere")).unwrap_err();
        assert_eq!(error.to_string(), "cannot read /nowhere");
    }
}
