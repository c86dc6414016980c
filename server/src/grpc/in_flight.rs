//! Bounds the requests in progress.
//!
//! A request counts from when its message is whole to its answer. Beyond the bound it is marked, and answered
//! OVER_LIMIT without being matched: an error would let it through, and make a flood a way around
//! every limit.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::values::Ratio;

/// Requests in progress, and the most there may be. Clones count together.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    current: Arc<AtomicUsize>,
    max: usize,
}

/// One request in progress, until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard<'a> {
    current: &'a AtomicUsize,
    /// Whether there were too many.
    pub(crate) shed: bool,
}

impl InFlight {
    pub(crate) fn new(max: usize) -> Self {
        Self { current: Arc::default(), max }
    }

    /// The requests in this share of the bound, at least 1.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share need not be exact, and is never larger than the bound"
    )]
    pub(crate) fn share(&self, share: Ratio) -> usize {
        let share = (self.max as f64 * share.get()).ceil() as usize;
        share.max(1)
    }

    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    pub(crate) fn enter(&self) -> InFlightGuard<'_> {
        let before = self.current.fetch_add(1, Ordering::Relaxed);
        InFlightGuard { current: &self.current, shed: before >= self.max }
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.current.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_up_and_never_nothing() {
        let share = |share: &str| InFlight::new(3).share(share.parse().unwrap());
        assert_eq!([share("0"), share("0.5"), share("1")], [1, 2, 3]);
    }

    #[test]
    fn requests_beyond_the_bound_are_marked() {
        let in_flight = InFlight::new(2);
        let (first, second) = (in_flight.enter(), in_flight.enter());
        assert!(!first.shed && !second.shed && in_flight.enter().shed);
        drop(first);
        assert!(!in_flight.enter().shed);
        assert_eq!(in_flight.current(), 1);
    }
}
