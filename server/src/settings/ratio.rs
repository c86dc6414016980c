//! A share of requests.

use std::str::FromStr;

use thiserror::Error;

/// A share of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio(f64);

impl Ratio {
    /// From 0 to 1.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl FromStr for Ratio {
    type Err = RatioError;

    fn from_str(text: &str) -> Result<Self, RatioError> {
        let ratio: f64 = text.parse().map_err(|_| RatioError)?;
        if (0.0..=1.0).contains(&ratio) { Ok(Self(ratio)) } else { Err(RatioError) }
    }
}

/// A ratio that is none.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a ratio is a number from 0 to 1")]
pub struct RatioError;
