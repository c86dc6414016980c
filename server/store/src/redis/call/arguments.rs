//! The numeric arguments of a script call: limits, chains and checks, in the format of `lua/settle.lua`.

use sluicegate_core::{
    Algorithm, Charge, Check, Limit, Time,
    algorithm::{HITS_MAX, Receipt},
    store::RefusalScope,
};
use smallvec::SmallVec;

use super::keys::Keys;
use crate::redis::command::CommandWriter;

/// The most groups that one argument can have.
const GROUPS_MAX: u64 = (1 << 16) - 1;

/// Builds the arguments of a call. A group of [plain](is_plain) checks is sent as a chain and its keys.
#[derive(Default)]
pub(super) struct ScriptArguments<'a> {
    /// Each limit with its position among the arguments.
    limits: SmallVec<[(&'a Limit, u64); 4]>,
    /// Each chain with its position among the arguments.
    chains: SmallVec<[(Chain<'a>, u64); 2]>,
    /// The arguments for limits and chains.
    definitions: SmallVec<[u64; 16]>,
    /// The arguments for checks.
    checks: SmallVec<[u64; 16]>,
    /// The last groups, if they all have the same chain. Not yet in `checks`, because the next group may have that
    /// chain, too.
    repeated: Option<RepeatedGroup>,
}

/// Limits and hits of the checks of a group.
type Chain<'a> = SmallVec<[(&'a Limit, u64); 4]>;

/// Consecutive groups of one chain, on consecutive keys.
struct RepeatedGroup {
    /// Position of the chain among the arguments.
    chain: u64,
    /// Position of the first key.
    key: usize,
    groups: u64,
}

impl<'a> ScriptArguments<'a> {
    /// Adds a group of checks, each with the position of its key.
    pub(super) fn add(&mut self, group: &[(&'a Check, usize)], keys: &Keys<'_>) {
        if let Some((&(_, first), others)) = group.split_first()
            && group.iter().all(|&(check, _)| is_plain(check))
        {
            if group.iter().all(|&(_, key)| keys.is_used_once(key)) {
                let chain = self.chain_position(group);
                return self.add_repeated(chain, first);
            }
            if has_distinct_keys(group) {
                self.flush();
                let chain = self.chain_position(group);
                self.checks.push(chain_word(chain, first, 0));
                self.checks.extend(others.iter().map(|&(_, key)| key as u64 + 1));
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
            // The first check of a descriptor determines its scope.
            let of_descriptor = *scope.get_or_insert(check.refusal_scope);
            if ends > 0 {
                scope = None;
            }
            let limit = self.limit_position(&check.limit);
            let word = (limit << 16 | (key as u64 + 1)) << 2 | ends;
            self.add_check(word << 2 | scope_code(of_descriptor), check.charge);
        }
    }

    /// The arguments, after the last group.
    pub(super) fn finish(mut self) -> FinishedArguments {
        self.flush();
        let first_check = self.next_position();
        FinishedArguments { first_check, definitions: self.definitions, checks: self.checks }
    }

    /// Position of a limit among the arguments, from 1.
    fn limit_position(&mut self, limit: &'a Limit) -> u64 {
        if let Some(&(_, position)) = self.limits.iter().find(|(known, _)| *known == limit) {
            return position;
        }
        let position = self.next_position();
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
        self.definitions.push(u64::from(limit.capacity()) << 3 | code);
        self.definitions.extend_from_slice(numbers);
        position
    }

    /// Position of a group's chain among the arguments, from 1.
    fn chain_position(&mut self, group: &[(&'a Check, usize)]) -> u64 {
        let checks = || group.iter().map(|&(check, _)| (&check.limit, hits(check.charge)));
        let mut known = self.chains.iter().rev();
        if let Some(&(_, position)) = known.find(|(chain, _)| checks().eq(chain.iter().copied())) {
            return position;
        }
        let chain: Chain<'a> = checks().collect();
        let words: SmallVec<[u64; 4]> =
            chain.iter().map(|&(limit, hits)| self.limit_position(limit) << 33 | hits).collect();
        let position = self.next_position();
        self.chains.push((chain, position));
        self.definitions.push((words.len() as u64) << 3 | 6);
        self.definitions.extend(words);
        position
    }

    /// Position of the next definition among the arguments, from 1. The first two arguments are the time and the
    /// position of the first check.
    fn next_position(&self) -> u64 {
        self.definitions.len() as u64 + 3
    }

    /// Adds a group of a chain. Its keys are the next ones, and are used nowhere else.
    fn add_repeated(&mut self, chain: u64, key: usize) {
        match &mut self.repeated {
            Some(it) if it.chain == chain && it.groups < GROUPS_MAX => it.groups += 1,
            _ => {
                self.flush();
                self.repeated = Some(RepeatedGroup { chain, key, groups: 1 });
            }
        }
    }

    /// Moves the repeated groups to the checks.
    fn flush(&mut self) {
        if let Some(RepeatedGroup { chain, key, groups }) = self.repeated.take() {
            self.checks.push(chain_word(chain, key, groups));
        }
    }

    /// Appends one check. `word` has everything but the charge.
    fn add_check(&mut self, word: u64, charge: Charge) {
        let mut send = |code: u64, numbers: &[u64]| {
            self.checks.push(word << 3 | code);
            self.checks.extend_from_slice(numbers);
        };
        // The cap changes no decision, because it is above any limit.
        let most = |hits: u64| hits.min(HITS_MAX);
        match charge {
            Charge::IfAllowed(1) => send(0, &[]),
            Charge::IfAllowed(hits) => send(1, &[most(hits)]),
            Charge::Always { hits, needs } => send(2, &[most(hits), most(needs)]),
            Charge::Refund { hits, receipt: None } => send(3, &[most(hits)]),
            Charge::Refund { hits, receipt: Some(Receipt { at, used }) } => {
                send(4, &[most(hits), at, used]);
            }
        }
    }
}

/// The arguments of a call.
pub(super) struct FinishedArguments {
    /// Position of the first check.
    first_check: u64,
    definitions: SmallVec<[u64; 16]>,
    checks: SmallVec<[u64; 16]>,
}

impl FinishedArguments {
    /// Number of arguments.
    pub(super) fn len(&self) -> usize {
        2 + self.definitions.len() + self.checks.len()
    }

    /// Appends the arguments to a command. Redis' own time applies if `now` is `None`.
    pub(super) fn write(&self, now: Option<Time>, to: &mut CommandWriter) {
        let front = [now.map_or(0, Time::as_micros), self.first_check];
        let numbers = front.iter().chain(&self.definitions).chain(&self.checks);
        // The script's numbers are doubles, which hold these integers exactly.
        numbers.for_each(|&number| to.number(number.min((1 << 53) - 1)));
    }
}

/// Whether a check can be in a chain: a fixed window, a charge of at least one hit and at most the capacity, and a
/// refusal that refuses the request. The script settles such checks on a shorter path.
fn is_plain(check: &Check) -> bool {
    let Check { limit, charge, refusal_scope: scope, .. } = check;
    let capacity = u64::from(limit.capacity());
    limit.algorithm() == Algorithm::FixedWindow
        && *scope == RefusalScope::Request
        && matches!(*charge, Charge::IfAllowed(hits) if (1..=capacity).contains(&hits))
        && capacity < limit.window().micros()
}

/// Whether the checks of a group have different counters.
fn has_distinct_keys(group: &[(&Check, usize)]) -> bool {
    let mut rest = group;
    while let Some((&(_, key), others)) = rest.split_first() {
        if others.iter().any(|&(_, other)| other == key) {
            return false;
        }
        rest = others;
    }
    true
}

/// The argument for `groups` groups of a chain on consecutive keys, the first of which is `key`. With 0 groups: for one
/// group on `key` and on the keys in the arguments after this one.
const fn chain_word(chain: u64, key: usize, groups: u64) -> u64 {
    ((chain << 16 | (key as u64 + 1)) << 16 | groups) << 3 | 7
}

const fn hits(charge: Charge) -> u64 {
    match charge {
        Charge::IfAllowed(hits) | Charge::Always { hits, .. } | Charge::Refund { hits, .. } => hits,
    }
}

const fn scope_code(scope: RefusalScope) -> u64 {
    match scope {
        RefusalScope::None => 0,
        RefusalScope::Request => 1,
        RefusalScope::Quota => 2,
    }
}
