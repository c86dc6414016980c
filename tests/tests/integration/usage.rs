//! `GET /usage`: what is left of a tenant's limits, for the holder of its token or certificate.

use std::fmt::Write as _;

use reqwest::{Client, Method, header::HeaderMap};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use sluicegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;
use sluicegate_tests::{Authority, Cluster, Redis, Sluicegate, finish, request, until};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
};

const LIMITS: &str = r#"
domain: api
tenant: tenant
descriptors:
  - key: tenant
    rate_limit: {unit: day, requests_per_unit: 100}
    descriptors:
      - key: user
        limits:
          - {name: burst, algorithm: token_bucket, unit: day, requests_per_unit: 10, burst: 4}
          - {name: hourly, algorithm: sliding_window_log, unit: hour, requests_per_unit: 3}
      - key: trial
        shadow_mode: true
        rate_limit: {unit: day, requests_per_unit: 1}
      - key: plan
        quota_mode: true
        counting: debit
        rate_limit: {unit: day, unit_multiplier: 7, requests_per_unit: 5}
      - key: legacy
        counting: upstream
        rate_limit: {unit: day, requests_per_unit: 2}
      - key: internal
        rate_limit: {unlimited: true}
      - key: deep
        descriptors:
          - key: tenant
            rate_limit: {unit: day, requests_per_unit: 9}
"#;

const ACME: &str = "the-token-of-acme";
const GLOBEX: &str = "the-token-of-globex";

/// The digest of a token as `sha256sum` prints it.
fn sha256(token: &str) -> String {
    digest(&SHA256, token.as_bytes()).as_ref().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// A tenant of the file, by its token.
fn tenant(name: &str, token: &str) -> Value {
    json!({"domain": "api", "descriptor": format!("tenant={name}"), "token_sha256": [sha256(token)]})
}

fn tenants() -> Value {
    json!({"tenants": [tenant("acme", ACME), tenant("globex", GLOBEX)]})
}

/// A server with a usage listener.
struct Usage {
    server: Sluicegate,
    address: String,
    client: Client,
}

/// An answer of the usage listener.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Usage {
    async fn start(tenants: &Value, flags: &[&str]) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), tenants, flags).await
    }

    async fn start_in(folder: TempDir, tenants: &Value, flags: &[&str]) -> Self {
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (limits, file) = (path("limits.yaml"), path("tenants.json"));
        std::fs::write(&limits, LIMITS).unwrap();
        std::fs::write(&file, tenants.to_string()).unwrap();
        let own = ["--limits", &limits, "--usage-listen", "127.0.0.1:0"];
        let own = [&own[..], &["--usage-tenants-file", &file]].concat();
        let rate = ["--usage-max-requests-per-second", "1000"];
        let rate = if flags.contains(&rate[0]) { &[] } else { &rate[..] };
        let server = Sluicegate::start_with(folder, &[&own, rate, flags].concat()).await;
        let log = server.process.output();
        let line = log.lines().find(|line| line.contains("usage listener bound")).unwrap();
        let (_, address) = line.split_once("address=").unwrap();
        let address = address.trim().to_owned();
        Self { server, address, client: Client::new() }
    }

    fn replace_tenants(&self, text: &str) {
        let new = self.server.folder().join(".tenants.json.new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.server.folder().join("tenants.json")).unwrap();
    }

    async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = self.client.request(method, format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.text().await.unwrap();
        let body = serde_json::from_str(&body).unwrap_or(Value::Null);
        assert_eq!(headers["cache-control"], "no-store");
        Answer { status, headers, body }
    }

    /// Asks with a token.
    async fn ask(&self, token: &str, query: &str) -> Answer {
        let authorization = format!("Bearer {token}");
        self.send(Method::GET, &format!("/usage{query}"), &[("authorization", &authorization)])
            .await
    }

    /// The limits of the descriptor that a query names.
    async fn limits(&self, token: &str, query: &str) -> Value {
        let answer = self.ask(token, query).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.body["descriptors"][0]["limits"].clone()
    }

    async fn hit(&self, entries: &[(&str, &str)], count: usize) {
        for _ in 0..count {
            self.server.should_rate_limit(request(&[entries])).await.unwrap();
        }
    }

    async fn counted(&self, status: &str) -> f64 {
        let series = format!("sluicegate_usage_requests_total{{status=\"{status}\"}}");
        self.server.metric(&series).await
    }
}

