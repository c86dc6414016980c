//! Reading a call's message from its HTTP/2 stream.

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

use super::waiting::{CallBytes, ConnectionBytes};
use crate::telemetry::Bound;

/// Bytes of the flag and the length before each message of gRPC.
pub(super) const PREFIX: usize = 5;

/// The encoding of messages that are not compressed.
pub(super) const IDENTITY: &str = "identity";

/// Why a body was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadError {
    /// It meets a bound.
    Beyond(Bound),
    /// The stream has ended in its middle.
    Broken,
}

/// The body of a call, and what was read of it.
#[derive(Debug)]
pub(super) struct MessageReader<'a> {
    body: Incoming,
    message_max: usize,
    /// The first piece, shared with HTTP/2's buffer.
    first: Bytes,
    /// Everything that was read, if it came in pieces or the rest is waited for.
    joined: Vec<u8>,
    held: CallBytes<'a>,
}

impl<'a> MessageReader<'a> {
    pub(super) const fn new(
        body: Incoming,
        message_max: usize,
        connection: &'a ConnectionBytes,
    ) -> Self {
        Self {
            body,
            message_max,
            first: Bytes::new(),
            joined: Vec::new(),
            held: CallBytes::none(connection),
        }
    }

    /// Reads on, until the body has ended.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ReadError>> {
        while !self.body.is_end_stream() {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else { break };
            match frame.map(Frame::into_data) {
                Ok(Ok(data)) => self.add(data).map_err(ReadError::Beyond)?,
                // Trailers mean nothing in a request.
                Ok(Err(_)) => {}
                Err(_) => return Poll::Ready(Err(ReadError::Broken)),
            }
        }
        self.held.end_wait();
        Poll::Ready(Ok(()))
    }

    /// Begins to wait for the rest: copies what was read, because it shares the memory of HTTP/2's buffer.
    pub(super) fn wait(&mut self) -> Result<(), Bound> {
        self.held.wait()?;
        self.join(&[])
    }

    /// What was read.
    pub(super) fn take(&mut self) -> Bytes {
        if self.joined.is_empty() {
            std::mem::take(&mut self.first)
        } else {
            std::mem::take(&mut self.joined).into()
        }
    }

    /// The rest of the body, if there may be any.
    pub(super) fn into_rest(self) -> Option<Incoming> {
        (!self.body.is_end_stream()).then_some(self.body)
    }

    fn add(&mut self, data: Bytes) -> Result<(), Bound> {
        if self.read().is_empty() && !self.held.is_waiting() {
            self.first = data;
        } else {
            self.join(&data)?;
        }
        let declared = prefix(self.read()).map_or(0, |(_, length)| length);
        if declared > self.message_max || self.read().len() > PREFIX + self.message_max {
            return Err(Bound::MessageBytes);
        }
        Ok(())
    }

    fn read(&self) -> &[u8] {
        if self.joined.is_empty() { &self.first } else { &self.joined }
    }

    /// Appends to what was read, in a buffer of its own.
    fn join(&mut self, data: &[u8]) -> Result<(), Bound> {
        let first = std::mem::take(&mut self.first);
        let length = self.joined.len() + first.len() + data.len();
        let capacity = self.joined.capacity();
        if length > capacity {
            // Doubled, so that many pieces are not copied as often; but not beyond the message.
            let start = if self.joined.is_empty() { &first } else { &*self.joined };
            let whole = prefix(start).map_or(length, |(_, declared)| PREFIX + declared);
            let wanted = (2 * capacity).min(whole).max(length);
            self.held.grow(wanted - capacity)?;
            self.joined.reserve_exact(wanted - self.joined.len());
        }
        self.joined.extend_from_slice(&first);
        self.joined.extend_from_slice(data);
        Ok(())
    }
}

/// Time for all messages of a call to health or reflection, from the first.
const STREAM_TIMEOUT: Duration = Duration::from_secs(30);

/// The body of a call to another service, which ends in time.
#[derive(Debug)]
pub(super) struct RequestStream {
    body: Incoming,
    has_begun: bool,
    end: Pin<Box<Sleep>>,
}

impl RequestStream {
    /// The first message begins within `timeout`.
    pub(super) fn new(body: Incoming, timeout: Duration) -> Self {
        Self { body, has_begun: false, end: Box::pin(tokio::time::sleep(timeout)) }
    }
}

impl http_body::Body for RequestStream {
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
        Poll::Ready(Some(Err(late())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

/// The status of a call whose message takes too long.
pub(super) fn late() -> Status {
    Status::deadline_exceeded("the message has not arrived in time")
}

/// Bytes of the flag and the length before a message.
pub(super) fn prefix(read: &[u8]) -> Option<(bool, usize)> {
    let (&[flag, length @ ..], _) = read.split_first_chunk::<PREFIX>()?;
    Some((flag != 0, usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX)))
}

/// The only message in these bytes, if it is not compressed.
pub(super) fn plain(read: &Bytes) -> Option<Bytes> {
    let (compressed, length) = prefix(read)?;
    (!compressed && read.len() - PREFIX == length).then(|| read.slice(PREFIX..))
}

/// Why these bytes are not one plain message.
pub(super) fn why_not_plain(read: &[u8], encoding: Option<&HeaderValue>) -> Status {
    if let Some(encoding) = encoding.filter(|it| *it != IDENTITY) {
        let mut status =
            Status::unimplemented(format!("grpc-encoding {encoding:?} is not supported"));
        let metadata = status.metadata_mut();
        metadata.insert("grpc-accept-encoding", MetadataValue::from_static(IDENTITY));
        return status;
    }
    match split(read) {
        None if read.is_empty() => Status::internal("the call has no message"),
        None => Status::internal("the message has broken off"),
        Some((true, ..)) => Status::internal("the message is compressed, without grpc-encoding"),
        Some((false, rest)) if split(rest).is_some() => {
            Status::unimplemented("the call has more than one message")
        }
        Some((false, _)) => Status::internal("more follows the message"),
    }
}

/// Whether the first message in these bytes is compressed, and what follows it; `None` if it is not whole.
fn split(read: &[u8]) -> Option<(bool, &[u8])> {
    let (compressed, length) = prefix(read)?;
    let (_message, rest) = read.get(PREFIX..)?.split_at_checked(length)?;
    Some((compressed, rest))
}
