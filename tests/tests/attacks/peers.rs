//! Tests that well-behaved peers reach no bound: Envoy under load, and common test tools.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Duration,
};

use futures::future::join_all;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sluicegate_proto::envoy::service::ratelimit::v3::{
    rate_limit_response::Code, rate_limit_service_client::RateLimitServiceClient,
};
use sluicegate_tests::{
    Answer, Attack, Authority, Collector, Envoy, HealthyClient, Listener, Mode, Process, Proxy,
    Redis, Sluicegate, Upstream, binary, bootstrap, finish, hit, long_windows,
    tools::{self, workspace},
    traced, until,
};
use tokio::process::Command as AsyncCommand;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};

const LIMITS: &str = "
domain: api
descriptors:
  - key: healthy
    rate_limit: {unlimited: true}
  - key: user
    rate_limit: {unit: day, requests_per_unit: 3}
  - key: sixtieth
    rate_limit: {unit: day, requests_per_unit: 180}
  - key: load
    rate_limit: {unit: day, requests_per_unit: 500}
";

// === Bounds ===

/// The metrics in `docs/bounds.md`. Each counts how often a bound was reached.
fn bound_metrics() -> BTreeSet<String> {
    let page = fs::read_to_string(workspace().join("docs/bounds.md")).unwrap();
    let quoted = page.split('`').skip(1).step_by(2);
    let metrics: BTreeSet<_> =
        quoted.filter(|it| it.starts_with("sluicegate_")).map(str::to_owned).collect();
    assert!(metrics.len() >= 5, "{metrics:?}");
    metrics
}

async fn assert_no_bound_met(server: &Sluicegate) {
    for metric in bound_metrics() {
        assert_eq!(server.sum(&metric, &[]).await, 0.0, "{metric}\n{}", server.process.output());
    }
}

// === Envoy ===

/// A server, and an Envoy that calls it.
struct Gateway {
    server: Sluicegate,
    envoy: Envoy,
    _upstream: Upstream,
}

impl Gateway {
    /// Starts an Envoy with this number of workers in front of the server.
    async fn start(
        server: Sluicegate,
        listener: &Listener,
        workers: usize,
        configure: impl FnOnce(&mut Value),
    ) -> Self {
        let upstream = Upstream::start().await;
        let bootstrap = bootstrap(upstream.address, &server.grpc, std::slice::from_ref(listener));
        let mut config = serde_json::from_str(&bootstrap).unwrap();
        configure(&mut config);
        let config = config.to_string();
        let envoy = Envoy::start_with_workers(&tools::envoy(), &config, workers).await;
        Self { server, envoy, _upstream: upstream }
    }

    /// The statistic of Envoy's filter with this name.
    async fn answers(&self, kind: &str) -> u64 {
        self.envoy.stat(&format!("cluster.upstream.ratelimit.{kind}")).await
    }

    /// A statistic of Envoy's cluster of the rate limit service.
    async fn cluster_stat(&self, name: &str) -> u64 {
        self.envoy.stat(&format!("cluster.sluicegate.{name}")).await
    }

    /// Asserts, by Envoy's statistics, that the server has decided every request.
    async fn assert_all_decided(&self, passed: u64, refused: u64) {
        let kinds = ["ok", "over_limit", "error", "failure_mode_allowed"];
        let counted = join_all(kinds.map(|kind| self.answers(kind))).await;
        let calls = self.envoy.stats("upstream_(cx|rq)").await;
        assert_eq!(counted, [passed, refused, 0, 0], "{calls}{}", self.envoy.process.output());
    }

    /// Sends requests through Envoy with h2load. Returns the number of responses by class of status, such as `2xx`.
    async fn h2load(
        &self,
        connections: usize,
        streams: usize,
        requests: usize,
        header: &str,
    ) -> BTreeMap<String, u64> {
        let mut command = AsyncCommand::new("h2load");
        command.args(["-c", &connections.to_string(), "-m", &streams.to_string()]);
        command.args(["-n", &requests.to_string(), "-H", header]);
        command.arg(format!("http://{}/", self.envoy.listener("main").await));
        let finished = finish(command).await;
        let line = finished.stdout.lines().find_map(|line| line.strip_prefix("status codes: "));
        let line = line.unwrap_or_else(|| panic!("{finished:?}"));
        let classes = line.split(", ").map(|it| it.split_once(' ').unwrap());
        let classes = classes.map(|(count, class)| (class.to_owned(), count.parse().unwrap()));
        let classes = BTreeMap::from_iter(classes.filter(|(_, count)| *count > 0));
        assert_eq!(
            classes.values().sum::<u64>(),
            u64::try_from(requests).unwrap(),
            "{}",
            finished.stdout
        );
        classes
    }
}

