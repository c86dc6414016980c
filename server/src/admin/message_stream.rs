//! Responses that are streams of messages.

use std::{pin::Pin, time::Duration};

use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status};

/// A stream of messages.
pub(super) type MessageStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The most messages that wait for the caller.
const QUEUED_MAX: usize = 4;

/// The time that a message waits for the caller. Then the stream ends.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The sender of the messages of a stream.
pub(super) struct Sender<T> {
    messages: mpsc::Sender<Result<T, Status>>,
    timeout: Duration,
}

/// The caller has disconnected, or did not read a message in time.
pub(super) struct ReceiverGone;

impl<T> Sender<T> {
    /// Sends a message. Waits while the queue is full.
    ///
    /// # Errors
    /// The caller has disconnected, or did not read a message in time.
    pub(super) async fn send(&self, message: Result<T, Status>) -> Result<(), ReceiverGone> {
        self.messages.send_timeout(message, self.timeout).await.map_err(|_| ReceiverGone)
    }

    /// Sends a message unless the queue is full. For progress, which the caller does not need.
    pub(super) fn send_unless_full(&self, message: T) {
        let _full = self.messages.try_send(Ok(message));
    }

    /// Whether the caller has disconnected.
    pub(super) fn is_closed(&self) -> bool {
        self.messages.is_closed()
    }
}

/// A response, and the sender of its messages.
pub(super) fn message_stream<T: Send + 'static>() -> (Sender<T>, Response<MessageStream<T>>) {
    message_stream_within(SEND_TIMEOUT)
}

fn message_stream_within<T: Send + 'static>(
    timeout: Duration,
) -> (Sender<T>, Response<MessageStream<T>>) {
    let (messages, receiver) = mpsc::channel(QUEUED_MAX);
    (Sender { messages, timeout }, Response::new(Box::pin(ReceiverStream::new(receiver))))
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn sending_fails_if_the_caller_does_not_read() {
        let (sender, response) = message_stream_within(Duration::from_millis(20));
        for number in 0..QUEUED_MAX {
            assert!(sender.send(Ok(number)).await.is_ok());
        }
        sender.send_unless_full(QUEUED_MAX);
        assert!(sender.send(Ok(QUEUED_MAX)).await.is_err());
        assert!(!sender.is_closed());
        let messages = response.into_inner().take(QUEUED_MAX).map(Result::unwrap);
        let received: Vec<usize> = messages.collect().await;
        assert_eq!(received, (0..QUEUED_MAX).collect::<Vec<_>>());
        assert!(sender.is_closed());
    }
}
