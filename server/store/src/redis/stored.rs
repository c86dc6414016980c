//! What Redis keeps of a counter. The formats are described at the top of each algorithm's Lua file.

use fred::types::Value;
use sluicegate_core::{
    Algorithm, Limit,
    algorithm::{Numbers, State},
};

/// Reads the value of a counter's key: what GET replies or, for a log, what LRANGE replies with all of
/// it. `None` if no counter of that limit is stored like this.
#[must_use]
pub fn state_of(limit: &Limit, value: &Value) -> Option<State> {
    let window = limit.window().micros();
    let numbers = match (limit.algorithm(), value) {
        (_, Value::Null) => return Some(State::new(limit.algorithm())),
        (Algorithm::SlidingWindowLog, Value::Array(elements)) => entries(elements)?,
        (Algorithm::SlidingWindowLog, _) => return None,
        (algorithm, value) => {
            let text = value.as_str()?;
            let numbers = text.split(':').map(|it| it.parse().ok()).collect::<Option<Numbers>>()?;
            match (algorithm, numbers.as_slice()) {
                (Algorithm::FixedWindow, &[packed]) => unpacked(packed, [window]),
                (Algorithm::SlidingWindowCounter, &[packed]) => {
                    unpacked(packed, [window.isqrt(); 2])
                }
                _ => numbers,
            }
        }
    };
    State::from_numbers(limit.algorithm(), &numbers)
}

/// The numbers of which one was made, all but the first below their base.
fn unpacked<const N: usize>(mut packed: u64, bases: [u64; N]) -> Numbers {
    let mut numbers = Numbers::new();
    for base in bases {
        numbers.insert(0, packed % base);
        packed /= base;
    }
    numbers.insert(0, packed);
    numbers
}

/// Time and hits of each entry of a log, from times and running sums.
fn entries(elements: &[Value]) -> Option<Numbers> {
    let elements: Vec<u64> =
        elements.iter().map(|it| it.as_str()?.parse().ok()).collect::<Option<_>>()?;
    let Some((&base, entries)) = elements.split_first() else { return Some(Numbers::new()) };
    let (entries, []) = entries.as_chunks::<2>() else { return None };
    let mut before = base;
    let mut numbers = Numbers::new();
    for &[at, sum] in entries {
        numbers.extend([at, sum.checked_sub(before)?]);
        before = sum;
    }
    Some(numbers)
}
