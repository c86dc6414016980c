//! The time that the head of an HTTP request takes, from its first byte.
//!
//! HTTP's library counts it from the answer before, and so would take a head that comes byte by byte on an old connection
//! for an idle one.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

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

    /// Notes that these bytes have come.
    pub(super) fn hear(&self, bytes: &[u8]) {
        let mut state = self.0.lock();
        if !bytes.is_empty() && !state.in_request {
            state.began.get_or_insert_with(Instant::now);
        }
    }
}
