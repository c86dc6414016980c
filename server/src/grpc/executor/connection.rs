//! Serving one HTTP/2 connection.

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
    calls::{Calls, ConnectionCalls},
    tasks::{CallExecutor, Tasks},
    waker::BatchingWaker,
};
use crate::{
    grpc::{
        bound::GrpcBound,
        frames::{Frames, Metered, Progress},
    },
    listen::Connection,
    settings::GrpcSettings,
};

/// The most turns in one poll of a connection. Then other tasks run: the runtime's budget would make every future of
/// this one return pending without end.
const TURNS_MAX: usize = 16;

/// Bytes of a call's body, and of all bodies of a connection, that may be sent before they are read. Messages may be
/// larger.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// The largest frame, which is HTTP/2's default.
const FRAME_BYTES_MAX: u32 = 16 * 1024;

/// Bytes of the table that compresses a connection's headers, which is HTTP/2's default.
const HEADER_TABLE_BYTES: u32 = 4096;

/// Bytes of a call's answer that wait for the caller to take them.
const SEND_BUFFER: usize = 64 * 1024;

/// Streams beyond the bound, and other mistakes of a caller in single streams, after which a connection is closed.
/// Before it has read the bound, a caller may begin any number, and must not lose those that were taken.
const STREAM_ERRORS_MAX: usize = 20_000;

/// How long a connection that was asked to end may go on without a call in progress.
const LINGER: Duration = Duration::from_secs(1);

/// The longest and the shortest time between two looks at a connection's deadlines.
const PERIOD_MAX: Duration = Duration::from_millis(2500);
const PERIOD_MIN: Duration = Duration::from_millis(10);

/// What bounds a connection.
#[derive(Clone, Copy, Debug)]
pub(in crate::grpc) struct Bounds {
    streams: u32,
    header_list_bytes: u32,
    keepalive_interval: Option<Duration>,
    keepalive_timeout: Duration,
    frame_timeout: Duration,
    idle: Option<Duration>,
    /// Times after which it gets GOAWAY, and after which it is closed.
    lifetime: Option<(Duration, Duration)>,
    /// Time between two looks at deadlines.
    period: Duration,
}

impl Bounds {
    pub(in crate::grpc) fn new(settings: &GrpcSettings) -> Self {
        let age = unless_zero(settings.grpc_max_connection_age);
        let grace = settings.grpc_max_connection_age_grace;
        let idle = unless_zero(settings.bounds.grpc_max_connection_idle);
        let frame = settings.bounds.grpc_message_timeout;
        let graces = age.map(|_| grace);
        let spans = [Some(frame), idle, age, graces];
        let shortest = spans.into_iter().flatten().min().unwrap_or(PERIOD_MAX);
        Self {
            streams: settings.bounds.grpc_max_concurrent_streams,
            header_list_bytes: settings.bounds.grpc_max_header_list_bytes,
            keepalive_interval: unless_zero(settings.grpc_keepalive_interval),
            keepalive_timeout: settings.grpc_keepalive_timeout,
            frame_timeout: frame,
            idle,
            lifetime: age.map(|age| (age, age.saturating_add(grace))),
            period: (shortest / 2).clamp(PERIOD_MIN, PERIOD_MAX),
        }
    }

    /// HTTP/2 with these bounds.
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
            // A caller may give all its calls up at once, when this process was kept waiting.
            .max_pending_accept_reset_streams(streams)
            .max_local_error_reset_streams(STREAM_ERRORS_MAX.max(streams))
            .keep_alive_interval(self.keepalive_interval)
            .keep_alive_timeout(self.keepalive_timeout);
        builder
    }
}

/// The deadlines of a connection, looked at once in a while, so that calls cost no clock.
struct Deadlines {
    bounds: Bounds,
    opened: Instant,
    /// When there was a call last.
    called: Instant,
    /// A frame that was not finished, and since when.
    unfinished: Option<(u64, Instant)>,
    is_old: bool,
    /// When it was asked to end, other than for its age.
    asked: Option<Instant>,
}

/// What is to be done with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    GoOn,
    /// It takes no more calls and ends with the last.
    AskToEnd,
    /// It ends as soon as no call is being decided.
    EndSoon,
    End,
}

impl Deadlines {
    fn new(bounds: Bounds) -> Self {
        let now = Instant::now();
        Self { bounds, opened: now, called: now, unfinished: None, is_old: false, asked: None }
    }

    fn ask_to_end(&mut self) {
        self.asked.get_or_insert_with(Instant::now);
    }

