//! Traces: a span for each sampled request, with child spans for matching and for the store, exported to an
//! OpenTelemetry collector. Spans contain no text of requests.
//!
//! They are created with the OpenTelemetry SDK for sampled requests only, because other requests must have negligible
//! cost. The spans of `tracing` would be created before the sampling decision.

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
use sluicegate_core::{self as core, Code, Decision, store::DecisionSource};
use sluicegate_proto::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use sluicegate_store::redis::{Address, Deployment};
use tonic::Code as GrpcCode;

use self::exporter::{ExportCounts, LoggingExporter};
use super::{
    bounds::RefusalReason,
    otlp::{self, OtlpError},
    trace_context::RemoteParent,
};
use crate::{decision::DecisionRecord, settings::OtlpSettings};

/// The most spans in the queue of the export. Further spans are dropped, which the metrics show.
const SPANS_WAITING_MAX: usize = 2048;

/// The timeout for the export of a batch, including retries.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The name of the spans of gRPC requests.
const RPC: &str = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The route of rate limit requests over HTTP.
const JSON: &str = "/json";

/// The methods that spans name. Others are text of the request.
const METHODS: [Method; 7] = [
    Method::GET,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::HEAD,
    Method::OPTIONS,
    Method::PATCH,
];

/// Begins the traces of requests.
pub(crate) struct Traces {
    /// `None` without a collector. Then only trace IDs are read from headers, for the decision log.
    spans: Option<Arc<SpanExport>>,
}

/// Creates and exports spans.
struct SpanExport {
    tracer: SdkTracer,
    provider: SdkTracerProvider,
    /// Whether requests without a trace may start one (`--trace-ratio` above 0).
    starts_traces: bool,
    store: StoreAttributes,
    counts: Arc<ExportCounts>,
}

/// The store, for the attributes of spans.
enum StoreAttributes {
    /// This process's memory.
    Memory,
    /// Redis, with the address if it is a single server.
    Redis(Option<Address>),
}

/// The trace of one request. Empty for requests without a trace.
#[derive(Default)]
pub(crate) struct RequestTrace {
    /// The trace ID, also if the request is not sampled.
    pub(crate) trace_id: Option<TraceId>,
    /// The span, if the request is sampled.
    span: Option<Box<RequestSpan>>,
}

/// The span of one request.
pub(crate) struct RequestSpan {
    span: Span,
    spans: Arc<SpanExport>,
    /// Start of the current step: match, or decide.
    step_began: SystemTime,
    has_ended: bool,
}

impl Traces {
    /// Starts tracing; `None` if neither spans nor trace IDs are needed. `redis` is `None` if the store is memory.
    /// `needs_ids`: whether the decision log is enabled, which contains trace IDs. Requires a runtime.
    ///
    /// # Errors
    /// The export cannot be set up.
    pub(crate) fn start(
        settings: &OtlpSettings,
        redis: Option<&Deployment>,
        needs_ids: bool,
    ) -> Result<Option<Arc<Self>>, OtlpError> {
        let spans = SpanExport::start(settings, redis)?.map(Arc::new);
        Ok((spans.is_some() || needs_ids).then(|| Arc::new(Self { spans })))
    }

    /// Begins the trace of a gRPC request with these headers.
    pub(crate) fn begin_grpc(&self, headers: &HeaderMap) -> RequestTrace {
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

    /// Begins the trace of an HTTP request with this method and these headers.
    pub(crate) fn begin_http(&self, method: &Method, headers: &HeaderMap) -> RequestTrace {
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
        let parent = RemoteParent::from_headers(headers);
        let parent_id = parent.as_ref().map(RemoteParent::trace_id);
        let span = self.spans.as_ref().and_then(|spans| spans.begin(parent, builder));
        let span_id = span.as_ref().map(|it| it.span.span_context().trace_id());
        RequestTrace { trace_id: span_id.or(parent_id), span }
    }

    /// The number of traced requests.
    pub(crate) fn traced(&self) -> u64 {
        self.spans.as_ref().map_or(0, |spans| spans.counts.traced.get())
    }

    /// The number of requests whose trace the collector accepted.
    pub(crate) fn sent(&self) -> u64 {
        self.spans.as_ref().map_or(0, |spans| spans.counts.sent.get())
    }

    /// Exports the queued spans, and shuts the export down.
    pub(crate) async fn shut_down(self: Arc<Self>, timeout: Duration) {
        let Some(spans) = self.spans.clone() else { return };
        let shutdown =
            tokio::task::spawn_blocking(move || spans.provider.shutdown_with_timeout(timeout));
        if let Ok(Err(error)) = shutdown.await {
            tracing::warn!(%error, "the last traces were not sent to the collector");
        }
    }
}

impl SpanExport {
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
        let counts = Arc::<ExportCounts>::default();
        let exporter = LoggingExporter {
            exporter: exporter.build()?,
            is_failing: AtomicBool::new(false),
            counts: Arc::clone(&counts),
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
        let store = StoreAttributes::new(redis);
        Ok(Some(Self { tracer, provider, starts_traces: ratio > 0.0, store, counts }))
    }

