//! Flags of `sluicegate validate`.

use sluicegate_tests::{Finished, binary, finish};
use tokio::process::Command;

use super::{
    LIMITS, Row,
    check::says,
    given::{Given, one_line},
    row,
    settings_and_limits::{TOO_MANY_BYTES, TOO_MANY_FILES, second_file, two_of_a_domain},
    telemetry::LOG_LIMITS,
};

pub(super) fn rows() -> Vec<Row> {
    let question = "part of the question, not a setting";
    vec![
        row("validate PATH", "{folder}/limits.yaml", validate_path).without_variable("positional"),
        row("validate --default-counting", "upstream", validate_default_counting),
        row("validate --default-on-failure", "deny", validate_default_on_failure),
        row("validate --shadow-mode", "true", validate_shadow_mode),
        row("validate --quota-mode", "true", validate_quota_mode),
        row("validate --merge-domains", "true", validate_merge_domains),
        row("validate --limits-max-files", "1", validate_limits_max_files),
        row("validate --limits-max-bytes", "200", validate_limits_max_bytes),
        row("validate --explain", "", validate_explain).without_variable(question),
        row("validate --domain", "api", validate_explain).without_variable(question),
        row("validate --descriptor", "user=bob", validate_explain).without_variable(question),
        row("validate --key-prefix", "shop:", validate_key_prefix),
    ]
}

pub(super) async fn validate_path(given: Given) {
    let answer = given.run("sluicegate", "validate", &[]).await;
    assert_eq!((answer.code, &*answer.stdout), (0, "ok: 1 domains, 1 rules, 0 warnings\n"));
    given.write("limits.yaml", &LIMITS.replace("day", "fortnight").replace("user", ""));
    let answer = given.run("sluicegate", "validate", &[]).await;
    assert_eq!(answer.code, 1);
    let place = format!("{}:5: descriptors[0].rate_limit.unit: ", given.value);
    assert!(answer.stdout.contains(&place), "{answer:?}");
}

pub(super) async fn validate_default_counting(given: Given) {
    given.write("limits.yaml", LOG_LIMITS);
    let mut command = Command::new(binary("sluicegate"));
    command.args(["validate", &given.path("limits.yaml")]);
    assert_eq!(finish(command).await.code, 0);
    let mut command = Command::new(binary("sluicegate"));
    command.args(["validate", &given.path("limits.yaml")]);
    command.args(given.flags()).envs(given.environment());
    let answer = finish(command).await;
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.stdout.contains("sliding_window_log requires counting: free"), "{answer:?}");
}

/// Runs `sluicegate` with these arguments and the flag under test.
pub(super) async fn with_flag(given: &Given, arguments: &[&str]) -> Finished {
    let mut command = Command::new(binary("sluicegate"));
    command.args(arguments).args(given.flags()).envs(given.environment());
    finish(command).await
}

pub(super) async fn validate_merge_domains(given: Given) {
    let (one, two) = two_of_a_domain(&given);
    let answer = with_flag(&given, &["validate", &one, &two]).await;
    assert_eq!((answer.code, &*answer.stdout), (0, "ok: 1 domains, 2 rules, 0 warnings\n"));
    let answer = with_flag(&given.with("false"), &["validate", &one, &two]).await;
    assert_eq!(answer.code, 1);
    assert!(answer.stdout.contains("is also defined in"), "{answer:?}");
}

pub(super) async fn validate_bounds_files(given: Given, text: &str) {
    let (one, two) = second_file(&given);
    says(&with_flag(&given, &["validate", &one, &two]).await, 1, text);
    says(&with_flag(&given, &["validate", &one]).await, 0, "ok: 1 domains");
}

pub(super) async fn validate_limits_max_files(given: Given) {
    validate_bounds_files(given, TOO_MANY_FILES).await;
}

pub(super) async fn validate_limits_max_bytes(given: Given) {
    validate_bounds_files(given, TOO_MANY_BYTES).await;
}

/// Output of `validate --explain` for one hit, with the flag and without it.
pub(super) async fn explained_with(given: &Given, without: &str) -> [String; 2] {
    let limits = given.path("limits.yaml");
    let request = ["--explain", "--domain", "api", "--descriptor", "user=bob"];
    let arguments = [&["validate", &limits][..], &request].concat();
    let with = with_flag(given, &arguments).await.stdout;
    [with, with_flag(&given.with(without), &arguments).await.stdout]
}

pub(super) async fn validate_default_on_failure(given: Given) {
    let [with, without] = explained_with(&given, "allow").await;
    assert!(with.contains("on_failure deny"), "{with}");
    assert!(without.contains("on_failure allow"), "{without}");
}

pub(super) async fn validate_shadow_mode(given: Given) {
    let [with, without] = explained_with(&given, "false").await;
    assert!(with.contains("shadow_mode") && !without.contains("shadow_mode"), "{with}{without}");
}

pub(super) async fn validate_quota_mode(given: Given) {
    let [with, without] = explained_with(&given, "false").await;
    assert!(with.contains("quota_mode") && !without.contains("quota_mode"), "{with}{without}");
}

/// Tests the flags of `validate --explain` together, because they need one another.
pub(super) async fn validate_explain(given: Given) {
    let explain = async |flags: &[&str]| {
        let mut command = Command::new(binary("sluicegate"));
        command.args(["validate", &given.path("limits.yaml")]).args(flags);
        finish(command).await
    };
    let all = ["--explain", "--domain", "api", "--descriptor", "user=bob"];
    says(&explain(&all).await, 0, "  user=bob\n    limited by rule user (");
    let without = match given.name {
        "--explain" => all[1..].to_vec(),
        "--domain" => [&all[..1], &all[3..]].concat(),
        _ => all[..3].to_vec(),
    };
    one_line(&explain(&without).await, 2, &[given.name]);
    let mut elsewhere = all;
    elsewhere[2] = "other";
    says(&explain(&elsewhere).await, 0, "no limits file has this domain");
    elsewhere = all;
    elsewhere[4] = "tenant=bob";
    says(&explain(&elsewhere).await, 0, "no node at level 1 matches tenant=bob");
}

pub(super) async fn validate_key_prefix(given: Given) {
    let limits = given.path("limits.yaml");
    let mut command = Command::new(binary("sluicegate"));
    command.args(["validate", &limits, "--explain", "--domain", "api", "--descriptor", "user=bob"]);
    command.args(given.flags()).envs(given.environment());
    says(&finish(command).await, 0, "counter  shop:s1:fw:86400:{api:user=bob}");
}
