//! Starts and configures a real Envoy.

use std::{fs, net::SocketAddr, path::Path};

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    Process,
    tools::{succeed, workspace},
    until,
};

/// Configuration of an Envoy listener with the rate limit filter.
#[derive(Clone, Debug)]
pub struct Listener {
    name: String,
    filter: Value,
    metadata: Vec<Value>,
    shown: Vec<Value>,
    routes: Vec<Value>,
}

impl Listener {
    /// A listener that sends rate limit requests for `domain`. Its timeout is long: on a busy machine, Envoy's default
    /// of 20 ms would let requests pass.
    #[must_use]
    pub fn new(name: &str, domain: &str) -> Self {
        let filter = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
            "domain": domain,
            "timeout": "5s",
            "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
            "rate_limit_service": {
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": "sluicegate"}},
            },
        });
        Self {
            name: name.to_owned(),
            filter,
            metadata: Vec::new(),
            shown: Vec::new(),
            routes: Vec::new(),
        }
    }

    /// Sets a field of the filter.
    #[must_use]
    pub fn filter(mut self, field: &str, value: Value) -> Self {
        self.filter[field] = value;
        self
    }

    /// Sets dynamic metadata in every request.
    #[must_use]
    pub fn metadata(mut self, namespace: &str, value: &Value) -> Self {
        self.metadata.push(json!({"metadata_namespace": namespace, "value": value}));
        self
    }

    /// Adds a header to every response of the upstream. `format` is a format string of Envoy's access logs.
    #[must_use]
    pub fn shown(mut self, header: &str, format: &str) -> Self {
        self.shown.push(json!({"header": {"key": header, "value": format}}));
        self
    }

    /// Adds a route for requests whose path begins with `prefix`, with these `rate_limits`.
    #[must_use]
    pub fn route(mut self, prefix: &str, rate_limits: &Value) -> Self {
        let per_route = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
            "rate_limits": rate_limits,
        });
        self.routes.push(json!({
            "match": {"prefix": prefix},
            "route": {"cluster": "upstream"},
            "typed_per_filter_config": {"envoy.filters.http.ratelimit": per_route},
        }));
        self
    }

    fn config(&self) -> Value {
        let filter = |name: &str, config: Value| json!({"name": name, "typed_config": config});
        let mut filters = Vec::new();
        if !self.metadata.is_empty() {
            let kind = "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config";
            let config = json!({"@type": kind, "metadata": self.metadata});
            filters.push(filter("envoy.filters.http.set_metadata", config));
        }
        filters.push(filter("envoy.filters.http.ratelimit", self.filter.clone()));
        let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
        filters.push(filter("envoy.filters.http.router", json!({"@type": router})));
        let kind = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
        let manager = json!({
            "@type": kind,
            "stat_prefix": self.name,
            "max_request_headers_kb": 96,
            "http_filters": filters,
            "route_config": {
                "name": self.name,
                "response_headers_to_add": self.shown,
                "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": self.routes}],
            },
        });
        let manager = filter("envoy.filters.network.http_connection_manager", manager);
        json!({
            "name": self.name,
            "address": socket("127.0.0.1:0".parse().unwrap()),
            "filter_chains": [{"filters": [manager]}],
        })
    }
}

/// The configuration of an Envoy with these listeners in front of `upstream`. `grpc` is the rate limit service.
#[must_use]
pub fn bootstrap(upstream: SocketAddr, grpc: &str, listeners: &[Listener]) -> String {
    let cluster = |name: &str, address: SocketAddr, options: Value| {
        let endpoint = json!({"endpoint": {"address": socket(address)}});
        json!({
            "name": name,
            "type": "STATIC",
            "connect_timeout": "5s",
            "typed_extension_protocol_options": options,
            "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
        })
    };
    let http2 = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        },
    });
    let config = json!({
        "admin": {"address": socket("127.0.0.1:0".parse().unwrap())},
        "static_resources": {
            "listeners": listeners.iter().map(Listener::config).collect::<Vec<_>>(),
            "clusters": [
                cluster("upstream", upstream, json!({})),
                cluster("sluicegate", grpc.parse().unwrap(), http2),
            ],
        },
    });
    // JSON is YAML.
    config.to_string()
}

/// Changes a configuration so that the first listener exports a trace of every request to `collector` (OTLP over gRPC).
#[must_use]
pub fn traced(bootstrap: &str, collector: &str) -> String {
    let mut config: Value = serde_json::from_str(bootstrap).unwrap();
    let clusters = config["static_resources"]["clusters"].as_array_mut().unwrap();
    let mut cluster = clusters.iter().find(|it| it["name"] == "sluicegate").unwrap().clone();
    let address = collector.strip_prefix("http://").unwrap().parse().unwrap();
    cluster["name"] = json!("collector");
    cluster["load_assignment"]["cluster_name"] = json!("collector");
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"] =
        socket(address);
    clusters.push(cluster);
    let manager = &mut config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0];
    let kind = "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig";
    let grpc = json!({"envoy_grpc": {"cluster_name": "collector"}, "timeout": "5s"});
    let tracer = json!({"@type": kind, "service_name": "gateway", "grpc_service": grpc});
    manager["typed_config"]["tracing"] = json!({
        "random_sampling": {"value": 100},
        "provider": {"name": "envoy.tracers.opentelemetry", "typed_config": tracer},
    });
    config.to_string()
}

