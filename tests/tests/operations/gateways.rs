//! The examples for Envoy and Istio.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sluicegate_tests::{
    Answer, Authority, Envoy, Sluicegate, Upstream, example_token, fenced, finish, long_windows,
    tools::{self, succeed, workspace},
    until, yaml,
};

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(workspace().join(folder)).unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|file| file.extension().is_some_and(|it| it == "yaml")).collect();
    files.sort();
    files
}

fn documents(file: &Path) -> Vec<Value> {
    yaml::read_all(&file.display().to_string(), &fs::read_to_string(file).unwrap())
}

fn validate_by_envoy(config: &Path) {
    succeed(Command::new(tools::envoy()).args(["--mode", "validate", "-c"]).arg(config));
}

// === Plain Envoy ===

#[test]
fn envoy_accepts_every_example() {
    for file in files("examples/envoy") {
        validate_by_envoy(&file);
    }
}

/// An example of plain Envoy on free ports, in front of a server with the example limits, with `changes` to its text.
async fn start_example(name: &str, changes: &[(&str, &str)]) -> (Sluicegate, Envoy) {
    let text = fs::read_to_string(workspace().join("examples/envoy").join(name)).unwrap();
    start_config(&text, changes).await
}

/// The same with the text of a configuration, and limits without windows that end in a test.
async fn start_config(text: &str, changes: &[(&str, &str)]) -> (Sluicegate, Envoy) {
    let folder = tempfile::tempdir().unwrap();
    for file in files("examples/limits") {
        let limits = fs::read_to_string(&file).unwrap();
        let limits = limits.replace("gcra\n      unit: minute", "gcra\n      unit: day");
        fs::write(folder.path().join(file.file_name().unwrap()), long_windows(&limits)).unwrap();
    }
    let flags = ["--limits", &folder.path().display().to_string()];
    let server = Sluicegate::start_with(folder, &flags).await;
    let mut text = text.to_owned();
    let api = format!("port_value: {}", sluicegate_tests::free_port());
    let grpc = format!("port_value: {}", server.grpc.rsplit_once(':').unwrap().1);
    let ports = [
        ("port_value: 9901", "port_value: 0"),
        ("port_value: 10000", "port_value: 0"),
        ("port_value: 10001", &api),
        ("port_value: 8081", &grpc),
    ];
    for (old, new) in ports.iter().chain(changes) {
        assert!(text.contains(old), "no {old}");
        text = text.replace(old, new);
    }
    let envoy = Envoy::start(&tools::envoy(), &text).await;
    (server, envoy)
}

/// For busy machines: otherwise requests would pass without a decision.
const PATIENT: (&str, &str) = ("timeout: 0.05s", "timeout: 5s");

async fn get_as(envoy: &Envoy, path: &str, token: &str) -> Answer {
    // Headers with which a client claims another identity.
    let claims: [(&str, &[u8]); 4] = [
        ("x-tenant", b"globex"),
        ("x-user", b"eve"),
        ("x-tier", b"enterprise"),
        ("x-api-key", b"invented"),
    ];
    let headers = [&claims[..], &[("authorization", token.as_bytes())]].concat();
    envoy.get(path, &headers).await
}

/// Number of descriptors that the rule has decided.
async fn decided(server: &Sluicegate, domain: &str, rule: &str) -> f64 {
    server.sum("sluicegate_decisions_total", &[("domain", domain), ("rule", rule)]).await
}

#[tokio::test]
async fn requests_without_a_valid_token_get_401_and_are_not_decided() {
    let (server, envoy) = start_example("envoy.yaml", &[PATIENT]).await;
    let valid = example_token("acme", "ann", "free");
    let enterprise = example_token("acme", "ann", "enterprise");
    let part = |token: &str, at: usize| token.split('.').nth(at).unwrap().to_owned();
    // {"alg":"none"}
    let unsigned = format!("Bearer eyJhbGciOiJub25lIn0.{}.", part(&valid, 1));
    let edited = [part(&valid, 0), part(&enterprise, 1), part(&valid, 2)].join(".");
    let mut other = Command::new(workspace().join("examples/envoy/token"));
    other.env("SECRET", "another secret, which only a forger knows");
    let forged = format!("Bearer {}", succeed(other.args(["acme", "ann", "enterprise"])).trim());
    let answer = envoy.get("/chat", &[("x-api-key", b"invented")]).await;
    assert_eq!(answer.status, 401);
    for token in ["", "Bearer", "Bearer invented", &unsigned, &edited, &forged] {
        for path in ["/chat", "/search", "/account", "/", "/public/../account", "/publicity"] {
            let answer = get_as(&envoy, path, token).await;
            assert_eq!(answer.status, 401, "{path} with {token:?}");
        }
    }
    assert_eq!(get_as(&envoy, "/public/..%2faccount", "").await.status, 400);
    assert_eq!(server.sum("sluicegate_decisions_total", &[]).await, 0.0);
    for path in ["/chat", "/search", "/account", "/"] {
        assert_eq!(get_as(&envoy, path, &valid).await.status, 200, "{path}");
    }
    assert_eq!(envoy.get("/public/prices", &[]).await.status, 200);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.ok").await, 5);
}

