//! Bounds on the HTTP/2 frames that a peer sends, below the HTTP/2 library.
//!
//! The library reads as long as the socket has data, and bounds neither frames that are never completed nor frames
//! without a call. This layer limits the bytes of each poll, so that a connection yields to others, and detects such
//! frames.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// Bytes that are read before the connection yields to others. This also bounds the work, because one byte of a
/// compressed header list can encode a header.
const READ_BYTES_MAX: usize = 64 * 1024;

/// The period in which frames without a call are counted.
const CONTROL_PERIOD: Duration = Duration::from_millis(2500);

/// SETTINGS frames in one such period. Each is applied to every stream; a usual caller sends one or two per connection.
const SETTINGS_MAX: u32 = 100;

/// Frames without a call in one such period: pings, resets, changes of windows and priorities, empty or unknown frames.
const CONTROL_FRAMES_MAX: u32 = 10_000;

/// Further such frames for each call, because callers send some with a call.
const CONTROL_FRAMES_PER_CALL: u32 = 16;

/// Length of the connection preface, `PRI * HTTP/2.0…`.
const PREFACE_BYTES: usize = 24;

/// Length of the header of each frame.
const FRAME_HEADER_BYTES: usize = 9;

/// Meters the frames that the peer of a connection sends. Clones share the state.
#[derive(Clone, Debug, Default)]
pub(super) struct FrameMeter(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    position: Position,
    /// A header list continues in the next frame.
    in_headers: bool,
    /// The count of frames and header lists that have fully arrived, wrapping. It is the sequence number of the next.
    finished: u64,
    /// Calls that began in this control period.
    calls: u32,
    /// Whether a call began since the last [`FrameMeter::progress`].
    has_called: bool,
    settings: u32,
    control: u32,
    control_began: Option<Instant>,
    /// Bytes that may still be read in this poll.
    readable: usize,
    /// The poll ended before the socket was read empty.
    has_more_input: bool,
    is_stopped: bool,
    is_flooded: bool,
}

/// The position in the stream of frames: which part the next byte belongs to.
#[derive(Debug)]
enum Position {
    Preface { left: usize },
    Header { have: usize, header: [u8; FRAME_HEADER_BYTES] },
    Payload { left: usize },
}

impl Default for Position {
    fn default() -> Self {
        Self::Preface { left: PREFACE_BYTES }
    }
}

impl Position {
    const NEXT_FRAME: Self = Self::Header { have: 0, header: [0; FRAME_HEADER_BYTES] };
}

/// The progress of a peer since the last call of [`FrameMeter::progress`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// The sequence number of the frame or header list that has not fully arrived, if there is one.
    pub(super) unfinished_sequence: Option<u64>,
    /// Whether a call began.
    pub(super) has_called: bool,
}

impl FrameMeter {
    /// Begins a poll of the connection, in which it may read [`READ_BYTES_MAX`] bytes.
    pub(super) fn begin_poll(&self) {
        let mut state = self.0.lock();
        state.readable = READ_BYTES_MAX;
        state.has_more_input = false;
    }

    /// Whether the poll ended before the socket was read empty.
    pub(super) fn has_more_input(&self) -> bool {
        self.0.lock().has_more_input
    }

    /// Stops reading for the rest of the connection.
    pub(super) fn stop_reading(&self) {
        self.0.lock().is_stopped = true;
    }

    /// Whether reading failed because of too many frames without a call.
    pub(super) fn is_flooded(&self) -> bool {
        self.0.lock().is_flooded
    }

    /// The progress since the last call. Begins the next control period if it is due.
    pub(super) fn progress(&self, now: Instant) -> Progress {
        let mut state = self.0.lock();
        let is_unfinished = match state.position {
            Position::Header { have, .. } => have > 0 || state.in_headers,
            Position::Preface { .. } | Position::Payload { .. } => true,
        };
        let began = *state.control_began.get_or_insert(now);
        if now - began >= CONTROL_PERIOD {
            state.control_began = Some(now);
            (state.calls, state.settings, state.control) = (0, 0, 0);
        }
        Progress {
            unfinished_sequence: is_unfinished.then_some(state.finished),
            has_called: std::mem::take(&mut state.has_called),
        }
    }
}

impl State {
    /// Counts the frames in bytes that were read. Fails if there are too many without a call.
    fn count(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.readable = self.readable.saturating_sub(bytes.len());
        while !bytes.is_empty() {
            match &mut self.position {
                Position::Preface { left } => {
                    skip(&mut bytes, left);
                    if *left == 0 {
                        self.position = Position::NEXT_FRAME;
                    }
                }
                Position::Payload { left } => {
                    skip(&mut bytes, left);
                    if *left == 0 {
                        self.end_frame();
                    }
                }
                Position::Header { have, header } => {
                    let (_, missing) = header.split_at_mut(*have);
                    let length = missing.len().min(bytes.len());
                    let (next, rest) = bytes.split_at(length);
                    for (missing, byte) in missing.iter_mut().zip(next) {
                        *missing = *byte;
                    }
                    *have += length;
                    bytes = rest;
                    if *have == FRAME_HEADER_BYTES {
                        let header = *header;
                        self.begin_frame(header);
                    }
                }
            }
        }
        let control_max =
            CONTROL_FRAMES_MAX.saturating_add(self.calls.saturating_mul(CONTROL_FRAMES_PER_CALL));
        if self.settings > SETTINGS_MAX || self.control > control_max {
            self.is_flooded = true;
            return Err(io::Error::other("too many frames without a call"));
        }
        Ok(())
    }