    /// The span of a request, if it is sampled.
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
            None if self.starts_traces => self.start_trace(builder)?,
            _ => return None,
        };
        Some(Box::new(RequestSpan {
            span,
            spans: Arc::clone(self),
            step_began: now(),
            has_ended: false,
        }))
    }

    /// The first span of a new trace, if it is sampled.
    fn start_trace(&self, builder: impl FnOnce() -> SpanBuilder) -> Option<Span> {
        let empty = SpanBuilder::from_name(RPC).with_kind(SpanKind::Server);
        let mut span = self.tracer.build_with_context(empty, &Context::new());
        span.is_recording().then(|| {
            // Name and attributes are built after sampling, because most spans are not sampled.
            let SpanBuilder { name, attributes, .. } = builder();
            span.update_name(name);
            span.set_attributes(attributes.into_iter().flatten());
            span
        })
    }
}

impl StoreAttributes {
    fn new(redis: Option<&Deployment>) -> Self {
        let Some(deployment) = redis else { return Self::Memory };
        Self::Redis(match deployment {
            Deployment::Single(address) => Some(address.clone()),
            Deployment::Cluster(_) | Deployment::Sentinel { .. } => None,
        })
    }
}

impl RequestTrace {
    /// Calls `update` with the span, if the request is sampled.
    pub(crate) fn with_span(&mut self, update: impl FnOnce(&mut RequestSpan)) {
        if let Some(span) = &mut self.span {
            update(span);
        }
    }

    /// Ends the span of a gRPC request with the status of its response.
    pub(crate) fn end_grpc(&mut self, code: impl FnOnce() -> GrpcCode) {
        if let Some(span) = self.span.take() {
            let code = i32::from(code());
            span.end("rpc.grpc.status_code", code.into(), code != 0);
        }
    }

