//! The limits and the requests.
//!
//! A few values of each key are hot at a time, and they change over time: so counters reach their limits throughout the
//! run, and a longer run has more counters instead of fuller ones.

use std::{collections::BTreeSet, fmt, time::Duration};

use fastrand::Rng;
use sluicegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use sluicegate_tests::{long_window, request};

/// Number of hot values of a key, and interval at which the oldest is replaced.
const HOT: u64 = 3;
const TURN: Duration = Duration::from_secs(5);

/// Maximum hits of one request.
const HITS_MAX: u64 = 20;

/// Maximum duration of a run: with a [long window](long_window) no limit refills a whole hit in this time, so that sums
/// are exact for all algorithms.
pub(crate) const SPAN_MAX: Duration = Duration::from_secs(3_600);

/// Keys with a limit that their counters reach, and keys with one that they do not reach.
const KEYS: [(&str, &str, u64); 10] = [
    ("narrow_window", "fixed_window", 30),
    ("narrow_log", "sliding_window_log", 30),
    ("narrow_counter", "sliding_window_counter", 30),
    ("narrow_bucket", "token_bucket", 30),
    ("narrow_gcra", "gcra", 30),
    ("wide_window", "fixed_window", 5_000),
    ("wide_log", "sliding_window_log", 5_000),
    ("wide_counter", "sliding_window_counter", 5_000),
    ("wide_bucket", "token_bucket", 5_000),
    ("wide_gcra", "gcra", 5_000),
];

/// Keys below a tenant: all counters of a tenant are on one slot.
const TENANT: (&str, u64) = ("fixed_window", 5_000);
const OF_TENANT: [(&str, &str, u64); 2] = [("user", "sliding_window_log", 60), ("app", "gcra", 60)];
const ROUTES: [(&str, &str, u64); 2] =
    [("bucket_route", "token_bucket", 15), ("counter_route", "sliding_window_counter", 15)];

/// The limits file.
pub(crate) fn limits() -> String {
    let seconds = long_window().seconds();
    let rule = |indent: usize, key: &str, algorithm: &str, limit: u64| {
        let (indent, inner) = (" ".repeat(indent), " ".repeat(indent + 2));
        format!(
            "{indent}- key: {key}\n{inner}rate_limit: {{algorithm: {algorithm}, window: {seconds}s, requests_per_unit: {limit}}}\n"
        )
    };
    let mut file = "domain: api\ntenant: tenant\non_failure: deny\ndescriptors:\n".to_owned();
    for (key, algorithm, limit) in KEYS {
        file += &rule(2, key, algorithm, limit);
    }
    file += &rule(2, "tenant", TENANT.0, TENANT.1);
    file += "    descriptors:\n";
    for ((key, algorithm, limit), route) in OF_TENANT.into_iter().zip(ROUTES) {
        file += &rule(6, key, algorithm, limit);
        file += "        descriptors:\n";
        file += &rule(10, route.0, route.1, route.2);
    }
    file
}

/// A counter, identified by its descriptor. Values are numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Counter(Vec<(&'static str, u64)>);

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<_> = self.0.iter().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&entries.join(" "))
    }
}

impl Counter {
    /// Its limit.
    pub(crate) fn limit(&self) -> u64 {
        let (key, _) = self.0.last().unwrap();
        let rules = [&KEYS[..], &OF_TENANT, &ROUTES].concat();
        let rule = rules.iter().find(|(name, ..)| name == key);
        rule.map_or(TENANT.1, |(_, _, limit)| *limit)
    }

    /// A request with this number of hits on this counter only.
    pub(crate) fn request(&self, hits: u64) -> RateLimitRequest {
        to_wire(std::slice::from_ref(self), hits)
    }

    /// Its hash tag, in braces.
    pub(crate) fn tag(&self) -> String {
        match self.0.as_slice() {
            [("tenant", tenant), ..] => format!("{{{tenant}}}"),
            _ => format!("{{api:{self}}}"),
        }
    }
}

