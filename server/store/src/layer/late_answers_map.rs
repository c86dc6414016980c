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
pub(super) struct LateAnswersMap(Mutex<HashMap<usize, Entry, RandomState>>);

struct Entry {
    group: Weak<[Check]>,
    late: LateAnswersFuture,
}

impl fmt::Debug for LateAnswersMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LateAnswersMap").field(&self.len()).finish()
    }
}

impl LateAnswersMap {
    pub(super) fn insert(&self, group: &Group, late: LateAnswersFuture) {
        let mut entries = self.0.lock();
        entries.retain(|_, it| it.group.strong_count() > 0);
        entries.insert(address(group), Entry { group: Arc::downgrade(group), late });
    }

    pub(super) fn take(&self, group: &Group) -> Option<LateAnswersFuture> {
        self.0.lock().remove(&address(group)).map(|entry| entry.late)
    }

    /// The number of groups that still exist and have late answers.
    pub(super) fn len(&self) -> usize {
        self.0.lock().values().filter(|it| it.group.strong_count() > 0).count()
    }
}

fn address(group: &Group) -> usize {
    Arc::as_ptr(group).cast::<()>().addr()
}
