//! Serving HTTP connections.

use std::{
    convert::Infallible,
    error::Error as _,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, Request, StatusCode, header::CONNECTION},
    response::{IntoResponse, Response},
};
use futures::Stream;
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::timeout;
use tokio_util::{io::InspectReader, sync::CancellationToken};
use tower::ServiceExt as _;

use super::{
    answer_timer::AnswerDeadline,
    bodies::{Bodies, BodyError},
    head_timer::HeadTimer,
};
use crate::{
    listen::{self, Admission, Connection, ConnectionHandle, RequestBound},
    telemetry::Bound,
};

/// The most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The time for the head of a request, from its first byte.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// The time for the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The HTTP listener's pages, ready to serve connections.
#[derive(Clone)]
pub(crate) struct Server {
    router: Router,
    bodies: Arc<Bodies>,
    admission: Admission,
}

impl Server {
    /// Serves `router`, with bodies of at most `body_max` bytes.
    pub(crate) fn new(router: Router, body_max: usize, admission: Admission) -> Self {
        Self { router, bodies: Arc::new(Bodies::new(body_max)), admission }
    }

    /// Serves connections until `shutdown`, then finishes the requests in progress.
    pub(crate) async fn serve(
        self,
        connections: impl Stream<Item = io::Result<Connection>>,
        shutdown: impl Future<Output = ()>,
    ) {
        listen::serve(connections, shutdown, |connection, stop| {
            self.clone().serve_one(connection, stop)
        })
        .await;
    }

    async fn serve_one(self, connection: Connection, stop: CancellationToken) {
        // Whether the latest request has come whole.
        let answering = Arc::new(AtomicBool::new(false));
        let handle = connection.handle();
        let whole = Arc::clone(&answering);
        let timer = HeadTimer::default();
        let late = handle.clone();
        let connection =
            AnswerDeadline::new(connection, move || late.count_bound(RequestBound::AnswerTime));
        let of_head = timer.clone();
        let timed = InspectReader::new(connection, move |bytes: &[u8]| of_head.hear(bytes));
        let of_service = timer.clone();
        let service = service_fn(move |request| {
            let answer = self.clone().answer(request, handle.clone(), Arc::clone(&whole));
            let timer = of_service.clone();
            async move {
                timer.begin_request();
                let answer = answer.await;
                timer.end_request();
                answer
            }
        });
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                // Heads are timed from their first byte, and the listener closes connections that are idle.
                .header_read_timeout(None)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(timed), service)
        );
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = timer.late(HEAD_TIMEOUT) => return,
            () = stop.cancelled() => {
                if !answering.load(Ordering::Relaxed) {
                    return;
                }
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            let cause = error.source().map(ToString::to_string);
            tracing::debug!(%error, cause, "HTTP connection failed");
        }
    }

    async fn answer(
        self,
        request: Request<Incoming>,
        handle: ConnectionHandle,
        whole: Arc<AtomicBool>,
    ) -> Result<Response, Infallible> {
        whole.store(false, Ordering::Relaxed);
        let (mut parts, mut body) = request.into_parts();
        let read = timeout(BODY_TIMEOUT, self.bodies.read(&mut body)).await;
        let body = match read.unwrap_or(Err(BodyError::Slow)) {
            Ok(body) => body,
            Err(error) => {
                if error == BodyError::Slow {
                    handle.count_bound(RequestBound::BodyTime);
                }
                let Some(bound) = error.denied_by() else {
                    return Ok(closing(error.into_response()));
                };
                // Else the connection is reset while the client writes, which may then miss the answer.
                let drop_rest = async { while let Some(Ok(_dropped)) = body.frame().await {} };
                let _elapsed = timeout(BODY_TIMEOUT, drop_rest).await;
                // How large a body is may be up to end users, so the page decides.
                parts.extensions.insert(bound);
                let request = Request::from_parts(parts, Body::empty());
                return Ok(closing(self.router.oneshot(request).await?));
            }
        };
        whole.store(true, Ordering::Relaxed);
        handle.mark_used();
        let crowded = self.admission.is_crowded();
        let _held = body.held;
        let response =
            self.router.oneshot(Request::from_parts(parts, Body::from(body.bytes))).await?;
        Ok(if crowded { closing(response) } else { response })
    }
}

/// An answer after which the connection ends.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

impl BodyError {
    /// The bound for which a rate limit request with such a body is denied, rather than answered with an error.
    const fn denied_by(&self) -> Option<Bound> {
        match self {
            Self::Large => Some(Bound::MessageBytes),
            Self::Crowded => Some(Bound::BodyBytes),
            Self::Slow | Self::Broken(_) => None,
        }
    }
}

impl IntoResponse for BodyError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Large | Self::Crowded | Self::Broken(_) => StatusCode::BAD_REQUEST,
        };
        (status, format!("{self}\n")).into_response()
    }
}