    fn begin_frame(&mut self, header: [u8; FRAME_HEADER_BYTES]) {
        const DATA: u8 = 0;
        const HEADERS: u8 = 1;
        const SETTINGS: u8 = 4;
        const CONTINUATION: u8 = 9;
        const END_STREAM: u8 = 1;
        const END_HEADERS: u8 = 4;
        let [high, middle, low, kind, flags, ..] = header;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        match kind {
            HEADERS | CONTINUATION => {
                self.in_headers = flags & END_HEADERS == 0;
                if kind == HEADERS {
                    self.calls = self.calls.saturating_add(1);
                    self.has_called = true;
                } else {
                    self.control = self.control.saturating_add(1);
                }
            }
            DATA if length > 0 || flags & END_STREAM != 0 => {}
            SETTINGS => self.settings = self.settings.saturating_add(1),
            _ => self.control = self.control.saturating_add(1),
        }
        self.position = Position::Payload { left: length };
        if length == 0 {
            self.end_frame();
        }
    }

    fn end_frame(&mut self) {
        self.position = Position::NEXT_FRAME;
        if !self.in_headers {
            self.finished = self.finished.wrapping_add(1);
        }
    }
}

/// Skips at most `left` bytes, and subtracts their number from `left`.
fn skip(bytes: &mut &[u8], left: &mut usize) {
    let length = bytes.len().min(*left);
    *left -= length;
    *bytes = bytes.split_at(length).1;
}

/// A connection whose frames are metered.
#[derive(Debug)]
pub(super) struct MeteredConnection<T> {
    connection: T,
    meter: FrameMeter,
}

impl<T> MeteredConnection<T> {
    pub(super) const fn new(connection: T, meter: FrameMeter) -> Self {
        Self { connection, meter }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for MeteredConnection<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut state = this.meter.0.lock();
        if state.is_stopped || state.readable == 0 {
            // No waker is registered: the connection's poll loop begins the next poll.
            state.has_more_input = !state.is_stopped;
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.connection).poll_read(context, buffer))?;
        Poll::Ready(state.count(buffer.filled().split_at(before).1))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for MeteredConnection<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: u8, kind: u8, flags: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.extend(std::iter::repeat_n(0xff, length.into()));
        frame
    }

    /// A meter after the preface.
    fn after_preface() -> FrameMeter {
        let meter = FrameMeter::default();
        meter.0.lock().count(&[0; PREFACE_BYTES]).unwrap();
        meter
    }

    #[test]
    fn frames_are_counted_however_they_are_split() {
        let sent =
            [&[0; PREFACE_BYTES][..], &frame(0, 4, 0), &frame(7, 1, 4), &frame(3, 0, 0)].concat();
        for size in 1..=sent.len() {
            let meter = FrameMeter::default();
            for piece in sent.chunks(size) {
                meter.0.lock().count(piece).unwrap();
            }
            assert_eq!(meter.0.lock().settings, 1, "{size}");
            let progress = meter.progress(Instant::now());
            assert!(
                progress.unfinished_sequence.is_none() && progress.has_called,
                "{size}: {progress:?}"
            );
            assert!(!meter.progress(Instant::now()).has_called);
            let state = meter.0.lock();
            assert_eq!((state.calls, state.finished), (1, 3), "{size}");
        }
    }

    #[test]
    fn an_unfinished_frame_or_header_list_is_reported() {
        let meter = FrameMeter::default();
        meter.0.lock().count(&[0; PREFACE_BYTES - 1]).unwrap();
        assert_eq!(meter.progress(Instant::now()).unfinished_sequence, Some(0), "half a preface");
        meter.0.lock().count(&[0]).unwrap();
        assert_eq!(meter.progress(Instant::now()).unfinished_sequence, None);
        meter.0.lock().count(&[0, 0]).unwrap();
        assert_eq!(meter.progress(Instant::now()).unfinished_sequence, Some(0), "half a header");
        meter.0.lock().count(&[2, 1, 0, 0, 0, 0, 1, 0xff]).unwrap();
        assert_eq!(meter.progress(Instant::now()).unfinished_sequence, Some(0), "half a payload");
        meter.0.lock().count(&[0xff]).unwrap();
        assert_eq!(
            meter.progress(Instant::now()).unfinished_sequence,
            Some(0),
            "no END_HEADERS yet"
        );
        meter.0.lock().count(&frame(1, 9, 4)).unwrap();
        assert_eq!(meter.progress(Instant::now()).unfinished_sequence, None);
        meter.0.lock().count(&[0]).unwrap();
        assert_eq!(meter.progress(Instant::now()).unfinished_sequence, Some(1), "another");
    }

    #[test]
    fn floods_of_frames_without_a_call_are_errors() {
        for (kind, max) in [(4, SETTINGS_MAX), (6, CONTROL_FRAMES_MAX), (0, CONTROL_FRAMES_MAX)] {
            let meter = after_preface();
            let flood =
                |count: u32| (0..count).try_for_each(|_| meter.0.lock().count(&frame(0, kind, 0)));
            flood(max).unwrap();
            let began = Instant::now();
            meter.progress(began);
            meter.progress(began + CONTROL_PERIOD);
            flood(max).unwrap();
            meter.progress(began + CONTROL_PERIOD * 2 - Duration::from_millis(1));
            assert!(!meter.is_flooded());
            flood(1).unwrap_err();
            assert!(meter.is_flooded(), "{kind}");
        }
        // Callers may send some with each call.
        let meter = after_preface();
        for _ in 0..CONTROL_FRAMES_MAX {
            meter.0.lock().count(&frame(0, 1, 5)).unwrap();
            for _ in 0..CONTROL_FRAMES_PER_CALL {
                meter.0.lock().count(&frame(4, 8, 0)).unwrap();
            }
        }
        assert!(!meter.is_flooded());
    }
}
