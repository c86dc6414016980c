//! Traces, from Envoy through the server to a real collector.

use std::{collections::BTreeMap, path::Path};

use nix::sys::signal::Signal;
use serde_json::json;
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
};
use sluicegate_tests::{
    Authority, Collector, Envoy, HangingStore, Listener, Mode, Proxy, Redis, Sluicegate, Upstream,
    bootstrap, free_port, hit, hits, long_windows, request, tools, traced, until,
};
use tonic::{Request, Status};

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: lost
    on_failure: defer
    rate_limit: {unit: day, requests_per_unit: 2}
  - key: free
    rate_limit: {unlimited: true}
";

const RPC: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

// === Output of the collector ===

/// A span in the output of the collector.
#[derive(Clone, Debug, Default)]
struct Span {
    /// Fields, such as `Trace ID`.
    fields: BTreeMap<String, String>,
    attributes: BTreeMap<String, String>,
}

impl Span {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// The value of an attribute, as text.
    fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }

    /// Whether it is a complete server span.
    fn is_request(&self) -> bool {
        let last = ["rpc.grpc.status_code", "http.response.status_code"];
        last.iter().any(|name| self.attributes.contains_key(*name))
            && self.field("Kind") == "SPAN_KIND_SERVER"
    }
}

/// All spans that the collector has printed so far. The last may be incomplete.
fn spans(collector: &Collector) -> Vec<Span> {
    let mut spans = Vec::<Span>::new();
    let mut within = false;
    for line in collector.process.output().lines() {
        if line.starts_with("Span #") {
            spans.push(Span::default());
            within = true;
        } else if line.starts_with("ResourceSpans") || line.starts_with("ScopeSpans #") {
            within = false;
        } else if let (true, Some(span)) = (within, spans.last_mut()) {
            if let Some((name, value)) = line.trim().strip_prefix("-> ").and_then(named) {
                let value = value.split_once('(').map_or(value, |(_, value)| value);
                let value = value.strip_suffix(')').unwrap_or(value);
                span.attributes.insert(name.to_owned(), value.to_owned());
            } else if let Some((name, value)) = named(line) {
                span.fields.insert(name.to_owned(), value.to_owned());
            }
        }
    }
    spans
}

fn named(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(": ").or_else(|| Some((line.strip_suffix(':')?, "")))?;
    Some((name.trim(), value.trim()))
}

/// The server spans, once there are `count`.
async fn requests(collector: &Collector, count: usize) -> Vec<Span> {
    until(&format!("{count} requests in the collector"), || async {
        let found: Vec<_> = spans(collector).into_iter().filter(Span::is_request).collect();
        (found.len() >= count).then_some(found)
    })
    .await
}

/// Child spans of a span.
fn below(collector: &Collector, parent: &Span) -> Vec<Span> {
    let all = spans(collector).into_iter();
    all.filter(|span| span.field("Parent ID") == parent.field("ID")).collect()
}

// === Requests ===

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

/// A server that sends traces after a short delay.
async fn server(endpoint: &str, flags: &[&str]) -> Sluicegate {
    let flags = [&["--otlp-endpoint", endpoint], flags].concat();
    Sluicegate::start_in(&long_windows(LIMITS), &flags, &[("OTEL_BSP_SCHEDULE_DELAY", "100")]).await
}

async fn ask(
    server: &Sluicegate,
    message: RateLimitRequest,
    traceparent: Option<&str>,
) -> Result<RateLimitResponse, Status> {
    let mut request = Request::new(message);
    if let Some(parent) = traceparent {
        request.metadata_mut().insert("traceparent", parent.parse().unwrap());
        request.metadata_mut().insert("tracestate", "vendor=1".parse().unwrap());
    }
    Ok(server.connect().await.should_rate_limit(request).await?.into_inner())
}

async fn stopped(mut server: Sluicegate) {
    server.process.signal(Signal::SIGTERM);
    assert!(server.process.ended().await.success());
}