fn detail(answer: &Answer) -> &str {
    assert_eq!(answer.headers["content-type"], "application/problem+json");
    assert_eq!(answer.body["status"], answer.status);
    answer.body["detail"].as_str().unwrap()
}

/// Every kind of limit, with its numbers. Nothing is charged.
async fn assert_usage_is_shown_and_nothing_charged(flags: &[&str]) {
    let usage = Usage::start(&tenants(), flags).await;
    usage.hit(&[("tenant", "acme")], 7).await;
    usage.hit(&[("tenant", "acme"), ("user", "ann")], 5).await;
    usage.hit(&[("tenant", "acme"), ("trial", "x")], 2).await;
    let plan = [("tenant", "acme"), ("plan", "pro")];
    let debit = RateLimitRequest { hits_addend: 8, ..request(&[&plan]) };
    usage.server.should_rate_limit(debit).await.unwrap();
    usage.hit(&[("tenant", "acme"), ("legacy", "x")], 2).await;
    let requests = usage.server.sum("sluicegate_requests_total", &[]).await;
    let decisions = usage.server.sum("sluicegate_decisions_total", &[]).await;
    let counters = usage.server.metric("sluicegate_memory_counters").await;

    let query = "?descriptor=&descriptor=user=ann&descriptor=trial=x&descriptor=plan=pro&descriptor=legacy=x\
                 &descriptor=internal=x&descriptor=unknown=x&descriptor=user=new";
    for _ in 0..3 {
        let answer = usage.ask(ACME, query).await;
        assert_eq!((answer.status, &answer.body["domain"]), (200, &json!("api")), "{answer:?}");
        assert_eq!(answer.headers["content-type"], "application/json");
        let descriptors = answer.body["descriptors"].as_array().unwrap();
        let mut shown = descriptors.clone();
        for limit in shown.iter_mut().flat_map(|it| it["limits"].as_array_mut().unwrap()) {
            let reset = limit.as_object_mut().unwrap().remove("reset_seconds").unwrap();
            assert!((0.0..7.0 * 86_400.0).contains(&reset.as_f64().unwrap()), "{limit}");
            if let Some(wait) = limit.as_object_mut().unwrap().remove("retry_after_seconds") {
                assert!(limit["refused"].as_bool().unwrap() && wait.as_f64().unwrap() > 0.0);
            }
        }
        let limit = |more: Value| {
            let mut limit = json!({"unit": "day", "unit_multiplier": 1, "algorithm": "fixed_window",
                "shadow_mode": false, "quota_mode": false, "refused": false});
            limit.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            limit
        };
        let entries = |more: &[(&str, &str)]| {
            let all = [&[("tenant", "acme")], more].concat();
            all.iter().map(|(key, value)| json!({"key": key, "value": value})).collect::<Value>()
        };
        let descriptor = |more: &[(&str, &str)], rule: Value, limits: Value| json!({"entries": entries(more), "rule": rule, "unlimited": false, "limits": limits});
        let bucket = json!({"name": "burst", "algorithm": "token_bucket", "requests_per_unit": 10, "capacity": 4});
        let log = json!({"name": "hourly", "algorithm": "sliding_window_log", "unit": "hour",
            "requests_per_unit": 3, "capacity": 3});
        let with = |base: &Value, used: u64, remaining: u64, refused: bool| {
            let mut all = limit(base.clone());
            all["used"] = json!(used);
            all["remaining"] = json!(remaining);
            all["refused"] = json!(refused);
            all
        };
        let day = |requests: u64| json!({"requests_per_unit": requests, "capacity": requests});
        let mut trial = with(&day(1), 1, 0, true);
        trial["shadow_mode"] = json!(true);
        let mut plan = with(&day(5), 8, 0, true);
        plan["quota_mode"] = json!(true);
        plan["unit_multiplier"] = json!(7);
        let mut internal = descriptor(&[("internal", "x")], json!("tenant.internal"), json!([]));
        internal["unlimited"] = json!(true);
        let expected = [
            descriptor(&[], json!("tenant"), json!([with(&day(100), 7, 93, false)])),
            descriptor(
                &[("user", "ann")],
                json!("tenant.user"),
                // The log refuses the fourth and fifth request, which then charge nothing.
                json!([with(&bucket, 3, 1, false), with(&log, 3, 0, true)]),
            ),
            descriptor(&[("trial", "x")], json!("tenant.trial"), json!([trial])),
            descriptor(&[("plan", "pro")], json!("tenant.plan"), json!([plan])),
            descriptor(
                &[("legacy", "x")],
                json!("tenant.legacy"),
                json!([with(&day(2), 2, 0, true)]),
            ),
            internal,
            descriptor(&[("unknown", "x")], Value::Null, json!([])),
            descriptor(
                &[("user", "new")],
                json!("tenant.user"),
                json!([with(&bucket, 0, 4, false), with(&log, 0, 3, false)]),
            ),
        ];
        assert_eq!(shown, expected);
    }
    assert_eq!(usage.counted("200").await, 3.0);
    assert_eq!(usage.server.sum("sluicegate_requests_total", &[]).await, requests);
    assert_eq!(usage.server.sum("sluicegate_decisions_total", &[]).await, decisions);
    assert_eq!(usage.server.metric("sluicegate_memory_counters").await, counters);
}

