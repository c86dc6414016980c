//! Decoding of the script's reply.

use std::{slice, time::Duration};

use sluicegate_core::{
    Answers, Charge, Check, Decision,
    algorithm::{HITS_MAX, Receipt},
    store::DecisionSource,
};
use thiserror::Error;

use crate::redis::reply::Reply;

/// A reply that the script of the call cannot have sent.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("Redis answered something else than {checks} decisions")]
pub struct UnexpectedReply {
    checks: usize,
}

/// A check of a call, as far as it is needed to decode its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentCheck {
    /// Length of the window in microseconds.
    window: u64,
    capacity: u64,
    /// Hits that are charged, if any are.
    hits: u64,
    /// Hits that must be available.
    needs: u64,
}

impl SentCheck {
    pub(super) fn of(check: &Check) -> Self {
        let (hits, needs) = match check.charge {
            Charge::IfAllowed(hits) => (hits, hits),
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

    /// Decodes the short answer, of a fixed window in the present.
    fn decode_short(&self, answer: u64, now: u64) -> Decision {
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
            source: DecisionSource::Store,
        }
    }

    /// Decodes the long answer, whose first number has the outcome: charged × 2 + (1 if allowed). Cold, to keep it out
    /// of the loop over short answers.
    #[cold]
    fn decode_long(&self, outcome: u64, rest: &mut slice::Iter<'_, Reply>) -> Option<Decision> {
        let charged = Some(outcome >> 1).filter(|charged| *charged <= self.hits)?;
        let remaining = next_exact(rest)?;
        let reset_after = Duration::from_micros(next_count(rest)?);
        let retry_after = next_exact(rest)?;
        let receipt = Receipt { at: next_count(rest)?, used: next_count(rest)? };
        Some(Decision {
            allowed: outcome & 1 == 1,
            charged,
            remaining: u64::try_from(remaining).unwrap_or(0),
            excess: u64::try_from(remaining.saturating_neg()).unwrap_or(0),
            reset_after,
            retry_after: match retry_after {
                -1 => None,
                micros => Some(Duration::from_micros(u64::try_from(micros).ok()?)),
            },
            receipt: (charged > 0).then_some(receipt),
            source: DecisionSource::Store,
        })
    }
}

/// Decodes the answers to these checks. Appends the positions, from 1, of the keys whose values are not valid states.
pub(super) fn decode(
    sent: &[SentCheck],
    keys: usize,
    reply: &Reply,
    unusable: &mut Vec<usize>,
) -> Result<Answers, UnexpectedReply> {
    let mut read = || {
        let Reply::Array(reply) = reply else { return None };
        let mut numbers = reply.iter();
        let now = next_count(&mut numbers)?;
        let mut answers = Answers::with_capacity(sent.len());
        for check in sent {
            let first = next_integer(&mut numbers)?;
            answers.push(Ok(match u64::try_from(first) {
                Ok(short) => check.decode_short(short, now),
                Err(_) => check.decode_long(u64::try_from(-1 - first).ok()?, &mut numbers)?,
            }));
        }
        while numbers.len() > 0 {
            let position = usize::try_from(next_integer(&mut numbers)?).ok()?;
            unusable.push(Some(position).filter(|position| (1..=keys).contains(position))?);
        }
        (unusable.len() <= keys).then_some(answers)
    };
    read().ok_or(UnexpectedReply { checks: sent.len() })
}

fn next_integer(numbers: &mut slice::Iter<'_, Reply>) -> Option<i64> {
    match numbers.next() {
        Some(&Reply::Integer(number)) => Some(number),
        _ => None,
    }
}

/// A number that a double holds exactly, as all numbers of the script are.
fn next_exact(numbers: &mut slice::Iter<'_, Reply>) -> Option<i64> {
    next_integer(numbers).filter(|number| number.unsigned_abs() <= 1 << 53)
}

fn next_count(numbers: &mut slice::Iter<'_, Reply>) -> Option<u64> {
    u64::try_from(next_exact(numbers)?).ok()
}
