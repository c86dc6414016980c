//! The timeout for the head of an HTTP request, from its first byte.
//!
//! The HTTP library's own timeout begins with the previous response, and so cannot tell a slow head from an idle
//! connection.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The head that the peer of a connection is sending. Clones are for the same connection.
#[derive(Clone, Debug, Default)]
pub(super) struct HeadTimer(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// A request is being read or answered.
    in_request: bool,
    /// The time at which the first byte of the next head arrived.
    began: Option<Instant>,
}

impl HeadTimer {
    /// Notes that the head is complete.
    pub(super) fn begin_request(&self) {
        *self.0.lock() = State { in_request: true, began: None };
    }

    /// Notes that the next bytes belong to another head.
    pub(super) fn end_request(&self) {
        self.0.lock().in_request = false;
    }

    /// Completes when a head is still incomplete after the timeout.
    pub(super) async fn timed_out(&self, timeout: Duration) {
        loop {
            let began = self.0.lock().began;
            let end = began.unwrap_or_else(Instant::now) + timeout;
            tokio::time::sleep_until(end).await;
            if began.is_some() && self.0.lock().began == began {
                return;
            }
        }
    }

    /// Notes that bytes have arrived.
    pub(super) fn note_bytes(&self, bytes: &[u8]) {
        let mut state = self.0.lock();
        if !bytes.is_empty() && !state.in_request {
            state.began.get_or_insert_with(Instant::now);
        }
    }
}
