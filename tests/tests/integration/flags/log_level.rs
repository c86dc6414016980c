//! Flags of `sluicectl log-level`.

use sluicegate_tests::{binary, finish};
use tokio::process::Command;

use super::{
    Row,
    explain::explained,
    given::{Given, one_line},
    row,
};

pub(super) fn rows() -> Vec<Row> {
    let question = "part of the question, not a setting";
    vec![
        row("log-level LEVEL", "debug", log_level_level).without_variable("positional"),
        row("log-level --for", "1h", log_level_for).without_variable(question),
    ]
}

pub(super) async fn log_level_level(given: Given) {
    let (_server, address) = explained().await;
    let address = ("--admin-server", &*address);
    let answer = given.run("sluicectl", "log-level", &[address]).await;
    assert_eq!((answer.code, &*answer.stdout), (0, "debug\n"), "{answer:?}");
    let answer = given.with("loud").run("sluicectl", "log-level", &[address]).await;
    one_line(&answer, 3, &["\"loud\" is not a level"]);
}

pub(super) async fn log_level_for(given: Given) {
    let (_server, address) = explained().await;
    let mut command = Command::new(binary("sluicectl"));
    command.args(["log-level", "debug", "--admin-server", &address]).args(given.flags());
    let answer = finish(command).await;
    assert!(answer.stdout.starts_with("debug; info in "), "{answer:?}");
}
