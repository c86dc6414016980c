//! A counter on a manual clock, and random limits and schedules to drive it with.

use proptest::prelude::*;
use sluicegate_core::{
    Algorithm, Limit, Time, Window,
    algorithm::{Receipt, State},
    limit::{SLIDING_LOG_HITS_MAX, Unit},
};

/// The longest duration in an answer, in microseconds.
pub const SPAN_MAX: u64 = (1 << 53) - 1;

/// The last point in time, in microseconds since the Unix epoch.
pub const TIME_MAX: u64 = (1 << 52) - 1;

/// A state, the limit that it is checked against, and a manual clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Counter {
    /// The limit.
    pub limit: Limit,
    /// The state.
    pub state: State,
    /// The clock, in microseconds since the Unix epoch.
    pub micros: u64,
}

impl Counter {
    /// An unused counter at this time.
    #[must_use]
    pub fn new(limit: Limit, micros: u64) -> Self {
        Self { limit, state: State::new(limit.algorithm()), micros }
    }

    /// Advances the clock, at most to [`TIME_MAX`].
    pub fn advance_clock(&mut self, micros: u64) {
        self.micros = self.micros.saturating_add(micros).min(TIME_MAX);
    }

    /// The same counter at another time.
    #[must_use]
    pub fn at(&self, micros: u64) -> Self {
        Self { micros, ..self.clone() }
    }

    /// The same counter after this many microseconds.
    #[must_use]
    pub fn after(&self, micros: u64) -> Self {
        self.at(self.micros + micros)
    }

    /// Advances the state. Returns its present, in microseconds.
    pub fn advance(&mut self) -> u64 {
        self.now().as_micros()
    }

    fn now(&mut self) -> Time {
        self.state.advance(&self.limit, Time::from_micros(self.micros))
    }

    /// Hits that may pass; negative if more was charged than the limit allows.
    pub fn available(&mut self) -> i64 {
        let now = self.now();
        self.state.available(&self.limit, now)
    }

    /// Charges hits, whether or not they are available.
    pub fn charge(&mut self, hits: u64) -> Receipt {
        let now = self.now();
        self.state.charge(&self.limit, now, hits)
    }

    /// Whether the hits are available; for a peek, whether one hit is.
    pub fn admits(&mut self, hits: u64) -> bool {
        signed(hits.max(1)) <= self.available()
    }

    /// Charges these hits if they are available, else nothing.
    pub fn charge_if_allowed(&mut self, hits: u64) -> Option<Receipt> {
        self.admits(hits).then(|| self.charge(hits))
    }

    /// Refunds hits, of the charge with this receipt if there is one.
    pub fn refund(&mut self, hits: u64, receipt: Option<Receipt>) {
        let now = self.now();
        self.state.refund(&self.limit, now, hits, receipt);
        // A refund leaves a state at its present: advancing it again changes nothing.
        let refunded = self.state.clone();
        self.now();
        assert_eq!(self.state, refunded);
    }

    /// Microseconds until `hits` would be available without other requests; `None` if they never will be.
    pub fn retry_after(&mut self, hits: u64) -> Option<u64> {
        let now = self.now();
        self.state.retry_after(&self.limit, now, hits)
    }

    /// Microseconds until the counter is unused again.
    pub fn expires_after(&mut self) -> u64 {
        let now = self.now();
        self.state.expires_after(&self.limit, now)
    }

