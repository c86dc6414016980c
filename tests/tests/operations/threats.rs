//! `docs/security.md`: its test names, and tests of hostile input that no other file has.

use std::{cell::Cell, fs};

use proptest::{
    collection::vec,
    prelude::{Just, Strategy, any},
    prop_oneof,
    sample::select,
    test_runner::{Config, TestCaseError, TestRunner},
};
use serde_json::{Value, json};
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_response::Code;
use sluicegate_tests::{
    Envoy, Listener, Sluicegate, Upstream, binary, bootstrap, finish, hit, request,
    tools::{self, workspace},
    until,
};
use tokio::runtime::Runtime;
use tonic::{Request, metadata::MetadataValue};

// === The document ===

#[test]
fn every_named_test_exists() {
    let page = fs::read_to_string(workspace().join("docs/security.md")).unwrap();
    let named: Vec<_> = page.split('`').skip(1).step_by(2).filter(|it| it.contains("::")).collect();
    assert!(named.len() > 20, "{named:?}");
    for name in named {
        let (file, test) = name.split_once("::").unwrap();
        let path = workspace().join(file);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(text.contains(&format!("fn {test}(")), "{file} has no {test}");
    }
}

#[test]
fn every_threat_names_a_test() {
    let page = fs::read_to_string(workspace().join("docs/security.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| threat"));
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() > 15, "{rows:?}");
    for row in rows {
        assert!(row.contains(".rs::"), "{row}");
    }
}

// === What end users send through Envoy ===

const LIMITS: &str = "
domain: edge
tenant: a
descriptors:
  - key: a
    detailed_metric: true
    rate_limit: {unit: day, requests_per_unit: 3}
    descriptors:
      - key: b
        rate_limit: {unit: day, requests_per_unit: 5, algorithm: token_bucket}
  - key: c
    limits:
      - {unit: minute, requests_per_unit: 10, algorithm: sliding_window_log}
      - {unit: day, requests_per_unit: 100, algorithm: gcra}
  - key: query
    value: admin*
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: cost
    rate_limit: {unit: hour, requests_per_unit: 1000, algorithm: sliding_window_counter}
  - key: open
    on_failure: allow
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: deferring
    on_failure: defer
    rate_limit: {unit: day, requests_per_unit: 2}
";

/// An endpoint without a collector, so that the server reads trace headers.
const READS_TRACES: [&str; 4] =
    ["--decision-log-ratio", "1", "--otlp-endpoint", "http://127.0.0.1:1"];

fn header(name: &str, key: &str) -> Value {
    json!({"request_headers": {"header_name": name, "descriptor_key": key}})
}

/// A route that makes descriptors and hits of everything that a client sends.
fn all_from_the_client() -> Listener {
    let hits = json!({"format": "%REQ(x-hits)%"});
    let rate_limits = json!([
        {"actions": [header("x-a", "a")]},
        {"actions": [header("x-a", "a"), header("x-b", "b")]},
        {"actions": [header("x-c", "c")], "hits_addend": hits},
        {"actions": [header(":path", "query")]},
        {"actions": [header("x-b", "open")]},
        {"actions": [header("x-c", "deferring")]},
        {"actions": [header("x-forwarded-for", "c"), header("user-agent", "d")]},
        {"actions": [header("x-a", "cost")],
            "hits_addend": {"format": "%REQ(x-hits)%", "is_negative_hits": true}},
        {"actions": [{"generic_key": {"descriptor_key": "cost", "descriptor_value": "all"}}],
            "hits_addend": hits},
        {"actions": [{"remote_address": {}}]},
    ]);
    Listener::new("main", "edge").route("/", &rate_limits)
}

