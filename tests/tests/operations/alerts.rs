//! Tests of the alert rules with promtool and a real Prometheus.

use std::{collections::BTreeSet, fs, time::Duration};

use serde_json::{Value, json};
use sluicegate_tests::{
    Catalogue, Envoy, Listener, Load, Prometheus, Redis, Sluicegate, Upstream, bootstrap, fenced,
    free_port, hit,
    tools::{self, succeed, workspace},
    until, yaml,
};

const RULES: &str = "helm/files/alerts.yaml";

fn rules() -> Value {
    yaml::read(RULES, &fs::read_to_string(workspace().join(RULES)).unwrap())
}

fn each(rules: &Value) -> impl Iterator<Item = &Value> {
    rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap())
}

/// The rules without the recording rules.
fn alert_rules(rules: &Value) -> impl Iterator<Item = &Value> {
    each(rules).filter(|rule| rule.get("record").is_none())
}

fn text<'a>(rule: &'a Value, pointer: &str) -> &'a str {
    rule.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("{rule}: no {pointer}"))
}

fn promtool(arguments: &[&str]) -> String {
    succeed(std::process::Command::new("promtool").args(arguments).current_dir(workspace()))
}

#[test]
fn prometheus_accepts_the_rules() {
    let output = promtool(&["check", "rules", "--lint=all", "--lint-fatal", RULES]);
    let count = each(&rules()).count();
    assert!(output.contains(&format!("SUCCESS: {count} rules found")), "{output}");
}

#[test]
fn every_alert_has_a_runbook_section_and_a_test() {
    let runbook = fs::read_to_string(workspace().join("docs/runbook.md")).unwrap();
    let sections: BTreeSet<_> =
        runbook.lines().filter_map(|line| line.strip_prefix("## ")).map(str::to_owned).collect();
    let folder = workspace().join("tests/fixtures/alerts");
    let tests: BTreeSet<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let rules = rules();
    let names: BTreeSet<_> =
        alert_rules(&rules).map(|rule| text(rule, "/alert").to_owned()).collect();
    assert_eq!(names, sections, "sections of docs/runbook.md");
    assert_eq!(names, tests, "files in tests/fixtures/alerts");
    for rule in alert_rules(&rules) {
        let name = text(rule, "/alert");
        assert!(["critical", "warning", "info"].contains(&text(rule, "/labels/severity")));
        assert!(rule.get("for").is_some(), "{name}: one evaluation must not be enough");
        for annotation in ["summary", "description"] {
            assert!(!text(rule, &format!("/annotations/{annotation}")).is_empty());
        }
        let section = format!("docs/runbook.md#{}", name.to_lowercase());
        assert_eq!(text(rule, "/annotations/runbook_url"), section);
        let file = folder.join(format!("{name}.yaml"));
        let test = yaml::read(name, &fs::read_to_string(file).unwrap());
        assert_test(name, &test);
    }
}

/// Asserts that in each test of an alert it is quiet, then fires, then is quiet again, and that it is always quiet in
/// the last test.
fn assert_test(name: &str, test: &Value) {
    let groups = test["tests"].as_array().unwrap();
    let fires = |group: &Value| -> Vec<bool> {
        let checks = group["alert_rule_test"].as_array().unwrap();
        assert!(checks.iter().all(|check| check["alertname"] == name), "{name}");
        checks.iter().map(|check| !check["exp_alerts"].as_array().unwrap().is_empty()).collect()
    };
    let [firing @ .., quiet] = &groups[..] else { panic!("{name}: no tests") };
    assert!(!firing.is_empty(), "{name}");
    for group in firing {
        let mut turns = fires(group);
        turns.dedup();
        assert_eq!(turns, [false, true, false], "{name}");
    }
    // Checked at the beginning, and when `for:` is over.
    assert!(fires(quiet).len() >= 3 && !fires(quiet).contains(&true), "{name}");
}

