//! Hashes of counter keys, for output that must not contain the keys.

use std::path::Path;

use crate::secret::{self, SecretError};

/// Hex digits of a hash.
const DIGITS: usize = 16;

/// The context of the key derivation. With another context, the same salt gives other hashes.
const CONTEXT: &str = "sluicegate 2026-11 keys of counters";

/// Hashes counter keys with a salt.
pub(crate) struct KeyHasher([u8; blake3::KEY_LEN]);

impl KeyHasher {
    /// Hashes with this salt.
    fn new(salt: &[u8]) -> Self {
        Self(blake3::derive_key(CONTEXT, salt))
    }

    /// Hashes with the salt in the first line of a file; without a file, with a random salt.
    ///
    /// # Errors
    /// The file has no salt, or the system does not provide random bytes.
    pub(crate) fn load(file: Option<&Path>) -> Result<Self, SecretError> {
        Ok(match file {
            Some(file) => Self::new(&secret::read(file)?),
            None => Self::new(&secret::random()?),
        })
    }

    /// The hash of a counter's key, without `--key-prefix`.
    pub(crate) fn hash(&self, key: &[u8]) -> String {
        let mut hash = blake3::keyed_hash(&self.0, key).to_hex();
        hash.truncate(DIGITS);
        hash.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_the_salt() {
        let (one, same) = (KeyHasher::new(b"salt"), KeyHasher::new(b"salt"));
        let hash = one.hash(b"s1:fw:60:{api:user=bob}");
        assert_eq!((hash.len(), &hash), (DIGITS, &same.hash(b"s1:fw:60:{api:user=bob}")));
        assert!(hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash}");
        assert_ne!(hash, one.hash(b"s1:fw:60:{api:user=eve}"));
        for other in [
            KeyHasher::new(b"pepper"),
            KeyHasher::load(None).unwrap(),
            KeyHasher::load(None).unwrap(),
        ] {
            assert_ne!(hash, other.hash(b"s1:fw:60:{api:user=bob}"));
        }
        assert_ne!(
            KeyHasher::load(None).unwrap().hash(b"key"),
            KeyHasher::load(None).unwrap().hash(b"key")
        );
    }

    #[test]
    fn the_first_line_is_the_salt() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("salt");
        let load = |text: &str| {
            std::fs::write(&file, text).unwrap();
            KeyHasher::load(Some(&file))
                .map(|it| it.hash(b"key"))
                .map_err(|error| error.to_string())
        };
        let salted = load("0123456789abcdef").unwrap();
        assert_eq!(load("  0123456789abcdef\r\nmore").unwrap(), salted);
        assert_ne!(load("0123456789abcdeg").unwrap(), salted);
        for short in ["", "\n0123456789abcdef", "0123456789abcde"] {
            assert!(load(short).unwrap_err().contains("less than 16 bytes"), "{short:?}");
        }
        let error = KeyHasher::load(Some(Path::new("/nowhere"))).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("cannot read /nowhere"), "{error}");
    }
}