#[tokio::test]
async fn usage_in_memory_is_shown_and_nothing_charged() {
    assert_usage_is_shown_and_nothing_charged(&[]).await;
}

#[tokio::test]
async fn usage_in_redis_is_shown_and_nothing_charged() {
    let redis = Redis::start().await;
    assert_usage_is_shown_and_nothing_charged(&["--store", &redis.url()]).await;
    let keys = redis.keys("*").await;
    assert!(!keys.iter().any(|key| key.contains("new")), "{keys:?}");
}

#[tokio::test]
async fn usage_in_a_cluster_is_shown_and_nothing_charged() {
    let cluster = Cluster::of_primaries().await;
    assert_usage_is_shown_and_nothing_charged(&["--store", &cluster.url()]).await;
}

#[tokio::test]
async fn a_query_cannot_select_another_tenant() {
    let usage = Usage::start(&tenants(), &[]).await;
    usage.hit(&[("tenant", "globex")], 40).await;
    usage.hit(&[("tenant", "globex"), ("user", "ann")], 2).await;
    assert_eq!(usage.limits(GLOBEX, "").await[0]["remaining"], 60);
    assert_eq!(usage.limits(ACME, "").await[0]["remaining"], 100);
    assert_eq!(usage.limits(ACME, "?descriptor=user=ann").await[1]["remaining"], 3);
    for (query, text) in [
        ("?descriptor=tenant=globex", "descriptor 1 has the key \"tenant\", whose value"),
        ("?descriptor=tenant=acme", "descriptor 1 has the key \"tenant\""),
        (
            "?descriptor=user=ann&descriptor=deep=x,tenant=globex",
            "descriptor 2 has the key \"tenant\"",
        ),
        ("?descriptor=%74enant=globex", "descriptor 1 has the key \"tenant\""),
        ("?descriptor=user%3Dann%2Ctenant%3Dglobex", "descriptor 1 has the key \"tenant\""),
    ] {
        let answer = usage.ask(ACME, query).await;
        assert_eq!(answer.status, 403, "{query}: {answer:?}");
        assert!(detail(&answer).contains(text), "{query}: {answer:?}");
    }
    for query in [
        "?tenant=globex",
        "?domain=other&descriptor=user=ann",
        "?descriptor=user=ann&token=x",
        "?descriptor==globex",
        "?descriptor=,tenant=globex",
        "?descriptor=user=ann,",
        "?descriptor=user",
        "?descriptor=a=%",
        "?descriptor=a=%zz",
        "?descriptor=a=\\x",
        "?Descriptor=user=ann",
        "?descriptor[]=user=ann",
        "?descriptor;=user=ann",
    ] {
        let answer = usage.ask(ACME, query).await;
        assert_eq!(answer.status, 400, "{query}: {answer:?}");
        assert!(!detail(&answer).is_empty());
    }
    // Keys, values and separators that only resemble another tenant's.
    for (query, entry) in [
        ("?descriptor=user=x%5C,tenant=globex", json!({"key": "user", "value": "x,tenant=globex"})),
        ("?descriptor=Tenant=globex", json!({"key": "Tenant", "value": "globex"})),
        ("?descriptor=tenant+=globex", json!({"key": "tenant ", "value": "globex"})),
        ("?descriptor=tenant%00=globex", json!({"key": "tenant\0", "value": "globex"})),
        ("?descriptor=tenant%252=globex", json!({"key": "tenant%2", "value": "globex"})),
        (
            "?descriptor=a=%7Bglobex%7D:api:tenant",
            json!({"key": "a", "value": "{globex}:api:tenant"}),
        ),
        ("?descriptor=a=%ff", json!({"key": "a", "value": "\u{fffd}"})),
    ] {
        let answer = usage.ask(ACME, query).await;
        assert_eq!(answer.status, 200, "{query}: {answer:?}");
        let entries = &answer.body["descriptors"][0]["entries"];
        assert_eq!(*entries, json!([{"key": "tenant", "value": "acme"}, entry]), "{query}");
    }
}

