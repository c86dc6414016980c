//! Traces: a span for each request that is traced, with one for matching and one for the store, sent to an
//! OpenTelemetry collector. Nothing in them is text of the request.
//!
//! By hand, because a request that is not traced must cost next to nothing: a library of spans for whatever runs would
//! make one for each.

mod exporter;

use std::{
    fmt::Display,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, SystemTime},
};

use http::{HeaderMap, Method};
use opentelemetry::{
    Context, KeyValue, Value,
    time::now,
    trace::{
        Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, TraceId, Tracer as _,
        TracerProvider as _,
    },
};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, Span,
};
use sluicegate_core::{self as core, Code, Decision, store::Source};
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use sluicegate_store::redis::{Address, Deployment};
use tonic::Code as GrpcCode;

use self::exporter::{ExportCounts, LoggingExporter};
use super::{
    bounds::Bound,
    otlp::{self, OtlpError},
    trace_context::RemoteParent,
};
use crate::{decision::DecisionRecord, settings::OtlpSettings};

/// The most spans that wait to be sent. What is beyond is lost, and shows in the counts.
const SPANS_WAITING_MAX: usize = 2048;

/// How long sending a batch may take, all attempts together.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`
const RPC: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The route of rate limit requests over HTTP.
const JSON: &str = "/json";

/// Methods that a span may contain: a request can have any word as method.
const METHODS: [Method; 7] = [
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::HEAD,
    Method::OPTIONS,
    Method::PATCH,
];

/// Notes which trace requests belong to, and traces those that are to be traced.
pub(crate) struct Traces {
    spans: Option<Arc<Spans>>,
}

/// Makes spans and sends them.
struct Spans {
    tracer: SdkTracer,
    provider: SdkTracerProvider,
    /// Whether some of the requests that come without a trace are traced.
    begins: bool,
    store: StoreLabel,
    sent: Arc<ExportCounts>,
}

/// What the store's spans say of it.
enum StoreLabel {
    /// It is in this process.
    Memory,
    /// It is Redis, here if there is but one server.
    Redis(Option<Address>),
}

/// The trace of one request. Empty unless the request is sampled.
#[derive(Default)]
pub(crate) struct RequestTrace {
    /// Its id, if the request belongs to one, traced or not.
    pub(crate) trace: Option<TraceId>,
    span: Option<Box<RequestSpan>>,
}

/// The span of one request.
pub(crate) struct RequestSpan {
    span: Span,
    spans: Arc<Spans>,
    /// Start of the current step.
    step: SystemTime,
    answered: bool,
}

impl Traces {
    /// Starts tracing as the settings say; `None` if neither spans nor trace IDs are needed. `redis`: the store, `None`
    /// if that is memory. `ids`: whether the log names trace IDs. Needs a runtime.
    ///
    /// # Errors
    /// The collector cannot be sent to.
    pub(crate) fn start(
        settings: &OtlpSettings,
        redis: Option<&Deployment>,
        ids: bool,
    ) -> Result<Option<Arc<Self>>, OtlpError> {
        let spans = Spans::start(settings, redis)?.map(Arc::new);
        Ok((spans.is_some() || ids).then(|| Arc::new(Self { spans })))
    }

    /// A rate limit request that came over gRPC with these headers.
    pub(crate) fn of_grpc(&self, headers: &HeaderMap) -> RequestTrace {
        self.begin(headers, || {
            let (service, method) = (SERVICE_NAME, "ShouldRateLimit");
            let builder = SpanBuilder::from_name(RPC);
            builder.with_attributes([
                KeyValue::new("rpc.system", "grpc"),
                KeyValue::new("rpc.service", service),
                KeyValue::new("rpc.method", method),
            ])
        })
    }

    /// A rate limit request that came over HTTP with these headers.
    pub(crate) fn of_http(&self, method: &Method, headers: &HeaderMap) -> RequestTrace {
        self.begin(headers, || {
            let method = METHODS.iter().find(|known| *known == method).map(Method::as_str);
            let name = format!("{} {JSON}", method.unwrap_or("HTTP"));
            SpanBuilder::from_name(name).with_attributes([
                KeyValue::new("http.request.method", method.unwrap_or("_OTHER").to_owned()),
                KeyValue::new("http.route", JSON),
            ])
        })
    }

