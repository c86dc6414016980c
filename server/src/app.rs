//! The composition root: settings → store → limiter → listeners → drain.

use std::{
    error::Error,
    io::{self, Write as _},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use sluicegate_core::rules::{CompileError, Findings};
use sluicegate_proto::text::printable_lines;
use sluicegate_store::{
    Clocks, MemorySettings, RedisStackSettings, Stack,
    redis::{FileError, LinkSettings, Password, RedisSettings, TlsFiles},
};
use thiserror::Error;
use tokio::{runtime::Handle, sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{self, Admin, AdminError, Names, Vitals},
    grpc::{self, HeadersError, Health, InFlight, Responder, Rls, Services},
    http::{self, Shared},
    limiter::Limiter,
    limits::Limits,
    listen::{Admission, Capacity, CapacityError, ListenAddress, Listener, Tls, TlsSettings},
    settings::{AdminListen, GrpcSettings, LimitsSettings, ServeSettings, StoreChoice},
    signals::{Asked, Signals},
    telemetry::{
        self, BoundValues, DecisionLog, KeyHash, MetricsError, SaltError, Telemetry, Traces,
        catalogue,
    },
    watch::Watch,
};

/// How often an idle memory store is swept, and how many counters of each shard at once.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const SWEEP_STEPS: usize = 1024;

/// The longest time that the start waits for the store: meanwhile no listener answers, not even to a liveness probe.
const STORE_WAIT_MAX: Duration = Duration::from_secs(2);

/// How often health looks at the store.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

/// How long calls over HTTP and to the admin service may take to finish, once gRPC has stopped. They are local and
/// short.
const LOCAL_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// How long it may take to send a collector what was counted and traced last.
const TELEMETRY_TIMEOUT: Duration = Duration::from_millis(1500);

/// Why the server cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The limits files have mistakes.
    #[error("{}", lines(.0))]
    Limits(Findings<CompileError>),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// There are fewer descriptors than connections are asked for.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// The TLS files cannot be used.
    #[error(transparent)]
    Tls(#[from] crate::listen::TlsError),
    /// There is no admin listener to be had.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A file for Redis cannot be used.
    #[error("cannot connect to Redis")]
    Redis(#[from] FileError),
    /// Settings of Redis that do not go together.
    #[error("{0}")]
    Store(&'static str),
    /// Settings of headers that do not go together.
    #[error(transparent)]
    Headers(#[from] HeadersError),
    /// The log level is none.
    #[error(transparent)]
    Log(#[from] telemetry::LogError),
    /// There is no secret to hash keys with.
    #[error(transparent)]
    Salt(#[from] SaltError),
    /// Metrics cannot be set up.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// Nothing can be sent to the collector.
    #[error(transparent)]
    Otlp(#[from] telemetry::OtlpError),
    /// Services cannot be described.
    #[error("cannot describe the services: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The system gives no threads, or no signals.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

fn lines(mistakes: &Findings<CompileError>) -> String {
    let lines: Vec<String> = mistakes.lines().collect();
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

fn run(settings: &ServeSettings) -> Result<(), StartError> {
    // The last to go, so that what is said at the end is written.
    let _log = telemetry::start_log(&settings.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let ran = runtime.block_on(async {
        // Before anything is announced: a reader of the log may send a signal at once.
        let mut signals = Signals::catch()?;
        let settings = settings.clone();
        // On a thread that drives nothing else: large limits files take a while, and signals are to be heard meanwhile.
        let runtime = Handle::current();
        let start = move || runtime.block_on(App::start(&settings, Clocks::system()));
        let app = tokio::select! {
            app = tokio::task::spawn_blocking(start) => app.map_err(io::Error::from)??,
            () = signals.stop() => {
                tracing::info!("stopped before serving");
                return Ok(());
            }
        };
        while signals.next().await == Asked::Reload {
            app.reload();
        }
        app.stop().await;
        Ok(())
    });
    // What still runs on threads of its own, such as an explanation that was cut off, is not waited for.
    runtime.shutdown_background();
    ran
}

/// Prints an error and what caused it, in one line; mistakes of limits files have a line each.
pub(crate) fn complain(error: &dyn Error) {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    let _closed = writeln!(io::stderr(), "sluicegate: {}", printable_lines(&text));
}

/// A running server.
pub struct App {
    grpc_address: ListenAddress,
    http_address: SocketAddr,
    serving: Serving,
    /// Health that follows the store, which stops when draining begins.
    follow: CancellationToken,
    store: Arc<Stack>,
    grpc: Running,
    http: Running,
    admin: Option<AdminRunning>,
    traces: Option<Arc<Traces>>,
    /// Makes watchers look at their files.
    reload: watch::Sender<()>,
    /// Watchers and the sweeper, which stop when the server has.
    background: CancellationToken,
    telemetry: Arc<Telemetry>,
    drain_delay: Duration,
    drain_timeout: Duration,
}

/// What callers are told about the server.
#[derive(Clone)]
struct Serving {
    health: Health,
    admin: Option<Health>,
    serving: Arc<AtomicBool>,
}

impl Serving {
    async fn set(&self, serving: bool) {
        self.serving.store(serving, Ordering::Relaxed);
        self.health.set(serving).await;
        if let Some(admin) = &self.admin {
            admin.set(serving).await;
        }
    }

    /// Says how the store does, and if the store is required that the server serves while the store does, for ever.
    async fn follow(self, store: Arc<Stack>, is_required: bool) {
        let mut said = None;
        loop {
            let serving = !store.is_degraded();
            if said != Some(serving) {
                self.health.set_store(serving).await;
                if is_required {
                    self.set(serving).await;
                }
                said = Some(serving);
            }
            tokio::time::sleep(FOLLOW_INTERVAL).await;
        }
    }
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

/// The admin listener, serving.
struct AdminRunning {
    address: ListenAddress,
    health: Health,
    running: Running,
    resets: admin::Resets,
    tls: Option<Tls>,
    token: Option<admin::Token>,
}

impl AdminRunning {
    async fn start(
        opened: admin::Open,
        admin: Admin,
        admission: Admission,
    ) -> Result<Self, StartError> {
        let admin::Open { listener, tls, token } = opened;
        let resets = admin.resets();
        let (services, health) = admin::Services::new(admin, token.clone())?;
        let address = listener.local_address();
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        let connections = listener.incoming(tls.clone(), admission);
        let task = tokio::spawn(async move {
            services.serve(connections, stopped).await;
        });
        Ok(Self { address, health, running: Running { stop, task }, resets, tls, token })
    }

    async fn stop(mut self) {
        self.health.end().await;
        tokio::join!(self.running.stop("admin", LOCAL_DRAIN_TIMEOUT), self.resets.end());
    }
}

impl App {
    /// Loads the limits, opens the listeners and serves. `clocks` are what the stores go by.
    ///
    /// # Errors
    /// Something that the settings ask for cannot be had.
    pub async fn start(settings: &ServeSettings, clocks: Clocks) -> Result<Self, StartError> {
        let background = CancellationToken::new();
        let began = Instant::now();
        let key_hash = Arc::new(KeyHash::load(settings.log.key_hash_salt_file.as_deref())?);
        let request_bytes = settings.bounds.request_max_bytes.get();
        let bounds = BoundValues {
            request_bytes,
            message_bytes: settings.grpc.grpc_max_message_bytes.get(),
            large_requests: grpc::LARGE_MAX,
            waiting_bytes: settings.grpc.bounds.grpc_max_waiting_bytes.get(),
            waiting_bytes_per_connection: settings
                .grpc
                .bounds
                .grpc_max_waiting_bytes_per_connection
                .get(),
            body_bytes: http::BODY_BYTES_MAX,
        };
        let top_keys = settings.top.top_keys;
        let telemetry = Telemetry::new(&settings.metrics, &settings.otlp, top_keys, bounds)?;
        let telemetry = Arc::new(telemetry);
        let capacity = Capacity::new(&settings.connections, &settings.store.store)?;
        telemetry::show_connections(&telemetry, &capacity);
        let limits = load_limits(&settings.limits, &telemetry)?;
        let snapshot = limits.current();
        telemetry.show_own(&snapshot);
        let store = Arc::new(open_store(settings, capacity.redis, clocks)?);
        let counters_max = settings.store.memory_max_counters.get();
        telemetry::show_store(&telemetry, &store, counters_max, &key_hash);
        let in_flight = InFlight::new(settings.max_in_flight.get());
        let counted = in_flight.clone();
        telemetry.show_gauge(catalogue::IN_FLIGHT, move || counted.current());
        let max = settings.max_in_flight.get();
        telemetry.show_gauge(catalogue::IN_FLIGHT_MAX, move || max);
        let decision_log = DecisionLog::new(&settings.log, &key_hash).map(Arc::new);
        let traces = Traces::start(&settings.otlp, &settings.store.store, decision_log.is_some())?;
        show_requests(&telemetry, traces.as_ref(), decision_log.as_ref());

        let serving = Arc::new(AtomicBool::new(true));
        let vitals = Vitals {
            began,
            serving: Arc::clone(&serving),
            rejected: limits.rejected(),
            in_flight: in_flight.clone(),
            counters_max: settings.store.memory_max_counters.get(),
        };
        let prefix = settings.store.key_prefix.clone();
        let admin_service = Admin::new(
            Arc::clone(&snapshot),
            Arc::clone(&store),
            Arc::clone(&telemetry),
            Names::new(prefix, Arc::clone(&key_hash), settings.top.top_labels),
            vitals,
            decision_log.is_some().then_some(key_hash),
        );
        let limiter = Limiter::new(
            Arc::clone(&snapshot),
            Arc::clone(&store),
            Arc::clone(&telemetry),
            settings.failure.decision_timeout,
            decision_log.clone(),
        );
        let responder = Responder::new(&settings.response)?;
        let rls = Arc::new(Rls::new(limiter, responder, Arc::clone(&telemetry), request_bytes));
        let (services, health) =
            Services::new(&settings.grpc, Arc::clone(&rls), in_flight.clone(), traces.clone())
                .await?;
        grpc::show(&telemetry, &services);
        let tls = load_tls(&settings.grpc)?;
        let admin = admin::Open::new(&settings.admin).await?;
        let admin_tls = admin.as_ref().and_then(|admin| admin.tls.clone());
        show_tls_failures(&telemetry, tls.iter().chain(&admin_tls).cloned().collect());
        // A replica that serves before it is connected lets `on_failure` decide, beside the counters.
        store.connected(settings.redis.redis_connect_timeout.min(STORE_WAIT_MAX)).await;
        if store.is_degraded() && settings.failure.replicas.is_none() {
            tracing::warn!(
                "Redis does not answer yet: until it does, on_failure: local divides limits by one replica, unless \
                 --replicas says how many there are"
            );
        }
        let (grpc_address, grpc) =
            start_grpc(settings, services, tls.clone(), capacity.grpc).await?;
        let body_max = settings.grpc.grpc_max_message_bytes.get();
        let shared = Shared {
            rls,
            in_flight,
            snapshot: Arc::clone(&snapshot),
            telemetry: Arc::clone(&telemetry),
            serving: Arc::clone(&serving),
            store: Arc::clone(&store),
            traces: traces.clone(),
            pages: http::Pages::default(),
        };
        let (http_address, http) =
            start_http(settings, http::router(shared), body_max, capacity.http).await?;
        let admin = start_admin(admin, admin_service, capacity.admin).await?;
        let admin_health = admin.as_ref().map(|admin| admin.health.clone());
        let serving = Serving { health, admin: admin_health, serving };
        serving.set(true).await;

        let measured = Arc::clone(&telemetry);
        let measure = async move { measured.punctuality.measure().await };
        tokio::spawn(background.clone().run_until_cancelled_owned(measure));
        let swept = Arc::clone(&store);
        tokio::spawn(background.clone().run_until_cancelled_owned(sweep(swept)));
        let follow = CancellationToken::new();
        let is_required = settings.failure.health_requires_store;
        let followed = serving.clone().follow(Arc::clone(&store), is_required);
        tokio::spawn(follow.clone().run_until_cancelled_owned(followed));
        let poll_interval = settings.poll_interval;
        let (reload, _) = watch::channel(());
        let watched = Watched {
            limits,
            tls,
            telemetry: Arc::clone(&telemetry),
            store: Arc::clone(&store),
            poll_interval,
            asked: reload.subscribe(),
        };
        watched.start(settings, admin.as_ref(), &background);
        let admin_address =
            admin.as_ref().map_or(AdminListen::Off, |admin| AdminListen::At(admin.address.clone()));
        tracing::info!(grpc = %grpc_address, http = %http_address, admin = %admin_address, "serving");
        Ok(Self {
            grpc_address,
            http_address,
            serving,
            follow,
            store,
            grpc,
            http,
            admin,
            traces,
            reload,
            background,
            telemetry,
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

    /// Where the admin service is served, if it is.
    #[must_use]
    pub fn admin_address(&self) -> Option<&ListenAddress> {
        self.admin.as_ref().map(|admin| &admin.address)
    }

    /// Reads limits, TLS files and the admin token again, as if they had changed.
    fn reload(&self) {
        tracing::info!("reloading limits, TLS files and the admin token");
        self.reload.send_replace(());
    }

    /// Tells callers to turn away, goes on serving for the drain delay, then lets calls in progress
    /// finish within the drain timeout. HTTP and the admin service stop last, so that the drain can be watched.
    pub async fn stop(mut self) {
        tracing::info!(delay = ?self.drain_delay, "draining");
        self.follow.cancel();
        self.serving.set(false).await;
        tokio::time::sleep(self.drain_delay).await;
        self.serving.health.end().await;
        self.grpc.stop("gRPC", self.drain_timeout).await;
        let http = async {
            self.http.stop("HTTP", LOCAL_DRAIN_TIMEOUT).await;
            // What was refused over HTTP is given back too.
            self.store.finish().await;
        };
        let admin = async {
            if let Some(admin) = self.admin {
                admin.stop().await;
            }
        };
        tokio::join!(http, admin);
        self.background.cancel();
        let traces = async {
            if let Some(traces) = self.traces {
                traces.finish(TELEMETRY_TIMEOUT).await;
            }
        };
        let metrics = async {
            let end = tokio::task::spawn_blocking(move || self.telemetry.end());
            if tokio::time::timeout(TELEMETRY_TIMEOUT, end).await.is_err() {
                tracing::warn!("the collector does not take what was counted last");
            }
        };
        tokio::join!(traces, metrics);
        telemetry::report_suppressed_log_lines(true);
        tracing::info!("stopped");
    }
}

fn load_limits(settings: &LimitsSettings, telemetry: &Telemetry) -> Result<Limits, StartError> {
    let bounds = settings.compiling.reading.bounds();
    Limits::load(settings.limits.clone(), bounds, settings.options(), telemetry)
        .map_err(StartError::Limits)
}

fn load_tls(settings: &GrpcSettings) -> Result<Option<Tls>, StartError> {
    let tls = TlsSettings::given(
        settings.grpc_tls_cert.clone(),
        settings.grpc_tls_key.clone(),
        settings.grpc_tls_client_ca.clone(),
        settings.grpc_tls_client_names.clone(),
    );
    Ok(tls.map(Tls::load).transpose()?)
}

fn open_store(
    settings: &ServeSettings,
    connections_max: usize,
    clocks: Clocks,
) -> Result<Stack, StartError> {
    let counters_max = settings.store.memory_max_counters.get();
    let local = MemorySettings { counters_max };
    let StoreChoice::Redis(url) = &settings.store.store else {
        return Ok(Stack::memory(local, clocks));
    };
    let redis = &settings.redis;
    let password = match (&url.password, &redis.redis_password, &redis.redis_password_file) {
        (None, None, None) => Password::None,
        (Some(password), None, None) | (None, Some(password), None) => {
            Password::Given(password.clone())
        }
        (None, None, Some(file)) => Password::File(file.clone()),
        _ => {
            let twice =
                "--store, --redis-password and --redis-password-file: only one may have a password";
            return Err(StartError::Store(twice));
        }
    };
    let username = match (&url.username, &redis.redis_username) {
        (Some(_), Some(_)) => {
            return Err(StartError::Store(
                "--store and --redis-username: only one may name a user",
            ));
        }
        (username, other) => username.clone().or_else(|| other.clone()),
    };
    if username.is_some() && matches!(password, Password::None) {
        return Err(StartError::Store("--redis-username: a user of Redis needs a password"));
    }
    if !url.tls && (redis.redis_tls_ca.is_some() || redis.redis_tls_cert.is_some()) {
        let plain =
            "--redis-tls-ca and --redis-tls-cert: --store does not ask for TLS; use rediss://";
        return Err(StartError::Store(plain));
    }
    let identity = redis.redis_tls_cert.clone().zip(redis.redis_tls_key.clone());
    let link = LinkSettings {
        username,
        password,
        tls: url.tls.then(|| TlsFiles { ca: redis.redis_tls_ca.clone(), identity }),
        database: url.database,
        connect_timeout: redis.redis_connect_timeout,
        connector: None,
    };
    let redis = RedisSettings {
        deployment: url.deployment.clone(),
        link,
        connections: redis.redis_connections,
        connections_max,
        key_prefix: settings.store.key_prefix.clone(),
    };
    let settings = RedisStackSettings {
        redis,
        deny_cache_entries: settings.store.deny_cache_entries,
        local,
        fallback_counters: settings.failure.fallback_counters,
        replicas: settings.failure.replicas,
    };
    Ok(Stack::redis(settings, clocks)?)
}

fn show_requests(
    telemetry: &Telemetry,
    traces: Option<&Arc<Traces>>,
    decision_log: Option<&Arc<DecisionLog>>,
) {
    let log = decision_log.cloned();
    let dropped = move || log.as_ref().map_or(0, |log| log.dropped());
    telemetry.show_count(catalogue::DECISION_LOG_DROPPED, dropped);
    telemetry.show_count(catalogue::LOG_LINES_DROPPED, telemetry::log_lines_dropped);
    telemetry.show_count(catalogue::LOG_LINES_SUPPRESSED, telemetry::log_lines_suppressed);
    let count = |read: fn(&Traces) -> u64| {
        let traces = traces.cloned();
        move || traces.as_deref().map_or(0, read)
    };
    telemetry.show_count(catalogue::TRACED, count(Traces::ended));
    telemetry.show_count(catalogue::TRACED_SENT, count(Traces::sent));
}

async fn start_grpc(
    settings: &ServeSettings,
    services: Services,
    tls: Option<Tls>,
    admission: Admission,
) -> Result<(ListenAddress, Running), StartError> {
    let wanted = &settings.grpc.grpc_listen;
    let cannot = |source| StartError::Listen { address: wanted.to_string(), source };
    let listener = Listener::bind(wanted).await.map_err(cannot)?;
    let address = listener.local_address();
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let task = tokio::spawn(async move {
        services.serve(listener.incoming(tls, admission), stopped).await;
    });
    Ok((address, Running { stop, task }))
}

fn show_tls_failures(telemetry: &Telemetry, listeners: Vec<Tls>) {
    let failed = move || listeners.iter().map(Tls::handshakes_failed).sum();
    telemetry.show_count(catalogue::TLS_FAILURES, failed);
}

async fn start_admin(
    opened: Option<admin::Open>,
    admin: Admin,
    admission: Admission,
) -> Result<Option<AdminRunning>, StartError> {
    let Some(opened) = opened else { return Ok(None) };
    AdminRunning::start(opened, admin, admission).await.map(Some)
}

async fn start_http(
    settings: &ServeSettings,
    router: axum::Router,
    body_max: usize,
    admission: Admission,
) -> Result<(SocketAddr, Running), StartError> {
    let wanted = settings.http_listen;
    let cannot = |source| StartError::Listen { address: wanted.to_string(), source };
    let listener = Listener::bind(&ListenAddress::Tcp(wanted.to_string())).await.map_err(cannot)?;
    let address = listener.socket_address().unwrap_or(wanted);
    let server = http::Server::new(router, body_max, admission.clone());
    let stop = CancellationToken::new();
    let stopped = stop.clone().cancelled_owned();
    let task = tokio::spawn(async move {
        server.serve(listener.incoming(None, admission), stopped).await;
    });
    Ok((address, Running { stop, task }))
}

/// What is read again when its files change.
struct Watched {
    limits: Limits,
    tls: Option<Tls>,
    telemetry: Arc<Telemetry>,
    store: Arc<Stack>,
    poll_interval: Duration,
    /// Changes when an operator asks for a reload.
    asked: watch::Receiver<()>,
}

impl Watched {
    fn start(
        self,
        settings: &ServeSettings,
        admin: Option<&AdminRunning>,
        background: &CancellationToken,
    ) {
        let Self { limits: mut rules, tls, telemetry, store, poll_interval, asked } = self;
        let mut watch = Watch::new(&settings.limits.limits, poll_interval);
        let of_limits = Arc::clone(&telemetry);
        let mut limits_asked = asked.clone();
        let reload_limits = async move {
            loop {
                let asked = changed_or_asked(&mut watch, &mut limits_asked).await;
                let telemetry = Arc::clone(&of_limits);
                // Off the threads that answer requests: large files take a while to compile.
                let reloaded = tokio::task::spawn_blocking(move || {
                    let changed = rules.reload(&telemetry, asked);
                    (rules, changed)
                });
                match reloaded.await {
                    Ok((reloaded, changed)) => {
                        rules = reloaded;
                        if changed {
                            store.limits_changed();
                        }
                    }
                    Err(error) => {
                        tracing::error!(%error, "limits are no longer reloaded");
                        return;
                    }
                }
            }
        };
        tokio::spawn(background.clone().run_until_cancelled_owned(reload_limits));
        let watch = |files: Vec<PathBuf>, reload: Arc<dyn Fn() + Send + Sync>| {
            let mut watch = Watch::new(&files, poll_interval);
            let mut asked = asked.clone();
            let reloading = async move {
                loop {
                    changed_or_asked(&mut watch, &mut asked).await;
                    let reload = Arc::clone(&reload);
                    let reloaded = tokio::task::spawn_blocking(move || reload()).await;
                    if let Err(error) = reloaded {
                        tracing::error!(%error, "cannot reload files");
                    }
                }
            };
            tokio::spawn(background.clone().run_until_cancelled_owned(reloading));
        };
        let admin_tls = admin.and_then(|admin| admin.tls.clone());
        let listeners: Vec<_> = tls.into_iter().chain(admin_tls).collect();
        let shown = listeners.clone();
        telemetry.show_gauge(catalogue::TLS_LAST_LOAD, move || {
            usize::from(!shown.iter().any(Tls::is_rejected))
        });
        for tls in listeners {
            let telemetry = Arc::clone(&telemetry);
            watch(tls.files(), Arc::new(move || reload(&tls, &telemetry)));
        }
        let token = admin.and_then(|admin| admin.token.clone());
        let shown = token.clone();
        telemetry.show_gauge(catalogue::ADMIN_TOKEN_LAST_LOAD, move || {
            usize::from(!shown.as_ref().is_some_and(admin::Token::is_rejected))
        });
        if let Some(token) = token {
            let file = token.path().to_owned();
            watch(vec![file], Arc::new(move || reload_token(&token, &telemetry)));
        }
    }
}

/// Waits until files may have changed, or an operator asks for a reload. Returns whether that is so.
async fn changed_or_asked(watch: &mut Watch, asked: &mut watch::Receiver<()>) -> bool {
    tokio::select! {
        () = watch.changed() => false,
        // The sender lives as long as the server.
        Ok(()) = asked.changed() => true,
    }
}

fn reload_token(token: &admin::Token, telemetry: &Telemetry) {
    match token.reload() {
        Ok(false) => {}
        Ok(true) => {
            telemetry.admin_token_loads.succeeded();
            tracing::info!("admin token taken up");
        }
        Err(error) => {
            telemetry.admin_token_loads.failed();
            let cause = error.source().map(ToString::to_string);
            tracing::error!(%error, cause, "admin token rejected, the old one stays in force");
        }
    }
}

fn reload(tls: &Tls, telemetry: &Telemetry) {
    match tls.reload() {
        Ok(false) => {}
        Ok(true) => {
            telemetry.tls_loads.succeeded();
            tracing::info!("TLS files taken up");
        }
        Err(error) => {
            telemetry.tls_loads.failed();
            tracing::error!(%error, "TLS files rejected, the old ones stay in force");
        }
    }
}

async fn sweep(store: Arc<Stack>) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        ticks.tick().await;
        store.sweep(SWEEP_STEPS);
        telemetry::report_suppressed_log_lines(false);
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_store::FINISH_TIMEOUT;

    use super::*;

    #[test]
    fn what_comes_after_grpc_fits_into_the_charts_grace_period() {
        let chart = include_str!("../../helm/templates/_server.tpl");
        let (_, rest) = chart.split_once("add .Values.drain.delaySeconds ").unwrap();
        let (sum, _) = rest.split_once(" -}}").unwrap();
        let seconds = sum.strip_prefix(".Values.drain.timeoutSeconds ").unwrap();
        let http = LOCAL_DRAIN_TIMEOUT + FINISH_TIMEOUT;
        let admin = LOCAL_DRAIN_TIMEOUT.max(admin::RESETS_END_TIMEOUT);
        let longest = http.max(admin) + TELEMETRY_TIMEOUT + telemetry::LOG_END_TIMEOUT;
        assert!(longest < Duration::from_secs(seconds.parse().unwrap()), "{longest:?}");
    }
}
