//! h2load of nghttp2 as the load generator, for loads with one body.

use std::{fs, time::Duration};

use nix::{
    sys::resource::{UsageWho, getrusage},
    sys::time::TimeVal,
};
use sluicegate_tests::finish;
use tokio::process::Command;

use crate::{
    generator::PATH,
    load::{Load, Requests},
    measure::{Sample, check, micros, number},
    variant::Server,
};

/// Sends `count` requests of a load that has one body.
///
/// # Panics
/// h2load or the server's metrics report other requests or decisions.
pub(crate) async fn measure(server: &Server, load: &Load, count: usize) -> Sample {
    let requests = Requests::of(load);
    assert_eq!(requests.bodies.len(), 1, "h2load sends one body");
    let folder = tempfile::tempdir().unwrap();
    let body = folder.path().join("body");
    fs::write(&body, &requests.bodies[0].framed).unwrap();
    let mut command = Command::new("h2load");
    command.args(["--threads=1", "-n", &count.to_string()]);
    command.args(["-c", &load.shape.connections.to_string()]);
    command.args(["-m", &load.shape.streams.to_string()]);
    command.args(["-H", "content-type: application/grpc", "-H", "te: trailers", "-d"]).arg(body);
    command.arg(format!("http://{}{PATH}", server.address()));
    let before = server.metrics().await;
    let (cpu, own) = (server.cpu(), children_cpu());
    let finished = finish(command).await;
    let (cpu, own) = (server.cpu() - cpu, children_cpu() - own);
    assert!(finished.stdout.contains(&format!(" {count} succeeded")), "{finished:?}");
    let count = count.try_into().unwrap();
    if let (Some(before), Some(after)) = (before, server.metrics().await) {
        check(load, count, 0, &before, &after);
    }
    Sample {
        rate: rate(&finished.stdout).unwrap_or_else(|| panic!("{finished:?}")),
        cpu: micros(cpu) / number(count),
        generator_cpu: micros(own) / number(count),
        ..Sample::default()
    }
}

/// Parses requests per second from `finished in 8.13s, 24591.67 req/s, 2.72MB/s`.
fn rate(output: &str) -> Option<f64> {
    let line = output.lines().find_map(|line| line.strip_prefix("finished in "))?;
    line.split(", ").nth(1)?.strip_suffix(" req/s")?.parse().ok()
}

/// CPU time of all child processes that have ended.
fn children_cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let span = |time: TimeVal| {
        Duration::new(time.tv_sec().try_into().unwrap(), 0)
            + Duration::from_micros(time.tv_usec().try_into().unwrap())
    };
    span(usage.user_time()) + span(usage.system_time())
}