#[tokio::test]
async fn at_most_64_descriptors_of_64_entries() {
    let usage = Usage::start(&tenants(), &[]).await;
    let query = |count: usize| format!("?{}", vec!["descriptor=user=ann"; count].join("&"));
    let answer = usage.ask(ACME, &query(64)).await;
    assert_eq!(answer.body["descriptors"].as_array().map(Vec::len), Some(64));
    let answer = usage.ask(ACME, &query(65)).await;
    assert_eq!((answer.status, detail(&answer)), (400, "more than 64 descriptors"));
    // The tenant's own entry is one of them.
    let entries = |count: usize| format!("?descriptor={}", vec!["a=b"; count].join(","));
    assert_eq!(usage.ask(ACME, &entries(63)).await.status, 200);
    let answer = usage.ask(ACME, &entries(64)).await;
    assert_eq!((answer.status, detail(&answer)), (400, "a descriptor has more than 64 entries"));
}

#[tokio::test]
async fn requests_need_a_token_of_the_file() {
    let usage = Usage::start(&tenants(), &[]).await;
    let answer = usage.send(Method::GET, "/usage", &[]).await;
    assert_eq!(
        (answer.status, detail(&answer)),
        (401, "a token is required: authorization: Bearer TOKEN")
    );
    assert_eq!(answer.headers["www-authenticate"], "Bearer");
    let digest = sha256(ACME);
    for wrong in
        ["Bearer ", "Bearer x", &format!("Bearer {digest}"), &format!("Basic {ACME}"), ACME]
    {
        let answer = usage.send(Method::GET, "/usage", &[("authorization", wrong)]).await;
        assert_eq!((answer.status, detail(&answer)), (401, "unknown token"), "{wrong}");
    }
    let two = [("authorization", &*format!("Bearer {ACME}")), ("authorization", "Bearer x")];
    assert_eq!(usage.send(Method::GET, "/usage", &two).await.status, 401);
    let lower = format!("bearer {ACME}");
    let right = [("authorization", &*lower)];
    assert_eq!(usage.send(Method::GET, "/usage", &right).await.status, 200);
    for path in ["/", "/usage/", "/metrics", "/json", "/usage/acme"] {
        let answer = usage.send(Method::GET, path, &right).await;
        assert_eq!((answer.status, detail(&answer)), (404, "only /usage is served here"), "{path}");
    }
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
        let answer = usage.send(method, "/usage", &right).await;
        assert_eq!((answer.status, detail(&answer)), (405, "only GET is allowed"));
        assert_eq!(answer.headers["allow"], "GET, HEAD");
    }
    let counts = [("200", 1.0), ("401", 7.0), ("404", 5.0), ("405", 4.0), ("429", 0.0)];
    for (status, count) in counts {
        assert_eq!(usage.counted(status).await, count, "{status}");
    }
    let body =
        usage.client.get(format!("http://{}/usage", usage.address)).header("authorization", lower);
    assert_eq!(body.body("{}").send().await.unwrap().status(), 400);
    // Neither tokens nor their digests are logged.
    let log = usage.server.process.output();
    assert!(!log.contains(ACME) && !log.contains(&digest), "{log}");
}

