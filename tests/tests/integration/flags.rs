//! Every flag does what it says, on the command line and from the environment.

use std::{
    fs,
    future::Future,
    os::unix::fs::FileExt,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use clap::{Arg, Command as Clap, CommandFactory};
use nix::sys::signal::Signal;
use prost::Message;
use serde_json::Value;
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitResponse, rate_limit_response::Code,
};
use sluicegate_tests::{
    Authority, Caller, Collector, Finished, Frame, HangingStore, RawConnection, Redis, Setup,
    Sluicegate, binary, finish, framed, free_port, hit, hits,
    http2::{frame, kind},
    request, until,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::Semaphore,
    task::JoinSet,
};
use tonic::{Code as GrpcCode, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus,
    health_client::HealthClient,
};

const LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: day, requests_per_unit: 10}
";

/// No charge for what is refused, whatever the default.
const LOG_LIMITS: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {algorithm: sliding_window_log, unit: day, requests_per_unit: 10}
";

// === The table ===

type Check = Box<dyn Fn(Given) -> Pin<Box<dyn Future<Output = ()> + Send>>>;

struct Row {
    /// `serve --limits`.
    flag: &'static str,
    /// `{folder}` is a folder of the test's own.
    value: &'static str,
    /// Why there is no environment variable.
    no_variable: Option<&'static str>,
    check: Check,
}

fn row<F: Future<Output = ()> + Send + 'static>(
    flag: &'static str,
    value: &'static str,
    check: impl Fn(Given) -> F + 'static,
) -> Row {
    Row { flag, value, no_variable: None, check: Box::new(move |given| Box::pin(check(given))) }
}

impl Row {
    fn without_variable(self, reason: &'static str) -> Self {
        Self { no_variable: Some(reason), ..self }
    }

    fn name(&self) -> &'static str {
        self.flag.rsplit_once(' ').unwrap().1
    }

    fn variable(&self) -> Option<String> {
        let name = self.name().trim_start_matches('-').replace('-', "_").to_uppercase();
        self.no_variable.is_none().then(|| format!("SLUICEGATE_{name}"))
    }
}

fn rows() -> Vec<Row> {
    let question = "part of the question, not a setting";
    let mut rows = vec![
        row("serve --limits", "{folder}/a.yaml,{folder}/more", limits),
        row("serve --default-counting", "upstream", default_counting),
        row("serve --merge-domains", "true", merge_domains),
        row("serve --limits-max-files", "1", limits_max_files),
        row("serve --limits-max-bytes", "200", limits_max_bytes),
        row("serve --poll-interval", "200ms", poll_interval),
        row("serve --store", "elsewhere", store),
        row("serve --key-prefix", "shop:", key_prefix),
        row("serve --deny-cache-entries", "0", deny_cache_entries),
        row("serve --memory-max-counters", "1", memory_max_counters),
        row("serve --redis-username", "limits", redis_username),
        row("serve --redis-password", "secret", redis_password),
        row("serve --redis-password-file", "{folder}/password", redis_password_file),
        row("serve --redis-tls-ca", "{folder}/ca.pem", redis_tls),
        row("serve --redis-tls-cert", "{folder}/caller.pem", redis_tls),
        row("serve --redis-tls-key", "{folder}/caller.key", redis_tls),
        row("serve --redis-connections", "3", redis_connections),
        row("serve --redis-connect-timeout", "100ms", redis_connect_timeout),
        row("serve --decision-timeout", "1500ms", decision_timeout),
        row("serve --default-on-failure", "deny", default_on_failure),
        row("serve --replicas", "4", replicas),
        row("serve --fallback-counters", "0", fallback_counters),
        row("serve --health-requires-store", "true", health_requires_store),
        row("serve --shadow-mode", "true", shadow_mode),
        row("serve --quota-mode", "true", quota_mode),
        row("serve --response-headers", "ratelimit-draft-11", response_headers),
        row("serve --limit-header", "x-quota", limit_header),
        row("serve --remaining-header", "x-left", remaining_header),
        row("serve --reset-header", "x-wait", reset_header),
        row("serve --dynamic-metadata", "true", dynamic_metadata),
        row("serve --near-limit-ratio", "0.5", near_limit_ratio),
        row("serve --top-keys", "0", top_keys),
        row("serve --top-labels", "plain", top_labels),
        row("serve --detailed-metric-series", "1", detailed_metric_series),
        row("serve --otlp-endpoint", "http://127.0.0.1:1", otlp_endpoint),
        row("serve --otlp-tls-ca", "{folder}/ca.pem", otlp_tls_ca),
        row("serve --otlp-metrics-interval", "1s", otlp_metrics_interval),
        row("serve --grpc-listen", "unix:{folder}/s.sock", grpc_listen),
        row("serve --grpc-tls-cert", "{folder}/server.pem", grpc_tls),
        row("serve --grpc-tls-key", "{folder}/server.key", grpc_tls),
        row("serve --grpc-tls-client-ca", "{folder}/ca.pem", grpc_tls_client_ca),
        row("serve --grpc-tls-client-names", "other,spiffe://test/a", grpc_tls_client_names),
        row("serve --grpc-max-message-bytes", "1000", grpc_max_message_bytes),
        row("serve --grpc-keepalive-interval", "50ms", grpc_keepalive_interval),
        row("serve --grpc-keepalive-timeout", "50ms", grpc_keepalive_timeout),
        row("serve --grpc-max-connection-age", "200ms", grpc_max_connection_age),
        row("serve --grpc-max-connection-age-grace", "200ms", grpc_max_connection_age_grace),
        row("serve --grpc-max-concurrent-streams", "2", grpc_max_concurrent_streams),
        row("serve --grpc-max-header-list-bytes", "20000", grpc_max_header_list_bytes),
        row("serve --grpc-max-in-flight-share", "0.1", grpc_max_in_flight_share),
        row("serve --grpc-message-timeout", "100ms", grpc_message_timeout),
        row("serve --grpc-max-waiting-bytes", "200000", grpc_max_waiting_bytes),
        row(
            "serve --grpc-max-waiting-bytes-per-connection",
            "100000",
            grpc_max_waiting_bytes_per_connection,
        ),
        row("serve --grpc-max-streaming-calls", "1", grpc_max_streaming_calls),
        row(
            "serve --grpc-max-streaming-calls-per-connection",
            "1",
            grpc_max_streaming_calls_per_connection,
        ),
        row("serve --grpc-max-connection-idle", "200ms", grpc_max_connection_idle),
        row("serve --http-listen", "127.0.0.2:0", http_listen),
        row("serve --admin-listen", "127.0.0.2:0", admin_listen),
        row("serve --admin-token-file", "{folder}/token", admin_token_file),
        row("serve --admin-tls-cert", "{folder}/server.pem", admin_tls),
        row("serve --admin-tls-key", "{folder}/server.key", admin_tls),
        row("serve --admin-tls-client-ca", "{folder}/ca.pem", admin_tls_client_ca),
        row("serve --admin-tls-client-names", "other,spiffe://test/a", admin_tls_client_names),
        row("serve --grpc-max-connections", "1", grpc_max_connections),
        row("serve --http-max-connections", "1", http_max_connections),
        row(
            "serve --max-pending-connections-per-address",
            "64",
            max_pending_connections_per_address,
        ),
        row("serve --handshake-timeout", "200ms", handshake_timeout),
        row("serve --http-idle-timeout", "1s", http_idle_timeout),
        row("serve --max-in-flight", "1", max_in_flight),
        row("serve --request-max-bytes", "9", request_max_bytes),
        row("serve --drain-delay", "1h", drain_delay),
        row("serve --drain-timeout", "200ms", drain_timeout),
        row("serve --log-level", "info,h2=debug", log_level),
        row("serve --log-format", "json", log_format),
        row("serve --decision-log-ratio", "1", decision_log_ratio),
        row("serve --decision-log-max-per-second", "2", decision_log_max_per_second),
        row("serve --key-hash-salt-file", "{folder}/salt", key_hash_salt_file),
        row("serve --trace-ratio", "1", trace_ratio),
        row("validate PATH", "{folder}/limits.yaml", validate_path).without_variable("positional"),
        row("validate --default-counting", "upstream", validate_default_counting),
        row("validate --default-on-failure", "deny", validate_default_on_failure),
        row("validate --shadow-mode", "true", validate_shadow_mode),
        row("validate --quota-mode", "true", validate_quota_mode),
        row("validate --merge-domains", "true", validate_merge_domains),
        row("validate --limits-max-files", "1", validate_limits_max_files),
        row("validate --limits-max-bytes", "200", validate_limits_max_bytes),
        row("diff OLD", "{folder}/old.yaml", diff_old).without_variable("positional"),
        row("diff NEW", "{folder}/new.yaml", diff_new).without_variable("positional"),
        row("diff --default-counting", "upstream", diff_default_counting),
        row("diff --merge-domains", "true", diff_merge_domains),
        row("diff --limits-max-files", "1", diff_limits_max_files),
        row("diff --limits-max-bytes", "200", diff_limits_max_bytes),
        row("validate --explain", "", validate_explain).without_variable(question),
        row("validate --domain", "api", validate_explain).without_variable(question),
        row("validate --descriptor", "user=bob", validate_explain).without_variable(question),
        row("validate --key-prefix", "shop:", validate_key_prefix),
        row("explain --domain", "api", explain_domain).without_variable(question),
        row("explain --descriptor", "user=bob", explain_descriptor).without_variable(question),
        row("explain --hits", "11", explain_hits).without_variable(question),
        row("explain --output", "json", explain_output),
        row("explain --admin-server", "unix:{folder}/s.sock", explain_admin_server),
        row("explain --token-file", "{folder}/token", explain_token_file),
        row("explain --timeout", "123ms", explain_timeout),
        row("explain --tls-ca", "{folder}/ca.pem", explain_tls_ca),
        row("explain --tls-cert", "{folder}/caller.pem", explain_tls_client),
        row("explain --tls-key", "{folder}/caller.key", explain_tls_client),
        row("explain --tls-server-name", "limits.example", explain_tls_server_name),
        row("log-level LEVEL", "debug", log_level_level).without_variable("positional"),
        row("log-level --for", "1h", log_level_for).without_variable(question),
        row("health --service", "liveness", health_service).without_variable(question),
        row("health --output", "json", health_output),
        row("health --server", "unix:{folder}/s.sock", health_server),
        row("health --timeout", "123ms", health_timeout),
        row("health --tls-ca", "{folder}/ca.pem", health_tls),
        row("health --tls-cert", "{folder}/caller.pem", health_tls),
        row("health --tls-key", "{folder}/caller.key", health_tls),
        row("health --tls-server-name", "limits.example", health_tls),
        row("check --domain", "api", check_domain).without_variable(question),
        row("check --descriptor", "user=bob", check_descriptor).without_variable(question),
        row("check --hits", "4", check_hits).without_variable(question),
        row("check --output", "json", check_output),
        row("check --server", "unix:{folder}/s.sock", check_server),
        row("check --timeout", "123ms", check_timeout),
        row("check --tls-ca", "{folder}/ca.pem", check_tls_ca),
        row("check --tls-cert", "{folder}/caller.pem", check_tls_client),
        row("check --tls-key", "{folder}/caller.key", check_tls_client),
        row("check --tls-server-name", "limits.example", check_tls_server_name),
        row("load --domain", "other", load_elsewhere).without_variable(question),
        row("load --descriptor", "other=x", load_elsewhere).without_variable(question),
        row("load --hits", "5", load_hits).without_variable(question),
        row("load --count", "11", load_count).without_variable(question),
        row("load --duration", "300ms", load_duration).without_variable(question),
        row("load --rate", "50", load_rate).without_variable(question),
        row("load --callers", "3", load_callers).without_variable(question),
        row("load --zipf", "10", load_zipf).without_variable(question),
        row("load --seed", "7", load_seed).without_variable(question),
        row("load --limits", "{folder}/limits.yaml", load_limits).without_variable(question),
        row("load --default-counting", "upstream", load_default_counting),
        row("load --merge-domains", "true", load_merge_domains),
        row("load --limits-max-files", "1", load_limits_max_files),
        row("load --limits-max-bytes", "200", load_limits_max_bytes),
        row("load --shadow-mode", "true", load_shadow_mode),
        row("load --quota-mode", "true", load_quota_mode),
        row("load --output", "json", load_output),
        row("load --verify", "", load_verify).without_variable(question),
        row("load --tolerance", "50ms", load_tolerance).without_variable(question),
        row("load --server", "unix:{folder}/s.sock", load_server),
        row("load --timeout", "123ms", load_timeout),
        row("load --tls-ca", "{folder}/ca.pem", load_tls),
        row("load --tls-cert", "{folder}/caller.pem", load_tls),
        row("load --tls-key", "{folder}/caller.key", load_tls),
        row("load --tls-server-name", "limits.example", load_tls),
        row("rules --domain", "other", rules_filter).without_variable(question),
        row("rules --path", "other", rules_filter).without_variable(question),
        row("peek --domain", "other", peek_elsewhere).without_variable(question),
        row("peek --descriptor", "other=x", peek_elsewhere).without_variable(question),
        row("peek --tenant", "bob", peek_tenant).without_variable(question),
        row("peek --limit", "1", peek_limit).without_variable(question),
        row("reset counter --domain", "other", reset_domain).without_variable(question),
        row("reset counter --descriptor", "other=x", reset_elsewhere).without_variable(question),
        row("reset counter --limit", "some", reset_limit).without_variable(question),
        row("reset counter --key", BOB, reset_key).without_variable(question),
        row("reset counter --dry-run", "", reset_dry_run).without_variable(question),
        row("reset tenant --domain", "api", reset_tenant).without_variable(question),
        row("reset tenant --tenant", "bob", reset_tenant).without_variable(question),
        row("reset tenant --dry-run", "", reset_dry_run).without_variable(question),
        row("reset tenant --yes", "", reset_yes).without_variable(question),
        row("top --kind", "near", top_kind).without_variable(question),
        row("top --count", "1", top_count).without_variable(question),
        row("top --domain", "other", top_domain).without_variable(question),
        row("top --interval", "1ms", top_interval),
        row("top --once", "", top_once).without_variable(question),
    ];
    for (command, _) in ADMIN_COMMANDS {
        let mut add = |flag: &str, value, check: AdminCheck| {
            let flag = Box::leak(format!("{command} {flag}").into_boxed_str());
            rows.push(row(flag, value, move |given| check(command, given)));
        };
        add("--output", "json", |command, given| Box::pin(admin_output(command, given)));
        add("--admin-server", "unix:{folder}/s.sock", |command, given| {
            Box::pin(admin_server(command, given))
        });
        add("--token-file", "{folder}/token", |command, given| {
            Box::pin(admin_token(command, given))
        });
        add("--timeout", "123ms", |command, given| Box::pin(admin_timeout(command, given)));
        add("--tls-ca", "{folder}/ca.pem", |command, given| Box::pin(admin_ca(command, given)));
        for flag in ["--tls-cert", "--tls-key"] {
            let value =
                if flag == "--tls-cert" { "{folder}/caller.pem" } else { "{folder}/caller.key" };
            add(flag, value, |command, given| Box::pin(admin_client_cert(command, given)));
        }
        add("--tls-server-name", "limits.example", |command, given| {
            Box::pin(admin_server_name(command, given))
        });
    }
    rows
}

