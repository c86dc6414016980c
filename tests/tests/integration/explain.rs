//! `sluicectl explain` and `sluicegate validate --explain`: their output, and that they change nothing.

use std::path::Path;

use serde_json::{Value, json};
use sluicegate_proto::{
    envoy::{
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::rate_limit_response::Code,
    },
    sluicegate::admin::v1::{
        ExplainRequest, Outcome, admin_service_client::AdminServiceClient, limit_explanation::State,
    },
};
use sluicegate_tests::{
    Cluster, Finished, Redis, Sluicegate, binary, finish, hits, long_window, long_windows, until,
};
use tokio::process::Command;
use tonic::{Code as GrpcCode, transport::Channel};

const LIMITS: &str = "
domain: api
descriptors:
  - key: tenant
    descriptors:
      - key: path
        value: /v1/*
        rate_limit: {unit: day, requests_per_unit: 10, name: v1}
      - key: path
        value: /v1/users
        shadow_mode: true
        rate_limit: {unit: day, requests_per_unit: 1}
      - key: method
        rate_limit: {unlimited: true}
  - key: vip
    rate_limit: {unit: day, requests_per_unit: 100, replaces: [{name: base}]}
  - key: user
    rate_limit: {unit: day, requests_per_unit: 5, name: base}
";

/// A limit of each algorithm.
const ALGORITHMS: &str = "
domain: api
descriptors:
  - key: fixed_window
    rate_limit: {algorithm: fixed_window, unit: day, requests_per_unit: 10}
  - key: sliding_window_log
    rate_limit: {algorithm: sliding_window_log, unit: day, requests_per_unit: 10}
  - key: sliding_window_counter
    rate_limit: {algorithm: sliding_window_counter, unit: day, requests_per_unit: 10}
  - key: token_bucket
    rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 10}
  - key: gcra
    rate_limit: {algorithm: gcra, unit: day, requests_per_unit: 10}
";

const NAMES: [&str; 5] =
    ["fixed_window", "sliding_window_log", "sliding_window_counter", "token_bucket", "gcra"];

async fn explain(server: &Sluicegate, flags: &[&str]) -> Finished {
    let mut command = Command::new(binary("sluicectl"));
    command.args(["explain", "--domain", "api", "--timeout", "30s"]);
    command.arg("--admin-server").arg(format!("http://{}", server.admin)).args(flags);
    finish(command).await
}

async fn explain_json(server: &Sluicegate, flags: &[&str]) -> Value {
    let answer = explain(server, &[flags, &["--output", "json"]].concat()).await;
    serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"))
}

async fn take(server: &Sluicegate, key: &str, value: &str, count: u64) -> Code {
    server.should_rate_limit(hits(key, value, count)).await.unwrap().overall_code()
}

/// A server with this store and limits with [long windows](long_windows), once the store is available.
async fn serve(limits: &str, store: &str, more: &[&str]) -> Sluicegate {
    let flags = ["--store", store, "--decision-timeout", "10s"];
    let server = Sluicegate::start(&long_windows(limits), &[&flags[..], more].concat()).await;
    until("the store", || async {
        (server.metric("sluicegate_store_degraded").await == 0.0).then_some(())
    })
    .await;
    server
}

/// The text without the folder of the limits file and without durations.
fn steady(text: &str, folder: &Path) -> String {
    let text = text.replace(&format!("{}/", folder.display()), "");
    let lines = text.lines().map(|line| {
        let Some((before, after)) = line.split_once(", resets in ") else { return line.to_owned() };
        let (_, after) = after.split_once(';').unwrap();
        let after = after.split_once(" in ").map_or(after, |(what, _)| what);
        format!("{before}, resets in TIME;{after}")
    });
    let retry = |line: String| match line.split_once(", retry in ") {
        Some((before, _)) => format!("{before}, retry in TIME"),
        None => line,
    };
    lines.map(retry).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn text_shows_match_trace_limit_and_counter() {
    let server = Sluicegate::start(&long_windows(LIMITS), &[]).await;
    let question = ["--descriptor", "tenant=acme,path=/v1/orders"];
    let request = sluicegate_tests::request(&[&[("tenant", "acme"), ("path", "/v1/orders")]]);
    for _ in 0..4 {
        server.should_rate_limit(request.clone()).await.unwrap();
    }
    let answer = explain(&server, &question).await;
    assert_eq!((answer.code, &*answer.stderr), (0, ""));
    let folder = server.folder();
    is_printed(
        &answer.stdout,
        folder,
        "would pass",
        "4 of 10 used, 6 left, resets in TIME; passes",
    );
    let refused = explain(&server, &[&question[..], &["--hits", "7"]].concat()).await;
    assert_eq!(refused.code, 1);
    is_printed(
        &refused.stdout,
        folder,
        "would be refused, retry in TIME",
        "4 of 10 used, 6 left, resets in TIME; refuses, passes",
    );
}

#[tokio::test]
async fn a_counter_that_is_checked_twice_needs_room_for_both() {
    let server = Sluicegate::start(&long_windows(LIMITS), &[]).await;
    let twice = async |command: &str, url: &str, hits: &str| {
        let mut asked = Command::new(binary("sluicectl"));
        asked.args([command, "--domain", "api", "--timeout", "30s", "--hits", hits]);
        asked.args(["--descriptor", "user=bob", "--descriptor", "user=bob"]);
        asked.arg(url).arg(format!(
            "http://{}",
            if command == "check" { &server.grpc } else { &server.admin }
        ));
        finish(asked).await
    };
    for (hits, code) in [("3", 1), ("2", 0)] {
        let explained = twice("explain", "--admin-server", hits).await;
        assert_eq!(explained.code, code, "{explained:?}");
        let states: Vec<_> =
            explained.stdout.lines().filter(|line| line.contains("0 of 5 used, 5 left")).collect();
        assert_eq!(states.len(), 2, "{explained:?}");
        assert!(states[0].ends_with("; passes"), "{explained:?}");
        let checked = twice("check", "--server", hits).await;
        assert_eq!(checked.code, code, "{checked:?}");
    }
}

/// Asserts the text about `tenant=acme, path=/v1/orders`.
fn is_printed(printed: &str, folder: &Path, first: &str, state: &str) {
    let wanted = format!(
        "\
{first}
  tenant=acme, path=/v1/orders
    limited by rule tenant.path=/v1/* (limits.yaml:6)
    level 1, tenant=acme
      taken      tenant  limits.yaml:4
      not taken  vip     limits.yaml:15  another key
      not taken  user    limits.yaml:17  another key
    level 2, path=/v1/orders
      taken      path=/v1/*      limits.yaml:6
      not taken  path=/v1/users  limits.yaml:9   another value
      not taken  method          limits.yaml:13  another key
    limit 10 per day (v1), fixed_window, counting free, on_failure local
      counter  s1:fw:86400:{{api:tenant=acme:path=/v1/orders}}
      slot     3612
      state    {state}"
    );
    assert_eq!(steady(printed, folder), long_windows(&wanted));
}

#[tokio::test]
async fn json_has_every_key() {
    let server = Sluicegate::start(&long_windows(LIMITS), &[]).await;
    take(&server, "vip", "eve", 1).await;
    let explanation =
        explain_json(&server, &["--descriptor", "vip=eve", "--descriptor", "user=eve"]).await;
    assert_eq!(explanation["would_pass"], true);
    let file = server.folder().join("limits.yaml").display().to_string();
    let vip = json!({ "path": "vip", "file": file, "line": 15 });
    let mut limited = explanation["descriptors"][0].clone();
    let reset_after = limited["limits"][0]["counter"]["reset_after_seconds"].take();
    let window = long_window();
    let left = 1..=u64::from(window.seconds());
    assert!(left.contains(&reset_after.as_u64().unwrap()), "{reset_after}");
    let (unit, multiplier) = window.in_units();
    let candidate = |key: &str, line: u32, fit: &str| json!({ "key": key, "value": null, "file": file, "line": line, "fit": fit });
    let level = |candidates: [Value; 3]| json!({ "candidates": candidates, "left_out": 0 });
    assert_eq!(
        limited,
        json!({
            "descriptor": [{ "key": "vip", "value": "eve" }],
            "outcome": "limited",
            "rule": vip,
            "override_ignored": false,
            "levels": [level([
                candidate("vip", 15, "taken"),
                candidate("tenant", 4, "other_key"),
                candidate("user", 17, "other_key"),
            ])],
            "limits": [{
                "name": "",
                "requests_per_unit": 100,
                "unit": unit.name(),
                "unit_multiplier": multiplier,
                "capacity": 100,
                "algorithm": "fixed_window",
                "counting": "free",
                "on_failure": "local",
                "shadow_mode": false,
                "quota_mode": false,
                "counter_key": long_windows("s1:fw:86400:{api:vip=eve}"),
                "hash_slot": explanation["descriptors"][0]["limits"][0]["hash_slot"],
                "key_hash": null,
                "counter": {
                    "used": 1,
                    "remaining": 99,
                    "reset_after_seconds": null,
                    "would_pass": true,
                    "retry_after_seconds": null,
                },
                "unanswered": null,
            }],
            "replaced_limits": [],
        })
    );
    let replaced = &explanation["descriptors"][1];
    assert_eq!(replaced["outcome"], "replaced");
    assert_eq!(replaced["replaced_limits"], json!([{ "name": "base", "replaced_by": vip }]));
    assert_eq!(replaced["limits"], json!([]));
}

#[tokio::test]
async fn validate_explains_the_same_without_counters() {
    let server = Sluicegate::start(LIMITS, &["--key-prefix", "shop:"]).await;
    let file = server.folder().join("limits.yaml");
    for question in [
        &["--descriptor", "tenant=acme,path=/v1/users"][..],
        &["--descriptor", "tenant=acme,path=/v2"],
        &["--descriptor", "tenant=acme"],
        &["--descriptor", "tenant=acme,method=GET"],
        &["--descriptor", "tenant=acme,method=GET,more="],
        &["--descriptor", "user=eve", "--descriptor", "vip=eve"],
        &["--descriptor", r"user=a\,b"],
    ] {
        let online = explain(&server, question).await;
        assert_eq!(online.code, 0, "{online:?}");
        let mut command = Command::new(binary("sluicegate"));
        command.arg("validate").arg(&file).args(["--explain", "--domain", "api"]).args(question);
        command.args(["--key-prefix", "shop:"]);
        let offline = finish(command).await;
        assert_eq!((offline.code, &*offline.stderr), (0, ""), "{offline:?}");
        let way = |text: &str| {
            let lines = text.lines().skip(1).filter(|line| !line.starts_with("      state "));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(way(&offline.stdout), way(&online.stdout));
        assert!(!offline.stdout.contains("state  "), "{}", offline.stdout);
    }
    let mut unknown = Command::new(binary("sluicegate"));
    unknown.arg("validate").arg(&file);
    unknown.args(["--explain", "--domain", "none", "--descriptor", "a=b"]);
    let explanation = finish(unknown).await.stdout;
    assert!(explanation.contains("no limits file has this domain"), "{explanation}");
}

/// Charges the counters with different numbers of hits.
async fn use_all(server: &Sluicegate) {
    for (name, count) in NAMES.iter().zip([1, 3, 5, 9, 10]) {
        take(server, name, "used", count).await;
    }
}

/// Explains each counter, and unused ones, with every command.
async fn explain_all(server: &Sluicegate) {
    for (name, count) in NAMES.iter().zip([1, 3, 5, 9, 10]) {
        for hits in ["1", "0", "2", "1000", "-1"] {
            for (value, used) in [("used", count), ("fresh", 0)] {
                let descriptor = format!("{name}={value}");
                let question = ["--descriptor", &descriptor, "--hits", hits];
                let explanation = explain_json(server, &question).await;
                let counter = &explanation["descriptors"][0]["limits"][0]["counter"];
                assert_eq!(counter["used"], used, "{explanation}");
                assert_eq!(counter["remaining"], 10 - used, "{explanation}");
                let needs: u64 = hits.parse::<i64>().unwrap().max(1).try_into().unwrap();
                assert_eq!(counter["would_pass"], needs <= 10 - used, "{explanation}");
                let waits = counter["retry_after_seconds"].as_u64();
                assert_eq!(waits.is_some(), needs > 10 - used && needs <= 10, "{explanation}");
            }
        }
    }
}

#[tokio::test]
async fn explaining_changes_nothing_in_memory() {
    let server = Sluicegate::start(&long_windows(ALGORITHMS), &[]).await;
    use_all(&server).await;
    let counters = server.metric("sluicegate_memory_counters").await;
    assert_eq!(counters, 5.0);
    explain_all(&server).await;
    assert_eq!(server.metric("sluicegate_memory_counters").await, counters);
    for (name, count) in NAMES.iter().zip([1, 3, 5, 9, 10]) {
        let rest = 10 - count;
        if rest > 0 {
            assert_eq!(take(&server, name, "used", rest).await, Code::Ok, "{name}");
        }
        assert_eq!(take(&server, name, "used", 1).await, Code::OverLimit, "{name}");
        assert_eq!(take(&server, name, "fresh", 10).await, Code::Ok, "{name}");
    }
}

/// Every key with its value and its expiry.
async fn contents(redis: &Redis) -> Vec<(String, String, String)> {
    let mut contents = Vec::new();
    for key in redis.keys("s1:??:*").await {
        let held = match &*redis.query(&["TYPE", &key]).await {
            "list" => redis.query(&["LRANGE", &key, "0", "-1"]).await,
            _ => redis.query(&["GET", &key]).await,
        };
        let expires = redis.query(&["PEXPIRETIME", &key]).await;
        contents.push((key, held, expires));
    }
    contents
}

#[tokio::test]
async fn explaining_changes_nothing_in_redis() {
    let redis = Redis::start().await;
    let server = serve(ALGORITHMS, &redis.url(), &[]).await;
    use_all(&server).await;
    let before = contents(&redis).await;
    assert_eq!(before.len(), 5, "{before:?}");
    explain_all(&server).await;
    assert_eq!(contents(&redis).await, before);
}

#[tokio::test]
async fn the_counter_key_is_the_key_in_redis() {
    let redis = Redis::start().await;
    let server = serve(ALGORITHMS, &redis.url(), &["--key-prefix", "shop:"]).await;
    for name in NAMES {
        // Bytes that are escaped in a key.
        take(&server, name, "a {b}:c=%", 1).await;
        let explanation =
            explain_json(&server, &["--descriptor", &format!("{name}=a {{b}}:c=%")]).await;
        let key =
            explanation["descriptors"][0]["limits"][0]["counter_key"].as_str().unwrap().to_owned();
        assert!(key.starts_with("shop:s1:"), "{key}");
        let kept = redis.keys("shop:s1:??:*").await;
        assert_eq!(kept.into_iter().collect::<Vec<_>>(), [key.as_str()]);
        redis.query(&["DEL", &key]).await;
    }
}

#[tokio::test]
async fn the_hash_slot_is_that_of_the_cluster() {
    let cluster = Cluster::start().await;
    let limits = format!("tenant: tenant\n{}", LIMITS.trim_start());
    let server = serve(&limits, &cluster.url(), &["--key-prefix", "shop:"]).await;
    let question = ["--descriptor", "tenant=acme,path=/v1/x", "--descriptor", "user=eve"];
    let request = [&[("tenant", "acme"), ("path", "/v1/x")][..], &[("user", "eve")]];
    server.should_rate_limit(sluicegate_tests::request(&request)).await.unwrap();
    let explanation = explain_json(&server, &question).await;
    let kept = cluster.keys("shop:s1:??:*").await;
    assert_eq!(kept.len(), 2);
    for position in 0..2 {
        let limit = &explanation["descriptors"][position]["limits"][0];
        let key = limit["counter_key"].as_str().unwrap();
        assert!(kept.contains(key), "{key} of {kept:?}");
        assert_eq!(limit["hash_slot"], cluster.slot(key).await);
        assert_eq!(limit["counter"]["used"], 1, "{explanation}");
    }
    assert_eq!(explanation["would_pass"], true);
    let first = &explanation["descriptors"][0]["limits"][0]["counter_key"];
    assert_eq!(*first, long_windows("shop:s1:fw:86400:{acme}:api:tenant:path=/v1/x"));
}

#[tokio::test]
async fn the_deny_cache_is_neither_read_nor_filled() {
    let redis = Redis::start().await;
    let server = serve(ALGORITHMS, &redis.url(), &[]).await;
    assert_eq!(take(&server, "fixed_window", "bob", 10).await, Code::Ok);
    let question = ["--descriptor", "fixed_window=bob"];
    assert_eq!(explain_json(&server, &question).await["would_pass"], false);
    assert_eq!(server.metric("sluicegate_deny_cache_refusals").await, 0.0);
    assert_eq!(take(&server, "fixed_window", "bob", 1).await, Code::OverLimit);
    assert_eq!(server.metric("sluicegate_deny_cache_refusals").await, 1.0);
    // Another replica refunds all hits.
    redis.query(&["DEL", &long_windows("s1:fw:86400:{api:fixed_window=bob}")]).await;
    assert_eq!(explain_json(&server, &question).await["would_pass"], true);
}

#[tokio::test]
async fn an_unavailable_store_leaves_the_rest_explained() {
    let mut redis = Redis::start().await;
    let server = serve(LIMITS, &redis.url(), &[]).await;
    redis.pause();
    for _ in 0..2 {
        let question = ["--descriptor", "user=eve", "--descriptor", "tenant=acme"];
        let answer = explain(&server, &question).await;
        assert_eq!((answer.code, &*answer.stderr), (3, ""));
        let explanation = answer.stdout;
        assert!(explanation.starts_with("unknown whether it would pass: "), "{explanation}");
        assert!(
            explanation.contains("limited by rule user (")
                && explanation.contains("level 1, user=eve")
        );
        let counter = long_windows("counter  s1:fw:86400:{api:user=eve}");
        assert!(explanation.contains(&counter), "{explanation}");
        assert!(explanation.contains("state    not known: the store "), "{explanation}");
        let json = explain_json(&server, &question).await;
        assert_eq!(json["would_pass"], Value::Null);
        let limit = &json["descriptors"][0]["limits"][0];
        assert_eq!(limit["counter"], Value::Null);
        assert!(limit["unanswered"].as_str().unwrap().starts_with("the store "), "{limit}");
        let sent = ["--descriptor", "tenant=acme"];
        assert_eq!(explain(&server, &sent).await.code, 0, "no counter is needed");
    }
    // No failure policy charged anything either.
    assert_eq!(server.metric("sluicegate_memory_counters").await, 0.0);
    redis.resume();
}

// === The gRPC call ===

async fn client(server: &Sluicegate) -> AdminServiceClient<Channel> {
    let endpoint = Channel::from_shared(format!("http://{}", server.admin)).unwrap();
    AdminServiceClient::new(endpoint.connect().await.unwrap())
}

fn descriptor(key: &'static str, value: &'static [u8]) -> RateLimitDescriptor {
    let entries = vec![Entry { key: key.into(), value: value.into() }];
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}

#[tokio::test]
async fn overrides_are_explained() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let mut client = client(&server).await;
    let with = |unit| RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit: 3, unit, unit_multiplier: None }),
        ..descriptor("user", b"\xff")
    };
    let descriptors = vec![with(3), with(0)];
    let request = ExplainRequest { domain: "api".to_owned(), descriptors, hits_addend: 4 };
    let explained = client.explain(request).await.unwrap().into_inner();
    assert_eq!(explained.would_pass, Some(false));
    let [brought, ignored] = &explained.descriptors[..] else { panic!("{explained:?}") };
    assert_eq!((brought.outcome(), brought.override_ignored), (Outcome::Overridden, false));
    assert_eq!((ignored.outcome(), ignored.override_ignored), (Outcome::Limited, true));
    let numbers = |position: usize| {
        let limit = &explained.descriptors[position].limits[0];
        let Some(State::Counter(counter)) = &limit.state else { panic!("{limit:?}") };
        (limit.requests_per_unit, limit.unit().as_str_name(), counter.would_pass)
    };
    assert_eq!(numbers(0), (3, "UNIT_HOUR", false));
    assert_eq!(numbers(1), (5, "UNIT_DAY", true));
    assert_eq!(brought.entries[0].value, &b"\xff"[..]);
    assert_eq!(brought.limits[0].counter_key, "s1:fw:3600:{api:user=%ff}");
}

#[tokio::test]
async fn an_invalid_request_is_rejected() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let mut client = client(&server).await;
    let requests = [
        ExplainRequest::default(),
        ExplainRequest { domain: "api".to_owned(), ..ExplainRequest::default() },
        ExplainRequest {
            domain: "api".to_owned(),
            descriptors: vec![descriptor("a", b"b"); 257],
            hits_addend: 0,
        },
    ];
    for request in requests {
        let error = client.explain(request).await.unwrap_err();
        assert_eq!(error.code(), GrpcCode::InvalidArgument, "{error:?}");
    }
}

#[tokio::test]
async fn changed_limits_are_explained_after_the_reload() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    server.replace_limits(&LIMITS.replace("requests_per_unit: 5", "requests_per_unit: 6"));
    until("the new limit", || async {
        let explanation = explain_json(&server, &["--descriptor", "user=eve"]).await;
        (explanation["descriptors"][0]["limits"][0]["requests_per_unit"] == 6).then_some(())
    })
    .await;
}
