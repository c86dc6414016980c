//! Calls, from the HTTP/2 stream to the response.
//!
//! Nearly all calls are rate limit requests of one message without compression, which are read, decided and answered
//! here. Other rate limit calls are answered with an error status. Calls to health and reflection go to tonic's
//! services.

use std::{
    convert::Infallible,
    future::poll_fn,
    num::NonZeroUsize,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, header::CONTENT_TYPE, request::Parts};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, rt::Executor as _};
use sluicegate_proto::envoy::service::ratelimit::v3::RateLimitResponse;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Code, Status, TimeoutExpired, metadata::GRPC_CONTENT_TYPE, service::Routes};
use tower::Service as _;

use super::{
    body::{GrpcResponseBody, encode_framed},
    in_progress::CallExecutor,
};
use crate::{
    grpc::{
        bound::{GrpcBound, ReachedBounds},
        byte_budgets::{
            CallBytesGuard, ConnectionByteBudget, ResponseBytesGuard, SharedByteBudget,
        },
        in_flight::InFlight,
        message::{self, IDENTITY, MessageReader, ReadError, TimedRequestBody},
        rls::{EncodedRequest, Rls},
        status::status,
        timeout,
    },
    listen,
    settings::GrpcSettings,
    telemetry::{RefusalBound, RequestTrace, Traces},
};

const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
const REFLECTION: &str = "/grpc.reflection.";

static GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// The deadline of the caller.
#[derive(Clone, Copy)]
struct CallerDeadline {
    timeout: Duration,
    arrived: Instant,
}

impl CallerDeadline {
    /// The remaining time for the decision.
    fn decision_timeout(self) -> Duration {
        timeout::for_decision(self.timeout).saturating_sub(self.arrived.elapsed())
    }
}

/// Answers the calls of all connections.
pub(in crate::grpc) struct CallHandler {
    rls: Arc<Rls>,
    in_flight: InFlight,
    /// tonic's services: health and reflection.
    services: Routes,
    traces: Option<Arc<Traces>>,
    bounds: CallBounds,
}

/// Bounds on the calls of all connections.
struct CallBounds {
    message_bytes_max: usize,
    message_timeout: Duration,
    /// The most requests in flight of one connection.
    in_flight_per_connection: usize,
    message_budget: Arc<SharedByteBudget>,
    /// Separate from `message_budget`, so that slow messages leave room for responses.
    response_budget: Arc<SharedByteBudget>,
    /// The permits of all streaming calls.
    streaming: Arc<Semaphore>,
    /// The number of these permits.
    streaming_max: usize,
    streaming_per_connection: usize,
    met: ReachedBounds,
}

impl CallHandler {
    pub(in crate::grpc) fn new(
        rls: Arc<Rls>,
        in_flight: InFlight,
        services: Routes,
        settings: &GrpcSettings,
        traces: Option<Arc<Traces>>,
    ) -> Self {
        let bounds = &settings.bounds;
        let streaming_max = permits(bounds.grpc_max_streaming_calls);
        let bytes = || {
            Arc::new(SharedByteBudget::new(
                bounds.grpc_max_waiting_bytes.get(),
                bounds.grpc_max_waiting_bytes_per_connection.get(),
            ))
        };
        let bounds = CallBounds {
            message_bytes_max: settings.grpc_max_message_bytes.get(),
            message_timeout: bounds.grpc_message_timeout,
            in_flight_per_connection: in_flight.scaled_max(bounds.grpc_max_in_flight_share),
            message_budget: bytes(),
            response_budget: bytes(),
            streaming: Arc::new(Semaphore::new(streaming_max)),
            streaming_max,
            streaming_per_connection: permits(bounds.grpc_max_streaming_calls_per_connection),
            met: ReachedBounds::default(),
        };
        Self { rls, in_flight, services, traces, bounds }
    }

    pub(in crate::grpc) const fn reached_bounds(&self) -> &ReachedBounds {
        &self.bounds.met
    }

    /// Calls that wait for their messages.
    pub(in crate::grpc) fn waiting_calls(&self) -> usize {
        self.bounds.message_budget.waiting_calls()
    }

    /// Bytes held by such calls and by responses that callers have not read.
    pub(in crate::grpc) fn waiting_bytes(&self) -> usize {
        self.bounds.message_budget.held() + self.bounds.response_budget.held()
    }

    /// Streaming calls in progress.
    pub(in crate::grpc) fn streaming_calls(&self) -> usize {
        self.bounds.streaming_max - self.bounds.streaming.available_permits()
    }
}

/// Answers the calls of one connection.
pub(super) struct ConnectionCallHandler {
    all: Arc<CallHandler>,
    in_flight: InFlight,
    message_budget: ConnectionByteBudget,
    response_budget: Arc<ConnectionByteBudget>,
    /// The permits of this connection's streaming calls.
    streaming: Arc<Semaphore>,
    handle: listen::ConnectionHandle,
    /// Runs tasks that continue after the response.
    executor: CallExecutor,
}