/// The attributes as `name=value`, in order.
fn attributes(span: &Span) -> Vec<String> {
    span.attributes.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

#[tokio::test]
async fn a_sampled_trace_of_the_caller_is_continued() {
    let collector = Collector::start().await;
    let server = server(&collector.endpoint, &[]).await;
    ask(&server, hit("user", "bob"), Some(&parent("00"))).await.unwrap();
    ask(&server, hit("user", "bob"), None).await.unwrap();
    ask(&server, hit("user", "bob"), Some("00-nothing-that-can-be-read-01")).await.unwrap();
    let refused = ask(&server, hit("user", "bob"), Some(&parent("01"))).await.unwrap();
    assert_eq!(refused.overall_code(), Code::OverLimit);
    let found = requests(&collector, 1).await;
    let [span] = &found[..] else { panic!("{found:?}") };
    assert_eq!(span.field("Name"), RPC);
    assert_eq!((span.field("Trace ID"), span.field("Parent ID")), (TRACE, PARENT));
    assert_eq!(span.field("Status code"), "STATUS_CODE_UNSET");
    let wanted = [
        "rpc.grpc.status_code=0",
        "rpc.method=ShouldRateLimit",
        "rpc.service=envoy.service.ratelimit.v3.RateLimitService",
        "rpc.system=grpc",
        "sluicegate.code=OVER_LIMIT",
        "sluicegate.descriptors=1",
        "sluicegate.domain=api",
        "sluicegate.rule=user",
        "sluicegate.source=store",
    ];
    assert_eq!(attributes(span), wanted);
    let steps = below(&collector, span);
    let [matching, deciding] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!((matching.field("Name"), deciding.field("Name")), ("match", "decide"));
    // The memory store is not another service.
    assert_eq!(deciding.field("Kind"), "SPAN_KIND_INTERNAL");
    assert_eq!(attributes(deciding), ["sluicegate.checks=1"]);
    // One after the other, within the server span.
    let time = |span: &Span, which: &str| span.field(which).parse::<u64>().unwrap();
    let times = [
        time(span, "Start time"),
        time(matching, "Start time"),
        time(matching, "End time"),
        time(deciding, "Start time"),
        time(deciding, "End time"),
        time(span, "End time"),
    ];
    assert!(times.is_sorted(), "{times:?}");
    let output = collector.process.output();
    assert!(output.contains("service.name: Str(sluicegate)"), "{output}");
    assert_eq!(server.metric("sluicegate_traced_requests_total").await, 1.0);
    stopped(server).await;
    assert_eq!(spans(&collector).len(), 3);
}

#[tokio::test]
async fn trace_ratio_samples_requests_without_a_trace() {
    let collector = Collector::start().await;
    let all = server(&collector.endpoint, &["--trace-ratio", "1"]).await;
    for _ in 0..3 {
        ask(&all, hit("free", "x"), None).await.unwrap();
    }
    // The caller's decision takes precedence.
    ask(&all, hit("free", "x"), Some(&parent("00"))).await.unwrap();
    stopped(all).await;
    let found = requests(&collector, 3).await;
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|span| span.field("Parent ID").is_empty()), "{found:?}");
    assert_eq!(found[0].attribute("sluicegate.code"), "OK");
    assert_ne!(found[0].field("Trace ID"), found[1].field("Trace ID"));

    let some = server(&collector.endpoint, &["--trace-ratio", "0.5"]).await;
    let mut client = some.connect().await;
    let asked = 400;
    for _ in 0..asked {
        client.should_rate_limit(hit("free", "x")).await.unwrap();
    }
    let traced = some.metric("sluicegate_traced_requests_total").await;
    // A tolerance of ten standard deviations.
    assert!((100.0..=300.0).contains(&traced), "{traced} of {asked}");
    stopped(some).await;
    let sent = async || {
        let found = spans(&collector).into_iter().filter(Span::is_request).count();
        f64::from(u32::try_from(found).unwrap()) - 3.0
    };
    until("all of them", async || (sent().await >= traced).then_some(())).await;
    assert_eq!(sent().await, traced);
}

