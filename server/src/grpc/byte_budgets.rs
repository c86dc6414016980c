//! Bounds on the bytes that calls hold while their messages arrive, and while their responses wait until the caller
//! reads them.
//!
//! A rate limit call whose message has fully arrived at the first poll, in one DATA frame, holds no bytes before its
//! response. Calls to health and reflection always hold 8 KiB.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::telemetry::RefusalBound;

/// The bytes of a waiting call beside its message: stream, task, remaining headers.
const CALL_OVERHEAD_BYTES: usize = 8192;

/// Bytes that each connection may hold beside the bound on all connections. So callers with few incomplete messages are
/// served while an attacker uses up that bound.
const CONNECTION_ALLOWANCE: usize = 128 * 1024;

/// The budget of bytes that the messages, or the responses, of all connections may hold.
#[derive(Debug)]
pub(crate) struct SharedByteBudget {
    /// Bytes that connections hold beyond their allowances.
    held: AtomicUsize,
    max: usize,
    max_per_connection: usize,
    /// Calls that wait for the rest of their messages.
    waiting_calls: AtomicUsize,
}

impl SharedByteBudget {
    pub(super) const fn new(max: usize, max_per_connection: usize) -> Self {
        Self {
            held: AtomicUsize::new(0),
            max,
            max_per_connection,
            waiting_calls: AtomicUsize::new(0),
        }
    }

    /// Bytes that connections hold beyond their allowances.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Calls that wait for the rest of their messages.
    pub(crate) fn waiting_calls(&self) -> usize {
        self.waiting_calls.load(Ordering::Relaxed)
    }
}

/// The part of a [`SharedByteBudget`] that one connection uses.
#[derive(Debug)]
pub(super) struct ConnectionByteBudget {
    held: AtomicUsize,
    all: Arc<SharedByteBudget>,
}

impl ConnectionByteBudget {
    pub(super) const fn new(all: Arc<SharedByteBudget>) -> Self {
        Self { held: AtomicUsize::new(0), all }
    }

    fn reserve(&self, bytes: usize) -> Result<(), RefusalBound> {
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        let after = before + bytes;
        if after > self.all.max_per_connection {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            return Err(RefusalBound::WaitingBytesPerConnection);
        }
        let shared = beyond_allowance(after) - beyond_allowance(before);
        if shared > 0 && self.all.held.fetch_add(shared, Ordering::Relaxed) + shared > self.all.max
        {
            self.release(bytes);
            return Err(RefusalBound::WaitingBytes);
        }
        Ok(())
    }

    fn release(&self, bytes: usize) {
        let before = self.held.fetch_sub(bytes, Ordering::Relaxed);
        let shared = beyond_allowance(before) - beyond_allowance(before - bytes);
        if shared > 0 {
            self.all.held.fetch_sub(shared, Ordering::Relaxed);
        }
    }
}

const fn beyond_allowance(bytes: usize) -> usize {
    bytes.saturating_sub(CONNECTION_ALLOWANCE)
}

/// Bytes that one call holds, released on drop.
#[derive(Debug)]
pub(super) struct CallBytesGuard<'a> {
    connection: &'a ConnectionByteBudget,
    bytes: usize,
    is_waiting: bool,
}

impl<'a> CallBytesGuard<'a> {
    /// Holds no bytes yet.
    pub(super) const fn empty(connection: &'a ConnectionByteBudget) -> Self {
        Self { connection, bytes: 0, is_waiting: false }
    }

    /// Holds more bytes.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), RefusalBound> {
        self.connection.reserve(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Counts the call as waiting for its message.
    pub(super) fn begin_wait(&mut self) -> Result<(), RefusalBound> {
        self.is_waiting = true;
        self.connection.all.waiting_calls.fetch_add(1, Ordering::Relaxed);
        self.grow(CALL_OVERHEAD_BYTES)
    }

    pub(super) const fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Counts the call as waiting no more. It holds its bytes until it is dropped.
    pub(super) fn end_wait(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.connection.all.waiting_calls.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for CallBytesGuard<'_> {
    fn drop(&mut self) {
        self.end_wait();
        if self.bytes > 0 {
            self.connection.release(self.bytes);
        }
    }
}

/// Bytes that a response holds until HTTP/2 has sent its message.
#[derive(Debug)]
pub(super) struct ResponseBytesGuard {
    connection: Arc<ConnectionByteBudget>,
    bytes: usize,
}

impl ResponseBytesGuard {
    /// Holds a response of this length.
    pub(super) fn hold(
        connection: &Arc<ConnectionByteBudget>,
        length: usize,
    ) -> Result<Self, RefusalBound> {
        let bytes = length + CALL_OVERHEAD_BYTES;
        connection.reserve(bytes)?;
        Ok(Self { connection: Arc::clone(connection), bytes })
    }
}

impl Drop for ResponseBytesGuard {
    fn drop(&mut self) {
        self.connection.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_allowance_are_shared_and_released() {
        let all = Arc::new(SharedByteBudget::new(1_000, 2 * CONNECTION_ALLOWANCE));
        let (one, other) = (
            ConnectionByteBudget::new(Arc::clone(&all)),
            ConnectionByteBudget::new(Arc::clone(&all)),
        );
        let (mut first, mut second) = (CallBytesGuard::empty(&one), CallBytesGuard::empty(&one));
        assert_eq!(first.grow(CONNECTION_ALLOWANCE), Ok(()));
        assert_eq!(all.held(), 0);
        assert_eq!(second.grow(1_000), Ok(()));
        assert_eq!(second.grow(1), Err(RefusalBound::WaitingBytes));
        assert_eq!(all.held(), 1_000);
        // The other connection still has its allowance.
        let mut third = CallBytesGuard::empty(&other);
        assert_eq!(third.begin_wait(), Ok(()));
        assert_eq!(third.grow(CONNECTION_ALLOWANCE), Err(RefusalBound::WaitingBytes));
        assert_eq!((all.held(), all.waiting_calls()), (1_000, 1));
        // The first releases the shared part, although the second reserved it.
        drop(first);
        assert_eq!(all.held(), 0);
        drop((second, third));
        let held = |connection: &ConnectionByteBudget| connection.held.load(Ordering::Relaxed);
        assert_eq!((held(&one), held(&other), all.held(), all.waiting_calls()), (0, 0, 0, 0));
    }

    #[test]
    fn one_connection_holds_no_more_than_its_bound() {
        let all = Arc::new(SharedByteBudget::new(usize::MAX, 2 * CONNECTION_ALLOWANCE));
        let connection = ConnectionByteBudget::new(Arc::clone(&all));
        let mut call = CallBytesGuard::empty(&connection);
        assert_eq!(call.grow(2 * CONNECTION_ALLOWANCE), Ok(()));
        assert_eq!(call.grow(1), Err(RefusalBound::WaitingBytesPerConnection));
        drop(call);
        assert_eq!(all.held(), 0);
    }
}
