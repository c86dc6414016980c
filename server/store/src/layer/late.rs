//! Late answers that wait until the caller of `decide` retrieves them.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Weak},
};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use sluicegate_core::{
    Check,
    store::{Group, LateAnswersFuture},
};

/// Late answers by the address of their group. Each insertion drops those of groups that no longer exist; until then a
/// weak reference prevents another group from getting the same address.
#[derive(Default)]
pub(super) struct LateAnswers(Mutex<HashMap<usize, Kept, RandomState>>);

struct Kept {
    group: Weak<[Check]>,
    late: LateAnswersFuture,
}

impl fmt::Debug for LateAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LateAnswers").field(&self.len()).finish()
    }
}

impl LateAnswers {
    pub(super) fn keep(&self, group: &Group, late: LateAnswersFuture) {
        let mut kept = self.0.lock();
        kept.retain(|_, it| it.group.strong_count() > 0);
        kept.insert(address(group), Kept { group: Arc::downgrade(group), late });
    }

    pub(super) fn take(&self, group: &Group) -> Option<LateAnswersFuture> {
        self.0.lock().remove(&address(group)).map(|kept| kept.late)
    }

    /// The number of groups that still exist and have late answers.
    pub(super) fn len(&self) -> usize {
        self.0.lock().values().filter(|it| it.group.strong_count() > 0).count()
    }
}

fn address(group: &Group) -> usize {
    Arc::as_ptr(group).cast::<()>().addr()
}