#[tokio::test]
async fn requests_are_traced_on_every_listener() {
    let collector = Collector::start().await;
    let server = server(&collector.endpoint, &["--grpc-max-message-bytes", "1000"]).await;
    let http = |method: reqwest::Method, body: &'static str| {
        let client = reqwest::Client::new();
        let request = client.request(method, format!("http://{}/json", server.http));
        request.header("traceparent", parent("01")).body(body).send()
    };
    let body = r#"{"domain":"api","descriptors":[{"entries":[{"key":"user","value":"bob"}],"hitsAddend":"3"}]}"#;
    assert_eq!(http(reqwest::Method::POST, body).await.unwrap().status(), 429);
    let secret = reqwest::Method::from_bytes(b"SECRET").unwrap();
    assert_eq!(http(secret, "{}").await.unwrap().status(), 400);
    let found = requests(&collector, 2).await;
    let find = |name: &str| found.iter().find(|span| span.field("Name") == name).unwrap();
    let posted = find("POST /json");
    assert_eq!((posted.field("Trace ID"), posted.field("Parent ID")), (TRACE, PARENT));
    assert_eq!(posted.attribute("http.response.status_code"), "429");
    assert_eq!(posted.attribute("http.route"), "/json");
    assert_eq!(posted.attribute("sluicegate.code"), "OVER_LIMIT");
    assert_eq!(find("HTTP /json").attribute("http.request.method"), "_OTHER");
    assert!(!collector.process.output().contains("SECRET"));

    // Also calls that tonic handles: with an encoding, and too large ones.
    let by_tonic = async |message: RateLimitRequest| {
        let mut message = Request::new(message);
        message.metadata_mut().insert("traceparent", parent("01").parse().unwrap());
        message.metadata_mut().insert("grpc-encoding", "identity".parse().unwrap());
        server.connect().await.should_rate_limit(message).await
    };
    by_tonic(hit("user", "bob")).await.unwrap();
    let large = by_tonic(hit("user", &"x".repeat(2_000))).await.unwrap();
    assert_eq!(large.get_ref().overall_code(), Code::OverLimit);
    let found = requests(&collector, 4).await;
    let [decided, refused] = &found[2..] else { panic!("{found:?}") };
    assert_eq!(decided.attribute("sluicegate.source"), "store");
    assert_eq!(decided.attribute("rpc.grpc.status_code"), "0");
    assert_eq!((decided.field("Trace ID"), decided.field("Parent ID")), (TRACE, PARENT));
    assert_eq!(refused.attribute("sluicegate.bound"), "message_bytes");
    assert_eq!(refused.attribute("sluicegate.code"), "OVER_LIMIT");
    assert_eq!(refused.attribute("rpc.grpc.status_code"), "0");
}

