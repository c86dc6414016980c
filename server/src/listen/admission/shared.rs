//! The state that a listener and its connections share.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    bounds::{AdmissionBounds, DropReason, ListenerBound},
    table::{ConnectionState, ConnectionTable, Origin},
};

#[derive(Debug)]
pub(super) struct AdmissionState {
    pub(super) bounds: AdmissionBounds,
    pub(super) table: Mutex<ConnectionTable>,
    /// Notified when a connection is closed.
    pub(super) closed: Notify,
    pub(super) dropped: [AtomicU64; DropReason::ALL.len()],
    pub(super) reached_bounds: [AtomicU64; ListenerBound::ALL.len()],
}

impl AdmissionState {
    pub(super) fn drop_count(&self, reason: DropReason) -> &AtomicU64 {
        let [refused, address, replaced, timeout, idle] = &self.dropped;
        match reason {
            DropReason::NotAdmitted => refused,
            DropReason::PendingPerAddress => address,
            DropReason::Replaced => replaced,
            DropReason::Timeout => timeout,
            DropReason::Idle => idle,
        }
    }

    pub(super) fn times_reached(&self, bound: ListenerBound) -> &AtomicU64 {
        let [body_time, answer_time, held_bytes, streaming_calls] = &self.reached_bounds;
        match bound {
            ListenerBound::BodyTime => body_time,
            ListenerBound::ResponseReadTime => answer_time,
            ListenerBound::HeldBytes => held_bytes,
            ListenerBound::StreamingCalls => streaming_calls,
        }
    }

    /// Drops a connection. Returns whether there was one to drop.
    pub(super) fn drop_one(
        &self,
        table: &mut ConnectionTable,
        connection: Option<Arc<ConnectionState>>,
        reason: DropReason,
    ) -> bool {
        let dropped = connection.is_some_and(|connection| table.drop_connection(&connection));
        if dropped {
            self.drop_count(reason).fetch_add(1, Ordering::Relaxed);
        }
        dropped
    }

    /// Drops a connection for a new one from the origin `new`, or to free a descriptor if that is `None`. Returns
    /// whether there was one to drop.
    ///
    /// If more than a quarter of the places are pending, drops [`ConnectionTable::pending_to_drop`]. Otherwise it drops
    /// the longest idle one, or else for a new connection one of the origin with the most, so that connecting clients
    /// keep some places if all others are in use.
    pub(super) fn make_room(&self, table: &mut ConnectionTable, new: Option<Origin>) -> bool {
        let pending_first = table.pending_count * 4 > self.bounds.connections;
        let idle = if pending_first { None } else { table.longest_idle() };
        let replaced = idle.or_else(|| match new {
            Some(new) if !pending_first => table.of_the_largest_origin(new),
            _ => table.pending_to_drop(),
        });
        self.drop_one(table, replaced, DropReason::Replaced)
    }
}