    fn begin(&self, headers: &HeaderMap, builder: impl FnOnce() -> SpanBuilder) -> RequestTrace {
        let parent = RemoteParent::of(headers);
        let of_caller = parent.as_ref().map(RemoteParent::trace);
        let span = self.spans.as_ref().and_then(|spans| spans.begin(parent, builder));
        let own = span.as_ref().map(|it| it.span.span_context().trace_id());
        RequestTrace { trace: own.or(of_caller), span }
    }

    /// Requests that were traced.
    pub(crate) fn ended(&self) -> u64 {
        self.spans.as_ref().map_or(0, |spans| spans.sent.ended.get())
    }

    /// Requests of which the collector took the trace.
    pub(crate) fn sent(&self) -> u64 {
        self.spans.as_ref().map_or(0, |spans| spans.sent.sent.get())
    }

    /// Sends what waits, because the process ends.
    pub(crate) async fn finish(self: Arc<Self>, within: Duration) {
        let Some(spans) = self.spans.clone() else { return };
        let finishing =
            tokio::task::spawn_blocking(move || spans.provider.shutdown_with_timeout(within));
        if let Ok(Err(error)) = finishing.await {
            tracing::warn!(%error, "the last traces were not sent to the collector");
        }
    }
}

impl Spans {
    fn start(
        settings: &OtlpSettings,
        redis: Option<&Deployment>,
    ) -> Result<Option<Self>, OtlpError> {
        let tls = otlp::tls(settings)?;
        let Some(endpoint) = &settings.otlp_endpoint else { return Ok(None) };
        let exporter = SpanExporter::builder().with_tonic();
        let exporter =
            exporter.with_endpoint(endpoint.uri().to_string()).with_timeout(EXPORT_TIMEOUT);
        let exporter = match tls {
            Some(tls) => exporter.with_tls_config(tls),
            None => exporter,
        };
        let sent = Arc::<ExportCounts>::default();
        let exporter = LoggingExporter {
            exporter: exporter.build()?,
            fails: AtomicBool::new(false),
            sent: Arc::clone(&sent),
        };
        let config = BatchConfigBuilder::default().with_max_queue_size(SPANS_WAITING_MAX).build();
        let ratio = settings.trace_ratio.get();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(
                BatchSpanProcessor::builder(exporter).with_batch_config(config).build(),
            )
            .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(ratio))))
            .with_resource(otlp::resource())
            .build();
        let tracer = provider.tracer("sluicegate");
        let store = StoreLabel::new(redis);
        Ok(Some(Self { tracer, provider, begins: ratio > 0.0, store, sent }))
    }

    /// The span of a request, if it is traced.
    fn begin(
        self: &Arc<Self>,
        parent: Option<RemoteParent>,
        builder: impl FnOnce() -> SpanBuilder,
    ) -> Option<Box<RequestSpan>> {
        let span = match parent {
            Some(RemoteParent::Sampled(parent)) => {
                let context = Context::new().with_remote_span_context(parent);
                let builder = builder().with_kind(SpanKind::Server);
                self.tracer.build_with_context(builder, &context)
            }
            None if self.begins => self.first(builder)?,
            _ => return None,
        };
        Some(Box::new(RequestSpan { span, spans: Arc::clone(self), step: now(), answered: false }))
    }

    /// The first span of a trace, if it is one of those that are traced.
    fn first(&self, builder: impl FnOnce() -> SpanBuilder) -> Option<Span> {
        let empty = SpanBuilder::from_name(RPC).with_kind(SpanKind::Server);
        let mut span = self.tracer.build_with_context(empty, &Context::new());
        span.is_recording().then(|| {
            // Only now, because most are not.
            let SpanBuilder { name, attributes, .. } = builder();
            span.update_name(name);
            span.set_attributes(attributes.into_iter().flatten());
            span
        })
    }
}

