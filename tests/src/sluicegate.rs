//! Starts the real server.

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::ExitStatus,
};

use nix::sys::signal::Signal;
use sluicegate_proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_client::RateLimitServiceClient,
};
use tempfile::TempDir;
use tokio::process::Command;
use tonic::{Status, transport::Channel};

use crate::Process;

/// Path of a binary of this workspace, from the same build as the running program.
///
/// # Panics
/// The binary was not built.
#[must_use]
pub fn binary(name: &str) -> PathBuf {
    let running = env::current_exe().unwrap();
    // Tests and examples are in a folder beside the binaries.
    let built = running.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    let found = built.clone().find(|binary| binary.is_file());
    found.unwrap_or_else(|| {
        panic!("run cargo build --workspace: none of {:?}", Vec::from_iter(built))
    })
}

/// A port without a listener. Another process may take it first: prefer port 0.
///
/// # Panics
/// No port is free.
#[must_use]
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A running `sluicegate serve`.
#[derive(Debug)]
pub struct Sluicegate {
    /// The process.
    pub process: Process,
    /// Address of the gRPC listener, as the server logs it.
    pub grpc: String,
    /// Address of the HTTP listener.
    pub http: String,
    /// Address of the admin listener; `off` if there is none.
    pub admin: String,
    folder: TempDir,
}

impl Sluicegate {
    /// Starts a server with these limits on free ports; later flags win.
    pub async fn start(limits: &str, flags: &[&str]) -> Self {
        Self::start_in(limits, flags, &[]).await
    }

    /// The same with these environment variables.
    pub async fn start_in(limits: &str, flags: &[&str], environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.yaml");
        fs::write(&file, limits).unwrap();
        let flags = [&["--limits", file.to_str().unwrap()], flags].concat();
        Self::started(folder, Self::command(&flags, environment)).await
    }

    /// Starts a server with `--limits` among the flags. The folder lives as long as the server.
    pub async fn start_with(folder: TempDir, flags: &[&str]) -> Self {
        Self::started(folder, Self::command(flags, &[])).await
    }

    /// The command `serve`, on free ports and without a drain delay, unless flags or environment variables set these.
    #[must_use]
    pub fn command(flags: &[&str], environment: &[(&str, &str)]) -> Command {
        // `tests/over-tonic` names another build of the server.
        let server = env::var("TESTS_SERVER").unwrap_or_else(|_| "sluicegate".to_owned());
        Self::command_of(&binary(&server), flags, environment)
    }

    /// The same command of another binary.
    #[must_use]
    pub fn command_of(binary: &Path, flags: &[&str], environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new(binary);
        command.arg("serve");
        for (flag, variable, value) in [
            ("--grpc-listen", "SLUICEGATE_GRPC_LISTEN", "127.0.0.1:0"),
            ("--http-listen", "SLUICEGATE_HTTP_LISTEN", "127.0.0.1:0"),
            ("--admin-listen", "SLUICEGATE_ADMIN_LISTEN", "127.0.0.1:0"),
            ("--drain-delay", "SLUICEGATE_DRAIN_DELAY", "0s"),
        ] {
            if !flags.contains(&flag) && environment.iter().all(|(name, _)| *name != variable) {
                command.args([flag, value]);
            }
        }
        // The server would warn of the tests' own variables.
        command.env_remove("SLUICEGATE_TOOLS").env_remove("SLUICEGATE_CACHE");
        command.args(flags).envs(environment.iter().copied());
        command
    }

    /// Starts the server and waits until it serves. The folder lives as long.
    pub async fn started(folder: TempDir, command: Command) -> Self {
        let mut process = Process::start(command);
        let (grpc, http, admin) = process.line("serving", addresses).await;
        Self { process, grpc, http, admin, folder }
    }

    /// The folder of the limits file.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Replaces the limits file with other limits, as an editor does.
    pub fn replace_limits(&self, limits: &str) {
        let new = self.folder().join(".limits.yaml.new");
        fs::write(&new, limits).unwrap();
        fs::rename(new, self.folder().join("limits.yaml")).unwrap();
    }

    /// A new connection.
    pub async fn connect(&self) -> RateLimitServiceClient<Channel> {
        let client = RateLimitServiceClient::new(self.channel().await);
        client.max_encoding_message_size(usize::MAX)
    }

    /// A new connection, for any service.
    pub async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.grpc)).unwrap();
        endpoint.connect().await.unwrap()
    }

    /// Sends a request over a new connection.
    ///
    /// # Errors
    /// The gRPC error of the server.
    pub async fn should_rate_limit(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        Ok(self.connect().await.should_rate_limit(request).await?.into_inner())
    }

    /// Posts to `/json`. Returns the HTTP status and the body.
    pub async fn json(&self, body: &str) -> (u16, String) {
        self.json_bytes(body.as_bytes().to_vec()).await
    }

    /// Posts any bytes to `/json`. Returns the HTTP status and the body.
    pub async fn json_bytes(&self, body: Vec<u8>) -> (u16, String) {
        let request = reqwest::Client::new().post(format!("http://{}/json", self.http));
        answer(request.body(body)).await
    }

    /// Gets a page of the HTTP listener.
    pub async fn get(&self, path: &str) -> (u16, String) {
        answer(reqwest::Client::new().get(format!("http://{}{path}", self.http))).await
    }

    /// The value of a series, with its labels as Prometheus writes them; 0 if it does not exist.
    pub async fn metric(&self, series: &str) -> f64 {
        let (_, metrics) = self.get("/metrics").await;
        let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().unwrap())
    }

    /// The sum of all series of a metric that have these labels.
    pub async fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let (_, metrics) = self.get("/metrics").await;
        let labels: Vec<_> =
            labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let series = metrics.lines().filter_map(|line| line.strip_prefix(name)?.rsplit_once(' '));
        series
            .filter(|(series, _)| series.is_empty() || series.starts_with('{'))
            .filter(|(series, _)| labels.iter().all(|label| series.contains(label)))
            .map(|(_, value)| value.parse::<f64>().unwrap())
            .sum()
    }

    /// Number of hits that may be charged although no answer admitted them.
    pub async fn hits_unknown(&self) -> f64 {
        self.sum("sluicegate_hits_unknown_total", &[]).await
    }

    /// Stops the server by SIGTERM, as an orchestrator does.
    pub async fn stop(mut self) -> ExitStatus {
        self.process.signal(Signal::SIGTERM);
        self.process.ended().await
    }
}

async fn answer(request: reqwest::RequestBuilder) -> (u16, String) {
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

/// The addresses in the log line of a server that is ready, as text or as JSON.
fn addresses(line: &str) -> Option<(String, String, String)> {
    if let Some((_, serving)) = line.split_once("serving grpc=") {
        let (grpc, rest) = serving.split_once(" http=")?;
        let (http, admin) = rest.split_once(" admin=")?;
        return Some((grpc.to_owned(), http.to_owned(), admin.to_owned()));
    }
    let json: serde_json::Value = serde_json::from_str(line).ok()?;
    let text = |key| Some(json.get(key)?.as_str()?.to_owned());
    (text("message")? == "serving").then_some(())?;
    Some((text("grpc")?, text("http")?, text("admin")?))
}
