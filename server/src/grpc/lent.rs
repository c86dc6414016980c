//! A trace on its way through tonic's services and back.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::telemetry::Traced;

/// The trace of a call that tonic's services answer, in the extensions of its request.
#[derive(Clone, Default)]
pub(super) struct Lent(Arc<Mutex<Traced>>);

impl Lent {
    pub(super) fn take(&self) -> Traced {
        std::mem::take(&mut *self.0.lock())
    }

    pub(super) fn put(&self, traced: Traced) {
        *self.0.lock() = traced;
    }
}
