//! Rust, Lua and Redis decide alike and keep the same states.

use std::{cell::RefCell, collections::HashMap};

use fred::types::Value;
use proptest::prelude::*;
use sluicegate_core::{
    Algorithm, Answers, Charge, Check, CounterKey, Limit, OnFailure, Time,
    algorithm::{HITS_MAX, Receipt},
    key::KeyBuilder,
    limit::Unit,
    request::Entry,
    store::RefusalScope,
};
use sluicegate_core_testkit::{
    cases,
    counter::{self, Counter, TIME_MAX},
};
use sluicegate_simulation::{ScriptCall, embedded::EmbeddedRedis};
use sluicegate_store::redis::{Call, Reply};

use crate::{
    model::Model,
    server::{Redis, reply, script},
    stored::state_of,
};

/// How long keys are made to live where they must not go: in milliseconds, above all that the scripts give.
const LIFE_MILLIS: i64 = 1 << 54;

const PREFIX: &[u8] = b"test:";

/// Counters, each with some limits that take turns on it, and what is asked of them.
#[derive(Clone, Debug)]
struct Case {
    start: u64,
    counters: Vec<Vec<Limit>>,
    steps: Vec<Step>,
}

/// Some time and then a call.
#[derive(Clone, Debug)]
struct Step {
    pass: Pass,
    groups: Vec<Vec<Asked>>,
    /// How often.
    times: u8,
}

#[derive(Clone, Debug)]
enum Pass {
    /// As it matters to the first check.
    Gap(counter::Gap),
    Years(u64),
    Back(u64),
    To(u64),
}

/// One check.
#[derive(Clone, Debug)]
struct Asked {
    counter: usize,
    limit: usize,
    take: Kind,
    amount: Amount,
    scope: RefusalScope,
    /// Whether it belongs to the descriptor of the check before it.
    joins: bool,
}

#[derive(Clone, Debug)]
enum Kind {
    Exactly,
    Always(Amount),
    GiveBack,
    /// With the receipt of an earlier take, counted from the latest.
    Undo(usize),
    /// With a receipt of nobody's: so long ago, and with so much used.
    Forged(i64, u64),
}

#[derive(Clone, Debug)]
enum Amount {
    Ask(counter::Ask),
    Hits(u64),
}

fn cases() -> impl Strategy<Value = Case> {
    let counter =
        (counter::algorithms(), counter::windows()).prop_flat_map(|(algorithm, window)| {
            let nothing = Just(Limit::new(algorithm, 0, window, None).unwrap());
            let limit = prop_oneof![12 => counter::limits_of(algorithm, window), 1 => nothing];
            prop_oneof![
                3 => limit.clone().prop_map(|limit| vec![limit]),
                1 => prop::collection::vec(limit, 2..=3),
            ]
        });
    let start = prop_oneof![8 => counter::starts(), 1 => TIME_MAX - 100_000_000..=TIME_MAX + 9];
    let counters = prop::collection::vec(counter, 1..=3);
    let steps = prop::collection::vec(steps(), 1..=16);
    (start, counters, steps).prop_map(|(start, counters, steps)| Case {
        start: start.max(1),
        counters,
        steps,
    })
}

fn steps() -> impl Strategy<Value = Step> {
    let second = 1_000_000_u64;
    let pass = prop_oneof![
        16 => counter::gaps().prop_map(Pass::Gap),
        1 => (1..=40_u64).prop_map(Pass::Years),
        1 => (1..=3 * second).prop_map(Pass::Back),
        1 => (1..=9_000 * second).prop_map(Pass::Back),
        1 => (1..=TIME_MAX).prop_map(Pass::To),
    ];
    let group = || prop::collection::vec(asked(), 1..=4);
    let groups = prop_oneof![
        4 => prop::collection::vec(group(), 1),
        1 => prop::collection::vec(group(), 2..=4),
    ];
    let times = prop_oneof![12 => Just(1_u8), 2 => 2..=8_u8, 1 => 10..=60_u8];
    (pass, groups, times).prop_map(|(pass, groups, times)| Step { pass, groups, times })
}

fn asked() -> impl Strategy<Value = Asked> {
    let take = prop_oneof![
        10 => Just(Kind::Exactly),
        2 => amounts().prop_map(Kind::Always),
        1 => Just(Kind::GiveBack),
        2 => (0..=12_usize).prop_map(Kind::Undo),
        1 => (-5..=2_000_000_i64, 0..1_u64 << 53).prop_map(|(ago, used)| Kind::Forged(ago, used)),
    ];
    let scope = prop_oneof![2 => Just(RefusalScope::Request), 1 => Just(RefusalScope::None), 1 => Just(RefusalScope::Quota)];
    let index = || prop_oneof![2 => Just(0_usize), 1 => 0..=2_usize];
    (index(), index(), take, amounts(), scope, prop::bool::weighted(0.3)).prop_map(
        |(counter, limit, take, amount, scope, joins)| Asked {
            counter,
            limit,
            take,
            amount,
            scope,
            joins,
        },
    )
}

