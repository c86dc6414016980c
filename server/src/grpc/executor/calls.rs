//! Calls, from HTTP/2 stream to answer.
//!
//! Nearly every call is a rate limit request of one plain message: it is read, decided and answered here. Calls to other
//! services go to tonic's.

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
    body::{Answer, framed},
    tasks::CallExecutor,
};
use crate::{
    grpc::{
        bound::{BoundsMet, GrpcBound},
        in_flight::InFlight,
        message::{self, IDENTITY, MessageReader, ReadError, RequestStream},
        rls::{Encoded, Rls},
        status, timeout,
        waiting::{AnswerBytes, CallBytes, ConnectionBytes, WaitingBytes},
    },
    listen,
    settings::GrpcSettings,
    telemetry::{Bound, RequestTrace, Traces},
};

const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
const REFLECTION: &str = "/grpc.reflection.";

static GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// When a caller gives up.
#[derive(Clone, Copy)]
struct CallerDeadline {
    timeout: Duration,
    arrived: Instant,
}

impl CallerDeadline {
    /// The time left for deciding, now that the message has arrived.
    fn for_decision(self) -> Duration {
        timeout::for_decision(self.timeout).saturating_sub(self.arrived.elapsed())
    }
}

/// Answers the calls of every connection.
pub(in crate::grpc) struct Calls {
    rls: Arc<Rls>,
    in_flight: InFlight,
    /// Every service.
    services: Routes,
    traces: Option<Arc<Traces>>,
    bounds: CallBounds,
}

/// What bounds the calls of every connection.
struct CallBounds {
    message_bytes: usize,
    message_timeout: Duration,
    /// Calls in progress of one connection.
    in_flight_share: usize,
    waiting: Arc<WaitingBytes>,
    /// Apart from calls that wait, so that slow messages leave room for answers.
    answers: Arc<WaitingBytes>,
    /// Permits of all streaming calls, and how many there are.
    streaming: Arc<Semaphore>,
    streaming_max: usize,
    streaming_per_connection: usize,
    met: BoundsMet,
}

impl Calls {
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
            Arc::new(WaitingBytes::new(
                bounds.grpc_max_waiting_bytes.get(),
                bounds.grpc_max_waiting_bytes_per_connection.get(),
            ))
        };
        let bounds = CallBounds {
            message_bytes: settings.grpc_max_message_bytes.get(),
            message_timeout: bounds.grpc_message_timeout,
            in_flight_share: in_flight.share(bounds.grpc_max_in_flight_share),
            waiting: bytes(),
            answers: bytes(),
            streaming: Arc::new(Semaphore::new(streaming_max)),
            streaming_max,
            streaming_per_connection: permits(bounds.grpc_max_streaming_calls_per_connection),
            met: BoundsMet::default(),
        };
        Self { rls, in_flight, services, traces, bounds }
    }

    pub(in crate::grpc) const fn bounds_met(&self) -> &BoundsMet {
        &self.bounds.met
    }

    /// Calls that wait for their messages.
    pub(in crate::grpc) fn waiting(&self) -> usize {
        self.bounds.waiting.calls()
    }

    /// Bytes held by such calls and by answers that are not taken.
    pub(in crate::grpc) fn waiting_bytes(&self) -> usize {
        self.bounds.waiting.held() + self.bounds.answers.held()
    }

    pub(in crate::grpc) fn streaming(&self) -> usize {
        self.bounds.streaming_max - self.bounds.streaming.available_permits()
    }
}

/// Answers the calls of one connection.
pub(super) struct ConnectionCalls {
    all: Arc<Calls>,
    in_flight: InFlight,
    waiting: ConnectionBytes,
    answers: Arc<ConnectionBytes>,
    /// Permits of this connection's streaming calls.
    streaming: Arc<Semaphore>,
    handle: listen::ConnectionHandle,
    /// Runs work that continues after an answer.
    executor: CallExecutor,
}

impl ConnectionCalls {
    pub(super) fn new(
        all: Arc<Calls>,
        handle: listen::ConnectionHandle,
        executor: CallExecutor,
    ) -> Self {
        let bounds = &all.bounds;
        Self {
            in_flight: InFlight::new(bounds.in_flight_share),
            waiting: ConnectionBytes::new(Arc::clone(&bounds.waiting)),
            answers: Arc::new(ConnectionBytes::new(Arc::clone(&bounds.answers))),
            streaming: Arc::new(Semaphore::new(bounds.streaming_per_connection)),
            handle,
            all,
            executor,
        }
    }