/// Creates descriptors from the headers `load` and `user`, with a timeout long enough for a busy machine.
fn listener() -> Listener {
    let action = |key: &str| {
        let header = format!("x-{key}");
        json!({"actions": [{"request_headers": {"header_name": header, "descriptor_key": key}}]})
    };
    Listener::new("main", "api")
        .filter("timeout", json!("60s"))
        .route("/", &json!([action("load"), action("user")]))
}

/// Lets Envoy send any number of concurrent calls to each cluster.
fn raise_circuit_breakers(config: &mut Value) {
    for cluster in config["static_resources"]["clusters"].as_array_mut().unwrap() {
        let threshold = json!({
            "max_connections": 100_000,
            "max_pending_requests": 100_000,
            "max_requests": 100_000,
        });
        cluster["circuit_breakers"] = json!({"thresholds": [threshold]});
    }
}

#[tokio::test]
async fn eight_envoy_workers_under_load_reach_no_bound() {
    let server = Sluicegate::start(&long_windows(LIMITS), &[]).await;
    let healthy = HealthyClient::start(&server).await;
    let gateway = Gateway::start(server, &listener(), 8, raise_circuit_breakers).await;
    // All streams arrive together, before any worker has a connection to the server.
    let classes = gateway.h2load(64, 100, 20_000, "x-load: one").await;
    assert_eq!(classes, [("2xx".to_owned(), 500), ("4xx".to_owned(), 19_500)].into());
    healthy.stop().await.assert_all_decided("Envoy under load");
    gateway.assert_all_decided(500, 19_500).await;
    assert_eq!(gateway.cluster_stat("upstream_rq_rx_reset").await, 0);
    assert_no_bound_met(&gateway.server).await;
}

#[tokio::test]
async fn eight_envoy_workers_with_a_slow_redis_reach_no_bound() {
    let redis = Redis::start().await;
    let proxy = Proxy::start(&redis.address()).await;
    proxy.set(Mode::Delay(Duration::from_millis(5)));
    let url = format!("redis://{}", proxy.address());
    let server =
        Sluicegate::start(&long_windows(LIMITS), &["--store", &url, "--decision-timeout", "50s"])
            .await;
    until("Redis", || async {
        (server.metric("sluicegate_store_degraded").await == 0.0).then_some(())
    })
    .await;
    let gateway = Gateway::start(server, &listener(), 8, raise_circuit_breakers).await;
    let classes = gateway.h2load(64, 100, 10_000, "x-load: one").await;
    assert_eq!(classes, [("2xx".to_owned(), 500), ("4xx".to_owned(), 9_500)].into());
    gateway.assert_all_decided(500, 9_500).await;
    assert_eq!(gateway.cluster_stat("upstream_rq_rx_reset").await, 0);
    assert_no_bound_met(&gateway.server).await;
}

#[tokio::test]
async fn calls_that_envoy_cancels_close_no_connection() {
    let server = Sluicegate::start(&long_windows(LIMITS), &[]).await;
    // Envoy's default.
    let listener = listener().filter("timeout", json!("0.02s"));
    let gateway = Gateway::start(server, &listener, 2, raise_circuit_breakers).await;
    // Every worker connects.
    until("both connections", async || {
        gateway.h2load(16, 1, 16, "x-user: ann").await;
        (gateway.cluster_stat("upstream_cx_total").await == 2).then_some(())
    })
    .await;
    let errors = gateway.answers("error").await;
    gateway.server.process.signal(Signal::SIGSTOP);
    // Each request waits 20 ms and passes, and its call is reset.
    let classes = gateway.h2load(8, 100, 800, "x-user: ann").await;
    gateway.server.process.signal(Signal::SIGCONT);
    assert_eq!(classes, [("2xx".to_owned(), 800)].into());
    assert_eq!(gateway.answers("error").await, errors + 800);
    // Envoy lets one of them pass if the machine pauses the server for 20 ms.
    until("decisions", async || {
        let answer = gateway.envoy.get("/", &[("x-user", b"ann")]).await;
        (answer.status == 429).then_some(())
    })
    .await;
    let closed = gateway.cluster_stat("upstream_cx_destroy").await;
    assert_eq!(closed, 0, "{}", gateway.envoy.stats("cluster.sluicegate").await);
}

