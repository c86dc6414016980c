//! Bounds the bytes that calls hold while their messages arrive, and while their answers wait for the caller to take them.
//!
//! A call whose message is whole when it is first looked at holds nothing before it is answered.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::telemetry::Bound;

/// What a call that waits for its message holds beside the message: its stream, its task, its headers' rest.
const CALL_BYTES: usize = 8192;

/// Bytes that each connection may hold without asking all others: so callers whose few messages come in pieces are
/// served while an attacker holds all there is to hold.
const CONNECTION_ALLOWANCE: usize = 128 * 1024;

/// Bytes held by the calls of all connections.
#[derive(Debug)]
pub(crate) struct WaitingBytes {
    /// What connections hold beyond their allowances.
    held: AtomicUsize,
    max: usize,
    max_per_connection: usize,
    /// Calls that wait now.
    calls: AtomicUsize,
}

impl WaitingBytes {
    pub(super) const fn new(max: usize, max_per_connection: usize) -> Self {
        Self { held: AtomicUsize::new(0), max, max_per_connection, calls: AtomicUsize::new(0) }
    }

    /// Bytes that connections hold beyond their allowances.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Calls that wait for the rest of their messages.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

/// Bytes held by the calls of one connection.
#[derive(Debug)]
pub(super) struct ConnectionBytes {
    held: AtomicUsize,
    all: Arc<WaitingBytes>,
}

impl ConnectionBytes {
    pub(super) const fn new(all: Arc<WaitingBytes>) -> Self {
        Self { held: AtomicUsize::new(0), all }
    }

    fn take(&self, bytes: usize) -> Result<(), Bound> {
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        let after = before + bytes;
        if after > self.all.max_per_connection {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            return Err(Bound::WaitingBytesPerConnection);
        }
        let shared = beyond_allowance(after) - beyond_allowance(before);
        if shared > 0 && self.all.held.fetch_add(shared, Ordering::Relaxed) + shared > self.all.max
        {
            self.give_back(bytes);
            return Err(Bound::WaitingBytes);
        }
        Ok(())
    }

    fn give_back(&self, bytes: usize) {
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
pub(super) struct CallBytes<'a> {
    connection: &'a ConnectionBytes,
    bytes: usize,
    is_waiting: bool,
}

impl<'a> CallBytes<'a> {
    /// Holds nothing yet.
    pub(super) const fn none(connection: &'a ConnectionBytes) -> Self {
        Self { connection, bytes: 0, is_waiting: false }
    }

    /// Holds more.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Bound> {
        self.connection.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// The call waits for its message from now on.
    pub(super) fn wait(&mut self) -> Result<(), Bound> {
        self.is_waiting = true;
        self.connection.all.calls.fetch_add(1, Ordering::Relaxed);
        self.grow(CALL_BYTES)
    }

    pub(super) const fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// The call does not wait any more; what it holds, it holds until its end.
    pub(super) fn end_wait(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.connection.all.calls.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for CallBytes<'_> {
    fn drop(&mut self) {
        self.end_wait();
        if self.bytes > 0 {
            self.connection.give_back(self.bytes);
        }
    }
}

/// What an answer holds until the connection has taken it.
#[derive(Debug)]
pub(super) struct AnswerBytes {
    connection: Arc<ConnectionBytes>,
    bytes: usize,
}

impl AnswerBytes {
    /// Holds an answer of this length.
    pub(super) fn hold(connection: &Arc<ConnectionBytes>, length: usize) -> Result<Self, Bound> {
        let bytes = length + CALL_BYTES;
        connection.take(bytes)?;
        Ok(Self { connection: Arc::clone(connection), bytes })
    }
}

impl Drop for AnswerBytes {
    fn drop(&mut self) {
        self.connection.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_beyond_the_allowance_are_shared_and_given_back() {
        let all = Arc::new(WaitingBytes::new(1_000, 2 * CONNECTION_ALLOWANCE));
        let (one, other) =
            (ConnectionBytes::new(Arc::clone(&all)), ConnectionBytes::new(Arc::clone(&all)));
        let (mut first, mut second) = (CallBytes::none(&one), CallBytes::none(&one));
        assert_eq!(first.grow(CONNECTION_ALLOWANCE), Ok(()));
        assert_eq!(all.held(), 0);
        assert_eq!(second.grow(1_000), Ok(()));
        assert_eq!(second.grow(1), Err(Bound::WaitingBytes));
        assert_eq!(all.held(), 1_000);
        // Another connection has its allowance all the same.
        let mut third = CallBytes::none(&other);
        assert_eq!(third.wait(), Ok(()));
        assert_eq!(third.grow(CONNECTION_ALLOWANCE), Err(Bound::WaitingBytes));
        assert_eq!((all.held(), all.calls()), (1_000, 1));
        // The first releases the shared part, although the second reserved it.
        drop(first);
        assert_eq!(all.held(), 0);
        drop((second, third));
        let held = |connection: &ConnectionBytes| connection.held.load(Ordering::Relaxed);
        assert_eq!((held(&one), held(&other), all.held(), all.calls()), (0, 0, 0, 0));
    }

    #[test]
    fn one_connection_holds_no_more_than_its_bound() {
        let all = Arc::new(WaitingBytes::new(usize::MAX, 2 * CONNECTION_ALLOWANCE));
        let connection = ConnectionBytes::new(Arc::clone(&all));
        let mut call = CallBytes::none(&connection);
        assert_eq!(call.grow(2 * CONNECTION_ALLOWANCE), Ok(()));
        assert_eq!(call.grow(1), Err(Bound::WaitingBytesPerConnection));
        drop(call);
        assert_eq!(all.held(), 0);
    }
}
