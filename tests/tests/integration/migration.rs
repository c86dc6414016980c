//! Checks of `docs/migration.md`.

use std::{collections::BTreeSet, fs, path::PathBuf};

use sluicegate_tests::{Answer, Envoy, Sluicegate, binary, finish, free_port, long_windows};
use tokio::process::Command;

use sluicegate_tests::tools;

/// The variables that envoyproxy/ratelimit reads. Those of a second Redis are not here.
const UPSTREAM: &str = "
HOST PORT GRPC_HOST GRPC_PORT GRPC_UDS DEBUG_HOST DEBUG_PORT GRPC_MAX_CONNECTION_AGE GRPC_MAX_CONNECTION_AGE_GRACE
LOG_LEVEL LOG_FORMAT
GRPC_SERVER_USE_TLS GRPC_SERVER_TLS_CERT GRPC_SERVER_TLS_KEY GRPC_CLIENT_TLS_CACERT GRPC_CLIENT_TLS_SAN
CONFIG_TYPE FORCE_START_WITHOUT_INITIAL_CONFIG MERGE_DOMAIN_CONFIG RUNTIME_ROOT RUNTIME_SUBDIRECTORY
RUNTIME_APPDIRECTORY RUNTIME_IGNOREDOTFILES RUNTIME_WATCH_ROOT
CONFIG_GRPC_XDS_NODE_ID CONFIG_GRPC_XDS_NODE_METADATA CONFIG_GRPC_XDS_SERVER_URL
CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS CONFIG_GRPC_XDS_SERVER_USE_TLS
CONFIG_GRPC_XDS_CLIENT_TLS_CERT CONFIG_GRPC_XDS_CLIENT_TLS_KEY CONFIG_GRPC_XDS_SERVER_TLS_CACERT
CONFIG_GRPC_XDS_SERVER_TLS_SAN XDS_CLIENT_BACKOFF_INITIAL_INTERVAL XDS_CLIENT_BACKOFF_MAX_INTERVAL
XDS_CLIENT_BACKOFF_RANDOM_FACTOR XDS_CLIENT_BACKOFF_JITTER XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES
EXPIRATION_JITTER_MAX_SECONDS LOCAL_CACHE_SIZE_IN_BYTES NEAR_LIMIT_RATIO CACHE_KEY_PREFIX BACKEND_TYPE
STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT SHADOW_MODE QUOTA_MODE RESPONSE_DYNAMIC_METADATA
LIMIT_RESPONSE_HEADERS_ENABLED LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER
HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED REDIS_HEALTH_CHECK_ACTIVE_CONNECTION
REDIS_SOCKET_TYPE REDIS_TYPE REDIS_URL REDIS_POOL_SIZE REDIS_AUTH REDIS_SENTINEL_AUTH REDIS_TLS REDIS_PIPELINE_WINDOW
REDIS_PIPELINE_LIMIT REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_TIMEOUT REDIS_POOL_ON_EMPTY_BEHAVIOR
REDIS_POOL_ON_EMPTY_WAIT_DURATION REDIS_PERSECOND REDIS_TLS_CLIENT_CERT REDIS_TLS_CLIENT_KEY REDIS_TLS_CACERT
REDIS_TLS_SKIP_HOSTNAME_VERIFICATION REDIS_STARTUP_INITIAL_INTERVAL REDIS_STARTUP_MAX_INTERVAL
REDIS_STARTUP_MAX_ELAPSED_TIME
MEMCACHE_HOST_PORT MEMCACHE_SRV MEMCACHE_SRV_REFRESH MEMCACHE_MAX_IDLE_CONNS MEMCACHE_TLS MEMCACHE_TLS_CLIENT_CERT
MEMCACHE_TLS_CLIENT_KEY MEMCACHE_TLS_CACERT MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION
USE_STATSD STATSD_HOST STATSD_PORT USE_DOG_STATSD USE_DOG_STATSD_MOGRIFIERS DOG_STATSD_MOGRIFIER_<N>_PATTERN
DOG_STATSD_MOGRIFIER_<N>_NAME DOG_STATSD_MOGRIFIER_<N>_TAGS USE_PROMETHEUS PROMETHEUS_ADDR PROMETHEUS_PATH
PROMETHEUS_MAPPER_YAML PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS EXTRA_TAGS STATS_FLUSH_INTERVAL DISABLE_STATS
TRACING_ENABLED TRACING_EXPORTER_PROTOCOL TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID
TRACING_SAMPLING_RATE OTEL_EXPORTER_OTLP_*
";

/// Variables among them that exist a second time, for limits per second.
const TWINS: &str =
    "SOCKET_TYPE TYPE URL POOL_SIZE AUTH SENTINEL_AUTH TLS PIPELINE_WINDOW PIPELINE_LIMIT