#[tokio::test]
async fn the_101st_request_in_a_minute_of_a_free_user_is_refused() {
    let (server, envoy) = start_example("envoy.yaml", &[PATIENT]).await;
    let [free, colleague] = ["ann", "bob"].map(|user| example_token("acme", user, "free"));
    for request in 1..=100 {
        let answer = get_as(&envoy, "/account", &free).await;
        assert_eq!((answer.status, request), (200, request));
    }
    let refused = get_as(&envoy, "/account", &free).await;
    assert_eq!((refused.status, refused.number("x-ratelimit-remaining")), (429, 0));
    assert!(refused.header("x-ratelimit-limit").unwrap().starts_with("100, "), "{refused:?}");
    assert!((1..=60).contains(&refused.number("retry-after")), "{refused:?}");
    assert_eq!(decided(&server, "public_api", "tenant.user.tier=free").await, 101.0);
    // No rule of the tenant and tier in the client's own headers decided.
    for rule in ["tenant=globex", "tenant.user.tier=enterprise"] {
        assert_eq!(decided(&server, "public_api", rule).await, 0.0, "{rule}");
    }
    let answer = get_as(&envoy, "/account", &colleague).await;
    assert_eq!((answer.status, answer.number("x-ratelimit-remaining")), (200, 99));
    let pro = get_as(&envoy, "/account", &example_token("acme", "pia", "pro")).await;
    assert_eq!((pro.status, pro.number("x-ratelimit-remaining")), (200, 299));
    let enterprise = get_as(&envoy, "/account", &example_token("acme", "eli", "enterprise")).await;
    assert_eq!((enterprise.status, enterprise.number("x-ratelimit-remaining")), (200, 599));
}

#[tokio::test]
async fn tokens_without_a_known_tier_get_the_limits_of_free() {
    let (server, envoy) = start_example("envoy.yaml", &[PATIENT]).await;
    let mut untiered = Command::new(workspace().join("examples/envoy/token"));
    let untiered = format!("Bearer {}", succeed(untiered.args(["acme", "ann"])).trim());
    let tokens = [untiered, example_token("", "", ""), example_token("acme", "bob", "gold")];
    for token in &tokens {
        let answer = get_as(&envoy, "/account", token).await;
        assert!(answer.header("x-ratelimit-limit").unwrap().starts_with("100, "), "{answer:?}");
        assert_eq!(get_as(&envoy, "/chat", token).await.status, 200);
    }
    let chats = decided(&server, "llm_gateway", "tier.api_key").await;
    assert_eq!((decided(&server, "public_api", "tenant.user.tier").await, chats), (3.0, 3.0));
}

#[tokio::test]
async fn an_answer_without_a_cost_is_charged_the_default() {
    let without_cost = ("total_tokens\": 15000", "none\": 1");
    // More than the bucket holds: what it refills in a few milliseconds would let the second request pass.
    let changes = [PATIENT, without_cost, ("value: 1000}", "value: 40000}")];
    let (server, envoy) = start_example("envoy.yaml", &changes).await;
    let token = example_token("acme", "ann", "free");
    assert_eq!(get_as(&envoy, "/chat", &token).await.status, 200);
    until("the debit", async || {
        let rule = "tier=free.api_key.meter=tokens";
        (decided(&server, "llm_gateway", rule).await == 2.0).then_some(())
    })
    .await;
    assert_eq!(get_as(&envoy, "/chat", &token).await.status, 429);
}

