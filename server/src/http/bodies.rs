//! Reads request bodies, with bounds on each body and on all bodies together.

use std::fmt::Display;

use axum::body::Bytes;
use bytes::BytesMut;
use http_body::Body;
use http_body_util::BodyExt as _;
use thiserror::Error;

use crate::listen::{ByteBudget, HeldBytes};

/// Bytes of each body that do not count towards [`ALL_BODIES_BYTES_MAX`], so that large bodies never cause the rejection of
/// small ones.
const UNCOUNTED_BYTES: usize = 64 * 1024;

/// The most bytes of all bodies in progress, beyond [`UNCOUNTED_BYTES`] each. Buffers grow by doubling, so they use up
/// to twice as much memory.
pub(crate) const ALL_BODIES_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Reads bodies within bounds.
#[derive(Debug)]
pub(super) struct BodyReader {
    max: usize,
    budget: ByteBudget,
}

/// A complete body.
#[derive(Debug)]
pub(super) struct BufferedBody {
    pub(super) bytes: Bytes,
    /// Must live as long as the bytes.
    pub(super) held: HeldBytes,
}

/// Why a body was not read.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum BodyError {
    /// The body did not arrive in time.
    #[error("the body took too long")]
    Timeout,
    /// The body is too large.
    #[error("the body is too large")]
    TooLarge,
    /// All bodies in progress together are too large.
    #[error("too many large bodies at once")]
    TooManyBytes,
    /// The body is malformed, or the client has disconnected.
    #[error("the body cannot be read: {0}")]
    Unreadable(String),
}

impl BodyReader {
    pub(super) fn new(max: usize) -> Self {
        Self { max, budget: ByteBudget::new(ALL_BODIES_BYTES_MAX) }
    }

    /// Reads a body to its end.
    pub(super) async fn read<B>(&self, mut body: B) -> Result<BufferedBody, BodyError>
    where
        B: Body<Data = Bytes, Error: Display> + Unpin,
    {
        if body.size_hint().lower() > u64::try_from(self.max).unwrap_or(u64::MAX) {
            return Err(BodyError::TooLarge);
        }
        let mut read = BytesMut::new();
        let mut held = HeldBytes::default();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| BodyError::Unreadable(error.to_string()))?;
            let Ok(bytes) = frame.into_data() else { continue };
            let length = read.len() + bytes.len();
            if length > self.max {
                return Err(BodyError::TooLarge);
            }
            if !self.budget.hold(&mut held, length.saturating_sub(UNCOUNTED_BYTES)) {
                return Err(BodyError::TooManyBytes);
            }
            read.extend_from_slice(&bytes);
        }
        Ok(BufferedBody { bytes: read.freeze(), held })
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn body(length: usize) -> Body {
        Body::from(vec![b'x'; length])
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_the_bound() {
        let reader = BodyReader::new(100);
        assert_eq!(reader.read(body(100)).await.unwrap().bytes.len(), 100);
        assert_eq!(reader.read(body(101)).await.unwrap_err(), BodyError::TooLarge);
        let chunks = [50, 50, 1].map(|length| Ok::<_, std::io::Error>(vec![b'x'; length]));
        let chunked = Body::from_stream(futures::stream::iter(chunks));
        assert_eq!(reader.read(chunked).await.unwrap_err(), BodyError::TooLarge);
    }

    #[tokio::test]
    async fn large_bodies_share_a_budget_that_small_ones_do_not_need() {
        let held_max = ALL_BODIES_BYTES_MAX;
        let reader = BodyReader::new(held_max);
        let half = UNCOUNTED_BYTES + held_max / 2;
        let held = [reader.read(body(half)).await, reader.read(body(half)).await];
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(
            reader.read(body(UNCOUNTED_BYTES + 1)).await.unwrap_err(),
            BodyError::TooManyBytes
        );
        assert!(reader.read(body(UNCOUNTED_BYTES)).await.is_ok());
        drop(held);
        assert!(reader.read(body(UNCOUNTED_BYTES + 1)).await.is_ok());
    }
}
