//! What Redis itself costs: the yardsticks that Sluicegate's use of it is held against.

use std::{fmt::Write, time::Duration};

use sluicegate_tests::{Redis, finish};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
};

use crate::{
    load::{Load, Requests, entries},
    measure::{micros, number},
};

/// How many requests' counters the raw pipelines go round.
const REQUESTS: usize = 20_000;

/// As little as a script that decides about its keys could do.
const SCRIPT: &str = "
for _, key in ipairs(KEYS) do
    redis.call('INCRBY', key, ARGV[1])
    redis.call('EXPIRE', key, ARGV[2])
end
return #KEYS
";

/// CPU of Redis, in µs, for an `INCRBY` and an `EXPIRE` of one key: the counters of a load in its order, so many pairs
/// in a pipeline.
pub(crate) async fn raw_pair(redis: &Redis, load: &Load, depth: usize, span: Duration) -> f64 {
    let requests = Requests::of(load);
    let keys: Vec<String> = requests
        .order
        .iter()
        .take(REQUESTS)
        .flat_map(|tenant| keys(*tenant).into_iter().take(load.chain))
        .collect();
    // Whole pipelines only.
    let pipelines: Vec<String> = keys.chunks_exact(depth).map(pipeline).collect();
    let mut socket = TcpStream::connect(redis.address()).await.unwrap();
    socket.set_nodelay(true).unwrap();
    for pipeline in &pipelines {
        call(&mut socket, pipeline, depth).await;
    }
    let before = redis.cpu();
    let started = std::time::Instant::now();
    let mut pairs = 0;
    for pipeline in pipelines.iter().cycle() {
        if started.elapsed() >= span {
            break;
        }
        call(&mut socket, pipeline, depth).await;
        pairs += depth;
    }
    micros(redis.cpu() - before) / number(pairs.try_into().unwrap())
}

/// The counters of a request, under names as long as Sluicegate's.
fn keys(tenant: usize) -> [String; 3] {
    let [(_, tenant), (_, user), (_, route)] = entries(tenant);
    let tenant = format!("raw:86400:{{{tenant}}}:allowed:tenant");
    [tenant.clone(), format!("{tenant}:user={user}"), format!("{tenant}:user={user}:route={route}")]
}

fn pipeline(keys: &[String]) -> String {
    let mut text = String::new();
    for key in keys {
        let length = key.len();
        write!(text, "*3\r\n$6\r\nINCRBY\r\n${length}\r\n{key}\r\n$1\r\n1\r\n").unwrap();
        write!(text, "*3\r\n$6\r\nEXPIRE\r\n${length}\r\n{key}\r\n$5\r\n86400\r\n").unwrap();
    }
    text
}

/// Sends a pipeline of so many pairs and waits for all replies: integers, a line each.
async fn call(socket: &mut TcpStream, pipeline: &str, pairs: usize) {
    socket.write_all(pipeline.as_bytes()).await.unwrap();
    let mut missing = pairs * 2;
    let mut buffer = [0; 1 << 14];
    while missing > 0 {
        let read = socket.read(&mut buffer).await.unwrap();
        assert!(read > 0, "Redis has closed the connection");
        assert!(!buffer[..read].contains(&b'-'), "Redis answers an error");
        missing -= buffer[..read].iter().filter(|byte| **byte == b'\n').count();
    }
}

/// Half of the round trips of a small script over three keys take no longer, in µs, as redis-benchmark has it.
pub(crate) async fn script_round_trip(redis: &Redis, count: usize) -> f64 {
    let sha1 = redis.query(&["SCRIPT", "LOAD", SCRIPT]).await;
    let (host, port) = redis
        .address()
        .split_once(':')
        .map(|(host, port)| (host.to_owned(), port.to_owned()))
        .unwrap();
    let mut command = Command::new("redis-benchmark");
    command.args(["-h", &host, "-p", &port, "-c", "1", "-n", &count.to_string(), "--csv"]);
    command.args(["EVALSHA", &sha1, "3"]).args(keys(0)).args(["1", "86400"]);
    let finished = finish(command).await;
    assert_eq!(finished.code, 0, "{finished:?}");
    let fields = |line: &str| -> Vec<String> {
        line.split("\",\"").map(|field| field.trim_matches('"').to_owned()).collect()
    };
    let lines: Vec<_> = finished.stdout.lines().map(fields).collect();
    let [names, values] = &lines[..] else { panic!("{finished:?}") };
    let place = names.iter().position(|name| name == "p50_latency_ms").unwrap();
    values[place].parse::<f64>().unwrap() * 1e3
}
