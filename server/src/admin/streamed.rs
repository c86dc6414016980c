//! Answers that come in pieces.

use std::pin::Pin;

use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status};

/// A stream of messages.
pub(super) type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Where the messages of a stream are put. Whoever puts them waits while nobody takes them.
pub(super) type Sender<T> = mpsc::Sender<Result<T, Status>>;

/// Messages that are made and not taken yet.
const AHEAD_MAX: usize = 4;

/// An answer, and where to put its messages.
pub(super) fn streamed<T: Send + 'static>() -> (Sender<T>, Response<Streamed<T>>) {
    let (sender, receiver) = mpsc::channel(AHEAD_MAX);
    (sender, Response::new(Box::pin(ReceiverStream::new(receiver))))
}
