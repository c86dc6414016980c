//! The way of a call from its HTTP/2 stream to whatever answers it.
//!
//! Nearly every call is a rate limit request of one plain message: it is read, decided and answered here, because this
//! is what the cost of a decision mostly is. Whatever is out of the ordinary goes to tonic's services as it
//! came, so that there is one meaning of errors, compression and all that gRPC has beside.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, Request, Response, header::CONTENT_TYPE};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tonic::{Code, Status, TimeoutExpired, metadata::GRPC_CONTENT_TYPE, service::Routes};
use tower::Service as _;

use super::{
    Encoded, InFlight, Rls,
    body::{Answer, PREFIX, Reread},
    in_flight::{Entered, Shed},
    lent::Lent,
    status, timeout,
};
use crate::telemetry::{Traced, Traces};

const RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

static GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// How long a caller waits.
#[derive(Clone, Copy)]
struct Patience {
    timeout: Duration,
    arrived: Instant,
}

impl Patience {
    /// What is left of it for deciding, now that the message is there.
    fn for_decision(self) -> Duration {
        timeout::for_decision(self.timeout).saturating_sub(self.arrived.elapsed())
    }
}

/// Answers the calls of every connection.
pub(super) struct Calls {
    rls: Arc<Rls>,
    in_flight: InFlight,
    /// Every service.
    services: Routes,
    message_max: usize,
    traces: Option<Arc<Traces>>,
}

impl Calls {
    pub(super) const fn new(
        rls: Arc<Rls>,
        in_flight: InFlight,
        services: Routes,
        message_max: usize,
        traces: Option<Arc<Traces>>,
    ) -> Self {
        Self { rls, in_flight, services, message_max, traces }
    }

    /// Answers one call, which has arrived just now.
    pub(super) fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Answer>, Infallible>> {
        let is_rate_limit = request.uri().path() == RATE_LIMIT;
        let entered = is_rate_limit.then(|| self.in_flight.enter());
        let timeout = timeout::of_caller(request.headers());
        let patience = timeout.map(|timeout| Patience { timeout, arrived: Instant::now() });
        async move {
            let Some(entered) = entered else {
                return Box::pin(self.by_tonic(request)).await;
            };
            let traces = self.traces.as_ref();
            let mut traced =
                traces.map(|traces| traces.of_grpc(request.headers())).unwrap_or_default();
            let answer = self.rate_limit(request, entered, patience, &mut traced);
            let answer = match patience {
                None => answer.await,
                Some(Patience { timeout, arrived }) => {
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
        entered: Entered,
        patience: Option<Patience>,
        traced: &mut Traced,
    ) -> Result<Response<Answer>, Infallible> {
        let (mut parts, body) = request.into_parts();
        let message = match self.message(&parts.headers, body).await {
            Ok(message) => message,
            Err(body) => {
                if entered.shed {
                    parts.extensions.insert(Shed);
                }
                let lent = traced.is_known().then(Lent::default);
                if let Some(lent) = &lent {
                    lent.put(std::mem::take(traced));
                    parts.extensions.insert(lent.clone());
                }
                let answer = Box::pin(self.by_tonic(Request::from_parts(parts, body))).await;
                if let Some(lent) = lent {
                    *traced = lent.take();
                }
                return answer;
            }
        };
        let within = patience.map(Patience::for_decision);
        let message = Encoded::Protobuf(message);
        let answer = self.rls.answer(message, entered.shed, within, traced).await;
        let answer = answer.map_err(|error| status::of(&error)).and_then(|answer| {
            Answer::message(&answer).map_err(|error| Status::internal(error.to_string()))
        });
        Ok(answer.map_or_else(|status| refused(&status), answered))
    }

    /// The message of a request that holds nothing else, or the request's body as it came.
    async fn message(&self, headers: &HeaderMap, mut body: Incoming) -> Result<Bytes, Reread> {
        let mut read = Bytes::new();
        if headers.get(&GRPC_ENCODING).is_none_or(|encoding| encoding == "identity") {
            while self.may_become_message(&read) && !body.is_end_stream() {
                match body.frame().await.map(|frame| frame.map(hyper::body::Frame::into_data)) {
                    Some(Ok(Ok(data))) if read.is_empty() => read = data,
                    Some(Ok(Ok(data))) => read = joined(read, &data),
                    Some(Ok(Err(_)) | Err(_)) | None => break,
                }
            }
            if let Some(message) = self.whole_message(&read)
                && body.is_end_stream()
            {
                return Ok(message);
            }
        }
        Err(Reread { read: (!read.is_empty()).then_some(read), rest: body })
    }

    /// Whether these bytes may be the beginning of a message that is not compressed and not too large.
    fn may_become_message(&self, read: &[u8]) -> bool {
        match prefix(read) {
            Some((compressed, length)) => {
                !compressed && length <= self.message_max && read.len() <= PREFIX + length
            }
            None => true,
        }
    }

    /// The message that these bytes are, if nothing lacks.
    fn whole_message(&self, read: &Bytes) -> Option<Bytes> {
        let (_, length) = prefix(read)?;
        let whole = self.may_become_message(read) && read.len() == PREFIX + length;
        whole.then(|| read.slice(PREFIX..))
    }

    async fn by_tonic<B>(&self, request: Request<B>) -> Result<Response<Answer>, Infallible>
    where
        B: http_body::Body<Data = Bytes, Error = hyper::Error> + Send + 'static,
    {
        Ok(self.services.clone().call(request).await?.map(Answer::Tonic))
    }
}

/// The flag and the length that stand before a message.
fn prefix(read: &[u8]) -> Option<(bool, usize)> {
    let (&[flag, length @ ..], _) = read.split_first_chunk::<PREFIX>()?;
    Some((flag != 0, usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX)))
}

fn joined(first: Bytes, second: &[u8]) -> Bytes {
    let mut joined = BytesMut::from(first);
    joined.extend_from_slice(second);
    joined.freeze()
}

fn answered(answer: Answer) -> Response<Answer> {
    let mut response = Response::new(answer);
    response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}

fn refused(status: &Status) -> Response<Answer> {
    status.clone().into_http::<()>().map(|()| Answer::Ended)
}

/// The status that the headers tell. An answer with a message tells it behind the message, and is OK.
fn code(answer: &Response<Answer>) -> Code {
    Status::from_header_map(answer.headers()).map_or(Code::Ok, |status| status.code())
}

fn timed_out() -> Response<Answer> {
    refused(&Status::from_error(TimeoutExpired(()).into()))
}