type AdminCheck = fn(&'static str, Given) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Commands that ask the admin listener, and what each has to be told.
const ADMIN_COMMANDS: [(&str, &[(&str, &str)]); 7] = [
    ("rules", &[]),
    ("peek", &[("--domain", "api"), ("--descriptor", "user=bob")]),
    ("reset counter", &[("--domain", "api"), ("--descriptor", "user=bob")]),
    ("reset tenant", &[("--domain", "api"), ("--tenant", "bob")]),
    ("status", &[]),
    ("top", &[]),
    ("log-level", &[]),
];

/// Users are tenants.
const TENANTS: &str = "
domain: api
tenant: user
descriptors:
  - key: user
    rate_limit: {algorithm: token_bucket, unit: day, requests_per_unit: 10, name: some}
";

/// The counter of one of them.
const BOB: &str = "s1:tb:86400:{bob}:api:user";

/// Every argument that clap knows, below every subcommand.
fn arguments() -> Vec<(String, Arg)> {
    fn walk(command: &Clap, path: &str, found: &mut Vec<(String, Arg)>) {
        assert!(path.is_empty() || command.get_about().is_some(), "{path} says nothing of itself");
        for argument in command.get_arguments() {
            let name = match argument.get_long() {
                Some(long) => format!("--{long}"),
                None => argument.get_value_names().unwrap()[0].to_string(),
            };
            found.push((format!("{path} {name}").trim_start().to_owned(), argument.clone()));
        }
        for inner in command.get_subcommands() {
            walk(inner, format!("{path} {}", inner.get_name()).trim_start(), found);
        }
    }
    let mut found = Vec::new();
    walk(&sluicegate::settings::Cli::command(), "", &mut found);
    walk(&sluicegate_client::cli::Cli::command(), "", &mut found);
    found
}

#[test]
fn every_flag_has_a_row_a_variable_and_help() {
    let (rows, arguments) = (rows(), arguments());
    for row in &rows {
        let known = arguments.iter().filter(|(flag, _)| flag == row.flag).count();
        assert_eq!(known, 1, "{} is no flag", row.flag);
    }
    for (flag, argument) in &arguments {
        let found: Vec<_> = rows.iter().filter(|row| row.flag == flag).collect();
        let [row] = found[..] else { panic!("{flag} has {} rows", found.len()) };
        let variable = argument.get_env().map(|name| name.to_str().unwrap().to_owned());
        assert_eq!(variable, row.variable(), "{flag}");
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        assert!(!help.trim().is_empty(), "{flag} has no help");
    }
}

/// Runs each row's check, once with the flag and once with the variable.
async fn flags_do_what_they_say(command: &str) {
    // More at once would be slower, not faster.
    let places = Arc::new(Semaphore::new(4));
    let mut checks = JoinSet::new();
    for row in rows().iter().filter(|row| row.flag.starts_with(command)) {
        for variable in [Some(None), row.variable().map(Some)].into_iter().flatten() {
            let how = variable.clone().unwrap_or_else(|| row.flag.to_owned());
            let folder = Arc::new(tempfile::tempdir().unwrap());
            fs::write(folder.path().join("limits.yaml"), LIMITS).unwrap();
            let value = row.value.replace("{folder}", folder.path().to_str().unwrap());
            let (name, joined) = (row.name(), format!("{}={value}", row.name()));
            let check = (row.check)(Given { name, variable, value, joined, folder });
            let places = Arc::clone(&places);
            checks.spawn(async move {
                let _place = places.acquire_owned().await.unwrap();
                let check = tokio::spawn(check);
                let done = tokio::time::timeout(Duration::from_secs(120), check).await;
                match done {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(format!("{how}: {error}")),
                    Err(_) => Some(format!("{how}: hangs")),
                }
            });
        }
    }
    let failed: Vec<_> = checks.join_all().await.into_iter().flatten().collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[tokio::test]
async fn flags_of_serve_do_what_they_say() {
    flags_do_what_they_say("serve ").await;
}

#[tokio::test]
async fn flags_of_validate_do_what_they_say() {
    flags_do_what_they_say("validate ").await;
}

#[tokio::test]
async fn flags_of_diff_do_what_they_say() {
    flags_do_what_they_say("diff ").await;
}

#[tokio::test]
async fn flags_of_check_do_what_they_say() {
    flags_do_what_they_say("check ").await;
}

#[tokio::test]
async fn flags_of_load_do_what_they_say() {
    flags_do_what_they_say("load ").await;
}

#[tokio::test]
async fn flags_of_the_other_admin_commands_do_what_they_say() {
    for command in ["rules ", "peek ", "reset ", "status ", "top ", "log-level "] {
        flags_do_what_they_say(command).await;
    }
}

#[tokio::test]
async fn flags_of_health_do_what_they_say() {
    flags_do_what_they_say("health ").await;
}

#[tokio::test]
async fn flags_of_explain_do_what_they_say() {
    flags_do_what_they_say("explain ").await;
}

// === What a check is given ===

/// A flag with a value, to be passed one way or the other.
#[derive(Clone)]
struct Given {
    /// As `--limits`.
    name: &'static str,
    variable: Option<String>,
    value: String,
    /// `--name=value`.
    joined: String,
    folder: Arc<TempDir>,
}

/// What is on without a value.
const SWITCHES: [&str; 5] = [
    "--shadow-mode",
    "--quota-mode",
    "--merge-domains",
    "--dynamic-metadata",
    "--health-requires-store",
];

impl Given {
    /// The same flag with another value.
    fn with(&self, value: &str) -> Self {
        let joined = format!("{}={value}", self.name);
        Self { value: value.to_owned(), joined, ..self.clone() }
    }

    /// Nothing that sluicectl would see of the flag.
    fn elsewhere(&self) -> Self {
        Self { name: "--output", variable: None, value: "text".to_owned(), ..self.clone() }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn flags(&self) -> Vec<&str> {
        match self.variable {
            Some(_) => vec![],
            None if SWITCHES.contains(&self.name) => vec![&self.joined],
            None if self.name.starts_with("--") => vec![self.name, &self.value],
            None => vec![&self.value],
        }
    }

    fn environment(&self) -> Vec<(&str, &str)> {
        self.variable.iter().map(|name| (name.as_str(), self.value.as_str())).collect()
    }

    /// The command that serves LIMITS unless the flag is about them. The flag given takes the place of
    /// the same among `flags`.
    fn serve_command(&self, flags: &[(&str, &str)]) -> Command {
        let limits = self.path("limits.yaml");
        let mut all = self.flags();
        let flags = flags.iter().filter(|(flag, _)| *flag != self.name);
        all.extend(flags.flat_map(|(flag, value)| [*flag, *value]));
        if self.name != "--limits" && !all.contains(&"--limits") {
            all.extend(["--limits", &limits]);
        }
        Sluicegate::command(&all, &self.environment())
    }

    async fn serve(&self, flags: &[(&str, &str)]) -> Sluicegate {
        let lives_as_long = tempfile::tempdir().unwrap();
        Sluicegate::started(lives_as_long, self.serve_command(flags)).await
    }

    async fn run(&self, program: &str, command: &str, flags: &[(&str, &str)]) -> Finished {
        let mut all = Command::new(binary(program));
        all.args(command.split(' ')).args(self.flags()).envs(self.environment());
        for (flag, value) in flags {
            if *flag != self.name {
                all.args([flag, value]);
            }
        }
        finish(all).await
    }

    async fn sluicectl(&self, flags: &[(&str, &str)]) -> Finished {
        self.ask("check", flags).await
    }

    async fn explain(&self, flags: &[(&str, &str)]) -> Finished {
        self.ask("explain", flags).await
    }

    async fn ask(&self, command: &str, flags: &[(&str, &str)]) -> Finished {
        let question = [("--domain", "api"), ("--descriptor", "user=bob"), ("--timeout", "30s")];
        let flags: Vec<_> = question
            .into_iter()
            .filter(|(name, _)| flags.iter().all(|(flag, _)| flag != name))
            .chain(flags.iter().copied())
            .collect();
        self.run("sluicectl", command, &flags).await
    }

    /// Asks over TLS, as somebody else than the flag given is about.
    async fn call(&self, server: &Sluicegate, caller: Option<&str>) -> Finished {
        self.call_over_tls(&["check", "--server", &format!("https://{}", server.grpc)], caller)
            .await
    }

    /// The same at the admin listener.
    async fn call_admin(&self, server: &Sluicegate, caller: Option<&str>) -> Finished {
        let address = format!("https://{}", server.admin);
        self.call_over_tls(&["explain", "--admin-server", &address], caller).await
    }

    async fn call_over_tls(&self, asked: &[&str], caller: Option<&str>) -> Finished {
        let mut command = Command::new(binary("sluicectl"));
        command.args(asked);
        command.args(["--domain", "api", "--descriptor", "user=bob", "--timeout", "30s"]);
        command.args(["--tls-ca", &self.path("ca.pem")]);
        if let Some(caller) = caller {
            command.args(["--tls-cert", &self.path(&format!("{caller}.pem"))]);
            command.args(["--tls-key", &self.path(&format!("{caller}.key"))]);
        }
        finish(command).await
    }

    /// Writes certificates of one authority: for a server, and for callers.
    fn certify(&self, server: &str, callers: &[(&str, &str)]) {
        let authority = Authority::new("all");
        self.write("ca.pem", &authority.pem());
        authority.issue(server).write(self.folder.path(), "server");
        for (file, name) in callers {
            authority.issue(name).write(self.folder.path(), file);
        }
    }
}

async fn code(server: &Sluicegate, value: &str, count: u64) -> Code {
    server.should_rate_limit(hits("user", value, count)).await.unwrap().overall_code()
}

async fn left(server: &Sluicegate, value: &str) -> u32 {
    let answer = server.should_rate_limit(hits("user", value, 0)).await.unwrap();
    answer.statuses[0].limit_remaining
}

async fn until_in_flight(server: &Sluicegate, calls: f64) {
    until("calls in progress", || async {
        (server.metric("sluicegate_requests_in_flight").await == calls).then_some(())
    })
    .await;
}

async fn until_waiting(server: &Sluicegate, calls: f64) {
    until("calls that wait for their messages", || async {
        (server.metric("sluicegate_grpc_waiting_calls").await == calls).then_some(())
    })
    .await;
}

async fn over_bound(server: &Sluicegate, bound: &str) -> f64 {
    server.metric(&format!("sluicegate_requests_over_bound_total{{bound=\"{bound}\"}}")).await
}

async fn bound_met(server: &Sluicegate, bound: &str) -> f64 {
    server.metric(&format!("sluicegate_grpc_bounds_met_total{{grpc_bound=\"{bound}\"}}")).await
}

async fn health(server: &Sluicegate) -> ServingStatus {
    let mut client = HealthClient::new(server.channel().await);
    client.check(HealthCheckRequest::default()).await.unwrap().into_inner().status()
}

fn one_line(finished: &Finished, code: i32, names: &[&str]) {
    let text = &finished.stderr;
    assert_eq!((finished.code, text.lines().count()), (code, 1), "{text}");
    for name in names {
        assert!(text.contains(name), "{name}: {text}");
    }
}

// === serve ===

async fn limits(given: Given) {
    given.write("a.yaml", LIMITS);
    fs::create_dir(given.folder.path().join("more")).unwrap();
    given.write("more/b.yml", &LIMITS.replace("api", "more"));
    let server = given.serve(&[]).await;
    let (_, shown) = server.get("/rlconfig").await;
    assert!(shown.contains("domain api ") && shown.contains("domain more "), "{shown}");
}

async fn default_counting(given: Given) {
    let server = given.serve(&[]).await;
    assert_eq!(code(&server, "bob", 11).await, Code::OverLimit);
    // The hits that were refused are charged.
    assert_eq!(code(&server, "bob", 1).await, Code::OverLimit);
    assert!(server.get("/rlconfig").await.1.contains("default_counting=upstream"));
}

/// A second file for the domain of LIMITS. Returns the paths of both.
fn two_of_a_domain(given: &Given) -> (String, String) {
    given.write("more.yaml", &LIMITS.replace("user", "team"));
    (given.path("limits.yaml"), given.path("more.yaml"))
}

async fn merge_domains(given: Given) {
    let (one, two) = two_of_a_domain(&given);
    let both = format!("{one},{two}");
    let server = given.serve(&[("--limits", &both)]).await;
    assert_eq!(left(&server, "bob").await, 10);
    let team = server.should_rate_limit(hits("team", "bob", 0)).await.unwrap();
    assert_eq!(team.statuses[0].limit_remaining, 10);
    let refused = finish(given.with("false").serve_command(&[("--limits", &both)])).await;
    one_line(&refused, 1, &["is also defined in", "--merge-domains"]);
}

const TOO_MANY_FILES: &str = "more than 1 files in all (--limits-max-files)";
const TOO_MANY_BYTES: &str = "more than 200 bytes in all files (--limits-max-bytes)";

/// A second file, of more than 200 bytes.
fn second_file(given: &Given) -> (String, String) {
    given.write("more.yaml", &format!("domain: more\n#{}\n", "-".repeat(200)));
    (given.path("limits.yaml"), given.path("more.yaml"))
}

/// The server refuses the second file, and serves it where the bound is the default.
async fn serve_bounds_files(given: Given, said: &str) {
    let (one, two) = second_file(&given);
    let both = format!("{one},{two}");
    let refused = finish(given.serve_command(&[("--limits", &both)])).await;
    one_line(&refused, 1, &[&two, said]);
    let server = given.with("100000").serve(&[("--limits", &both)]).await;
    assert_eq!(left(&server, "bob").await, 10);
}

async fn limits_max_files(given: Given) {
    serve_bounds_files(given, TOO_MANY_FILES).await;
}

async fn limits_max_bytes(given: Given) {
    serve_bounds_files(given, TOO_MANY_BYTES).await;
}

async fn poll_interval(given: Given) {
    // What is written through a link in another folder is not reported.
    let watched = given.folder.path().join("watched");
    fs::create_dir(&watched).unwrap();
    let (file, link) = (watched.join("limits.yaml"), given.path("limits.yaml"));
    fs::hard_link(&link, &file).unwrap();
    let server = given.serve(&[("--limits", file.to_str().unwrap())]).await;
    let at = LIMITS.find("10").unwrap();
    let started = Instant::now();
    let link = fs::OpenOptions::new().write(true).open(link).unwrap();
    for requests in ["11", "12", "13", "14", "15"] {
        link.write_all_at(requests.as_bytes(), at.try_into().unwrap()).unwrap();
        let shown = format!("user: [{requests} ");
        until("the change", || async {
            server.get("/rlconfig").await.1.contains(&shown).then_some(())
        })
        .await;
    }
    // The default is 10s a change.
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

async fn store(given: Given) {
    let refused = finish(given.serve_command(&[])).await;
    assert_eq!(refused.code, 2);
    let first = refused.stderr.lines().next().unwrap();
    assert!(first.contains("--store"), "{first}");
    for wrong in
        ["redis://a,b", "redis://h/x", "redis-cluster://h/1", "redis-sentinel://h", "http://h"]
    {
        let refused = finish(given.with(wrong).serve_command(&[])).await;
        assert!(refused.code == 2 && refused.stderr.contains("--store"), "{refused:?}");
    }
    let server = given.with("memory").serve(&[]).await;
    code(&server, "bob", 1).await;
    assert_eq!(server.metric("sluicegate_memory_counters").await, 1.0);
}

/// An address at which nobody answers.
fn nowhere() -> String {
    format!("redis://127.0.0.1:{}", free_port())
}

async fn until_connected(server: &Sluicegate) {
    until("the store to be there", || async {
        (server.metric("sluicegate_store_degraded").await == 0.0).then_some(())
    })
    .await;
}

async fn serve_on(given: &Given, url: &str, flags: &[(&str, &str)]) -> Sluicegate {
    let store = [("--store", url), ("--decision-timeout", "30s")];
    let server = given.serve(&[&store, flags].concat()).await;
    until_connected(&server).await;
    server
}

async fn key_prefix(given: Given) {
    let redis = Redis::start().await;
    let server = serve_on(&given, &redis.url(), &[]).await;
    code(&server, "bob", 1).await;
    let expected = ["shop:s1:fw:86400:{api:user=bob}", "shop:s1:replicas"];
    until("the counter and the heartbeat", || async {
        let keys = redis.keys("*").await;
        keys.iter().map(String::as_str).eq(expected).then_some(())
    })
    .await;
    for wrong in ["{a}", "a b", "é", &"x".repeat(65)] {
        let refused = finish(given.with(wrong).serve_command(&[])).await;
        assert!(refused.code == 2 && refused.stderr.contains("--key-prefix"), "{refused:?}");
    }
}

async fn deny_cache_entries(given: Given) {
    let redis = Redis::start().await;
    for (given, cached) in [(given.clone(), false), (given.with("10"), true)] {
        let server = serve_on(&given, &redis.url(), &[]).await;
        for _ in 0..5 {
            assert_eq!(code(&server, "bob", 11).await, Code::OverLimit);
        }
        code(&server, "eve", 1).await;
        let calls = server.metric("sluicegate_redis_calls_total").await;
        // A refusal is remembered for a second, which a busy machine may need for five questions.
        assert!(if cached { calls < 6.0 } else { calls == 6.0 }, "{calls}");
    }
}

/// A server that lets in only this user serves.
async fn lets_in(given: &Given, user: &str, flags: &[(&str, &str)]) {
    let redis = Setup::new().user(user, "secret").start().await;
    let server = serve_on(given, &redis.url(), flags).await;
    code(&server, "bob", 1).await;
    assert_eq!(redis.keys("s1:fw*").await.len(), 1);
}

async fn redis_username(given: Given) {
    lets_in(&given, "limits", &[("--redis-password", "secret")]).await;
}

async fn redis_password(given: Given) {
    lets_in(&given, "default", &[]).await;
}

async fn redis_password_file(given: Given) {
    given.write("password", "secret\nand a remark\n");
    lets_in(&given, "default", &[]).await;
    let missing = finish(given.with("/missing").serve_command(&[("--store", &nowhere())])).await;
    one_line(&missing, 1, &["/missing"]);
}

async fn redis_tls(given: Given) {
    let authority = Authority::new("all");
    given.write("ca.pem", &authority.pem());
    authority.issue("caller").write(given.folder.path(), "caller");
    let redis = Setup::new().tls(&authority).start().await;
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(|name| given.path(name));
    let tls = [("--redis-tls-ca", &*ca), ("--redis-tls-cert", &*cert), ("--redis-tls-key", &*key)];
    let server = serve_on(&given, &redis.url(), &tls).await;
    code(&server, "bob", 1).await;
    assert_eq!(redis.keys("s1:fw*").await.len(), 1);
    let missing = [&[("--store", "rediss://127.0.0.1")], &tls[..]].concat();
    let missing = finish(given.with("/missing").serve_command(&missing)).await;
    one_line(&missing, 1, &["/missing"]);
}

async fn redis_connections(given: Given) {
    let redis = Redis::start().await;
    let _server = serve_on(&given, &redis.url(), &[]).await;
    until("as many connections", || async {
        // One of them asks.
        (redis.query(&["CLIENT", "LIST"]).await.lines().count() == 3 + 1).then_some(())
    })
    .await;
}

async fn redis_connect_timeout(given: Given) {
    let mut redis = Redis::start().await;
    redis.pause();
    let url = redis.url();
    let server = given.serve(&[("--store", &url)]).await;
    until("the connection to be given up", || async {
        let (_, health) = server.get("/healthcheck?verbose").await;
        (!health.contains("not connected yet")).then_some(())
    })
    .await;
}

async fn decision_timeout(given: Given) {
    let mut redis = Redis::start().await;
    let server = serve_on(&given, &redis.url(), &[]).await;
    redis.pause();
    let started = Instant::now();
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
    assert!(started.elapsed() >= Duration::from_millis(1500), "the default is 10ms");
    let refused = finish(given.with("0s").serve_command(&[])).await;
    assert!(refused.code == 2 && refused.stderr.contains("--decision-timeout"), "{refused:?}");
}

async fn default_on_failure(given: Given) {
    let server = given.serve(&[("--store", &nowhere())]).await;
    assert_eq!(code(&server, "bob", 1).await, Code::OverLimit);
    assert!(server.get("/rlconfig").await.1.contains("default_on_failure=deny"));
}

async fn replicas(given: Given) {
    let server = given.serve(&[("--store", &nowhere())]).await;
    for allowed in [Code::Ok, Code::Ok, Code::OverLimit] {
        assert_eq!(code(&server, "bob", 1).await, allowed, "a quarter of 10");
    }
}

async fn fallback_counters(given: Given) {
    for (given, admitted) in [(given.clone(), Code::Ok), (given.with("1"), Code::OverLimit)] {
        let mut redis = Redis::start().await;
        let server = serve_on(&given, &redis.url(), &[("--replicas", "1")]).await;
        assert_eq!(code(&server, "bob", 10).await, Code::Ok);
        redis.kill().await;
        assert_eq!(code(&server, "bob", 1).await, admitted);
    }
}

async fn health_requires_store(given: Given) {
    let server = given.serve(&[("--store", &nowhere())]).await;
    until("health to follow", || async {
        (health(&server).await == ServingStatus::NotServing).then_some(())
    })
    .await;
    assert_eq!(server.get("/healthcheck").await.0, 500);
    let redis = Redis::start().await;
    let server = given.serve(&[("--store", &redis.url())]).await;
    until("health to follow", || async {
        (health(&server).await == ServingStatus::Serving).then_some(())
    })
    .await;
}

async fn memory_max_counters(given: Given) {
    let server = given.serve(&[]).await;
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
    assert_eq!(code(&server, "eve", 1).await, Code::OverLimit);
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
    assert_eq!(server.metric("sluicegate_checks_unanswered_total").await, 1.0);
    assert_eq!(server.metric("sluicegate_memory_counters_max").await, 1.0);
}

async fn grpc_listen(given: Given) {
    let server = given.serve(&[]).await;
    assert_eq!(server.grpc, given.value);
    let mut ask = Command::new(binary("sluicectl"));
    ask.args(["check", "--domain", "api", "--descriptor", "user=bob", "--timeout", "30s"]);
    ask.args(["--server", &given.value]);
    let answer = finish(ask).await;
    assert_eq!(answer.code, 0, "{answer:?}");
}

async fn grpc_tls(given: Given) {
    given.certify("127.0.0.1", &[]);
    let (cert, key) = (given.path("server.pem"), given.path("server.key"));
    let server = given.serve(&[("--grpc-tls-cert", &cert), ("--grpc-tls-key", &key)]).await;
    let answer = given.call(&server, None).await;
    assert_eq!(answer.code, 0, "{answer:?}");
}

async fn grpc_tls_client_ca(given: Given) {
    given.certify("127.0.0.1", &[("caller", "caller")]);
    let (cert, key) = (given.path("server.pem"), given.path("server.key"));
    let server = given.serve(&[("--grpc-tls-cert", &cert), ("--grpc-tls-key", &key)]).await;
    for (caller, code) in [(None, 3), (Some("caller"), 0)] {
        let answer = given.call(&server, caller).await;
        assert_eq!(answer.code, code, "{caller:?}: {answer:?}");
    }
}

async fn grpc_tls_client_names(given: Given) {
    given.certify("127.0.0.1", &[("a", "spiffe://test/a"), ("b", "spiffe://test/b")]);
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| given.path(name));
    let tls =
        [("--grpc-tls-cert", &*cert), ("--grpc-tls-key", &*key), ("--grpc-tls-client-ca", &*ca)];
    let server = given.serve(&tls).await;
    for (caller, code) in [("a", 0), ("b", 3)] {
        let answer = given.call(&server, Some(caller)).await;
        assert_eq!(answer.code, code, "{caller}: {answer:?}");
    }
}

async fn grpc_max_message_bytes(given: Given) {
    let server = given.serve(&[]).await;
    assert_eq!(code(&server, &"x".repeat(1000), 1).await, Code::OverLimit);
    assert_eq!(over_bound(&server, "message_bytes").await, 1.0);
    assert!(server.should_rate_limit(hit("user", &"x".repeat(900))).await.is_ok());
    let (status, _) = server.json(&" ".repeat(1001)).await;
    assert_eq!(status, 429);
}

async fn ping(connection: &mut RawConnection) -> [u8; 8] {
    let payload = |frame: &Frame| match frame {
        Frame::Ping(payload) => Some(*payload),
        _ => None,
    };
    connection.until("a ping", payload).await
}

async fn grpc_keepalive_interval(given: Given) {
    let server = given.serve(&[("--grpc-keepalive-timeout", "1h")]).await;
    let mut connection = RawConnection::connect(&server.grpc).await;
    for _ in 0..3 {
        let payload = ping(&mut connection).await;
        connection.pong(payload).await;
    }
}

async fn grpc_keepalive_timeout(given: Given) {
    let server = given.serve(&[("--grpc-keepalive-interval", "50ms")]).await;
    let mut connection = RawConnection::connect(&server.grpc).await;
    ping(&mut connection).await;
    let unanswered = Instant::now();
    connection.closed().await;
    // The default is 20s.
    assert!(unanswered.elapsed() < Duration::from_secs(15), "{:?}", unanswered.elapsed());
}

async fn grpc_max_connection_age(given: Given) {
    // A connection that answers no ping would be told to go as well.
    let flags = [
        ("--grpc-max-connection-age-grace", "1h"),
        ("--grpc-keepalive-interval", "0s"),
        ("--grpc-message-timeout", "1h"),
    ];
    let server = given.serve(&flags).await;
    let caller = Caller::connect(&server.grpc).await;
    let call = caller.begin().await.unwrap();
    let mut idle = RawConnection::connect(&server.grpc).await;
    idle.until("GOAWAY", |frame| (*frame == Frame::GoAway).then_some(())).await;
    until("new calls to be refused", async || caller.begin().await.err()).await;
    // One that was in progress is still answered.
    assert_eq!(call.ask(&hit("user", "bob")).await.unwrap().overall_code(), Code::Ok);
    caller.closed().await.unwrap();
}

async fn grpc_max_connection_age_grace(given: Given) {
    let server = given.serve(&[("--grpc-max-connection-age", "200ms")]).await;
    let caller = Caller::connect(&server.grpc).await;
    let call = caller.begin().await.unwrap();
    let begun = Instant::now();
    call.cut().await;
    // The default is 30s.
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    until_in_flight(&server, 0.0).await;
}

async fn grpc_max_concurrent_streams(given: Given) {
    let server = given.serve(&[]).await;
    let caller = Caller::connect(&server.grpc).await;
    until("the server's settings", async || (caller.max_calls() == 2).then_some(())).await;
    let (first, second) = (caller.begin().await.unwrap(), caller.begin().await.unwrap());
    // A third waits for one of them.
    let request = hit("user", "bob");
    let (third, first) = tokio::join!(caller.begin(), first.ask(&request));
    assert_eq!(first.unwrap().overall_code(), Code::Ok);
    for call in [second, third.unwrap()] {
        assert_eq!(call.ask(&hit("user", "bob")).await.unwrap().overall_code(), Code::Ok);
    }
}

async fn grpc_max_header_list_bytes(given: Given) {
    let server = given.serve(&[]).await;
    let mut client = server.connect().await;
    let mut with_header = async |length: usize| {
        let mut request = tonic::Request::new(hit("user", "bob"));
        request.metadata_mut().insert("tracestate", "x".repeat(length).parse().unwrap());
        client.should_rate_limit(request).await.map(|answer| answer.get_ref().overall_code())
    };
    assert_eq!(with_header(19_000).await.unwrap(), Code::Ok);
    with_header(20_000).await.unwrap_err();
}

async fn grpc_max_in_flight_share(given: Given) {
    let mut store = HangingStore::start().await;
    let [url, timeout] = store.flags();
    let server = given.serve(&[url, timeout, ("--max-in-flight", "10")]).await;
    let mut held = store.hold(&server, hit("user", "bob")).await;
    let beyond = held.client.should_rate_limit(hit("user", "bob")).await.unwrap();
    assert_eq!(beyond.get_ref().overall_code(), Code::OverLimit);
    assert_eq!(bound_met(&server, "in_flight_share").await, 1.0);
    assert_eq!(server.metric("sluicegate_requests_shed_total").await, 1.0);
    // Other connections have shares of their own.
    let mut other = server.connect().await;
    let mut others = JoinSet::new();
    others.spawn(async move { other.should_rate_limit(hit("user", "bob")).await });
    until_in_flight(&server, 2.0).await;
    store.release();
    assert_eq!(held.answer().await.unwrap().overall_code(), Code::Ok);
    let other = others.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(other.get_ref().overall_code(), Code::Ok);
}

async fn grpc_message_timeout(given: Given) {
    let server = given.serve(&[]).await;
    let caller = Caller::connect(&server.grpc).await;
    let deadline_exceeded = "4";
    let begun = framed(&hit("user", "bob")).slice(..10);
    for pieces in [vec![], vec![begun]] {
        let call = caller.begin().await.unwrap();
        assert_eq!(call.send(pieces, false).await.unwrap().0, deadline_exceeded);
    }
    assert_eq!(bound_met(&server, "message_timeout").await, 2.0);
    // A frame, too, and a header list.
    for unfinished in [&[0, 0, 8, kind::PING][..], &frame(kind::HEADERS, 0, 1, &[])] {
        let mut connection = RawConnection::connect(&server.grpc).await;
        connection.send(unfinished).await;
        connection.closed().await;
    }
    assert_eq!(bound_met(&server, "message_timeout").await, 4.0);
    // What is finished may take its time.
    let call = caller.begin_with(&[("grpc-timeout", "50m")]).await.unwrap();
    assert_eq!(call.send([], false).await.unwrap().0, "1");
    let call = caller.begin().await.unwrap();
    assert_eq!(call.ask(&hit("user", "bob")).await.unwrap().overall_code(), Code::Ok);
}

/// A message of which this part of this length is not the end.
fn unended(length: usize) -> Bytes {
    framed(&hit("user", &"x".repeat(2 * length))).slice(..length)
}

async fn refused_unread(caller: &Caller, length: usize) {
    let (status, body) =
        caller.begin().await.unwrap().send([unended(length)], false).await.unwrap();
    assert_eq!(status, "0");
    let answer = RateLimitResponse::decode(&body[5..]).unwrap();
    assert_eq!((answer.overall_code(), answer.statuses), (Code::OverLimit, vec![]));
}

async fn grpc_max_waiting_bytes(given: Given) {
    let server = given.serve(&[("--grpc-message-timeout", "1h")]).await;
    let (one, other) = (Caller::connect(&server.grpc).await, Caller::connect(&server.grpc).await);
    let held = one.begin().await.unwrap().begin_message(unended(150_000)).unwrap();
    until("its bytes", || async {
        (server.metric("sluicegate_grpc_waiting_bytes").await > 0.0).then_some(())
    })
    .await;
    refused_unread(&other, 350_000).await;
    assert_eq!(over_bound(&server, "waiting_bytes").await, 1.0);
    // Little may always wait.
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
    let little = other.begin().await.unwrap().begin_message(unended(1_000)).unwrap();
    until_waiting(&server, 2.0).await;
    drop((held, little));
    until_waiting(&server, 0.0).await;
    assert_eq!(server.metric("sluicegate_grpc_waiting_bytes").await, 0.0);
}

async fn grpc_max_waiting_bytes_per_connection(given: Given) {
    let server = given.serve(&[("--grpc-message-timeout", "1h")]).await;
    let (one, other) = (Caller::connect(&server.grpc).await, Caller::connect(&server.grpc).await);
    let held = one.begin().await.unwrap().begin_message(unended(40_000)).unwrap();
    until_waiting(&server, 1.0).await;
    refused_unread(&one, 80_000).await;
    assert_eq!(over_bound(&server, "waiting_bytes_per_connection").await, 1.0);
    let on_another = other.begin().await.unwrap().begin_message(unended(40_000)).unwrap();
    until_waiting(&server, 2.0).await;
    drop((held, on_another));
    until_waiting(&server, 0.0).await;
}

type Watch = tonic::Streaming<HealthCheckResponse>;

async fn watch(client: &HealthClient<Channel>) -> Result<Watch, GrpcCode> {
    let answer = client.clone().watch(HealthCheckRequest::default()).await;
    answer.map(tonic::Response::into_inner).map_err(|error| error.code())
}

/// How calls that may last are bounded, with one place.
async fn one_watch(
    server: &Sluicegate,
    first: HealthClient<Channel>,
    second: HealthClient<Channel>,
) {
    let held = watch(&first).await.unwrap();
    assert_eq!(watch(&second).await.unwrap_err(), GrpcCode::ResourceExhausted);
    // Others are bounded by their streams alone.
    for _ in 0..3 {
        assert_eq!(health(server).await, ServingStatus::Serving);
    }
    assert_eq!(server.metric("sluicegate_grpc_streaming_calls").await, 1.0);
    drop(held);
    until("the place", async || watch(&second).await.ok()).await;
}

async fn grpc_max_streaming_calls(given: Given) {
    let server = given.serve(&[]).await;
    let (first, second) = (server.channel().await, server.channel().await);
    one_watch(&server, HealthClient::new(first), HealthClient::new(second)).await;
    assert!(bound_met(&server, "streaming_calls").await >= 1.0);
}

async fn grpc_max_streaming_calls_per_connection(given: Given) {
    let server = given.serve(&[]).await;
    let first = HealthClient::new(server.channel().await);
    one_watch(&server, first.clone(), first.clone()).await;
    assert!(bound_met(&server, "streaming_calls_per_connection").await >= 1.0);
    let held = watch(&first).await.unwrap();
    drop((watch(&HealthClient::new(server.channel().await)).await.unwrap(), held));
}

async fn grpc_max_connection_idle(given: Given) {
    let server = given.serve(&[("--grpc-message-timeout", "1h")]).await;
    let mut idle = RawConnection::connect(&server.grpc).await;
    idle.until("GOAWAY", |frame| (*frame == Frame::GoAway).then_some(())).await;
    // It does not answer, and is closed all the same.
    idle.closed().await;
    let caller = Caller::connect(&server.grpc).await;
    let call = caller.begin().await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    // One with a call is not idle.
    assert_eq!(call.ask(&hit("user", "bob")).await.unwrap().overall_code(), Code::Ok);
    caller.closed().await.unwrap();
    assert_eq!(bound_met(&server, "connection_idle").await, 2.0);
}

async fn http_listen(given: Given) {
    let server = given.serve(&[]).await;
    assert!(server.http.starts_with("127.0.0.2:"), "{}", server.http);
    assert_eq!(server.get("/healthcheck").await.0, 200);
}

async fn admin_listen(given: Given) {
    let server = given.serve(&[]).await;
    assert!(server.admin.starts_with("127.0.0.2:"), "{}", server.admin);
    let address = format!("http://{}", server.admin);
    says(&given.elsewhere().explain(&[("--admin-server", &address)]).await, 0, "0 of 10 used");
    let refused = finish(given.with("0.0.0.0:0").serve_command(&[])).await;
    one_line(&refused, 1, &["0.0.0.0:0 is open to the network"]);
}

async fn admin_token_file(given: Given) {
    given.write("token", "the-operators-secret");
    given.write("other", "guess");
    let server = given.serve(&[]).await;
    let address = format!("http://{}", server.admin);
    let (good, bad) = (given.path("token"), given.path("other"));
    let explain = async |token: &str| {
        let flags = [("--admin-server", &*address), ("--token-file", token)];
        given.elsewhere().explain(&flags).await.code
    };
    assert_eq!((explain(&good).await, explain(&bad).await), (0, 3));
    given.write("token", "fifteen-bytes--");
    let refused = finish(given.serve_command(&[])).await;
    one_line(&refused, 1, &["--admin-token-file: the first line of ", "less than 16 bytes"]);
}

async fn admin_tls(given: Given) {
    given.certify("127.0.0.1", &[]);
    let (cert, key) = (given.path("server.pem"), given.path("server.key"));
    let server = given.serve(&[("--admin-tls-cert", &cert), ("--admin-tls-key", &key)]).await;
    assert_eq!(given.call_admin(&server, None).await.code, 0);
}

async fn admin_tls_client_ca(given: Given) {
    given.certify("127.0.0.1", &[("caller", "caller")]);
    let (cert, key) = (given.path("server.pem"), given.path("server.key"));
    let server = given.serve(&[("--admin-tls-cert", &cert), ("--admin-tls-key", &key)]).await;
    assert_eq!(given.call_admin(&server, Some("caller")).await.code, 0);
    assert_eq!(given.call_admin(&server, None).await.code, 3);
}

async fn admin_tls_client_names(given: Given) {
    given.certify("127.0.0.1", &[("a", "spiffe://test/a"), ("b", "spiffe://test/b")]);
    let [ca, cert, key] = ["ca.pem", "server.pem", "server.key"].map(|name| given.path(name));
    let flags =
        [("--admin-tls-cert", &*cert), ("--admin-tls-key", &*key), ("--admin-tls-client-ca", &*ca)];
    let server = given.serve(&flags).await;
    assert_eq!(given.call_admin(&server, Some("a")).await.code, 0);
    assert_eq!(given.call_admin(&server, Some("b")).await.code, 3);
}

async fn grpc_max_connections(given: Given) {
    let server = given.serve(&[]).await;
    let max = "sluicegate_connections_max{listener=\"grpc\"}";
    assert_eq!(server.metric(max).await, 1.0);
    let mut used = server.connect().await;
    used.should_rate_limit(hit("user", "bob")).await.unwrap();
    let mut refused = TcpStream::connect(&server.grpc).await.unwrap();
    assert_eq!(refused.read(&mut [0]).await.unwrap_or(0), 0);
    used.should_rate_limit(hit("user", "bob")).await.unwrap();
    let refused = "sluicegate_connections_dropped_total{listener=\"grpc\",reason=\"refused\"}";
    assert_eq!(server.metric(refused).await, 1.0);
}

async fn http_max_connections(given: Given) {
    let server = given.serve(&[]).await;
    let mut first = TcpStream::connect(&server.http).await.unwrap();
    let mut second = TcpStream::connect(&server.http).await.unwrap();
    second.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    second.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    // Its place was taken.
    assert_eq!(first.read(&mut answer).await.unwrap_or(0), 0);
}

async fn max_pending_connections_per_address(given: Given) {
    let server = given.serve(&[]).await;
    // Their handshakes are over, so that time drops none.
    let mut pending = Vec::new();
    for _ in 0..65 {
        let mut connection = RawConnection::connect(&server.grpc).await;
        connection.until("hello", |frame| (*frame == Frame::Other(4)).then_some(())).await;
        pending.push(connection);
    }
    pending.remove(0).closed().await;
    let dropped = "sluicegate_connections_dropped_total{listener=\"grpc\",reason=\"address\"}";
    assert_eq!(server.metric(dropped).await, 1.0);
    let refused = finish(given.with("63").serve_command(&[])).await;
    one_line(&refused, 2, &[given.name, "must be at least 64"]);
}

async fn handshake_timeout(given: Given) {
    let server = given.serve(&[]).await;
    let connected = Instant::now();
    let mut silent = TcpStream::connect(&server.grpc).await.unwrap();
    // The server speaks first, and closes then.
    let _reset = silent.read_to_end(&mut Vec::new()).await;
    // The default is 10s.
    assert!(connected.elapsed() < Duration::from_secs(8), "{:?}", connected.elapsed());
    let dropped = "sluicegate_connections_dropped_total{listener=\"grpc\",reason=\"timeout\"}";
    assert_eq!(server.metric(dropped).await, 1.0);
}

async fn http_idle_timeout(given: Given) {
    let server = given.serve(&[]).await;
    let mut idle = TcpStream::connect(&server.http).await.unwrap();
    idle.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    // The answer, and the end.
    let mut answer = Vec::new();
    let answered = Instant::now();
    idle.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    // The default is 75s.
    assert!(answered.elapsed() < Duration::from_secs(60), "{:?}", answered.elapsed());
}

async fn max_in_flight(given: Given) {
    let mut store = HangingStore::start().await;
    let server = given.serve(&store.flags()).await;
    let held = store.hold(&server, hit("user", "bob")).await;
    assert_eq!(code(&server, "bob", 1).await, Code::OverLimit);
    let body = r#"{"domain":"api","descriptors":[{"entries":[{"key":"user","value":"bob"}]}]}"#;
    assert_eq!(server.json(body).await.0, 429);
    // Also where a call takes another way, because it is unusual.
    let caller = Caller::connect(&server.grpc).await;
    let unusual = caller.begin_with(&[("grpc-encoding", "identity")]).await.unwrap();
    let answer = unusual.ask(&hit("user", "bob")).await.unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!(server.metric("sluicegate_requests_shed_total").await, 3.0);
    assert_eq!(health(&server).await, ServingStatus::Serving);
    // A call is none in progress before its message is whole.
    let begun = caller.begin().await.unwrap();
    until_waiting(&server, 1.0).await;
    until_in_flight(&server, 1.0).await;
    store.release();
    assert_eq!(held.answer().await.unwrap().overall_code(), Code::Ok);
    assert_eq!(begun.ask(&hit("user", "bob")).await.unwrap().overall_code(), Code::Ok);
    until_in_flight(&server, 0.0).await;
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
}

async fn request_max_bytes(given: Given) {
    let server = given.serve(&[]).await;
    // api, user and the value.
    assert_eq!(code(&server, "bob", 1).await, Code::OverLimit);
    assert_eq!(code(&server, "eve", 0).await, Code::OverLimit);
    assert_eq!(code(&server, "me", 1).await, Code::Ok);
    let counted = "sluicegate_requests_over_bound_total{bound=\"bytes\"}";
    assert_eq!(server.metric(counted).await, 2.0);
}

async fn drain_delay(given: Given) {
    let server = given.serve(&[]).await;
    assert_eq!(health(&server).await, ServingStatus::Serving);
    assert_eq!(server.get("/healthcheck").await.0, 200);
    server.process.signal(Signal::SIGTERM);
    until("health to say so", || async {
        (health(&server).await == ServingStatus::NotServing).then_some(())
    })
    .await;
    assert_eq!(server.get("/healthcheck").await.0, 500);
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
    assert_eq!(left(&server, "bob").await, 9);
}

async fn drain_timeout(given: Given) {
    let mut store = HangingStore::start().await;
    let mut server = given.serve(&store.flags()).await;
    let held = store.hold(&server, hit("user", "bob")).await;
    let told = Instant::now();
    server.process.signal(Signal::SIGTERM);
    assert_eq!(server.process.ended().await.code(), Some(0));
    // The default is 30s.
    assert!(told.elapsed() < Duration::from_secs(25), "{:?}", told.elapsed());
    held.answer().await.unwrap_err();
    assert!(server.process.output().contains("outlived the drain timeout"));
}

async fn log_level(given: Given) {
    let mut server = given.serve(&[]).await;
    code(&server, "bob", 1).await;
    server.process.line("debug", |line| line.contains("DEBUG").then_some(())).await;
    let refused = finish(given.with("sluicegate=loud").serve_command(&[])).await;
    one_line(&refused, 1, &["--log-level"]);
    // What is not named stays at info: else it would not be said where it serves.
    given.with("h2=off").serve(&[]).await;
}

async fn log_format(given: Given) {
    let mut server = given.serve(&[("--log-level", "trace")]).await;
    code(&server, "bob", 1).await;
    server.process.signal(Signal::SIGTERM);
    server.process.ended().await;
    let log = server.process.output();
    assert!(log.lines().count() > 3, "{log}");
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        assert!(line["level"].is_string() && line["timestamp"].is_string(), "{line}");
    }
}

/// Refuses so many requests, one by one.
async fn refuse(server: &Sluicegate, count: usize) {
    for _ in 0..count {
        assert_eq!(code(server, "bob", 11).await, Code::OverLimit);
    }
}

fn logged_decisions(server: &Sluicegate) -> Vec<String> {
    let log = server.process.output();
    let lines = log.lines().filter(|line| line.contains("sluicegate::decisions: limited"));
    lines.map(str::to_owned).collect()
}

async fn decision_log_ratio(given: Given) {
    let is_decision = |line: &str| {
        line.contains("limited domain=\"api\"") && line.contains(" limit=\"10 per day\" ")
    };
    let mut server = given.serve(&[]).await;
    refuse(&server, 1).await;
    server.process.line("a decision", |line| is_decision(line).then_some(())).await;
    let server = given.with("0").serve(&[]).await;
    refuse(&server, 1).await;
    assert_eq!(logged_decisions(&server), Vec::<String>::new());
    let refused = finish(given.with("2").serve_command(&[])).await;
    assert!(refused.stderr.contains("a ratio is a number from 0 to 1"), "{}", refused.stderr);
}

async fn decision_log_max_per_second(given: Given) {
    let server = given.serve(&[("--decision-log-ratio", "1")]).await;
    refuse(&server, 50).await;
    assert!(server.metric("sluicegate_decision_log_dropped_total").await > 0.0);
    let with = [("--decision-log-ratio", "1")];
    let refused = finish(given.with("0").serve_command(&with)).await;
    one_line(&refused, 2, &["--decision-log-max-per-second"]);
    let alone = finish(given.serve_command(&[])).await;
    one_line(&alone, 2, &["not provided: --decision-log-ratio <RATIO>"]);
}

async fn key_hash_salt_file(given: Given) {
    given.write("salt", "0123456789abcdef");
    let hash = async |given: Given| {
        let mut server = given.serve(&[("--decision-log-ratio", "1")]).await;
        refuse(&server, 1).await;
        let hash = |line: &str| Some(line.split_once("key_hash=")?.1.get(..18)?.to_owned());
        server.process.line("a decision", hash).await
    };
    let first = hash(given.clone()).await;
    assert_eq!(first, hash(given.clone()).await);
    given.write("salt", "0123456789abcdeg");
    assert_ne!(first, hash(given.clone()).await);
    given.write("salt", "0123");
    let refused = finish(given.serve_command(&[])).await;
    one_line(&refused, 1, &["--key-hash-salt-file", "less than 16 bytes"]);
}

async fn trace_ratio(given: Given) {
    let away = format!("http://127.0.0.1:{}", free_port());
    for (given, traced) in [(given.clone(), 1.0), (given.with("0"), 0.0)] {
        let server = given.serve(&[("--otlp-endpoint", &away)]).await;
        code(&server, "bob", 1).await;
        assert_eq!(server.metric("sluicegate_traced_requests_total").await, traced);
    }
    let refused = finish(given.with("1.5").serve_command(&[("--otlp-endpoint", &away)])).await;
    one_line(&refused, 2, &["--trace-ratio", "a ratio is a number from 0 to 1"]);
    let alone = finish(given.serve_command(&[])).await;
    one_line(&alone, 2, &["not provided: --otlp-endpoint <URL>"]);
}

// === validate ===

async fn validate_path(given: Given) {
    let answer = given.run("sluicegate", "validate", &[]).await;
    assert_eq!((answer.code, &*answer.stdout), (0, "ok: 1 domains, 1 rules, 0 warnings\n"));
    given.write("limits.yaml", &LIMITS.replace("day", "fortnight").replace("user", ""));
    let answer = given.run("sluicegate", "validate", &[]).await;
    assert_eq!(answer.code, 1);
    let place = format!("{}:5: descriptors[0].rate_limit.unit: ", given.value);
    assert!(answer.stdout.contains(&place), "{answer:?}");
}

async fn validate_default_counting(given: Given) {
    given.write("limits.yaml", LOG_LIMITS);
    let mut command = Command::new(binary("sluicegate"));
    command.args(["validate", &given.path("limits.yaml")]);
    assert_eq!(finish(command).await.code, 0);
    let mut command = Command::new(binary("sluicegate"));
    command.args(["validate", &given.path("limits.yaml")]);
    command.args(given.flags()).envs(given.environment());
    let answer = finish(command).await;
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.stdout.contains("sliding_window_log goes with counting: free"), "{answer:?}");
}

/// `sluicegate` with these arguments and the flag given.
async fn with_flag(given: &Given, arguments: &[&str]) -> Finished {
    let mut command = Command::new(binary("sluicegate"));
    command.args(arguments).args(given.flags()).envs(given.environment());
    finish(command).await
}

async fn validate_merge_domains(given: Given) {
    let (one, two) = two_of_a_domain(&given);
    let answer = with_flag(&given, &["validate", &one, &two]).await;
    assert_eq!((answer.code, &*answer.stdout), (0, "ok: 1 domains, 2 rules, 0 warnings\n"));
    let answer = with_flag(&given.with("false"), &["validate", &one, &two]).await;
    assert_eq!(answer.code, 1);
    assert!(answer.stdout.contains("is also defined in"), "{answer:?}");
}

async fn validate_bounds_files(given: Given, said: &str) {
    let (one, two) = second_file(&given);
    says(&with_flag(&given, &["validate", &one, &two]).await, 1, said);
    says(&with_flag(&given, &["validate", &one]).await, 0, "ok: 1 domains");
}

async fn validate_limits_max_files(given: Given) {
    validate_bounds_files(given, TOO_MANY_FILES).await;
}

async fn validate_limits_max_bytes(given: Given) {
    validate_bounds_files(given, TOO_MANY_BYTES).await;
}

/// What `validate --explain` says of a hit, with the flag and without it.
async fn explained_with(given: &Given, without: &str) -> [String; 2] {
    let limits = given.path("limits.yaml");
    let question = ["--explain", "--domain", "api", "--descriptor", "user=bob"];
    let arguments = [&["validate", &limits][..], &question].concat();
    let with = with_flag(given, &arguments).await.stdout;
    [with, with_flag(&given.with(without), &arguments).await.stdout]
}

async fn validate_default_on_failure(given: Given) {
    let [with, without] = explained_with(&given, "allow").await;
    assert!(with.contains("on_failure deny"), "{with}");
    assert!(without.contains("on_failure allow"), "{without}");
}

async fn validate_shadow_mode(given: Given) {
    let [with, without] = explained_with(&given, "false").await;
    assert!(with.contains("shadow_mode") && !without.contains("shadow_mode"), "{with}{without}");
}

async fn validate_quota_mode(given: Given) {
    let [with, without] = explained_with(&given, "false").await;
    assert!(with.contains("quota_mode") && !without.contains("quota_mode"), "{with}{without}");
}

// === diff ===

async fn diff(given: &Given, old: &str, new: &str) -> Finished {
    let mut command = Command::new(binary("sluicegate"));
    command.args(["diff", old, new]).envs(given.environment());
    finish(command).await
}

async fn diff_old(given: Given) {
    given.write("old.yaml", &LIMITS.replace("10", "20"));
    says(&diff(&given, &given.value, &given.path("limits.yaml")).await, 1, "_unit 20 -> 10\n");
}

async fn diff_new(given: Given) {
    given.write("new.yaml", &LIMITS.replace("10", "20"));
    says(&diff(&given, &given.path("limits.yaml"), &given.value).await, 1, "_unit 10 -> 20\n");
}

async fn diff_default_counting(given: Given) {
    given.write("upstream.yaml", &(LIMITS.to_owned() + "counting: upstream\n"));
    let (free, upstream) = (given.path("limits.yaml"), given.path("upstream.yaml"));
    says(&with_flag(&given, &["diff", &free, &upstream]).await, 0, "equal\n");
    let other = with_flag(&given.with("debit"), &["diff", &free, &upstream]).await;
    says(&other, 1, "changed api: user: counting debit -> upstream\n");
}

async fn diff_merge_domains(given: Given) {
    two_of_a_domain(&given);
    let (one, both) = (given.path("limits.yaml"), given.folder.path().to_str().unwrap());
    says(&with_flag(&given, &["diff", &one, both]).await, 1, "added api: team: 10 per day");
    let refused = with_flag(&given.with("false"), &["diff", &one, both]).await;
    says(&refused, 2, "is also defined in");
}

async fn diff_bounds_files(given: Given, said: &str) {
    second_file(&given);
    let (one, both) = (given.path("limits.yaml"), given.folder.path().to_str().unwrap());
    says(&with_flag(&given, &["diff", &one, both]).await, 2, said);
    says(&with_flag(&given, &["diff", &one, &one]).await, 0, "equal");
}

async fn diff_limits_max_files(given: Given) {
    diff_bounds_files(given, TOO_MANY_FILES).await;
}

async fn diff_limits_max_bytes(given: Given) {
    diff_bounds_files(given, TOO_MANY_BYTES).await;
}

/// `validate --explain` of one request; the flags make sense together only.
async fn validate_explain(given: Given) {
    let explain = async |flags: &[&str]| {
        let mut command = Command::new(binary("sluicegate"));
        command.args(["validate", &given.path("limits.yaml")]).args(flags);
        finish(command).await
    };
    let all = ["--explain", "--domain", "api", "--descriptor", "user=bob"];
    says(&explain(&all).await, 0, "  user=bob\n    limited by rule user (");
    let without = match given.name {
        "--explain" => all[1..].to_vec(),
        "--domain" => [&all[..1], &all[3..]].concat(),
        _ => all[..3].to_vec(),
    };
    one_line(&explain(&without).await, 2, &[given.name]);
    let mut elsewhere = all;
    elsewhere[2] = "other";
    says(&explain(&elsewhere).await, 0, "no limits file has this domain");
    elsewhere = all;
    elsewhere[4] = "tenant=bob";
    says(&explain(&elsewhere).await, 0, "nothing at level 1 takes tenant=bob");
}

async fn validate_key_prefix(given: Given) {
    let limits = given.path("limits.yaml");
    let mut command = Command::new(binary("sluicegate"));
    command.args(["validate", &limits, "--explain", "--domain", "api", "--descriptor", "user=bob"]);
    command.args(given.flags()).envs(given.environment());
    says(&finish(command).await, 0, "counter  shop:s1:fw:86400:{api:user=bob}");
}

// === sluicectl explain ===

/// A server of LIMITS, and the flag that names its admin listener.
async fn explained() -> (Sluicegate, String) {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let address = format!("http://{}", server.admin);
    (server, address)
}

async fn explain_domain(given: Given) {
    let (_server, address) = explained().await;
    let server = ("--admin-server", &*address);
    says(&given.explain(&[server]).await, 0, "limited by rule user (");
    says(&given.with("other").explain(&[server]).await, 0, "no limits file has this domain");
}

async fn explain_descriptor(given: Given) {
    let (server, address) = explained().await;
    code(&server, "bob", 3).await;
    let server = ("--admin-server", &*address);
    says(&given.explain(&[server]).await, 0, "3 of 10 used, 7 left");
    says(&given.with("a=b").explain(&[server]).await, 0, "nothing at level 1 takes a=b");
}

async fn explain_hits(given: Given) {
    let (server, address) = explained().await;
    let flag = ("--admin-server", &*address);
    says(&given.explain(&[flag]).await, 1, "refuses, never passes");
    says(&given.with("10").explain(&[flag]).await, 0, "would pass");
    assert_eq!(left(&server, "bob").await, 10);
}

async fn explain_output(given: Given) {
    let (_server, address) = explained().await;
    let answer = given.explain(&[("--admin-server", &address)]).await;
    let json: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(json["descriptors"][0]["outcome"], "limited");
}

async fn explain_admin_server(given: Given) {
    let _server = Sluicegate::start(LIMITS, &["--admin-listen", &given.value]).await;
    says(&given.explain(&[]).await, 0, "would pass");
}

async fn explain_token_file(given: Given) {
    given.write("token", "the-operators-secret");
    let token = given.path("token");
    let server = Sluicegate::start(LIMITS, &["--admin-token-file", &token]).await;
    let address = format!("http://{}", server.admin);
    says(&given.explain(&[("--admin-server", &address)]).await, 0, "would pass");
    assert_eq!(given.elsewhere().explain(&[("--admin-server", &address)]).await.code, 3);
}

async fn explain_timeout(given: Given) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let answer = given.explain(&[("--admin-server", &address)]).await;
    one_line(&answer, 3, &["no answer within 123ms"]);
}

