//! Tests that limits are exact for any number of callers and replicas.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use clap::Parser;
use sluicegate::{
    app::App,
    settings::{Cli, Command},
};
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, rate_limit_response::Code,
};
use sluicegate_store::{Clock, ClockTimes, Clocks, SystemClock};
use sluicegate_tests::{
    Asked, Cluster, Fleet, Load, Redis, Setup, Sluicegate, chain, hit, long_windows, request, until,
};

use sluicegate_tests::tools;

pub(crate) const ALGORITHMS: [&str; 5] =
    ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket", "gcra"];

/// A deadline long enough for a busy machine, so that no failure policy answers.
pub(crate) const PATIENT: [&str; 2] = ["--decision-timeout", "5s"];

/// Four servers with this store.
async fn fleet(limits: &str, store: &str, flags: &[&str]) -> Fleet {
    Fleet::start(4, limits, &[&PATIENT, &["--store", store], flags].concat()).await
}

/// A limit of each algorithm, with the algorithm's name as key.
pub(crate) fn limits_of_all(limit: &str) -> String {
    let rule = |algorithm| {
        format!("  - key: {algorithm}\n    rate_limit: {{algorithm: {algorithm}, {limit}}}\n")
    };
    let rules = ALGORITHMS.map(rule).concat();
    long_windows(&format!("domain: api\non_failure: deny\ndescriptors:\n{rules}"))
}

fn hits_on_all() -> Vec<RateLimitRequest> {
    ALGORITHMS.iter().map(|algorithm| hit(algorithm, "hot")).collect()
}

