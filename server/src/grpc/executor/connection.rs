//! Serves one HTTP/2 connection.

use std::{
    error::Error as _,
    future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::FutureExt as _;
use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use super::{
    calls::{CallHandler, ConnectionCallHandler},
    in_progress::{CallExecutor, CallsInProgress},
    waker::BatchingWaker,
};
use crate::{
    grpc::{
        bound::GrpcBound,
        frames::{FrameMeter, MeteredConnection, Progress},
    },
    listen::Connection,
    settings::GrpcSettings,
};

/// The most passes in one poll of a connection. Then other tasks run. Without this bound, tokio's cooperative budget
/// would be used up, and all futures of the connection would return pending, so the poll would never end.
const PASSES_MAX: usize = 16;

/// HTTP/2 flow control windows of a stream and of a connection, in bytes. Messages may be larger.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// The largest frame, which is HTTP/2's default.
const FRAME_BYTES_MAX: u32 = 16 * 1024;

/// Bytes of the header compression table (HPACK) of a connection, which is HTTP/2's default.
const HEADER_TABLE_BYTES: u32 = 4096;

/// Bytes of a response that are buffered until the caller reads them.
const SEND_BUFFER: usize = 64 * 1024;

/// Stream errors of a caller (for example streams beyond `--grpc-max-concurrent-streams`) after which its connection is
/// closed. A caller may exceed that bound by any number before it has received the server's SETTINGS, and must not lose
/// its other calls.
const STREAM_ERRORS_MAX: usize = 20_000;

/// The time for the caller to close a connection without calls in progress after GOAWAY.
const GOAWAY_LINGER: Duration = Duration::from_secs(1);

/// The longest and the shortest interval at which the deadlines of a connection are checked.
const CHECK_INTERVAL_MAX: Duration = Duration::from_millis(2500);
const CHECK_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Bounds on a connection.
#[derive(Clone, Copy, Debug)]
pub(in crate::grpc) struct ConnectionBounds {
    streams: u32,
    header_list_bytes: u32,
    keepalive_interval: Option<Duration>,
    keepalive_timeout: Duration,
    frame_timeout: Duration,
    idle: Option<Duration>,
    /// Ages at which the connection gets GOAWAY and at which it is closed.
    lifetime: Option<(Duration, Duration)>,
    /// Interval at which deadlines are checked.
    check_interval: Duration,
}

impl ConnectionBounds {
    pub(in crate::grpc) fn new(settings: &GrpcSettings) -> Self {
        let age = unless_zero(settings.grpc_max_connection_age);
        let grace = settings.grpc_max_connection_age_grace;
        let idle = unless_zero(settings.bounds.grpc_max_connection_idle);
        let frame = settings.bounds.grpc_message_timeout;
        let graces = age.map(|_| grace);
        let spans = [Some(frame), idle, age, graces];
        let shortest = spans.into_iter().flatten().min().unwrap_or(CHECK_INTERVAL_MAX);
        Self {
            streams: settings.bounds.grpc_max_concurrent_streams,
            header_list_bytes: settings.bounds.grpc_max_header_list_bytes,
            keepalive_interval: unless_zero(settings.grpc_keepalive_interval),
            keepalive_timeout: settings.grpc_keepalive_timeout,
            frame_timeout: frame,
            idle,
            lifetime: age.map(|age| (age, age.saturating_add(grace))),
            check_interval: (shortest / 2).clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX),
        }
    }

    /// An HTTP/2 server with these bounds.
    fn http2(&self, executor: CallExecutor) -> http2::Builder<CallExecutor> {
        let streams = usize::try_from(self.streams).unwrap_or(usize::MAX);
        let mut builder = http2::Builder::new(executor);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.streams)
            .max_header_list_size(self.header_list_bytes)
            .header_table_size(HEADER_TABLE_BYTES)
            .max_frame_size(FRAME_BYTES_MAX)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            // A caller may cancel all its calls at once, for example if this process was not scheduled.
            .max_pending_accept_reset_streams(streams)
            .max_local_error_reset_streams(STREAM_ERRORS_MAX.max(streams))
            .keep_alive_interval(self.keepalive_interval)
            .keep_alive_timeout(self.keepalive_timeout);
        builder
    }
}

/// The deadlines of a connection. They are checked at intervals, so that calls do not read the clock.
struct Deadlines {
    bounds: ConnectionBounds,
    opened: Instant,
    /// The time of the last check at which a call was in progress or had begun.
    last_call: Instant,
    /// The sequence number of a frame that has not fully arrived, and the time of the check that saw it first.
    unfinished_frame: Option<(u64, Instant)>,
    is_old: bool,
    /// The time of the GOAWAY, if it was sent for another reason than age.
    goaway_at: Option<Instant>,
}

/// What happens next to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Continue,
    /// The caller gets GOAWAY. The connection ends with its last call.
    GoAway,
    /// No more is read, and the connection is closed as soon as no request is being decided.
    CloseSoon,
    Close,
}

impl Deadlines {
    fn new(bounds: ConnectionBounds) -> Self {
        let now = Instant::now();
        Self {
            bounds,
            opened: now,
            last_call: now,
            unfinished_frame: None,
            is_old: false,
            goaway_at: None,
        }
    }

    /// Notes that the caller gets GOAWAY because the server stops.
    fn begin_stop(&mut self) {
        self.goaway_at.get_or_insert_with(Instant::now);
    }

