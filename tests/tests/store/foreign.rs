//! Values of counters' keys that the scripts have not written: the counters are unused, and the values are replaced.

use std::cell::RefCell;

use fred::types::Value;
use proptest::prelude::*;
use sluicegate_core::{
    Algorithm, Answers, Charge, Check, Limit, StoreError, Time, Window, algorithm::State,
    store::RefusalScope,
};
use sluicegate_core_testkit::{cases, settle_states};
use sluicegate_simulation::embedded::EmbeddedRedis;
use sluicegate_store::redis::{Call, Reply};

use crate::{
    equivalence::check,
    server::{Redis, reply},
    stored::state_of,
};

const START: u64 = 1_800_000_000_000_000;
const MINUTE: u64 = 60_000_000;

/// Expiry of values in these tests, in milliseconds.
const LIFETIME: u64 = 3_600_000;

fn limit(algorithm: Algorithm) -> Limit {
    Limit::new(algorithm, 10, Window::from_seconds(60).unwrap(), None).unwrap()
}

fn hit(algorithm: Algorithm, charge: Charge) -> Check {
    check("foreign", limit(algorithm), charge, 0, RefusalScope::Request)
}

fn call(check: &Check) -> Call {
    Call::new(b"", [[check]], Some(Time::from_micros(START)))
}

fn text(text: &str) -> Reply {
    Reply::Text(text.as_bytes().to_vec())
}

fn list(elements: &[&str]) -> Reply {
    Reply::Array(elements.iter().map(|it| text(it)).collect())
}

/// Stores values and runs script calls.
trait Subject {
    /// Stores a value, with an expiry of `life` milliseconds.
    fn put(&self, check: &Check, value: &Reply, life: Option<u64>);

    fn run(&self, call: &Call) -> Reply;

    /// The stored value and its time to live in milliseconds; negative if it does not expire or does not exist.
    fn stored(&self, check: &Check) -> (Reply, i64);
}

impl Subject for EmbeddedRedis {
    fn put(&self, check: &Check, value: &Reply, life: Option<u64>) {
        let mut data = self.data.take();
        data.set_time(START);
        data.insert_foreign(check.key.as_bytes(), value, life);
        self.data.replace(data);
    }

    fn run(&self, call: &Call) -> Reply {
        self.eval(call, Time::from_micros(START)).unwrap()
    }

    fn stored(&self, check: &Check) -> (Reply, i64) {
        let data = self.data.borrow();
        let key = check.key.as_bytes();
        (data.value(key), data.pttl(key))
    }
}

impl Subject for Redis {
    fn put(&self, check: &Check, value: &Reply, life: Option<u64>) {
        let key = Value::from(check.key.as_bytes());
        self.command("DEL", [key.clone()]);
        let value_of = |it: &Reply| Value::from(it.as_str().unwrap());
        match value {
            Reply::Array(elements) => {
                let pushed = [key.clone()].into_iter().chain(elements.iter().map(value_of));
                self.command("RPUSH", pushed)
            }
            value => self.command("SET", [key.clone(), value_of(value)]),
        };
        if let Some(life) = life {
            self.command("PEXPIRE", [key, i64::try_from(life).unwrap().into()]);
        }
    }

    fn run(&self, call: &Call) -> Reply {
        reply(&self.eval(call))
    }

    fn stored(&self, check: &Check) -> (Reply, i64) {
        let key = || Value::from(check.key.as_bytes());
        let is_list = self.command("TYPE", [key()]).as_str().as_deref() == Some("list");
        let value = if is_list {
            self.command("LRANGE", [key(), 0.into(), (-1).into()])
        } else {
            self.command("GET", [key()])
        };
        (reply(&value), self.command("PTTL", [key()]).as_i64().unwrap())
    }
}

