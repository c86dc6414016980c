//! The history of a counter, and the effects of script calls on it.

use std::time::Duration;

use sluicegate_core::Limit;
use sluicegate_store::redis::Reply;

use crate::usage::Usage;

/// The effect of a command or a fault on a counter, in hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effect {
    /// Hits by which a script has increased usage; negative for a refund.
    pub(crate) charged: i64,
    /// How many of them were a debit of local decisions.
    pub(crate) debited: i64,
    /// Hits that the call has refunded. Within the call, usage may have differed from the value after it by up to this
    /// number.
    pub(crate) refunded: u64,
    /// Hits that a reset or a failover has removed; negative if a failover has restored refunded hits.
    pub(crate) removed: i64,
    /// Whether the call has undone a charge of a refused request.
    pub(crate) is_undo: bool,
}

impl Effect {
    /// Whether the counter did not change.
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The value of a counter after an event.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    /// Number of the event.
    pub(crate) number: u64,
    /// Time since the start of the run.
    pub(crate) at: Duration,
    /// Time by the server's clock, in microseconds since the Unix epoch.
    pub(crate) server_time: u64,
    pub(crate) usage: Usage,
    pub(crate) effect: Effect,
}

/// The history of a counter.
#[derive(Debug)]
pub(crate) struct CounterHistory {
    pub(crate) limit: Limit,
    pub(crate) snapshots: Vec<Snapshot>,
    /// The value after the last event.
    pub(super) value: Reply,
    /// If the counter has moved to another server since its last change: the time of the move, and the time by the
    /// clock of the first server. The remaining lifetime of the key still follows that clock.
    pub(super) moved: Option<(Duration, u64)>,
    /// Hits used at the end of the run.
    pub(crate) at_end: i64,
}

impl CounterHistory {
    /// The sum of a number over all effects on the counter.
    pub(crate) fn sum(&self, of: impl Fn(&Effect) -> i64) -> i64 {
        self.snapshots.iter().map(|it| of(&it.effect)).sum()
    }

    /// Hits used at a time by the server's clock.
    pub(super) fn hits(&self, now: u64) -> i64 {
        self.snapshots.last().map_or(0, |it| it.usage.nearest_hits(&self.limit, now))
    }
}

/// An undone charge of a refused request, of which the process has received the reply.
#[derive(Clone, Debug)]
pub(crate) struct UndoneCharge {
    pub(crate) process: usize,
    pub(crate) counter: Vec<u8>,
    pub(crate) replied: (u64, Duration),
}

/// The debits and refunds that a script call makes on each of its keys, read from its arguments, which `lua/settle.lua`
/// describes.
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
                // Only debits of local decisions have `needs` = 0 in a descriptor that refuses nothing.
                if number(at + 2) == 0 && word >> 3 & 3 == 0 {
                    effects[key - 1].debited += i64::try_from(number(at + 1)).unwrap();
                }
                3
            }
            charge @ (3 | 4) => {
                effects[key - 1].refunded += number(at + 1);
                effects[key - 1].is_undo |= charge == 4;
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
