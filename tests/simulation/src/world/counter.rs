//! The history of a counter, and what calls of the scripts do to it.

use std::time::Duration;

use sluicegate_core::Limit;
use sluicegate_store::redis::Reply;

use crate::usage::Usage;

/// What one command or fault did to a counter, in hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    /// By how much a script changed the hits used.
    pub(crate) charged: i64,
    /// The part of it that was a debit of local decisions.
    pub(crate) debited: i64,
    /// What the call refunded: for a moment within it, usage may have been higher or lower by as many.
    pub(crate) refunded: u64,
    /// What a reset or a failover removed; below zero if a failover brought back what had been refunded.
    pub(crate) removed: i64,
    /// Whether the call undid a charge of a refused request.
    pub(crate) undoes: bool,
}

impl Effect {
    /// Whether nothing was done to the counter.
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What a server has stored of a counter since an event.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// The number of the event.
    pub(crate) number: u64,
    /// When, since the start of the run.
    pub(crate) at: Duration,
    /// The same by the server's clock, in microseconds.
    pub(crate) server_time: u64,
    pub(crate) usage: Usage,
    pub(crate) effect: Effect,
}

/// The history of a counter.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) limit: Limit,
    pub(crate) snapshots: Vec<Snapshot>,
    /// The last value that was stored.
    pub(super) value: Reply,
    /// When it was moved to another server since, and the time there was where it came from: it keeps the time that it has
    /// left, whatever the other server's clock shows.
    pub(super) moved: Option<(Duration, u64)>,
    /// Hits that are stored at the end.
    pub(crate) at_end: i64,
}

impl Counter {
    /// The sum of what all commands and faults did to it.
    pub(crate) fn sum(&self, of: impl Fn(&Effect) -> i64) -> i64 {
        self.snapshots.iter().map(|it| of(&it.effect)).sum()
    }

    /// Hits used at a time of its server.
    pub(super) fn hits(&self, now: u64) -> i64 {
        self.snapshots.last().map_or(0, |it| it.usage.nearest_hits(&self.limit, now))
    }
}

/// A refund of what a refused request had charged, whose reply has reached the process.
#[derive(Clone, Debug)]
pub(crate) struct Undone {
    pub(crate) process: usize,
    pub(crate) counter: Vec<u8>,
    pub(crate) replied: (u64, Duration),
}

/// What a call asks for each of its keys, from its arguments, which `lua/settle.lua` describes.
pub(super) fn effects(args: &[&[u8]], keys: usize) -> Vec<Effect> {
    let number = |at: usize| -> u64 { std::str::from_utf8(args[at]).unwrap().parse().unwrap() };
    let mut effects = vec![Effect::default(); keys];
    let mut at = usize::try_from(number(1)).unwrap() - 1;
    while at < args.len() {
        let word = number(at);
        let key = usize::try_from(word >> 7 & 0xffff).unwrap();
        at += match word & 7 {
            0 => 1,
            1 => 2,
            2 => {
                // Debits alone need nothing and belong to no descriptor that may refuse.
                if number(at + 2) == 0 && word >> 3 & 3 == 0 {
                    effects[key - 1].debited += i64::try_from(number(at + 1)).unwrap();
                }
                3
            }
            charge @ (3 | 4) => {
                effects[key - 1].refunded += number(at + 1);
                effects[key - 1].undoes |= charge == 4;
                if charge == 3 { 2 } else { 4 }
            }
            // A chain refunds nothing.
            _ => {
                let chain = usize::try_from(word >> 35).unwrap() - 1;
                let is_one = word >> 3 & 0xffff == 0;
                if is_one { usize::try_from(number(chain) >> 3).unwrap() } else { 1 }
            }
        };
    }
    effects
}
