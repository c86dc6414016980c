//! The time that the peer of an HTTP connection takes to read an answer.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

/// The longest time in which the peer takes no byte of an answer.
const ANSWER_STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The time in which the peer takes all answers that wait for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time that a peer has.
#[derive(Clone, Copy, Debug)]
struct Timeouts {
    stall: Duration,
    total: Duration,
}

/// A connection that fails when its peer does not take an answer in time.
#[derive(Debug)]
pub(super) struct AnswerDeadline<T, F> {
    connection: T,
    timeouts: Timeouts,
    /// Called when it fails.
    on_late: F,
    /// Answers wait for the peer.
    waiting: Option<Waiting>,
}

/// The end of the patience with a peer.
#[derive(Debug)]
struct Waiting {
    /// The end of the time for all.
    end: Instant,
    /// Ends then, or earlier if the peer takes no byte.
    sleep: Pin<Box<Sleep>>,
}

impl Waiting {
    fn new(timeouts: Timeouts) -> Self {
        let now = Instant::now();
        let sleep = Box::pin(sleep_until(now + timeouts.stall));
        Self { end: now + timeouts.total, sleep }
    }

    /// Notes that the peer has taken bytes.
    fn moved(&mut self, timeouts: Timeouts) {
        let end = self.end.min(Instant::now() + timeouts.stall);
        self.sleep.as_mut().reset(end);
    }
}

impl<T, F: Fn()> AnswerDeadline<T, F> {
    /// Times the answers of a connection; `on_late` is called when one is not taken.
    pub(super) const fn new(connection: T, on_late: F) -> Self {
        let timeouts = Timeouts { stall: ANSWER_STALL_TIMEOUT, total: ANSWER_TIMEOUT };
        Self { connection, timeouts, on_late, waiting: None }
    }

    /// Looks at the result of a write, and waits no longer than until the end.
    fn timed(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = written {
            if let Some(waiting) = &mut self.waiting {
                waiting.moved(self.timeouts);
            }
            return Poll::Ready(written);
        }
        let waiting = self.waiting.get_or_insert_with(|| Waiting::new(self.timeouts));
        ready!(waiting.sleep.as_mut().poll(context));
        (self.on_late)();
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin, F: Unpin> AsyncRead for AnswerDeadline<T, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin, F: Fn() + Unpin> AsyncWrite for AnswerDeadline<T, F> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write(context, bytes);
        self.timed(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write_vectored(context, bytes);
        self.timed(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    /// Called when everything has been written.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.connection).poll_flush(context))?;
        self.waiting = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        time::sleep,
    };

    use super::*;

    /// What becomes of answers of so many bytes to a peer that takes one every few milliseconds.
    async fn answer(answers: usize, bytes: usize, pause: Duration) -> io::Result<()> {
        let (connection, mut peer) = duplex(1);
        let late = Cell::new(0);
        let timeouts =
            Timeouts { stall: Duration::from_millis(300), total: Duration::from_millis(600) };
        let mut timed = AnswerDeadline {
            timeouts,
            ..AnswerDeadline::new(connection, || late.set(late.get() + 1))
        };
        let written = async {
            for _ in 0..answers {
                timed.write_all(&vec![0; bytes]).await?;
                timed.flush().await?;
            }
            Ok(())
        };
        let read = async {
            while peer.read_u8().await.is_ok() {
                sleep(pause).await;
            }
        };
        let result = tokio::select! {
            result = written => result,
            () = read => panic!("the answer ended"),
        };
        assert_eq!(late.get(), usize::from(result.is_err()));
        result
    }

    #[tokio::test]
    async fn an_answer_that_is_taken_in_time_is_written() {
        answer(1, 10, Duration::ZERO).await.unwrap();
        // The time begins again with each.
        answer(20, 3, Duration::from_millis(20)).await.unwrap();
    }

    #[tokio::test]
    async fn an_answer_that_is_not_taken_ends_the_connection() {
        let timed_out = |result: io::Result<()>| result.unwrap_err().kind();
        let stalled = answer(1, 10, Duration::from_secs(3600)).await;
        assert_eq!(timed_out(stalled), io::ErrorKind::TimedOut);
        let slow = answer(1, 1000, Duration::from_millis(20)).await;
        assert_eq!(timed_out(slow), io::ErrorKind::TimedOut);
    }
}