async fn explained_with_tls(given: &Given, flags: &[(&str, &str)]) -> (Sluicegate, String) {
    let [limits, cert, key] =
        ["limits.yaml", "server.pem", "server.key"].map(|name| given.path(name));
    let files = [("--limits", &*limits), ("--admin-tls-cert", &*cert), ("--admin-tls-key", &*key)];
    let all: Vec<_> = files.iter().chain(flags).flat_map(|(flag, value)| [*flag, *value]).collect();
    let server = Sluicegate::start_with(tempfile::tempdir().unwrap(), &all).await;
    let address = format!("https://{}", server.admin);
    (server, address)
}

async fn explain_tls_ca(given: Given) {
    given.certify("127.0.0.1", &[]);
    let (_server, address) = explained_with_tls(&given, &[]).await;
    says(&given.explain(&[("--admin-server", &address)]).await, 0, "would pass");
}

async fn explain_tls_client(given: Given) {
    given.certify("127.0.0.1", &[("caller", "caller")]);
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(|name| given.path(name));
    let (_server, address) = explained_with_tls(&given, &[("--admin-tls-client-ca", &ca)]).await;
    let address = ("--admin-server", &*address);
    let flags = [address, ("--tls-ca", &*ca), ("--tls-cert", &*cert), ("--tls-key", &*key)];
    says(&given.explain(&flags).await, 0, "would pass");
}

