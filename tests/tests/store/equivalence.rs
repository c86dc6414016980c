//! Proves that Rust, Lua and Redis make the same decisions and store the same states.

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

/// Expiry of keys that must not expire during a test, in milliseconds. Longer than any expiry that the scripts set.
const LIFE_MILLIS: i64 = 1 << 54;

const PREFIX: &[u8] = b"test:";

/// Counters, each with limits that alternate on it, and the calls to make.
#[derive(Clone, Debug)]
struct Case {
    start: u64,
    counters: Vec<Vec<Limit>>,
    steps: Vec<Step>,
}

/// A change of the clock, and then a call.
#[derive(Clone, Debug)]
struct Step {
    time: TimeStep,
    groups: Vec<Vec<Asked>>,
    /// Number of repetitions.
    times: u8,
}

#[derive(Clone, Debug)]
enum TimeStep {
    /// A gap chosen for the counter of the first check.
    Gap(counter::Gap),
    Years(u64),
    Back(u64),
    To(u64),
}

/// Parameters of one check.
#[derive(Clone, Debug)]
struct Asked {
    counter: usize,
    limit: usize,
    charge: Kind,
    amount: Amount,
    scope: RefusalScope,
    /// Whether it belongs to the descriptor of the check before it.
    joins: bool,
}

#[derive(Clone, Debug)]
enum Kind {
    IfAllowed,
    Always(Amount),
    Refund,
    /// A refund with the receipt of an earlier charge, counted from the latest.
    Undo(usize),
    /// A refund with a receipt of no charge: the age in microseconds, and the used hits.
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
            let limit =
                prop_oneof![12 => counter::limits_with_window(algorithm, window), 1 => nothing];
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
    let time = prop_oneof![
        16 => counter::gaps().prop_map(TimeStep::Gap),
        1 => (1..=40_u64).prop_map(TimeStep::Years),
        1 => (1..=3 * second).prop_map(TimeStep::Back),
        1 => (1..=9_000 * second).prop_map(TimeStep::Back),
        1 => (1..=TIME_MAX).prop_map(TimeStep::To),
    ];
    let group = || prop::collection::vec(asked(), 1..=4);
    let groups = prop_oneof![
        4 => prop::collection::vec(group(), 1),
        1 => prop::collection::vec(group(), 2..=4),
    ];
    let times = prop_oneof![12 => Just(1_u8), 2 => 2..=8_u8, 1 => 10..=60_u8];
    (time, groups, times).prop_map(|(time, groups, times)| Step { time, groups, times })
}

