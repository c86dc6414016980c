//! Serves the connections of the admin listener within bounds. Most bounds apply before the token is checked.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    sync::Semaphore,
    time::{Instant, Sleep, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tonic::{Status, body::Body, service::Routes, transport::server::Connected as _};
use tower::Service as _;

use crate::{
    grpc::caller_timeout,
    listen::{ByteBudget, Connection, ConnectionHandle, HeldBytes, ListenerBound, Peer},
};

/// The most calls in progress on one connection.
const CALLS_MAX: u32 = 32;

/// The most streaming calls (Health Watch and reflection) in progress on all connections.
const STREAMING_CALLS_MAX: usize = 64;

/// The most bytes of the headers of a call.
const HEADERS_BYTES_MAX: u32 = 16 * 1024;

/// HTTP/2 flow control windows of a call and of a connection, in bytes.
const CALL_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 256 * 1024;

/// The most bytes that the messages of all calls in progress hold.
const ALL_MESSAGES_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The time for the messages of a call: for a reflection call, which has several, for all of them.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// The time without traffic on a connection before a ping, and the time for its acknowledgement.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// The time without a call after which a connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// The time for a client to close a connection without calls after GOAWAY.
const GOAWAY_TIMEOUT: Duration = Duration::from_millis(250);

/// Answers calls within bounds. Clones share the bounds.
#[derive(Clone)]
pub(super) struct AdminCalls {
    services: Routes,
    streaming: Arc<Semaphore>,
    messages: ByteBudget,
}

/// The calls of one connection whose messages have fully arrived.
#[derive(Debug)]
struct InProgress {
    calls: AtomicUsize,
    idle_since: parking_lot::Mutex<Instant>,
}

impl InProgress {
    fn is_empty(&self) -> bool {
        self.calls.load(Ordering::Relaxed) == 0
    }
}

impl AdminCalls {
    pub(super) fn new(services: Routes) -> Self {
        Self {
            services,
            streaming: Arc::new(Semaphore::new(STREAMING_CALLS_MAX)),
            messages: ByteBudget::new(ALL_MESSAGES_BYTES_MAX),
        }
    }

    /// Serves a connection to its end. After `stop` it accepts no more calls, and ends after the last one with a
    /// complete message.
    pub(super) async fn serve(self, connection: Connection, stop: CancellationToken) {
        let in_progress = Arc::new(InProgress {
            calls: AtomicUsize::new(0),
            idle_since: parking_lot::Mutex::new(Instant::now()),
        });
        let (handle, peer) = (connection.handle(), connection.connect_info());
        let calls = Arc::clone(&in_progress);
        let service = service_fn(move |request| {
            self.clone().answer(request, peer.clone(), handle.clone(), Arc::clone(&calls))
        });
        let mut connection = pin!(
            http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_concurrent_streams(CALLS_MAX)
                .max_header_list_size(HEADERS_BYTES_MAX)
                .initial_stream_window_size(CALL_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .keep_alive_interval(KEEPALIVE_INTERVAL)
                .keep_alive_timeout(KEEPALIVE_TIMEOUT)
                .serve_connection(TokioIo::new(connection), service)
        );
        tokio::select! {
            ended = connection.as_mut() => return log_error(ended),
            () = stop.cancelled() => {}
            () = until_idle(&in_progress) => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            ended = connection => log_error(ended),
            () = until_finished(&in_progress) => {}
        }
    }

    async fn answer(
        mut self,
        request: Request<Incoming>,
        peer: Peer,
        handle: ConnectionHandle,
        in_progress: Arc<InProgress>,
    ) -> Result<Response<Body>, Infallible> {
        let permit = if is_streaming(request.uri().path()) {
            let Ok(permit) = Arc::clone(&self.streaming).try_acquire_owned() else {
                handle.count_bound(ListenerBound::StreamingCalls);
                let many = "too many Watch and reflection calls";
                return Ok(Status::resource_exhausted(many).into_http());
            };
            Some(permit)
        } else {
            None
        };
        let timeout = caller_timeout(request.headers());
        let call = Arc::new(Call { in_progress, is_complete: AtomicBool::new(false) });
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(peer);
        let body = RequestBody {
            body,
            call: Arc::clone(&call),
            handle: handle.clone(),
            timeout: Box::pin(sleep(MESSAGE_TIMEOUT)),
            messages: self.messages.clone(),
            bytes: 0,
            held: HeldBytes::default(),
        };
        let response = self.services.call(Request::from_parts(parts, Body::new(body)));
        let response = match timeout {
            None => response.await?,
            Some(timeout) => match tokio::time::timeout(timeout, response).await {
                Ok(response) => response?,
                Err(_elapsed) => Status::deadline_exceeded("Timeout expired").into_http(),
            },
        };
        if call.is_complete.load(Ordering::Relaxed) && !is_error(response.headers()) {
            handle.mark_used();
        }
        // Dropped with the body of the response.
        let held = (call, permit);
        Ok(response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                let _held = &held;
                frame
            }))
        }))
    }
}

