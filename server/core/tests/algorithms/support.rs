//! A counter on a manual clock, and random limits and schedules to drive it with.

use proptest::prelude::*;
use sluicegate_core::{
    Algorithm, Limit, Time, Window,
    algorithm::{Receipt, State},
    limit::{SLIDING_LOG_MAX, Unit},
};

/// The longest span that an answer speaks of, in microseconds.
pub(crate) const SPAN_MAX: u64 = (1 << 53) - 1;

/// The last point in time, in microseconds since the Unix epoch.
pub(crate) const TIME_MAX: u64 = (1 << 52) - 1;

/// A state, the limit it is held against and a clock that moves by hand.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Counter {
    pub(crate) limit: Limit,
    pub(crate) state: State,
    pub(crate) micros: u64,
}

impl Counter {
    pub(crate) fn new(limit: Limit, micros: u64) -> Self {
        Self { limit, state: State::new(limit.algorithm()), micros }
    }

    pub(crate) fn pass(&mut self, micros: u64) {
        self.micros = self.micros.saturating_add(micros).min(TIME_MAX);
    }

    /// The same counter at another time.
    pub(crate) fn at(&self, micros: u64) -> Self {
        Self { micros, ..self.clone() }
    }

    /// The same counter after a while.
    pub(crate) fn after(&self, micros: u64) -> Self {
        self.at(self.micros + micros)
    }

    /// The time that counts, in microseconds.
    pub(crate) fn advance(&mut self) -> u64 {
        self.now().as_micros()
    }

    fn now(&mut self) -> Time {
        self.state.advance(&self.limit, Time::from_micros(self.micros))
    }

    pub(crate) fn available(&mut self) -> i64 {
        let now = self.now();
        self.state.available(&self.limit, now)
    }

    pub(crate) fn charge(&mut self, hits: u64) -> Receipt {
        let now = self.now();
        self.state.charge(&self.limit, now, hits)
    }

    pub(crate) fn admits(&mut self, hits: u64) -> bool {
        signed(hits.max(1)) <= self.available()
    }

    /// Takes these hits or nothing.
    pub(crate) fn exactly(&mut self, hits: u64) -> Option<Receipt> {
        self.admits(hits).then(|| self.charge(hits))
    }

    pub(crate) fn give_back(&mut self, hits: u64, receipt: Option<Receipt>) {
        let now = self.now();
        self.state.refund(&self.limit, now, hits, receipt);
        // What is left may be asked at once, without advancing again.
        let left = self.state.clone();
        self.now();
        assert_eq!(self.state, left);
    }

    pub(crate) fn retry_after(&mut self, hits: u64) -> Option<u64> {
        let now = self.now();
        self.state.retry_after(&self.limit, now, hits)
    }

    pub(crate) fn expires_after(&mut self) -> u64 {
        let now = self.now();
        self.state.expires_after(&self.limit, now)
    }

    pub(crate) fn capacity(&self) -> u64 {
        u64::from(self.limit.capacity())
    }

    /// Hits that count, rounded up.
    pub(crate) fn used(&mut self) -> i64 {
        signed(self.capacity()) - self.available()
    }

    /// Everything a caller can learn, now and at moments that matter later.
    pub(crate) fn future(&self) -> Vec<(i64, Option<u64>, u64)> {
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

    /// Lets a step's time pass.
    pub(crate) fn wait(&mut self, step: &Step) {
        let hits = self.hits(step).min(self.capacity());
        let window = self.limit.window().micros();
        let pass = match step.gap {
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
        self.pass(pass);
    }

    /// Hits that a step asks for.
    pub(crate) fn hits(&mut self, step: &Step) -> u64 {
        match step.ask {
            Ask::Few(hits) => u64::from(hits),
            Ask::Share(share) => {
                let whole = self.capacity().min(64 * u64::from(self.limit.requests()));
                (whole * u64::from(share) / 16).max(1)
            }
            Ask::Rest => u64::try_from(self.available()).unwrap_or(0).max(1),
        }
    }

    /// Goes through a schedule, taking exactly what is asked or nothing. Returns what was admitted: the
    /// time that counted, in microseconds, and the hits.
    pub(crate) fn drive(&mut self, steps: &[Step]) -> Vec<(u64, u64)> {
        let mut admitted = Vec::new();
        for step in steps {
            self.wait(step);
            let hits = self.hits(step);
            if self.exactly(hits).is_some() {
                admitted.push((self.advance(), hits));
            }
        }
        admitted
    }
}

pub(crate) fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap()
}

/// A stretch of time and a question after it.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) gap: Gap,
    pub(crate) ask: Ask,
}

