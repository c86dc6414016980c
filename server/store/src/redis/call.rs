//! One call of a script: what is sent, and what the reply means. The format is described at the top of
//! `lua/settle.lua`.

use std::time::Duration;

use bytes::BytesMut;
use fred::types::Value;
use indexmap::IndexSet;
use sluicegate_core::{
    Algorithm, Answers, Check, CounterKey, Decision, Limit, Take, Time,
    algorithm::{HITS_MAX, Receipt},
    store::{Source, Veto},
};
use smallvec::SmallVec;
use thiserror::Error;

use super::Script;

/// Integers in the reply for each check.
const ANSWER: usize = 6;

/// The reply to a call is not what its script would answer.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("Redis answered something else than {checks} decisions")]
pub struct UnexpectedReply {
    checks: usize,
}

/// One call of a script, which settles any number of groups on the counters of one slot.
#[derive(Clone, Debug)]
pub struct Call {
    /// The script to run.
    pub script: &'static Script,
    /// The counters, each once.
    pub keys: Vec<Value>,
    /// The questions.
    pub args: Vec<Value>,
    checks: usize,
}

impl Call {
    /// The call that settles each group, all or nothing, in order. The name of each counter gets the
    /// prefix. Redis tells the time where `now` is `None`.
    #[must_use]
    pub fn new<'a, G>(prefix: &[u8], groups: impl IntoIterator<Item = G>, now: Option<Time>) -> Self
    where
        G: IntoIterator<Item = &'a Check>,
    {
        let mut checks = SmallVec::<[(&Check, u64); 8]>::new();
        for group in groups {
            let mut group = group.into_iter().peekable();
            while let Some(check) = group.next() {
                let ends = match group.peek() {
                    Some(next) if next.descriptor == check.descriptor => 0,
                    Some(_) => 1,
                    None => 2,
                };
                checks.push((check, ends));
            }
        }

        let mut limits = Limits::default();
        let mut keys = IndexSet::with_capacity_and_hasher(
            checks.len(),
            foldhash::fast::RandomState::default(),
        );
        let mut asked = Vec::with_capacity(2 * checks.len());
        let mut veto = None;
        for &(check, ends) in &checks {
            let (key, _) = keys.insert_full(&check.key);
            let limit = limits.position(&check.limit);
            // That of a descriptor is its first check's.
            let of_descriptor = *veto.get_or_insert(check.veto);
            if ends > 0 {
                veto = None;
            }
            let place = (limit << 16 | (key as u64 + 1)) << 2 | ends;
            ask(&mut asked, place << 2 | veto_code(of_descriptor), check.take);
        }

        let mut args = Vec::with_capacity(2 + limits.args.len() + asked.len());
        args.push(number(now.map_or(0, Time::as_micros)));
        args.push(number(limits.next()));
        args.append(&mut limits.args);
        args.append(&mut asked);
        Self {
            script: Script::of(checks.iter().map(|&(check, _)| check)),
            keys: names(prefix, &keys),
            args,
            checks: checks.len(),
        }
    }

    /// The answers to all checks, in order.
    ///
    /// # Errors
    /// The reply has another shape.
    pub fn decode(&self, reply: &Value) -> Result<Answers, UnexpectedReply> {
        let read = || {
            let Value::Array(reply) = reply else { return None };
            let (answers, []) = reply.as_chunks::<ANSWER>() else { return None };
            let answers = answers.iter().map(|answer| Some(Ok(decision(answer)?)));
            answers.collect::<Option<Answers>>().filter(|answers| answers.len() == self.checks)
        };
        read().ok_or(UnexpectedReply { checks: self.checks })
    }
}

/// The limits of a call, each once, and how they are sent.
#[derive(Default)]
struct Limits<'a> {
    known: SmallVec<[(&'a Limit, u64); 4]>,
    args: Vec<Value>,
}

impl<'a> Limits<'a> {
    /// Position of a limit among the arguments, from 1.
    fn position(&mut self, limit: &'a Limit) -> u64 {
        if let Some(&(_, position)) = self.known.iter().find(|(known, _)| *known == limit) {
            return position;
        }
        let position = self.next();
        self.known.push((limit, position));
        let window = limit.window().micros();
        let (code, numbers): (u64, &[u64]) = match limit.algorithm() {
            Algorithm::FixedWindow => (1, &[window]),
            Algorithm::SlidingWindowLog => (2, &[window]),
            Algorithm::SlidingWindowCounter => (3, &[window]),
            Algorithm::TokenBucket => (4, &[limit.cost(), limit.gain(), limit.tick()]),
            Algorithm::Gcra => (5, &[limit.cost()]),
        };
        self.args.push(number(u64::from(limit.capacity()) << 3 | code));
        self.args.extend(numbers.iter().map(|&it| number(it)));
        position
    }

    /// Position of what comes after the limits.
    fn next(&self) -> u64 {
        self.args.len() as u64 + 3
    }
}

const fn veto_code(veto: Veto) -> u64 {
    match veto {
        Veto::None => 0,
        Veto::Alone => 1,
        Veto::Quota => 2,
    }
}

/// Appends one check.
fn ask(args: &mut Vec<Value>, word: u64, take: Take) {
    let mut send = |code: u64, hits: u64, more: &[u64]| {
        args.push(number(word << 3 | code));
        // More hits than a take records are as good as that many: above any limit.
        args.push(number(hits.min(HITS_MAX)));
        args.extend(more.iter().map(|&it| number(it)));
    };
    match take {
        Take::Exactly(hits) => send(0, hits, &[]),
        Take::UpTo(hits) => send(1, hits, &[]),
        Take::Always { hits, needs } => send(2, hits, &[needs.min(HITS_MAX)]),
        Take::GiveBack { hits, receipt: None } => send(3, hits, &[]),
        Take::GiveBack { hits, receipt: Some(Receipt { at, used }) } => send(4, hits, &[at, used]),
    }
}

/// An integer of the script's: one that a double holds exactly.
fn number(it: u64) -> Value {
    const MAX: i64 = (1 << 53) - 1;
    Value::Integer(i64::try_from(it).map_or(MAX, |it| it.min(MAX)))
}

/// The keys as Redis knows them, all in one allocation.
fn names<S>(prefix: &[u8], keys: &IndexSet<&CounterKey, S>) -> Vec<Value> {
    let length: usize = keys.iter().map(|key| prefix.len() + key.as_bytes().len()).sum();
    let mut text = BytesMut::with_capacity(length);
    let name = |key: &&CounterKey| {
        text.extend_from_slice(prefix);
        text.extend_from_slice(key.as_bytes());
        Value::Bytes(text.split().freeze())
    };
    keys.iter().map(name).collect()
}

fn decision(answer: &[Value; ANSWER]) -> Option<Decision> {
    let at = |position: usize| match answer.get(position) {
        Some(&Value::Integer(number)) => Some(number),
        _ => None,
    };
    let count = |position: usize| u64::try_from(at(position)?).ok();
    let span = |position: usize| count(position).map(Duration::from_micros);
    let verdict = count(0)?;
    let granted = verdict >> 1;
    let receipt = Receipt { at: count(4)?, used: count(5)? };
    Some(Decision {
        allowed: verdict & 1 == 1,
        granted,
        remaining: u64::try_from(at(1)?).unwrap_or(0),
        excess: u64::try_from(at(1)?.saturating_neg()).unwrap_or(0),
        reset_after: span(2)?,
        retry_after: if at(3)? == -1 { None } else { Some(span(3)?) },
        receipt: (granted > 0).then_some(receipt),
        source: Source::Store,
    })
}