fn values() -> impl Strategy<Value = String> {
    let near = |unit: u64| (0..=30_u64).prop_map(move |more| (START / unit + more).to_string());
    let odd: &'static [&str] = &[
        "",
        "0",
        "00",
        "007",
        "-1",
        "+5",
        "1e3",
        "nan",
        "inf",
        "0x10",
        "1.5",
        ":",
        "1:",
        ":1",
        "1:2:3:4",
        "9007199254740991",
        "9007199254740992",
        "9223372036854775807",
        "4503599627370495",
        "180000000000000:",
        "0x66517289880000",
        "nan(abcdefghijk)",
        "1:9007199254740992",
        "1800000000000000:5:1",
        "1800000000000000:5:0",
        "1800000000000000:5:35184372088832",
    ];
    let parts = move |count: usize| {
        let part = prop_oneof![near(1), near(MINUTE), "[0-9]{1,17}"];
        prop::collection::vec(part, count).prop_map(|parts| parts.join(":"))
    };
    prop_oneof![
        4 => prop::sample::select(odd).prop_map(|it: &str| it.to_owned()),
        2 => near(1),
        2 => "[0-9]{1,19}",
        3 => (1..=3_usize).prop_flat_map(parts),
        1 => "[ -~]{0,20}",
        // As many digits as a current time, and less than it as a text.
        2 => "1[0-6][0-9a-z. :+-]{14}",
    ]
}

fn charges() -> impl Strategy<Value = Charge> {
    prop_oneof![
        // The most frequent charge.
        3 => Just(Charge::IfAllowed(1)),
        1 => Just(Charge::Always { hits: 3, needs: 1 }),
        1 => Just(Charge::IfAllowed(0)),
        1 => Just(Charge::Refund { hits: 1, receipt: None }),
    ]
}

/// The answers of core and the new state: of a counter with this value if it is a valid state, or of an unused counter.
fn expected(check: &Check, value: &Reply) -> (Answers, State) {
    let state = state_of(&check.limit, value);
    let mut states = [state.unwrap_or_else(|| State::new(check.limit.algorithm()))];
    let now = Time::from_micros(START);
    let checks = [check.clone()];
    let answers = settle_states(&checks, &[Some(0)], &mut states, now, StoreError::Full);
    let [state] = states;
    (answers, state)
}

fn one_value(
    subject: &impl Subject,
    algorithm: Algorithm,
    charge: Charge,
    value: &str,
) -> Result<(), TestCaseError> {
    let (check, value) = (hit(algorithm, charge), text(value));
    subject.put(&check, &value, Some(LIFETIME));
    let call = call(&check);
    let reply = subject.run(&call);
    let replied = call.decode(&reply).unwrap();
    let (answers, state) = expected(&check, &value);
    let is_unusable = state_of(&check.limit, &value).is_none();
    prop_assert_eq!(&replied.answers, &answers);
    prop_assert_eq!(replied.unusable.len(), usize::from(is_unusable), "{:?}", replied.unusable);
    if answers[0].unwrap().charged > 0 {
        let (stored, left) = subject.stored(&check);
        prop_assert_eq!(state_of(&check.limit, &stored), Some(state));
        prop_assert!(left > 0, "lives for {left} ms");
    }
    Ok(())
}

/// All algorithms but the log, whose values are not strings.
fn string_algorithms() -> impl Strategy<Value = Algorithm> {
    let log = Algorithm::SlidingWindowLog;
    let texts: Vec<_> = Algorithm::ALL.into_iter().filter(|it| *it != log).collect();
    prop::sample::select(texts)
}

proptest! {
    #![proptest_config(cases::at_least(4_000))]

    #[test]
    fn any_value_is_a_state_or_replaced_in_lua(
        algorithm in string_algorithms(),
        charge in charges(),
        value in values(),
    ) {
        LUA.with_borrow(|fake| one_value(fake, algorithm, charge, &value))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..cases::at_least(1_000) })]

    #[test]
    fn any_value_is_a_state_or_replaced_in_redis(
        algorithm in string_algorithms(),
        charge in charges(),
        value in values(),
    ) {
        REDIS.with_borrow(|redis| one_value(redis, algorithm, charge, &value))?;
    }
}

thread_local! {
    static LUA: RefCell<EmbeddedRedis> = RefCell::new(EmbeddedRedis::new());
    static REDIS: RefCell<Redis> = RefCell::new(Redis::start());
}

/// Asserts that a hit is allowed as if the counter were unused, that the value is reported as unusable, and that it is
/// replaced by one that expires.
fn assert_replaced(subject: &impl Subject, algorithm: Algorithm, value: &Reply, life: Option<u64>) {
    let check = hit(algorithm, Charge::IfAllowed(1));
    subject.put(&check, value, life);
    let call = call(&check);
    let reply = subject.run(&call);
    let replied = call.decode(&reply).unwrap();
    let decision = replied.answers[0].unwrap();
    assert_eq!((decision.allowed, decision.remaining), (true, 9), "{algorithm:?} {value:?}");
    assert_eq!(replied.unusable, [check.key.as_bytes()], "{algorithm:?} {value:?}");
    let (stored, left) = subject.stored(&check);
    let expected = expected(&check, &Reply::Nil).1;
    assert_eq!(state_of(&check.limit, &stored), Some(expected), "{algorithm:?} {value:?}");
    assert!((1..=120_001).contains(&left), "{algorithm:?} {value:?}: lives for {left} ms");
}

