//! Bodies of requests, bounded each and in all.

use std::fmt::Display;

use axum::body::Bytes;
use bytes::BytesMut;
use http_body::Body;
use http_body_util::BodyExt as _;
use thiserror::Error;

use crate::listen::{ByteBudget, HeldBytes};

/// Bytes of each body that are always taken, so that large bodies of some never turn usual requests away.
const FREE_BYTES: usize = 64 * 1024;

/// Bytes beyond those that all requests in progress hold at most. Buffers grow by doubling, so they take up to twice as
/// much memory.
pub(crate) const BODY_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Reads bodies within bounds.
#[derive(Debug)]
pub(super) struct Bodies {
    max: usize,
    budget: ByteBudget,
}

/// A body that was read.
#[derive(Debug)]
pub(super) struct ReadBody {
    pub(super) bytes: Bytes,
    /// To be kept until the bytes are dropped.
    pub(super) held: HeldBytes,
}

/// Why a body was not read.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum BodyError {
    /// It took too long.
    #[error("the body took too long")]
    Slow,
    /// It is too large.
    #[error("the body is too large")]
    Large,
    /// Too many bytes are held already.
    #[error("too many large bodies at once")]
    Crowded,
    /// It is not what its head says, or the client has gone.
    #[error("the body cannot be read: {0}")]
    Broken(String),
}

impl Bodies {
    pub(super) fn new(max: usize) -> Self {
        Self { max, budget: ByteBudget::new(BODY_BYTES_MAX) }
    }

    /// Reads a body to its end.
    pub(super) async fn read<B>(&self, mut body: B) -> Result<ReadBody, BodyError>
    where
        B: Body<Data = Bytes, Error: Display> + Unpin,
    {
        if body.size_hint().lower() > u64::try_from(self.max).unwrap_or(u64::MAX) {
            return Err(BodyError::Large);
        }
        let mut read = BytesMut::new();
        let mut held = HeldBytes::default();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| BodyError::Broken(error.to_string()))?;
            let Ok(bytes) = frame.into_data() else { continue };
            let length = read.len() + bytes.len();
            if length > self.max {
                return Err(BodyError::Large);
            }
            if !self.budget.hold(&mut held, length.saturating_sub(FREE_BYTES)) {
                return Err(BodyError::Crowded);
            }
            read.extend_from_slice(&bytes);
        }
        Ok(ReadBody { bytes: read.freeze(), held })
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
        let bodies = Bodies::new(100);
        assert_eq!(bodies.read(body(100)).await.unwrap().bytes.len(), 100);
        assert_eq!(bodies.read(body(101)).await.unwrap_err(), BodyError::Large);
        let chunks = [50, 50, 1].map(|length| Ok::<_, std::io::Error>(vec![b'x'; length]));
        let chunked = Body::from_stream(futures::stream::iter(chunks));
        assert_eq!(bodies.read(chunked).await.unwrap_err(), BodyError::Large);
    }

    #[tokio::test]
    async fn large_bodies_share_a_budget_that_small_ones_do_not_need() {
        let held_max = BODY_BYTES_MAX;
        let bodies = Bodies::new(held_max);
        let half = FREE_BYTES + held_max / 2;
        let held = [bodies.read(body(half)).await, bodies.read(body(half)).await];
        assert!(held.iter().all(Result::is_ok));
        assert_eq!(bodies.read(body(FREE_BYTES + 1)).await.unwrap_err(), BodyError::Crowded);
        assert!(bodies.read(body(FREE_BYTES)).await.is_ok());
        drop(held);
        assert!(bodies.read(body(FREE_BYTES + 1)).await.is_ok());
    }
}
