//! The start of the server.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use sluicegate_store::{
    Clocks, MemorySettings, RedisStackSettings, Stack,
    redis::{FileError, RedisConnectionSettings, RedisSettings},
};
use tokio_util::sync::CancellationToken;

use super::{
    App, StartErrors,
    check::{CheckedSettings, UsageAccess},
    first_request,
    health::ServerHealth,
    listeners::{self, AdminHandle, BoundListeners, ServerHandle},
    reload::Reloader,
};
use crate::{
    admin::{Admin, CounterNames, StatusSources},
    grpc::{self, InFlight, Responder, Rls, Services},
    http::{self, HttpState},
    limiter::Limiter,
    limits::{self, Limits, Snapshot},
    listen::{self, Admission, Listener, Tls},
    settings::{AdminListen, ServeSettings, StoreChoice},
    telemetry::{
        self, DecisionLog, KeyHasher, Metrics, MetricsError, OtlpError, RefusalBoundValues, Traces,
        catalogue,
    },
    usage::{self, ResponseCounts, UsageOptions},
};

/// The interval at which expired counters are removed from memory, and the number of counters checked in each shard.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
const SWEEP_STEPS: usize = 1024;

/// The longest time that the start waits for the store. Meanwhile no listener is open, not even for liveness probes.
const STORE_WAIT_MAX: Duration = Duration::from_secs(2);

impl App {
    /// Checks the settings, loads the limits, opens the listeners and serves. The stores use `clocks`.
    ///
    /// # Errors
    /// All mistakes in the settings, or an error of the system.
    pub async fn start(settings: &ServeSettings, clocks: Clocks) -> Result<Self, StartErrors> {
        let started_at = Instant::now();
        let CheckedSettings {
            key_hasher,
            capacity,
            limits,
            redis,
            responder,
            grpc_tls,
            admin,
            usage,
        } = CheckedSettings::new(settings)?;

        let metrics = Arc::new(new_metrics(settings)?);
        let limits = Limits::new(limits, &metrics);
        let store = Arc::new(open_store(settings, redis, capacity.redis, clocks)?);
        let components = Components::new(settings, &limits, &store, &metrics, key_hasher)?;
        let rls = components.rls(settings, responder);
        let (services, grpc_health) = Services::new(
            &settings.grpc,
            Arc::clone(&rls),
            components.in_flight.clone(),
            components.traces.clone(),
        )
        .await?;
        listen::register_metrics(&metrics, &capacity);
        grpc::register_metrics(&metrics, &services);
        components.register_metrics(settings);

        wait_for_store(settings, &store).await;
        let bound = BoundListeners::bind(settings, admin, usage.as_ref()).await?;
        let grpc_address = bound.grpc.local_address();
        let http_address = listeners::http_address(&bound.http, settings);

        let is_serving = Arc::new(AtomicBool::new(true));
        let router = components.http_router(rls, &is_serving);
        let http = http::Server::new(
            router,
            settings.grpc.grpc_max_message_bytes.get(),
            capacity.http.clone(),
        );
        let admin_service = components.admin(settings, &limits, started_at, &is_serving);
        let grpc = ServerHandle::grpc(bound.grpc, services, grpc_tls.clone(), capacity.grpc);
        let http = ServerHandle::http(bound.http, http, None, capacity.http);
        let usage_tenants = usage.as_ref().map(|usage| usage.tenants.clone());
        let usage_tls = usage.as_ref().and_then(|usage| usage.tls.clone());
        let usage = match (usage, bound.usage, capacity.usage) {
            (Some(access), Some(listener), Some(admission)) => {
                Some(components.serve_usage(settings, access, listener, admission))
            }
            _ => None,
        };
        let admin =
            bound.admin.map(|bound| AdminHandle::start(bound, admin_service, capacity.admin));
        let admin = admin.transpose()?;
        let health = ServerHealth {
            grpc: grpc_health,
            admin: admin.as_ref().map(|admin| admin.health.clone()),
            http: is_serving,
        };
        health.set(true).await;

        let background = CancellationToken::new();
        let follow_store = CancellationToken::new();
        let is_required = settings.failure.health_requires_store;
        run_until(&follow_store, health.clone().follow_store(Arc::clone(&store), is_required));
        run_until(&background, sweep(Arc::clone(&store)));
        let monitored = Arc::clone(&metrics);
        run_until(&background, async move { monitored.deadlines.run_probe().await });
        let admin_tls = admin.as_ref().and_then(|admin| admin.tls.clone());
        let tls: Vec<_> = grpc_tls.into_iter().chain(admin_tls).chain(usage_tls).collect();
        register_tls_failures(&metrics, tls.clone());
        let snapshot = limits.current();
        let reloader = Reloader::new(settings.poll_interval, &background);
        reloader.watch_limits(limits, &metrics, &store);
        reloader.watch_tls(&tls, &metrics);
        reloader.watch_admin_token(admin.as_ref(), &metrics);
        reloader.watch_usage_tenants(usage_tenants, &metrics);

        let admin_address =
            admin.as_ref().map_or(AdminListen::Off, |admin| AdminListen::At(admin.address.clone()));
        tracing::info!(grpc = %grpc_address, http = %http_address, admin = %admin_address, "serving");
        first_request::print(http_address, &snapshot.load().rules);
        Ok(Self {
            grpc_address,
            http_address,
            health,
            follow_store,
            store,
            grpc,
            http,
            admin,
            usage,
            traces: components.traces,
            reload_requests: reloader.requests(),
            background,
            metrics,
            drain_delay: settings.drain_delay,
            drain_timeout: settings.drain_timeout,
        })
    }
}

