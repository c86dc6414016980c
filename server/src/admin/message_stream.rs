//! Answers that come in pieces.

use std::{pin::Pin, time::Duration};

use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status};

/// A stream of messages.
pub(super) type MessageStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Messages that are made and not taken yet.
const AHEAD_MAX: usize = 4;

/// How long a message waits for its reader. A stream with a slower reader ends.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the messages of a stream are put.
pub(super) struct Sender<T> {
    messages: mpsc::Sender<Result<T, Status>>,
    timeout: Duration,
}

/// The reader of messages is gone.
pub(super) struct ReceiverGone;

impl<T> Sender<T> {
    /// Adds a message, and waits while the queue is full.
    ///
    /// # Errors
    /// The reader is gone.
    pub(super) async fn send(&self, message: Result<T, Status>) -> Result<(), ReceiverGone> {
        self.messages.send_timeout(message, self.timeout).await.map_err(|_| ReceiverGone)
    }

    /// Puts a message that may as well be left out, unless too many are there.
    pub(super) fn tell(&self, message: T) {
        let _full = self.messages.try_send(Ok(message));
    }

    /// Whether the reader is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.messages.is_closed()
    }
}

/// An answer, and where to put its messages.
pub(super) fn message_stream<T: Send + 'static>() -> (Sender<T>, Response<MessageStream<T>>) {
    message_stream_within(SEND_TIMEOUT)
}

fn message_stream_within<T: Send + 'static>(
    timeout: Duration,
) -> (Sender<T>, Response<MessageStream<T>>) {
    let (messages, receiver) = mpsc::channel(AHEAD_MAX);
    (Sender { messages, timeout }, Response::new(Box::pin(ReceiverStream::new(receiver))))
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn whoever_takes_nothing_is_given_up() {
        let (sender, response) = message_stream_within(Duration::from_millis(20));
        for number in 0..AHEAD_MAX {
            assert!(sender.send(Ok(number)).await.is_ok());
        }
        sender.tell(AHEAD_MAX);
        assert!(sender.send(Ok(AHEAD_MAX)).await.is_err());
        assert!(!sender.is_closed());
        let messages = response.into_inner().take(AHEAD_MAX).map(Result::unwrap);
        let taken: Vec<usize> = messages.collect().await;
        assert_eq!(taken, (0..AHEAD_MAX).collect::<Vec<_>>());
        assert!(sender.is_closed());
    }
}
