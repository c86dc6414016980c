//! Counts by names from requests. The number of names is bounded; all others share one count.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::RwLock;

/// The longest name with its own count, in bytes.
const NAME_MAX: usize = 256;

/// The name of all names beyond the bounds.
pub(crate) const OTHER_LABEL: &str = "(other)";

/// A bound on the number of names in all [`Series`] that share it.
#[derive(Debug)]
pub(crate) struct SeriesQuota {
    max: usize,
    used: AtomicUsize,
}

impl SeriesQuota {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, used: AtomicUsize::new(0) })
    }

    fn is_exhausted(&self) -> bool {
        self.used.load(Ordering::Relaxed) >= self.max
    }

    /// Reserves one name; false if the quota is exhausted.
    fn reserve(&self) -> bool {
        let add = |used| (used < self.max).then_some(used + 1);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }
}

/// A value for each name.
#[derive(Debug)]
pub(crate) struct Series<T> {
    quota: Arc<SeriesQuota>,
    named: RwLock<HashMap<Arc<str>, Arc<T>>>,
    other: T,
}

impl<T: Default> Series<T> {
    pub(crate) fn new(quota: &Arc<SeriesQuota>) -> Self {
        Self { quota: Arc::clone(quota), named: RwLock::default(), other: T::default() }
    }

    /// Calls `act` with the value of a name.
    pub(crate) fn with(&self, name: &str, act: impl FnOnce(&T)) {
        // Before the lookup, whose time is proportional to the length.
        if name.len() > NAME_MAX {
            return act(&self.other);
        }
        if let Some(known) = self.named.read().get(name) {
            return act(known);
        }
        act(self.add(name).as_deref().unwrap_or(&self.other));
    }

    /// Calls `visit` with the value of each name, sorted by name, and then with the value of all others.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&str, &T)) {
        // Copied, because requests with new names wait for the lock.
        let mut named: Vec<_> =
            self.named.read().iter().map(|(name, it)| (Arc::clone(name), Arc::clone(it))).collect();
        named.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (name, it) in &named {
            visit(name, it);
        }
        visit(OTHER_LABEL, &self.other);
    }

    /// Adds a name, and returns its value; `None` if the quota is exhausted.
    fn add(&self, name: &str) -> Option<Arc<T>> {
        // Before the lock, because with an exhausted quota all requests with new names come here.
        if self.quota.is_exhausted() {
            return None;
        }
        let mut named = self.named.write();
        if !named.contains_key(name) && !self.quota.reserve() {
            return None;
        }
        Some(Arc::clone(named.entry(name.into()).or_default()))
    }
}

impl<T> Drop for Series<T> {
    fn drop(&mut self) {
        self.quota.used.fetch_sub(self.named.get_mut().len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{NAME_MAX, OTHER_LABEL, Series, SeriesQuota};
    use crate::telemetry::count::Count;

    fn counts(series: &Series<Count>) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        series.for_each(|name, count| _ = counts.insert(name.to_owned(), count.get()));
        counts
    }

    #[test]
    fn visiting_does_not_block_new_names() {
        let series = Series::<Count>::new(&SeriesQuota::new(2));
        series.with("b", |it| it.add(1));
        series.with("a", |it| it.add(1));
        let mut names = Vec::new();
        series.for_each(|name, _| {
            assert!(!series.named.is_locked(), "{name}");
            names.push(name.to_owned());
        });
        assert_eq!(names, ["a", "b", OTHER_LABEL]);
    }

    #[test]
    fn names_beyond_the_quota_share_a_count_and_a_dropped_series_releases_its_names() {
        let quota = SeriesQuota::new(3);
        let (first, second) = (Series::<Count>::new(&quota), Series::<Count>::new(&quota));
        let long = "x".repeat(NAME_MAX + 1);
        for name in ["a", "b", "a", &long] {
            first.with(name, |it| it.add(1));
        }
        for name in ["c", "d", "e", "c"] {
            second.with(name, |it| it.add(1));
        }
        let expected =
            [("a", 2), ("b", 1), (OTHER_LABEL, 1)].map(|(name, it)| (name.to_owned(), it));
        assert_eq!(counts(&first), BTreeMap::from(expected));
        let expected = [("c", 2), (OTHER_LABEL, 2)].map(|(name, it)| (name.to_owned(), it));
        assert_eq!(counts(&second), BTreeMap::from(expected));
        drop(first);
        second.with("d", |it| it.add(1));
        assert_eq!(counts(&second).get("d"), Some(&1));
    }
}
