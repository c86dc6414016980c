//! Keeps late answers between the return of a store's answers and the caller's next step.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use sluicegate_core::{
    Check,
    store::{Group, PendingAnswers},
};

/// Late answers, by the address of the group that was asked. Those of groups that are gone are dropped with the next that
/// is kept; until then their addresses are not used again.
#[derive(Default)]
pub(super) struct LateAnswers(Mutex<HashMap<usize, Kept, RandomState>>);

struct Kept {
    group: Weak<[Check]>,
    late: PendingAnswers,
}

impl fmt::Debug for LateAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LateAnswers").field(&self.len()).finish()
    }
}

impl LateAnswers {
    pub(super) fn keep(&self, group: &Group, late: PendingAnswers) {
        let mut kept = self.0.lock();
        kept.retain(|_, it| it.group.strong_count() > 0);
        kept.insert(address(group), Kept { group: Arc::downgrade(group), late });
    }

    pub(super) fn take(&self, group: &Group) -> Option<PendingAnswers> {
        self.0.lock().remove(&address(group)).map(|kept| kept.late)
    }

    /// Those of groups that are not gone.
    pub(super) fn len(&self) -> usize {
        self.0.lock().values().filter(|it| it.group.strong_count() > 0).count()
    }
}

fn address(group: &Group) -> usize {
    Arc::as_ptr(group).cast::<()>().addr()
}
