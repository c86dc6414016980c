//! Limits: their numbers, checked and prepared once, when the limit is built.

use std::{num::NonZeroU32, time::Duration};

use thiserror::Error;

/// Defines [`Algorithm`] from a table of each algorithm's name in limits files and code in counter keys.
macro_rules! algorithms {
    ($($(#[$attribute:meta])* $variant:ident = $name:literal, $code:literal);+ $(;)?) => {
        /// How a limit counts.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Algorithm {
            $($(#[$attribute])* $variant,)+
        }

        impl Algorithm {
            /// Every algorithm, in the order of the documentation.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The names as a choice, for error messages.
            pub const NAMES: &str = algorithms!(@list $($name)+);

            /// The name in limits files.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// The abbreviation in counter keys.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self {
                    $(Self::$variant => $code,)+
                }
            }
        }
    };
    (@list $first:literal $($name:literal)*) => {
        concat!("one of ", $first, $(", ", $name,)*)
    };
}

algorithms! {
    /// At most the limit in each window aligned to the Unix epoch.
    #[default]
    FixedWindow = "fixed_window", "fw";
    /// At most the limit in any window, from the time of each hit.
    SlidingWindowLog = "sliding_window_log", "sl";
    /// Estimates a sliding window from the counts of two aligned windows.
    SlidingWindowCounter = "sliding_window_counter", "sc";
    /// A bucket of hits that refills at a steady rate.
    TokenBucket = "token_bucket", "tb";
    /// A token bucket stored as a single time.
    Gcra = "gcra", "gc";
}

impl Algorithm {
    /// Whether the algorithm has a capacity beside its rate.
    #[must_use]
    pub const fn has_burst(self) -> bool {
        matches!(self, Self::TokenBucket | Self::Gcra)
    }
}

/// A unit of time of Envoy's rate limit API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// One second.
    Second,
    /// 60 seconds.
    Minute,
    /// 3,600 seconds.
    Hour,
    /// 86,400 seconds.
    Day,
    /// Seven days. Aligned to the Unix epoch, which was a Thursday.
    Week,
    /// 30 days, not a calendar month.
    Month,
    /// 365 days, not a calendar year.
    Year,
}

impl Unit {
    /// Every unit, shortest first.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Length in seconds.
    #[must_use]
    pub const fn seconds(self) -> u32 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 604_800,
            Self::Month => 2_592_000,
            Self::Year => 31_536_000,
        }
    }

    /// The name in limits files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The unit of that name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }
}

/// The time span that a limit counts in: whole seconds, from one second to [`Window::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Window(u32);

impl Window {
    /// The longest window: 366 days.
    pub const MAX: Self = Self(366 * 86_400);

    /// A window of this number of seconds.
    ///
    /// # Errors
    /// The length is outside 1 second to 366 days.
    pub const fn from_seconds(seconds: u64) -> Result<Self, LimitError> {
        if seconds < 1 || seconds > Self::MAX.0 as u64 {
            return Err(LimitError::WindowLength { seconds });
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most 366 days")]
        Ok(Self(seconds as u32))
    }

    /// A window of `multiplier` times `unit`.
    ///
    /// # Errors
    /// The product is outside 1 second to 366 days.
    pub fn from_unit(unit: Unit, multiplier: u32) -> Result<Self, LimitError> {
        Self::from_seconds(u64::from(unit.seconds()) * u64::from(multiplier))
    }

    /// Length in seconds.
    #[must_use]
    pub const fn seconds(self) -> u32 {
        self.0
    }

    /// Length in microseconds.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0 as u64 * 1_000_000
    }

    /// The longest unit that divides the window, and their quotient.
    #[must_use]
    pub fn in_units(self) -> (Unit, u32) {
        let unit = Unit::ALL.into_iter().rev().find(|unit| self.0.is_multiple_of(unit.seconds()));
        let unit = unit.unwrap_or(Unit::Second);
        (unit, self.0 / unit.seconds())
    }
}

/// The longest sliding window log, in hits: bounds the memory of one counter.
pub const SLIDING_LOG_MAX: u32 = 10_000;

/// The most usage within a limit, in units of the algorithm. Usage beyond the limit has the same range again, up to
/// the largest integer that a double holds exactly.
const UNITS_MAX: u64 = 1 << 52;

/// The shortest emission interval of GCRA, in microseconds, that may be rounded up: by 1 % at most.
const ROUNDED_INTERVAL_MIN: u64 = 100;