// === TLS ===

/// Starts a server with a certificate for the loopback address.
async fn start_with_tls(authority: &Authority) -> Sluicegate {
    let folder = tempfile::tempdir().unwrap();
    authority.issue("127.0.0.1").write(folder.path(), "server");
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [limits, cert, key] = ["limits.yaml", "server.pem", "server.key"].map(path);
    fs::write(&limits, long_windows(LIMITS)).unwrap();
    fs::write(path("ca.pem"), authority.pem()).unwrap();
    let flags = ["--limits", &limits, "--grpc-tls-cert", &cert, "--grpc-tls-key", &key];
    Sluicegate::start_with(folder, &flags).await
}

#[tokio::test]
async fn sixty_four_tls_connections_of_one_address_open_at_once() {
    let authority = Authority::new("ours");
    let server = start_with_tls(&authority).await;
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem()));
    let endpoint = Channel::from_shared(format!("https://{}", server.grpc)).unwrap();
    let endpoint = endpoint.tls_config(tls).unwrap();
    let connections = join_all((0..64).map(|_| endpoint.connect())).await;
    let calls = connections.into_iter().map(async |connection| {
        let mut client = RateLimitServiceClient::new(connection.unwrap());
        client.should_rate_limit(hit("healthy", "client")).await.unwrap().into_inner()
    });
    for answer in join_all(calls).await {
        assert_eq!(answer.overall_code(), Code::Ok);
    }
    assert_no_bound_met(&server).await;
}

#[tokio::test]
async fn sixty_four_envoy_workers_of_one_address_connect_over_tls() {
    let server = start_with_tls(&Authority::new("ours")).await;
    let ca = server.folder().join("ca.pem").to_str().unwrap().to_owned();
    let gateway = Gateway::start(server, &listener(), 64, |config| {
        raise_circuit_breakers(config);
        let kind =
            "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
        let context = json!({"validation_context": {"trusted_ca": {"filename": ca}}});
        let clusters = config["static_resources"]["clusters"].as_array_mut().unwrap();
        let cluster = clusters.iter_mut().find(|it| it["name"] == "sluicegate").unwrap();
        cluster["transport_socket"] = json!({
            "name": "envoy.transport_sockets.tls",
            "typed_config": {"@type": kind, "common_tls_context": context},
        });
    })
    .await;
    let classes = gateway.h2load(512, 1, 2_048, "x-load: one").await;
    assert_eq!(classes, [("2xx".to_owned(), 500), ("4xx".to_owned(), 1_548)].into());
    gateway.assert_all_decided(500, 1_548).await;
    // The kernel distributes connections over the workers randomly.
    let connections = gateway.cluster_stat("upstream_cx_total").await;
    assert!((48..=64).contains(&connections), "{connections} connections");
    assert_eq!(gateway.cluster_stat("upstream_cx_connect_fail").await, 0);
    assert_no_bound_met(&gateway.server).await;
}

// === Long headers ===

/// Nearly the 60 KiB of headers that Envoy accepts from a client by default.
const LONG: usize = 59_000;

/// A gateway that traces every request, with Envoy's default bound of headers: `/` has one descriptor of the header
/// `x-user`, `/sixty` has sixty.
async fn tracing_gateway(collector: &Collector) -> Gateway {
    let server =
        Sluicegate::start(&long_windows(LIMITS), &["--otlp-endpoint", &collector.endpoint]).await;
    let [user, sixtieth] = ["user", "sixtieth"].map(|key| {
        json!({"actions": [{"request_headers": {"header_name": "x-user", "descriptor_key": key}}]})
    });
    let listener = Listener::new("main", "api")
        .filter("timeout", json!("60s"))
        .route("/sixty", &json!(vec![sixtieth; 60]))
        .route("/", &json!([user]));
    Gateway::start(server, &listener, 2, |config| {
        let listeners = &mut config["static_resources"]["listeners"];
        let manager = &mut listeners[0]["filter_chains"][0]["filters"][0]["typed_config"];
        manager.as_object_mut().unwrap().remove("max_request_headers_kb").unwrap();
        *config = serde_json::from_str(&traced(&config.to_string(), &collector.endpoint)).unwrap();
    })
    .await
}

/// A value of the given length that ends in `name`.
fn long(byte: u8, length: usize, name: &str) -> Vec<u8> {
    let mut value = vec![byte; length - name.len()];
    value.extend(name.bytes());
    value
}