#[tokio::test]
async fn replaced_tenants_are_reloaded_and_invalid_ones_rejected() {
    let usage = Usage::start(&tenants(), &["--poll-interval", "1h"]).await;
    let status = async |token: &str| usage.ask(token, "").await.status;
    let loads = async |result: &str| {
        let series = format!("sluicegate_usage_tenants_loads_total{{result=\"{result}\"}}");
        usage.server.metric(&series).await
    };
    let successful = "sluicegate_usage_tenants_last_load_successful";
    assert_eq!((status(ACME).await, usage.server.metric(successful).await), (200, 1.0));
    let two_tokens = json!({"tenants": [{"domain": "api", "descriptor": "tenant=acme",
        "token_sha256": [sha256(ACME), sha256("the-next-token-of-acme").to_uppercase()]}]});
    usage.replace_tenants(&two_tokens.to_string());
    until("the tenants to be reloaded", || async { (loads("success").await == 1.0).then_some(()) })
        .await;
    assert_eq!(
        [status(ACME).await, status("the-next-token-of-acme").await, status(GLOBEX).await],
        [200, 200, 401]
    );
    for (failures, wrong) in (1..).zip(["{", "{\"tenants\": [{}]}", "{\"tenant\": []}"]) {
        usage.replace_tenants(wrong);
        until("the tenants to be rejected", || async {
            (loads("failure").await == f64::from(failures)).then_some(())
        })
        .await;
        assert_eq!([status(ACME).await, status(GLOBEX).await], [200, 401]);
        assert_eq!(usage.server.metric(successful).await, 0.0);
    }
    usage.server.process.printed("usage tenants rejected", 3).await;
    usage.replace_tenants("{\"tenants\": []}");
    until("the tenants to be reloaded", || async { (loads("success").await == 2.0).then_some(()) })
        .await;
    assert_eq!([status(ACME).await, status(GLOBEX).await], [401, 401]);
}

/// Asks over TLS with a certificate of the folder and a token. Returns status and body; status 0 without an answer.
async fn ask_over_tls(usage: &Usage, name: Option<&str>, token: Option<&str>) -> (u16, Value) {
    let path = |name: &str| usage.server.folder().join(name);
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--write-out", "\n%{http_code}", "--cacert"]).arg(path("ca.pem"));
    if let Some(name) = name {
        curl.arg("--cert").arg(path(&format!("{name}.pem")));
        curl.arg("--key").arg(path(&format!("{name}.key")));
    }
    if let Some(token) = token {
        curl.args(["--header", &format!("authorization: Bearer {token}")]);
    }
    curl.arg(format!("https://{}/usage", usage.address));
    let output = finish(curl).await.stdout;
    let (body, status) = output.trim_end().rsplit_once('\n').unwrap();
    (status.parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
}

#[tokio::test]
async fn a_certificate_selects_the_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("ours");
    authority.issue("127.0.0.1").write(folder.path(), "server");
    authority.issue("spiffe://test/acme").write(folder.path(), "acme");
    authority.issue("portal.globex.example").write(folder.path(), "globex");
    authority.issue("other.example").write(folder.path(), "other");
    Authority::new("theirs").issue("spiffe://test/acme").write(folder.path(), "stranger");
    std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (ca, cert, key) = (path("ca.pem"), path("server.pem"), path("server.key"));
    let flags = ["--usage-tls-cert", &cert, "--usage-tls-key", &key, "--usage-tls-client-ca", &ca];
    let with_name = |name: &str, certificate: &str, token: &str| {
        let mut tenant = tenant(name, token);
        tenant["certificate_names"] = json!([certificate]);
        tenant
    };
    let tenants = json!({"tenants": [
        with_name("acme", "spiffe://test/acme", ACME),
        with_name("globex", "portal.globex.example", GLOBEX),
    ]});
    let usage = Usage::start_in(folder, &tenants, &flags).await;
    usage.hit(&[("tenant", "globex")], 40).await;
    let remaining = async |name, token| {
        let (status, body) = ask_over_tls(&usage, Some(name), token).await;
        assert_eq!(status, 200, "{body}");
        let descriptor = &body["descriptors"][0];
        let (entry, limit) = (&descriptor["entries"][0], &descriptor["limits"][0]);
        (entry["value"].clone(), limit["remaining"].clone())
    };
    assert_eq!(remaining("acme", None).await, (json!("acme"), json!(100)));
    assert_eq!(remaining("acme", Some(ACME)).await, (json!("acme"), json!(100)));
    assert_eq!(remaining("globex", None).await, (json!("globex"), json!(60)));
    // A certificate without a tenant needs a token.
    assert_eq!(remaining("other", Some(GLOBEX)).await, (json!("globex"), json!(60)));
    for (name, token, status, text) in [
        (Some("acme"), Some(GLOBEX), 403, "belong to different tenants"),
        (Some("acme"), Some("wrong"), 401, "unknown token"),
        (Some("other"), None, 403, "no tenant has a name of the client certificate"),
    ] {
        let (answered, body) = ask_over_tls(&usage, name, token).await;
        assert_eq!(answered, status, "{body}");
        assert!(body["detail"].as_str().unwrap().contains(text), "{body}");
    }
    for name in [None, Some("stranger")] {
        assert_eq!(ask_over_tls(&usage, name, Some(ACME)).await, (0, Value::Null));
    }
}