#[tokio::test]
async fn spans_show_errors() {
    let collector = Collector::start().await;
    let mut redis = Redis::start().await;
    let url = redis.url();
    let flags = ["--store", &*url, "--decision-timeout", "5s"];
    let server = server(&collector.endpoint, &flags).await;
    until("Redis", || async {
        (server.metric("sluicegate_store_degraded").await == 0.0).then_some(())
    })
    .await;
    let traced = parent("01");
    ask(&server, hit("user", "bob"), Some(&traced)).await.unwrap();
    let found = requests(&collector, 1).await;
    let steps = below(&collector, &found[0]);
    let deciding = steps.iter().find(|it| it.field("Name") == "decide").unwrap();
    assert_eq!(deciding.field("Kind"), "SPAN_KIND_CLIENT");
    let port = redis.address().rsplit_once(':').unwrap().1.to_owned();
    let wanted = [
        "db.system.name=redis",
        "server.address=127.0.0.1",
        &format!("server.port={port}"),
        "sluicegate.checks=1",
    ];
    assert_eq!(attributes(deciding), wanted);
    assert_eq!(found[0].attribute("sluicegate.degraded"), "");

    // A cached refusal does not call the store.
    ask(&server, hits("user", "bob", 2), Some(&traced)).await.unwrap();
    ask(&server, hits("user", "bob", 2), Some(&traced)).await.unwrap();
    ask(&server, hits("user", "bob", 1), Some(&traced)).await.unwrap();
    for _ in 0..2 {
        let refused = ask(&server, hit("user", "bob"), Some(&traced)).await.unwrap();
        assert_eq!(refused.overall_code(), Code::OverLimit);
    }
    let found = requests(&collector, 6).await;
    let remembered = found.last().unwrap();
    assert_eq!(remembered.attribute("sluicegate.source"), "deny_cache");
    let steps = below(&collector, remembered);
    let deciding = steps.iter().find(|it| it.field("Name") == "decide").unwrap();
    assert_eq!(deciding.field("Kind"), "SPAN_KIND_INTERNAL");

    redis.kill().await;
    ask(&server, hit("user", "eve"), Some(&traced)).await.unwrap();
    let deferred = ask(&server, hit("lost", "eve"), Some(&traced)).await.unwrap_err();
    let invalid = ask(&server, RateLimitRequest::default(), Some(&traced)).await.unwrap_err();
    let found = requests(&collector, 9).await;
    let [local, lost, nothing] = &found[6..] else { panic!("{found:?}") };
    assert_eq!(local.attribute("sluicegate.source"), "local");
    assert_eq!(local.attribute("sluicegate.degraded"), "true");
    assert_eq!(local.field("Status code"), "STATUS_CODE_UNSET");
    let steps = below(&collector, local);
    assert!(steps.iter().any(|step| step.field("Status code") == "STATUS_CODE_ERROR"));
    assert_eq!(lost.attribute("sluicegate.deferred"), "true");
    assert_eq!(lost.attribute("rpc.grpc.status_code"), (deferred.code() as i32).to_string());
    assert_eq!(lost.field("Status code"), "STATUS_CODE_ERROR");
    assert_eq!(lost.field("Status message"), deferred.message());
    assert_eq!(nothing.attribute("rpc.grpc.status_code"), (invalid.code() as i32).to_string());
    assert_eq!(nothing.field("Status code"), "STATUS_CODE_ERROR");
    assert_eq!(nothing.field("Status message"), invalid.message());
}

#[tokio::test]
async fn spans_show_shed_requests() {
    let collector = Collector::start().await;
    let mut store = HangingStore::start().await;
    let flags = [&store.arguments()[..], &["--max-in-flight", "1"]].concat();
    let server = server(&collector.endpoint, &flags).await;
    let held = store.hold(&server, hit("user", "ann")).await;
    ask(&server, hit("user", "bob"), Some(&parent("01"))).await.unwrap();
    let found = requests(&collector, 1).await;
    assert_eq!(found[0].attribute("sluicegate.shed"), "true");
    assert_eq!(found[0].attribute("sluicegate.code"), "OVER_LIMIT");
    store.release();
    held.answer().await.unwrap();
}

#[tokio::test]
async fn spans_show_cancelled_calls() {
    let collector = Collector::start().await;
    let mut redis = Redis::start().await;
    let url = redis.url();
    let flags = ["--store", &*url, "--decision-timeout", "1h", "--drain-timeout", "1s"];
    let server = server(&collector.endpoint, &flags).await;
    until("Redis", || async {
        (server.metric("sluicegate_store_degraded").await == 0.0).then_some(())
    })
    .await;
    redis.pause();
    let mut message = Request::new(hit("user", "bob"));
    message.metadata_mut().insert("traceparent", parent("01").parse().unwrap());
    let mut client = server.connect().await;
    let asked = tokio::spawn(async move { client.should_rate_limit(message).await });
    until("the call", || async {
        (server.metric("sluicegate_requests_in_flight").await == 1.0).then_some(())
    })
    .await;
    asked.abort();
    until("the trace", || async {
        let given_up = |span: &Span| span.field("Status message") == "not answered";
        spans(&collector).iter().any(given_up).then_some(())
    })
    .await;
    redis.resume();
}

// === Envoy ===

