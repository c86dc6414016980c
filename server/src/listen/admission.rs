//! Admission of connections: how many a listener holds, and which one it drops for a new one.
//!
//! A connection passes three phases. In the *handshake* it has to show within a deadline that it speaks the listener's
//! protocol; it is *pending* until its first complete request, and *in use* from then on. Connections that are not in use
//! cost an attacker nothing, so they are dropped first: of the address that has the most of them the oldest one that has
//! sent nothing for a moment, or else the oldest. So a client that connects during a flood gets a place and the time for its handshake.
//! A connection in use is dropped if it has completed no request for a while. When all are busy, places are divided
//! among addresses: the one that has the most gives one to an address that has fewer, and is itself refused more.

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
    bounds::{AdmissionBounds, DropReason, Handshake, RequestBound},
    handle::ConnectionHandle,
};
use self::{
    shared::AdmissionState,
    table::{ConnectionState, HANDSHAKE, Origin, count_sweep},
};

/// How often the ages and the activity of connections are checked.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// The time for a handshake while half of the pending places are taken.
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
            bounds_met: Default::default(),
        }))
    }

    /// The most connections.
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

    /// Connections that were dropped for this reason.
    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.0.count(reason).load(Ordering::Relaxed)
    }

    /// Requests that met this bound.
    pub(crate) fn bound_met(&self, bound: RequestBound) -> u64 {
        self.0.count_of(bound).load(Ordering::Relaxed)
    }

    /// Whether three quarters of the places are in use, so that connections should end after their answers.
    pub(crate) fn is_crowded(&self) -> bool {
        let table = self.0.table.lock();
        (table.live() - table.pending_count) * 4 > self.0.bounds.connections * 3
    }

    /// Waits until another connection may be accepted. Those that were dropped hold their descriptors until their tasks
    /// have run; at most one connection is open beyond the bound meanwhile.
    pub(super) async fn room(&self) {
        loop {
            let closed = self.0.closed.notified();
            if self.open() <= self.max() {
                return;
            }
            closed.await;
        }
    }

    /// Gives a place to a new connection, if need be another's. `None` if all places are in use.
    pub(super) fn admit(&self, peer: Option<SocketAddr>) -> Option<ConnectionGuard> {
        let bounds = &self.0.bounds;
        let origin = Origin::of(peer);
        let mut table = self.0.table.lock();
        let of_origin = table.pending_of(origin);
        if of_origin >= bounds.pending_per_address {
            let oldest = table.oldest_pending_of(origin);
            self.0.drop_one(&mut table, oldest, DropReason::Address);
        } else if table.pending_count >= bounds.pending_max() {
            let oldest = table.oldest_pending();
            self.0.drop_one(&mut table, oldest, DropReason::Replaced);
        }
        if table.live() >= bounds.connections && !self.0.make_room(&mut table, Some(origin)) {
            self.0.count(DropReason::Refused).fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let id = table.next;
        table.next += 1;
        let slot = Arc::new(ConnectionState {
            id,
            origin,
            accepted: Instant::now(),
            phase: AtomicU8::new(HANDSHAKE),
            dropped: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            heard: AtomicBool::new(false),
            active: AtomicBool::new(true),
            silent_sweeps: AtomicU32::new(0),
            requested: AtomicBool::new(false),
            idle_sweeps: AtomicU32::new(0),
        });
        table.open.insert(id, Arc::clone(&slot));
        table.add_pending(&slot);
        Some(ConnectionGuard(ConnectionHandle { shared: Arc::clone(&self.0), slot }))
    }

    /// Drops a connection that is pending or idle, if there is one, because the process has no more descriptors.
    pub(super) fn free_descriptor(&self) {
        self.0.make_room(&mut self.0.table.lock(), None);
    }

    /// Drops connections that take too long, and notes which are idle.
    pub(super) fn sweep(&self) {
        let bounds = &self.0.bounds;
        let now = Instant::now();
        let mut table = self.0.table.lock();
        table.none_is_idle = false;
        let crowded = table.pending_count * 2 >= bounds.pending_max();
        let mut late = Vec::new();
        for slot in table.open.values() {
            count_sweep(&slot.requested, &slot.idle_sweeps);
            let silent_sweeps = count_sweep(&slot.active, &slot.silent_sweeps);
            if slot.phase() == HANDSHAKE {
                let of_origin = table.pending_of(slot.origin);
                let short = crowded || of_origin * 2 >= bounds.pending_per_address;
                let timeout = bounds.handshake_timeout;
                let timeout = if short { timeout.min(HANDSHAKE_TIMEOUT_CROWDED) } else { timeout };
                if now.duration_since(slot.accepted) >= timeout {
                    late.push((Arc::clone(slot), DropReason::Timeout));
                }
            } else if bounds.idle_timeout.is_some_and(|it| SWEEP_INTERVAL * silent_sweeps >= it) {
                late.push((Arc::clone(slot), DropReason::Idle));
            }
        }
        for (slot, reason) in late {
            self.0.drop_one(&mut table, Some(slot), reason);
        }
    }

    /// Drops the connections whose handshake is not over: the listener is closed.
    pub(super) fn end_handshakes(&self) {
        let mut table = self.0.table.lock();
        let ended: Vec<_> =
            table.open.values().filter(|slot| slot.phase() == HANDSHAKE).cloned().collect();
        for slot in ended {
            table.drop_connection(&slot);
        }
    }
}