#[test]
fn alerts_fire_stay_quiet_and_resolve() {
    let folder = workspace().join("tests/fixtures/alerts");
    let mut arguments = vec!["test".to_owned(), "rules".to_owned()];
    for entry in fs::read_dir(folder).unwrap() {
        arguments.push(entry.unwrap().path().to_str().unwrap().to_owned());
    }
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    promtool(&arguments);
}

#[test]
fn alerts_use_existing_metrics_and_labels() {
    let mut catalogue = Catalogue::read();
    for rule in each(&rules()) {
        match rule.get("record") {
            Some(name) => catalogue.record(name.as_str().unwrap(), text(rule, "/expr")),
            None => drop(catalogue.check(text(rule, "/expr"))),
        }
    }
}

// === The rule about Envoys ===

/// The rule in `docs/envoy.md`.
fn envoy_rules() -> String {
    let page = fs::read_to_string(workspace().join("docs/envoy.md")).unwrap();
    let mut rules = fenced(&page, "yaml");
    rules.retain(|block| block.starts_with("groups:"));
    let [rules] = rules[..] else { panic!("docs/envoy.md has {} blocks of rules", rules.len()) };
    rules.to_owned()
}

#[test]
fn prometheus_accepts_the_rules_about_envoys() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.yaml");
    fs::write(&file, envoy_rules()).unwrap();
    promtool(&["check", "rules", "--lint=all", "--lint-fatal", file.to_str().unwrap()]);
}

#[tokio::test]
async fn envoy_exports_the_metric_of_its_rule() {
    let rules = yaml::read("docs/envoy.md", &envoy_rules());
    let [rule] = &Vec::from_iter(alert_rules(&rules))[..] else { panic!("{rules}") };
    // sum by (LABELS) (rate(METRIC[SPAN])) > 0
    let (labels, rate) = text(rule, "/expr").split_once(") (rate(").unwrap();
    let label = labels.split(", ").last().unwrap();
    let metric = rate.split('[').next().unwrap();

    let upstream = Upstream::start().await;
    let actions = json!([{"actions": [{"generic_key": {"descriptor_value": "all"}}]}]);
    let listener = Listener::new("main", "api").route("/", &actions);
    let unused = format!("127.0.0.1:{}", free_port());
    let config = bootstrap(upstream.address, &unused, &[listener]);
    let envoy = Envoy::start(&tools::envoy(), &config).await;
    assert_eq!(envoy.get("/", &[]).await.status, 200, "Envoy fails open");
    let line = format!("{metric}{{{label}=\"upstream\"}} 1");
    until("the error to be counted", async || {
        envoy.metrics().await.lines().any(|it| it == line).then_some(())
    })
    .await;
}

// === Redis dies ===

/// Factor by which time spans of the rules are shortened.
const SPEEDUP: u64 = 60;

/// A shortened span of the rules, in milliseconds.
fn shortened(span: &str) -> u64 {
    seconds(span) * 1_000 / SPEEDUP
}

/// A span of the rules in seconds.
pub(crate) fn seconds(span: &str) -> u64 {
    let (number, unit) = span.split_at(span.len() - 1);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => panic!("{span} is no span"),
    };
    number.parse::<u64>().unwrap() * seconds
}

/// The rules with shortened spans.
fn shortened_rules() -> Value {
    let mut rules = rules();
    let groups = rules["groups"].as_array_mut().unwrap();
    for rule in groups.iter_mut().flat_map(|group| group["rules"].as_array_mut().unwrap()) {
        if let Some(span) = rule.get("for") {
            rule["for"] = format!("{}ms", shortened(span.as_str().unwrap())).into();
        }
        let mut expression = String::new();
        let mut rest = rule["expr"].as_str().unwrap();
        // Spans are in brackets, and after `offset`.
        while let Some(at) = rest.find(['[', 'o']) {
            let starts = if rest[at..].starts_with('[') {
                Some(at + 1)
            } else {
                rest[at..].starts_with("offset ").then_some(at + "offset ".len())
            };
            let Some(starts) = starts else {
                expression.push_str(&rest[..=at]);
                rest = &rest[at + 1..];
                continue;
            };
            expression.push_str(&rest[..starts]);
            let length = rest[starts..].find([']', ')']).unwrap();
            let span = &rest[starts..starts + length];
            expression.push_str(&format!("{}ms", shortened(span.trim())));
            rest = &rest[starts + length..];
        }
        expression.push_str(rest);
        rule["expr"] = expression.into();
    }
    rules
}

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000}
";