CLUSTER_PIPELINE_PARALLELISM TIMEOUT POOL_ON_EMPTY_BEHAVIOR POOL_ON_EMPTY_WAIT_DURATION";

fn page() -> String {
    fs::read_to_string(tools::workspace().join("docs/migration.md")).unwrap()
}

/// Texts between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The cells of every row of every table below a heading.
fn rows<'p>(page: &'p str, heading: &str) -> Vec<Vec<&'p str>> {
    let (_, section) = page.split_once(&format!("\n{heading}\n")).unwrap();
    let level = heading.split(' ').next().unwrap();
    let section = section.split(&format!("\n{level} ")).next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| row.split(" | ").map(str::trim).collect()).collect()
}

#[test]
fn every_variable_of_upstream_is_in_the_table_once() {
    let page = page();
    let table = rows(&page, "## Settings");
    assert!(table.iter().all(|cells| cells.len() == 2), "a row has two cells");
    let listed: Vec<&str> = table.iter().flat_map(|cells| quoted(cells[0])).collect();
    let twins = TWINS.split_whitespace().map(|it| format!("REDIS_PERSECOND_{it}"));
    let expected: BTreeSet<String> =
        UPSTREAM.split_whitespace().map(str::to_owned).chain(twins).collect();
    let found: BTreeSet<String> = listed.iter().map(|it| (*it).to_owned()).collect();
    assert_eq!(found, expected);
    assert_eq!(listed.len(), found.len(), "a variable is in the table twice");
    // "not supported" is an entry; an empty cell is not.
    assert!(table.iter().all(|cells| !cells[1].is_empty()));
}

async fn help(program: &str, commands: &[&str]) -> String {
    let mut command = Command::new(binary(program));
    command.args(commands).arg("--help");
    let finished = finish(command).await;
    assert_eq!(finished.code, 0, "{program} {commands:?}: {}", finished.stderr);
    finished.stdout
}

/// Flags and variables of Sluicegate in a text.
fn settings(text: &str) -> BTreeSet<&str> {
    let is_part = |it: char| it.is_ascii_alphanumeric() || it == '-' || it == '_';
    let prefixed = |word: &str, prefix: &str| word.len() > prefix.len() && word.starts_with(prefix);
    let words = text.split(|it| !is_part(it));
    // The separators of tables are dashes too.
    let words = words.filter(|it| it.ends_with(|end: char| end.is_ascii_alphanumeric()));
    words.filter(|it| prefixed(it, "--") || prefixed(it, "SLUICEGATE_")).collect()
}

#[tokio::test]
async fn every_named_flag_exists() {
    let page = page();
    let mut known = String::new();
    for commands in [&["serve"] as &[_], &["validate"]] {
        known.push_str(&help("sluicegate", commands).await);
    }
    for command in ["check", "load"] {
        known.push_str(&help("sluicectl", &[command]).await);
    }
    let named = settings(&page);
    assert!(named.len() > 20, "{named:?}");
    let known = settings(&known);
    let unknown: Vec<_> = named.difference(&known).collect();
    assert!(unknown.is_empty(), "in docs/migration.md, but not in the help: {unknown:?}");
}

#[tokio::test]
async fn every_named_command_exists() {
    let page = page();
    for program in ["sluicegate", "sluicectl"] {
        let help = help(program, &[]).await;
        let known: BTreeSet<_> =
            help.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
        let named = page.split([' ', '`', '\n']).zip(page.split([' ', '`', '\n']).skip(1));
        let named: BTreeSet<_> =
            named.filter(|(first, _)| *first == program).map(|(_, command)| command).collect();
        let commands = named.iter().filter(|it| it.chars().all(|it| it.is_ascii_lowercase()));
        let commands: Vec<_> = commands.filter(|it| !it.is_empty()).collect();
        assert!(commands.len() >= 2, "{program}: {named:?}");
        let unknown: Vec<_> = commands.iter().filter(|it| !known.contains(**it)).collect();
        assert!(unknown.is_empty(), "in docs/migration.md, but not in the help: {unknown:?}");
    }
}

#[test]
fn every_linked_file_exists() {
    let page = page();
    let links = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files: Vec<_> = links.filter(|it| !it.starts_with('#')).collect();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        let path = file.split('#').next().unwrap();
        assert!(tools::workspace().join("docs").join(path).exists(), "{file}");
    }
}

// === Two services in one Envoy ===

fn example() -> PathBuf {
    tools::workspace().join("examples/migration/envoy-shadow.yaml")
}

/// The current service, which decides, Sluicegate, which is only called, and Envoy in front of both.
struct Shadow {
    current: Sluicegate,
    sluicegate: Sluicegate,
    envoy: Envoy,
}

