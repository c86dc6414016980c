//! Hashes of counters' keys, for places where the keys themselves must not stand.

use std::{
    hash::{BuildHasher as _, RandomState},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use thiserror::Error;

use crate::secret::{self, SECRET_MIN};

/// Hex digits of a hash.
const DIGITS: usize = 16;

/// What the hashes are for: the same salt used elsewhere gives others.
const CONTEXT: &str = "sluicegate 2026-11 keys of counters";

/// Why a file holds no salt.
#[derive(Debug, Error)]
pub enum SaltError {
    /// It cannot be read.
    #[error("--key-hash-salt-file: cannot read {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The first line is too short.
    #[error("--key-hash-salt-file: the first line of {path} has less than {SECRET_MIN} bytes")]
    TooShort {
        /// The file.
        path: PathBuf,
    },
}

/// Hashes keys of counters, with a secret.
pub(crate) struct KeyHash([u8; blake3::KEY_LEN]);

impl KeyHash {
    /// Hashes with this secret; without one, with one of this process alone.
    pub(crate) fn new(salt: Option<&[u8]>) -> Self {
        Self(salt.map_or_else(
            || {
                // Each is made from a secret that the system gave this process.
                let own = [0_u64; 4].map(|it| RandomState::new().hash_one(it).to_le_bytes());
                blake3::derive_key(CONTEXT, own.as_flattened())
            },
            |salt| blake3::derive_key(CONTEXT, salt),
        ))
    }

    /// Hashes with the secret in the first line of this file, if one is given.
    ///
    /// # Errors
    /// There is no secret in it.
    pub(crate) fn load(file: Option<&Path>) -> Result<Self, SaltError> {
        Ok(Self::new(file.map(read).transpose()?.as_deref()))
    }

    /// The hash of a counter's key, as the store has it without `--key-prefix`.
    pub(crate) fn of(&self, key: &[u8]) -> String {
        let mut hash = blake3::keyed_hash(&self.0, key).to_hex();
        hash.truncate(DIGITS);
        hash.to_string()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, SaltError> {
    let unreadable = |source| SaltError::Unreadable { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let mut file = secret::open(path).map_err(unreadable)?;
    file.read_to_end(&mut bytes).map_err(unreadable)?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    if line.len() < SECRET_MIN {
        return Err(SaltError::TooShort { path: path.to_owned() });
    }
    Ok(line.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_makes_the_hash() {
        let (one, same) = (KeyHash::new(Some(b"salt")), KeyHash::new(Some(b"salt")));
        let hash = one.of(b"s1:fw:60:{api:user=bob}");
        assert_eq!((hash.len(), &hash), (DIGITS, &same.of(b"s1:fw:60:{api:user=bob}")));
        assert!(hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash}");
        assert_ne!(hash, one.of(b"s1:fw:60:{api:user=eve}"));
        for other in [KeyHash::new(Some(b"pepper")), KeyHash::new(None), KeyHash::new(None)] {
            assert_ne!(hash, other.of(b"s1:fw:60:{api:user=bob}"));
        }
        assert_ne!(KeyHash::new(None).of(b"key"), KeyHash::new(None).of(b"key"));
    }

    #[test]
    fn the_first_line_is_the_salt() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("salt");
        let load = |text: &str| {
            std::fs::write(&file, text).unwrap();
            KeyHash::load(Some(&file)).map(|it| it.of(b"key")).map_err(|error| error.to_string())
        };
        let salted = load("0123456789abcdef").unwrap();
        assert_eq!(load("  0123456789abcdef\r\nmore").unwrap(), salted);
        assert_ne!(load("0123456789abcdeg").unwrap(), salted);
        for short in ["", "\n0123456789abcdef", "0123456789abcde"] {
            assert!(load(short).unwrap_err().contains("less than 16 bytes"), "{short:?}");
        }
        let error = KeyHash::load(Some(Path::new("/nowhere"))).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("cannot read /nowhere"), "{error}");
    }
}