/// Gets a public page with curl. Returns the remaining requests of the fingerprint.
async fn ask_public(arguments: &[&str]) -> u64 {
    let mut curl = tokio::process::Command::new("curl");
    curl.args(["--silent", "--show-error", "--noproxy", "*", "--output", "/dev/null"]);
    curl.args(["--write-out", "%header{x-ratelimit-limit}\n%header{x-ratelimit-remaining}"]);
    curl.args(arguments);
    let output = finish(curl).await;
    assert_eq!(output.code, 0, "{output:?}");
    let (limit, left) = output.stdout.split_once('\n').unwrap();
    assert!(limit.starts_with("1200, "), "{limit}");
    left.parse().unwrap()
}

#[tokio::test]
async fn public_routes_are_limited_by_headers_of_the_program() {
    let (_server, envoy) = start_example("envoy.yaml", &[PATIENT]).await;
    let url = format!("http://{}/public/prices", envoy.listener("main").await);
    // A client cannot write its fingerprint.
    for (fingerprint, left) in [("a", 99), ("b", 98), ("c", 97)] {
        let header = format!("x-client-fingerprint: {fingerprint}");
        assert_eq!(ask_public(&["-A", "crawler/1.0", "-H", &header, &url]).await, left);
    }
    assert_eq!(ask_public(&["-A", "browser/1.0", &url]).await, 99);
}

/// With the listener of the README.
#[tokio::test]
async fn behind_tls_public_routes_are_limited_by_the_ja4_fingerprint() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("example");
    fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
    authority.issue("localhost").write(folder.path(), "cert");
    let blocks = blocks("examples/envoy/README.md");
    let tls = blocks.into_iter().find(|block| block["listener_filters"].is_array()).unwrap();
    let example = workspace().join("examples/envoy/envoy.yaml");
    let [mut config] = <[Value; 1]>::try_from(documents(&example)).unwrap();
    let listener = &mut config["static_resources"]["listeners"][0];
    listener["listener_filters"] = tls["listener_filters"].clone();
    merge(&mut listener["filter_chains"][0], &tls["filter_chains"][0]);
    let text = config.to_string().replace("\"port_value\":", "port_value: ");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let changes =
        [("\"0.05s\"", "\"5s\""), ("cert.pem", &*path("cert.pem")), ("key.pem", &path("cert.key"))];
    let (_server, envoy) = start_config(&text, &changes).await;
    let port = envoy.listener("main").await.rsplit_once(':').unwrap().1.to_owned();
    let url = format!("https://localhost:{port}/public/prices");
    let ca = path("ca.pem");
    // Another program name in the header does not change the fingerprint of the handshake.
    for (agent, left) in [("crawler/1.0", 99), ("browser/1.0", 98)] {
        assert_eq!(ask_public(&["--cacert", &ca, "-A", agent, &url]).await, left);
    }
    let other = ["--cacert", &ca, "--tlsv1.2", "--tls-max", "1.2", &url];
    assert_eq!(ask_public(&other).await, 99);
}

#[tokio::test]
async fn a_login_without_a_decision_is_refused_until_overridden() {
    // Timeouts for busy machines.
    let changes =
        [("timeout: 0.25s\n              # Without", "timeout: 5s\n              # Without")];
    let (mut server, envoy) = start_example("fail-closed.yaml", &changes).await;
    let login = async |email: &[u8]| envoy.get("/login", &[("x-email", email)]).await;
    for status in [200, 200, 200, 200, 200, 429] {
        assert_eq!(login(b"eve@example.com").await.status, status);
    }
    server.process.signal(Signal::SIGKILL);
    server.process.ended().await;
    assert_eq!(login(b"bob@example.com").await.status, 503);
    // Routes without limits are not affected.
    assert_eq!(envoy.get("/", &[]).await.status, 200);
    envoy.set_runtime(&[("login.deny_percent", 0)]).await;
    until("logins to pass without limits", async || {
        (login(b"bob@example.com").await.status == 200).then_some(())
    })
    .await;
    assert!(envoy.stat("cluster.upstream.ratelimit.failure_mode_allowed").await >= 1);
}

// === Istio ===