/// The components that the listeners share.
struct Components {
    snapshot: Arc<ArcSwap<Snapshot>>,
    store: Arc<Stack>,
    metrics: Arc<Metrics>,
    key_hasher: Arc<KeyHasher>,
    in_flight: InFlight,
    log: Option<Arc<DecisionLog>>,
    traces: Option<Arc<Traces>>,
    usage_responses: Arc<ResponseCounts>,
}

impl Components {
    fn new(
        settings: &ServeSettings,
        limits: &Limits,
        store: &Arc<Stack>,
        metrics: &Arc<Metrics>,
        key_hasher: KeyHasher,
    ) -> Result<Self, OtlpError> {
        let key_hasher = Arc::new(key_hasher);
        let log = DecisionLog::new(&settings.log, &key_hasher).map(Arc::new);
        let redis = match &settings.store.store {
            StoreChoice::Memory => None,
            StoreChoice::Redis(url) => Some(&url.deployment),
        };
        let traces = Traces::start(&settings.otlp, redis, log.is_some())?;
        Ok(Self {
            snapshot: limits.current(),
            store: Arc::clone(store),
            metrics: Arc::clone(metrics),
            key_hasher,
            in_flight: InFlight::new(settings.max_in_flight.get()),
            log,
            traces,
            usage_responses: Arc::default(),
        })
    }

    /// The rate limit service.
    fn rls(&self, settings: &ServeSettings, responder: Responder) -> Arc<Rls> {
        let limiter = Limiter::new(
            Arc::clone(&self.snapshot),
            Arc::clone(&self.store),
            Arc::clone(&self.metrics),
            settings.failure.decision_timeout,
            self.log.clone(),
        );
        let request_bytes = settings.request_bounds.request_max_bytes.get();
        Arc::new(Rls::new(limiter, responder, Arc::clone(&self.metrics), request_bytes))
    }

    /// The routes of the HTTP listener.
    fn http_router(&self, rls: Arc<Rls>, is_serving: &Arc<AtomicBool>) -> axum::Router {
        http::router(HttpState {
            rls,
            in_flight: self.in_flight.clone(),
            snapshot: Arc::clone(&self.snapshot),
            metrics: Arc::clone(&self.metrics),
            serving: Arc::clone(is_serving),
            store: Arc::clone(&self.store),
            traces: self.traces.clone(),
            pages: http::RenderPool::default(),
        })
    }

    /// Starts to serve the usage listener.
    fn serve_usage(
        &self,
        settings: &ServeSettings,
        access: UsageAccess,
        listener: Listener,
        admission: Admission,
    ) -> ServerHandle {
        let UsageAccess { tls, tenants, .. } = access;
        let options = UsageOptions {
            tenants,
            requests_per_second: settings.usage.usage_max_requests_per_second,
            request_bytes: settings.request_bounds.request_max_bytes.get(),
        };
        let (snapshot, store) = (Arc::clone(&self.snapshot), Arc::clone(&self.store));
        let router = usage::router(options, snapshot, store, Arc::clone(&self.usage_responses));
        let server = http::Server::new(router, usage::BODY_BYTES_MAX, admission.clone());
        ServerHandle::http(listener, server, tls, admission)
    }

    /// The admin service.
    fn admin(
        &self,
        settings: &ServeSettings,
        limits: &Limits,
        started_at: Instant,
        is_serving: &Arc<AtomicBool>,
    ) -> Admin {
        let status = StatusSources {
            started_at,
            serving: Arc::clone(is_serving),
            rejected: limits.rejected(),
            in_flight: self.in_flight.clone(),
            counters_max: settings.store.memory_max_counters.get(),
        };
        let prefix = settings.store.key_prefix.clone();
        let names =
            CounterNames::new(prefix, Arc::clone(&self.key_hasher), settings.top.top_labels);
        Admin::new(
            Arc::clone(&self.snapshot),
            Arc::clone(&self.store),
            Arc::clone(&self.metrics),
            names,
            status,
            self.log.is_some().then(|| Arc::clone(&self.key_hasher)),
        )
    }