async fn explain_tls_server_name(given: Given) {
    given.certify("limits.example", &[]);
    let (server, address) = explained_with_tls(&given, &[]).await;
    let ca = given.path("ca.pem");
    let flags = [("--admin-server", &*address), ("--tls-ca", &*ca)];
    says(&given.explain(&flags).await, 0, "would pass");
    assert_eq!(given.call_admin(&server, None).await.code, 3, "the address is not in it");
}

// === sluicectl log-level ===

async fn log_level_level(given: Given) {
    let (_server, address) = explained().await;
    let address = ("--admin-server", &*address);
    let answer = given.run("sluicectl", "log-level", &[address]).await;
    assert_eq!((answer.code, &*answer.stdout), (0, "debug\n"), "{answer:?}");
    let answer = given.with("loud").run("sluicectl", "log-level", &[address]).await;
    one_line(&answer, 3, &["\"loud\" is not a level"]);
}

async fn log_level_for(given: Given) {
    let (_server, address) = explained().await;
    let mut command = Command::new(binary("sluicectl"));
    command.args(["log-level", "debug", "--admin-server", &address]).args(given.flags());
    let answer = finish(command).await;
    assert!(answer.stdout.starts_with("debug; info in "), "{answer:?}");
}

// === the other commands that ask the admin listener ===