#[test]
fn istios_schemas_accept_every_example() {
    let files = files("examples/istio");
    assert!(!files.is_empty());
    let objects: Value = files.iter().flat_map(|file| documents(file)).collect();
    let mut node = Command::new("node");
    node.arg(workspace().join("tests/manifests/validate.mjs")).arg(tools::manifest_schemas());
    let mut node = node.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    node.stdin.take().unwrap().write_all(objects.to_string().as_bytes()).unwrap();
    let printed = node.wait_with_output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    // The schema does not check the Envoy configuration in a patch. Envoy checks it below.
    let mistakes: Vec<_> = printed.lines().filter(|line| !line.contains("/patch/value/")).collect();
    assert!(mistakes.is_empty(), "{mistakes:#?}");
    assert!(printed.contains("/patch/value/"), "no patch was validated: {printed}");
}

/// The configuration that Istio would give to a proxy of this context with one virtual host.
fn proxy(context: &str, virtual_host: &str, upstream: &Upstream) -> Value {
    let kind = |name: &str| format!("type.googleapis.com/envoy.extensions.{name}");
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": {"@type": kind("filters.http.router.v3.Router")},
    });
    let manager = json!({
        "@type": kind("filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": context,
        "use_remote_address": context == "GATEWAY",
        "http_filters": [router],
        "route_config": {
            "name": "http.8443",
            "virtual_hosts": [{
                "name": virtual_host,
                "domains": ["*"],
                "routes": [
                    {"name": "search", "match": {"path": "/search"}, "route": {"cluster": "upstream"}},
                    {"name": "all", "match": {"prefix": "/"}, "route": {"cluster": "upstream"}},
                ],
            }],
        },
    });
    let socket = |address: &str, port: u16| json!({"socket_address": {"address": address, "port_value": port}});
    let endpoint = json!({"endpoint": {"address": socket("127.0.0.1", upstream.address.port())}});
    json!({
        "admin": {"address": socket("127.0.0.1", 0)},
        "static_resources": {
            "listeners": [{
                "name": "main",
                "address": socket("127.0.0.1", 0),
                "filter_chains": [{"filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": manager,
                }]}],
            }],
            "clusters": [{
                "name": "upstream",
                "type": "STATIC",
                "load_assignment": {
                    "cluster_name": "upstream",
                    "endpoints": [{"lb_endpoints": [endpoint]}],
                },
            }],
        },
    })
}

/// Applies a patch of an `EnvoyFilter` as Istio does, as far as the examples use it.
fn apply(patch: &Value, proxy: &mut Value) {
    let (matches, operation) = (&patch["match"], patch["patch"]["operation"].as_str().unwrap());
    let value = &patch["patch"]["value"];
    let manager = "/static_resources/listeners/0/filter_chains/0/filters/0";
    match (patch["applyTo"].as_str().unwrap(), operation) {
        ("CLUSTER", "ADD") => {
            proxy["static_resources"]["clusters"].as_array_mut().unwrap().push(value.clone());
        }
        ("HTTP_FILTER", "INSERT_BEFORE") => {
            let wanted = &matches["listener"]["filterChain"]["filter"];
            let manager = proxy.pointer_mut(manager).unwrap();
            assert_eq!(wanted["name"], manager["name"]);
            let filters = manager["typed_config"]["http_filters"].as_array_mut().unwrap();
            let at = filters.iter().position(|it| it["name"] == wanted["subFilter"]["name"]);
            filters.insert(at.unwrap(), value.clone());
        }
        (to @ ("VIRTUAL_HOST" | "HTTP_ROUTE"), "MERGE") => {
            let wanted = &matches["routeConfiguration"]["vhost"];
            let hosts = format!("{manager}/typed_config/route_config/virtual_hosts");
            let hosts = proxy.pointer_mut(&hosts).unwrap().as_array_mut().unwrap();
            let host = hosts.iter_mut().find(|it| it["name"] == wanted["name"]).unwrap();
            if to == "VIRTUAL_HOST" {
                return merge(host, value);
            }
            let routes = host["routes"].as_array_mut().unwrap();
            let route = routes.iter_mut().find(|it| it["name"] == wanted["route"]["name"]);
            merge(route.unwrap(), value);
        }
        other => panic!("{other:?} is not applied"),
    }
}