impl StoreLabel {
    fn new(redis: Option<&Deployment>) -> Self {
        let Some(deployment) = redis else { return Self::Memory };
        Self::Redis(match deployment {
            Deployment::Single(address) => Some(address.clone()),
            Deployment::Cluster(_) | Deployment::Sentinel { .. } => None,
        })
    }
}

impl RequestTrace {
    /// Notes something of the request, if it is traced.
    pub(crate) fn note(&mut self, what: impl FnOnce(&mut RequestSpan)) {
        if let Some(span) = &mut self.span {
            what(span);
        }
    }

    /// The call was answered with this status. The span ends.
    pub(crate) fn end_grpc(&mut self, code: impl FnOnce() -> GrpcCode) {
        if let Some(span) = self.span.take() {
            let code = i32::from(code());
            span.end("rpc.grpc.status_code", code.into(), code != 0);
        }
    }

    /// The call was answered with this status. The span ends.
    pub(crate) fn end_http(&mut self, status: u16) {
        if let Some(span) = self.span.take() {
            span.end("http.response.status_code", status.into(), status >= 500);
        }
    }
}

impl RequestSpan {
    fn set(&mut self, name: &'static str, value: impl Into<Value>) {
        self.span.set_attribute(KeyValue::new(name, value));
    }

    fn end(mut self: Box<Self>, name: &'static str, status: i64, failed: bool) {
        self.set(name, status);
        self.answered = true;
        if failed {
            self.span.set_status(Status::error(""));
        }
    }

    /// There is no answer, for this reason.
    pub(crate) fn fails(&mut self, why: &dyn Display, is_deferred: bool) {
        if is_deferred {
            self.set("sluicegate.deferred", true);
        }
        self.span.set_status(Status::error(why.to_string()));
    }

    /// So many descriptors were refused without being looked at, or would have been: because of a bound of the request, or
    /// because too many requests are in progress.
    pub(crate) fn undecided(&mut self, bound: Option<Bound>, descriptors: usize, shadowed: bool) {
        self.descriptors(descriptors);
        match bound {
            Some(bound) => self.set("sluicegate.bound", bound.name()),
            None => self.set("sluicegate.shed", true),
        }
        self.code(shadowed, shadowed);
    }

    fn descriptors(&mut self, descriptors: usize) {
        self.set("sluicegate.descriptors", i64::try_from(descriptors).unwrap_or(i64::MAX));
    }

    fn code(&mut self, passes: bool, shadowed: bool) {
        self.set("sluicegate.code", if passes { "OK" } else { "OVER_LIMIT" });
        if shadowed {
            self.set("sluicegate.shadowed", true);
        }
    }

    /// The request is matched from now on.
    pub(crate) fn matching(&mut self) {
        self.step = now();
    }

    /// The request is matched; the store is asked from now on.
    pub(crate) fn asking(&mut self) {
        let asked = now();
        self.child(SpanBuilder::from_name("match"), asked, Status::Unset);
        self.step = asked;
    }

    /// The store or its layers have decided these checks; `None` if a rule defers to the caller.
    pub(crate) fn decided(&mut self, checks: usize, decisions: Option<&[Decision]>) {
        if checks == 0 {
            return;
        }
        let sources = decisions.map(|decisions| decisions.iter().map(|it| it.source));
        let unanswered = sources
            .clone()
            .is_none_or(|mut it| it.any(|it| matches!(it, Source::Local | Source::Policy)));
        let asked = unanswered || sources.is_none_or(|mut it| it.any(|it| it == Source::Store));
        if unanswered {
            self.set("sluicegate.degraded", true);
        }
        let checks = i64::try_from(checks).unwrap_or(i64::MAX);
        let mut attributes = vec![KeyValue::new("sluicegate.checks", checks)];
        let kind = match &self.spans.store {
            StoreLabel::Redis(server) if asked => {
                attributes.push(KeyValue::new("db.system.name", "redis"));
                if let Some(Address { host, port }) = server {
                    attributes.push(KeyValue::new("server.address", host.clone()));
                    attributes.push(KeyValue::new("server.port", i64::from(*port)));
                }
                SpanKind::Client
            }
            StoreLabel::Redis(_) | StoreLabel::Memory => SpanKind::Internal,
        };
        let status = if unanswered {
            Status::error("the store did not answer every check")
        } else {
            Status::Unset
        };
        let decide = SpanBuilder::from_name("decide").with_kind(kind).with_attributes(attributes);
        self.child(decide, now(), status);
    }