    /// Counts that a bound was met.
    pub(super) fn count(&self, met: GrpcBound) {
        self.all.bounds.met.add(met);
    }

    /// Whether a call is being decided.
    pub(super) fn is_deciding(&self) -> bool {
        self.in_flight.current() > 0
    }

    /// Answers one call, which has arrived just now.
    pub(super) fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Answer>, Infallible>> {
        let is_rate_limit = request.uri().path() == RATE_LIMIT;
        let timeout = timeout::of_caller(request.headers());
        let deadline = timeout.map(|timeout| CallerDeadline { timeout, arrived: Instant::now() });
        async move {
            if !is_rate_limit {
                return Box::pin(self.other(request)).await;
            }
            let traces = self.all.traces.as_ref();
            let mut traced =
                traces.map(|traces| traces.of_grpc(request.headers())).unwrap_or_default();
            let answer = self.rate_limit(request, deadline, &mut traced);
            let answer = match deadline {
                None => answer.await,
                Some(CallerDeadline { timeout, arrived }) => {
                    let answer = tokio::time::timeout_at((arrived + timeout).into(), answer).await;
                    answer.unwrap_or_else(|_elapsed| Ok(timed_out()))
                }
            };
            if let Ok(answer) = &answer {
                traced.end_grpc(|| code(answer));
            }
            answer
        }
    }

    async fn rate_limit(
        &self,
        request: Request<Incoming>,
        deadline: Option<CallerDeadline>,
        traced: &mut RequestTrace,
    ) -> Result<Response<Answer>, Infallible> {
        let (mut parts, body) = request.into_parts();
        let mut reader = MessageReader::new(body, self.all.bounds.message_bytes, &self.waiting);
        // Nearly always the whole message is there.
        let read = match poll_fn(|context| Poll::Ready(reader.poll(context))).await {
            Poll::Ready(read) => read,
            Poll::Pending => {
                forget(&mut parts);
                match Box::pin(self.wait(&mut reader)).await {
                    Ok(read) => read,
                    Err(late) => return Ok(refused(&late)),
                }
            }
        };
        match read {
            Ok(()) => {}
            Err(ReadError::Beyond(bound)) => return Ok(self.refuse_unread(reader, bound, traced)),
            Err(ReadError::Broken) => {
                return Ok(refused(&Status::cancelled("the message has broken off")));
            }
        }
        self.handle.mark_used();
        let (entered, entered_share) = (self.all.in_flight.enter(), self.in_flight.enter());
        if entered_share.shed {
            self.count(GrpcBound::InFlightShare);
        }
        let shed = entered.shed || entered_share.shed;
        let read = reader.take();
        let encoding = parts.headers.get(&GRPC_ENCODING);
        let Some(message) = plain_message(encoding, &read) else {
            return Ok(refused(&message::why_not_plain(&read, encoding)));
        };
        let within = deadline.map(CallerDeadline::for_decision);
        let message = Encoded::Protobuf(message);
        let answer = self.all.rls.answer(message, shed, within, traced).await;
        Ok(answer
            .map_or_else(|error| refused(&status::of(&error)), |answer| self.answered(&answer)))
    }

    /// Reads on, but not for too long.
    async fn wait(&self, reader: &mut MessageReader<'_>) -> Result<Result<(), ReadError>, Status> {
        if let Err(bound) = reader.wait() {
            return Ok(Err(ReadError::Beyond(bound)));
        }
        let rest = poll_fn(|context| reader.poll(context));
        tokio::time::timeout(self.all.bounds.message_timeout, rest).await.map_err(|_elapsed| {
            self.count(GrpcBound::MessageTimeout);
            message::late()
        })
    }

    /// Answers OVER_LIMIT although the message was not read to its end.
    fn refuse_unread(
        &self,
        reader: MessageReader<'_>,
        bound: Bound,
        traced: &mut RequestTrace,
    ) -> Response<Answer> {
        if let Some(mut rest) = reader.into_rest() {
            // A stream that is reset in the middle of a message is an error to callers, and to HTTP/2's library if it
            // happens often. So what comes is dropped until the caller has taken in the answer.
            let drop_rest = async move { while let Some(Ok(_dropped)) = rest.frame().await {} };
            let drop_rest = tokio::time::timeout(self.all.bounds.message_timeout, drop_rest);
            self.executor.execute(drop_rest);
        }
        self.answered(&self.all.rls.deny(bound, traced))
    }

