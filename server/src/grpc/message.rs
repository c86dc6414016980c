//! Reads the message of a call from its HTTP/2 stream.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::HeaderValue;
use http_body::{Body as _, Frame};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};
use tonic::{Status, metadata::MetadataValue};

use super::byte_budgets::{CallBytesGuard, ConnectionByteBudget};
use crate::telemetry::RefusalBound;

/// Bytes of gRPC's prefix of each message: a flag and the length.
pub(super) const PREFIX_BYTES: usize = 5;

/// The `grpc-encoding` of messages that are not compressed.
pub(super) const IDENTITY: &str = "identity";

/// Why a body was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadError {
    /// The body exceeds a bound.
    OverBound(RefusalBound),
    /// The stream ended before the end of the body.
    Truncated,
}

/// The body of a call, and the bytes that were read of it.
#[derive(Debug)]
pub(super) struct MessageReader<'a> {
    body: Incoming,
    message_max: usize,
    /// The first DATA frame, which shares the buffer of the HTTP/2 connection.
    first: Bytes,
    /// A copy of all that was read, if there are several frames, or the call waits for more.
    joined: Vec<u8>,
    held: CallBytesGuard<'a>,
}

impl<'a> MessageReader<'a> {
    pub(super) const fn new(
        body: Incoming,
        message_max: usize,
        connection: &'a ConnectionByteBudget,
    ) -> Self {
        Self {
            body,
            message_max,
            first: Bytes::new(),
            joined: Vec::new(),
            held: CallBytesGuard::empty(connection),
        }
    }

    /// Reads until the end of the body.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ReadError>> {
        while !self.body.is_end_stream() {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else { break };
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => self.add(data).map_err(ReadError::OverBound)?,
                // Trailers have no meaning in a request.
                Ok(Err(_)) => {}
                Err(_) => return Poll::Ready(Err(ReadError::Truncated)),
            }
        }
        self.held.end_wait();
        Poll::Ready(Ok(()))
    }

    /// Marks the call as waiting for the rest of its body. Copies what was read, so that the call does not retain the
    /// buffer of the HTTP/2 connection.
    pub(super) fn begin_wait(&mut self) -> Result<(), RefusalBound> {
        self.held.begin_wait()?;
        self.join(&[])
    }

    /// Removes and returns the bytes that were read.
    pub(super) fn take(&mut self) -> Bytes {
        if self.joined.is_empty() {
            std::mem::take(&mut self.first)
        } else {
            std::mem::take(&mut self.joined).into()
        }
    }

    /// The rest of the body; `None` if the stream has ended.
    pub(super) fn into_rest(self) -> Option<Incoming> {
        (!self.body.is_end_stream()).then_some(self.body)
    }

    fn add(&mut self, data: Bytes) -> Result<(), RefusalBound> {
        if self.read().is_empty() && !self.held.is_waiting() {
            self.first = data;
        } else {
            self.join(&data)?;
        }
        let declared = prefix(self.read()).map_or(0, |(_, length)| length);
        if declared > self.message_max || self.read().len() > PREFIX_BYTES + self.message_max {
            return Err(RefusalBound::MessageBytes);
        }
        Ok(())
    }

    fn read(&self) -> &[u8] {
        if self.joined.is_empty() { &self.first } else { &self.joined }
    }

    /// Appends to a copy of what was read.
    fn join(&mut self, data: &[u8]) -> Result<(), RefusalBound> {
        let first = std::mem::take(&mut self.first);
        let length = self.joined.len() + first.len() + data.len();
        let capacity = self.joined.capacity();
        if length > capacity {
            // Doubling bounds the copies of a message in many frames. The buffer never exceeds the message.
            let start = if self.joined.is_empty() { &first } else { &*self.joined };
            let whole = prefix(start).map_or(length, |(_, declared)| PREFIX_BYTES + declared);
            let wanted = (2 * capacity).min(whole).max(length);
            self.held.grow(wanted - capacity)?;
            self.joined.reserve_exact(wanted - self.joined.len());
        }
        self.joined.extend_from_slice(&first);
        self.joined.extend_from_slice(data);
        Ok(())
    }
}

/// The time for all messages of a call to health or reflection, from the first one.
const STREAM_TIMEOUT: Duration = Duration::from_secs(30);

/// The request body of a call to health or reflection, with timeouts.
#[derive(Debug)]
pub(super) struct TimedRequestBody {
    body: Incoming,
    has_begun: bool,
    end: Pin<Box<Sleep>>,
}

impl TimedRequestBody {
    /// `timeout` is the time until the first message begins.
    pub(super) fn new(body: Incoming, timeout: Duration) -> Self {
        Self { body, has_begun: false, end: Box::pin(tokio::time::sleep(timeout)) }
    }
}

impl http_body::Body for TimedRequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            if !std::mem::replace(&mut self.has_begun, true) {
                self.end.as_mut().reset(Instant::now() + STREAM_TIMEOUT);
            }
            let status = |error: hyper::Error| Status::from_error(Box::new(error));
            return Poll::Ready(frame.map(|frame| frame.map_err(status)));
        }
        ready!(self.end.as_mut().poll(context));
        Poll::Ready(Some(Err(message_timeout())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// The status of a call whose message did not arrive in time.
pub(super) fn message_timeout() -> Status {
    Status::deadline_exceeded("the message has not arrived in time")
}

/// Parses gRPC's prefix of a message: whether the message is compressed, and its length. `None` if it is incomplete.
fn prefix(read: &[u8]) -> Option<(bool, usize)> {
    let (&[flag, length @ ..], _) = read.split_first_chunk::<PREFIX_BYTES>()?;
    Some((flag != 0, usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX)))
}

/// The message in these bytes, if they contain exactly one, and it is not compressed.
pub(super) fn single_message(read: &Bytes) -> Option<Bytes> {
    let (compressed, length) = prefix(read)?;
    (!compressed && read.len() - PREFIX_BYTES == length).then(|| read.slice(PREFIX_BYTES..))
}

/// The status of a call whose body is not one message without compression.
pub(super) fn framing_status(read: &[u8], encoding: Option<&HeaderValue>) -> Status {
    if let Some(encoding) = encoding.filter(|it| *it != IDENTITY) {
        let mut status =
            Status::unimplemented(format!("grpc-encoding {encoding:?} is not supported"));
        let metadata = status.metadata_mut();
        metadata.insert("grpc-accept-encoding", MetadataValue::from_static(IDENTITY));
        return status;
    }
    match split_first(read) {
        None if read.is_empty() => Status::internal("the call has no message"),
        None => Status::internal("the message is incomplete"),
        Some((true, ..)) => Status::internal("the message is compressed, without grpc-encoding"),
        Some((false, rest)) if split_first(rest).is_some() => {
            Status::unimplemented("the call has more than one message")
        }
        Some((false, _)) => Status::internal("unexpected bytes after the message"),
    }
}

/// Whether the first message in these bytes is compressed, and the bytes after it; `None` if it is incomplete.
fn split_first(read: &[u8]) -> Option<(bool, &[u8])> {
    let (compressed, length) = prefix(read)?;
    let (_message, rest) = read.get(PREFIX_BYTES..)?.split_at_checked(length)?;
    Some((compressed, rest))
}