#[test]
fn the_largest_integer_without_expiry_is_replaced() {
    for algorithm in Algorithm::ALL {
        let value = text("9223372036854775807");
        assert_replaced(&EmbeddedRedis::new(), algorithm, &value, None);
        REDIS.with_borrow(|redis| assert_replaced(redis, algorithm, &value, None));
    }
}

#[test]
fn an_invalid_log_is_replaced() {
    let now = START.to_string();
    let later = (1_u64 << 52).to_string();
    let values = [
        text("of another type"),
        list(&["0"; 2]),
        list(&["x"]),
        list(&["0", &now, "x"]),
        list(&["5", &now, "4"]),
        list(&["0", &now, "10001"]),
        list(&["0", &later, "1"]),
        list(&["0", "-1", "1"]),
        list(&["0"; 20_003]),
    ];
    for value in &values {
        assert_replaced(&EmbeddedRedis::new(), Algorithm::SlidingWindowLog, value, Some(LIFETIME));
        REDIS.with_borrow(|redis| {
            assert_replaced(redis, Algorithm::SlidingWindowLog, value, Some(LIFETIME));
        });
    }
}

#[test]
fn a_log_with_an_invalid_entry_is_removed() {
    // Two expired entries, an invalid one, and current ones: the search for the first current entry meets the invalid
    // one.
    let at = |ago: u64| (START - ago).to_string();
    let elements =
        ["0", &at(3 * MINUTE), "1", &at(2 * MINUTE), "2", "x", "y", &at(2), "9", &at(1), "12"];
    let subject = EmbeddedRedis::new();
    let check = hit(Algorithm::SlidingWindowLog, Charge::IfAllowed(1));
    subject.put(&check, &list(&elements), Some(LIFETIME));
    let asked = call(&check);
    let reply = subject.run(&asked);
    assert_eq!(asked.decode(&reply).unwrap().unusable, [check.key.as_bytes()]);
    assert_eq!(subject.stored(&check).0, Reply::Nil);
}

/// Used up or beyond the limit, or of another time: without an expiry, these values would refuse without end.
#[test]
fn values_that_would_refuse_without_end_must_expire() {
    let ahead = START + 1000 * MINUTE;
    for (algorithm, value) in [
        (Algorithm::FixedWindow, format!("{}", ahead + 10)),
        (Algorithm::SlidingWindowCounter, format!("{}:0:10", ahead / MINUTE)),
        (Algorithm::TokenBucket, format!("{START}:9007199254740991:1")),
        (Algorithm::Gcra, format!("{ahead}")),
    ] {
        REDIS.with_borrow(|redis| {
            assert_replaced(redis, algorithm, &text(&value), None);
            // Usage beyond the limit is valid if the key expires: it may come from debits.
            let check = hit(algorithm, Charge::IfAllowed(1));
            redis.put(&check, &text(&value), Some(LIFETIME));
            let call = call(&check);
            let reply = redis.run(&call);
            let replied = call.decode(&reply).unwrap();
            assert!(!replied.answers[0].unwrap().allowed, "{algorithm:?}");
            assert!(replied.unusable.is_empty(), "{algorithm:?}");
        });
    }
}

#[test]
fn a_used_up_counter_without_expiry_gets_one() {
    REDIS.with_borrow(|redis| {
        for algorithm in [Algorithm::SlidingWindowLog, Algorithm::TokenBucket, Algorithm::Gcra] {
            let all = hit(algorithm, Charge::IfAllowed(10));
            redis.command("DEL", [Value::from(all.key.as_bytes())]);
            redis.run(&call(&all));
            redis.command("PERSIST", [Value::from(all.key.as_bytes())]);
            let one = call(&hit(algorithm, Charge::IfAllowed(1)));
            let reply = redis.run(&one);
            let replied = one.decode(&reply).unwrap();
            assert!(!replied.answers[0].unwrap().allowed, "{algorithm:?}");
            assert!(replied.unusable.is_empty(), "{algorithm:?}");
            let left = redis.stored(&all).1;
            assert!((1..=60_000).contains(&left), "{algorithm:?}: lives for {left} ms");
        }
    });
}
