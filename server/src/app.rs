//! The composition root: settings → store → limiter → listeners → drain.

use std::{
    error::Error,
    io::{self, Write as _},
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sluicegate_core::rules::{CompileError, CompileOptions};
use sluicegate_store::{Clock, FailurePolicy, Memory, MemorySettings, SystemClock};
use thiserror::Error;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    grpc::{Health, InFlight, Rls, Services},
    http::{self, Shared},
    limiter::Limiter,
    limits::{Limits, Sources},
    listen::{ListenAddress, Listener, Tls, TlsSettings},
    settings::{GrpcSettings, LimitsSettings, ServeSettings, StoreKind, ValidateSettings},
    telemetry::{self, MetricsError, Telemetry, catalogue},
    watch::Watch,
};

/// How often an idle memory store is swept, and how many counters of each shard at once.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const SWEEP_STEPS: usize = 1024;

/// How long HTTP requests in progress may take to finish, once gRPC has stopped. They are local and short.
const HTTP_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Why the server cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The limits files have mistakes.
    #[error("{}", lines(.0))]
    Limits(Vec<CompileError>),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// The TLS files cannot be used.
    #[error(transparent)]
    Tls(#[from] crate::listen::TlsError),
    /// The log level is none.
    #[error(transparent)]
    Log(#[from] telemetry::LogError),
    /// Metrics cannot be set up.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Services cannot be described.
    #[error("cannot describe the services: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The system gives no threads, or no signals.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

fn lines(mistakes: &[CompileError]) -> String {
    let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// Runs `sluicegate serve` until the process is told to stop.
#[must_use]
pub fn serve(settings: &ServeSettings) -> ExitCode {
    match run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(settings: &ServeSettings) -> Result<(), StartError> {
    telemetry::start_log(&settings.log)?;
    // Before anything is announced: whoever reads of the start may send the signal.
    let stop = stop_signal()?;
    let app = App::start(settings, SystemClock::new()).await?;
    stop.await;
    app.stop().await;
    Ok(())
}

/// Resolves when the process is told to stop: SIGTERM, or SIGINT from a keyboard.
fn stop_signal() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Runs `sluicegate validate`: prints what is wrong with the files.
#[must_use]
pub fn validate(settings: &ValidateSettings) -> ExitCode {
    let options = CompileOptions { default_counting: settings.default_counting.into() };
    match Sources::read(&settings.limits).compile(&options) {
        Ok(set) => {
            for warning in set.warnings() {
                say(&format!("warning: {warning}"));
            }
            let (domains, rules) = (set.domains().count(), set.rules().count());
            let warnings = set.warnings().len();
            say(&format!("ok: {domains} domains, {rules} rules, {warnings} warnings"));
            ExitCode::SUCCESS
        }
        Err(mistakes) => {
            say(&lines(&mistakes));
            ExitCode::FAILURE
        }
    }
}

/// Prints to the standard output. Whoever closed it does not want to read on.
fn say(text: &str) {
    let _closed = writeln!(io::stdout(), "{text}");
}

/// Prints an error and what caused it, in one line.
fn complain(error: &dyn Error) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    let _closed = writeln!(io::stderr(), "sluicegate: {text}");
}

/// A running server.
pub struct App {
    grpc_address: ListenAddress,
    http_address: SocketAddr,
    health: Health,
    serving: Arc<AtomicBool>,
    grpc: Running,
    http: Running,
    /// Watchers and the sweeper, which stop when the server has.
    background: CancellationToken,
    drain_delay: Duration,
    drain_timeout: Duration,
}

/// A listener that serves.
struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    /// Lets calls in progress finish, for so long.
    async fn stop(mut self, listener: &str, within: Duration) {
        self.stop.cancel();
        if tokio::time::timeout(within, &mut self.task).await.is_err() {
            self.task.abort();
            tracing::warn!(
                listener,
                "calls in progress outlived the drain timeout and were cut off"
            );
        }
    }
}

impl App {
    /// Loads the limits, opens the listeners and serves. `clock` is what the store goes by.
    ///
    /// # Errors
    /// Something that the settings ask for cannot be had.
    pub async fn start(settings: &ServeSettings, clock: impl Clock) -> Result<Self, StartError> {
        let background = CancellationToken::new();
        let telemetry = Arc::new(Telemetry::new()?);
        let limits = load_limits(&settings.limits)?;
        let snapshot = limits.current();
        telemetry.show_own(&snapshot);
        let StoreKind::Memory = settings.store.store;
        let counters_max = settings.store.memory_max_counters.get();
        let store = Arc::new(Memory::new(MemorySettings { counters_max }, clock));
        let policy = Arc::new(FailurePolicy::new(Arc::clone(&store)));
        show_store(&telemetry, &store, &policy, counters_max);
        let in_flight = InFlight::new(settings.max_in_flight.get());
        let counted = in_flight.clone();
        telemetry.show_gauge(catalogue::IN_FLIGHT, move || counted.current());

        let limiter = Limiter::new(Arc::clone(&snapshot), policy, Arc::clone(&telemetry));
        let rls = Arc::new(Rls::new(limiter, Arc::clone(&telemetry)));
        let serving = Arc::new(AtomicBool::new(true));
        let (services, health) =
            Services::new(&settings.grpc, Arc::clone(&rls), in_flight.clone())?;
        let tls = load_tls(&settings.grpc)?;
        let (grpc_address, grpc) = start_grpc(settings, services, tls.clone(), &telemetry).await?;
        let body_max = settings.grpc.grpc_max_message_bytes.get();
        let shared = Shared {
            rls,
            in_flight,
            snapshot,
            telemetry: Arc::clone(&telemetry),
            serving: Arc::clone(&serving),
        };
        let (http_address, http) =
            start_http(settings.http_listen, http::router(shared, body_max)).await?;
        health.set(true).await;

        let watched = Watched { limits, tls, telemetry, poll_interval: settings.poll_interval };
        watched.start(&settings.grpc, &settings.limits, &background);
        tokio::spawn(background.clone().run_until_cancelled_owned(sweep(store)));
        tracing::info!(grpc = %grpc_address, http = %http_address, "serving");
        Ok(Self {
            grpc_address,
            http_address,
            health,
            serving,
            grpc,
            http,
            background,
            drain_delay: settings.drain_delay,
            drain_timeout: settings.drain_timeout,
        })
    }

    /// Where gRPC is served.
    #[must_use]
    pub const fn grpc_address(&self) -> &ListenAddress {
        &self.grpc_address
    }

    /// Where HTTP is served.
    #[must_use]
    pub const fn http_address(&self) -> SocketAddr {
        self.http_address
    }

    /// Tells callers to turn away, goes on serving for the drain delay, then lets calls in progress
    /// finish within the drain timeout. HTTP stops last, so that the drain can be watched.
    pub async fn stop(mut self) {
        tracing::info!(delay = ?self.drain_delay, "draining");
        self.serving.store(false, Ordering::Relaxed);
        self.health.set(false).await;
        tokio::time::sleep(self.drain_delay).await;
        self.health.end().await;
        self.grpc.stop("gRPC", self.drain_timeout).await;
        self.http.stop("HTTP", HTTP_DRAIN_TIMEOUT).await;
        self.background.cancel();
        tracing::info!("stopped");
    }
}

fn load_limits(settings: &LimitsSettings) -> Result<Limits, StartError> {
    let options = CompileOptions { default_counting: settings.default_counting.into() };
    Limits::load(settings.limits.clone(), options).map_err(StartError::Limits)
}

fn load_tls(settings: &GrpcSettings) -> Result<Option<Tls>, StartError> {
    let (Some(certificate), Some(key)) = (&settings.grpc_tls_cert, &settings.grpc_tls_key) else {
        return Ok(None);
    };
    let tls = TlsSettings {
        certificate: certificate.clone(),
        key: key.clone(),
        client_ca: settings.grpc_tls_client_ca.clone(),
        client_names: settings.grpc_tls_client_names.clone(),
    };
    Ok(Some(Tls::load(tls)?))
}

fn show_store<C: Clock>(
    telemetry: &Telemetry,
    store: &Arc<Memory<C>>,
    policy: &Arc<FailurePolicy<Arc<Memory<C>>>>,
    counters_max: usize,
) {
    let (store, policy) = (Arc::clone(store), Arc::clone(policy));
    telemetry.show_gauge(catalogue::COUNTERS, move || store.len());
    telemetry.show_gauge(catalogue::COUNTERS_MAX, move || counters_max);
    telemetry.show_count(catalogue::STORE_FULL, move || policy.answered());
}

async fn start_grpc(
    settings: &ServeSettings,
    services: Services,
    tls: Option<Tls>,
    telemetry: &Telemetry,
) -> Result<(ListenAddress, Running), StartError> {
    let wanted = &settings.grpc.grpc_listen;
    let cannot = |source| StartError::Listen { address: wanted.to_string(), source };
    let listener = Listener::bind(wanted).await.map_err(cannot)?;
    let address = listener.local_address();
    if let Some(tls) = tls.clone() {
        telemetry.show_count(catalogue::TLS_FAILURES, move || tls.handshakes_failed());
    }
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let task = tokio::spawn(async move {
        if let Err(error) = services.serve(listener.incoming(tls), stopped).await {
            tracing::error!(%error, "gRPC listener failed");
        }
    });
    Ok((address, Running { stop, task }))
}

async fn start_http(
    wanted: SocketAddr,
    router: axum::Router,
) -> Result<(SocketAddr, Running), StartError> {
    let cannot = |source| StartError::Listen { address: wanted.to_string(), source };
    let listener = TcpListener::bind(wanted).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let task = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(stopped).await {
            tracing::error!(%error, "HTTP listener failed");
        }
    });
    Ok((address, Running { stop, task }))
}

