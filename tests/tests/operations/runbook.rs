//! Runs the commands of the runbook.

use std::fs;

use sluicegate_tests::{
    Sluicegate, binary, fenced, finish, hit,
    tools::{self, succeed, workspace},
    until, yaml,
};
use tokio::process::Command;

/// The commands in code blocks, with continued lines joined.
fn commands() -> Vec<String> {
    let page = fs::read_to_string(workspace().join("docs/runbook.md")).unwrap();
    let joined = fenced(&page, "sh").concat().replace("\\\n", " ");
    joined.lines().map(|line| line.trim().to_owned()).collect()
}

/// The rest of the only command that contains `before`.
fn after(before: &str) -> String {
    let commands = commands();
    let found: Vec<_> = commands.iter().filter_map(|it| Some(it.split_once(before)?.1)).collect();
    let [found] = found[..] else { panic!("{before}: {commands:?}") };
    found.to_owned()
}

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 1}
";

/// Runs a command of the pod's `sluicectl` with the placeholders of the runbook replaced.
async fn output_of(server: &Sluicegate, command: &str) -> String {
    let rest = after(&format!("/usr/local/bin/sluicectl {command}"));
    let rest = rest.replace("DOMAIN", "api").replace("KEY=VALUE", "user=ann");
    let mut sluicectl = Command::new(binary("sluicectl"));
    sluicectl.arg(command).args(rest.split_whitespace());
    sluicectl.args(["--timeout", "30s", "--admin-server", &format!("http://{}", server.admin)]);
    let answer = finish(sluicectl).await;
    assert_eq!(answer.code, 0, "{answer:?}");
    answer.stdout
}

#[tokio::test]
async fn refused_callers_are_found_by_hash() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let peeked = output_of(&server, "peek").await;
    let hash = peeked.lines().find_map(|line| line.trim().strip_prefix("hash")).unwrap().trim();
    until("the refusals to be shown", async || {
        server.should_rate_limit(hit("user", "ann")).await.unwrap();
        let top = output_of(&server, "top").await;
        assert!(!top.contains("user=ann"), "{top}");
        top.contains(hash).then_some(())
    })
    .await;
}

#[test]
fn the_runbook_selects_the_servers_pods() {
    let selector = after("--selector ");
    let selector = selector.split(')').next().unwrap().replace("RELEASE", "edge");
    let mut helm = tools::helm();
    let text = succeed(helm.args(["template", "edge", "helm"]));
    let objects = yaml::read_all("template", &text);
    let deployment = objects.iter().find(|it| it["kind"] == "Deployment").unwrap();
    let test = objects.iter().find(|it| it["kind"] == "Pod").unwrap();
    let has = |labels: &serde_json::Value| {
        selector.split(',').all(|pair| {
            let (label, value) = pair.split_once('=').unwrap();
            labels[label] == value
        })
    };
    assert!(has(&deployment["spec"]["template"]["metadata"]["labels"]), "{selector}");
    assert!(!has(&test["metadata"]["labels"]), "{selector}");
}

#[test]
fn disabling_enforcement_changes_only_shadow_mode() {
    let flags = after("--reuse-values ");
    let rendered = |flags: &str| {
        let mut helm = tools::helm();
        succeed(helm.args(["template", "edge", "helm"]).args(flags.split_whitespace()))
    };
    let (before, braked) = (rendered(""), rendered(&flags));
    let before: Vec<_> = before.lines().collect();
    let more: Vec<_> = braked.lines().filter(|line| !before.contains(line)).collect();
    let [more] = more[..] else { panic!("{more:?}") };
    assert_eq!(more.trim().trim_matches(['-', ' ', '"']), "shadow-mode=true");
    assert_eq!(braked.lines().count(), before.len() + 1);
    assert!(before.iter().any(|line| line.trim() == "maxUnavailable: 0"), "one by one");
}
