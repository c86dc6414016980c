//! A server in this process, with a stopped clock.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use clap::Parser;
use sluicegate::{
    app::App,
    settings::{Cli, Command},
};
use sluicegate_core::Time;
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use sluicegate_store::{Clock, Clocks};
use sluicegate_tests::{ManualClock, until};
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::{case::Case, stores::Store};

/// Default flags of a case: deadlines for busy machines, and errors if a store does not answer, so that no failure
/// policy replaces an answer.
const USUAL: [(&str, &str); 7] = [
    ("--decision-timeout", "20s"),
    ("--default-on-failure", "defer"),
    ("--deny-cache-entries", "0"),
    ("--grpc-listen", "127.0.0.1:0"),
    ("--http-listen", "127.0.0.1:0"),
    ("--admin-listen", "off"),
    ("--drain-delay", "0s"),
];

/// Distinguishes the keys of each server.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A running server.
pub(crate) struct Server {
    app: App,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) grpc: RateLimitServiceClient<Channel>,
    pub(crate) channel: Channel,
    /// Prefix of every key, which is removed before keys are compared with the case.
    pub(crate) own_prefix: String,
    http: reqwest::Client,
    folder: TempDir,
}

impl Server {
    /// Starts the server of a case.
    ///
    /// # Errors
    /// The start fails. The text has names of limits files without folders.
    pub(crate) async fn start(case: &Case, store: &Store) -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &case.limits);
        let own_prefix = format!("{}.", NEXT.fetch_add(1, Ordering::Relaxed));
        let settings = Cli::try_parse_from(arguments(case, store, &own_prefix, folder.path()));
        let settings = match settings.map_err(|error| error.to_string())?.command {
            Command::Serve(settings) => settings,
            other => panic!("{other:?} is not serve"),
        };
        let clock = Arc::new(ManualClock::at(time(case.at)));
        let injected: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let clocks = Clocks { memory: Arc::clone(&injected), redis: Some(injected) };
        let app = App::start(&settings, clocks).await.map_err(|error| {
            error.to_string().replace(&format!("{}/", folder.path().display()), "")
        })?;
        let channel = Channel::from_shared(format!("http://{}", app.grpc_address())).unwrap();
        let channel = channel.connect().await.unwrap();
        let grpc = RateLimitServiceClient::new(channel.clone());
        let http = reqwest::Client::new();
        let server = Self { app, clock, grpc, channel, own_prefix, http, folder };
        if !case.flags.iter().any(|flag| flag == "--store") {
            until("the store to be well", || async {
                (server.metric("sluicegate_store_degraded").await == 0).then_some(())
            })
            .await;
        }
        Ok(server)
    }

    pub(crate) async fn stop(self) {
        let Self { app, channel, grpc, http, .. } = self;
        // An open connection would delay the shutdown.
        drop((channel, grpc, http));
        app.drain_and_stop().await;
    }

    /// Sets the clock, in seconds since 1970.
    pub(crate) fn set_clock(&self, seconds: u64) {
        let passed = time(seconds).as_micros() - self.clock.now().as_micros();
        self.clock.advance(Duration::from_micros(passed));
    }

    /// Gets a page: status and body.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        self.sent(self.http.get(self.url(path))).await
    }

    /// Posts a body: status and body.
    pub(crate) async fn post(&self, path: &str, body: &str) -> (u16, String) {
        self.sent(self.http.post(self.url(path)).body(body.to_owned())).await
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.app.http_address())
    }

    async fn sent(&self, request: reqwest::RequestBuilder) -> (u16, String) {
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// The value of a series; 0 if there is no such series.
    pub(crate) async fn metric(&self, series: &str) -> u64 {
        let (_, metrics) = self.get("/metrics").await;
        let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse().unwrap())
    }

    /// Decided descriptors by source.
    pub(crate) async fn decided(&self) -> BTreeMap<String, u64> {
        let (_, metrics) = self.get("/metrics").await;
        let mut decided = BTreeMap::new();
        for line in metrics.lines().filter(|line| line.starts_with("sluicegate_decisions_total{")) {
            let (labels, count) = line.rsplit_once(' ').unwrap();
            let (_, source) = labels.split_once("source=\"").unwrap();
            let (source, _) = source.split_once('"').unwrap();
            *decided.entry(source.to_owned()).or_default() += count.parse::<u64>().unwrap();
        }
        decided.retain(|_, count| *count > 0);
        decided
    }

    /// Replaces the limits, and waits until the server has loaded or rejected them.
    pub(crate) async fn reload(&self, limits: &BTreeMap<String, String>, rejected: bool) {
        let result = if rejected { "failure" } else { "success" };
        let series = format!("sluicegate_config_loads_total{{result=\"{result}\"}}");
        let before = self.metric(&series).await;
        replace(self.folder.path(), limits);
        until("the limits to be loaded", || async {
            (self.metric(&series).await > before).then_some(())
        })
        .await;
    }
}

fn time(seconds: u64) -> Time {
    Time::from_micros(0).after(Duration::from_secs(seconds))
}

fn arguments(case: &Case, store: &Store, own_prefix: &str, folder: &Path) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["sluicegate", "serve", "--limits", folder.to_str().unwrap()].map(str::to_owned).to_vec();
    let mut flags = case.flags.clone();
    match flags.iter().position(|flag| flag == "--key-prefix") {
        Some(place) => flags[place + 1].insert_str(0, own_prefix),
        None => flags.extend(["--key-prefix".to_owned(), own_prefix.to_owned()]),
    }
    let url = store.url();
    let own = [("--store", url.as_str()), ("--default-counting", case.counting.name())];
    for (flag, value) in USUAL.into_iter().chain(own) {
        if !flags.iter().any(|it| it == flag) {
            arguments.extend([flag.to_owned(), value.to_owned()]);
        }
    }
    arguments.extend(flags);
    arguments
}

fn write(folder: &Path, limits: &BTreeMap<String, String>) {
    for (name, text) in limits {
        fs::write(folder.join(name), text).unwrap();
    }
}

/// Replaces files by renaming, so that a reader finds either the old or the new file.
fn replace(folder: &Path, limits: &BTreeMap<String, String>) {
    for (name, text) in limits {
        let new = folder.join(format!(".{name}.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, folder.join(name)).unwrap();
    }
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        if !limits.contains_key(entry.file_name().to_str().unwrap()) {
            fs::remove_file(entry.path()).unwrap();
        }
    }
}