/// Times of evaluations at which the alert had this state.
async fn times(prometheus: &Prometheus, alert: &str, state: &str) -> Vec<f64> {
    let series = format!("ALERTS{{alertname=\"{alert}\",alertstate=\"{state}\"}}[10m]");
    prometheus.samples(&series).await.into_iter().map(|(time, _)| time).collect()
}

#[tokio::test]
async fn alerts_fire_while_redis_is_dead_and_then_resolve() {
    let mut redis = Redis::start().await;
    let rules = shortened_rules();
    let flags = ["--store", &redis.url(), "--decision-timeout", "100ms"];
    let server = Sluicegate::start(LIMITS, &flags).await;
    let prometheus = Prometheus::start(&server.http, &rules.to_string()).await;
    until("a scrape", async || (prometheus.value("up").await == Some(1.0)).then_some(())).await;

    // The metrics count the requests of the test.
    let mut connection = server.connect().await;
    for _ in 0..25 {
        connection.should_rate_limit(hit("user", "ann")).await.unwrap();
    }
    let decided = "sum(sluicegate_decisions_total{domain=\"api\",rule=\"user\"})";
    until("the decisions to be scraped", async || {
        let decided = prometheus.value(decided).await.unwrap_or(0.0);
        assert!(decided <= 25.0, "{decided}");
        (decided == 25.0).then_some(())
    })
    .await;

    let alerts = ["SluicegateDegraded", "SluicegateRedisBreakerOpen"];
    let rest = Duration::from_millis(20);
    let load =
        Load::start(std::slice::from_ref(&server.grpc), 2, rest, vec![hit("user", "bob")]).await;
    load.admits(20).await;
    for alert in alerts {
        assert_eq!(prometheus.alert(alert).await, "inactive", "{alert}");
    }

    let killed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    redis.kill().await;
    for alert in alerts {
        until("the alert to fire", async || {
            (prometheus.alert(alert).await == "firing").then_some(())
        })
        .await;
        let rule = each(&rules).find(|rule| rule["alert"] == *alert).unwrap();
        let wait = text(rule, "/for").strip_suffix("ms").unwrap().parse::<f64>().unwrap() / 1e3;
        let since = format!("ALERTS_FOR_STATE{{alertname=\"{alert}\"}}");
        let since = until("when it began", async || prometheus.value(&since).await).await;
        assert!(since >= killed.as_secs_f64().floor(), "{alert} was active before");
        let (pending, firing) =
            (times(&prometheus, alert, "pending").await, times(&prometheus, alert, "firing").await);
        // It is pending at every evaluation before `for:` is over, and fires at every later one. The state has whole
        // seconds, rounded down.
        assert!(!pending.is_empty(), "{alert} was never pending");
        assert!(pending.iter().all(|time| *time < since + 1.0 + wait), "{alert}: {pending:?}");
        assert!(firing.iter().all(|time| *time >= since + wait), "{alert}: {since} {firing:?}");
    }

    redis.restart().await;
    for alert in alerts {
        until("the alert to be over", async || {
            (prometheus.alert(alert).await == "inactive").then_some(())
        })
        .await;
    }
    // No caller got an error during the outage.
    let asked = load.stop().await;
    assert!(asked.iter().all(|asked| asked.answer.is_ok()), "{asked:?}");
}