/// Bytes of a header value.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("no control character", |byte| {
        *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f)
    });
    let odd = select(vec![
        &b""[..],
        b"\xff\xfe",
        b"\xc3\x28",
        "\u{202e}\u{1f6a6}\u{0}".trim_end_matches('\0').as_bytes(),
        b"{}",
        b"}{acme}",
        b"a=b,c=d;e:f",
        b"s1:fw:86400:{acme}:edge:a",
        b"%REQ(x-a)% %00 %0a",
        b"${jndi:x} $(reboot) `id`",
        b"*",
        b"(other)",
        b"\\n\\r\\x00",
        b"' OR 1=1 --",
    ]);
    prop_oneof![
        4 => vec(byte, 0..200),
        3 => odd.prop_map(<[u8]>::to_vec),
        2 => (any::<u8>(), 0..30_000_usize).prop_map(|(byte, length)| {
            vec![if byte < b'!' || byte == 0x7f { b'x' } else { byte }; length]
        }),
    ]
}

/// Values of the header with the hits.
fn amounts() -> impl Strategy<Value = Vec<u8>> {
    let odd = select(vec![
        "0",
        "1",
        "-1",
        "-0",
        "1000000000",
        "1000000001",
        "4294967295",
        "4294967296",
        "9007199254740993",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "1e9",
        "1e400",
        "NaN",
        "inf",
        "2.6",
        "0x10",
        "+5",
        "5 6",
        "",
        "٣",
    ]);
    prop_oneof![
        odd.prop_map(|text| text.as_bytes().to_vec()),
        any::<u64>().prop_map(|number| number.to_string().into_bytes()),
        bytes(),
        Just(vec![b'9'; 5_000]),
    ]
}

/// Headers of one request.
fn headers() -> impl Strategy<Value = Vec<(&'static str, Vec<u8>)>> {
    let names = ["x-a", "x-a", "x-b", "x-c", "x-forwarded-for", "user-agent", "traceparent"];
    prop_oneof![(select(names.to_vec()), bytes()).boxed(), (Just("x-hits"), amounts()).boxed(),]
        .prop_map(|header| vec![header])
        .prop_flat_map(|first| {
            let names = ["x-a", "x-b", "x-c", "user-agent", "traceparent", "tracestate"];
            vec((select(names.to_vec()), bytes()), 0..5).prop_map(move |mut more| {
                more.extend(first.clone());
                // Envoy accepts 96 KiB of headers, and rejects more by itself.
                let mut room = 90_000_usize;
                more.retain(|(_, value)| {
                    let fits = value.len() <= room;
                    room -= if fits { value.len() } else { 0 };
                    fits
                });
                more
            })
        })
}

/// If Envoy lets a request pass on an error, the response looks like an allowed request. So Envoy's statistics are
/// compared too.
#[test]
fn no_client_input_causes_an_error() {
    let runtime = Runtime::new().unwrap();
    // So few counters that the store is usually full.
    let flags = ["--memory-max-counters", "200", "--detailed-metric-series", "10"];
    let flags = [&flags[..], &READS_TRACES].concat();
    let server = runtime.block_on(Sluicegate::start(LIMITS, &flags));
    let upstream = runtime.block_on(Upstream::start());
    let config = bootstrap(upstream.address, &server.grpc, &[all_from_the_client()]);
    let envoy = runtime.block_on(Envoy::start(&tools::envoy(), &config));
    let asked = Cell::new(0_u64);
    let paths = select(vec!["/", "/admin?%00%ff", "/a/../b?x=%0d%0a", "/?q={x}&q=*"]);
    let config = Config::default();
    // Each case sends a request through two processes.
    let config = Config { cases: config.cases.min(5_000), ..config };
    TestRunner::new(config)
        .run(&(paths, headers()), |(path, headers)| {
            let headers: Vec<_> =
                headers.iter().map(|(name, value)| (*name, value.as_slice())).collect();
            let status = runtime.block_on(envoy.get(path, &headers)).status;
            asked.set(asked.get() + 1);
            let errors = runtime.block_on(envoy.stat("cluster.upstream.ratelimit.error"));
            if errors > 0 || ![200, 429].contains(&status) {
                return Err(TestCaseError::fail(format!("{status}, {errors} errors")));
            }
            Ok(())
        })
        .unwrap();
    runtime.block_on(async {
        let stat = async |kind| envoy.stat(&format!("cluster.upstream.ratelimit.{kind}")).await;
        let (passed, refused) = (stat("ok").await, stat("over_limit").await);
        assert!(passed > 0 && refused > 0, "{passed} {refused}");
        assert_eq!(passed + refused, asked.get(), "all were decided by the server");
        assert_eq!(stat("failure_mode_allowed").await, 0);
        for metric in ["invalid", "deferred"] {
            assert_eq!(server.metric(&format!("sluicegate_requests_{metric}_total")).await, 0.0);
        }
        let log = server.process.output();
        assert!(!log.contains("panicked"), "{log}");
    });
}

