//! The bound on how often a tenant may ask for its usage.

use std::{
    num::NonZeroU32,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use sluicegate_core::{Algorithm, Limit, Time, Window, algorithm::State};

/// The algorithm of the bound: a burst of one second's requests, then a steady rate.
const ALGORITHM: Algorithm = Algorithm::TokenBucket;

const SECOND: Window = match Window::from_seconds(1) {
    Ok(second) => second,
    Err(_) => Window::MAX,
};

/// The bound on the requests of each tenant.
#[derive(Debug)]
pub(super) struct RequestRate {
    limit: Limit,
    began: Instant,
}

/// What one tenant has used of the bound.
#[derive(Debug)]
pub(super) struct Budget(Mutex<State>);

impl Default for Budget {
    fn default() -> Self {
        Self(Mutex::new(State::new(ALGORITHM)))
    }
}

impl RequestRate {
    pub(super) fn new(per_second: NonZeroU32) -> Self {
        let limit = Limit::for_override(ALGORITHM, per_second.get(), SECOND);
        Self { limit, began: Instant::now() }
    }

    /// Charges one request to a tenant's budget. If there is none left, returns the time until there is.
    pub(super) fn charge(&self, budget: &Budget) -> Result<(), Duration> {
        self.charge_after(budget, self.began.elapsed())
    }

    fn charge_after(&self, budget: &Budget, elapsed: Duration) -> Result<(), Duration> {
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let mut state = budget.0.lock();
        let now = state.advance(&self.limit, Time::from_micros(micros));
        if state.available(&self.limit, now) < 1 {
            let wait = state.retry_after(&self.limit, now, 1).unwrap_or(u64::MAX);
            return Err(Duration::from_micros(wait));
        }
        state.charge(&self.limit, now, 1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_of_one_second_then_a_steady_rate() {
        let rate = RequestRate::new(NonZeroU32::new(10).unwrap());
        let (one, other) = (Budget::default(), Budget::default());
        let at = |millis| Duration::from_millis(millis);
        for _ in 0..10 {
            assert_eq!(rate.charge_after(&one, at(0)), Ok(()));
        }
        assert_eq!(rate.charge_after(&one, at(0)), Err(at(100)));
        assert_eq!(rate.charge_after(&one, at(99)), Err(at(1)));
        assert_eq!(rate.charge_after(&one, at(100)), Ok(()));
        assert_eq!(rate.charge_after(&one, at(100)), Err(at(100)));
        assert_eq!(rate.charge_after(&other, at(100)), Ok(()));
    }
}
