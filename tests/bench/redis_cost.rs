//! Reference values of Redis' own cost: raw commands, and Sluicegate's script calls sent by a minimal client.

use std::{fmt::Write, time::Duration};

use sluicegate_core::{
    Algorithm, Charge, Check, Limit, OnFailure,
    key::KeyBuilder,
    request::Entry,
    store::{Group, RefusalScope},
};
use sluicegate_simulation::ScriptCall;
use sluicegate_store::redis;
use sluicegate_tests::{Redis, finish, long_window};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
};

use crate::{
    load::{Load, MANY, Requests, entries},
    measure::{micros, number},
};

/// Number of requests whose counters the raw pipelines repeat.
const REQUESTS: usize = 20_000;

/// CPU of Redis, in µs, for an `INCRBY` and an `EXPIRE` of one key. The keys are the counters of a load in its order;
/// a pipeline has `depth` pairs.
pub(crate) async fn raw_pair(redis: &Redis, load: &Load, depth: usize, span: Duration) -> f64 {
    let of_tenant = |tenant: &usize| keys(*tenant).into_iter().take(load.chain);
    let keys: Vec<String> =
        Requests::of(load).order.iter().take(REQUESTS).flat_map(of_tenant).collect();
    // Complete pipelines only.
    let pipelines: Vec<String> = keys.chunks_exact(depth).map(pipeline).collect();
    per_counter(redis, &pipelines, 2 * depth, depth, span).await
}

/// CPU of Redis, in µs, per counter of Sluicegate's script calls. The counters and their order are the same; a call has
/// `depth` counters.
pub(crate) async fn called(server: &Redis, load: &Load, depth: usize, span: Duration) -> f64 {
    for script in redis::Script::all() {
        server.query(&["SCRIPT", "LOAD", &script.text]).await;
    }
    let groups: Vec<Group> = Requests::of(load)
        .order
        .iter()
        .take(REQUESTS)
        .map(|tenant| group(*tenant, load.chain))
        .collect();
    let of_call = (depth / load.chain).max(1);
    let calls: Vec<String> =
        groups.chunks_exact(of_call).map(|it| command(&arguments(it))).collect();
    // The lines of a reply: its length, the time, and an integer for each counter.
    let counters = of_call * load.chain;
    per_counter(server, &calls, 2 + counters, counters, span).await
}

/// CPU time of Redis per counter, in µs. Sends the texts repeatedly. Each has `counters` counters, and its replies have
/// `lines` lines.
async fn per_counter(
    redis: &Redis,
    sent: &[String],
    lines: usize,
    counters: usize,
    span: Duration,
) -> f64 {
    let mut socket = TcpStream::connect(redis.address()).await.unwrap();
    socket.set_nodelay(true).unwrap();
    for text in sent {
        call(&mut socket, text, lines).await;
    }
    let before = redis.cpu();
    let started = std::time::Instant::now();
    let mut asked = 0;
    for text in sent.iter().cycle() {
        if started.elapsed() >= span {
            break;
        }
        call(&mut socket, text, lines).await;
        asked += counters;
    }
    micros(redis.cpu() - before) / number(asked.try_into().unwrap())
}

/// The checks of a request, on counters that no load uses.
fn group(tenant: usize, chain: usize) -> Group {
    let limit = Limit::new(Algorithm::FixedWindow, MANY, long_window(), None).unwrap();
    let entries = entries(tenant);
    let entry = |(key, value): &'_ (&'static str, String)| (key.as_bytes(), value.clone());
    let entries: Vec<_> = entries.iter().map(entry).collect();
    let check = |descriptor: usize| {
        let entries: Vec<_> = entries[..=descriptor]
            .iter()
            .map(|(key, value)| Entry { key, value: value.as_bytes() })
            .collect();
        let key = KeyBuilder::new("called", Some(b"tenant"), &entries, &[]).key_for(&limit);
        let (take, scope, on_failure) =
            (Charge::IfAllowed(1), RefusalScope::Request, OnFailure::default());
        Check { key, limit, charge: take, descriptor, refusal_scope: scope, on_failure }
    };
    (0..chain).map(check).collect()
}

/// `EVALSHA` and its arguments.
fn arguments(groups: &[Group]) -> Vec<String> {
    let call = redis::Call::new(b"", groups.iter().map(|group| group.iter()), None);
    let sent = ScriptCall::of(&call);
    sent.words().into_iter().map(|it| String::from_utf8(it.to_vec()).unwrap()).collect()
}

fn command(arguments: &[String]) -> String {
    let mut text = format!("*{}\r\n", arguments.len());
    for argument in arguments {
        write!(text, "${}\r\n{argument}\r\n", argument.len()).unwrap();
    }
    text
}

/// The counters of a request, under names as long as Sluicegate's.
fn keys(tenant: usize) -> [String; 3] {
    let [(_, tenant), (_, user), (_, route)] = entries(tenant);
    let seconds = long_window().seconds();
    let tenant = format!("raw:{seconds}:{{{tenant}}}:allowed:tenant");
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

/// Sends bytes and waits for the lines of all replies, which are integers.
async fn call(socket: &mut TcpStream, text: &str, lines: usize) {
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut missing = lines;
    let mut buffer = [0; 1 << 14];
    while missing > 0 {
        let read = socket.read(&mut buffer).await.unwrap();
        assert!(read > 0, "Redis has closed the connection");
        assert!(!buffer[..read].contains(&b'-'), "Redis replies with an error");
        missing -= buffer[..read].iter().filter(|byte| **byte == b'\n').count();
    }
}

/// Median round trip of a call for one request, in µs, measured by redis-benchmark.
pub(crate) async fn round_trip(redis: &Redis, load: &Load, count: usize) -> f64 {
    let (host, port) = redis
        .address()
        .split_once(':')
        .map(|(host, port)| (host.to_owned(), port.to_owned()))
        .unwrap();
    let mut command = Command::new("redis-benchmark");
    command.args(["-h", &host, "-p", &port, "-c", "1", "-n", &count.to_string(), "--csv"]);
    command.args(arguments(&[group(0, load.chain)]));
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