impl Given {
    /// Asks the admin listener, with what the command has to be told unless the flag given is just that.
    async fn admin(&self, command: &str, flags: &[(&str, &str)]) -> Finished {
        let (_, question) = ADMIN_COMMANDS.iter().find(|(name, _)| *name == command).unwrap();
        let asked = question.iter().copied().chain([("--timeout", "30s")]);
        let asked = asked.filter(|(name, _)| flags.iter().all(|(flag, _)| flag != name));
        let all: Vec<_> = asked.chain(flags.iter().copied()).collect();
        self.run("sluicectl", command, &all).await
    }
}

/// A server of TENANTS where bob has used two hits, and its admin listener.
async fn administered(flags: &[&str]) -> (Sluicegate, String) {
    let server = Sluicegate::start(TENANTS, flags).await;
    code(&server, "bob", 1).await;
    code(&server, "bob", 1).await;
    let address = format!("http://{}", server.admin);
    (server, address)
}

/// Somebody has answered, be it with no.
fn was_answered(answer: &Finished) {
    assert!(matches!(answer.code, 0 | 1) && answer.stderr.is_empty(), "{answer:?}");
}

async fn admin_output(command: &'static str, given: Given) {
    let (_server, address) = administered(&[]).await;
    let answer = given.admin(command, &[("--admin-server", &address)]).await;
    was_answered(&answer);
    assert!(serde_json::from_str::<Value>(&answer.stdout).unwrap().is_object());
}

