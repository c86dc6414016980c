//! What a listener and its connections share.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    bounds::{AdmissionBounds, DropReason, RequestBound},
    table::{ConnectionState, Origin, Table},
};

#[derive(Debug)]
pub(super) struct AdmissionState {
    pub(super) bounds: AdmissionBounds,
    pub(super) table: Mutex<Table>,
    /// Notified when a connection is closed.
    pub(super) closed: Notify,
    pub(super) dropped: [AtomicU64; DropReason::ALL.len()],
    pub(super) bounds_met: [AtomicU64; RequestBound::ALL.len()],
}

impl AdmissionState {
    pub(super) fn count(&self, reason: DropReason) -> &AtomicU64 {
        let [refused, address, replaced, timeout, idle] = &self.dropped;
        match reason {
            DropReason::Refused => refused,
            DropReason::Address => address,
            DropReason::Replaced => replaced,
            DropReason::Timeout => timeout,
            DropReason::Idle => idle,
        }
    }

    pub(super) fn count_of(&self, bound: RequestBound) -> &AtomicU64 {
        let [body_time, answer_time, held_bytes, lasting_calls] = &self.bounds_met;
        match bound {
            RequestBound::BodyTime => body_time,
            RequestBound::AnswerTime => answer_time,
            RequestBound::HeldBytes => held_bytes,
            RequestBound::LastingCalls => lasting_calls,
        }
    }

    /// Drops this connection. Returns whether there was one to drop.
    pub(super) fn drop_one(
        &self,
        table: &mut Table,
        slot: Option<Arc<ConnectionState>>,
        reason: DropReason,
    ) -> bool {
        let dropped = slot.is_some_and(|slot| table.drop_connection(&slot));
        if dropped {
            self.count(reason).fetch_add(1, Ordering::Relaxed);
        }
        dropped
    }

    /// Drops a connection for a new one from this address, or for none: a pending one if a quarter of the places are
    /// pending, else an idle one, else one of the address that has the most, or a pending one. So clients that are
    /// connecting keep places when all others are in use.
    pub(super) fn make_room(&self, table: &mut Table, new: Option<Origin>) -> bool {
        let pending_first = table.pending_count * 4 > self.bounds.connections;
        let victim = if pending_first { None } else { table.idlest() };
        let victim = victim.or_else(|| match new {
            Some(new) if !pending_first => table.of_the_largest_origin(new),
            _ => table.oldest_pending(),
        });
        self.drop_one(table, victim, DropReason::Replaced)
    }
}
