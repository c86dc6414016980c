//! The checks of a call and their limits, as the script is asked.

use sluicegate_core::{
    Algorithm, Charge, Check, Limit, Time,
    algorithm::{HITS_MAX, Receipt},
    store::RefusalScope,
};
use smallvec::SmallVec;

use super::keys::Keys;
use crate::redis::command::CommandWriter;

/// The most groups that one word can ask.
const GROUPS_MAX: u64 = (1 << 16) - 1;

/// Checks and limits, as they are sent.
#[derive(Default)]
pub(super) struct Questions<'a> {
    limits: SmallVec<[(&'a Limit, u64); 4]>,
    chains: SmallVec<[(Chain<'a>, u64); 2]>,
    /// The limits and chains.
    stated: SmallVec<[u64; 16]>,
    /// The checks.
    asked: SmallVec<[u64; 16]>,
    /// Groups of one chain that are not among the checks yet.
    alike: Option<Alike>,
}

/// Limits and hits of the checks of a plain group.
type Chain<'a> = SmallVec<[(&'a Limit, u64); 4]>;

/// Plain groups of the same chain, one behind the other.
struct Alike {
    chain: u64,
    /// Position of the first key.
    key: usize,
    groups: u64,
}

impl<'a> Questions<'a> {
    /// Asks a group of checks, each with the position of its key.
    pub(super) fn ask(&mut self, group: &[(&'a Check, usize)], keys: &Keys<'_>) {
        if let Some((&(_, first), others)) = group.split_first()
            && group.iter().all(|&(check, _)| is_plain(check))
        {
            if group.iter().all(|&(_, key)| keys.is_alone(key)) {
                let chain = self.chain(group);
                return self.ask_alike(chain, first);
            }
            if are_different(group) {
                self.flush();
                let chain = self.chain(group);
                self.asked.push(chain_word(chain, first, 0));
                self.asked.extend(others.iter().map(|&(_, key)| key as u64 + 1));
                return;
            }
        }
        self.flush();
        let mut scope = None;
        let mut group = group.iter().peekable();
        while let Some(&(check, key)) = group.next() {
            let ends = match group.peek() {
                Some((next, _)) if next.descriptor == check.descriptor => 0,
                Some(_) => 1,
                None => 2,
            };
            // That of a descriptor is its first check's.
            let of_descriptor = *scope.get_or_insert(check.refusal_scope);
            if ends > 0 {
                scope = None;
            }
            let limit = self.limit(&check.limit);
            let place = (limit << 16 | (key as u64 + 1)) << 2 | ends;
            self.ask_check(place << 2 | veto_code(of_descriptor), check.charge);
        }
    }

    /// All of it, when nothing more is asked.
    pub(super) fn finish(mut self) -> Numbers {
        self.flush();
        Numbers { first_check: self.next(), stated: self.stated, asked: self.asked }
    }

    /// Position of a limit among the arguments, from 1.
    fn limit(&mut self, limit: &'a Limit) -> u64 {
        if let Some(&(_, position)) = self.limits.iter().find(|(known, _)| *known == limit) {
            return position;
        }
        let position = self.next();
        self.limits.push((limit, position));
        let window = limit.window().micros();
        let (code, numbers): (u64, &[u64]) = match limit.algorithm() {
            Algorithm::FixedWindow => (1, &[window]),
            Algorithm::SlidingWindowLog => (2, &[window]),
            Algorithm::SlidingWindowCounter => (3, &[window]),
            Algorithm::TokenBucket => {
                (4, &[limit.cost(), limit.refill_units(), limit.refill_interval()])
            }
            Algorithm::Gcra => (5, &[limit.cost()]),
        };
        self.stated.push(u64::from(limit.capacity()) << 3 | code);
        self.stated.extend_from_slice(numbers);
        position
    }

    /// Position of the chain of a plain group among the arguments, from 1.
    fn chain(&mut self, group: &[(&'a Check, usize)]) -> u64 {
        let links = || group.iter().map(|&(check, _)| (&check.limit, hits(check.charge)));
        let mut known = self.chains.iter().rev();
        if let Some(&(_, position)) = known.find(|(chain, _)| links().eq(chain.iter().copied())) {
            return position;
        }
        let chain: Chain<'a> = links().collect();
        let links: SmallVec<[u64; 4]> =
            chain.iter().map(|&(limit, hits)| self.limit(limit) << 33 | hits).collect();
        let position = self.next();
        self.chains.push((chain, position));
        self.stated.push((links.len() as u64) << 3 | 6);
        self.stated.extend(links);
        position
    }

    /// Position of what comes after the limits and chains.
    fn next(&self) -> u64 {
        self.stated.len() as u64 + 3
    }

    fn ask_alike(&mut self, chain: u64, key: usize) {
        match &mut self.alike {
            Some(alike) if alike.chain == chain && alike.groups < GROUPS_MAX => alike.groups += 1,
            _ => {
                self.flush();
                self.alike = Some(Alike { chain, key, groups: 1 });
            }
        }
    }

    fn flush(&mut self) {
        if let Some(Alike { chain, key, groups }) = self.alike.take() {
            self.asked.push(chain_word(chain, key, groups));
        }
    }

    /// Appends one check.
    fn ask_check(&mut self, word: u64, take: Charge) {
        let mut send = |code: u64, numbers: &[u64]| {
            self.asked.push(word << 3 | code);
            self.asked.extend_from_slice(numbers);
        };
        // More hits than a take records are as good as that many: above any limit.
        let most = |hits: u64| hits.min(HITS_MAX);
        match take {
            Charge::Exactly(1) => send(0, &[]),
            Charge::Exactly(hits) => send(1, &[most(hits)]),
            Charge::Always { hits, needs } => send(2, &[most(hits), most(needs)]),
            Charge::Refund { hits, receipt: None } => send(3, &[most(hits)]),
            Charge::Refund { hits, receipt: Some(Receipt { at, used }) } => {
                send(4, &[most(hits), at, used]);
            }
        }
    }
}

/// The numbers that are sent.
pub(super) struct Numbers {
    /// Position of the first check.
    first_check: u64,
    stated: SmallVec<[u64; 16]>,
    asked: SmallVec<[u64; 16]>,
}

impl Numbers {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        2 + self.stated.len() + self.asked.len()
    }

    /// Appends them. Redis' own time applies if `now` is `None`.
    pub(super) fn write(&self, now: Option<Time>, to: &mut CommandWriter) {
        let front = [now.map_or(0, Time::as_micros), self.first_check];
        let numbers = front.iter().chain(&self.stated).chain(&self.asked);
        // Integers of the script's: those that a double holds exactly.
        numbers.for_each(|&number| to.number(number.min((1 << 53) - 1)));
    }
}

/// Whether a check is one of those that chains are made of.
fn is_plain(check: &Check) -> bool {
    let Check { limit, charge: take, refusal_scope: scope, .. } = check;
    let capacity = u64::from(limit.capacity());
    limit.algorithm() == Algorithm::FixedWindow
        && *scope == RefusalScope::Request
        && matches!(*take, Charge::Exactly(hits) if (1..=capacity).contains(&hits))
        && capacity < limit.window().micros()
}

/// Whether no two checks of a group have one counter.
fn are_different(group: &[(&Check, usize)]) -> bool {
    let mut rest = group;
    while let Some((&(_, key), others)) = rest.split_first() {
        if others.iter().any(|&(_, other)| other == key) {
            return false;
        }
        rest = others;
    }
    true
}

const fn chain_word(chain: u64, key: usize, groups: u64) -> u64 {
    ((chain << 16 | (key as u64 + 1)) << 16 | groups) << 3 | 7
}

const fn hits(take: Charge) -> u64 {
    match take {
        Charge::Exactly(hits) | Charge::Always { hits, .. } | Charge::Refund { hits, .. } => hits,
    }
}

const fn veto_code(scope: RefusalScope) -> u64 {
    match scope {
        RefusalScope::None => 0,
        RefusalScope::Request => 1,
        RefusalScope::Quota => 2,
    }
}
