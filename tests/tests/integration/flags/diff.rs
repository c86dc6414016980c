//! Flags of `sluicegate diff`.

use sluicegate_tests::{Finished, binary, finish};
use tokio::process::Command;

use super::{
    LIMITS, Row,
    check::says,
    given::Given,
    row,
    settings_and_limits::{TOO_MANY_BYTES, TOO_MANY_FILES, second_file, two_of_a_domain},
    validate::with_flag,
};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("diff OLD", "{folder}/old.yaml", diff_old).without_variable("positional"),
        row("diff NEW", "{folder}/new.yaml", diff_new).without_variable("positional"),
        row("diff --default-counting", "upstream", diff_default_counting),
        row("diff --merge-domains", "true", diff_merge_domains),
        row("diff --limits-max-files", "1", diff_limits_max_files),
        row("diff --limits-max-bytes", "200", diff_limits_max_bytes),
    ]
}

pub(super) async fn diff(given: &Given, old: &str, new: &str) -> Finished {
    let mut command = Command::new(binary("sluicegate"));
    command.args(["diff", old, new]).envs(given.environment());
    finish(command).await
}

pub(super) async fn diff_old(given: Given) {
    given.write("old.yaml", &LIMITS.replace("10", "20"));
    says(&diff(&given, &given.value, &given.path("limits.yaml")).await, 1, "_unit 20 -> 10\n");
}

pub(super) async fn diff_new(given: Given) {
    given.write("new.yaml", &LIMITS.replace("10", "20"));
    says(&diff(&given, &given.path("limits.yaml"), &given.value).await, 1, "_unit 10 -> 20\n");
}

pub(super) async fn diff_default_counting(given: Given) {
    given.write("upstream.yaml", &(LIMITS.to_owned() + "counting: upstream\n"));
    let (free, upstream) = (given.path("limits.yaml"), given.path("upstream.yaml"));
    says(&with_flag(&given, &["diff", &free, &upstream]).await, 0, "equal\n");
    let other = with_flag(&given.with("debit"), &["diff", &free, &upstream]).await;
    says(&other, 1, "changed api: user: counting debit -> upstream\n");
}

pub(super) async fn diff_merge_domains(given: Given) {
    two_of_a_domain(&given);
    let (one, both) = (given.path("limits.yaml"), given.folder.path().to_str().unwrap());
    says(&with_flag(&given, &["diff", &one, both]).await, 1, "added api: team: 10 per day");
    let refused = with_flag(&given.with("false"), &["diff", &one, both]).await;
    says(&refused, 2, "is also defined in");
}

pub(super) async fn diff_bounds_files(given: Given, text: &str) {
    second_file(&given);
    let (one, both) = (given.path("limits.yaml"), given.folder.path().to_str().unwrap());
    says(&with_flag(&given, &["diff", &one, both]).await, 2, text);
    says(&with_flag(&given, &["diff", &one, &one]).await, 0, "equal");
}

pub(super) async fn diff_limits_max_files(given: Given) {
    diff_bounds_files(given, TOO_MANY_FILES).await;
}

pub(super) async fn diff_limits_max_bytes(given: Given) {
    diff_bounds_files(given, TOO_MANY_BYTES).await;
}