fn merge(into: &mut Value, value: &Value) {
    match (into, value) {
        (Value::Object(into), Value::Object(value)) => {
            for (key, value) in value {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(value)) => into.extend(value.iter().cloned()),
        (into, value) => *into = value.clone(),
    }
}

/// The patches of an example.
fn patches(example: &str) -> Vec<Value> {
    let [filter] = &documents(&workspace().join("examples/istio").join(example))[..] else {
        panic!("{example} is one object")
    };
    filter["spec"]["configPatches"].as_array().unwrap().clone()
}

/// The YAML blocks of a Markdown file.
fn blocks(file: &str) -> Vec<Value> {
    let text = fs::read_to_string(workspace().join(file)).unwrap();
    fenced(&text, "yaml").into_iter().map(|block| yaml::read(file, block)).collect()
}

const LIMITS: &str = "
domain: public_api
tenant: tenant
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: day, requests_per_unit: 100}
    descriptors:
      - key: user
        rate_limit: {name: user, unit: day, requests_per_unit: 3}
        descriptors:
          - key: route
            rate_limit: {name: route, unit: day, requests_per_unit: 2}
  - key: remote_address
    rate_limit: {name: address, unit: day, requests_per_unit: 100}
  - key: caller
    rate_limit: {name: caller, unit: day, requests_per_unit: 20}
  - key: service
    rate_limit: {name: service, unit: day, requests_per_unit: 50}
";

struct Mesh {
    server: Sluicegate,
    envoy: Envoy,
    _upstream: Upstream,
}

/// An ingress gateway with these patches, which calls a real server. The Service's name is replaced by its address.
async fn gateway(patches: &[Value]) -> Mesh {
    mesh("GATEWAY", "api.example.com:443", patches, "sluicegate", &Value::Null).await
}

/// A sidecar of the example with a cluster of this name, which receives requests through this transport socket.
async fn sidecar(cluster: &str, transport_socket: &Value) -> Mesh {
    let patches = patches("sidecar.yaml");
    mesh("SIDECAR_INBOUND", "inbound|http|8000", &patches, cluster, transport_socket).await
}