async fn admin_server(command: &'static str, given: Given) {
    let _server = Sluicegate::start(TENANTS, &["--admin-listen", &given.value]).await;
    was_answered(&given.admin(command, &[]).await);
}

async fn admin_token(command: &'static str, given: Given) {
    given.write("token", "the-operators-secret");
    let (_server, address) = administered(&["--admin-token-file", &given.path("token")]).await;
    was_answered(&given.admin(command, &[("--admin-server", &address)]).await);
    let other = given.elsewhere().admin(command, &[("--admin-server", &address)]).await;
    assert_eq!(other.code, 3, "{other:?}");
}

async fn admin_timeout(command: &'static str, given: Given) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let answer = given.admin(command, &[("--admin-server", &address)]).await;
    one_line(&answer, 3, &["no answer within 123ms"]);
}

async fn admin_with_tls(given: &Given, flags: &[(&str, &str)]) -> (Sluicegate, String) {
    given.write("limits.yaml", TENANTS);
    explained_with_tls(given, flags).await
}

async fn admin_ca(command: &'static str, given: Given) {
    given.certify("127.0.0.1", &[]);
    let (_server, address) = admin_with_tls(&given, &[]).await;
    was_answered(&given.admin(command, &[("--admin-server", &address)]).await);
}

async fn admin_client_cert(command: &'static str, given: Given) {
    given.certify("127.0.0.1", &[("caller", "caller")]);
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(|name| given.path(name));
    let (_server, address) = admin_with_tls(&given, &[("--admin-tls-client-ca", &ca)]).await;
    let address = ("--admin-server", &*address);
    let flags = [address, ("--tls-ca", &*ca), ("--tls-cert", &*cert), ("--tls-key", &*key)];
    was_answered(&given.admin(command, &flags).await);
}

async fn admin_server_name(command: &'static str, given: Given) {
    given.certify("limits.example", &[]);
    let (server, address) = admin_with_tls(&given, &[]).await;
    let ca = given.path("ca.pem");
    let flags = [("--admin-server", &*address), ("--tls-ca", &*ca)];
    was_answered(&given.admin(command, &flags).await);
    assert_eq!(given.call_admin(&server, None).await.code, 3, "the address is not in it");
}

async fn rules_filter(given: Given) {
    let (_server, address) = administered(&[]).await;
    let server = ("--admin-server", &*address);
    says(&given.admin("rules", &[server]).await, 1, "no such rules");
    let right = if given.name == "--domain" { "api" } else { "user" };
    says(&given.with(right).admin("rules", &[server]).await, 0, "10 per day (some)");
}

async fn peek_elsewhere(given: Given) {
    let (_server, address) = administered(&[]).await;
    says(&given.admin("peek", &[("--admin-server", &address)]).await, 1, "no limit applies");
}

async fn peek_tenant(given: Given) {
    let (_server, address) = administered(&[]).await;
    let flags = [("--domain", "api"), ("--admin-server", &*address)];
    says(&given.run("sluicectl", "peek", &flags).await, 0, BOB);
}

async fn peek_limit(given: Given) {
    let limits = "domain: api\ntenant: user\ndescriptors:\n  - key: user\n    limits:\n      - {unit: day, requests_per_unit: 9}\n      - {unit: hour, requests_per_unit: 9}\n";
    let server = Sluicegate::start(limits, &[]).await;
    code(&server, "bob", 1).await;
    let address = format!("http://{}", server.admin);
    let flags = [("--domain", "api"), ("--tenant", "bob"), ("--admin-server", &*address)];
    says(&given.run("sluicectl", "peek", &flags).await, 0, "and more; see --limit");
}

async fn reset_domain(given: Given) {
    let (server, address) = administered(&[]).await;
    let flags = [("--admin-server", &*address)];
    let other = given.admin("reset counter", &flags).await;
    one_line(&other, 1, &["no limits file has domain other"]);
    assert_eq!(left(&server, "bob").await, 8);
}

async fn reset_elsewhere(given: Given) {
    let (server, address) = administered(&[]).await;
    let flags = [("--admin-server", &*address)];
    says(&given.admin("reset counter", &flags).await, 1, "no limit applies");
    assert_eq!(left(&server, "bob").await, 8);
}

async fn reset_limit(given: Given) {
    let (server, address) = administered(&[]).await;
    let flags = [("--admin-server", &*address)];
    let other = given.with("other").admin("reset counter", &flags).await;
    one_line(&other, 1, &["no limit of the name other", "these do: some"]);
    says(&given.admin("reset counter", &flags).await, 0, BOB);
    assert_eq!(left(&server, "bob").await, 10);
}

async fn reset_key(given: Given) {
    let (server, address) = administered(&[]).await;
    let answer = given.run("sluicectl", "reset counter", &[("--admin-server", &address)]).await;
    says(&answer, 0, BOB);
    assert_eq!(left(&server, "bob").await, 10);
}

async fn reset_tenant(given: Given) {
    let (server, address) = administered(&[]).await;
    let answer = given.admin("reset tenant", &[("--admin-server", &address)]).await;
    says(&answer, 0, "1 counter reset");
    assert_eq!(left(&server, "bob").await, 10);
}

/// A flag without a value, after a whole command line.
async fn with_switch(command: &[&str], address: &str, switch: &str) -> Finished {
    let mut all = Command::new(binary("sluicectl"));
    all.args(command).args(["--timeout", "30s", "--admin-server", address, switch]);
    finish(all).await
}

async fn reset_dry_run(given: Given) {
    let (server, address) = administered(&[]).await;
    for command in [
        ["reset", "counter", "--domain", "api", "--descriptor", "user=bob"],
        ["reset", "tenant", "--domain", "api", "--tenant", "bob"],
    ] {
        was_answered(&with_switch(&command, &address, given.name).await);
        assert_eq!(left(&server, "bob").await, 8);
    }
}

async fn reset_yes(given: Given) {
    let (server, address) = administered(&[]).await;
    // In a terminal of its own, where somebody could be asked.
    let sluicectl = binary("sluicectl").display().to_string();
    let reset =
        format!("{sluicectl} reset tenant --domain api --tenant bob --admin-server {address}");
    let typed = async |line: &str| {
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("echo n | script -qec '{line}' /dev/null")]);
        finish(shell).await
    };
    let asked = typed(&reset).await;
    assert!(asked.stdout.contains("reset every counter of tenant bob"), "{asked:?}");
    assert_eq!(left(&server, "bob").await, 8);
    let sure = typed(&format!("{reset} {}", given.name)).await;
    assert!(sure.stdout.contains("1 counter reset"), "{sure:?}");
    assert_eq!(left(&server, "bob").await, 10);
}

async fn top_keys(given: Given) {
    let server = given.serve(&[]).await;
    let mut top = Command::new(binary("sluicectl"));
    top.args(["top", "--admin-server", &format!("http://{}", server.admin)]);
    one_line(&finish(top).await, 3, &["--top-keys 0"]);
    for many in ["100001", "18446744073709551615"] {
        let refused = finish(given.with(many).serve_command(&[])).await;
        one_line(&refused, 2, &["--top-keys", &format!("{many} is not in 0..=100000")]);
    }
    let server = given.with("100000").serve(&[]).await;
    assert_eq!(code(&server, "bob", 11).await, Code::OverLimit);
}