/// The limits of the example, with another number of orders, in a [long window](long_windows) instead of an hour.
fn orders(requests: usize) -> String {
    let limits = format!(
        "
domain: storefront
descriptors:
  - key: header_match
    value: checkout
    descriptors:
      - key: user
        rate_limit: {{name: orders, unit: day, requests_per_unit: {requests}}}
"
    );
    long_windows(&limits)
}

impl Shadow {
    /// The example on free ports.
    async fn start(current: usize, sluicegate: usize) -> Self {
        // This server acts as envoyproxy/ratelimit.
        let current =
            Sluicegate::start(&orders(current), &["--default-counting", "upstream"]).await;
        let sluicegate = Sluicegate::start(&orders(sluicegate), &[]).await;
        let port = |server: &Sluicegate| server.grpc.rsplit_once(':').unwrap().1.to_owned();
        let mut text = fs::read_to_string(example()).unwrap();
        let substitutes = [
            ("port_value: 9901", "port_value: 0"),
            ("port_value: 10000}", "port_value: 0}"),
            ("port_value: 10001", &format!("port_value: {}", free_port())),
            ("port_value: 8081}", &format!("port_value: {}}}", port(&current))),
            ("port_value: 8091}", &format!("port_value: {}}}", port(&sluicegate))),
            // Otherwise requests would pass without a decision on a busy machine.
            ("timeout: 0.02s", "timeout: 5s"),
        ];
        for (old, new) in substitutes {
            assert!(text.contains(old), "{old}");
            text = text.replace(old, new);
        }
        let envoy = Envoy::start(&tools::envoy(), &text).await;
        Self { current, sluicegate, envoy }
    }

    async fn order(&self) -> Answer {
        self.envoy.get("/order", &[("x-user", b"ann")]).await
    }

    /// Envoy's statistics of one service: ok, over limit, errors.
    async fn answers(&self, prefix: &str) -> [u64; 3] {
        let mut counted = [0; 3];
        for (count, kind) in counted.iter_mut().zip(["ok", "over_limit", "error"]) {
            *count = self.envoy.stat(&format!("cluster.upstream.ratelimit.{prefix}.{kind}")).await;
        }
        counted
    }
}

#[tokio::test]
async fn both_services_are_called_and_only_the_current_decides() {
    let shadow = Shadow::start(3, 2).await;
    for _ in 0..2 {
        assert_eq!(shadow.order().await.status, 200);
    }
    // Sluicegate refuses. The client does not see it.
    let passed = shadow.order().await;
    assert_eq!(passed.status, 200);
    assert_eq!(passed.header("x-envoy-ratelimited"), None);
    // Both refuse. Sluicegate is called although the current service refuses.
    for _ in 0..2 {
        let refused = shadow.order().await;
        assert_eq!((refused.status, refused.header("x-envoy-ratelimited")), (429, Some("true")));
    }
    assert_eq!(shadow.answers("current").await, [3, 2, 0]);
    assert_eq!(shadow.answers("sluicegate").await, [2, 3, 0]);
}

#[tokio::test]
async fn equal_limits_give_equal_counts() {
    let shadow = Shadow::start(3, 3).await;
    for _ in 0..7 {
        shadow.order().await;
    }
    assert_eq!(shadow.answers("current").await, [3, 4, 0]);
    assert_eq!(shadow.answers("sluicegate").await, [3, 4, 0]);
}

#[tokio::test]
async fn traffic_is_unchanged_without_sluicegate() {
    let Shadow { current, sluicegate, envoy } = Shadow::start(1, 5).await;
    assert!(sluicegate.stop().await.success());
    let statuses = [
        envoy.get("/order", &[("x-user", b"ann")]).await.status,
        envoy.get("/order", &[("x-user", b"ann")]).await.status,
    ];
    assert_eq!(statuses, [200, 429]);
    assert_eq!(envoy.stat("cluster.upstream.ratelimit.sluicegate.error").await, 2);
    assert!(current.stop().await.success());
}

#[tokio::test]
async fn switching_over_grants_no_limit_twice() {
    let shadow = Shadow::start(3, 3).await;
    for _ in 0..2 {
        assert_eq!(shadow.order().await.status, 200);
    }
    shadow.envoy.set_runtime(&[("sluicegate.enforced", 100), ("current.enforced", 0)]).await;
    assert_eq!(shadow.order().await.status, 200);
    // Now Sluicegate refuses, and the current service behind it is not called.
    assert_eq!(shadow.order().await.status, 429);
    assert_eq!(shadow.answers("sluicegate").await, [3, 1, 0]);
    assert_eq!(shadow.answers("current").await, [3, 0, 0]);
    // Switch back.
    shadow.envoy.set_runtime(&[("sluicegate.enforced", 0), ("current.enforced", 100)]).await;
    assert_eq!(shadow.order().await.status, 429);
    assert_eq!(shadow.answers("current").await, [3, 1, 0]);
}