    /// The next step, and the bound that was met.
    fn look(
        &mut self,
        now: Instant,
        progress: Progress,
        has_calls: bool,
    ) -> (Step, Option<GrpcBound>) {
        self.unfinished = progress.unfinished.map(|frame| match self.unfinished {
            Some((same, since)) if same == frame => (frame, since),
            _ => (frame, now),
        });
        if self.unfinished.is_some_and(|(_, since)| now - since >= self.bounds.frame_timeout) {
            return (Step::End, Some(GrpcBound::MessageTimeout));
        }
        if self.bounds.lifetime.is_some_and(|(_, end)| now - self.opened >= end) {
            return (Step::End, None);
        }
        if let Some(asked) = self.asked {
            return (if now - asked >= LINGER { Step::EndSoon } else { Step::GoOn }, None);
        }
        if has_calls || progress.has_called {
            self.called = now;
        }
        if self.bounds.idle.is_some_and(|idle| now - self.called >= idle) {
            self.asked = Some(now);
            return (Step::AskToEnd, Some(GrpcBound::ConnectionIdle));
        }
        let is_old = self.bounds.lifetime.is_some_and(|(age, _)| now - self.opened >= age);
        if is_old && !std::mem::replace(&mut self.is_old, true) {
            return (Step::AskToEnd, None);
        }
        (Step::GoOn, None)
    }

    /// When to look again.
    fn next(&self) -> Instant {
        let period = match self.asked {
            Some(_) => self.bounds.period.min(LINGER / 4),
            None => self.bounds.period,
        };
        Instant::now() + period
    }
}

/// Serves a connection to its end. After `stop` it takes no more calls, and ends after the last.
pub(in crate::grpc) async fn serve(
    connection: Connection,
    bounds: Bounds,
    calls: Arc<Calls>,
    stop: CancellationToken,
) {
    let (executor, frames) = (CallExecutor::default(), Frames::default());
    let mut tasks = Tasks::new(executor.clone());
    let calls = Arc::new(ConnectionCalls::new(calls, connection.handle(), executor.clone()));
    let of_service = Arc::clone(&calls);
    let mut connection = pin!(bounds.http2(executor).serve_connection(
        TokioIo::new(Metered::new(connection, frames.clone())),
        // Boxed at once, because it is large and HTTP/2 moves it about.
        service_fn(move |request| Box::pin(Arc::clone(&of_service).answer(request))),
    ));
    let mut stopped = pin!(stop.cancelled().fuse());
    let mut deadlines = Deadlines::new(bounds);
    let mut look = pin!(tokio::time::sleep_until(deadlines.next()));
    let mut ends_soon = false;
    let batching = Arc::new(BatchingWaker::default());
    let waker = batching.waker();
    future::poll_fn(|context| {
        let task = context.waker();
        batching.begin(task);
        let context = &mut Context::from_waker(&waker);
        // Calls that were read before are started first, so that they do not pile up.
        if !tasks.has_unstarted() {
            frames.begin_turn();
        }
        let mut turns = 0;
        loop {
            if stopped.as_mut().poll(context).is_ready() {
                deadlines.ask_to_end();
                restart(look.as_mut(), &deadlines);
                connection.as_mut().graceful_shutdown();
            }
            while look.as_mut().poll(context).is_ready() {
                let now = Instant::now();
                let (step, met) = deadlines.look(now, frames.look(now), !tasks.is_empty());
                if let Some(met) = met {
                    calls.count(met);
                }
                match step {
                    Step::GoOn => {}
                    Step::AskToEnd => connection.as_mut().graceful_shutdown(),
                    Step::EndSoon => {
                        frames.stop_reading();
                        ends_soon = true;
                    }
                    Step::End => return Poll::Ready(()),
                }
                restart(look.as_mut(), &deadlines);
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
                        if let Some(met) = bound_of(&error, &frames) {
                            calls.count(met);
                        }
                    }
                    return Poll::Ready(());
                }
                let started = tasks.start();
                if !more && !started {
                    break;
                }
            }
            if ends_soon && !calls.is_deciding() {
                return Poll::Ready(());
            }
            if frames.is_cut() {
                task.wake_by_ref();
                return Poll::Pending;
            }
            // What has woken the task meanwhile may be the request to stop.
            if batching.may_wait() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

fn restart(look: Pin<&mut Sleep>, deadlines: &Deadlines) {
    look.reset(deadlines.next());
}

/// The bound for which a connection was ended.
fn bound_of(error: &hyper::Error, frames: &Frames) -> Option<GrpcBound> {
    if frames.is_flooded() {
        return Some(GrpcBound::ControlFrames);
    }
    let http2 = error.source()?.downcast_ref::<h2::Error>()?;
    let is_ours = http2.is_go_away() && http2.is_library();
    (is_ours && http2.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM)).then_some(GrpcBound::Http2)
}

fn unless_zero(span: Duration) -> Option<Duration> {
    (!span.is_zero()).then_some(span)
}