    /// A step that began when the last had ended.
    fn child(&self, builder: SpanBuilder, end: SystemTime, status: Status) {
        let parent = Context::new().with_remote_span_context(self.span.span_context().clone());
        let builder = builder.with_start_time(self.step);
        let mut child = self.spans.tracer.build_with_context(builder, &parent);
        child.set_status(status);
        child.end_with_timestamp(end);
    }

    /// What the request is answered.
    pub(crate) fn answered(&mut self, decided: &DecisionRecord<'_, '_>) {
        let DecisionRecord { plan, verdict, .. } = decided;
        // The name of a domain that is not configured is text of the request.
        if let Some(domain) = plan.domain {
            self.set("sluicegate.domain", domain.name.to_string());
        }
        self.descriptors(verdict.statuses.len());
        let refuses = |it: &&core::Status<'_>| it.shadowed || it.code == Code::OverLimit;
        let speaks = verdict.statuses.iter().find(refuses);
        if let Some(rule) = speaks.and_then(|it| it.rule) {
            self.set("sluicegate.rule", rule.path.to_string());
        }
        let limited = || verdict.statuses.iter().find(|it| it.source.is_some());
        if let Some(source) = speaks.or_else(limited).and_then(|it| it.source) {
            self.set("sluicegate.source", source.name());
        }
        self.code(verdict.code == Code::Ok, verdict.shadowed);
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        if !self.answered {
            // The caller has gone, or waited no longer.
            self.span.set_status(Status::error("not answered"));
        }
        self.spans.sent.ended.add(1);
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;

    use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

    use super::*;

    #[global_allocator]
    static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

    fn traces(ratio: &str) -> Arc<Traces> {
        let settings = OtlpSettings {
            otlp_endpoint: Some("http://127.0.0.1:1".parse().unwrap()),
            otlp_tls_ca: None,
            otlp_metrics_interval: Duration::ZERO,
            trace_ratio: ratio.parse().unwrap(),
        };
        Traces::start(&settings, None, false).unwrap().unwrap()
    }

    fn headers(traceparent: Option<&str>) -> HeaderMap {
        traceparent
            .map(|it| ("traceparent".parse().unwrap(), it.parse().unwrap()))
            .into_iter()
            .collect()
    }

    /// Whether a request with these headers is traced, and whether finding that out allocates.
    fn traced(traces: &Traces, headers: &HeaderMap) -> (bool, bool) {
        let mut traced = false;
        // What runs beside allocates now and then.
        let allocates = (0..100).all(|_| {
            let region = Region::new(ALLOCATOR);
            let of_grpc = traces.of_grpc(headers);
            traced = of_grpc.span.is_some();
            region.change().allocations > 0
        });
        (traced, allocates)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_request_that_is_not_traced_allocates_nothing() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0";
        let [plain, unsampled, sampled] =
            [None, Some(format!("{parent}0")), Some(format!("{parent}1"))]
                .map(|it| headers(it.as_deref()));
        let (none, few) = (traces("0"), traces("0.000000001"));
        for traces in [&none, &few] {
            assert_eq!(traced(traces, &plain), (false, false));
            assert_eq!(traced(traces, &unsampled), (false, false));
            assert_eq!(traced(traces, &sampled), (true, true));
        }
        assert_eq!(traced(&traces("1"), &plain), (true, true));
        assert_eq!(traced(&traces("1"), &unsampled), (false, false));
    }
}