/// A limit: hits, window and algorithm.
///
/// Two limits with the same algorithm and window share a counter, whatever their sizes, so
/// that an edited limit keeps its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    algorithm: Algorithm,
    requests: u32,
    burst: u32,
    window: Window,
    tick: u64,
    gain: u64,
    cost: u64,
}

impl Limit {
    /// A limit of `requests` per `window`; a limit of 0 refuses everything. `burst` is the whole
    /// capacity of a bucket, by default `requests`.
    ///
    /// # Errors
    /// The algorithm cannot count this limit exactly, and the error names one that can; or the burst
    /// is invalid.
    pub fn new(
        algorithm: Algorithm,
        requests: u32,
        window: Window,
        burst: Option<u32>,
    ) -> Result<Self, LimitError> {
        if burst.is_some() && !algorithm.has_burst() {
            return Err(LimitError::BurstUnsupported { algorithm });
        }
        if burst == Some(0) && requests > 0 {
            return Err(LimitError::BurstZero);
        }
        let limit = Self::unchecked(algorithm, requests, window, burst.unwrap_or(requests));
        match algorithm {
            Algorithm::SlidingWindowLog => limit.check_log()?,
            Algorithm::Gcra => limit.check_gcra()?,
            Algorithm::FixedWindow | Algorithm::SlidingWindowCounter | Algorithm::TokenBucket => {}
        }
        Ok(limit)
    }

    /// The limit of an override. If `algorithm` cannot count it, the one that [`Limit::new`] would
    /// recommend is used.
    #[must_use]
    pub fn for_override(algorithm: Algorithm, requests: u32, window: Window) -> Self {
        Self::new(algorithm, requests, window, None).unwrap_or_else(|_| {
            let fallback = match algorithm {
                Algorithm::SlidingWindowLog => Algorithm::SlidingWindowCounter,
                Algorithm::Gcra => Algorithm::TokenBucket,
                other => other,
            };
            Self::unchecked(fallback, requests, window, requests)
        })
    }

    /// The share of one of `replicas` processes that decide by themselves: at least one
    /// hit, so that no caller is locked out.
    #[must_use]
    pub fn per_replica(&self, replicas: NonZeroU32) -> Self {
        if replicas == NonZeroU32::MIN || self.requests == 0 {
            return *self;
        }
        let share = |number: u32| (number / replicas).max(1);
        let mut limit =
            Self::unchecked(self.algorithm, share(self.requests), self.window, share(self.burst));
        if self.algorithm == Algorithm::Gcra {
            // Rounding the rate down lengthens the interval.
            let held = u32::try_from((UNITS_MAX - 1) / limit.cost).unwrap_or(u32::MAX);
            limit.burst = limit.burst.min(held);
        }
        limit
    }

    fn unchecked(algorithm: Algorithm, requests: u32, window: Window, burst: u32) -> Self {
        let burst = if requests == 0 { 0 } else { burst };
        let Rate { tick, gain, cost } = match algorithm {
            Algorithm::TokenBucket => Rate::for_token_bucket(requests, burst, window),
            Algorithm::Gcra => Rate::for_gcra(requests, window),
            _ => Rate::NONE,
        };
        Self { algorithm, requests, burst, window, tick, gain, cost }
    }

    fn check_log(&self) -> Result<(), LimitError> {
        if self.requests > SLIDING_LOG_MAX {
            return Err(LimitError::LogTooLong { requests: self.requests });
        }
        Ok(())
    }

    fn check_gcra(&self) -> Result<(), LimitError> {
        let whole = self.window.micros().is_multiple_of(u64::from(self.requests.max(1)));
        if !whole && self.cost < ROUNDED_INTERVAL_MIN {
            let seconds = self.window.seconds();
            return Err(LimitError::GcraTooFast { requests: self.requests, seconds });
        }
        if u64::from(self.burst).saturating_mul(self.cost) >= UNITS_MAX {
            return Err(LimitError::GcraBurstTooLarge { burst: self.burst });
        }
        Ok(())
    }

    /// The algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Hits per window.
    #[must_use]
    pub const fn requests(&self) -> u32 {
        self.requests
    }

    /// The window.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }

    /// The most hits that can ever pass at once.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        if self.algorithm.has_burst() { self.burst } else { self.requests }
    }

    /// Microseconds in which a bucket refills by [`refill_units`](Self::refill_units). 1 for other algorithms.
    #[must_use]
    pub const fn refill_interval(&self) -> u64 {
        self.tick
    }

    /// Units by which a bucket refills per [`refill_interval`](Self::refill_interval). 1 for other algorithms.
    #[must_use]
    pub const fn refill_units(&self) -> u64 {
        self.gain
    }

    /// Units that one hit costs in a bucket; for GCRA the emission interval in microseconds. 1 for other
    /// algorithms.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }
}