async fn mesh(
    context: &str,
    virtual_host: &str,
    patches: &[Value],
    cluster: &str,
    transport_socket: &Value,
) -> Mesh {
    let server = Sluicegate::start(&long_windows(LIMITS), &[]).await;
    let upstream = Upstream::start().await;
    let mut proxy = proxy(context, virtual_host, &upstream);
    if !transport_socket.is_null() {
        let chain = proxy.pointer_mut("/static_resources/listeners/0/filter_chains/0").unwrap();
        chain["transport_socket"] = transport_socket.clone();
    }
    for patch in patches {
        assert_eq!(patch["match"]["context"], context, "{patch}");
        apply(patch, &mut proxy);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bootstrap.yaml");
    fs::write(&file, proxy.to_string()).unwrap();
    validate_by_envoy(&file);
    let port = server.grpc.rsplit_once(':').unwrap().1;
    let text = proxy
        .to_string()
        .replace("\"sluicegate\"", &format!("\"{cluster}\""))
        .replace("sluicegate-headless.sluicegate.svc.cluster.local", "127.0.0.1")
        .replace("\"port_value\":8081", &format!("\"port_value\":{port}"))
        // Timeouts for busy machines.
        .replace("\"timeout\":\"0.05s\"", "\"timeout\":\"5s\"");
    let envoy = Envoy::start(&tools::envoy(), &text).await;
    Mesh { server, envoy, _upstream: upstream }
}

impl Mesh {
    async fn get(&self, path: &str, user: &[u8]) -> Answer {
        self.envoy.get(path, &[("x-tenant", b"acme"), ("x-user", user)]).await
    }

    /// Asserts that the server decided every request.
    async fn assert_all_decided(&self, passed: u64, refused: u64) {
        let mut counted = Vec::new();
        for kind in ["ok", "over_limit", "error"] {
            counted.push(self.envoy.stat(&format!("cluster.upstream.ratelimit.{kind}")).await);
        }
        assert_eq!(counted, [passed, refused, 0], "{}", self.envoy.process.output());
        assert_eq!(self.server.metric("sluicegate_requests_invalid_total").await, 0.0);
    }
}

/// Status, and limit with name and remaining hits from the headers.
fn closest(answer: &Answer) -> (u16, &str, u64) {
    let limit = answer.header("x-ratelimit-limit").unwrap();
    (answer.status, limit.split(',').next().unwrap(), answer.number("x-ratelimit-remaining"))
}

async fn assert_hosts_and_routes_are_limited(mesh: &Mesh) {
    for expected in [(200, "3", 2), (200, "3", 1), (200, "3", 0), (429, "3", 0)] {
        assert_eq!(closest(&mesh.get("/", b"ann").await), expected);
    }
    // The route's limits replace those of the host.
    for expected in [(200, "2", 1), (200, "2", 0), (429, "2", 0)] {
        assert_eq!(closest(&mesh.get("/search", b"ann").await), expected);
    }
    assert_eq!(mesh.get("/", b"bob").await.status, 200);
    // Without a tenant only the address is limited.
    assert_eq!(closest(&mesh.envoy.get("/", &[]).await).1, "100");
    mesh.assert_all_decided(7, 2).await;
}

#[tokio::test]
async fn the_ingress_gateway_limits_hosts_and_routes() {
    let mesh = gateway(&patches("ingress-gateway.yaml")).await;
    assert_hosts_and_routes_are_limited(&mesh).await;
}

/// The patches of the README for older versions, which newer versions support too.
#[tokio::test]
async fn the_patches_for_older_envoys_limit_the_same() {
    let older = blocks("examples/istio/README.md").into_iter().find_map(|block| {
        let patches = block.as_array()?.clone();
        patches.iter().any(|patch| patch["applyTo"] == "HTTP_ROUTE").then_some(patches)
    });
    let older = older.unwrap();
    let mut patches = patches("ingress-gateway.yaml");
    let replaced: Vec<_> = older.iter().map(|patch| &patch["applyTo"]).collect();
    let before = patches.len();
    patches.retain(|patch| !replaced.contains(&&patch["applyTo"]));
    patches.extend(older.iter().cloned());
    assert_eq!(patches.len(), before);
    assert!(!json!(patches).to_string().contains("RateLimitPerRoute"));
    assert_hosts_and_routes_are_limited(&gateway(&patches).await).await;
}

/// The same for plain Envoys, from `docs/envoy.md`.
#[tokio::test]
async fn virtual_hosts_for_older_envoys_limit_hosts_and_routes() {
    let mut blocks = blocks("docs/envoy.md").into_iter();
    let hosts = blocks.find(|block| block["virtual_hosts"].is_array()).unwrap();
    let mut patches = patches("ingress-gateway.yaml");
    patches
        .retain(|patch| ["CLUSTER", "HTTP_FILTER"].contains(&patch["applyTo"].as_str().unwrap()));
    let host = &hosts["virtual_hosts"][0];
    let [search, all] = [0, 1].map(|route| host["routes"][route]["route"].clone());
    assert_eq!(all, json!({"cluster": "upstream"}));
    for (to, value) in [
        ("VIRTUAL_HOST", json!({"rate_limits": host["rate_limits"]})),
        ("HTTP_ROUTE", json!({"route": search})),
    ] {
        let vhost = json!({"name": "api.example.com:443", "route": {"name": "search"}});
        patches.push(json!({
            "applyTo": to,
            "match": {"context": "GATEWAY", "routeConfiguration": {"vhost": vhost}},
            "patch": {"operation": "MERGE", "value": value},
        }));
    }
    let mesh = gateway(&patches).await;
    assert_eq!(closest(&mesh.envoy.get("/", &[]).await), (200, "100", 99));
    // No rule matches the descriptors of the route, which replace those of the host.
    assert_eq!(mesh.envoy.get("/search", &[]).await.header("x-ratelimit-limit"), None);
    assert_eq!(closest(&mesh.envoy.get("/", &[]).await), (200, "100", 98));
    mesh.assert_all_decided(3, 0).await;
}

#[tokio::test]
async fn a_gateway_limits_by_the_address_of_the_connection() {
    let mesh = gateway(&patches("ingress-gateway.yaml")).await;
    for left in [99, 98, 97] {
        let forwarded = format!("203.0.113.{left}");
        let answer = mesh.envoy.get("/", &[("x-forwarded-for", forwarded.as_bytes())]).await;
        assert_eq!(closest(&answer), (200, "100", left));
    }
    mesh.assert_all_decided(3, 0).await;
}

#[tokio::test]
async fn a_sidecar_limits_its_service() {
    let mesh = sidecar("sluicegate", &Value::Null).await;
    for expected in [(200, "3", 2), (200, "3", 1), (200, "3", 0), (429, "3", 0)] {
        assert_eq!(closest(&mesh.get("/", b"ann").await), expected);
    }
    assert_eq!(mesh.get("/", b"bob").await.status, 200);
    mesh.assert_all_decided(4, 1).await;
}

/// Sends a request with curl, with other client addresses in headers each time. Returns the closest limit and its
/// remaining hits.
async fn ask(port: &str, folder: &Path, caller: Option<&str>, attempt: u32) -> (String, u64) {
    let mut curl = tokio::process::Command::new("curl");
    curl.args(["--silent", "--show-error", "--noproxy", "*", "--output", "/dev/null"]);
    curl.args(["--write-out", "%header{x-ratelimit-limit}\n%header{x-ratelimit-remaining}"]);
    curl.arg("--header").arg(format!("x-forwarded-for: 203.0.113.{attempt}"));
    curl.arg("--header").arg(format!("x-forwarded-client-cert: URI=spiffe://mesh/{attempt}"));
    let url = match caller {
        Some(caller) => {
            curl.arg("--cacert").arg(folder.join("ca.pem"));
            curl.arg("--cert").arg(folder.join(format!("{caller}.pem")));
            curl.arg("--key").arg(folder.join(format!("{caller}.key")));
            format!("https://localhost:{port}/")
        }
        None => format!("http://127.0.0.1:{port}/"),
    };
    curl.arg(url);
    let output = finish(curl).await;
    assert_eq!(output.code, 0, "{output:?}");
    let (limit, left) = output.stdout.split_once('\n').unwrap();
    (limit.split(',').next().unwrap().to_owned(), left.parse().unwrap())
}

#[tokio::test]
async fn a_sidecar_limits_by_certificate_not_by_client_headers() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let authority = Authority::new("mesh");
    fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
    authority.issue("localhost").write(folder, "orders");
    for caller in ["shop", "billing"] {
        authority.issue(&format!("spiffe://mesh/ns/{caller}/sa/default")).write(folder, caller);
    }
    let file = |name: &str| json!({"filename": folder.join(name)});
    let mutual_tls = json!({
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "require_client_certificate": true,
            "common_tls_context": {
                "tls_certificates": [{"certificate_chain": file("orders.pem"), "private_key": file("orders.key")}],
                "validation_context": {"trusted_ca": file("ca.pem")},
            },
        },
    });
    let port = async |mesh: &Mesh| {
        mesh.envoy.listener("main").await.rsplit_once(':').unwrap().1.to_owned()
    };
    let mesh = sidecar("sluicegate", &mutual_tls).await;
    let main = port(&mesh).await;
    for (attempt, (caller, left)) in (1..).zip([("shop", 19), ("shop", 18), ("billing", 19)]) {
        let expected = ("20".to_owned(), left);
        assert_eq!(ask(&main, folder, Some(caller), attempt).await, expected, "{caller}");
    }
    mesh.assert_all_decided(3, 0).await;
    // All callers without a certificate share one limit.
    let mesh = sidecar("sluicegate", &Value::Null).await;
    let main = port(&mesh).await;
    for (attempt, left) in [(1, 49), (2, 48), (3, 47)] {
        assert_eq!(ask(&main, folder, None, attempt).await, ("50".to_owned(), left));
    }
    mesh.assert_all_decided(3, 0).await;
}

#[tokio::test]
async fn istios_own_cluster_is_called_with_another_authority() {
    let example = fs::read_to_string(workspace().join("examples/istio/mesh-cluster.yaml")).unwrap();
    let named = example.lines().find_map(|line| line.split_once("cluster_name: "));
    let (_, cluster) = named.unwrap();
    assert!(cluster.starts_with("outbound|"), "{cluster}");
    let mesh = sidecar(cluster, &Value::Null).await;
    assert_eq!(mesh.get("/", b"ann").await.status, 200);
    mesh.assert_all_decided(1, 0).await;
}

/// A classic sidecar that ends earlier would cut the server's drain short.
#[test]
fn sidecars_of_the_servers_pods_stay_for_the_whole_grace_period() {
    let deployment = succeed(tools::helm().args(["template", "edge", "helm"]));
    let grace = deployment
        .lines()
        .find_map(|line| line.trim().strip_prefix("terminationGracePeriodSeconds: "));
    let drain = format!("terminationDrainDuration: {}s", grace.unwrap());
    for text in ["examples/istio/README.md", "docs/kubernetes.md"] {
        let content = fs::read_to_string(workspace().join(text)).unwrap();
        assert!(content.contains(&drain), "{text} has no {drain}");
    }
}
