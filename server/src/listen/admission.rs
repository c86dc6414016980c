//! Admission of connections: the bound on a listener's connections, and the choice of the connection that a new one
//! replaces.
//!
//! A connection has three phases: the *handshake*, which has a deadline; *pending*, until the first complete request;
//! and *in use*. The bounds and the metrics count connections in their handshakes as pending, too.
//!
//! Connections before their first request cost an attacker nothing. So if pending connections have more than a quarter
//! of the places, one of these is dropped first: of the address with the most of them, the oldest that has sent nothing
//! for [`table::SILENT_AGE`], or else the oldest. So a client that connects during a flood has time for its handshake.
//! Otherwise, the connection in use that has completed no request for the longest time is dropped, after at least
//! [`table::IDLE_SWEEPS`]. If there is none, a new connection replaces one of the address with the most connections. If
//! its own address would then have as many, it replaces a pending one of its own address, or else is not admitted.

mod bounds;
mod handle;
mod shared;
mod table;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::Notify;

pub(super) use self::handle::ConnectionGuard;
#[cfg(test)]
pub(super) use self::table::{IDLE_SWEEPS, SILENT_AGE};
pub(crate) use self::{
    bounds::{AdmissionBounds, DropReason, HandshakeEnd, ListenerBound},
    handle::ConnectionHandle,
};
use self::{
    shared::AdmissionState,
    table::{ConnectionState, HANDSHAKE, Origin, count_sweep},
};

/// The interval at which the ages and the activity of connections are checked.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// The time for a handshake while half of the allowed pending connections are open, in total or of its address.
const HANDSHAKE_TIMEOUT_CROWDED: Duration = Duration::from_secs(1);

/// The connections of one listener. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Admission(Arc<AdmissionState>);

impl Admission {
    pub(crate) fn new(bounds: AdmissionBounds) -> Self {
        Self(Arc::new(AdmissionState {
            bounds,
            table: Mutex::default(),
            closed: Notify::new(),
            dropped: Default::default(),
            reached_bounds: Default::default(),
        }))
    }

    /// The maximum number of connections.
    pub(crate) fn max(&self) -> usize {
        self.0.bounds.connections
    }

    /// Open connections.
    pub(crate) fn open(&self) -> usize {
        self.0.table.lock().open.len()
    }

    /// Open connections without a complete request.
    pub(crate) fn pending(&self) -> usize {
        self.0.table.lock().pending_count
    }

    /// The number of connections that were dropped for this reason.
    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.0.drop_count(reason).load(Ordering::Relaxed)
    }

    /// The number of requests that exceeded this bound.
    pub(crate) fn times_reached(&self, bound: ListenerBound) -> u64 {
        self.0.times_reached(bound).load(Ordering::Relaxed)
    }

    /// Whether more than three quarters of the places are in use, so that connections should be closed after their
    /// responses.
    pub(crate) fn is_crowded(&self) -> bool {
        let table = self.0.table.lock();
        (table.live() - table.pending_count) * 4 > self.0.bounds.connections * 3
    }

    /// Waits until another connection may be accepted. Dropped connections hold their descriptors until their tasks
    /// have run; at most one connection is open beyond the maximum meanwhile.
    pub(super) async fn wait_for_room(&self) {
        loop {
            let closed = self.0.closed.notified();
            if self.open() <= self.max() {
                return;
            }
            closed.await;
        }
    }

    /// Admits a new connection, and drops another one for it if necessary. `None` if none can be dropped.
    pub(super) fn admit(&self, peer: Option<SocketAddr>) -> Option<ConnectionGuard> {
        let bounds = &self.0.bounds;
        let origin = Origin::of(peer);
        let mut table = self.0.table.lock();
        let of_origin = table.pending_of(origin);
        if of_origin >= bounds.pending_per_address {
            let oldest = table.pending_to_drop_of(origin);
            self.0.drop_one(&mut table, oldest, DropReason::PendingPerAddress);
        } else if table.pending_count >= bounds.pending_max() {
            let oldest = table.pending_to_drop();
            self.0.drop_one(&mut table, oldest, DropReason::Replaced);
        }
        if table.live() >= bounds.connections && !self.0.make_room(&mut table, Some(origin)) {
            self.0.drop_count(DropReason::NotAdmitted).fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let id = table.next;
        table.next += 1;
        let connection = Arc::new(ConnectionState {
            id,
            origin,
            accepted: Instant::now(),
            phase: AtomicU8::new(HANDSHAKE),
            dropped: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            has_received: AtomicBool::new(false),
            active: AtomicBool::new(true),
            sweeps_without_bytes: AtomicU32::new(0),
            requested: AtomicBool::new(false),
            sweeps_without_request: AtomicU32::new(0),
        });
        table.open.insert(id, Arc::clone(&connection));
        table.add_pending(&connection);
        Some(ConnectionGuard(ConnectionHandle { admission: Arc::clone(&self.0), connection }))
    }

    /// Drops a pending or idle connection, if there is one, because the process has no free descriptor.
    pub(super) fn free_descriptor(&self) {
        self.0.make_room(&mut self.0.table.lock(), None);
    }

    /// Drops connections that exceed a timeout, and counts the sweeps in which connections are idle.
    pub(super) fn sweep(&self) {
        let bounds = &self.0.bounds;
        let now = Instant::now();
        let mut table = self.0.table.lock();
        table.none_is_idle = false;
        let crowded = table.pending_count * 2 >= bounds.pending_max();
        let mut late = Vec::new();
        for connection in table.open.values() {
            count_sweep(&connection.requested, &connection.sweeps_without_request);
            let sweeps_without_bytes =
                count_sweep(&connection.active, &connection.sweeps_without_bytes);
            if connection.phase() == HANDSHAKE {
                let of_origin = table.pending_of(connection.origin);
                let short = crowded || of_origin * 2 >= bounds.pending_per_address;
                let timeout = bounds.handshake_timeout;
                let timeout = if short { timeout.min(HANDSHAKE_TIMEOUT_CROWDED) } else { timeout };
                if now.duration_since(connection.accepted) >= timeout {
                    late.push((Arc::clone(connection), DropReason::Timeout));
                }
            } else if bounds
                .idle_timeout
                .is_some_and(|it| SWEEP_INTERVAL * sweeps_without_bytes >= it)
            {
                late.push((Arc::clone(connection), DropReason::Idle));
            }
        }
        for (connection, reason) in late {
            self.0.drop_one(&mut table, Some(connection), reason);
        }
    }

    /// Drops the connections whose handshake is not over, because the listener is closed.
    pub(super) fn end_handshakes(&self) {
        let mut table = self.0.table.lock();
        let ended: Vec<_> = table
            .open
            .values()
            .filter(|connection| connection.phase() == HANDSHAKE)
            .cloned()
            .collect();
        for connection in ended {
            table.drop_connection(&connection);
        }
    }
}