#[tokio::test]
async fn envoy_and_the_server_share_a_trace() {
    let collector = Collector::start().await;
    let server = server(&collector.endpoint, &[]).await;
    let upstream = Upstream::start().await;
    let actions = json!([{"actions": [
        {"request_headers": {"header_name": "x-user", "descriptor_key": "user"}},
    ]}]);
    let listener = Listener::new("main", "api").route("/", &actions);
    let config =
        traced(&bootstrap(upstream.address, &server.grpc, &[listener]), &collector.endpoint);
    let envoy = Envoy::start(&tools::envoy(), &config).await;
    let secret = "sEcReT-customer";
    for status in [200, 200, 429] {
        let answer = envoy.get("/page", &[("x-user", secret.as_bytes())]).await;
        assert_eq!(answer.status, status);
    }
    let found = requests(&collector, 3).await;
    for span in &found {
        let trace = span.field("Trace ID").to_owned();
        // Envoy sends its own spans at any time.
        let (egress, ingress) = until("Envoy's spans", || async {
            let all = spans(&collector);
            let find = |id: &str| all.iter().find(|it| it.field("ID") == id && !id.is_empty());
            let egress = find(span.field("Parent ID"))?;
            Some((egress.clone(), find(egress.field("Parent ID"))?.clone()))
        })
        .await;
        assert!(egress.field("Name").ends_with("ShouldRateLimit egress"), "{egress:?}");
        assert_eq!(ingress.field("Name"), "ingress");
        for span in [&egress, &ingress] {
            assert_eq!(span.field("Trace ID"), trace);
        }
        assert_eq!(below(&collector, span).len(), 2);
    }
    let codes: Vec<_> = found.iter().map(|span| span.attribute("sluicegate.code")).collect();
    assert_eq!(codes, ["OK", "OK", "OVER_LIMIT"]);
    let output = collector.process.output();
    assert!(!output.contains(secret), "{output}");
}

#[tokio::test]
async fn nothing_of_a_request_is_in_a_trace() {
    let collector = Collector::start().await;
    let server =
        server(&collector.endpoint, &["--trace-ratio", "1", "--otlp-metrics-interval", "0s"]).await;
    let marker = "mArKeR7261";
    for domain in ["api", marker, ""] {
        for key in ["user", "free", marker] {
            for _ in 0..4 {
                let mut marked = request(&[&[(key, marker)][..], &[(marker, "x")]]);
                marked.domain = domain.to_owned();
                let mut marked = Request::new(marked);
                marked.metadata_mut().insert("x-marker", marker.parse().unwrap());
                let _ = server.connect().await.should_rate_limit(marked).await;
            }
        }
    }
    for path in ["/json", "/json?mArKeR7261"] {
        let url = format!("http://{}{path}", server.http);
        for body in [marker, r#"{"domain":"mArKeR7261","descriptors":[{"entries":[]}]}"#] {
            reqwest::Client::new().post(&url).body(body).send().await.unwrap();
        }
    }
    stopped(server).await;
    requests(&collector, 3 * 3 * 4 + 4).await;
    let output = collector.process.output();
    assert!(!output.contains(marker), "{output}");
}

// === An unavailable collector ===

#[tokio::test]
async fn an_unavailable_collector_changes_no_answer() {
    let port = free_port();
    let server = server(&format!("http://127.0.0.1:{port}"), &["--trace-ratio", "1"]).await;
    let mut client = server.connect().await;
    // More spans than may be queued.
    for _ in 0..3_000 {
        let answer = client.should_rate_limit(hit("free", "x")).await.unwrap().into_inner();
        assert_eq!(answer.overall_code(), Code::Ok);
    }
    for code in [Code::Ok, Code::Ok, Code::OverLimit] {
        let answer = ask(&server, hit("user", "bob"), Some(&parent("01"))).await.unwrap();
        assert_eq!(answer.overall_code(), code);
    }
    server.process.printed("traces cannot be sent to the collector", 1).await;
    assert_eq!(server.metric("sluicegate_traced_requests_total").await, 3_003.0);
    assert_eq!(server.metric("sluicegate_traced_requests_sent_total").await, 0.0);
    let mut server = server;
    server.process.signal(Signal::SIGTERM);
    assert!(server.process.ended().await.success());
    let log = server.process.output();
    let warnings = log.lines().filter(|line| line.contains("traces cannot be sent")).count();
    assert_eq!(warnings, 1, "{log}");
}

