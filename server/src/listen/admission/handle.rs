//! The handle of one admitted connection.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    task::Context,
};

use super::{
    bounds::{HandshakeEnd, ListenerBound},
    shared::AdmissionState,
    table::{ConnectionState, HANDSHAKE, IN_USE, PENDING},
};

/// Records events of one connection. Clones are for the same connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionHandle {
    pub(super) admission: Arc<AdmissionState>,
    pub(super) connection: Arc<ConnectionState>,
}

impl ConnectionHandle {
    /// Notes that the connection has sent a complete request.
    pub(crate) fn mark_used(&self) {
        self.connection.requested.store(true, Ordering::Relaxed);
        if self.connection.phase() == IN_USE {
            return;
        }
        let mut table = self.admission.table.lock();
        self.connection.phase.store(IN_USE, Ordering::Relaxed);
        table.set_in_use(&self.connection);
    }

    /// Counts a request that exceeded a bound.
    pub(crate) fn count_bound(&self, bound: ListenerBound) {
        self.admission.times_reached(bound).fetch_add(1, Ordering::Relaxed);
    }

    /// The number of bytes after TLS that end the handshake; `None` if the first complete request ends it.
    pub(in crate::listen) fn handshake_bytes(&self) -> Option<usize> {
        match self.admission.bounds.handshake_end {
            HandshakeEnd::Bytes(bytes) => Some(bytes),
            HandshakeEnd::Request => None,
        }
    }

    /// Notes that the handshake is over.
    pub(in crate::listen) fn end_handshake(&self) {
        let (from, to, order) = (HANDSHAKE, PENDING, Ordering::Relaxed);
        let _other_phase = self.connection.phase.compare_exchange(from, to, order, order);
    }

    /// Notes that the peer has sent bytes.
    pub(in crate::listen) fn note_received(&self) {
        self.connection.has_received.store(true, Ordering::Relaxed);
        self.note_activity();
    }

    /// Notes that bytes were sent or received.
    pub(in crate::listen) fn note_activity(&self) {
        self.connection.active.store(true, Ordering::Relaxed);
    }

    /// Registers the task to wake when the connection is dropped.
    pub(in crate::listen) fn register_waker(&self, context: &Context<'_>) {
        self.connection.waker.register(context.waker());
    }

    /// Fails once the connection has been dropped.
    pub(in crate::listen) fn ensure_not_dropped(&self) -> io::Result<()> {
        if self.connection.dropped.load(Ordering::Acquire) {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "dropped by the listener: too slow, or its place was needed",
            ));
        }
        Ok(())
    }
}

/// Counts the connection as open. Dropping this releases its place.
#[derive(Debug)]
pub(in crate::listen) struct ConnectionGuard(pub(in crate::listen) ConnectionHandle);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let ConnectionHandle { admission, connection } = &self.0;
        let mut table = admission.table.lock();
        table.remove_from_origin(connection);
        table.open.remove(&connection.id);
        if connection.dropped.load(Ordering::Acquire) {
            table.dropped -= 1;
        }
        drop(table);
        admission.closed.notify_one();
    }
}