async fn top_labels(given: Given) {
    let server = given.serve(&[]).await;
    code(&server, "bob", 11).await;
    let mut top = Command::new(binary("sluicectl"));
    top.args(["top", "--admin-server", &format!("http://{}", server.admin)]);
    says(&finish(top).await, 0, "s1:fw:86400:{api:user=bob}");
}

async fn limited(names: &[&str]) -> (Sluicegate, String) {
    let (server, address) = administered(&["--top-labels", "plain"]).await;
    for name in names {
        code(&server, name, 11).await;
    }
    (server, address)
}

async fn top_kind(given: Given) {
    let (server, address) = limited(&["eve"]).await;
    code(&server, "bob", 8).await;
    let answer = given.admin("top", &[("--admin-server", &address)]).await;
    says(&answer, 0, BOB);
    assert!(!answer.stdout.contains("{eve}"), "{answer:?}");
}

async fn top_count(given: Given) {
    let (_server, address) = limited(&["eve", "mallory"]).await;
    let answer = given.admin("top", &[("--admin-server", &address)]).await;
    assert_eq!(answer.stdout.matches("s1:").count(), 1, "{answer:?}");
}

async fn top_domain(given: Given) {
    let (_server, address) = limited(&["eve"]).await;
    says(&given.admin("top", &[("--admin-server", &address)]).await, 0, "nobody is refused");
}

async fn top_interval(given: Given) {
    let answer = given.admin("top", &[]).await;
    assert_eq!(answer.code, 2, "{answer:?}");
    assert!(answer.stderr.contains("at least 100ms"), "{answer:?}");
}

async fn top_once(given: Given) {
    let (_server, address) = limited(&["eve"]).await;
    let sluicectl = binary("sluicectl").display().to_string();
    let line = format!("{sluicectl} top --admin-server {address} {}", given.name);
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]);
    let answer = finish(script).await;
    assert_eq!(answer.stdout.matches("s1:tb:86400:{eve}").count(), 1, "{answer:?}");
}

// === sluicectl check ===

/// A server of LIMITS, and the flag that names it.
async fn served() -> (Sluicegate, String) {
    let server = Sluicegate::start(LIMITS, &[]).await;
    let address = format!("http://{}", server.grpc);
    (server, address)
}

fn says(answer: &Finished, code: i32, text: &str) {
    assert_eq!(answer.code, code, "{answer:?}");
    assert!(answer.stdout.contains(text), "{answer:?}");
}

async fn check_domain(given: Given) {
    let (_server, address) = served().await;
    says(&given.sluicectl(&[("--server", &address)]).await, 0, "9 of 10 per day left");
    says(&given.with("other").sluicectl(&[("--server", &address)]).await, 0, "no limit applies");
}

async fn check_descriptor(given: Given) {
    let (server, address) = served().await;
    let answer = given.sluicectl(&[("--server", &address)]).await;
    says(&answer, 0, "user=bob    9 of 10 per day left");
    assert_eq!((left(&server, "bob").await, left(&server, "eve").await), (9, 10));
}

async fn check_hits(given: Given) {
    let (_server, address) = served().await;
    let server = ("--server", &*address);
    says(&given.sluicectl(&[server]).await, 0, "allowed\n  user=bob    6 of 10");
    says(&given.with("7").sluicectl(&[server]).await, 1, "refused, retry in");
    says(&given.with("-2").sluicectl(&[server]).await, 0, "8 of 10");
    says(&given.with("0").sluicectl(&[server]).await, 0, "8 of 10");
}

async fn check_output(given: Given) {
    let (_server, address) = served().await;
    let answer = given.sluicectl(&[("--server", &address)]).await;
    let json: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(
        (json["allowed"].clone(), json["statuses"][0]["remaining"].clone()),
        (true.into(), 9.into())
    );
}

async fn check_server(given: Given) {
    let _server = Sluicegate::start(LIMITS, &["--grpc-listen", &given.value]).await;
    says(&given.sluicectl(&[]).await, 0, "9 of 10");
}

async fn check_timeout(given: Given) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let answer = given.sluicectl(&[("--server", &address)]).await;
    one_line(&answer, 3, &["no answer within 123ms"]);
}

async fn served_with_tls(given: &Given, flags: &[(&str, &str)]) -> (Sluicegate, String) {
    let [limits, cert, key] =
        ["limits.yaml", "server.pem", "server.key"].map(|name| given.path(name));
    let files = [("--limits", &*limits), ("--grpc-tls-cert", &*cert), ("--grpc-tls-key", &*key)];
    let all: Vec<_> = files.iter().chain(flags).flat_map(|(flag, value)| [*flag, *value]).collect();
    let server = Sluicegate::start_with(tempfile::tempdir().unwrap(), &all).await;
    let address = format!("https://{}", server.grpc);
    (server, address)
}

async fn check_tls_ca(given: Given) {
    given.certify("127.0.0.1", &[]);
    let (_server, address) = served_with_tls(&given, &[]).await;
    says(&given.sluicectl(&[("--server", &address)]).await, 0, "9 of 10");
}

async fn check_tls_client(given: Given) {
    given.certify("127.0.0.1", &[("caller", "caller")]);
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(|name| given.path(name));
    let (_server, address) = served_with_tls(&given, &[("--grpc-tls-client-ca", &ca)]).await;
    let flags =
        [("--server", &*address), ("--tls-ca", &*ca), ("--tls-cert", &*cert), ("--tls-key", &*key)];
    says(&given.sluicectl(&flags).await, 0, "9 of 10");
}

async fn check_tls_server_name(given: Given) {
    given.certify("limits.example", &[]);
    let (server, address) = served_with_tls(&given, &[]).await;
    let ca = given.path("ca.pem");
    says(&given.sluicectl(&[("--server", &address), ("--tls-ca", &ca)]).await, 0, "9 of 10");
    assert_eq!(given.call(&server, None).await.code, 3, "the address is not in the certificate");
}

// === sluicectl load ===

impl Given {
    /// Twelve requests for bob, who may have ten, unless the flags say otherwise.
    async fn load(&self, flags: &[(&str, &str)]) -> Finished {
        let mut command = Command::new(binary("sluicectl"));
        command.arg("load").envs(self.environment());
        match self.value.as_str() {
            "" => command.arg(self.name),
            _ => command.args(self.flags()),
        };
        let usual = [("--domain", "api"), ("--descriptor", "user=bob"), ("--timeout", "30s")];
        let is_given = |name: &str| flags.iter().any(|(flag, _)| *flag == name);
        let usual = usual.into_iter().filter(|(name, _)| !is_given(name));
        for (flag, value) in usual.chain(flags.iter().copied()) {
            if flag != self.name && !value.is_empty() {
                command.args([flag, value]);
            } else if flag != self.name && flag == "--verify" {
                command.arg(flag);
            }
        }
        if !is_given("--count") && !["--count", "--duration"].contains(&self.name) {
            command.args(["--count", "12"]);
        }
        finish(command).await
    }

    /// The report of a run whose answers are held to the limits.
    async fn load_verified(&self, flags: &[(&str, &str)]) -> Value {
        let limits = self.path("limits.yaml");
        let own = [("--verify", ""), ("--limits", &*limits), ("--output", "json")];
        let answer = self.load(&[&own, flags].concat()).await;
        serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
    }
}

const TEN_OF_TWELVE: &str = "12 requests: 10 allowed, 2 refused, 0 errors";
const ALL_OF_TWELVE: &str = "12 requests: 12 allowed, 0 refused, 0 errors";

async fn load_elsewhere(given: Given) {
    let (_server, address) = served().await;
    says(&given.load(&[("--server", &address)]).await, 0, ALL_OF_TWELVE);
    let usual = if given.name == "--domain" { "api" } else { "user=bob" };
    says(&given.with(usual).load(&[("--server", &address)]).await, 0, TEN_OF_TWELVE);
}

async fn load_hits(given: Given) {
    let (_server, address) = served().await;
    says(&given.load(&[("--server", &address)]).await, 0, "12 requests: 2 allowed, 10 refused");
}

async fn load_count(given: Given) {
    let (_server, address) = served().await;
    says(&given.load(&[("--server", &address)]).await, 0, "11 requests: 10 allowed, 1 refused");
}

/// The report of a run, as JSON.
async fn load_report(given: &Given, flags: &[(&str, &str)]) -> Value {
    let answer = given.load(&[&[("--output", "json")], flags].concat()).await;
    serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

async fn load_duration(given: Given) {
    let (_server, address) = served().await;
    let report = load_report(&given, &[("--server", &address), ("--rate", "50")]).await;
    assert_eq!(report["requests"], 15, "{report:#}");
}

async fn load_rate(given: Given) {
    let (_server, address) = served().await;
    let report = load_report(&given, &[("--server", &address)]).await;
    assert!(report["seconds"].as_f64().unwrap() >= 0.2, "{report:#}");
}

async fn load_callers(given: Given) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let flags = [("--server", &*address), ("--count", "3"), ("--timeout", "300ms")];
    let seconds = async |given: &Given| {
        let report = load_report(given, &flags).await;
        assert_eq!(report["errors"], 3, "{report:#}");
        report["seconds"].as_f64().unwrap()
    };
    // Three wait at once, or one after the other.
    assert!(seconds(&given).await < seconds(&given.with("1")).await);
}

async fn load_zipf(given: Given) {
    let (_server, address) = served().await;
    let flags = [("--server", &*address), ("--descriptor", "user={1000}")];
    says(&given.with("0").load(&flags).await, 0, ALL_OF_TWELVE);
    // Nearly all are the first of them.
    let report = load_report(&given, &flags).await;
    assert!(report["refused"].as_u64() >= Some(1), "{report:#}");
}

async fn load_seed(given: Given) {
    let (_server, address) = served().await;
    let flags = [("--server", &*address), ("--descriptor", "user={1000}"), ("--hits", "10")];
    let first = load_report(&given, &flags).await;
    assert_eq!(first["seed"], 7);
    assert!(first["allowed"].as_u64() >= Some(6), "{first:#}");
    let again = load_report(&given, &flags).await;
    assert_eq!(again["allowed"], 0, "the same users: {again:#}");
    let others = load_report(&given.with("8"), &flags).await;
    assert!(others["allowed"].as_u64() >= Some(6), "{others:#}");
}

async fn load_limits(given: Given) {
    let (_server, address) = served().await;
    // The domain is that of the file.
    let answer = given.load(&[("--server", &address), ("--domain", "")]).await;
    says(&answer, 0, TEN_OF_TWELVE);
}

async fn load_default_counting(given: Given) {
    let (_server, address) = served().await;
    given.write("limits.yaml", LOG_LIMITS);
    let limits = given.path("limits.yaml");
    let answer = given.load(&[("--server", &address), ("--limits", &limits)]).await;
    assert!(answer.stderr.contains("sliding_window_log goes with counting: free"), "{answer:?}");
    let answer = given.with("free").load(&[("--server", &address), ("--limits", &limits)]).await;
    says(&answer, 0, TEN_OF_TWELVE);
}

async fn load_merge_domains(given: Given) {
    let (_server, address) = served().await;
    let (one, two) = two_of_a_domain(&given);
    let flags = [("--server", &*address), ("--limits", &*format!("{one},{two}"))];
    says(&given.load(&flags).await, 0, TEN_OF_TWELVE);
    let answer = given.with("false").load(&flags).await;
    assert!(answer.stderr.contains("is also defined in"), "{answer:?}");
}

async fn load_bounds_files(given: Given, said: &str) {
    let (_server, address) = served().await;
    let (one, two) = second_file(&given);
    let flags = [("--server", &*address), ("--limits", &*format!("{one},{two}"))];
    let answer = given.load(&flags).await;
    assert!(answer.stderr.contains(said), "{answer:?}");
    says(&given.with("100000").load(&flags).await, 0, TEN_OF_TWELVE);
}

async fn load_limits_max_files(given: Given) {
    load_bounds_files(given, TOO_MANY_FILES).await;
}

async fn load_limits_max_bytes(given: Given) {
    load_bounds_files(given, TOO_MANY_BYTES).await;
}

async fn load_shadow_mode(given: Given) {
    let (_server, address) = served().await;
    let server = ("--server", &*address);
    let not_verified = |report: Value| report["verified"]["limits"][0]["not_verified"].clone();
    assert_ne!(not_verified(given.load_verified(&[server]).await), Value::Null);
    assert_eq!(not_verified(given.with("false").load_verified(&[server]).await), Value::Null);
}

async fn load_quota_mode(given: Given) {
    let under = |report: &Value| report["verified"]["under_admitted_hits"].as_u64().unwrap();
    for (given, is_exact) in [(given.clone(), false), (given.with("false"), true)] {
        let (server, address) = served().await;
        code(&server, "bob", 10).await;
        // This server refuses though only one of the two is over.
        let mut command = Command::new(binary("sluicectl"));
        let limits = given.path("limits.yaml");
        command.args(["load", "--server", &address, "--limits", &limits, "--verify"]);
        command.args(["--descriptor", "user=bob", "--descriptor", "user=eve", "--count", "3"]);
        command.args(["--output", "json"]).args(given.flags()).envs(given.environment());
        let answer = finish(command).await;
        let report: Value = serde_json::from_str(&answer.stdout).unwrap();
        assert_eq!((report["refused"].as_u64(), under(&report) == 0), (Some(3), is_exact));
    }
}

async fn load_output(given: Given) {
    let (_server, address) = served().await;
    let answer = given.load(&[("--server", &address)]).await;
    let report: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!((&report["allowed"], &report["refused"]), (&10.into(), &2.into()));
}