#[tokio::test]
async fn a_recovered_collector_gets_traces_again() {
    let collector = Collector::start().await;
    let proxy = Proxy::start(collector.endpoint.strip_prefix("http://").unwrap()).await;
    proxy.set(Mode::Refuse);
    let server = server(&format!("http://{}", proxy.address()), &["--trace-ratio", "1"]).await;
    let until_logged = async |what: &str| {
        until(what, || async {
            server.connect().await.should_rate_limit(hit("free", "x")).await.unwrap();
            server.process.output().contains(what).then_some(())
        })
        .await;
    };
    until_logged("traces cannot be sent to the collector").await;
    proxy.set(Mode::Pass);
    until_logged("traces are sent to the collector again").await;
    requests(&collector, 1).await;
    assert!(server.metric("sluicegate_traced_requests_sent_total").await > 0.0);
    stopped(server).await;
}

#[tokio::test]
async fn a_silent_collector_does_not_delay_the_shutdown() {
    let collector = Collector::start().await;
    let proxy = Proxy::start(collector.endpoint.strip_prefix("http://").unwrap()).await;
    proxy.set(Mode::Swallow);
    let server = server(&format!("http://{}", proxy.address()), &["--trace-ratio", "1"]).await;
    ask(&server, hit("free", "x"), None).await.unwrap();
    let mut server = server;
    server.process.signal(Signal::SIGTERM);
    assert!(server.process.ended().await.success());
    let log = server.process.output();
    assert!(log.contains("the last traces were not sent to the collector"), "{log}");
}

/// An Envoy that terminates TLS in front of the collector.
async fn front(collector: &Collector, folder: &Path) -> Envoy {
    let file = |name: &str| json!({"filename": folder.join(name).to_str().unwrap()});
    let socket = |address: &str| {
        let (host, port) = address.rsplit_once(':').unwrap();
        json!({"socket_address": {"address": host, "port_value": port.parse::<u16>().unwrap()}})
    };
    let collector = collector.endpoint.strip_prefix("http://").unwrap();
    let api = |kind: &str| format!("type.googleapis.com/envoy.extensions.{kind}");
    let tls = json!({
        "@type": api("transport_sockets.tls.v3.DownstreamTlsContext"),
        "common_tls_context": {
            "alpn_protocols": ["h2"],
            "tls_certificates": [
                {"certificate_chain": file("collector.pem"), "private_key": file("collector.key")},
            ],
        },
    });
    let proxy = json!({
        "@type": api("filters.network.tcp_proxy.v3.TcpProxy"),
        "stat_prefix": "main",
        "cluster": "collector",
    });
    let config = json!({
        "admin": {"address": socket("127.0.0.1:0")},
        "static_resources": {
            "listeners": [{
                "name": "main",
                "address": socket("127.0.0.1:0"),
                "filter_chains": [{
                    "filters": [{"name": "envoy.filters.network.tcp_proxy", "typed_config": proxy}],
                    "transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": tls},
                }],
            }],
            "clusters": [{
                "name": "collector",
                "type": "STATIC",
                "load_assignment": {
                    "cluster_name": "collector",
                    "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket(collector)}}]}],
                },
            }],
        },
    });
    Envoy::start(&tools::envoy(), &config.to_string()).await
}

#[tokio::test]
async fn traces_are_sent_over_tls_to_a_trusted_collector() {
    let collector = Collector::start().await;
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("a");
    authority.issue("127.0.0.1").write(folder.path(), "collector");
    let ca = folder.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    // The collector has no TLS; Envoy in front of it does.
    let front = front(&collector, folder.path()).await;
    let endpoint = format!("https://{}", front.listener("main").await);
    let flags = ["--trace-ratio", "1", "--otlp-tls-ca", ca.to_str().unwrap()];
    let trusting = server(&endpoint, &flags).await;
    ask(&trusting, hit("free", "x"), None).await.unwrap();
    stopped(trusting).await;
    requests(&collector, 1).await;

    std::fs::write(&ca, Authority::new("b").pem()).unwrap();
    let trusting_others = server(&endpoint, &flags).await;
    ask(&trusting_others, hit("free", "x"), None).await.unwrap();
    stopped(trusting_others).await;
    assert_eq!(requests(&collector, 1).await.len(), 1);
}
