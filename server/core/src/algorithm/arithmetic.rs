//! Integer arithmetic of the algorithms. The functions on doubles in `lua/mul_div.lua` give equal results.

use crate::{Limit, time::SPAN_MAX};

/// `limit - used`: hits that are still available, negative beyond the limit. Both are below 2^53.
#[expect(clippy::cast_possible_wrap, reason = "both are below 2^53")]
pub(super) const fn remaining_hits(limit: u64, used: u64) -> i64 {
    limit as i64 - used as i64
}

/// `amount × part ÷ whole`, rounded down. `part` is at most `whole`, `whole` is below 2^45 and `amount` below 2^49, so
/// that the scripts can compute the same result by long multiplication in steps of seven bits, with integers below
/// 2^53.
pub(super) fn mul_div(amount: u64, part: u64, whole: u64) -> u64 {
    saturating_u64(u128::from(amount) * u128::from(part) / u128::from(whole.max(1)))
}

/// `amount × part ÷ whole`, rounded up. The same bounds as for [`mul_div`] apply.
pub(super) fn mul_div_ceil(amount: u64, part: u64, whole: u64) -> u64 {
    saturating_u64((u128::from(amount) * u128::from(part)).div_ceil(u128::from(whole.max(1))))
}

/// Microseconds in which a token bucket of this limit refills `used` units, at most [`SPAN_MAX`].
pub(super) fn refill_time(limit: &Limit, used: u64) -> u64 {
    let ticks = used / limit.refill_units();
    let part =
        mul_div_ceil(limit.refill_interval(), used % limit.refill_units(), limit.refill_units());
    ticks.saturating_mul(limit.refill_interval()).saturating_add(part).min(SPAN_MAX)
}

fn saturating_u64(amount: u128) -> u64 {
    u64::try_from(amount).unwrap_or(u64::MAX)
}
