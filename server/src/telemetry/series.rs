//! Counts by a name that requests bring along: a bounded number of them, and one for all others.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::RwLock;

/// The longest name; a longer one is counted with the others.
const NAME_MAX: usize = 256;

/// The common name of all names beyond the bound.
pub(crate) const OTHER: &str = "(other)";

/// How many names there may be, among all that share the budget.
#[derive(Debug)]
pub(crate) struct SeriesQuota {
    max: usize,
    taken: AtomicUsize,
}

impl SeriesQuota {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: AtomicUsize::new(0) })
    }

    fn is_spent(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.max
    }

    fn take(&self) -> bool {
        let more = |taken| (taken < self.max).then_some(taken + 1);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// Something for each name.
#[derive(Debug)]
pub(crate) struct Series<T> {
    budget: Arc<SeriesQuota>,
    named: RwLock<HashMap<Arc<str>, Arc<T>>>,
    other: T,
}

impl<T: Default> Series<T> {
    pub(crate) fn new(budget: &Arc<SeriesQuota>) -> Self {
        Self { budget: Arc::clone(budget), named: RwLock::default(), other: T::default() }
    }

    /// Does something with what belongs to the name.
    pub(crate) fn with(&self, name: &str, act: impl FnOnce(&T)) {
        // First, because looking a long name up takes as long as it is.
        if name.len() > NAME_MAX {
            return act(&self.other);
        }
        if let Some(known) = self.named.read().get(name) {
            return act(known);
        }
        act(self.add(name).as_deref().unwrap_or(&self.other));
    }

    /// Shows what belongs to every name, in order, and to all others together.
    pub(crate) fn show(&self, mut show: impl FnMut(&str, &T)) {
        // A new name waits for the lock, and with it its request.
        let mut named: Vec<_> =
            self.named.read().iter().map(|(name, it)| (Arc::clone(name), Arc::clone(it))).collect();
        named.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (name, it) in &named {
            show(name, it);
        }
        show(OTHER, &self.other);
    }

    /// What belongs to a new name; `None` if there are too many.
    fn add(&self, name: &str) -> Option<Arc<T>> {
        // Before the lock: when nothing is left, every new name comes here.
        if self.budget.is_spent() {
            return None;
        }
        let mut named = self.named.write();
        if !named.contains_key(name) && !self.budget.take() {
            return None;
        }
        Some(Arc::clone(named.entry(name.into()).or_default()))
    }
}

impl<T> Drop for Series<T> {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.named.get_mut().len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{NAME_MAX, OTHER, Series, SeriesQuota};
    use crate::telemetry::count::Count;

    fn shown(series: &Series<Count>) -> BTreeMap<String, u64> {
        let mut shown = BTreeMap::new();
        series.show(|name, count| _ = shown.insert(name.to_owned(), count.get()));
        shown
    }

    #[test]
    fn what_is_shown_keeps_no_new_name_waiting() {
        let series = Series::<Count>::new(&SeriesQuota::new(2));
        series.with("b", |it| it.add(1));
        series.with("a", |it| it.add(1));
        let mut names = Vec::new();
        series.show(|name, _| {
            assert!(!series.named.is_locked(), "{name}");
            names.push(name.to_owned());
        });
        assert_eq!(names, ["a", "b", OTHER]);
    }

    #[test]
    fn names_beyond_the_budget_are_counted_together_and_a_dropped_series_gives_back() {
        let budget = SeriesQuota::new(3);
        let (first, second) = (Series::<Count>::new(&budget), Series::<Count>::new(&budget));
        let long = "x".repeat(NAME_MAX + 1);
        for name in ["a", "b", "a", &long] {
            first.with(name, |it| it.add(1));
        }
        for name in ["c", "d", "e", "c"] {
            second.with(name, |it| it.add(1));
        }
        let expected = [("a", 2), ("b", 1), (OTHER, 1)].map(|(name, it)| (name.to_owned(), it));
        assert_eq!(shown(&first), BTreeMap::from(expected));
        let expected = [("c", 2), (OTHER, 2)].map(|(name, it)| (name.to_owned(), it));
        assert_eq!(shown(&second), BTreeMap::from(expected));
        drop(first);
        second.with("d", |it| it.add(1));
        assert_eq!(shown(&second).get("d"), Some(&1));
    }
}