/// What is read again when its files change.
struct Watched {
    limits: Limits,
    tls: Option<Tls>,
    telemetry: Arc<Telemetry>,
    poll_interval: Duration,
}

impl Watched {
    fn start(self, grpc: &GrpcSettings, limits: &LimitsSettings, background: &CancellationToken) {
        let Self { limits: mut rules, tls, telemetry, poll_interval } = self;
        let mut watch = Watch::new(&limits.limits, poll_interval);
        let of_limits = Arc::clone(&telemetry);
        let reload_limits = async move {
            loop {
                watch.changed().await;
                let telemetry = Arc::clone(&of_limits);
                // Off the threads that answer requests: large files take a while to compile.
                let reloaded = tokio::task::spawn_blocking(move || {
                    rules.reload(&telemetry);
                    rules
                });
                match reloaded.await {
                    Ok(reloaded) => rules = reloaded,
                    Err(error) => {
                        tracing::error!(%error, "limits are no longer reloaded");
                        return;
                    }
                }
            }
        };
        tokio::spawn(background.clone().run_until_cancelled_owned(reload_limits));
        let Some(tls) = tls else { return };
        let files = [&grpc.grpc_tls_cert, &grpc.grpc_tls_key, &grpc.grpc_tls_client_ca];
        let files: Vec<_> = files.into_iter().flatten().cloned().collect();
        let mut watch = Watch::new(&files, poll_interval);
        let reload_tls = async move {
            loop {
                watch.changed().await;
                reload(&tls, &telemetry);
            }
        };
        tokio::spawn(background.clone().run_until_cancelled_owned(reload_tls));
    }
}

fn reload(tls: &Tls, telemetry: &Telemetry) {
    match tls.reload() {
        Ok(false) => {}
        Ok(true) => {
            telemetry.tls_loads.success.add(1);
            tracing::info!("TLS files taken up");
        }
        Err(error) => {
            telemetry.tls_loads.failure.add(1);
            tracing::error!(%error, "TLS files rejected, the old ones stay in force");
        }
    }
}

async fn sweep<C: Clock>(store: Arc<Memory<C>>) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        ticks.tick().await;
        store.sweep(SWEEP_STEPS);
    }
}