impl ConnectionCallHandler {
    pub(super) fn new(
        all: Arc<CallHandler>,
        handle: listen::ConnectionHandle,
        executor: CallExecutor,
    ) -> Self {
        let bounds = &all.bounds;
        Self {
            in_flight: InFlight::new(bounds.in_flight_per_connection),
            message_budget: ConnectionByteBudget::new(Arc::clone(&bounds.message_budget)),
            response_budget: Arc::new(ConnectionByteBudget::new(Arc::clone(
                &bounds.response_budget,
            ))),
            streaming: Arc::new(Semaphore::new(bounds.streaming_per_connection)),
            handle,
            all,
            executor,
        }
    }

    /// Counts that a bound was reached.
    pub(super) fn count(&self, bound: GrpcBound) {
        self.all.bounds.met.add(bound);
    }

    /// Whether a request is being decided.
    pub(super) fn is_deciding(&self) -> bool {
        self.in_flight.current() > 0
    }

    /// Answers one call. The caller's timeout begins when this is called.
    pub(super) fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<GrpcResponseBody>, Infallible>> {
        let is_rate_limit = request.uri().path() == RATE_LIMIT;
        let timeout = timeout::caller_timeout(request.headers());
        let deadline = timeout.map(|timeout| CallerDeadline { timeout, arrived: Instant::now() });
        async move {
            if !is_rate_limit {
                return Box::pin(self.call_tonic(request)).await;
            }
            let traces = self.all.traces.as_ref();
            let mut trace =
                traces.map(|traces| traces.begin_grpc(request.headers())).unwrap_or_default();
            let response = self.rate_limit(request, deadline, &mut trace);
            let response = match deadline {
                None => response.await,
                Some(CallerDeadline { timeout, arrived }) => {
                    let response = tokio::time::timeout_at((arrived + timeout).into(), response);
                    response.await.unwrap_or_else(|_elapsed| Ok(timed_out()))
                }
            };
            if let Ok(response) = &response {
                trace.end_grpc(|| code(response));
            }
            response
        }
    }

    async fn rate_limit(
        &self,
        request: Request<Incoming>,
        deadline: Option<CallerDeadline>,
        trace: &mut RequestTrace,
    ) -> Result<Response<GrpcResponseBody>, Infallible> {
        let (mut parts, body) = request.into_parts();
        let mut reader =
            MessageReader::new(body, self.all.bounds.message_bytes_max, &self.message_budget);
        // Nearly always the whole message has arrived.
        let read = match poll_fn(|context| Poll::Ready(reader.poll(context))).await {
            Poll::Ready(read) => read,
            Poll::Pending => {
                retain_needed(&mut parts);
                match Box::pin(self.read_rest(&mut reader)).await {
                    Ok(read) => read,
                    Err(timeout) => return Ok(error_response(&timeout)),
                }
            }
        };
        match read {
            Ok(()) => {}
            Err(ReadError::OverBound(bound)) => {
                return Ok(self.refuse_unread(reader, bound, trace));
            }
            Err(ReadError::Truncated) => {
                return Ok(error_response(&Status::cancelled("the message is incomplete")));
            }
        }
        self.handle.mark_used();
        let (in_flight, on_connection) = (self.all.in_flight.enter(), self.in_flight.enter());
        if on_connection.shed {
            self.count(GrpcBound::InFlightShare);
        }
        let shed = in_flight.shed || on_connection.shed;
        let read = reader.take();
        let encoding = parts.headers.get(&GRPC_ENCODING);
        let Some(message) = uncompressed_message(encoding, &read) else {
            return Ok(error_response(&message::framing_status(&read, encoding)));
        };
        let within = deadline.map(CallerDeadline::decision_timeout);
        let message = EncodedRequest::Protobuf(message);
        let answer = self.all.rls.answer(message, shed, within, trace).await;
        Ok(answer
            .map_or_else(|error| error_response(&status(&error)), |answer| self.respond(&answer)))
    }

    /// Reads the rest of the message, within the message timeout.
    async fn read_rest(
        &self,
        reader: &mut MessageReader<'_>,
    ) -> Result<Result<(), ReadError>, Status> {
        if let Err(bound) = reader.begin_wait() {
            return Ok(Err(ReadError::OverBound(bound)));
        }
        let rest = poll_fn(|context| reader.poll(context));
        tokio::time::timeout(self.all.bounds.message_timeout, rest).await.map_err(|_elapsed| {
            self.count(GrpcBound::MessageTimeout);
            message::message_timeout()
        })
    }

