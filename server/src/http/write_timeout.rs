//! The timeout for the peer of an HTTP connection to read a response.

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

/// The longest time in which the peer reads no byte of a response.
const RESPONSE_STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The time for the peer to read all responses that wait for it.
const RESPONSE_READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The timeouts of a peer.
#[derive(Clone, Copy, Debug)]
struct Timeouts {
    stall: Duration,
    total: Duration,
}

/// A connection whose writes fail if the peer does not read responses in time.
#[derive(Debug)]
pub(super) struct WriteTimeout<T, F> {
    connection: T,
    timeouts: Timeouts,
    /// Called when a write times out.
    on_timeout: F,
    /// Set while bytes wait for the peer.
    deadlines: Option<Deadlines>,
}

/// The deadlines of the peer for reading the bytes that wait.
#[derive(Debug)]
struct Deadlines {
    /// The deadline for all bytes.
    total: Instant,
    /// Ends at the earlier of the two deadlines.
    sleep: Pin<Box<Sleep>>,
}

impl Deadlines {
    fn new(timeouts: Timeouts) -> Self {
        let now = Instant::now();
        let sleep = Box::pin(sleep_until(now + timeouts.stall));
        Self { total: now + timeouts.total, sleep }
    }

    /// Notes that the peer has read bytes.
    fn note_progress(&mut self, timeouts: Timeouts) {
        let next = self.total.min(Instant::now() + timeouts.stall);
        self.sleep.as_mut().reset(next);
    }
}

impl<T, F: Fn()> WriteTimeout<T, F> {
    /// Applies the timeouts to a connection. `on_timeout` is called when a write times out.
    pub(super) const fn new(connection: T, on_timeout: F) -> Self {
        let timeouts = Timeouts { stall: RESPONSE_STALL_TIMEOUT, total: RESPONSE_READ_TIMEOUT };
        Self { connection, timeouts, on_timeout, deadlines: None }
    }

    /// Converts a pending write into an error after a deadline.
    fn check(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = written {
            if let Some(deadlines) = &mut self.deadlines {
                deadlines.note_progress(self.timeouts);
            }
            return Poll::Ready(written);
        }
        let deadlines = self.deadlines.get_or_insert_with(|| Deadlines::new(self.timeouts));
        ready!(deadlines.sleep.as_mut().poll(context));
        (self.on_timeout)();
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<T: AsyncRead + Unpin, F: Unpin> AsyncRead for WriteTimeout<T, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl<T: AsyncWrite + Unpin, F: Fn() + Unpin> AsyncWrite for WriteTimeout<T, F> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write(context, bytes);
        self.check(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.connection).poll_write_vectored(context, bytes);
        self.check(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    /// The HTTP library flushes when it has written all responses.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.connection).poll_flush(context))?;
        self.deadlines = None;
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

    /// Writes responses of this size to a peer that pauses after each byte.
    async fn respond(responses: usize, bytes: usize, pause: Duration) -> io::Result<()> {
        let (connection, mut peer) = duplex(1);
        let timed_out = Cell::new(0);
        let timeouts =
            Timeouts { stall: Duration::from_millis(300), total: Duration::from_millis(600) };
        let mut connection = WriteTimeout {
            timeouts,
            ..WriteTimeout::new(connection, || timed_out.set(timed_out.get() + 1))
        };
        let written = async {
            for _ in 0..responses {
                connection.write_all(&vec![0; bytes]).await?;
                connection.flush().await?;
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
            () = read => panic!("the connection ended"),
        };
        assert_eq!(timed_out.get(), usize::from(result.is_err()));
        result
    }

    #[tokio::test]
    async fn a_response_that_is_read_in_time_is_written() {
        respond(1, 10, Duration::ZERO).await.unwrap();
        // The timeouts begin again with each response.
        respond(20, 3, Duration::from_millis(20)).await.unwrap();
    }

    #[tokio::test]
    async fn a_response_that_is_not_read_ends_the_connection() {
        let kind = |result: io::Result<()>| result.unwrap_err().kind();
        let stalled = respond(1, 10, Duration::from_secs(3600)).await;
        assert_eq!(kind(stalled), io::ErrorKind::TimedOut);
        let slow = respond(1, 1000, Duration::from_millis(20)).await;
        assert_eq!(kind(slow), io::ErrorKind::TimedOut);
    }
}