#[tokio::test]
async fn replaced_certificates_are_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let authorities = ["first", "second"].map(Authority::new);
    authorities[0].issue("127.0.0.1").write(folder.path(), "server");
    std::fs::write(path("ca.pem"), authorities[0].pem()).unwrap();
    let (cert, key) = (path("server.pem"), path("server.key"));
    let flags = ["--usage-tls-cert", &cert, "--usage-tls-key", &key, "--poll-interval", "1h"];
    let usage = Usage::start_in(folder, &tenants(), &flags).await;
    assert_eq!(ask_over_tls(&usage, None, Some(ACME)).await.0, 200);
    authorities[1].issue("127.0.0.1").write(usage.server.folder(), "server");
    usage.server.process.printed("TLS files reloaded", 1).await;
    assert_eq!(ask_over_tls(&usage, None, Some(ACME)).await.0, 0);
    std::fs::write(usage.server.folder().join("ca.pem"), authorities[1].pem()).unwrap();
    assert_eq!(ask_over_tls(&usage, None, Some(ACME)).await.0, 200);
}

#[tokio::test]
async fn half_sent_requests_are_dropped_and_do_not_delay_the_stop() {
    let usage = Usage::start(&tenants(), &["--handshake-timeout", "1s"]).await;
    let half_sent = async || {
        let mut socket = TcpStream::connect(&usage.address).await.unwrap();
        socket.write_all(b"GET /usage HTTP/1.1\r\nauthorization: Bearer ").await.unwrap();
        socket
    };
    let mut dropped = half_sent().await;
    let mut rest = Vec::new();
    // The end of the connection, with or without an error.
    let _closed = dropped.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
    let series = "sluicegate_connections_dropped_total{listener=\"usage\",reason=\"timeout\"}";
    assert_eq!(usage.server.metric(series).await, 1.0);
    let _half_sent = half_sent().await;
    let open = "sluicegate_connections_open{listener=\"usage\"}";
    until("the connection", || async { (usage.server.metric(open).await == 1.0).then_some(()) })
        .await;
    assert_eq!(usage.server.stop().await.code(), Some(0));
}

#[tokio::test]
async fn each_tenant_may_ask_so_often() {
    let flags = ["--usage-max-requests-per-second", "2"];
    let usage = Usage::start(&tenants(), &flags).await;
    let limited = until("a 429", || async {
        let answer = usage.ask(ACME, "").await;
        (answer.status != 200).then_some(answer)
    })
    .await;
    assert_eq!((limited.status, detail(&limited)), (429, "too many requests for usage"));
    assert_eq!(limited.headers["retry-after"], "1");
    assert_eq!(usage.ask(GLOBEX, "").await.status, 200);
    until("a 200", || async { (usage.ask(ACME, "").await.status == 200).then_some(()) }).await;
}

