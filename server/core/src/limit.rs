//! Limits: windows, algorithms and rates. A limit is checked, and its numbers are prepared, once when it is built.

use std::{num::NonZeroU32, time::Duration};

use thiserror::Error;

/// Defines [`Algorithm`] from a table of each algorithm's name in limits files and code in counter keys.
macro_rules! algorithms {
    ($($(#[$attribute:meta])* $variant:ident = $name:literal, $code:literal);+ $(;)?) => {
        /// The algorithm by which a limit counts.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Algorithm {
            $($(#[$attribute])* $variant,)+
        }

        impl Algorithm {
            /// Every algorithm, in the order of the documentation.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// All names in one phrase, `one of …`, for error messages.
            pub const NAMES: &str = algorithms!(@list $($name)+);

            /// The name in limits files.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// The two letters in counter keys.
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
    /// At most the limit in any window. Records the time of each hit.
    SlidingWindowLog = "sliding_window_log", "sl";
    /// Estimates a sliding window from the counts of two aligned windows.
    SlidingWindowCounter = "sliding_window_counter", "sc";
    /// A bucket of tokens that starts full and refills at a steady rate.
    TokenBucket = "token_bucket", "tb";
    /// A token bucket stored as a single time.
    Gcra = "gcra", "gc";
}

impl Algorithm {
    /// Whether a limit of this algorithm has a burst: a capacity of its own, beside its rate.
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

    /// The unit with this name, upper or lower case; `None` for an unknown name.
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

    /// A window of `seconds`.
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

    /// The window as the longest unit that divides it, and the number of units.
    #[must_use]
    pub fn in_units(self) -> (Unit, u32) {
        let unit = Unit::ALL.into_iter().rev().find(|unit| self.0.is_multiple_of(unit.seconds()));
        let unit = unit.unwrap_or(Unit::Second);
        (unit, self.0 / unit.seconds())
    }
}

/// The most hits of a sliding window log. Bounds the memory of one counter.
pub const SLIDING_LOG_HITS_MAX: u32 = 10_000;

/// The most usage within a limit, in units of the algorithm. A double holds integers up to 2^53 exactly; the upper half
/// of that range is reserved for usage beyond the limit.
const UNITS_MAX: u64 = 1 << 52;

/// The shortest emission interval of GCRA, in microseconds, that may be rounded up to whole microseconds. Rounding then
/// changes the rate by at most 1 %.
const ROUNDED_INTERVAL_MIN: u64 = 100;

/// A limit: requests per window, with an algorithm.
///
/// The key of a counter has the algorithm and the window, but not the number of requests or the burst. So a limit whose
/// numbers are edited keeps its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    algorithm: Algorithm,
    requests: u32,
    burst: u32,
    window: Window,
    refill_interval: u64,
    refill_units: u64,
    cost: u64,
}

impl Limit {
    /// A limit of `requests` per `window`. A limit of 0 refuses all hits. `burst` is the capacity of a bucket, by
    /// default `requests`.
    ///
    /// # Errors
    /// The algorithm cannot count this limit exactly, in which case [`LimitError::help`] names one that can; or the
    /// burst is invalid.
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

    /// The limit of an override. If `algorithm` cannot count it, uses the algorithm that the error of [`Limit::new`]
    /// would recommend.
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

    /// The share of this limit that one of `replicas` may admit by itself: requests and burst divided by the replicas,
    /// but at least 1, so that every caller can still pass. A limit of 0 stays 0.
    #[must_use]
    pub fn per_replica(&self, replicas: NonZeroU32) -> Self {
        if replicas == NonZeroU32::MIN || self.requests == 0 {
            return *self;
        }
        let share = |number: u32| (number / replicas).max(1);
        let mut limit =
            Self::unchecked(self.algorithm, share(self.requests), self.window, share(self.burst));
        if self.algorithm == Algorithm::Gcra {
            // The lower rate has a longer emission interval, so fewer hits fit into `UNITS_MAX`.
            let burst_max = u32::try_from((UNITS_MAX - 1) / limit.cost).unwrap_or(u32::MAX);
            limit.burst = limit.burst.min(burst_max);
        }
        limit
    }

    /// Builds a limit without checking that the algorithm can count it exactly.
    fn unchecked(algorithm: Algorithm, requests: u32, window: Window, burst: u32) -> Self {
        let burst = if requests == 0 { 0 } else { burst };
        let Rate { refill_interval, refill_units, cost } = match algorithm {
            Algorithm::TokenBucket => Rate::for_token_bucket(requests, burst, window),
            Algorithm::Gcra => Rate::for_gcra(requests, window),
            _ => Rate::NONE,
        };
        Self { algorithm, requests, burst, window, refill_interval, refill_units, cost }
    }

    fn check_log(&self) -> Result<(), LimitError> {
        if self.requests > SLIDING_LOG_HITS_MAX {
            return Err(LimitError::LogTooLong { requests: self.requests });
        }
        Ok(())
    }

    fn check_gcra(&self) -> Result<(), LimitError> {
        let is_whole = self.window.micros().is_multiple_of(u64::from(self.requests.max(1)));
        if !is_whole && self.cost < ROUNDED_INTERVAL_MIN {
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

    /// The most hits that can pass at once: the burst of a bucket, else the requests per window.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        if self.algorithm.has_burst() { self.burst } else { self.requests }
    }

    /// Length of a tick in microseconds: in each tick a token bucket refills by [`refill_units`](Self::refill_units). 1
    /// for other algorithms.
    #[must_use]
    pub const fn refill_interval(&self) -> u64 {
        self.refill_interval
    }

    /// Units by which a token bucket refills in each [`refill_interval`](Self::refill_interval). 1 for other
    /// algorithms.
    #[must_use]
    pub const fn refill_units(&self) -> u64 {
        self.refill_units
    }

    /// Units of one hit in a token bucket; for GCRA the emission interval in microseconds. 1 for other algorithms.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }
}

/// A rate in integers: `refill_units` every `refill_interval` microseconds, where one hit costs `cost` units.
struct Rate {
    refill_interval: u64,
    refill_units: u64,
    cost: u64,
}

impl Rate {
    /// For algorithms that count hits and do not refill.
    const NONE: Self = Self { refill_interval: 1, refill_units: 1, cost: 1 };

    /// The rate of a token bucket. If the units of [`recorded_hits_max`](Self::recorded_hits_max) fit into
    /// [`UNITS_MAX`], a tick is one microsecond and the rate is exact. Otherwise the tick is as long as necessary to
    /// make them fit, at most a millionth of the window, and rounding only slows the refill.
    fn for_token_bucket(requests: u32, burst: u32, window: Window) -> Self {
        let window = window.micros();
        let hits = Self::recorded_hits_max(requests, burst);
        // A limit of 0 refills like a limit of 1, so that usage declines with time, in case the limit is raised later.
        let requests = u64::from(requests.max(1));
        let exact = Self { refill_interval: 1, refill_units: requests, cost: window }.reduced();
        if exact.cost <= UNITS_MAX / hits {
            return exact;
        }
        let refill_interval = window.div_ceil(UNITS_MAX / hits);
        let cost = window.div_ceil(refill_interval);
        Self { refill_interval, refill_units: requests, cost }.reduced()
    }

    /// The most hits that a token bucket must be able to record: its burst or the requests of a window, whichever is
    /// more, because debits can exceed the burst. The requests count up to burst × 2^16: with more, ticks could be so
    /// long that one refills more than an eighth of the bucket. For a limit of 0, `u32::MAX`.
    fn recorded_hits_max(requests: u32, burst: u32) -> u64 {
        if requests == 0 {
            return u64::from(u32::MAX);
        }
        let burst = u64::from(burst);
        u64::from(requests).min(burst << 16).max(burst)
    }

    /// The rate of GCRA: one hit per emission interval, rounded up to whole microseconds.
    fn for_gcra(requests: u32, window: Window) -> Self {
        Self { cost: window.micros().div_ceil(u64::from(requests.max(1))), ..Self::NONE }
    }

    /// The same rate in the smallest numbers.
    fn reduced(self) -> Self {
        let (mut divisor, mut rest) = (self.cost, self.refill_units);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        Self { refill_units: self.refill_units / divisor, cost: self.cost / divisor, ..self }
    }
}

/// Reason why a limit cannot be built.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LimitError {
    /// The window is shorter than one second or longer than 366 days.
    #[error("a window of {seconds} s is outside 1 s to 366 days")]
    WindowLength {
        /// The rejected length, in seconds.
        seconds: u64,
    },
    /// A burst was given, and the algorithm has none.
    #[error("{} does not support a burst", algorithm.name())]
    BurstUnsupported {
        /// The algorithm of the limit.
        algorithm: Algorithm,
    },
    /// A burst of 0 was given with a limit above 0. No hit would ever pass.
    #[error("a burst of 0 refuses all requests")]
    BurstZero,
    /// More requests per window than a sliding window log may record.
    #[error("sliding_window_log holds at most {SLIDING_LOG_HITS_MAX} hits, not {requests}")]
    LogTooLong {
        /// Requests per window.
        requests: u32,
    },
    /// Rounding the emission interval to a microsecond would change the rate by more than 1 %.
    #[error("gcra cannot space {requests} hits evenly over {seconds} s")]
    GcraTooFast {
        /// Requests per window.
        requests: u32,
        /// Length of the window, in seconds.
        seconds: u32,
    },
    /// The burst takes 2^52 microseconds (142 years) or more to refill.
    #[error("gcra cannot hold a burst of {burst}, which takes over 142 years to refill")]
    GcraBurstTooLarge {
        /// The rejected burst.
        burst: u32,
    },
}

impl LimitError {
    /// How to fix the limit, in one phrase.
    #[must_use]
    pub fn help(&self) -> String {
        match self {
            Self::WindowLength { .. } => "choose a window from 1 s to 366 days".to_owned(),
            Self::BurstUnsupported { .. } => "remove burst, or use token_bucket or gcra".to_owned(),
            Self::BurstZero => {
                "remove burst or make it at least 1; requests_per_unit: 0 refuses all requests"
                    .to_owned()
            }
            Self::LogTooLong { .. } => "use sliding_window_counter".to_owned(),
            Self::GcraTooFast { .. } | Self::GcraBurstTooLarge { .. } => {
                "use token_bucket".to_owned()
            }
        }
    }
}

/// Converts microseconds to a [`Duration`].
pub(crate) const fn duration(micros: u64) -> Duration {
    Duration::from_micros(micros)
}
