//! What the script's answers mean.

use std::{slice, time::Duration};

use sluicegate_core::{
    Answers, Charge, Check, Decision,
    algorithm::{HITS_MAX, Receipt},
    store::Source,
};
use thiserror::Error;

use crate::redis::reply::Reply;

/// The reply to a call is not what its script would answer.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("Redis answered something else than {checks} decisions")]
pub struct UnexpectedReply {
    checks: usize,
}

/// What must be known of a check to understand its answer where that is short.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Length of the window in microseconds.
    window: u64,
    capacity: u64,
    /// What is charged, if anything.
    hits: u64,
    /// What must be available.
    needs: u64,
}

impl Asked {
    pub(super) fn of(check: &Check) -> Self {
        let (hits, needs) = match check.charge {
            Charge::Exactly(hits) => (hits, hits),
            Charge::Always { hits, needs } => (hits.min(HITS_MAX), needs),
            Charge::Refund { .. } => (0, 0),
        };
        let limit = &check.limit;
        Self {
            window: limit.window().micros(),
            capacity: limit.capacity().into(),
            hits,
            needs: needs.max(1),
        }
    }

    /// The answer of a fixed window in the present.
    fn short(&self, answer: u64, now: u64) -> Decision {
        let (used, charged, allowed) = (answer >> 2, answer & 2 != 0, answer & 1 != 0);
        let window = now / self.window;
        let until_reset = Duration::from_micros(self.window - now % self.window);
        Decision {
            allowed,
            charged: if charged { self.hits } else { 0 },
            remaining: self.capacity.saturating_sub(used),
            excess: used.saturating_sub(self.capacity),
            reset_after: until_reset,
            retry_after: match allowed {
                true => Some(Duration::ZERO),
                false => (self.needs <= self.capacity).then_some(until_reset),
            },
            receipt: charged.then_some(Receipt { at: window, used: 0 }),
            source: Source::Store,
        }
    }

    /// An answer that says all. Kept out of the loop over short ones.
    #[cold]
    fn long(&self, verdict: u64, rest: &mut slice::Iter<'_, Reply>) -> Option<Decision> {
        let granted = Some(verdict >> 1).filter(|granted| *granted <= self.hits)?;
        let remaining = exact(rest)?;
        let reset_after = Duration::from_micros(count(rest)?);
        let retry_after = exact(rest)?;
        let receipt = Receipt { at: count(rest)?, used: count(rest)? };
        Some(Decision {
            allowed: verdict & 1 == 1,
            charged: granted,
            remaining: u64::try_from(remaining).unwrap_or(0),
            excess: u64::try_from(remaining.saturating_neg()).unwrap_or(0),
            reset_after,
            retry_after: match retry_after {
                -1 => None,
                micros => Some(Duration::from_micros(u64::try_from(micros).ok()?)),
            },
            receipt: (granted > 0).then_some(receipt),
            source: Source::Store,
        })
    }
}

/// The answers to these checks. Adds the positions of the keys whose values were unusable, from 1.
pub(super) fn decode(
    asked: &[Asked],
    keys: usize,
    reply: &Reply,
    unusable: &mut Vec<usize>,
) -> Result<Answers, UnexpectedReply> {
    let mut read = || {
        let Reply::Array(reply) = reply else { return None };
        let mut numbers = reply.iter();
        let now = count(&mut numbers)?;
        let mut answers = Answers::with_capacity(asked.len());
        for asked in asked {
            let first = integer(&mut numbers)?;
            answers.push(Ok(match u64::try_from(first) {
                Ok(short) => asked.short(short, now),
                Err(_) => asked.long(u64::try_from(-1 - first).ok()?, &mut numbers)?,
            }));
        }
        while numbers.len() > 0 {
            let position = usize::try_from(integer(&mut numbers)?).ok()?;
            unusable.push(Some(position).filter(|position| (1..=keys).contains(position))?);
        }
        (unusable.len() <= keys).then_some(answers)
    };
    read().ok_or(UnexpectedReply { checks: asked.len() })
}

fn integer(numbers: &mut slice::Iter<'_, Reply>) -> Option<i64> {
    match numbers.next() {
        Some(&Reply::Integer(number)) => Some(number),
        _ => None,
    }
}

/// A number of an answer that says all: the script's are such that a double holds them exactly.
fn exact(numbers: &mut slice::Iter<'_, Reply>) -> Option<i64> {
    integer(numbers).filter(|number| number.unsigned_abs() <= 1 << 53)
}

fn count(numbers: &mut slice::Iter<'_, Reply>) -> Option<u64> {
    u64::try_from(exact(numbers)?).ok()
}
