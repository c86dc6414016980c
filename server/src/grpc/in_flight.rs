//! The bound on requests in flight.
//!
//! A request is in flight from the end of its message to its answer. Requests beyond the bound are marked, and then
//! refused (OVER_LIMIT) before matching. They are not answered with an error, because Envoy lets requests pass on
//! errors, so a flood would bypass all limits.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::values::Ratio;

/// The number of requests in flight, and its bound. Clones share the number.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    current: Arc<AtomicUsize>,
    max: usize,
}

/// Counts one request as in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard<'a> {
    current: &'a AtomicUsize,
    /// Whether the request is beyond the bound, and so to be shed.
    pub(crate) shed: bool,
}

impl InFlight {
    pub(crate) fn new(max: usize) -> Self {
        Self { current: Arc::default(), max }
    }

    /// The bound times `ratio`, rounded up, at least 1.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the result need not be exact, and is never larger than the bound"
    )]
    pub(crate) fn scaled_max(&self, ratio: Ratio) -> usize {
        let scaled = (self.max as f64 * ratio.get()).ceil() as usize;
        scaled.max(1)
    }

    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    pub(crate) const fn max(&self) -> usize {
        self.max
    }

    /// Counts a request.
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
    fn a_scaled_bound_is_rounded_up_and_at_least_one() {
        let scaled = |ratio: &str| InFlight::new(3).scaled_max(ratio.parse().unwrap());
        assert_eq!([scaled("0"), scaled("0.5"), scaled("1")], [1, 2, 3]);
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