fn socket(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

/// The value of the header `authorization` for `examples/envoy/envoy.yaml`, with a token of that example.
#[must_use]
pub fn example_token(tenant: &str, user: &str, tier: &str) -> String {
    let mut token = std::process::Command::new(workspace().join("examples/envoy/token"));
    format!("Bearer {}", succeed(token.args([tenant, user, tier])).trim())
}

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    /// The process of Envoy.
    pub process: Process,
    admin: String,
    client: reqwest::Client,
    _folder: TempDir,
}

impl Envoy {
    /// Starts the binary with this configuration and two workers, and waits until it serves.
    pub async fn start(binary: &Path, config: &str) -> Self {
        Self::start_with_workers(binary, config, 2).await
    }

    /// Starts the binary with this configuration and number of worker threads, and waits until it serves.
    pub async fn start_with_workers(binary: &Path, config: &str, workers: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [config_file, admin_file] = ["envoy.yaml", "admin"].map(|it| folder.path().join(it));
        fs::write(&config_file, config).unwrap();
        let mut command = Command::new(binary);
        command.args(["--disable-hot-restart", "--log-level", "warn"]);
        command.args(["--concurrency", &workers.to_string()]);
        command.arg("--config-path").arg(config_file);
        command.arg("--admin-address-path").arg(&admin_file);
        let mut process = Process::start(command);
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let admin = until("Envoy's admin address", || {
            process.assert_running();
            let address = fs::read_to_string(&admin_file).ok();
            async { address.filter(|address| !address.is_empty()) }
        })
        .await;
        let envoy = Self { process, admin, client, _folder: folder };
        until("Envoy to be ready", || async {
            (envoy.admin("/ready").await?.trim() == "LIVE").then_some(())
        })
        .await;
        envoy
    }

    /// The value of a statistic; 0 if it does not exist.
    pub async fn stat(&self, name: &str) -> u64 {
        let stats = self.admin("/stats").await.unwrap();
        let value = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        value.map_or(0, |value| value.parse().unwrap())
    }

    /// The used statistics whose names match a regular expression, a line each, for messages of tests.
    pub async fn stats(&self, filter: &str) -> String {
        self.admin(&format!("/stats?usedonly&filter={filter}")).await.unwrap()
    }

    /// The metrics page in Prometheus' format.
    pub async fn metrics(&self) -> String {
        self.admin("/stats/prometheus").await.unwrap()
    }

    /// Gets a page through the listener `main`. Header values may be any bytes that HTTP allows.
    pub async fn get(&self, path: &str, headers: &[(&str, &[u8])]) -> Answer {
        self.get_from("main", path, headers).await
    }

    /// Gets a page through a listener.
    pub async fn get_from(&self, listener: &str, path: &str, headers: &[(&str, &[u8])]) -> Answer {
        let url = format!("http://{}{path}", self.listener(listener).await);
        let header = |(name, value): &(&str, &[u8])| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, HeaderValue::from_bytes(value).unwrap())
        };
        let headers: HeaderMap = headers.iter().map(header).collect();
        let response = self.client.get(url).headers(headers).send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Answer { status, headers, body: response.text().await.unwrap() }
    }

    /// The address that a listener is bound to.
    ///
    /// # Panics
    /// There is no such listener.
    pub async fn listener(&self, name: &str) -> String {
        let listeners = self.admin("/listeners").await.unwrap();
        let mut lines = listeners.lines();
        let address = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix("::"));
        address.unwrap_or_else(|| panic!("no listener {name} in {listeners}")).to_owned()
    }

    /// Sets runtime keys. The configuration needs an admin layer.
    ///
    /// # Panics
    /// Envoy rejects the keys.
    pub async fn set_runtime(&self, keys: &[(&str, u64)]) {
        let keys: Vec<_> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let url = format!("http://{}/runtime_modify?{}", self.admin, keys.join("&"));
        let response = self.client.post(url).send().await.unwrap();
        assert!(response.status().is_success(), "{response:?}");
    }

    /// A page of the admin listener; `None` if Envoy does not return it.
    async fn admin(&self, path: &str) -> Option<String> {
        let response = self.client.get(format!("http://{}{path}", self.admin)).send().await.ok()?;
        response.text().await.ok()
    }
}

/// A response of Envoy.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    headers: HeaderMap,
    /// The body.
    pub body: String,
}

impl Answer {
    /// A header's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        Some(self.headers.get(name)?.to_str().unwrap())
    }

    /// The value of a header as a number.
    ///
    /// # Panics
    /// The header is missing, or its value is not a number.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        let value = self.header(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.headers));
        value.parse().unwrap()
    }
}