    /// The most hits at once.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        u64::from(self.limit.capacity())
    }

    /// Hits that count against the limit, rounded up.
    pub fn used(&mut self) -> i64 {
        signed(self.capacity()) - self.available()
    }

    /// Available hits, time until a retry and time until the reset, now and at later times at which they change.
    pub fn future(&self) -> Vec<(i64, Option<u64>, u64)> {
        let mut moments =
            vec![0, 1, self.limit.refill_interval(), self.limit.window().micros() / 7];
        let mut asked = self.clone();
        moments.extend([1, 2].into_iter().filter_map(|hits| asked.retry_after(hits)));
        moments.push(self.limit.window().micros());
        moments.push(asked.expires_after() / 2);
        let look = |moment: u64| {
            let mut then = self.at(self.micros.saturating_add(moment).min(TIME_MAX));
            (then.available(), then.retry_after(1), then.expires_after())
        };
        moments.into_iter().map(look).collect()
    }

    /// Advances the clock by the gap of a step.
    pub fn wait(&mut self, step: &Step) {
        let hits = self.hits(step).min(self.capacity());
        let window = self.limit.window().micros();
        let micros = match step.gap {
            Gap::None => 0,
            Gap::Micros(micros) => u64::from(micros),
            Gap::OfWindow(share) => window / 64 * u64::from(share) + u64::from(share % 3),
            Gap::Hits(count) => window / u64::from(self.limit.requests().max(1)) * u64::from(count),
            Gap::Boundary => window - 1 - self.micros % window,
            Gap::Retry => self.retry_after(hits).unwrap_or(0).min(4 * window),
            Gap::AlmostRetry => {
                self.retry_after(hits).unwrap_or(0).min(4 * window).saturating_sub(1)
            }
        };
        self.advance_clock(micros);
    }

    /// The hits of a step.
    pub fn hits(&mut self, step: &Step) -> u64 {
        match step.ask {
            Ask::Few(hits) => u64::from(hits),
            Ask::Share(share) => {
                let whole = self.capacity().min(64 * u64::from(self.limit.requests()));
                (whole * u64::from(share) / 16).max(1)
            }
            Ask::Rest => u64::try_from(self.available()).unwrap_or(0).max(1),
        }
    }

    /// Goes through a schedule, and charges the hits of each step if they are available. Returns the charges: time in
    /// microseconds, and hits.
    pub fn drive(&mut self, steps: &[Step]) -> Vec<(u64, u64)> {
        let mut admitted = Vec::new();
        for step in steps {
            self.wait(step);
            let hits = self.hits(step);
            if self.charge_if_allowed(hits).is_some() {
                admitted.push((self.advance(), hits));
            }
        }
        admitted
    }
}

/// Converts hits to the type of [`Counter::available`].
#[must_use]
pub fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap()
}

/// Time that passes, and hits after it.
#[derive(Clone, Debug)]
pub struct Step {
    /// The time.
    pub gap: Gap,
    /// The hits.
    pub ask: Ask,
}

/// How much time passes.
#[derive(Clone, Debug)]
pub enum Gap {
    /// No time.
    None,
    /// Microseconds.
    Micros(u8),
    /// 64ths of the window.
    OfWindow(u8),
    /// The time in which this many hits are refilled: their share of the window.
    Hits(u8),
    /// Up to the last microsecond of an aligned window.
    Boundary,
    /// Until the hits are available.
    Retry,
    /// One microsecond less.
    AlmostRetry,
}

/// How many hits.
#[derive(Clone, Debug)]
pub enum Ask {
    /// This many.
    Few(u8),
    /// 16ths of the capacity, or of the part of it that is refilled in 64 windows.
    Share(u8),
    /// All available hits.
    Rest,
}

/// Random gaps.
pub fn gaps() -> impl Strategy<Value = Gap> {
    prop_oneof![
        2 => Just(Gap::None),
        3 => (1..=5_u8).prop_map(Gap::Micros),
        3 => (0..=150_u8).prop_map(Gap::OfWindow),
        2 => (1..=5_u8).prop_map(Gap::Hits),
        1 => Just(Gap::Boundary),
        3 => Just(Gap::Retry),
        2 => Just(Gap::AlmostRetry),
    ]
}

/// Random schedules of at most `count` steps.
pub fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    let asks = prop_oneof![
        4 => (1..=3_u8).prop_map(Ask::Few),
        3 => (1..=16_u8).prop_map(Ask::Share),
        2 => Just(Ask::Rest),
    ];
    let step = (gaps(), asks).prop_map(|(gap, ask)| Step { gap, ask });
    prop::collection::vec(step, 0..=count)
}

/// Near the epoch and near the present, in microseconds.
pub fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![1 => 0..=10_000_000_u64, 4 => 1_600_000_000_000_000..=2_500_000_000_000_000_u64]
}

