//! Serves HTTP connections.

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
use tonic::transport::server::Connected as _;
use tower::ServiceExt as _;

use super::{
    bodies::{BodyError, BodyReader},
    head_timer::HeadTimer,
    write_timeout::WriteTimeout,
};
use crate::{
    listen::{self, Admission, Connection, ConnectionHandle, ListenerBound},
    telemetry::RefusalBound,
};

/// The most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The time for the head of a request, from its first byte.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// The time for the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves the connections of the HTTP and the usage listener. Requests of a client with names in its certificate have
/// the extension [`Peer`](listen::Peer).
#[derive(Clone)]
pub(crate) struct Server {
    router: Router,
    bodies: Arc<BodyReader>,
    admission: Admission,
}

impl Server {
    /// A server of these routes. `body_max`: the most bytes of a body.
    pub(crate) fn new(router: Router, body_max: usize, admission: Admission) -> Self {
        Self { router, bodies: Arc::new(BodyReader::new(body_max)), admission }
    }

    /// Serves connections until `shutdown`, then completes the requests in progress.
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
        // Whether the last request has fully arrived.
        let is_complete = Arc::new(AtomicBool::new(false));
        let (handle, peer) = (connection.handle(), connection.connect_info());
        let set_complete = Arc::clone(&is_complete);
        let timer = HeadTimer::default();
        let counting = handle.clone();
        let connection = WriteTimeout::new(connection, move || {
            counting.count_bound(ListenerBound::ResponseReadTime);
        });
        let read_timer = timer.clone();
        let timed =
            InspectReader::new(connection, move |bytes: &[u8]| read_timer.note_bytes(bytes));
        let service_timer = timer.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            if !peer.certificate_names.is_empty() {
                request.extensions_mut().insert(peer.clone());
            }
            let response = self.clone().answer(request, handle.clone(), Arc::clone(&set_complete));
            let timer = service_timer.clone();
            async move {
                timer.begin_request();
                let response = response.await;
                timer.end_request();
                response
            }
        });
        let mut connection = pin!(
            http1::Builder::new()
                .timer(TokioTimer::new())
                // `timer` bounds the time of heads, and the listener closes idle connections.
                .header_read_timeout(None)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(timed), service)
        );
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = timer.timed_out(HEAD_TIMEOUT) => return,
            () = stop.cancelled() => {
                if !is_complete.load(Ordering::Relaxed) {
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
        is_complete: Arc<AtomicBool>,
    ) -> Result<Response, Infallible> {
        is_complete.store(false, Ordering::Relaxed);
        let (mut parts, mut body) = request.into_parts();
        let read = timeout(BODY_TIMEOUT, self.bodies.read(&mut body)).await;
        let body = match read.unwrap_or(Err(BodyError::Timeout)) {
            Ok(body) => body,
            Err(error) => {
                if error == BodyError::Timeout {
                    handle.count_bound(ListenerBound::BodyTime);
                }
                let Some(bound) = error.exceeded_bound() else {
                    return Ok(closing(error.into_response()));
                };
                // Closing the connection while the client writes would reset it, and the client might not read the
                // response.
                let drop_rest = async { while let Some(Ok(_dropped)) = body.frame().await {} };
                let _elapsed = timeout(BODY_TIMEOUT, drop_rest).await;
                // End users may determine the size of a body, so `/json` refuses such a request instead of returning an
                // error.
                parts.extensions.insert(bound);
                let request = Request::from_parts(parts, Body::empty());
                return Ok(closing(self.router.oneshot(request).await?));
            }
        };
        is_complete.store(true, Ordering::Relaxed);
        handle.mark_used();
        let crowded = self.admission.is_crowded();
        let _held = body.held;
        let response =
            self.router.oneshot(Request::from_parts(parts, Body::from(body.bytes))).await?;
        Ok(if crowded { closing(response) } else { response })
    }
}

/// Makes a response the last one of its connection.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

impl BodyError {
    /// The bound that the body exceeds. A rate limit request with such a body is refused, not answered with an error.
    const fn exceeded_bound(&self) -> Option<RefusalBound> {
        match self {
            Self::TooLarge => Some(RefusalBound::MessageBytes),
            Self::TooManyBytes => Some(RefusalBound::BodyBytes),
            Self::Timeout | Self::Unreadable(_) => None,
        }
    }
}

impl IntoResponse for BodyError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Timeout => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge | Self::TooManyBytes | Self::Unreadable(_) => StatusCode::BAD_REQUEST,
        };
        (status, format!("{self}\n")).into_response()
    }
}
