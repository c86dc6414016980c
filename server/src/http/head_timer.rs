//! The time that the head of an HTTP request takes, from its first byte.
//!
//! HTTP's library counts it from the answer before, and so would take a head that comes byte by byte on an old connection
//! for an idle one.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// The head that a connection's peer is sending. Clones are for the same connection.
#[derive(Clone, Debug, Default)]
pub(super) struct HeadTimer(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// A request is being read or answered.
    in_request: bool,
    /// When the first byte of the next head came.
    began: Option<Instant>,
}

impl HeadTimer {
    /// Notes that the head is complete.
    pub(super) fn begin_request(&self) {
        *self.0.lock() = State { in_request: true, began: None };
    }

    /// Notes that the next bytes are those of another head.
    pub(super) fn end_request(&self) {
        self.0.lock().in_request = false;
    }

    /// Waits until a head has taken longer.
    pub(super) async fn late(&self, timeout: Duration) {
        loop {
            let began = self.0.lock().began;
            let end = began.unwrap_or_else(Instant::now) + timeout;
            tokio::time::sleep_until(end).await;
            if began.is_some() && self.0.lock().began == began {
                return;
            }
        }
    }

    fn hear(&self) {
        let mut state = self.0.lock();
        if !state.in_request {
            state.began.get_or_insert_with(Instant::now);
        }
    }
}

/// A connection whose heads are timed.
#[derive(Debug)]
pub(super) struct Timed<T> {
    connection: T,
    timer: HeadTimer,
}

impl<T> Timed<T> {
    pub(super) const fn new(connection: T, timer: HeadTimer) -> Self {
        Self { connection, timer }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Timed<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.connection).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.timer.hear();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Timed<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}
