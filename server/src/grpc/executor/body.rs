//! Bodies of responses.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use http_body::{Body, Frame};
use prost::{EncodeError, Message};
use tokio::sync::OwnedSemaphorePermit;
use tonic::Status;

use crate::grpc::{byte_budgets::ResponseBytesGuard, message::PREFIX_BYTES};

/// The initial capacity of an encoded response, which suffices for most.
const RESPONSE_CAPACITY: usize = 256;

/// The body of a response.
#[derive(Debug)]
pub(super) enum GrpcResponseBody {
    /// One message, then trailers with the status OK. Its bytes count as held until HTTP/2 polls the trailers, which is
    /// when the message has been sent.
    Message(Option<Bytes>, ResponseBytesGuard),
    /// No more frames.
    Ended,
    /// tonic's body, and the permits that a streaming call holds until its end.
    Tonic(tonic::body::Body, Option<[OwnedSemaphorePermit; 2]>),
}

/// Encodes a message with gRPC's prefix.
pub(super) fn encode_framed(message: &impl Message) -> Result<Bytes, EncodeError> {
    let mut frame = BytesMut::with_capacity(RESPONSE_CAPACITY);
    frame.put_bytes(0, PREFIX_BYTES);
    message.encode(&mut frame)?;
    let length = u32::try_from(frame.len() - PREFIX_BYTES).unwrap_or(u32::MAX);
    if let Some(length_bytes) = frame.get_mut(1..PREFIX_BYTES) {
        length_bytes.copy_from_slice(&length.to_be_bytes());
    }
    Ok(frame.freeze())
}

impl Body for GrpcResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match &mut *self {
            Self::Message(message, _held) => {
                if let Some(message) = message.take() {
                    return Poll::Ready(Some(Ok(Frame::data(message))));
                }
                *self = Self::Ended;
                Poll::Ready(Some(Ok(Frame::trailers(ok()))))
            }
            Self::Ended => Poll::Ready(None),
            Self::Tonic(body, _permits) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Message(..) => false,
            Self::Ended => true,
            Self::Tonic(body, _permits) => body.is_end_stream(),
        }
    }
}

fn ok() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}