/// How much time passes.
#[derive(Clone, Debug)]
pub(crate) enum Gap {
    None,
    Micros(u8),
    /// 64ths of the window.
    OfWindow(u8),
    /// The share of the window of so many hits.
    Hits(u8),
    /// Up to the last microsecond of an aligned window.
    Boundary,
    /// Until the hits asked for pass.
    Retry,
    /// One microsecond less.
    AlmostRetry,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Few(u8),
    /// 16ths of the capacity, or of so much of it as comes back in 64 windows.
    Share(u8),
    /// All that is left.
    Rest,
}

pub(crate) fn gaps() -> impl Strategy<Value = Gap> {
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

pub(crate) fn steps(count: usize) -> impl Strategy<Value = Vec<Step>> {
    let asks = prop_oneof![
        4 => (1..=3_u8).prop_map(Ask::Few),
        3 => (1..=16_u8).prop_map(Ask::Share),
        2 => Just(Ask::Rest),
    ];
    let step = (gaps(), asks).prop_map(|(gap, ask)| Step { gap, ask });
    prop::collection::vec(step, 0..=count)
}

/// Near the epoch and near the present, in microseconds.
pub(crate) fn starts() -> impl Strategy<Value = u64> {
    prop_oneof![1 => 0..=10_000_000_u64, 4 => 1_600_000_000_000_000..=2_500_000_000_000_000_u64]
}

pub(crate) fn sizes() -> impl Strategy<Value = u32> {
    let edges = vec![1 << 16, 999_983, 1_000_000, 1 << 24, 4_000_000_000, u32::MAX - 4, u32::MAX];
    prop_oneof![
        4 => 1..=8_u32,
        2 => 1..=2_000_u32,
        2 => prop::sample::select(edges),
        2 => 1..=u32::MAX,
    ]
}

pub(crate) fn windows() -> impl Strategy<Value = Window> {
    let units = prop::sample::select(&Unit::ALL).prop_map(Unit::seconds);
    let seconds = prop_oneof![
        3 => 1..=3_u32,
        2 => units,
        2 => 1..=Window::MAX.seconds(),
        1 => Just(Window::MAX.seconds()),
    ];
    seconds.prop_map(|seconds| Window::from_seconds(u64::from(seconds)).unwrap())
}

pub(crate) fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop::sample::select(&Algorithm::ALL)
}

/// A limit of any size that the algorithm can count.
pub(crate) fn limits_of(algorithm: Algorithm, window: Window) -> impl Strategy<Value = Limit> {
    (sizes(), prop::option::of(sizes()))
        .prop_map(move |(requests, burst)| legal(algorithm, requests, window, burst))
}

/// A limit of GCRA whose emission interval is a whole number of microseconds.
pub(crate) fn whole_gcra() -> impl Strategy<Value = Limit> {
    (sizes(), windows(), prop::option::of(sizes())).prop_map(|(size, window, burst)| {
        let (mut divisor, mut rest) = (window.micros(), u64::from(size));
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        legal(Algorithm::Gcra, u32::try_from(divisor).unwrap(), window, burst)
    })
}

/// A limit of any algorithm, size and window.
pub(crate) fn limits() -> impl Strategy<Value = Limit> {
    let any =
        (algorithms(), windows()).prop_flat_map(|(algorithm, window)| limits_of(algorithm, window));
    prop_oneof![6 => any, 1 => coarse()]
}

/// A bucket whose units are worth many microseconds each.
fn coarse() -> impl Strategy<Value = Limit> {
    let sizes = (prop_oneof![1..=10_u32, 1..=100_000_u32], 1_000_000_000..=u32::MAX);
    (sizes, 86_400..=Window::MAX.seconds()).prop_map(|((requests, burst), seconds)| {
        let window = Window::from_seconds(u64::from(seconds)).unwrap();
        legal(Algorithm::TokenBucket, requests, window, Some(burst))
    })
}

/// A limit of that algorithm, with any size and window.
pub(crate) fn limits_by(algorithm: Algorithm) -> impl Strategy<Value = Limit> {
    windows().prop_flat_map(move |window| limits_of(algorithm, window))
}

/// Two limits on one counter.
pub(crate) fn pairs() -> impl Strategy<Value = (Limit, Limit)> {
    (algorithms(), windows()).prop_flat_map(|(algorithm, window)| {
        (limits_of(algorithm, window), limits_of(algorithm, window))
    })
}

/// The limit nearest to these numbers that the algorithm can count.
fn legal(algorithm: Algorithm, requests: u32, window: Window, burst: Option<u32>) -> Limit {
    let requests = match algorithm {
        Algorithm::SlidingWindowLog => (requests - 1) % SLIDING_LOG_MAX + 1,
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