#[tokio::test]
async fn a_huge_header_in_many_descriptors_is_decided() {
    let limits = "
domain: edge
descriptors:
  - key: a
    rate_limit: {unit: year, requests_per_unit: 100}
";
    let server = Sluicegate::start(limits, &[]).await;
    let upstream = Upstream::start().await;
    // The documented number of descriptors for a message, each with the largest header that Envoy accepts by default.
    let rate_limits: Vec<_> = (0..60).map(|_| json!({"actions": [header("x-a", "a")]})).collect();
    let listener = Listener::new("main", "edge").route("/", &json!(rate_limits));
    let config = bootstrap(upstream.address, &server.grpc, &[listener]);
    let envoy = Envoy::start(&tools::envoy(), &config).await;
    let value = vec![b'x'; 59_000];
    // 60 hits per request, with a limit of 100.
    for status in [200, 429] {
        assert_eq!(envoy.get("/", &[("x-a", &value)]).await.status, status);
    }
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.error").await, 0);
}

// === Information leaks ===

#[tokio::test]
async fn nothing_of_a_request_is_in_the_log_or_the_metrics() {
    let limits = "
domain: api
tenant: user
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1}
";
    let server = Sluicegate::start(limits, &["--log-level", "info"]).await;
    let secret = "eve@example.com";
    let mut codes = Vec::new();
    for _ in 0..3 {
        let answer = server.should_rate_limit(hit("user", secret)).await.unwrap();
        codes.push(answer.overall_code());
    }
    assert_eq!(codes, [Code::Ok, Code::OverLimit, Code::OverLimit]);
    server.should_rate_limit(hit("nobody", secret)).await.unwrap();
    server.should_rate_limit(request::<&str>(&[&[]])).await.ok();
    server.json("{\"domain\": \"api\", \"descriptors\": \"eve@example.com\"}").await;
    for page in ["/metrics", "/stats", "/rlconfig", "/healthcheck?verbose"] {
        let (_, text) = server.get(page).await;
        assert!(!text.is_empty() && !text.contains("eve@"), "{page}: {text}");
    }
    let log = server.process.output();
    assert!(log.contains("serving") && !log.contains("eve@"), "{log}");
}

#[tokio::test]
async fn no_value_forges_a_line_of_the_log_or_the_metrics() {
    for format in ["text", "json"] {
        let flags = ["--log-level", "debug", "--log-format", format];
        let server = Sluicegate::start(LIMITS, &flags).await;
        let forged = "x\"} 1\nforged_line 1\r\n2026-01-01T00:00:00Z ERROR forged_line\u{1b}[2J\u{202e}\u{2028}\u{feff}\u{e0041}";
        let mut wanted = hit("a", forged);
        wanted.domain = "edge".to_owned();
        server.should_rate_limit(wanted.clone()).await.unwrap();
        wanted.domain = forged.to_owned();
        server.should_rate_limit(wanted).await.unwrap();
        let (_, metrics) = server.get("/metrics").await;
        let log = server.process.output();
        for line in metrics.lines().chain(log.lines()) {
            assert!(!line.starts_with("forged") && !line.starts_with("2026-01-01"), "{line}");
        }
        let (_, stats) = server.get("/stats").await;
        for page in [&metrics, &log, &stats] {
            let hidden = ['\u{1b}', '\u{202e}', '\u{2028}', '\u{feff}', '\u{e0041}'];
            assert!(!page.contains(hidden), "{page:?}");
        }
        assert!(metrics.contains("forged_line"), "the domain is a label on one line: {metrics}");
    }
}

