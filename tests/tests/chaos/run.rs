//! The chaos test.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    sync::Arc,
    time::{Duration, SystemTime},
};

use fastrand::Rng;
use futures::{StreamExt as _, future::join_all, stream};
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_tests::{Cluster, Sluicegate};

use crate::{
    faults,
    record::{Asked, Outcome, Record},
    replicas::{Callable, Callee, Replicas, reader},
    schedule::{NODE_TIMEOUT, Schedule},
    traffic::{Counter, Request, SPAN_MAX},
    verdict::Verdict,
};

/// Default of `CHAOS_SECONDS`.
const SECONDS: u64 = 60;

/// Maximum additional time for starting, settling and reading.
const MARGIN: Duration = Duration::from_secs(180);

/// Number of callers, and maximum number of requests that each sends before a pause of `REST` milliseconds: some
/// hundreds per second in total.
const CALLERS: usize = 12;
const BURST_MAX: usize = 6;
const REST: std::ops::Range<u64> = 50..200;

/// Interval between two readings of all counters.
const READING_INTERVAL: Duration = Duration::from_secs(2);
const READINGS_MAX: usize = 30;
const READ_AT_ONCE: usize = 8;

/// The number in an environment variable.
fn variable(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// Days since 1970, so that each day has its own seed.
fn today() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 86_400
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_limit_is_exceeded_and_no_hit_lost_under_faults() {
    let seed = variable("CHAOS_SEED").unwrap_or_else(today);
    let seconds = variable("CHAOS_SECONDS").unwrap_or(SECONDS);
    println!("CHAOS_SEED={seed} CHAOS_SECONDS={seconds}");
    let span = Duration::from_secs(seconds);
    assert!(span + MARGIN <= SPAN_MAX, "limits would refill during the run");
    let mut cluster = Cluster::start().await;
    for node in &cluster.nodes {
        let timeout = NODE_TIMEOUT.as_millis().to_string();
        node.query(&["CONFIG", "SET", "cluster-node-timeout", &timeout]).await;
    }
    let mut replicas = Replicas::start(&cluster.url()).await;
    let mut random = Rng::with_seed(seed);
    let schedule = Schedule::new(random.fork(), span);
    let record = Record::start();
    let callers: Vec<_> =
        (0..CALLERS).map(|_| call(replicas.callable(), random.fork(), span, &record)).collect();
    tokio::join!(
        join_all(callers),
        faults::of_redis(&mut cluster, schedule.redis, span, &record),
        faults::of_replicas(&mut replicas, schedule.replicas, span, &record),
    );
    faults::assert_none_failed(&cluster);
    let entries = record.entries();
    let counters = entries.asked.iter().flat_map(|asked| asked.request.counters.clone());
    let (charged, unknown) = settled(&cluster, &replicas, &record, counters.collect()).await;
    let verdict = Verdict::new(&entries, &charged, unknown);
    let requests = |outcome: fn(&Outcome) -> bool| {
        entries.asked.iter().filter(|asked| outcome(&asked.outcome)).count()
    };
    let (admitted, refused) = (
        requests(|it| matches!(it, Outcome::Admitted)),
        requests(|it| matches!(it, Outcome::Refused)),
    );
    println!(
        "{} requests, of which {admitted} were admitted, {refused} refused; {} callers disconnected; {} replicas were killed; \
         {} events\n{verdict}",
        entries.asked.len(),
        requests(|it| matches!(it, Outcome::Left)),
        entries.killed.len(),
        entries.events.len(),
    );
    let findings = verdict.findings();
    assert!(findings.is_empty(), "{findings:#?}\n{}\n{verdict}", verdict.histories(&entries));
    replicas.assert_sound().await;
    faults::assert_none_failed(&cluster);
    // Without faults and refusals, the sums would prove nothing.
    let spent = verdict.sums().filter(|(counter, sum)| sum.admitted >= counter.limit() / 2).count();
    assert!(admitted > 0 && refused > 0 && spent > 0 && !entries.events.is_empty());
}

/// Sends requests to random replicas until the end of the run.
async fn call(callable: Arc<Callable>, mut random: Rng, span: Duration, record: &Record) {
    while record.now() < span {
        if let Some(callee) = callable.pick(&mut random) {
            let equal = random.bool().then(|| Request::random(&mut random, record.now()));
            let burst = random.usize(1..=BURST_MAX);
            // Equal requests that wait for the store together are merged.
            let requests = (0..burst).map(|_| {
                equal.clone().unwrap_or_else(|| Request::random(&mut random, record.now()))
            });
            join_all(requests.map(|request| ask(&callee, request, record))).await;
        }
        tokio::time::sleep(Duration::from_millis(random.u64(REST))).await;
    }
}

async fn ask(callee: &Callee, request: Request, record: &Record) {
    let mut client = callee.client.clone();
    let sent = record.now();
    let answer = async {
        match client.should_rate_limit(request.to_wire()).await {
            Ok(answer) if answer.get_ref().overall_code() == Code::Ok => Outcome::Admitted,
            Ok(_) => Outcome::Refused,
            Err(status) => Outcome::Failed(status.code()),
        }
    };
    let outcome = match request.disconnects_after {
        Some(timeout) => tokio::time::timeout(timeout, answer).await.unwrap_or(Outcome::Left),
        None => answer.await,
    };
    let asked = Asked { life: callee.life, request, sent, ended: record.now(), outcome };
    record.note(|entries| entries.asked.push(asked));
}

/// Waits until the counters no longer change. Returns the charged hits of each counter, and the unknown hits.
async fn settled(
    cluster: &Cluster,
    replicas: &Replicas,
    record: &Record,
    counters: BTreeSet<Counter>,
) -> (BTreeMap<Counter, u64>, u64) {
    let reader = reader(&cluster.url()).await;
    replicas.until_settled(record).await;
    let mut before = None;
    for _ in 0..READINGS_MAX {
        let charged = stream::iter(&counters).map(|counter| charged(&reader, counter));
        let charged = charged.buffer_unordered(READ_AT_ONCE).collect::<BTreeMap<_, _>>().await;
        let read = (charged, replicas.unknown().await);
        // Answers of a failure policy do not show the counters.
        let by_policy = reader.sum("sluicegate_decisions_total", &[("source", "policy")]).await;
        assert_eq!(by_policy, 0.0);
        if before.as_ref() == Some(&read) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a count"
            )]
            return (read.0, read.1 as u64);
        }
        before = Some(read);
        tokio::time::sleep(READING_INTERVAL).await;
    }
    panic!("the counters keep changing");
}

/// A counter and its charged hits.
async fn charged(reader: &Sluicegate, counter: &Counter) -> (Counter, u64) {
    let answer = reader.should_rate_limit(counter.request(0)).await.unwrap();
    let status = &answer.statuses[0];
    let limit = status.current_limit.as_ref().unwrap().requests_per_unit;
    assert_eq!(u64::from(limit), counter.limit(), "{counter}");
    (counter.clone(), u64::from(limit - status.limit_remaining))
}
