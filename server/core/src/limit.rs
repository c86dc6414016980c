//! The numbers of a limit, checked and prepared once, when the limit is built.

use std::time::Duration;

use thiserror::Error;

/// How a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// At most the limit in each window aligned to the Unix epoch.
    #[default]
    FixedWindow,
}

impl Algorithm {
    /// Every algorithm, in the order of the documentation.
    pub const ALL: [Self; 1] = [Self::FixedWindow];

    /// The name in limits files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
        }
    }

    /// The abbreviation in counter keys.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::FixedWindow => "fw",
        }
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

/// The span over which a limit counts: whole seconds, from one second to [`Window::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Window(u32);

impl Window {
    /// The longest window: 366 days.
    pub const MAX: Self = Self(366 * 86_400);

    /// A window of that many seconds.
    ///
    /// # Errors
    /// The length lies outside 1 second to 366 days.
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
    /// The product lies outside 1 second to 366 days.
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

    /// The longest unit that divides the window, and how often it fits.
    #[must_use]
    pub fn in_units(self) -> (Unit, u32) {
        let unit = Unit::ALL.into_iter().rev().find(|unit| self.0.is_multiple_of(unit.seconds()));
        let unit = unit.unwrap_or(Unit::Second);
        (unit, self.0 / unit.seconds())
    }
}

/// How many hits may pass, over which window, by which algorithm.
///
/// Two limits with the same algorithm and window keep the same counter, whatever their sizes, so
/// that a limit edited in flight keeps its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    algorithm: Algorithm,
    requests: u32,
    window: Window,
}

impl Limit {
    /// A limit of `requests` per `window`.
    ///
    /// # Errors
    /// The algorithm cannot count such a limit exactly; the error names one that can.
    pub fn new(
        algorithm: Algorithm,
        requests: u32,
        window: Window,
        burst: Option<u32>,
    ) -> Result<Self, LimitError> {
        if burst.is_some() {
            return Err(LimitError::BurstNotTaken { algorithm });
        }
        Ok(Self { algorithm, requests, window })
    }

    /// How hits are counted.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Hits per window.
    #[must_use]
    pub const fn requests(&self) -> u32 {
        self.requests
    }

    /// The span over which hits are counted.
    #[must_use]
    pub const fn window(&self) -> Window {
        self.window
    }

    /// The most hits that can ever pass at once.
    #[must_use]
    pub const fn capacity(&self) -> u32 {
        self.requests
    }
}

/// Why a limit cannot be built.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LimitError {
    /// Windows run from one second to 366 days.
    #[error("a window of {seconds} s lies outside 1 s to 366 days")]
    WindowLength {
        /// The length asked for.
        seconds: u64,
    },
    /// Only a bucket has a capacity beside its rate.
    #[error("{} takes no burst", algorithm.name())]
    BurstNotTaken {
        /// The algorithm that was asked for.
        algorithm: Algorithm,
    },
}

impl LimitError {
    /// What to do about it.
    #[must_use]
    pub fn help(&self) -> String {
        match self {
            Self::WindowLength { .. } => "choose a window from 1 s to 366 days".to_owned(),
            Self::BurstNotTaken { .. } => "remove burst, or use token_bucket or gcra".to_owned(),
        }
    }
}

/// A span in microseconds as a [`Duration`].
pub(crate) const fn span(micros: u64) -> Duration {
    Duration::from_micros(micros)
}