    fn register_metrics(&self, settings: &ServeSettings) {
        let Self { snapshot, store, metrics, key_hasher, in_flight, log, traces, usage_responses } =
            self;
        metrics.register_own();
        Arc::clone(usage_responses).register(metrics);
        limits::register_metrics(metrics, snapshot);
        let counters_max = settings.store.memory_max_counters.get();
        telemetry::register_store(metrics, store, counters_max, key_hasher);
        let in_flight = in_flight.clone();
        metrics.register_gauge(catalogue::REQUESTS_IN_FLIGHT, move || in_flight.current());
        let max = settings.max_in_flight.get();
        metrics.register_gauge(catalogue::REQUESTS_IN_FLIGHT_MAX, move || max);
        let log = log.clone();
        let dropped = move || log.as_ref().map_or(0, |log| log.dropped());
        metrics.register_counter(catalogue::DECISION_LOG_DROPPED, dropped);
        metrics.register_counter(catalogue::LOG_LINES_DROPPED, telemetry::log_lines_dropped);
        metrics.register_counter(catalogue::LOG_LINES_SUPPRESSED, telemetry::log_lines_suppressed);
        let count = |read: fn(&Traces) -> u64| {
            let traces = traces.clone();
            move || traces.as_deref().map_or(0, read)
        };
        metrics.register_counter(catalogue::TRACED_REQUESTS, count(Traces::traced));
        metrics.register_counter(catalogue::TRACED_REQUESTS_SENT, count(Traces::sent));
    }
}

fn new_metrics(settings: &ServeSettings) -> Result<Metrics, MetricsError> {
    let waiting = &settings.grpc.bounds;
    let bounds = RefusalBoundValues {
        request_bytes: settings.request_bounds.request_max_bytes.get(),
        message_bytes: settings.grpc.grpc_max_message_bytes.get(),
        large_requests: grpc::LARGE_REQUESTS_MAX,
        waiting_bytes: waiting.grpc_max_waiting_bytes.get(),
        waiting_bytes_per_connection: waiting.grpc_max_waiting_bytes_per_connection.get(),
        body_bytes: http::ALL_BODIES_BYTES_MAX,
    };
    Metrics::new(&settings.metrics, &settings.otlp, settings.top.top_keys, bounds)
}

/// The store that the settings choose. `connection`: the settings of connections to Redis.
fn open_store(
    settings: &ServeSettings,
    connection: Option<RedisConnectionSettings>,
    connections_max: usize,
    clocks: Clocks,
) -> Result<Stack, FileError> {
    let local = MemorySettings { counters_max: settings.store.memory_max_counters.get() };
    let (StoreChoice::Redis(url), Some(connection)) = (&settings.store.store, connection) else {
        return Ok(Stack::memory(local, clocks));
    };
    let redis = RedisSettings {
        deployment: url.deployment.clone(),
        connection,
        connections: settings.redis.redis_connections,
        connections_max,
        key_prefix: settings.store.key_prefix.clone(),
    };
    let stack = RedisStackSettings {
        redis,
        deny_cache_entries: settings.store.deny_cache_entries,
        local,
        fallback_counters: settings.failure.fallback_counters,
        replicas: settings.failure.replicas,
    };
    Stack::redis(stack, clocks)
}

/// Waits a short time for the store, because requests before the first connection get `on_failure`.
async fn wait_for_store(settings: &ServeSettings, store: &Stack) {
    store.wait_until_available(settings.redis.redis_connect_timeout.min(STORE_WAIT_MAX)).await;
    if store.is_degraded() && settings.failure.replicas.is_none() {
        tracing::warn!(
            "Redis does not answer yet: until it does, on_failure: local divides limits by one replica; set \
             --replicas to divide them by another number"
        );
    }
}

fn register_tls_failures(metrics: &Metrics, listeners: Vec<Tls>) {
    let failed = move || listeners.iter().map(Tls::handshakes_failed).sum();
    metrics.register_counter(catalogue::TLS_HANDSHAKES_FAILED, failed);
}

/// Runs a task until a token is cancelled.
fn run_until(cancelled: &CancellationToken, task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(cancelled.clone().run_until_cancelled_owned(task));
}

async fn sweep(store: Arc<Stack>) {
    let mut ticks = tokio::time::interval(SWEEP_INTERVAL);
    loop {
        ticks.tick().await;
        store.sweep(SWEEP_STEPS);
        telemetry::report_suppressed_log_lines(false);
    }
}