/// A request with the same number of hits on each of its counters.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) counters: Vec<Counter>,
    pub(crate) hits: u64,
    /// Time after which the caller disconnects if it has no answer.
    pub(crate) disconnects_after: Option<Duration>,
}

impl Request {
    /// A random request at this time of the run.
    pub(crate) fn random(random: &mut Rng, at: Duration) -> Self {
        let mut counters = BTreeSet::new();
        let kind = random.u8(0..10);
        // All counters on one slot.
        if kind >= 6 {
            counters.extend(chain(random, at));
        }
        // Each counter on its own slot.
        let others = match kind {
            0..=2 | 8 => 1,
            3..=4 | 9 => 2,
            5 => 3,
            _ => 0,
        };
        for _ in 0..others {
            let (key, ..) = KEYS[random.usize(..KEYS.len())];
            counters.insert(Counter(vec![(key, hot(random, at))]));
        }
        let hits = match random.u8(0..20) {
            0 => random.u64(2..=HITS_MAX),
            1..=3 => random.u64(2..=4),
            _ => 1,
        };
        let disconnects_after =
            (random.u8(0..8) == 0).then(|| Duration::from_millis(random.u64(0..=20)));
        // The order in which slots are called.
        let mut counters: Vec<_> = counters.into_iter().collect();
        random.shuffle(&mut counters);
        Self { counters, hits, disconnects_after }
    }

    /// The message to the server.
    pub(crate) fn to_wire(&self) -> RateLimitRequest {
        to_wire(&self.counters, self.hits)
    }
}

fn to_wire(counters: &[Counter], hits: u64) -> RateLimitRequest {
    let entries = |counter: &Counter| {
        counter.0.iter().map(|(key, value)| (*key, value.to_string())).collect::<Vec<_>>()
    };
    let descriptors: Vec<_> = counters.iter().map(entries).collect();
    let mut request = request(&descriptors.iter().map(Vec::as_slice).collect::<Vec<_>>());
    for descriptor in &mut request.descriptors {
        descriptor.hits_addend = Some(hits);
    }
    request
}

/// Counters of a tenant: the beginning of a chain.
fn chain(random: &mut Rng, at: Duration) -> Vec<Counter> {
    let of_tenant = random.usize(..OF_TENANT.len());
    let entries = [
        ("tenant", hot(random, at)),
        (OF_TENANT[of_tenant].0, hot(random, at)),
        (ROUTES[of_tenant].0, hot(random, at)),
    ];
    (1..=random.usize(1..=entries.len()))
        .map(|length| Counter(entries[..length].to_vec()))
        .collect()
}

/// A hot value at this time.
fn hot(random: &mut Rng, at: Duration) -> u64 {
    at.as_secs() / TURN.as_secs() + random.u64(..HOT)
}

/// Counters that no request uses, different ones for each replica.
pub(crate) fn unused_counters(replica: usize) -> impl Iterator<Item = Counter> {
    let value = u64::MAX - replica as u64;
    KEYS.into_iter().map(move |(key, ..)| Counter(vec![(key, value)]))
}

/// A hot counter at this time.
pub(crate) fn hot_counter(random: &mut Rng, at: Duration) -> Counter {
    let keys = random.usize(..KEYS.len() + OF_TENANT.len());
    let key = KEYS.get(keys).map_or("tenant", |(key, ..)| *key);
    Counter(vec![(key, hot(random, at))])
}

#[test]
fn limits_refill_less_than_one_hit_in_a_run() {
    let largest = [&KEYS[..], &OF_TENANT, &ROUTES].concat().into_iter().map(|(.., limit)| limit);
    let largest = largest.max().unwrap().max(TENANT.1);
    assert!(largest * SPAN_MAX.as_secs() < u64::from(long_window().seconds()));
}
