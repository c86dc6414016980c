//! Serving one HTTP/2 connection.

use std::{
    future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::FutureExt as _;
use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;

use super::{
    calls::Calls,
    tasks::{Arrived, Tasks},
    woken::Woken,
};
use crate::{listen::Connection, settings::GrpcSettings};

/// Turns in one poll of a connection. Then others are to have theirs: the runtime makes whoever takes too much ask
/// again, for ever in the same poll.
const TURNS_MAX: usize = 16;

/// What bounds a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    keepalive_interval: Option<Duration>,
    keepalive_timeout: Duration,
    /// After which it is told to end, and after which it is cut.
    lifetime: Option<(Duration, Duration)>,
}

impl Bounds {
    pub(super) fn new(settings: &GrpcSettings) -> Self {
        let age = unless_zero(settings.grpc_max_connection_age);
        let grace = settings.grpc_max_connection_age_grace;
        Self {
            keepalive_interval: unless_zero(settings.grpc_keepalive_interval),
            keepalive_timeout: settings.grpc_keepalive_timeout,
            lifetime: age.map(|age| (age, age.saturating_add(grace))),
        }
    }
}

/// Serves a connection to its end. When told to `stop`, it takes no more calls and ends with the last.
pub(super) async fn serve(
    connection: Connection,
    bounds: Bounds,
    calls: Arc<Calls>,
    stop: CancellationToken,
) {
    let arrived = Arrived::default();
    let mut tasks = Tasks::new(arrived.clone());
    let place = connection.place();
    let mut connection = pin!(
        http2::Builder::new(arrived)
            .timer(TokioTimer::new())
            .max_concurrent_streams(None)
            .keep_alive_interval(bounds.keepalive_interval)
            .keep_alive_timeout(bounds.keepalive_timeout)
            .serve_connection(
                TokioIo::new(connection),
                // Boxed at once, because it is large and HTTP/2 moves it about.
                service_fn(move |request| {
                    place.mark_used();
                    Box::pin(Arc::clone(&calls).answer(request))
                }),
            )
    );
    let (age, end) = bounds.lifetime.unzip();
    let mut ending = pin!(stop.run_until_cancelled(elapsed(age)).fuse());
    let mut end = pin!(elapsed(end));
    let woken = Arc::new(Woken::default());
    let waker = woken.waker();
    future::poll_fn(|context| {
        let task = context.waker();
        woken.begin(task);
        let context = &mut Context::from_waker(&waker);
        let mut turns = 0;
        loop {
            if ending.as_mut().poll(context).is_ready() {
                connection.as_mut().graceful_shutdown();
            }
            if end.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            loop {
                if turns == TURNS_MAX {
                    task.wake_by_ref();
                    return Poll::Pending;
                }
                turns += 1;
                let more = tasks.advance(context);
                // Takes in what has come, and sends what is ready.
                if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "connection failed");
                    }
                    return Poll::Ready(());
                }
                let started = tasks.start();
                if !more && !started {
                    break;
                }
            }
            // Whoever has called meanwhile may have called to end.
            if woken.may_wait() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// Waits so long; for ever, if it is not said how long.
async fn elapsed(span: Option<Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => future::pending().await,
    }
}

fn unless_zero(span: Duration) -> Option<Duration> {
    (!span.is_zero()).then_some(span)
}
