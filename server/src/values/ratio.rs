//! Ratios from 0 to 1.

use std::str::FromStr;

use thiserror::Error;

/// A ratio from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio(f64);

impl Ratio {
    /// The ratio, from 0 to 1.
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

/// The ratio of a limit above which hits count as near the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NearLimitRatio(f32);

impl FromStr for NearLimitRatio {
    type Err = RatioError;

    fn from_str(text: &str) -> Result<Self, RatioError> {
        let ratio: f32 = text.parse().map_err(|_| RatioError)?;
        if (0.0..=1.0).contains(&ratio) { Ok(Self(ratio)) } else { Err(RatioError) }
    }
}

impl NearLimitRatio {
    /// The number of hits above which hits are near a limit. envoyproxy/ratelimit calculates it in single precision and
    /// rounds down too.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "the result is neither negative nor above 2^32"
    )]
    pub(crate) fn threshold(self, limit: u32) -> u64 {
        (limit as f32 * self.0).floor() as u64
    }
}

/// The text is not a number from 0 to 1.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a ratio is a number from 0 to 1")]
pub struct RatioError;

#[cfg(test)]
mod tests {
    use super::NearLimitRatio;

    #[test]
    fn thresholds_are_rounded_as_upstream_rounds_them() {
        let near: NearLimitRatio = "0.8".parse().unwrap();
        for (limit, threshold) in [(15, 12), (8, 6), (14, 11), (10, 8), (20, 16), (1, 0)] {
            assert_eq!(near.threshold(limit), threshold);
        }
        for text in ["-0.1", "1.1", "NaN", "much"] {
            assert!(text.parse::<NearLimitRatio>().is_err(), "{text}");
        }
    }
}
