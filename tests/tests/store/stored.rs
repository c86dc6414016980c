//! Decoding of a counter's value in Redis. The formats are described at the top of each algorithm's Lua file.

use sluicegate_core::{
    Algorithm, Limit, Time,
    algorithm::{State, StateNumbers},
};
use sluicegate_store::redis::Reply;

/// Decodes the value of a counter's key: the reply to `GET` or, for a sliding window log, to `LRANGE` of all elements.
/// `None` if it is not a valid state of that limit.
pub(crate) fn state_of(limit: &Limit, value: &Reply) -> Option<State> {
    let window = limit.window().micros();
    let is_time = |micros: u64| Time::from_micros(micros).as_micros() == micros;
    let numbers = match (limit.algorithm(), value) {
        (_, Reply::Nil) => return Some(State::new(limit.algorithm())),
        (Algorithm::SlidingWindowLog, Reply::Array(elements)) => entries(elements)?,
        (Algorithm::SlidingWindowLog, _) => return None,
        (algorithm, value) => {
            let numbers =
                value.as_str()?.split(':').map(integer).collect::<Option<StateNumbers>>()?;
            match (algorithm, numbers.as_slice()) {
                (Algorithm::FixedWindow, &[packed]) => unpacked(packed, [window]),
                (Algorithm::SlidingWindowCounter, &[packed]) => {
                    unpacked(packed, [window.isqrt(); 2])
                }
                _ => numbers,
            }
        }
    };
    // Times must be in range, and the cost small enough for exact products.
    let fits = match (limit.algorithm(), numbers.as_slice()) {
        (Algorithm::FixedWindow | Algorithm::SlidingWindowCounter, [number, ..]) => {
            number.checked_mul(window).is_some_and(is_time)
        }
        (Algorithm::TokenBucket, [last, _, cost]) => is_time(*last) && (1..1 << 45).contains(cost),
        (Algorithm::SlidingWindowLog, [.., newest, _]) => is_time(*newest),
        _ => true,
    };
    if !fits {
        return None;
    }
    State::from_numbers(limit.algorithm(), &numbers)
}

/// Unpacks numbers from one: all but the first are below their base.
fn unpacked<const N: usize>(mut packed: u64, bases: [u64; N]) -> StateNumbers {
    let mut numbers = StateNumbers::new();
    for base in bases {
        numbers.insert(0, packed % base);
        packed /= base;
    }
    numbers.insert(0, packed);
    numbers
}

/// Time and hits of each entry of a log, from times and sums.
fn entries(elements: &[Reply]) -> Option<StateNumbers> {
    let elements: Vec<u64> =
        elements.iter().map(|it| integer(it.as_str()?)).collect::<Option<_>>()?;
    let Some((&base, entries)) = elements.split_first() else { return Some(StateNumbers::new()) };
    let (entries, []) = entries.as_chunks::<2>() else { return None };
    let mut before = base;
    let mut numbers = StateNumbers::new();
    for &[at, sum] in entries {
        numbers.extend([at, sum.checked_sub(before)?]);
        before = sum;
    }
    Some(numbers)
}

/// A number as the scripts write it: digits without leading zeros.
fn integer(text: &str) -> Option<u64> {
    let is_plain = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|number| is_plain && *number < 1 << 53)
}
