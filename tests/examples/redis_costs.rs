//! Measures the cost of counters in Redis, on a server of its own:
//!
//! ```sh
//! cargo run --release -p sluicegate-tests --example redis_costs
//! ```

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a program for people"
)]

use std::sync::atomic::{AtomicUsize, Ordering};

use fred::{
    clients::Client,
    interfaces::ClientLike,
    types::{
        ClusterHash, CustomCommand,
        config::{Config, Server, ServerConfig},
    },
};
use sluicegate_core::{Algorithm, Batch, Store, limit::SLIDING_LOG_HITS_MAX};
use sluicegate_store::Redis;
use sluicegate_tests::{
    self as harness,
    counter_costs::{Growth, check, connect, limit, text},
};

/// Counters of each algorithm.
const COUNTERS: usize = 200_000;

/// Number of hits in a log during its checks.
const HELD: [u32; 3] = [10, 1_000, 9_900];

/// Number of logs, and of timed checks of each.
const LOGS: usize = 20;
const ROUNDS: usize = 100;

/// A log in the usual form: a sorted set with the time of each hit.
const SORTED_SET: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[1])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then
    return 0
end
redis.call('ZADD', KEYS[1], now, string.format('%.0f', now) .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1] / 1000)
return 1
";

#[tokio::main]
async fn main() {
    println!(
        "{COUNTERS} counters, keys like {}\n",
        text(&check(0, limit(Algorithm::FixedWindow, 1, 3_600)).key)
    );
    println!("| algorithm | growth of used_memory per counter | MEMORY USAGE | value |");
    println!("|---|---|---|---|");
    for algorithm in Algorithm::ALL {
        let Growth { used_memory, usage, value } = Growth::of(algorithm, COUNTERS).await;
        println!("| {} | {used_memory} | {usage} | {value} |", algorithm.name());
    }
    println!("\nCPU of Redis per decision on a log, µs, and bytes of the log (MEMORY USAGE)\n");
    let forms = ["list", "sorted set"].map(|it| format!("{it}: admitted | refused | bytes"));
    println!("| hits held | {} |", forms.join(" | "));
    println!("|---|---|---|---|---|---|---|");
    for held in HELD {
        log(held).await;
    }
}

/// A form of logs.
trait Ask {
    /// Charges one hit to the log with this number if it has fewer than `limit`. Returns whether it passed.
    async fn ask(&self, number: usize, limit: u32) -> bool;

    /// The key of the log with this number.
    fn name(number: usize) -> String;
}

impl Ask for Redis {
    async fn ask(&self, number: usize, requests: u32) -> bool {
        let check = check(number, limit(Algorithm::SlidingWindowLog, requests, 3_600));
        self.decide(Batch::single([check].into(), None)).await[0].unwrap().allowed
    }

    fn name(number: usize) -> String {
        text(&check(number, limit(Algorithm::SlidingWindowLog, 1, 3_600)).key)
    }
}

struct SortedSet {
    client: Client,
    sha1: String,
    asked: AtomicUsize,
}

impl Ask for SortedSet {
    async fn ask(&self, number: usize, requests: u32) -> bool {
        let unique = self.asked.fetch_add(1, Ordering::Relaxed);
        let arguments: Vec<String> = vec![
            self.sha1.clone(),
            "1".to_owned(),
            Self::name(number),
            "3600000000".to_owned(),
            requests.to_string(),
            unique.to_string(),
        ];
        let command = CustomCommand::new_static("EVALSHA", ClusterHash::Random, false);
        self.client.custom::<i64, _>(command, arguments).await.unwrap() == 1
    }

    fn name(number: usize) -> String {
        format!("z{}", Redis::name(number))
    }
}

impl SortedSet {
    async fn connect(redis: &harness::Redis) -> Self {
        let (host, port) = redis
            .address()
            .split_once(':')
            .map(|(host, port)| (host.to_owned(), port.parse().unwrap()))
            .unwrap();
        let server = ServerConfig::Centralized { server: Server::new(host, port) };
        let client = Client::new(Config { server, ..Config::default() }, None, None, None);
        client.init().await.unwrap();
        let sha1 = redis.query(&["SCRIPT", "LOAD", SORTED_SET]).await;
        Self { client, sha1, asked: AtomicUsize::new(0) }
    }
}

async fn log(held: u32) {
    let redis = harness::Redis::start().await;
    let mut cells = vec![held.to_string()];
    cells.extend(timed(&redis, held, &connect(&redis).await).await);
    cells.extend(timed(&redis, held, &SortedSet::connect(&redis).await).await);
    println!("| {} |", cells.join(" | "));
}

/// Time of a decision that admits, of one that refuses, and bytes of a log.
async fn timed<A: Ask>(redis: &harness::Redis, held: u32, log: &A) -> [String; 3] {
    let round = async |limit: u32| {
        let asked = futures::future::join_all((0..LOGS).map(|number| log.ask(number, limit))).await;
        asked.into_iter().filter(|admitted| *admitted).count()
    };
    for _ in 0..held {
        round(SLIDING_LOG_HITS_MAX).await;
    }
    let bytes = redis.query(&["MEMORY", "USAGE", &A::name(0), "SAMPLES", "0"]).await;
    let time = async |limit: u32, admitted: usize| {
        redis.query(&["CONFIG", "RESETSTAT"]).await;
        for _ in 0..ROUNDS {
            assert_eq!(round(limit).await, admitted);
        }
        let statistics = redis.info("commandstats", "cmdstat_evalsha").await.unwrap().unwrap();
        let field = |name: &str| {
            let value = statistics.split(',').find_map(|it| it.strip_prefix(name));
            value.unwrap().parse::<f64>().unwrap()
        };
        format!("{:.1}", field("usec=") / field("calls="))
    };
    // The number of hits in each log by then.
    let full = held + u32::try_from(ROUNDS).unwrap();
    [time(SLIDING_LOG_HITS_MAX, LOGS).await, time(full, 0).await, bytes]
}
