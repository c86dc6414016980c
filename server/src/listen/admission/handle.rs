//! The place of one connection.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    task::Context,
};

use super::{
    bounds::{Handshake, RequestBound},
    shared::AdmissionState,
    table::{ConnectionState, HANDSHAKE, IN_USE, PENDING},
};

/// The place of one connection, to be marked as used. Clones are for the same connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionHandle {
    pub(super) shared: Arc<AdmissionState>,
    pub(super) slot: Arc<ConnectionState>,
}

impl ConnectionHandle {
    /// Notes that the connection has sent a complete request.
    pub(crate) fn mark_used(&self) {
        self.slot.requested.store(true, Ordering::Relaxed);
        if self.slot.phase() == IN_USE {
            return;
        }
        let mut table = self.shared.table.lock();
        self.slot.phase.store(IN_USE, Ordering::Relaxed);
        table.set_in_use(&self.slot);
    }

    /// Counts a request that met a bound.
    pub(crate) fn count_bound(&self, bound: RequestBound) {
        self.shared.count_of(bound).fetch_add(1, Ordering::Relaxed);
    }

    /// The bytes, after TLS, that end the handshake; `None` if only a complete request does.
    pub(in crate::listen) fn handshake_bytes(&self) -> Option<usize> {
        match self.shared.bounds.handshake {
            Handshake::Bytes(bytes) => Some(bytes),
            Handshake::Request => None,
        }
    }

    /// Notes that the handshake is over.
    pub(in crate::listen) fn end_handshake(&self) {
        let (from, to, order) = (HANDSHAKE, PENDING, Ordering::Relaxed);
        let _other_phase = self.slot.phase.compare_exchange(from, to, order, order);
    }

    /// Notes that the peer has sent something.
    pub(in crate::listen) fn hear(&self) {
        self.slot.heard.store(true, Ordering::Relaxed);
        self.touch();
    }

    /// Notes that bytes have passed.
    pub(in crate::listen) fn touch(&self) {
        self.slot.active.store(true, Ordering::Relaxed);
    }

    /// Wakes this task when the connection is dropped.
    pub(in crate::listen) fn watch(&self, context: &Context<'_>) {
        self.slot.waker.register(context.waker());
    }

    /// Fails once the connection has been dropped.
    pub(in crate::listen) fn check(&self) -> io::Result<()> {
        if self.slot.dropped.load(Ordering::Acquire) {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "dropped by the listener: too slow, or its place was needed",
            ));
        }
        Ok(())
    }
}

/// Holds a place until the connection is closed.
#[derive(Debug)]
pub(in crate::listen) struct ConnectionGuard(pub(in crate::listen) ConnectionHandle);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let ConnectionHandle { shared, slot } = &self.0;
        let mut table = shared.table.lock();
        table.forget(slot);
        table.open.remove(&slot.id);
        if slot.dropped.load(Ordering::Acquire) {
            table.dropped -= 1;
        }
        drop(table);
        shared.closed.notify_one();
    }
}