/// Control characters in names of limits files, which would make them look like others, are escaped.
#[tokio::test]
async fn deceptive_names_in_limits_files_are_escaped() {
    let limits = r#"
domain: "shop\u202e\u2028"
descriptors:
  - key: "user\u202e\u001b[2J"
    rate_limit: {unit: day, requests_per_unit: 1, name: "plan\u2066\ufeff"}
"#;
    let server = Sluicegate::start(limits, &["--decision-log-ratio", "1"]).await;
    let mut asked = request(&[&[("user\u{202e}\u{1b}[2J", "bob")]]);
    asked.domain = "shop\u{202e}\u{2028}".to_owned();
    for _ in 0..2 {
        server.should_rate_limit(asked.clone()).await.unwrap();
    }
    let mut shown = vec![server.process.printed("limited", 1).await];
    for page in ["/metrics", "/stats", "/rlconfig"] {
        shown.push(server.get(page).await.1);
    }
    let admin = format!("http://{}", server.admin);
    for arguments in [&["rules"][..], &["status"], &["top", "--once"]] {
        for output in ["text", "json"] {
            let mut command = tokio::process::Command::new(binary("sluicectl"));
            command.args(arguments).args(["--output", output, "--admin-server", &admin]);
            let finished = finish(command).await;
            assert_eq!(finished.code, 0, "{arguments:?}: {finished:?}");
            shown.push(finished.stdout);
        }
    }
    let file = server.folder().join("limits.yaml");
    let mut explain = tokio::process::Command::new(binary("sluicegate"));
    explain.arg("validate").arg(file).args(["--explain", "--domain", &asked.domain]);
    explain.args(["--descriptor", "user\u{202e}\u{1b}[2J=bob"]);
    shown.push(finish(explain).await.stdout);
    for text in shown {
        let hidden = ['\u{202e}', '\u{2028}', '\u{1b}', '\u{2066}', '\u{feff}'];
        assert!(!text.contains(hidden) && !text.is_empty(), "{text:?}");
    }
}

// === Callers ===

#[tokio::test]
async fn invalid_trace_headers_are_ignored() {
    let server = Sluicegate::start(LIMITS, &READS_TRACES).await;
    let huge = "a=".to_owned() + &"b".repeat(8_000);
    let sampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let mut traced = 0.0;
    for (parent, state, is_trace) in [
        ("", "", false),
        ("00-0-0-0", "=,=,=", false),
        ("ff-00000000000000000000000000000000-0000000000000000-ff", huge.as_str(), false),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", "\t", false),
        ("'; drop", &huge, false),
        (sampled, "a=b", true),
        // The trace continues without an invalid `tracestate`.
        (sampled, "=,=,=", true),
        (sampled, "\t", true),
        (sampled, &huge, true),
        (sampled, "a=1,a=2,B@=\u{7e}", true),
    ] {
        let mut asked = hit("c", parent);
        asked.domain = "edge".to_owned();
        let mut asked = Request::new(asked);
        let metadata = asked.metadata_mut();
        metadata.insert("traceparent", MetadataValue::try_from(parent).unwrap());
        metadata.insert("tracestate", MetadataValue::try_from(state).unwrap());
        let answer = server.connect().await.should_rate_limit(asked).await.unwrap();
        assert_eq!(answer.into_inner().overall_code(), Code::Ok, "{parent} {state}");
        traced += f64::from(u8::from(is_trace));
        until(&format!("{traced} traces, {parent} {state}"), async || {
            (server.metric("sluicegate_traced_requests_total").await == traced).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn the_grpc_listener_has_no_admin_methods() {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let asked = std::process::Command::new(binary("sluicectl"))
        .args(["explain", "--admin-server", &format!("http://{}", server.grpc)])
        .args(["--domain", "edge", "--descriptor", "a=b", "--timeout", "30s"])
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&asked.stderr);
    assert!(!asked.status.success() && error.to_lowercase().contains("unimplemented"), "{error}");
}