/// Asserts that the store decided every request, and that no refund is pending or failed.
async fn assert_all_counted(fleet: &Fleet, asked: &[Asked]) {
    let failed: Vec<_> = asked.iter().filter(|asked| asked.answer.is_err()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    for source in ["local", "policy"] {
        let labels = [("source", source)];
        assert_eq!(fleet.sum("sluicegate_decisions_total", &labels).await, 0.0, "{source}");
    }
    assert_eq!(fleet.hits_unknown().await, 0.0);
}

fn admitted(asked: &[Asked], request: usize) -> Vec<Asked> {
    let of_request = asked.iter().filter(|asked| asked.request == request && asked.is_admitted());
    of_request.copied().collect()
}

// === Limits that do not refill while a test runs ===

async fn long_limits_are_exact(store: &str) {
    const LIMIT: usize = 300;
    let limits = limits_of_all(&format!("unit: day, requests_per_unit: {LIMIT}"));
    let fleet = fleet(&limits, store, &[]).await;
    let load = fleet.load(300, Duration::ZERO, hits_on_all()).await;
    load.admits(LIMIT * ALGORITHMS.len()).await;
    load.refuses(2_000).await;
    let asked = load.stop().await;
    assert_all_counted(&fleet, &asked).await;
    // In a long window, a bucket refills one hit in more than a day.
    for (request, algorithm) in ALGORITHMS.iter().enumerate() {
        assert_eq!(admitted(&asked, request).len(), LIMIT, "{algorithm}");
    }
}

#[tokio::test]
async fn long_limits_are_exact_on_one_redis() {
    long_limits_are_exact(&Redis::start().await.url()).await;
}

#[tokio::test]
async fn long_limits_are_exact_on_a_cluster() {
    long_limits_are_exact(&Cluster::start().await.url()).await;
}

#[tokio::test]
async fn long_limits_are_exact_on_valkey() {
    let valkey = Setup::new().binary(tools::valkey()).start().await;
    long_limits_are_exact(&valkey.url()).await;
}

// === Chains ===

const TENANT: usize = 400;
const USER: usize = 150;
const ROUTE: usize = 60;

fn chain_limits() -> String {
    let limit = |algorithm, limit| {
        format!("rate_limit: {{algorithm: {algorithm}, unit: day, requests_per_unit: {limit}}}")
    };
    format!(
        "
domain: api
tenant: tenant
descriptors:
  - key: tenant
    {}
    descriptors:
      - key: user
        {}
        descriptors:
          - key: route
            {}
",
        limit("fixed_window", TENANT),
        limit("sliding_window_log", USER),
        limit("sliding_window_counter", ROUTE),
    )
}

async fn a_refused_chain_charges_nothing(store: &str) {
    // Tenant, users, routes of each user, and used up routes.
    let tenants = [("acme", 4, 2, TENANT), ("beta", 1, 2, 2 * ROUTE), ("gamma", 1, 4, USER)];
    let mut chains = Vec::new();
    for (tenant, users, routes, _) in tenants {
        for user in 0..users {
            for route in 0..routes {
                let (user, route) = (format!("user{user}"), format!("route{route}"));
                chains.push([("tenant", tenant.to_owned()), ("user", user), ("route", route)]);
            }
        }
    }
    // Otherwise refusals would come from the deny cache, without a call to the slots.
    let fleet = fleet(&chain_limits(), store, &["--deny-cache-entries", "0"]).await;
    let requests = chains.iter().map(|entries| chain(entries)).collect();
    let load = fleet.load(200, Duration::ZERO, requests).await;
    load.admits(tenants.iter().map(|(.., total)| total).sum()).await;
    load.refuses(1_000).await;
    let asked = load.stop().await;
    assert_all_counted(&fleet, &asked).await;
    for (tenant, _, _, total) in tenants {
        let of_tenant = asked.iter().filter(|it| chains[it.request][0].1 == tenant);
        assert_eq!(of_tenant.filter(|it| it.is_admitted()).count(), total, "{tenant}");
    }
    for entries in &chains {
        for (length, limit) in [(1, TENANT), (2, USER), (3, ROUTE)] {
            let prefix = &entries[..length];
            let used = asked
                .iter()
                .filter(|it| it.is_admitted() && chains[it.request].starts_with(prefix))
                .count();
            let prefix: Vec<_> = prefix.iter().map(|(key, value)| (*key, value.as_str())).collect();
            assert_eq!(fleet.remaining(&prefix).await, limit - used, "{prefix:?}");
        }
    }
}

#[tokio::test]
async fn a_refused_chain_charges_nothing_on_one_redis() {
    a_refused_chain_charges_nothing(&Redis::start().await.url()).await;
}

#[tokio::test]
async fn a_refused_chain_charges_nothing_on_a_cluster() {
    a_refused_chain_charges_nothing(&Cluster::start().await.url()).await;
}

#[tokio::test]
async fn charges_of_a_slot_are_refunded_when_another_refuses() {
    const SHARED: usize = 100;
    const OWN: usize = 40;
    let cluster = Cluster::start().await;
    let limits = format!(
        "
domain: api
descriptors:
  - key: shared
    rate_limit: {{unit: day, requests_per_unit: {SHARED}}}
  - key: own
    rate_limit: {{unit: day, requests_per_unit: {OWN}}}
"
    );
    let owners = ["a", "b", "c", "d"];
    let requests: Vec<_> =
        owners.iter().map(|owner| request(&[&[("shared", "x")], &[("own", owner)]])).collect();
    let fleet = fleet(&limits, &cluster.url(), &["--deny-cache-entries", "0"]).await;
    let load = fleet.load(200, Duration::ZERO, requests.clone()).await;
    load.refuses(2_000).await;
    let asked = load.stop().await;
    // By hash tag: an owner whose requests were all refused has no key.
    let mut slots = BTreeSet::from([cluster.slot("{api:shared=x}").await]);
    for owner in owners {
        slots.insert(cluster.slot(&format!("{{api:own={owner}}}")).await);
    }
    assert_eq!(slots.len(), 1 + owners.len());
    assert_all_counted(&fleet, &asked).await;
    let mut of_owners = [0, 1, 2, 3].map(|request| admitted(&asked, request).len());
    let all: usize = of_owners.iter().sum();
    assert!(all <= SHARED && of_owners.iter().all(|&own| own <= OWN), "{of_owners:?}");
    let until_refunded = async |all: usize| {
        until("refunds to be made", || async {
            (fleet.remaining(&[("shared", "x")]).await == SHARED - all).then_some(())
        })
        .await;
    };
    until_refunded(all).await;
    for (owner, used) in owners.iter().zip(of_owners) {
        assert_eq!(fleet.remaining(&[("own", owner)]).await, OWN - used, "{owner}");
    }
    // Hits that no other caller requests concurrently are admitted up to the limit.
    for (at, request) in requests.iter().enumerate() {
        while fleet.servers[0].should_rate_limit(request.clone()).await.unwrap().overall_code()
            == Code::Ok
        {
            of_owners[at] += 1;
        }
        until_refunded(of_owners.iter().sum()).await;
    }
    assert_eq!(of_owners.iter().sum::<usize>(), SHARED);
    assert!(of_owners.iter().all(|&own| own <= OWN), "{of_owners:?}");
}

// === Limits that refill ===

const PER_WINDOW: usize = 40;
const WINDOW: Duration = Duration::from_secs(2);

fn short_limits() -> String {
    limits_of_all(&format!("window: {}s, requests_per_unit: {PER_WINDOW}", WINDOW.as_secs()))
}

/// Waits for a few refills, and compares the admitted hits of each algorithm with its bound.
async fn assert_bounds_hold(load: Load) {
    tokio::time::sleep(WINDOW * 4).await;
    let asked = load.stop().await;
    let failed: Vec<_> = asked.iter().filter(|asked| asked.answer.is_err()).collect();
    assert!(failed.is_empty(), "{failed:?}");
    let [fixed, log, counter, bucket, gcra] = [0, 1, 2, 3, 4].map(|it| admitted(&asked, it));
    assert!(most_in_aligned_window(&fixed) <= PER_WINDOW, "{fixed:?}");
    assert!(most_in_any_window(&log) <= PER_WINDOW, "{log:?}");
    assert!(most_in_aligned_window(&counter) <= PER_WINDOW, "{counter:?}");
    assert!(most_in_any_window(&counter) < 2 * PER_WINDOW, "{counter:?}");
    for hits in [&bucket, &gcra] {
        assert_bucket_holds(hits);
    }
    // Otherwise a limiter that refuses everything would pass.
    for (algorithm, hits) in ALGORITHMS.iter().zip([&fixed, &log, &counter, &bucket, &gcra]) {
        assert!(hits.len() >= 2 * PER_WINDOW, "{algorithm}: {}", hits.len());
    }
}

/// Maximum of the hits that were certainly counted in one aligned window.
fn most_in_aligned_window(hits: &[Asked]) -> usize {
    let window = |time: Duration| time.as_secs() / WINDOW.as_secs();
    let certain = |start: &Asked| {
        let inside = |hit: &&Asked| [hit.sent, hit.received].map(window) == [window(start.sent); 2];
        hits.iter().filter(inside).count()
    };
    hits.iter().map(certain).max().unwrap_or(0)
}

/// Maximum of the hits that were certainly counted in any span of one window. Redis counts microseconds.
fn most_in_any_window(hits: &[Asked]) -> usize {
    let certain = |start: Duration| {
        let end = start + WINDOW - Duration::from_micros(1);
        hits.iter().filter(|hit| hit.sent >= start && hit.received < end).count()
    };
    hits.iter().map(|hit| certain(hit.sent)).max().unwrap_or(0)
}

/// Asserts that no span has more hits than a full bucket and the refill of the span.
fn assert_bucket_holds(hits: &[Asked]) {
    for start in hits {
        let mut ends: Vec<_> =
            hits.iter().filter(|hit| hit.sent >= start.sent).map(|hit| hit.received).collect();
        ends.sort_unstable();
        for (inside, end) in (1_u32..).zip(ends) {
            let interval = WINDOW.as_secs_f64() / f64::from(u32::try_from(PER_WINDOW).unwrap());
            let refilled = ((end - start.sent).as_secs_f64() / interval).ceil();
            let bound = f64::from(u32::try_from(PER_WINDOW).unwrap()) + refilled;
            assert!(f64::from(inside) <= bound, "{inside} since {:?} of {hits:?}", start.sent);
        }
    }
}

async fn short_limits_hold_in_every_window(store: &str) {
    let fleet = fleet(&short_limits(), store, &[]).await;
    assert_bounds_hold(fleet.load(200, Duration::ZERO, hits_on_all()).await).await;
    assert_eq!(fleet.hits_unknown().await, 0.0);
}

#[tokio::test]
async fn short_limits_hold_in_every_window_on_one_redis() {
    short_limits_hold_in_every_window(&Redis::start().await.url()).await;
}

#[tokio::test]
async fn short_limits_hold_in_every_window_on_a_cluster() {
    short_limits_hold_in_every_window(&Cluster::start().await.url()).await;
}

/// A clock that is ahead by this duration.
#[derive(Debug)]
pub(crate) struct Ahead(pub(crate) Duration, pub(crate) SystemClock);

impl Clock for Ahead {
    fn read(&self) -> ClockTimes {
        let ClockTimes { wall, steady } = self.1.read();
        let [wall, steady] = [wall, steady].map(|time| time.after(self.0));
        ClockTimes { wall, steady }
    }
}

/// Starts a server in this process, because no flag of the shipped program sets its clock.
pub(crate) async fn start_with_clocks(
    limits: &str,
    flags: &[&str],
    clocks: Clocks,
) -> (App, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.yaml");
    std::fs::write(&file, limits).unwrap();
    let own = ["sluicegate", "serve", "--limits", file.to_str().unwrap()];
    let free =
        ["--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--admin-listen", "off"];
    let arguments = [&own[..], &free, &["--drain-delay", "0s"], flags].concat();
    let Command::Serve(settings) = Cli::try_parse_from(arguments).unwrap().command else {
        panic!("no settings of serve")
    };
    (App::start(&settings, clocks).await.unwrap(), folder)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_is_wrong_admits_no_more() {
    let redis = Redis::start().await;
    let store = redis.url();
    let flags = [&PATIENT[..], &["--store", &store]].concat();
    let clock = Ahead(Duration::from_secs(10), SystemClock::default());
    let clocks = Clocks { memory: Arc::new(clock), redis: None };
    let (ahead, _folder) = start_with_clocks(&short_limits(), &flags, clocks).await;
    let right = Sluicegate::start(&short_limits(), &flags).await;
    let addresses = [ahead.grpc_address().to_string(), right.grpc.clone()];
    let load = Load::start(&addresses, 100, Duration::ZERO, hits_on_all()).await;
    assert_bounds_hold(load).await;
    ahead.drain_and_stop().await;
}