/// Random numbers of requests, from 1 to the largest.
pub fn sizes() -> impl Strategy<Value = u32> {
    let edges = vec![1 << 16, 999_983, 1_000_000, 1 << 24, 4_000_000_000, u32::MAX - 4, u32::MAX];
    prop_oneof![
        4 => 1..=8_u32,
        2 => 1..=2_000_u32,
        2 => prop::sample::select(edges),
        2 => 1..=u32::MAX,
    ]
}

/// Random windows, from a second to the longest.
pub fn windows() -> impl Strategy<Value = Window> {
    let units = prop::sample::select(&Unit::ALL).prop_map(Unit::seconds);
    let seconds = prop_oneof![
        3 => 1..=3_u32,
        2 => units,
        2 => 1..=Window::MAX.seconds(),
        1 => Just(Window::MAX.seconds()),
    ];
    seconds.prop_map(|seconds| Window::from_seconds(u64::from(seconds)).unwrap())
}

/// Random algorithms.
pub fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(&Algorithm::ALL)
}

/// Random limits of an algorithm and a window.
pub fn limits_with_window(algorithm: Algorithm, window: Window) -> impl Strategy<Value = Limit> {
    (sizes(), prop::option::of(sizes()))
        .prop_map(move |(requests, burst)| nearest_valid_limit(algorithm, requests, window, burst))
}

/// Random limits of GCRA whose emission interval is a whole number of microseconds.
pub fn whole_interval_gcra_limits() -> impl Strategy<Value = Limit> {
    (sizes(), windows(), prop::option::of(sizes())).prop_map(|(size, window, burst)| {
        let (mut divisor, mut rest) = (window.micros(), u64::from(size));
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        nearest_valid_limit(Algorithm::Gcra, u32::try_from(divisor).unwrap(), window, burst)
    })
}

/// Random limits.
pub fn limits() -> impl Strategy<Value = Limit> {
    let any = (algorithms(), windows())
        .prop_flat_map(|(algorithm, window)| limits_with_window(algorithm, window));
    prop_oneof![6 => any, 1 => coarse()]
}

/// Random token buckets whose unit of usage is many microseconds.
fn coarse() -> impl Strategy<Value = Limit> {
    let sizes = (prop_oneof![1..=10_u32, 1..=100_000_u32], 1_000_000_000..=u32::MAX);
    (sizes, 86_400..=Window::MAX.seconds()).prop_map(|((requests, burst), seconds)| {
        let window = Window::from_seconds(u64::from(seconds)).unwrap();
        nearest_valid_limit(Algorithm::TokenBucket, requests, window, Some(burst))
    })
}

/// Random limits of an algorithm.
pub fn limits_of_algorithm(algorithm: Algorithm) -> impl Strategy<Value = Limit> {
    windows().prop_flat_map(move |window| limits_with_window(algorithm, window))
}

/// Two random limits of one counter: of the same algorithm and window.
pub fn same_counter_limits() -> impl Strategy<Value = (Limit, Limit)> {
    (algorithms(), windows()).prop_flat_map(|(algorithm, window)| {
        (limits_with_window(algorithm, window), limits_with_window(algorithm, window))
    })
}

/// The limit nearest to these numbers that the algorithm can count.
fn nearest_valid_limit(
    algorithm: Algorithm,
    requests: u32,
    window: Window,
    burst: Option<u32>,
) -> Limit {
    let requests = match algorithm {
        Algorithm::SlidingWindowLog => (requests - 1) % SLIDING_LOG_HITS_MAX + 1,
        Algorithm::Gcra if !window.micros().is_multiple_of(u64::from(requests)) => {
            let most = u32::try_from(window.micros() / 100).unwrap_or(u32::MAX);
            (requests - 1) % most + 1
        }
        _ => requests,
    };
    let burst = burst.filter(|_| algorithm.has_burst()).map(|burst| {
        let interval = window.micros().div_ceil(u64::from(requests));
        let most = u32::try_from(((1_u64 << 52) - 1) / interval).unwrap_or(u32::MAX);
        if algorithm == Algorithm::Gcra { burst.min(most) } else { burst }
    });
    Limit::new(algorithm, requests, window, burst).unwrap()
}
