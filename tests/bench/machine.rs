//! Describes the machine, the date and the versions of a measurement.

use std::{fmt::Write, fs, thread};

use sluicegate_tests::finish;
use tokio::process::Command;

/// Date, machine and versions, a line each.
pub(crate) async fn described() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown", |(_, model)| model);
    let cores = thread::available_parallelism().unwrap();
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    let load = load.split_whitespace().next().unwrap().to_owned();
    let mut text = String::new();
    for (name, value) in [
        ("date", output_of("date", &["--utc", "+%F %R UTC"]).await),
        ("CPU", format!("{model}, {cores} cores")),
        ("load average before", load),
        ("kernel", output_of("uname", &["-sr"]).await),
        ("rustc", output_of("rustc", &["--version"]).await),
        ("Redis", output_of("redis-server", &["--version"]).await),
        ("h2load", output_of("h2load", &["--version"]).await),
    ] {
        writeln!(text, "- {name}: {value}").unwrap();
    }
    text
}

async fn output_of(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments);
    finish(command).await.stdout.trim().to_owned()
}