async fn load_verify(given: Given) {
    let (_server, address) = served().await;
    let report = given.load_verified(&[("--server", &address)]).await;
    assert_eq!(report["verified"]["limits"][0]["admitted_hits"], 10, "{report:#}");
}

async fn load_tolerance(given: Given) {
    let (_server, address) = served().await;
    let report = given.load_verified(&[("--server", &address)]).await;
    assert_eq!(report["verified"]["tolerance_seconds"], 0.05, "{report:#}");
}

async fn load_server(given: Given) {
    let _server = Sluicegate::start(LIMITS, &["--grpc-listen", &given.value]).await;
    says(&given.load(&[]).await, 0, TEN_OF_TWELVE);
}

async fn load_timeout(given: Given) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let answer = given.load(&[("--server", &address), ("--count", "1")]).await;
    assert!(answer.stdout.contains("no answer within 123ms"), "{answer:?}");
}

async fn load_tls(given: Given) {
    let name = if given.name == "--tls-server-name" { "limits.example" } else { "127.0.0.1" };
    given.certify(name, &[("caller", "caller")]);
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(|name| given.path(name));
    let (_server, address) = served_with_tls(&given, &[("--grpc-tls-client-ca", &ca)]).await;
    let flags =
        [("--server", &*address), ("--tls-ca", &*ca), ("--tls-cert", &*cert), ("--tls-key", &*key)];
    says(&given.load(&flags).await, 0, TEN_OF_TWELVE);
}

// === sluicectl health ===

impl Given {
    async fn health(&self, flags: &[(&str, &str)]) -> Finished {
        let patient: Vec<_> = [("--timeout", "30s")].iter().chain(flags).copied().collect();
        self.run("sluicectl", "health", &patient).await
    }
}

async fn health_service(given: Given) {
    let (_server, address) = served().await;
    says(&given.health(&[("--server", &address)]).await, 0, "serving");
    let unknown = given.with("unknown").health(&[("--server", &address)]).await;
    assert_eq!(unknown.code, 3, "{unknown:?}");
}

async fn health_output(given: Given) {
    let (_server, address) = served().await;
    says(&given.health(&[("--server", &address)]).await, 0, r#"{"status":"SERVING"}"#);
}

async fn health_server(given: Given) {
    let _server = Sluicegate::start(LIMITS, &["--grpc-listen", &given.value]).await;
    says(&given.health(&[]).await, 0, "serving");
}

async fn health_timeout(given: Given) {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    one_line(&given.health(&[("--server", &address)]).await, 3, &["no answer within 123ms"]);
}

async fn health_tls(given: Given) {
    let name = long(&given);
    let host = if name == "--tls-server-name" { "limits.example" } else { "127.0.0.1" };
    given.certify(host, &[("caller", "caller")]);
    let [ca, cert, key] = ["ca.pem", "caller.pem", "caller.key"].map(|file| given.path(file));
    let mutual = matches!(&*name, "--tls-cert" | "--tls-key");
    let client_ca = [("--grpc-tls-client-ca", &*ca)];
    let (_server, address) = served_with_tls(&given, if mutual { &client_ca } else { &[] }).await;
    let mut flags = vec![("--server", &*address), ("--tls-ca", &*ca)];
    if mutual {
        flags.extend([("--tls-cert", &*cert), ("--tls-key", &*key)]);
    }
    says(&given.health(&flags).await, 0, "serving");
}

// === What cannot be served ===

/// Starts a server that does not come up.
async fn refused(flags: &[&str]) -> Finished {
    let folder = tempfile::tempdir().unwrap();
    let limits = folder.path().join("limits.yaml");
    fs::write(&limits, LIMITS).unwrap();
    let mut all = flags.to_vec();
    if !flags.contains(&"--limits") {
        all.extend(["--limits", limits.to_str().unwrap()]);
    }
    finish(Sluicegate::command(&all, &[])).await
}

#[tokio::test]
async fn what_cannot_be_had_is_said_in_one_line() {
    let holder = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    for flag in ["--grpc-listen", "--http-listen", "--admin-listen"] {
        one_line(&refused(&[flag, &taken]).await, 1, &["cannot listen on", &taken]);
    }
    one_line(&refused(&["--limits", "nowhere.yaml"]).await, 1, &["nowhere.yaml: No such file"]);
    let socket = "unix:/nowhere/s.sock";
    one_line(&refused(&["--grpc-listen", socket]).await, 1, &[socket, "No such file"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let socket = format!("unix:{}", file.path().display());
    one_line(&refused(&["--grpc-listen", &socket]).await, 1, &[&socket, "other than a socket"]);

    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("a");
    for name in ["one", "two"] {
        authority.issue("127.0.0.1").write(folder.path(), name);
    }
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let tls = async |cert: &str, key: &str| {
        refused(&["--grpc-tls-cert", &path(cert), "--grpc-tls-key", &path(key)]).await
    };
    let (one, two) = (path("one.pem"), path("two.key"));
    one_line(&tls("one.pem", "two.key").await, 1, &["does not match", &one, &two]);
    one_line(&tls("none.pem", "one.key").await, 1, &["cannot read", &path("none.pem")]);
    one_line(&tls("one.key", "one.key").await, 1, &["no certificate in", &path("one.key")]);
    one_line(&tls("one.pem", "one.pem").await, 1, &["no private key in", &path("one.pem")]);
}

#[tokio::test]
async fn a_word_that_is_no_log_level_is_said() {
    for word in ["loud", "h2=", "info=", "=info", "info,sluicegate::audit[{caller}]=off"] {
        one_line(
            &refused(&["--log-level", word]).await,
            1,
            &["--log-level", word, "is not a level"],
        );
    }
}

#[tokio::test]
async fn every_mistake_in_the_limits_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.yaml");
    fs::write(&file, LIMITS.replace("day", "fortnight") + "  - kee: tenant\n").unwrap();
    let path = file.to_str().unwrap();
    let served = refused(&["--limits", path]).await;
    let mut validate = Command::new(binary("sluicegate"));
    validate.args(["validate", path]);
    let validated = finish(validate).await;
    for (code, said) in [(served.code, &served.stderr), (validated.code, &validated.stdout)] {
        assert_eq!((code, said.lines().count()), (1, 2), "{said}");
        assert!(
            said.contains(&format!("{path}:5: ")) && said.contains(&format!("{path}:6: ")),
            "{said}"
        );
    }
}

// === What answers carry ===

/// The headers of the answer to one hit.
async fn told(server: &Sluicegate) -> Vec<(String, String)> {
    let answer = server.should_rate_limit(hit("user", "bob")).await.unwrap();
    let headers = answer.response_headers_to_add;
    headers.into_iter().map(|header| (header.key, header.value)).collect()
}

async fn response_headers(given: Given) {
    let server = given.serve(&[]).await;
    let names: Vec<_> = told(&server).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["ratelimit-policy", "ratelimit"]);
    let server = given.with("off").serve(&[]).await;
    assert_eq!(told(&server).await, []);
    let refused = given.with("draft-99").serve_command(&[]);
    assert!(finish(refused).await.stderr.contains("x-ratelimit-draft-03"));
}

/// The flag names the header at this position, and goes with one format only.
async fn header_name(given: Given, position: usize) {
    let server = given.serve(&[("--response-headers", "x-ratelimit-draft-03")]).await;
    assert_eq!(told(&server).await[position].0, given.value);
    let refused = finish(given.serve_command(&[])).await;
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains(&format!("{} goes with --response-headers", long(&given))));
    let refused = finish(given.with("x y").serve_command(&[])).await;
    assert_eq!(refused.code, 2, "{}", refused.stderr);
}

/// The flag's name, also where its variable is given.
fn long(given: &Given) -> String {
    let Some(variable) = &given.variable else { return given.name.to_owned() };
    let name = variable.trim_start_matches("SLUICEGATE_").to_lowercase().replace('_', "-");
    format!("--{name}")
}

async fn limit_header(given: Given) {
    header_name(given, 0).await;
}

async fn remaining_header(given: Given) {
    header_name(given, 1).await;
}

async fn reset_header(given: Given) {
    header_name(given, 2).await;
}

async fn dynamic_metadata(given: Given) {
    let answer = async |given: Given| {
        let server = given.serve(&[]).await;
        server.should_rate_limit(hit("user", "bob")).await.unwrap().dynamic_metadata
    };
    assert!(answer(given.clone()).await.unwrap().fields.contains_key("descriptors"));
    assert_eq!(answer(given.with("false")).await, None);
}

async fn near_limit_ratio(given: Given) {
    let server = given.serve(&[]).await;
    code(&server, "bob", 7).await;
    let near = server.sum("sluicegate_hits_near_limit_total", &[("rule", "user")]).await;
    assert_eq!(near, 2.0, "beyond 5 of 10");
    let refused = finish(given.with("2").serve_command(&[])).await;
    assert!(refused.stderr.contains("a ratio is a number from 0 to 1"), "{}", refused.stderr);
}

async fn detailed_metric_series(given: Given) {
    let limits = LIMITS.replace("- key: user", "- key: user\n    detailed_metric: true");
    given.write("detailed.yaml", &limits);
    let server = given.serve(&[("--limits", &given.path("detailed.yaml"))]).await;
    for user in ["bob", "ann", "eve", "bob"] {
        code(&server, user, 1).await;
    }
    for (key, hits) in [("user_bob", 2.0), ("user_ann", 0.0), ("(other)", 2.0)] {
        assert_eq!(server.sum("sluicegate_hits_total", &[("key", key)]).await, hits, "{key}");
    }
    let refused = finish(given.with("1000001").serve_command(&[])).await;
    one_line(&refused, 2, &["--detailed-metric-series", "1000001 is not in 0..=1000000"]);
}

// === OpenTelemetry ===

/// Whether a collector has received a metric.
fn has_metrics(collector: &Collector) -> Option<()> {
    collector.process.output().contains("-> Name: sluicegate_rules\n").then_some(())
}

async fn otlp_endpoint(given: Given) {
    let collector = Collector::start().await;
    assert!(given.with(&collector.endpoint).serve(&[]).await.stop().await.success());
    until("the metrics", async || has_metrics(&collector)).await;
    for wrong in ["127.0.0.1:4317", "ftp://127.0.0.1"] {
        let refused = finish(given.with(wrong).serve_command(&[])).await;
        assert_ne!(refused.code, 0);
        assert!(refused.stderr.contains("use http://HOST:PORT"), "{}", refused.stderr);
    }
}

async fn otlp_tls_ca(given: Given) {
    given.certify("127.0.0.1", &[]);
    let (cert, key) = (given.path("server.pem"), given.path("server.key"));
    // It takes the handshake, and knows no such service.
    let flags = ["--limits", &given.path("limits.yaml"), "--grpc-tls-cert", &cert];
    let flags = [&flags[..], &["--grpc-tls-key", &key]].concat();
    let collector = Sluicegate::start_with(tempfile::tempdir().unwrap(), &flags).await;
    let endpoint = format!("https://{}", collector.grpc);
    let own = [("--otlp-endpoint", &*endpoint), ("--otlp-metrics-interval", "1s")];
    let mut server = given.serve(&own).await;
    let answered = |line: &str| line.contains("Unimplemented").then_some(());
    server.process.line("the answer", answered).await;
}

async fn otlp_metrics_interval(given: Given) {
    let (often, never) = (Collector::start().await, Collector::start().await);
    let _server = given.serve(&[("--otlp-endpoint", &often.endpoint)]).await;
    let silent = given.with("0s").serve(&[("--otlp-endpoint", &never.endpoint)]).await;
    until("the metrics", async || has_metrics(&often)).await;
    assert!(silent.stop().await.success());
    assert_eq!(has_metrics(&never), None);
    let alone = finish(given.serve_command(&[])).await;
    one_line(&alone, 2, &["not provided: --otlp-endpoint <URL>"]);
    for too_often in ["1ns", "999ms"] {
        let with = [("--otlp-endpoint", "http://127.0.0.1:1")];
        let refused = finish(given.with(too_often).serve_command(&with)).await;
        one_line(&refused, 2, &["--otlp-metrics-interval", too_often, "must be 1s or longer"]);
    }
}

// === Modes of all rules ===

async fn shadow_mode(given: Given) {
    for (given, overall) in [(given.clone(), Code::Ok), (given.with("false"), Code::OverLimit)] {
        let server = given.serve(&[]).await;
        let refused = server.should_rate_limit(hits("user", "bob", 11)).await.unwrap();
        assert_eq!(refused.overall_code(), overall);
        assert_eq!(refused.statuses[0].code(), Code::OverLimit);
        let shadowed = server.metric("sluicegate_requests_shadowed_total").await;
        assert_eq!(shadowed, if overall == Code::Ok { 1.0 } else { 0.0 });
    }
    // Nor is anybody refused for being one too many.
    let mut store = HangingStore::start().await;
    let [url, timeout] = store.flags();
    let server = given.serve(&[url, timeout, ("--max-in-flight", "1")]).await;
    let held = store.hold(&server, hit("user", "bob")).await;
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
    assert_eq!(server.metric("sluicegate_requests_shed_total").await, 1.0);
    store.release();
    held.answer().await.unwrap();
    // Nor for a message that is not read.
    let server = given.serve(&[("--grpc-max-message-bytes", "10")]).await;
    assert_eq!(code(&server, "bob", 1).await, Code::Ok);
}

async fn quota_mode(given: Given) {
    for (given, overall) in [(given.clone(), Code::Ok), (given.with("false"), Code::OverLimit)] {
        let server = given.serve(&[]).await;
        let mut both = request(&[&[("user", "bob")], &[("user", "ann")]]);
        both.descriptors[0].hits_addend = Some(11);
        let answer = server.should_rate_limit(both).await.unwrap();
        assert_eq!(answer.overall_code(), overall);
        assert_eq!(answer.statuses[0].code(), Code::OverLimit);
    }
}
