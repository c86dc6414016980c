//! Commands that the scripts send to Redis, and the keys that they write.

use sluicegate_core::{Algorithm, Charge, Check, Limit, Time, Window, store::RefusalScope};
use sluicegate_simulation::embedded::EmbeddedRedis;
use sluicegate_store::redis::Call;

use crate::{equivalence::check, server::Redis};

const START: u64 = 1_800_000_000_000_000;
const SECOND: u64 = 1_000_000;

fn limit(algorithm: Algorithm, requests: u32) -> Limit {
    Limit::new(algorithm, requests, Window::from_seconds(60).unwrap(), None).unwrap()
}

fn call(checks: &[Check], micros: u64) -> Call {
    Call::new(b"", [checks], Some(Time::from_micros(micros)))
}

/// The Redis commands of a call at this time.
fn commands(fake: &EmbeddedRedis, checks: &[Check], micros: u64) -> Vec<String> {
    fake.eval(&call(checks, micros), Time::from_micros(micros)).unwrap();
    fake.data.borrow().commands.clone()
}

fn writes(commands: &[String]) -> Vec<&str> {
    let reads = ["TIME", "MGET", "LLEN", "LRANGE", "PTTL"];
    commands.iter().map(String::as_str).filter(|name| !reads.contains(name)).collect()
}

#[test]
fn refusals_and_peeks_write_nothing() {
    for algorithm in Algorithm::ALL {
        let fake = EmbeddedRedis::new();
        let (wide, narrow) = (limit(algorithm, 10), limit(algorithm, 1));
        let chain = [
            check("wide", wide, Charge::IfAllowed(1), 0, RefusalScope::Request),
            check("narrow", narrow, Charge::IfAllowed(1), 1, RefusalScope::Request),
        ];
        assert!(!writes(&commands(&fake, &chain, START)).is_empty());
        let refused = commands(&fake, &chain, START + 1);
        assert!(writes(&refused).is_empty(), "{algorithm:?}: {refused:?}");
        let peek = [check("wide", wide, Charge::IfAllowed(0), 0, RefusalScope::Request)];
        assert!(writes(&commands(&fake, &peek, START + 2)).is_empty(), "{algorithm:?}");
        let refund = Charge::Refund { hits: 1, receipt: None };
        let refund = [check("absent", wide, refund, 0, RefusalScope::None)];
        assert!(writes(&commands(&fake, &refund, START + 3)).is_empty(), "{algorithm:?}");
    }
}

#[test]
fn plain_groups_cost_one_read_and_one_write_per_counter() {
    let fake = EmbeddedRedis::new();
    let counts = |names: &[&str], micros: u64| {
        let checks: Vec<_> = names
            .iter()
            .map(|name| {
                let (minute, hits) = (limit(Algorithm::FixedWindow, 10), Charge::IfAllowed(1));
                [check(name, minute, hits, 0, RefusalScope::Request)]
            })
            .collect();
        let now = Time::from_micros(micros);
        fake.eval(&Call::new(b"", &checks, Some(now)), now).unwrap();
        fake.data.borrow().commands.clone()
    };
    assert_eq!(counts(&["a", "b"], START), ["MGET", "SET", "SET"]);
    assert_eq!(counts(&["a", "b", "c"], START + SECOND), ["MGET", "INCR", "INCR", "SET"]);
    // A second check of the same counter costs another INCR.
    assert_eq!(counts(&["a", "a", "b"], START + SECOND), ["MGET", "INCR", "INCR", "INCR"]);
    // In the last millisecond before it expires, its count is of an earlier window.
    assert_eq!(counts(&["a"], START + 60 * SECOND), ["MGET", "INCR", "SET"]);
    assert_eq!(counts(&["a"], START + 61 * SECOND), ["MGET", "INCR"]);
}

#[test]
fn a_log_needs_the_same_commands_at_any_length() {
    let asked = |held: u32| {
        let fake = EmbeddedRedis::new();
        let log = |take, requests| {
            let log = limit(Algorithm::SlidingWindowLog, requests);
            [check("log", log, take, 0, RefusalScope::Request)]
        };
        for hit in 0..held {
            commands(&fake, &log(Charge::IfAllowed(1), 10_000), START + u64::from(hit));
        }
        let later = START + u64::from(held);
        let refused = commands(&fake, &log(Charge::IfAllowed(1), held), later).len();
        let admitted = commands(&fake, &log(Charge::IfAllowed(1), 10_000), later + 1).len();
        let expired =
            commands(&fake, &log(Charge::IfAllowed(1), 10_000), START + 60 * SECOND).len();
        [refused, admitted, expired]
    };
    assert_eq!(asked(10), asked(2_000));
}

#[test]
fn every_key_expires_and_small_states_are_integers() {
    let redis = Redis::start();
    for algorithm in Algorithm::ALL {
        let one =
            check("one", limit(algorithm, 10), Charge::IfAllowed(1), 0, RefusalScope::Request);
        // The time of Redis.
        redis.eval(&Call::new(b"", [[&one]], None));
        let key = String::from_utf8(one.key.as_bytes().to_vec()).unwrap();
        let left = redis.command("PTTL", [key.as_str()]).as_i64().unwrap();
        let longest = if algorithm == Algorithm::SlidingWindowCounter { 120_000 } else { 60_000 };
        assert!((1..=longest).contains(&left), "{algorithm:?}: {left} ms");
        let encoding = redis.command("OBJECT", ["ENCODING", &key]).as_string().unwrap();
        let expected = match algorithm {
            Algorithm::SlidingWindowLog => ["listpack", "quicklist"].as_slice(),
            Algorithm::TokenBucket => &["embstr"],
            _ => &["int"],
        };
        assert!(expected.contains(&encoding.as_str()), "{algorithm:?}: {encoding}");
    }
    assert_eq!(redis.command("DBSIZE", [] as [&str; 0]).as_i64(), Some(5));
}
