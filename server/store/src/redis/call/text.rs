//! The arguments of a call as text, all in one allocation.

use bytes::BytesMut;
use fred::types::Value;

/// Digits of the largest number.
const DIGITS_MAX: usize = 20;

/// Room for the arguments of a call.
pub(super) struct Text(BytesMut);

impl Text {
    /// Room for so many bytes, and for so many numbers beside.
    pub(super) fn with_capacity(bytes: usize, numbers: usize) -> Self {
        Self(BytesMut::with_capacity(bytes + numbers * DIGITS_MAX))
    }

    /// An argument of these parts.
    pub(super) fn put<const N: usize>(&mut self, parts: [&[u8]; N]) -> Value {
        parts.iter().for_each(|part| self.0.extend_from_slice(part));
        Value::Bytes(self.0.split().freeze())
    }

    /// A number.
    pub(super) fn number(&mut self, number: u64) -> Value {
        self.put([itoa::Buffer::new().format(number).as_bytes()])
    }
}