    /// Ends the span of an HTTP request with the status of its response.
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
        self.has_ended = true;
        if failed {
            self.span.set_status(Status::error(""));
        }
    }

    /// Sets the error of a request without an answer.
    pub(crate) fn set_error(&mut self, error: &dyn Display, is_deferred: bool) {
        if is_deferred {
            self.set("sluicegate.deferred", true);
        }
        self.span.set_status(Status::error(error.to_string()));
    }

    /// Sets the result of a request that is refused without a decision.
    pub(crate) fn set_refused_undecided(
        &mut self,
        reason: RefusalReason,
        descriptors: usize,
        shadowed: bool,
    ) {
        self.set_descriptors(descriptors);
        match reason {
            RefusalReason::OverBound(bound) => self.set("sluicegate.bound", bound.name()),
            RefusalReason::Shed => self.set("sluicegate.shed", true),
        }
        self.set_code(shadowed, shadowed);
    }

    fn set_descriptors(&mut self, descriptors: usize) {
        self.set("sluicegate.descriptors", i64::try_from(descriptors).unwrap_or(i64::MAX));
    }

    fn set_code(&mut self, allowed: bool, shadowed: bool) {
        self.set("sluicegate.code", if allowed { "OK" } else { "OVER_LIMIT" });
        if shadowed {
            self.set("sluicegate.shadowed", true);
        }
    }

    /// Begins the step in which the request is matched.
    pub(crate) fn begin_match(&mut self) {
        self.step_began = now();
    }

    /// Ends the match step with a child span, and begins the step in which the store decides.
    pub(crate) fn end_match(&mut self) {
        let end = now();
        self.add_child(SpanBuilder::from_name("match"), end, Status::Unset);
        self.step_began = end;
    }

    /// Ends the step in which the store decides, and adds its child span. `decisions` is `None` if a rule defers to the
    /// caller.
    pub(crate) fn end_decide(&mut self, checks: usize, decisions: Option<&[Decision]>) {
        if checks == 0 {
            return;
        }
        let sources = decisions.map(|decisions| decisions.iter().map(|it| it.source));
        let unanswered = sources.clone().is_none_or(|mut it| {
            it.any(|it| matches!(it, DecisionSource::LocalFallback | DecisionSource::FailurePolicy))
        });
        let is_call =
            unanswered || sources.is_none_or(|mut it| it.any(|it| it == DecisionSource::Store));
        if unanswered {
            self.set("sluicegate.degraded", true);
        }
        let checks = i64::try_from(checks).unwrap_or(i64::MAX);
        let mut attributes = vec![KeyValue::new("sluicegate.checks", checks)];
        let kind = match &self.spans.store {
            StoreAttributes::Redis(server) if is_call => {
                attributes.push(KeyValue::new("db.system.name", "redis"));
                if let Some(Address { host, port }) = server {
                    attributes.push(KeyValue::new("server.address", host.clone()));
                    attributes.push(KeyValue::new("server.port", i64::from(*port)));
                }
                SpanKind::Client
            }
            StoreAttributes::Redis(_) | StoreAttributes::Memory => SpanKind::Internal,
        };
        let status = if unanswered {
            Status::error("the store did not answer every check")
        } else {
            Status::Unset
        };
        let decide = SpanBuilder::from_name("decide").with_kind(kind).with_attributes(attributes);
        self.add_child(decide, now(), status);
    }

    /// Adds a child span for the current step.
    fn add_child(&self, builder: SpanBuilder, end: SystemTime, status: Status) {
        let parent = Context::new().with_remote_span_context(self.span.span_context().clone());
        let builder = builder.with_start_time(self.step_began);
        let mut child = self.spans.tracer.build_with_context(builder, &parent);
        child.set_status(status);
        child.end_with_timestamp(end);
    }

    /// Sets the result of a decided request.
    pub(crate) fn set_verdict(&mut self, record: &DecisionRecord<'_, '_>) {
        let DecisionRecord { plan, verdict, .. } = record;
        // Only names of configured domains. Other names are text of the request.
        if let Some(domain) = plan.domain {
            self.set("sluicegate.domain", domain.name.to_string());
        }
        self.set_descriptors(verdict.statuses.len());
        let refuses = |it: &&core::DescriptorStatus<'_>| it.shadowed || it.code == Code::OverLimit;
        let refusing = verdict.statuses.iter().find(refuses);
        if let Some(rule) = refusing.and_then(|it| it.rule) {
            self.set("sluicegate.rule", rule.path.to_string());
        }
        let limited = || verdict.statuses.iter().find(|it| it.source.is_some());
        if let Some(source) = refusing.or_else(limited).and_then(|it| it.source) {
            self.set("sluicegate.source", source.name());
        }
        self.set_code(verdict.code == Code::Ok, verdict.shadowed);
    }
}

impl Drop for RequestSpan {
    fn drop(&mut self) {
        if !self.has_ended {
            // The caller has disconnected.
            self.span.set_status(Status::error("not answered"));
        }
        self.spans.counts.traced.add(1);
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

    /// Whether a request with these headers is sampled, and whether beginning its trace allocates.
    fn begin(traces: &Traces, headers: &HeaderMap) -> (bool, bool) {
        let mut is_sampled = false;
        // Repeated, because other threads allocate too.
        let allocates = (0..100).all(|_| {
            let region = Region::new(ALLOCATOR);
            let trace = traces.begin_grpc(headers);
            is_sampled = trace.span.is_some();
            region.change().allocations > 0
        });
        (is_sampled, allocates)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_request_that_is_not_sampled_allocates_nothing() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0";
        let [plain, unsampled, sampled] =
            [None, Some(format!("{parent}0")), Some(format!("{parent}1"))]
                .map(|it| headers(it.as_deref()));
        let (none, few) = (traces("0"), traces("0.000000001"));
        for traces in [&none, &few] {
            assert_eq!(begin(traces, &plain), (false, false));
            assert_eq!(begin(traces, &unsampled), (false, false));
            assert_eq!(begin(traces, &sampled), (true, true));
        }
        assert_eq!(begin(&traces("1"), &plain), (true, true));
        assert_eq!(begin(&traces("1"), &unsampled), (false, false));
    }
}