/// Sends four requests, of which three are allowed.
async fn ask_four_times(gateway: &Gateway, path: &str, headers: &[(&str, &[u8])]) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let Answer { status, .. } = gateway.envoy.get(path, headers).await;
        statuses.push(status);
    }
    statuses
}

#[tokio::test]
async fn headers_of_60_kilobytes_are_limited_through_envoy() {
    let collector = Collector::start().await;
    let gateway = tracing_gateway(&collector).await;
    let parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for byte in [b'x', 0xff, 0xe9] {
        // In a descriptor.
        for name in ["-a", "-b"] {
            let value = long(byte, LONG, name);
            let statuses = ask_four_times(&gateway, "/", &[("x-user", &value)]).await;
            assert_eq!(statuses, [200, 200, 200, 429], "{byte:#x} {name}");
        }
        // In a header that Envoy's tracer copies.
        let state = [b"v=", &*long(byte, LONG, "-c")].concat();
        let user = format!("state-{byte}");
        let headers: [(&str, &[u8]); 3] =
            [("x-user", user.as_bytes()), ("traceparent", parent), ("tracestate", &state)];
        let statuses = ask_four_times(&gateway, "/", &headers).await;
        assert_eq!(statuses, [200, 200, 200, 429], "tracestate, {byte:#x}");
        // In both.
        let user = long(byte, LONG / 2, "-d");
        let state = [b"v=", &*long(byte, LONG / 2, "-d")].concat();
        let headers: [(&str, &[u8]); 3] =
            [("x-user", &user), ("traceparent", parent), ("tracestate", &state)];
        let statuses = ask_four_times(&gateway, "/", &headers).await;
        assert_eq!(statuses, [200, 200, 200, 429], "both, {byte:#x}");
    }
    assert_eq!(gateway.answers("error").await, 0, "{}", gateway.server.process.output());
    assert_eq!(gateway.cluster_stat("upstream_rq_rx_reset").await, 0);
}

#[tokio::test]
async fn headers_of_60_kilobytes_in_60_descriptors_are_limited() {
    let collector = Collector::start().await;
    let gateway = tracing_gateway(&collector).await;
    let parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for byte in [b'x', 0xff, 0xe9] {
        for (name, length, state) in [("-e", LONG, 0), ("-f", LONG / 2, LONG / 2)] {
            let value = long(byte, length, name);
            let state = [b"v=", &*vec![byte; state]].concat();
            let headers: [(&str, &[u8]); 3] =
                [("x-user", &value), ("traceparent", parent), ("tracestate", &state)];
            let statuses = ask_four_times(&gateway, "/sixty", &headers).await;
            assert_eq!(statuses, [200, 200, 200, 429], "{byte:#x} {name}");
        }
    }
    gateway.assert_all_decided(18, 6).await;
    assert_eq!(gateway.cluster_stat("upstream_rq_rx_reset").await, 0);
}

// === Test tools ===

/// Runs a tool and returns its output.
fn run(name: &str, arguments: &[&str]) -> String {
    tools::succeed(tools::go(name).args(arguments))
}

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

#[tokio::test]
async fn grpcurl_lists_describes_and_calls() {
    let server = Sluicegate::start(&long_windows(LIMITS), &[]).await;
    let grpcurl = |arguments: &[&str], data: Option<&str>| {
        let data = data.map_or_else(Vec::new, |data| vec!["-d", data]);
        run("grpcurl", &[&["-plaintext"], &data[..], &[&server.grpc], arguments].concat())
    };
    let services = grpcurl(&["list"], None);
    for service in [SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"] {
        assert!(services.lines().any(|line| line == service), "{services}");
    }
    let methods = grpcurl(&["list", SERVICE], None);
    assert_eq!(methods.trim(), format!("{SERVICE}.ShouldRateLimit"));
    let described = grpcurl(&["describe", "envoy.service.ratelimit.v3.RateLimitRequest"], None);
    assert!(described.contains("uint32 hits_addend = 3;"), "{described}");
    let data =
        r#"{"domain": "api", "descriptors": [{"entries": [{"key": "user", "value": "ann"}]}]}"#;
    for code in ["OK", "OK", "OK", "OVER_LIMIT"] {
        let answer = grpcurl(&[&format!("{SERVICE}/ShouldRateLimit")], Some(data));
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["overallCode"], code, "{answer}");
    }
    let health = grpcurl(&["grpc.health.v1.Health/Check"], None);
    assert_eq!(serde_json::from_str::<Value>(&health).unwrap(), json!({"status": "SERVING"}));
}

