//! Answers that come in pieces.

use std::{pin::Pin, time::Duration};

use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status};

/// A stream of messages.
pub(super) type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Messages that are made and not taken yet.
const AHEAD_MAX: usize = 4;

/// How long a message waits for somebody who takes it. Whoever reads as slowly is given up.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the messages of a stream are put.
pub(super) struct Sender<T> {
    messages: mpsc::Sender<Result<T, Status>>,
    timeout: Duration,
}

/// Nobody takes messages any more.
pub(super) struct Gone;

impl<T> Sender<T> {
    /// Puts a message, and waits while too many are there.
    ///
    /// # Errors
    /// Nobody takes it.
    pub(super) async fn send(&self, message: Result<T, Status>) -> Result<(), Gone> {
        self.messages.send_timeout(message, self.timeout).await.map_err(|_| Gone)
    }

    /// Puts a message that may as well be left out, unless too many are there.
    pub(super) fn tell(&self, message: T) {
        let _full = self.messages.try_send(Ok(message));
    }

    /// Whether nobody waits for messages any more.
    pub(super) fn is_closed(&self) -> bool {
        self.messages.is_closed()
    }
}

/// An answer, and where to put its messages.
pub(super) fn streamed<T: Send + 'static>() -> (Sender<T>, Response<Streamed<T>>) {
    streamed_within(SEND_TIMEOUT)
}

fn streamed_within<T: Send + 'static>(timeout: Duration) -> (Sender<T>, Response<Streamed<T>>) {
    let (messages, receiver) = mpsc::channel(AHEAD_MAX);
    (Sender { messages, timeout }, Response::new(Box::pin(ReceiverStream::new(receiver))))
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    #[tokio::test]
    async fn whoever_takes_nothing_is_given_up() {
        let (sender, response) = streamed_within(Duration::from_millis(20));
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