#[tokio::test]
async fn usage_is_503_while_the_store_does_not_answer() {
    let mut redis = Redis::start().await;
    let usage = Usage::start(&tenants(), &["--store", &redis.url()]).await;
    usage.hit(&[("tenant", "acme")], 30).await;
    assert_eq!(usage.limits(ACME, "").await[0]["remaining"], 70);
    redis.kill().await;
    let answer = usage.ask(ACME, "").await;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(detail(&answer), "the store did not answer, so usage is unknown");
    // Without limits there is nothing to ask the store.
    assert_eq!(usage.ask(ACME, "?descriptor=unknown=x").await.status, 200);
    assert_eq!(usage.ask("wrong", "").await.status, 401);
    redis.restart().await;
    until("usage", || async { (usage.ask(ACME, "").await.status == 200).then_some(()) }).await;
}

#[tokio::test]
async fn a_refusal_shown_by_usage_is_not_cached() {
    let redis = Redis::start().await;
    let usage = Usage::start(&tenants(), &["--store", &redis.url()]).await;
    let other = Usage::start(&tenants(), &["--store", &redis.url()]).await;
    let ann = [("tenant", "acme"), ("user", "ann")];
    usage.hit(&ann, 3).await;
    assert_eq!(other.limits(ACME, "?descriptor=user=ann").await[1]["refused"], true);
    assert_eq!(other.server.metric("sluicegate_deny_cache_refusals").await, 0.0);
    other.hit(&ann, 1).await;
    assert_eq!(other.server.metric("sluicegate_deny_cache_refusals").await, 1.0);
    // The cached refusal does not hide the other counters of the request.
    let limits = other.limits(ACME, "?descriptor=user=ann").await;
    assert_eq!([&limits[0]["remaining"], &limits[1]["remaining"]], [1, 0]);
}

#[tokio::test]
async fn mistakes_in_the_tenants_are_reported_at_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("limits.yaml"), LIMITS).unwrap();
    let digest = sha256(ACME);
    let ours = |more: &str| {
        format!(
            "{{\"tenants\": [{{\"domain\": \"api\", \"descriptor\": \"tenant=acme\", {more}}}]}}"
        )
    };
    let twice = json!({"tenants": [tenant("acme", ACME), tenant("globex", ACME)]}).to_string();
    let same = json!({"tenants": [tenant("acme", ACME), tenant("acme", GLOBEX)]}).to_string();
    for (text, error) in [
        ("", "EOF while parsing a value at line 1"),
        ("[]", "invalid length 0"),
        (&ours("\"token\": \"x\""), "unknown field `token`"),
        (
            &ours(&format!("\"token_sha256\": \"{digest}\"")),
            "a string is not expected at line 1 column",
        ),
        (
            &ours("\"token_sha256\": []"),
            "tenant 1: token_sha256 or certificate_names must have an element",
        ),
        (
            &ours("\"token_sha256\": [\"abc\"]"),
            "tenant 1: token_sha256: a digest has 64 hex digits",
        ),
        (
            &ours("\"certificate_names\": [\"a\"]"),
            "tenant 1: certificate_names need --usage-tls-client-ca",
        ),
        (
            &ours(&format!("\"token_sha256\": [\"{digest}\"]")).replace("\"api\"", "\"\""),
            "tenant 1: domain must not be empty",
        ),
        (
            &ours(&format!("\"token_sha256\": [\"{digest}\"]")).replace("tenant=acme", ""),
            "tenant 1: descriptor: it is empty",
        ),
        (&twice, "tenant 2: token_sha256: a digest is listed twice"),
        (&same, "tenant 2: tenant 1 has the same domain and descriptor"),
    ] {
        std::fs::write(path("tenants.json"), text).unwrap();
        let (limits, tenants) = (path("limits.yaml"), path("tenants.json"));
        let flags = ["--limits", &limits, "--usage-listen", "127.0.0.1:0"];
        let flags = [&flags[..], &["--usage-tenants-file", &tenants]].concat();
        let finished = finish(Sluicegate::command(&flags, &[])).await;
        assert_eq!(finished.code, 1, "{text}");
        assert!(finished.stderr.contains("--usage-tenants-file: "), "{}", finished.stderr);
        assert!(finished.stderr.contains(error), "{text}: {}", finished.stderr);
        assert!(!finished.stderr.contains(&digest));
    }
}