fn asked() -> impl Strategy<Value = Asked> {
    let charge = prop_oneof![
        10 => Just(Kind::IfAllowed),
        2 => amounts().prop_map(Kind::Always),
        1 => Just(Kind::Refund),
        2 => (0..=12_usize).prop_map(Kind::Undo),
        1 => (-5..=2_000_000_i64, 0..1_u64 << 53).prop_map(|(ago, used)| Kind::Forged(ago, used)),
    ];
    let scope = prop_oneof![2 => Just(RefusalScope::Request), 1 => Just(RefusalScope::None), 1 => Just(RefusalScope::Quota)];
    let index = || prop_oneof![2 => Just(0_usize), 1 => 0..=2_usize];
    (index(), index(), charge, amounts(), scope, prop::bool::weighted(0.3)).prop_map(
        |(counter, limit, charge, amount, scope, joins)| Asked {
            counter,
            limit,
            charge,
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

/// Creates a check. All tests here use this function.
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

/// Runs script calls and stores counters.
trait ScriptRunner {
    /// Whether keys expire by the clock of the test.
    const EXPIRES: bool;

    /// Runs a call. Returns the reply and, for each key, the expiry that the call has set, in milliseconds.
    fn run(&mut self, call: &Call, now: Time) -> (Reply, Vec<Option<u64>>);

    /// The stored value of a check's counter.
    fn stored(&self, check: &Check) -> Reply;
}

impl ScriptRunner for EmbeddedRedis {
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

impl ScriptRunner for Redis {
    /// The server has its own clock, so keys get an expiry that is longer than any test: the scripts replace keys
    /// without an expiry.
    const EXPIRES: bool = false;

    fn run(&mut self, call: &Call, _now: Time) -> (Reply, Vec<Option<u64>>) {
        let sent = ScriptCall::of(call);
        let keys: Vec<Value> = sent.keys().into_iter().map(Value::from).collect();
        let ask = keys.iter().map(|key| ("PTTL", vec![key.clone()]));
        let keep = keys.iter().map(|key| ("PEXPIRE", vec![key.clone(), LIFE_MILLIS.into()]));
        let commands = [("EVAL", script(call))].into_iter().chain(ask).chain(keep);
        let replies = self.transaction(commands.collect());
        // A key that the call has not written has the expiry `LIFE_MILLIS` from before.
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

/// State of the run of a case.
struct Run<'a> {
    case: &'a Case,
    model: Model,
    micros: u64,
    /// Counter, receipt and hits of all charges.
    charges: Vec<(CounterKey, Receipt, u64)>,
}

impl Run<'_> {
    fn limit(&self, asked: &Asked) -> (String, Limit) {
        let index = asked.counter % self.case.counters.len();
        let limits = &self.case.counters[index];
        (format!("{index}"), limits[asked.limit % limits.len()])
    }

    /// The counter of a check with its current state.
    fn counter(&self, asked: &Asked) -> Counter {
        let (name, limit) = self.limit(asked);
        let state =
            self.model.state(&check(&name, limit, Charge::IfAllowed(0), 0, RefusalScope::None));
        Counter { limit, state, micros: self.micros.min(TIME_MAX) }
    }

    fn advance_time(&mut self, step: &Step) {
        let asked = &step.groups[0][0];
        let year = 1_000_000 * u64::from(Unit::Year.seconds());
        self.micros = match &step.time {
            TimeStep::Gap(gap) => {
                let ask = match &asked.amount {
                    Amount::Ask(ask) => ask.clone(),
                    Amount::Hits(_) => counter::Ask::Few(1),
                };
                let mut counter = self.counter(asked);
                counter.wait(&counter::Step { gap: gap.clone(), ask });
                counter.micros
            }
            TimeStep::Years(years) => self.micros + years * year,
            TimeStep::Back(micros) => self.micros.saturating_sub(*micros),
            TimeStep::To(micros) => *micros,
        };
        // The time 0 selects the clock of Redis.
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
        let mut check = check(&name, limit, Charge::IfAllowed(0), descriptor, asked.scope);
        let hits = self.hits(asked, &asked.amount);
        check.charge = match &asked.charge {
            Kind::IfAllowed => Charge::IfAllowed(hits),
            Kind::Always(needs) => Charge::Always { hits, needs: self.hits(asked, needs) },
            Kind::Refund => Charge::Refund { hits, receipt: None },
            Kind::Undo(age) => {
                let mut own = self.charges.iter().rev().filter(|(key, ..)| *key == check.key);
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

    fn record_receipts(&mut self, groups: &[Vec<Check>], answers: &Answers) {
        for (check, answer) in groups.iter().flatten().zip(answers) {
            let decision = answer.unwrap();
            if let Some(receipt) = decision.receipt {
                self.charges.push((check.key.clone(), receipt, decision.charged));
            }
        }
    }
}

/// Runs a case and compares the decisions and the stored values with the model after each call.
fn equal<S: ScriptRunner>(case: &Case, subject: &mut S) -> Result<(), TestCaseError> {
    let mut run = Run { case, model: Model::default(), micros: case.start, charges: Vec::new() };
    let mut last_given = HashMap::<Vec<u8>, u64>::new();
    for step in case.steps.iter().flat_map(|step| std::iter::repeat_n(step, step.times.into())) {
        run.advance_time(step);
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
            // The server's clock runs on until the query.
            let slack = if S::EXPIRES { 0 } else { 5_000 };
            let fits = match (given, expected) {
                (Some(given), Some(expected)) => (given..=given + slack).contains(&expected),
                // A counter that only grows keeps its expiry.
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
        run.record_receipts(&groups, &expected);
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