/// Whether this is a Health Watch or reflection call, which lasts as long as the caller wants.
fn is_streaming(path: &str) -> bool {
    path == "/grpc.health.v1.Health/Watch" || path.starts_with("/grpc.reflection.")
}

/// Whether a response is an error, for example because of a missing token.
fn is_error(headers: &HeaderMap) -> bool {
    Status::from_header_map(headers).is_some_and(|status| status.code() != tonic::Code::Ok)
}

fn log_error(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "admin connection failed");
    }
}

/// Waits until there were no calls for [`IDLE_TIMEOUT`].
async fn until_idle(in_progress: &InProgress) {
    loop {
        let since = *in_progress.idle_since.lock();
        sleep_until(since + IDLE_TIMEOUT).await;
        if !in_progress.is_empty() {
            sleep(IDLE_TIMEOUT).await;
        } else if *in_progress.idle_since.lock() == since {
            return;
        }
    }
}

/// Waits until there are no calls, and the client had time to close the connection.
async fn until_finished(in_progress: &InProgress) {
    loop {
        sleep(GOAWAY_TIMEOUT).await;
        if in_progress.is_empty() {
            return;
        }
    }
}

/// A call, until its response is sent.
#[derive(Debug)]
struct Call {
    in_progress: Arc<InProgress>,
    /// Whether its message has fully arrived.
    is_complete: AtomicBool,
}

impl Call {
    fn mark_complete(&self) {
        if !self.is_complete.swap(true, Ordering::Relaxed) {
            self.in_progress.calls.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.is_complete.load(Ordering::Relaxed) {
            *self.in_progress.idle_since.lock() = Instant::now();
            self.in_progress.calls.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The body of a call, bounded in time and bytes.
#[derive(Debug)]
struct RequestBody {
    body: Incoming,
    call: Arc<Call>,
    handle: ConnectionHandle,
    timeout: Pin<Box<Sleep>>,
    messages: ByteBudget,
    bytes: usize,
    held: HeldBytes,
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if this.timeout.as_mut().poll(context).is_ready() {
            this.handle.count_bound(ListenerBound::BodyTime);
            let timeout = format!("the message has not arrived within {MESSAGE_TIMEOUT:?}");
            return Poll::Ready(Some(Err(Status::deadline_exceeded(timeout))));
        }
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            this.bytes = this.bytes.saturating_add(data.len());
            if !this.messages.hold(&mut this.held, this.bytes) {
                this.handle.count_bound(ListenerBound::HeldBytes);
                let large = "the messages of all calls in progress are too large";
                return Poll::Ready(Some(Err(Status::resource_exhausted(large))));
            }
        }
        if frame.is_none() || this.body.is_end_stream() {
            this.call.mark_complete();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(|error| Status::from_error(Box::new(error)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