    fn answered(&self, answer: &RateLimitResponse) -> Response<Answer> {
        let frame = match framed(answer) {
            Ok(frame) => frame,
            Err(error) => return refused(&Status::internal(error.to_string())),
        };
        let Ok(held) = AnswerBytes::hold(&self.answers, frame.len()) else {
            self.count(GrpcBound::WaitingBytes);
            return refused(&Status::resource_exhausted("too many answers are not taken"));
        };
        let mut response = Response::new(Answer::Message(Some(frame), held));
        response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
        response
    }

    /// Answers a call to another service.
    async fn other(&self, request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
        let (mut parts, body) = request.into_parts();
        forget(&mut parts);
        let path = parts.uri.path();
        let is_streaming = path == HEALTH_WATCH || path.starts_with(REFLECTION);
        let permits = match is_streaming.then(|| self.streaming_permits()).transpose() {
            Ok(permits) => permits,
            Err(bound) => {
                self.count(bound);
                let many = Status::resource_exhausted("too many calls of this kind at once");
                return Ok(refused(&many));
            }
        };
        let mut held = CallBytes::none(&self.waiting);
        if held.wait().is_err() {
            self.count(GrpcBound::WaitingBytes);
            let many = Status::resource_exhausted("too many calls wait for their messages");
            return Ok(refused(&many));
        }
        let request =
            Request::from_parts(parts, RequestStream::new(body, self.all.bounds.message_timeout));
        let answer = self.all.services.clone().call(request);
        let answer = tokio::time::timeout(self.all.bounds.message_timeout, answer).await;
        let Ok(answer) = answer else {
            self.count(GrpcBound::MessageTimeout);
            return Ok(refused(&message::late()));
        };
        // Tonic has read the message, or the first of a stream is still to come.
        self.handle.mark_used();
        answer.map(|answer| answer.map(|body| Answer::Tonic(body, permits)))
    }

    /// The permits of a streaming call: the connection's and the listener's.
    fn streaming_permits(&self) -> Result<[OwnedSemaphorePermit; 2], GrpcBound> {
        let permit = |of: &Arc<Semaphore>| Arc::clone(of).try_acquire_owned();
        let own = permit(&self.streaming).map_err(|_| GrpcBound::StreamingCallsPerConnection)?;
        let all = permit(&self.all.bounds.streaming).map_err(|_| GrpcBound::StreamingCalls)?;
        Ok([own, all])
    }
}

/// A number of permits that a semaphore can have.
fn permits(max: NonZeroUsize) -> usize {
    max.get().min(Semaphore::MAX_PERMITS)
}

/// The message of a call, if these bytes are one that is not compressed, and nothing else.
fn plain_message(encoding: Option<&HeaderValue>, read: &Bytes) -> Option<Bytes> {
    let is_plain = encoding.is_none_or(|encoding| encoding == IDENTITY);
    is_plain.then(|| message::plain(read)).flatten()
}

/// The longest path and header value that is kept of a call that waits for its message.
const KEPT_MAX: usize = 256;

/// Drops what nothing reads of the head of a call that waits for its message. What is kept is copied, because it shares
/// the memory of the frame that it came in.
fn forget(parts: &mut Parts) {
    let needed = [&CONTENT_TYPE, &GRPC_ENCODING];
    let kept = needed.into_iter().filter_map(|name| {
        let value = parts.headers.get(name)?.as_bytes();
        let value = value.get(..value.len().min(KEPT_MAX))?;
        Some((name.clone(), HeaderValue::from_bytes(value).ok()?))
    });
    parts.headers = kept.collect();
    let path = parts.uri.path();
    let path = path.get(..path.len().min(KEPT_MAX)).and_then(|path| path.parse().ok());
    parts.uri = path.unwrap_or_default();
}

fn refused(status: &Status) -> Response<Answer> {
    status.clone().into_http::<()>().map(|()| Answer::Ended)
}

/// The status in the headers. An answer with a message has it after the message, and is OK.
fn code(answer: &Response<Answer>) -> Code {
    Status::from_header_map(answer.headers()).map_or(Code::Ok, |status| status.code())
}

fn timed_out() -> Response<Answer> {
    refused(&Status::from_error(TimeoutExpired(()).into()))
}
