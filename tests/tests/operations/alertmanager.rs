//! The sample configuration of Alertmanager, checked by amtool and run by a real Alertmanager with a stub of Slack.

use std::{
    collections::BTreeSet,
    fs,
    process::Command,
    sync::{Arc, Mutex},
};

use axum::{Router, routing::post};
use serde_json::{Value, json};
use sluicegate_tests::{
    Process, free_port,
    tools::{succeed, workspace},
    until, yaml,
};

const SAMPLE: &str = "examples/alertmanager.yaml";

fn amtool(arguments: &[&str]) -> String {
    succeed(Command::new("amtool").args(arguments).current_dir(workspace()))
}

/// The alerts of the chart.
fn alerts() -> Vec<Value> {
    let file = "helm/files/alerts.yaml";
    let rules = yaml::read(file, &fs::read_to_string(workspace().join(file)).unwrap());
    let groups = rules["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    rules.filter(|rule| rule["alert"].is_string()).cloned().collect()
}

#[test]
fn every_alert_reaches_slack() {
    amtool(&["check-config", SAMPLE]);
    let config = format!("--config.file={SAMPLE}");
    for alert in alerts() {
        let severity = alert["labels"]["severity"].as_str().unwrap();
        let receiver = if severity == "critical" { "slack-on-call" } else { "slack" };
        let labels = [
            &*format!("alertname={}", alert["alert"].as_str().unwrap()),
            &*format!("severity={severity}"),
        ];
        let arguments = [&["config", "routes", "test", &*config][..], &labels].concat();
        assert_eq!(amtool(&arguments).trim(), receiver, "{alert}");
    }
}

#[test]
fn inhibition_names_existing_alerts() {
    let sample = yaml::read(SAMPLE, &fs::read_to_string(workspace().join(SAMPLE)).unwrap());
    let names: BTreeSet<_> =
        alerts().iter().map(|alert| alert["alert"].as_str().unwrap().to_owned()).collect();
    let rules = sample["inhibit_rules"].as_array().unwrap();
    for matcher in rules.iter().flat_map(|rule| {
        let of = |side: &str| rule[side].as_array().unwrap().clone();
        [of("source_matchers"), of("target_matchers")].concat()
    }) {
        let matcher = matcher.as_str().unwrap();
        let pattern = matcher.trim_start_matches("alertname").trim_start_matches(['=', '~']);
        let pattern = pattern.trim_matches('"');
        let (prefix, rest) = pattern.split_once('(').unwrap_or((pattern, ""));
        for end in rest.trim_end_matches(')').split('|') {
            assert!(names.contains(&format!("{prefix}{end}")), "{matcher}: {prefix}{end}");
        }
    }
}

/// Messages of a stub of Slack's incoming webhook.
type Messages = Arc<Mutex<Vec<Value>>>;

async fn slack() -> (String, Messages) {
    let messages = Messages::default();
    let received = Arc::clone(&messages);
    let answer = move |message: String| async move {
        received.lock().unwrap().push(serde_json::from_str(&message).unwrap());
        "ok"
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let router = Router::new().route("/hook", post(answer));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    (url, messages)
}

#[tokio::test]
async fn an_alert_becomes_a_message_in_slack() {
    let (url, messages) = slack().await;
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("slack-url");
    fs::write(&secret, url).unwrap();
    let mut config = fs::read_to_string(workspace().join(SAMPLE)).unwrap();
    for (old, new) in [
        ("/etc/alertmanager/slack-url", secret.to_str().unwrap()),
        ("group_wait: 30s", "group_wait: 0s"),
        ("group_wait: 10s", "group_wait: 0s"),
        ("group_interval: 5m", "group_interval: 100ms"),
    ] {
        assert!(config.contains(old), "{old}");
        config = config.replace(old, new);
    }
    let file = folder.path().join("alertmanager.yaml");
    fs::write(&file, config).unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let mut command = tokio::process::Command::new("prometheus-alertmanager");
    command.arg(format!("--config.file={}", file.display()));
    command.arg(format!("--storage.path={}", folder.path().join("data").display()));
    command.arg(format!("--web.listen-address={address}")).arg("--cluster.listen-address=");
    let process = Process::start(command);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    until("Alertmanager to be ready", async || {
        let ready = client.get(format!("http://{address}/-/ready")).send().await.ok()?;
        ready.status().is_success().then_some(())
    })
    .await;

    let caller = json!({
        "labels": {
            "alertname": "SluicegateCallerOverLimit", "severity": "warning", "namespace": "edge",
            "job": "sluicegate", "domain": "api", "rule": "user", "key": "user_eve",
        },
        "annotations": {
            "summary": "user_eve exceeds rule user of domain api",
            "description": "user_eve sends 20 hits per second more than allowed.",
            "runbook_url": "https://docs.example.com/runbook#sluicegatecalleroverlimit",
        },
    });
    let mut rule = caller.clone();
    rule["labels"]["alertname"] = "SluicegateRefusalRateHigh".into();
    rule["labels"].as_object_mut().unwrap().remove("key");
    let down = json!({"labels": {
        "alertname": "SluicegateDown", "severity": "critical", "namespace": "edge", "job": "sluicegate",
    }});
    let send = async |alerts: Value| {
        let url = format!("http://{address}/api/v2/alerts");
        let request = client.post(url).header("content-type", "application/json");
        let sent = request.body(alerts.to_string()).send().await.unwrap();
        assert!(sent.status().is_success(), "{sent:?} {}", process.output());
    };
    let message = async |about: &str| {
        until("a message", async || {
            let messages = messages.lock().unwrap();
            messages.iter().find(|it| it.to_string().contains(about)).cloned()
        })
        .await
    };
    send(json!([caller])).await;
    let found = message("SluicegateCallerOverLimit").await;
    assert_eq!(found["channel"], "#sluicegate");
    let attachment = &found["attachments"][0];
    assert_eq!(attachment["title"], "SluicegateCallerOverLimit (warning), edge/sluicegate");
    assert_eq!(
        attachment["title_link"],
        "https://docs.example.com/runbook#sluicegatecalleroverlimit"
    );
    let text = attachment["text"].as_str().unwrap();
    assert!(
        text.starts_with("*user_eve exceeds rule user of domain api*\nuser_eve sends"),
        "{text}"
    );

    // The alert about the rule is inhibited until the one about its caller is over.
    send(json!([rule])).await;
    send(json!([down])).await;
    assert_eq!(message("SluicegateDown").await["channel"], "#on-call");
    let sent = json!(*messages.lock().unwrap()).to_string();
    assert!(!sent.contains("SluicegateRefusalRateHigh"), "{sent}");
    let mut resolved = caller;
    resolved["startsAt"] = "2019-01-01T00:00:00Z".into();
    resolved["endsAt"] = "2020-01-01T00:00:00Z".into();
    send(json!([resolved])).await;
    message("Resolved: SluicegateCallerOverLimit").await;
    message("SluicegateRefusalRateHigh").await;
}