fn amounts() -> impl Strategy<Value = Amount> {
    let huge = vec![HITS_MAX - 1, HITS_MAX, HITS_MAX + 1, u64::MAX];
    prop_oneof![
        1 => Just(Amount::Hits(0)),
        12 => (1..=3_u8).prop_map(|hits| Amount::Ask(counter::Ask::Few(hits))),
        8 => (1..=20_u8).prop_map(|share| Amount::Ask(counter::Ask::Share(share))),
        4 => Just(Amount::Ask(counter::Ask::Rest)),
        1 => prop::sample::select(huge).prop_map(Amount::Hits),
        1 => (0..=HITS_MAX).prop_map(Amount::Hits),
    ]
}

/// A check, the only place where the tests here make one.
pub(crate) fn check(
    name: &str,
    limit: Limit,
    take: Charge,
    descriptor: usize,
    scope: RefusalScope,
) -> Check {
    let entries = [Entry { key: b"name", value: name.as_bytes() }];
    let key = KeyBuilder::new("equivalence", None, &entries, &[]).key_for(&limit);
    Check {
        key,
        limit,
        charge: take,
        descriptor,
        refusal_scope: scope,
        on_failure: OnFailure::default(),
    }
}

/// Something that runs calls and keeps counters.
trait Runs {
    /// Whether counters go when they have had their time.
    const EXPIRES: bool;

    /// Runs a call. Returns the reply and, for each key, the milliseconds it was given to live, if any.
    fn run(&mut self, call: &Call, now: Time) -> (Reply, Vec<Option<u64>>);

    /// What is stored under the name of a check's counter.
    fn stored(&self, check: &Check) -> Reply;
}

impl Runs for EmbeddedRedis {
    const EXPIRES: bool = true;

    fn run(&mut self, call: &Call, now: Time) -> (Reply, Vec<Option<u64>>) {
        let reply = self.eval(call, now).unwrap();
        let data = self.data.borrow();
        (reply, ScriptCall::of(call).keys().into_iter().map(|key| data.lifetime_set(key)).collect())
    }

    fn stored(&self, check: &Check) -> Reply {
        self.data.borrow().value(&name(check))
    }
}

impl Runs for Redis {
    /// The clock of the server is not that of the test, so keys are made to stay: for longer than any test, because
    /// what does not expire cannot be a counter.
    const EXPIRES: bool = false;

    fn run(&mut self, call: &Call, _now: Time) -> (Reply, Vec<Option<u64>>) {
        let sent = ScriptCall::of(call);
        let keys: Vec<Value> = sent.keys().into_iter().map(Value::from).collect();
        let ask = keys.iter().map(|key| ("PTTL", vec![key.clone()]));
        let keep = keys.iter().map(|key| ("PEXPIRE", vec![key.clone(), LIFE_MILLIS.into()]));
        let commands = [("EVAL", script(call))].into_iter().chain(ask).chain(keep);
        let replies = self.transaction(commands.collect());
        // Those that were not written have what they got before.
        let lived = |reply: &Value| {
            let left = reply.as_i64().filter(|left| *left < LIFE_MILLIS / 2);
            u64::try_from(left?).ok()
        };
        let given = replies[1..=keys.len()].iter().map(lived).collect();
        (reply(&replies[0]), given)
    }

    fn stored(&self, check: &Check) -> Reply {
        let key = Value::from(name(check).as_slice());
        reply(&match check.limit.algorithm() {
            Algorithm::SlidingWindowLog => self.command("LRANGE", [key, 0.into(), (-1).into()]),
            _ => self.command("GET", [key]),
        })
    }
}

fn name(check: &Check) -> Vec<u8> {
    [PREFIX, check.key.as_bytes()].concat()
}

/// A run of a case.
struct Run<'a> {
    case: &'a Case,
    model: Model,
    micros: u64,
    /// Counter, receipt and hits of all takes.
    taken: Vec<(CounterKey, Receipt, u64)>,
}