/// A rate in integers: `gain` units every `tick` microseconds, where one hit costs `cost` units.
struct Rate {
    tick: u64,
    gain: u64,
    cost: u64,
}

impl Rate {
    /// For algorithms that count hits.
    const NONE: Self = Self { tick: 1, gain: 1, cost: 1 };

    /// Exact if the units of all hits that the bucket must hold fit below [`UNITS_MAX`]. Else the tick is
    /// as fine as they allow, never coarser than a millionth of the window, and every rounding slows
    /// the refill.
    fn for_token_bucket(requests: u32, burst: u32, window: Window) -> Self {
        let window = window.micros();
        let hits = Self::max_hits_held(requests, burst);
        // A limit of 0 refills as slowly as any, so that usage is right if it is raised later.
        let requests = u64::from(requests.max(1));
        let exact = Self { tick: 1, gain: requests, cost: window }.reduced();
        if exact.cost <= UNITS_MAX / hits {
            return exact;
        }
        let tick = window.div_ceil(UNITS_MAX / hits);
        Self { tick, gain: requests, cost: window.div_ceil(tick) }.reduced()
    }

    /// Hits whose units must fit: a full bucket, and usage beyond it up to the hits of a window. A small bucket
    /// records less of that, so that no tick longer than a microsecond refills more than an eighth of
    /// it.
    fn max_hits_held(requests: u32, burst: u32) -> u64 {
        if requests == 0 {
            return u64::from(u32::MAX);
        }
        let burst = u64::from(burst);
        u64::from(requests).min(burst << 16).max(burst)
    }

    /// One hit per emission interval, rounded up to whole microseconds.
    fn for_gcra(requests: u32, window: Window) -> Self {
        Self { cost: window.micros().div_ceil(u64::from(requests.max(1))), ..Self::NONE }
    }

    /// The same rate in the smallest numbers.
    fn reduced(self) -> Self {
        let (mut divisor, mut rest) = (self.cost, self.gain);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        Self { gain: self.gain / divisor, cost: self.cost / divisor, ..self }
    }
}

/// Why a limit cannot be built.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LimitError {
    /// A window outside one second to 366 days.
    #[error("a window of {seconds} s is outside 1 s to 366 days")]
    WindowLength {
        /// The length asked for.
        seconds: u64,
    },
    /// Only a bucket has a capacity beside its rate.
    #[error("{} does not support a burst", algorithm.name())]
    BurstUnsupported {
        /// The algorithm that was asked for.
        algorithm: Algorithm,
    },
    /// A bucket without capacity would let nothing pass.
    #[error("a burst of 0 lets nothing pass")]
    BurstZero,
    /// The log has an entry for each hit.
    #[error("sliding_window_log holds at most {SLIDING_LOG_MAX} hits, not {requests}")]
    LogTooLong {
        /// Hits per window that were asked for.
        requests: u32,
    },
    /// Rounding the emission interval to a microsecond would change the rate by more than 1 %.
    #[error("gcra cannot space {requests} hits evenly over {seconds} s")]
    GcraTooFast {
        /// Hits per window that were asked for.
        requests: u32,
        /// Length of the window that was asked for.
        seconds: u32,
    },
    /// The burst takes 2^52 microseconds (142 years) or more to come back.
    #[error("gcra cannot hold a burst of {burst}, which takes over 142 years to refill")]
    GcraBurstTooLarge {
        /// The burst that was asked for.
        burst: u32,
    },
}

impl LimitError {
    /// What to do about it.
    #[must_use]
    pub fn help(&self) -> String {
        match self {
            Self::WindowLength { .. } => "choose a window from 1 s to 366 days".to_owned(),
            Self::BurstUnsupported { .. } => "remove burst, or use token_bucket or gcra".to_owned(),
            Self::BurstZero => {
                "remove burst or make it at least 1; 0 requests_per_unit refuse everything"
                    .to_owned()
            }
            Self::LogTooLong { .. } => "use sliding_window_counter".to_owned(),
            Self::GcraTooFast { .. } | Self::GcraBurstTooLarge { .. } => {
                "use token_bucket".to_owned()
            }
        }
    }
}

/// A span in microseconds as a [`Duration`].
pub(crate) const fn duration(micros: u64) -> Duration {
    Duration::from_micros(micros)
}