    /// Refuses a request (OVER_LIMIT) before the end of its message.
    fn refuse_unread(
        &self,
        reader: MessageReader<'_>,
        bound: RefusalBound,
        trace: &mut RequestTrace,
    ) -> Response<GrpcResponseBody> {
        if let Some(mut rest) = reader.into_rest() {
            // Resetting the stream would be an error for some callers, and the HTTP/2 library closes connections with
            // many resets. So the rest of the message is read and dropped.
            let drop_rest = async move { while let Some(Ok(_dropped)) = rest.frame().await {} };
            let drop_rest = tokio::time::timeout(self.all.bounds.message_timeout, drop_rest);
            self.executor.execute(drop_rest);
        }
        self.respond(&self.all.rls.refuse_over_bound(bound, trace))
    }

    fn respond(&self, answer: &RateLimitResponse) -> Response<GrpcResponseBody> {
        let frame = match encode_framed(answer) {
            Ok(frame) => frame,
            Err(error) => return error_response(&Status::internal(error.to_string())),
        };
        let Ok(held) = ResponseBytesGuard::hold(&self.response_budget, frame.len()) else {
            self.count(GrpcBound::WaitingBytes);
            return error_response(&Status::resource_exhausted("too many responses are not read"));
        };
        let mut response = Response::new(GrpcResponseBody::Message(Some(frame), held));
        response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
        response
    }

    /// Passes a call to one of tonic's services.
    async fn call_tonic(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<GrpcResponseBody>, Infallible> {
        let (mut parts, body) = request.into_parts();
        retain_needed(&mut parts);
        let path = parts.uri.path();
        let is_streaming = path == HEALTH_WATCH || path.starts_with(REFLECTION);
        let permits = match is_streaming.then(|| self.streaming_permits()).transpose() {
            Ok(permits) => permits,
            Err(bound) => {
                self.count(bound);
                let many = Status::resource_exhausted("too many Watch and reflection calls");
                return Ok(error_response(&many));
            }
        };
        let mut held = CallBytesGuard::empty(&self.message_budget);
        if held.begin_wait().is_err() {
            self.count(GrpcBound::WaitingBytes);
            let many = Status::resource_exhausted("too many calls wait for their messages");
            return Ok(error_response(&many));
        }
        let request = Request::from_parts(
            parts,
            TimedRequestBody::new(body, self.all.bounds.message_timeout),
        );
        let response = self.all.services.clone().call(request);
        let response = tokio::time::timeout(self.all.bounds.message_timeout, response).await;
        let Ok(response) = response else {
            self.count(GrpcBound::MessageTimeout);
            return Ok(error_response(&message::message_timeout()));
        };
        // tonic has read the message; of a streaming call it may not have read any yet.
        self.handle.mark_used();
        response.map(|response| response.map(|body| GrpcResponseBody::Tonic(body, permits)))
    }

    /// The permits of a streaming call: the connection's and the listener's.
    fn streaming_permits(&self) -> Result<[OwnedSemaphorePermit; 2], GrpcBound> {
        let permit = |permits: &Arc<Semaphore>| Arc::clone(permits).try_acquire_owned();
        let own = permit(&self.streaming).map_err(|_| GrpcBound::StreamingCallsPerConnection)?;
        let all = permit(&self.all.bounds.streaming).map_err(|_| GrpcBound::StreamingCalls)?;
        Ok([own, all])
    }
}

/// The number of permits of a semaphore for `max` calls: semaphores have a maximum of their own.
fn permits(max: NonZeroUsize) -> usize {
    max.get().min(Semaphore::MAX_PERMITS)
}

/// The message of a call, if the body is exactly one message without compression.
fn uncompressed_message(encoding: Option<&HeaderValue>, read: &Bytes) -> Option<Bytes> {
    let is_uncompressed = encoding.is_none_or(|encoding| encoding == IDENTITY);
    is_uncompressed.then(|| message::single_message(read)).flatten()
}

/// The longest path and header value that a waiting call retains.
const RETAINED_BYTES_MAX: usize = 256;

/// Retains the path and the needed headers of a call that waits for its message, as copies: the originals share the
/// memory of the whole frame.
fn retain_needed(parts: &mut Parts) {
    let needed = [&CONTENT_TYPE, &GRPC_ENCODING];
    let kept = needed.into_iter().filter_map(|name| {
        let value = parts.headers.get(name)?.as_bytes();
        let value = value.get(..value.len().min(RETAINED_BYTES_MAX))?;
        Some((name.clone(), HeaderValue::from_bytes(value).ok()?))
    });
    parts.headers = kept.collect();
    let path = parts.uri.path();
    let path = path.get(..path.len().min(RETAINED_BYTES_MAX)).and_then(|path| path.parse().ok());
    parts.uri = path.unwrap_or_default();
}

fn error_response(status: &Status) -> Response<GrpcResponseBody> {
    status.clone().into_http::<()>().map(|()| GrpcResponseBody::Ended)
}

/// The code of a response. Errors have it in the headers; a response with a message has OK in the trailers.
fn code(response: &Response<GrpcResponseBody>) -> Code {
    Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code())
}

fn timed_out() -> Response<GrpcResponseBody> {
    error_response(&Status::from_error(TimeoutExpired(()).into()))
}