    /// Checks the deadlines. Returns what to do, and the bound that was reached.
    fn check(
        &mut self,
        now: Instant,
        progress: Progress,
        has_calls: bool,
    ) -> (Action, Option<GrpcBound>) {
        self.unfinished_frame =
            progress.unfinished_sequence.map(|frame| match self.unfinished_frame {
                Some((same, since)) if same == frame => (frame, since),
                _ => (frame, now),
            });
        if self.unfinished_frame.is_some_and(|(_, since)| now - since >= self.bounds.frame_timeout)
        {
            return (Action::Close, Some(GrpcBound::MessageTimeout));
        }
        if self.bounds.lifetime.is_some_and(|(_, end)| now - self.opened >= end) {
            return (Action::Close, None);
        }
        if let Some(goaway_at) = self.goaway_at {
            let is_over = now - goaway_at >= GOAWAY_LINGER;
            return (if is_over { Action::CloseSoon } else { Action::Continue }, None);
        }
        if has_calls || progress.has_called {
            self.last_call = now;
        }
        if self.bounds.idle.is_some_and(|idle| now - self.last_call >= idle) {
            self.goaway_at = Some(now);
            return (Action::GoAway, Some(GrpcBound::ConnectionIdle));
        }
        let is_old = self.bounds.lifetime.is_some_and(|(age, _)| now - self.opened >= age);
        if is_old && !std::mem::replace(&mut self.is_old, true) {
            return (Action::GoAway, None);
        }
        (Action::Continue, None)
    }

    /// The time of the next check.
    fn next_check(&self) -> Instant {
        let check_interval = match self.goaway_at {
            Some(_) => self.bounds.check_interval.min(GOAWAY_LINGER / 4),
            None => self.bounds.check_interval,
        };
        Instant::now() + check_interval
    }
}

/// Serves a connection to its end. After `stop` it accepts no more calls, and ends after the last one.
pub(in crate::grpc) async fn serve(
    connection: Connection,
    bounds: ConnectionBounds,
    calls: Arc<CallHandler>,
    stop: CancellationToken,
) {
    let (executor, meter) = (CallExecutor::default(), FrameMeter::default());
    let mut calls_in_progress = CallsInProgress::new(executor.clone());
    let calls = Arc::new(ConnectionCallHandler::new(calls, connection.handle(), executor.clone()));
    let served_calls = Arc::clone(&calls);
    let mut connection = pin!(bounds.http2(executor).serve_connection(
        TokioIo::new(MeteredConnection::new(connection, meter.clone())),
        // Boxed, because the future is large and the HTTP/2 library moves it.
        service_fn(move |request| Box::pin(Arc::clone(&served_calls).answer(request))),
    ));
    let mut stopped = pin!(stop.cancelled().fuse());
    let mut deadlines = Deadlines::new(bounds);
    let mut next_check = pin!(tokio::time::sleep_until(deadlines.next_check()));
    let mut closes_soon = false;
    let batching = Arc::new(BatchingWaker::default());
    let waker = batching.waker();
    future::poll_fn(|context| {
        let task = context.waker();
        batching.begin(task);
        let context = &mut Context::from_waker(&waker);
        // No more is read while earlier calls are not started, so that unstarted calls do not accumulate.
        if !calls_in_progress.has_unstarted() {
            meter.begin_poll();
        }
        let mut passes = 0;
        loop {
            if stopped.as_mut().poll(context).is_ready() {
                deadlines.begin_stop();
                restart(next_check.as_mut(), &deadlines);
                connection.as_mut().graceful_shutdown();
            }
            while next_check.as_mut().poll(context).is_ready() {
                let now = Instant::now();
                let progress = meter.progress(now);
                let (action, bound) = deadlines.check(now, progress, !calls_in_progress.is_empty());
                if let Some(bound) = bound {
                    calls.count(bound);
                }
                match action {
                    Action::Continue => {}
                    Action::GoAway => connection.as_mut().graceful_shutdown(),
                    Action::CloseSoon => {
                        meter.stop_reading();
                        closes_soon = true;
                    }
                    Action::Close => return Poll::Ready(()),
                }
                restart(next_check.as_mut(), &deadlines);
            }
            loop {
                if passes == PASSES_MAX {
                    task.wake_by_ref();
                    return Poll::Pending;
                }
                passes += 1;
                let more = calls_in_progress.poll_woken(context);
                // Reads what has arrived, and sends the responses that are ready.
                if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "connection failed");
                        if let Some(bound) = exceeded_bound(&error, &meter) {
                            calls.count(bound);
                        }
                    }
                    return Poll::Ready(());
                }
                let started = calls_in_progress.start_new();
                if !more && !started {
                    break;
                }
            }
            if closes_soon && !calls.is_deciding() {
                return Poll::Ready(());
            }
            if meter.has_more_input() {
                task.wake_by_ref();
                return Poll::Pending;
            }
            // If the task was woken meanwhile, everything is polled again, `stopped` included.
            if batching.may_wait() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

fn restart(next_check: Pin<&mut Sleep>, deadlines: &Deadlines) {
    next_check.reset(deadlines.next_check());
}

/// The bound that a failed connection exceeded; `None` if it failed for another reason.
fn exceeded_bound(error: &hyper::Error, meter: &FrameMeter) -> Option<GrpcBound> {
    if meter.is_flooded() {
        return Some(GrpcBound::ControlFrames);
    }
    let http2 = error.source()?.downcast_ref::<h2::Error>()?;
    let is_ours = http2.is_go_away() && http2.is_library();
    (is_ours && http2.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM)).then_some(GrpcBound::Http2)
}

fn unless_zero(span: Duration) -> Option<Duration> {
    (!span.is_zero()).then_some(span)
}
