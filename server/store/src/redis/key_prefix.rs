//! The prefix of all keys in Redis.

use std::str::FromStr;

use sluicegate_core::CounterKey;
use thiserror::Error;

/// The longest key prefix, in bytes.
pub const KEY_PREFIX_MAX: usize = 64;

/// A prefix of every key, so that several installations can share one Redis.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPrefix(String);

/// A prefix that cannot be used.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "a key prefix is up to {KEY_PREFIX_MAX} printable ASCII characters without spaces and braces"
)]
pub struct KeyPrefixError;

impl FromStr for KeyPrefix {
    type Err = KeyPrefixError;

    fn from_str(text: &str) -> Result<Self, KeyPrefixError> {
        // Braces would be taken for the hash tag of every key.
        let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
        let good = text.len() <= KEY_PREFIX_MAX && text.bytes().all(fits);
        good.then(|| Self(text.to_owned())).ok_or(KeyPrefixError)
    }
}

impl KeyPrefix {
    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The counter that has this name in Redis; `None` if it is not the name of a counter.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<CounterKey> {
        CounterKey::from_text(name.strip_prefix(&self.0)?.as_bytes())
    }

    /// The name of a counter in Redis.
    #[must_use]
    pub fn name(&self, key: &CounterKey) -> String {
        format!("{}{}", self.0, String::from_utf8_lossy(key.as_bytes()))
    }
}