#[tokio::test]
async fn ghz_gets_every_call_answered() {
    let server = Sluicegate::start(&long_windows(LIMITS), &[]).await;
    let call = format!("{SERVICE}.ShouldRateLimit");
    let data =
        r#"{"domain": "api", "descriptors": [{"entries": [{"key": "load", "value": "ghz"}]}]}"#;
    let shape = ["--total", "4000", "--concurrency", "64", "--connections", "8"];
    let what = ["--insecure", "--format", "json", "--call", &call, "--data", data];
    let report = run("ghz", &[&shape[..], &what, &[&server.grpc]].concat());
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["statusCodeDistribution"], json!({"OK": 4_000}), "{report}");
    assert_eq!(server.sum("sluicegate_requests_total", &[]).await, 4_000.0);
    assert_no_bound_met(&server).await;
}

/// Number of h2spec's 145 tests that pass on an empty tonic server.
const H2SPEC_PASSED: usize = 137;

/// A test that opens more streams than are accepted, each ended by its headers. A server that responds immediately
/// never has so many open streams.
const UNREACHABLE: &str = "http2/5.1.2: Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded";

/// Maximum growth of memory during h2spec.
const H2SPEC_GROWTH_MAX: u64 = 32 << 20;

/// The method that h2spec calls. This call is not answered before its message has arrived, so that an invalid frame
/// arrives while the stream is open. With other methods the response may come first, and tests fail randomly.
const H2SPEC_PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// For each test of h2spec by name, whether it passes. Without skipped tests and [`UNREACHABLE`].
type Conformance = BTreeMap<String, bool>;

fn failed(results: &Conformance) -> BTreeSet<&str> {
    results.iter().filter(|(_, passed)| !**passed).map(|(test, _)| test.as_str()).collect()
}

/// Tests that fail on our server and pass on tonic's. Tests that are skipped on tonic's server are ignored: it has no
/// bound on streams, and on ours a call is answered and closed before the stream over the bound arrives.
fn worse<'a>(ours: &'a Conformance, tonics: &Conformance) -> Vec<&'a str> {
    failed(ours).into_iter().filter(|test| tonics.get(*test) == Some(&true)).collect()
}

fn passed(results: &Conformance) -> usize {
    results.values().filter(|passed| **passed).count()
}

/// Runs every test of h2spec against an address of the loopback.
async fn h2spec(address: &str) -> Conformance {
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.xml");
    let (_, port) = address.rsplit_once(':').unwrap();
    let mut command = AsyncCommand::from(tools::go("h2spec"));
    command.args(["--host", "127.0.0.1", "--port", port, "--path", H2SPEC_PATH]);
    command.arg("--junit-report").arg(&report);
    // Exits with an error if a test fails.
    let finished = finish(command).await;
    let report =
        fs::read_to_string(&report).unwrap_or_else(|error| panic!("{error}: {finished:?}"));
    let cases = report.split("<testcase ").skip(1).filter(|case| !case.contains("<skipped>"));
    let result = |case: &str| {
        let attribute = |name: &str| {
            let (_, value) = case.split_once(&format!("{name}=\"")).unwrap();
            value.split_once('"').unwrap().0
        };
        let name = format!("{}: {}", attribute("package"), attribute("classname"));
        (name, !case.contains("<failure>") && !case.contains("<error>"))
    };
    cases.map(result).filter(|(test, _)| test != UNREACHABLE).collect()
}

#[tokio::test]
async fn h2spec_fails_only_where_an_empty_tonic_server_fails() {
    let server = Sluicegate::start(&long_windows(LIMITS), &[]).await;
    let attack = Attack::start("h2spec", &server, H2SPEC_GROWTH_MAX).await;
    let mut command = AsyncCommand::new(binary("sluicegate-bench"));
    command.arg("empty-server");
    let mut empty = Process::start(command);
    let address = |line: &str| Some(line.strip_prefix("serving at ")?.to_owned());
    let empty = empty.line("the empty server's address", address).await;
    let (ours, tonics) = tokio::join!(h2spec(&server.grpc), h2spec(&empty));
    println!("{} tests of h2spec pass, {:?} fail", passed(&ours), failed(&ours));
    let worse = worse(&ours, &tonics);
    assert!(worse.is_empty(), "{worse:?} pass on an empty tonic server");
    assert!(passed(&ours) >= H2SPEC_PASSED, "{ours:?}");
    attack.end(&server).await;
}