impl Run<'_> {
    fn limit(&self, asked: &Asked) -> (String, Limit) {
        let index = asked.counter % self.case.counters.len();
        let limits = &self.case.counters[index];
        (format!("{index}"), limits[asked.limit % limits.len()])
    }

    /// The counter that a check is about, as it is now.
    fn counter(&self, asked: &Asked) -> Counter {
        let (name, limit) = self.limit(asked);
        let state =
            self.model.state(&check(&name, limit, Charge::Exactly(0), 0, RefusalScope::None));
        Counter { limit, state, micros: self.micros.min(TIME_MAX) }
    }

    fn pass(&mut self, step: &Step) {
        let asked = &step.groups[0][0];
        let year = 1_000_000 * u64::from(Unit::Year.seconds());
        self.micros = match &step.pass {
            Pass::Gap(gap) => {
                let ask = match &asked.amount {
                    Amount::Ask(ask) => ask.clone(),
                    Amount::Hits(_) => counter::Ask::Few(1),
                };
                let mut counter = self.counter(asked);
                counter.wait(&counter::Step { gap: gap.clone(), ask });
                counter.micros
            }
            Pass::Years(years) => self.micros + years * year,
            Pass::Back(micros) => self.micros.saturating_sub(*micros),
            Pass::To(micros) => *micros,
        };
        // 0 would mean the time of Redis.
        self.micros = self.micros.max(1);
    }

    fn hits(&self, asked: &Asked, amount: &Amount) -> u64 {
        match amount {
            Amount::Hits(hits) => *hits,
            Amount::Ask(ask) => {
                let step = counter::Step { gap: counter::Gap::None, ask: ask.clone() };
                self.counter(asked).hits(&step)
            }
        }
    }

    fn check(&self, asked: &Asked, descriptor: usize) -> Check {
        let (name, limit) = self.limit(asked);
        let mut check = check(&name, limit, Charge::Exactly(0), descriptor, asked.scope);
        let hits = self.hits(asked, &asked.amount);
        check.charge = match &asked.take {
            Kind::Exactly => Charge::Exactly(hits),
            Kind::Always(needs) => Charge::Always { hits, needs: self.hits(asked, needs) },
            Kind::GiveBack => Charge::Refund { hits, receipt: None },
            Kind::Undo(age) => {
                let mut own = self.taken.iter().rev().filter(|(key, ..)| *key == check.key);
                match own.nth(*age) {
                    Some(&(_, receipt, hits)) => Charge::Refund { hits, receipt: Some(receipt) },
                    None => Charge::Refund { hits, receipt: None },
                }
            }
            Kind::Forged(ago, used) => {
                let at = self.micros.saturating_add_signed(-ago);
                let window = limit.window().micros();
                let at = if ago % 2 == 0 { at } else { at / window };
                Charge::Refund { hits, receipt: Some(Receipt { at, used: *used }) }
            }
        };
        check
    }

    fn groups(&self, step: &Step) -> Vec<Vec<Check>> {
        let group = |group: &Vec<Asked>| {
            let mut descriptor = 0;
            let mut checks: Vec<Check> = Vec::new();
            for asked in group {
                descriptor += usize::from(!asked.joins);
                checks.push(self.check(asked, descriptor));
            }
            checks
        };
        step.groups.iter().map(group).collect()
    }

    fn remember(&mut self, groups: &[Vec<Check>], answers: &Answers) {
        for (check, answer) in groups.iter().flatten().zip(answers) {
            let decision = answer.unwrap();
            if let Some(receipt) = decision.receipt {
                self.taken.push((check.key.clone(), receipt, decision.charged));
            }
        }
    }
}

/// Goes through a case and compares, after each call, the decisions and what is stored.
fn equal<S: Runs>(case: &Case, subject: &mut S) -> Result<(), TestCaseError> {
    let mut run = Run { case, model: Model::default(), micros: case.start, taken: Vec::new() };
    let mut last_given = HashMap::<Vec<u8>, u64>::new();
    for step in case.steps.iter().flat_map(|step| std::iter::repeat_n(step, step.times.into())) {
        run.pass(step);
        let now = Time::from_micros(run.micros);
        if S::EXPIRES {
            run.model.expire(now);
        }
        let groups = run.groups(step);
        let asked = || format!("{now:?}: {groups:#?}");
        let call = Call::new(PREFIX, &groups, Some(now));
        let (reply, given) = subject.run(&call, now);
        let expected = run.model.settle(&groups, now);
        let replied = call.decode(&reply).unwrap();
        prop_assert_eq!(&replied.answers, &expected, "{}", asked());
        prop_assert!(replied.unusable.is_empty(), "{}", asked());
        for check in groups.iter().flatten() {
            let stored = state_of(&check.limit, &subject.stored(check));
            prop_assert_eq!(stored, Some(run.model.state(check)), "{}", asked());
        }
        for (key, given) in ScriptCall::of(&call).keys().into_iter().zip(given) {
            let millis = now.as_micros() / 1_000;
            let expected = run.model.given.get(&key[PREFIX.len()..]).copied();
            // A server's clock goes on until it is asked.
            let slack = if S::EXPIRES { 0 } else { 5_000 };
            let fits = match (given, expected) {
                (Some(given), Some(expected)) => (given..=given + slack).contains(&expected),
                // A counter that only grows is not given what it has.
                (None, Some(expected)) => last_given
                    .get(key)
                    .is_some_and(|&last| (last..=last + slack).contains(&(millis + expected))),
                (given, None) => given.is_none(),
            };
            prop_assert!(fits, "{given:?} ms, not {expected:?}, to live: {}", asked());
            if let Some(given) = given {
                last_given.insert(key.to_vec(), millis + given);
            }
        }
        run.remember(&groups, &expected);
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases::at_least(4_000))]

    #[test]
    fn lua_equals_rust(case in cases()) {
        LUA.with_borrow_mut(|fake| {
            fake.data.take();
            equal(&case, fake)
        })?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..cases::at_least(400) })]

    #[test]
    fn redis_equals_rust(case in cases()) {
        REDIS.with_borrow_mut(|redis| {
            redis.command("FLUSHALL", [] as [Value; 0]);
            equal(&case, redis)
        })?;
    }
}

thread_local! {
    static LUA: RefCell<EmbeddedRedis> = RefCell::new(EmbeddedRedis::new());
    static REDIS: RefCell<Redis> = RefCell::new(Redis::start());
}
