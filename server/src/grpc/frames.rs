//! What a peer sends on a connection, frame by frame, before HTTP/2 sees it.
//!
//! HTTP/2's library reads as long as there is something to read, and bounds neither frames that are never finished nor
//! those that carry no call. Here reading is metered, so that a connection yields to others, and such frames are noticed.

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

/// Bytes that are read before other connections have their turn. This bounds their content too: a byte of a header
/// list may encode a field.
const READ_MAX: usize = 64 * 1024;

/// Time in which frames without a call are counted together.
const CONTROL_PERIOD: Duration = Duration::from_millis(2500);

/// SETTINGS frames in one such period. Each is applied to every stream; callers send one or two in all.
const SETTINGS_MAX: u32 = 100;

/// Frames that carry no call in one such period: pings, resets, changes of windows and priorities, empty or unknown
/// frames.
const CONTROL_FRAMES_MAX: u32 = 10_000;

/// Further such frames for each call: callers may send some beside it.
const CONTROL_FRAMES_PER_CALL: u32 = 16;

/// Length of `PRI * HTTP/2.0`, with which a caller begins.
const PREFACE: usize = 24;

const HEAD: usize = 9;

/// What a connection's peer has sent so far. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Frames(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    part: Part,
    /// A header list continues in the next frame.
    in_headers: bool,
    /// Frames and whole header lists that have come, wrapping.
    finished: u64,
    /// Calls that were begun in this control period, and whether any was since the last look.
    calls: u32,
    has_called: bool,
    settings: u32,
    control: u32,
    control_began: Option<Instant>,
    /// What may still be read in this turn.
    readable: usize,
    /// There was more to read.
    is_cut: bool,
    is_stopped: bool,
    is_flooded: bool,
}

/// What comes next.
#[derive(Debug)]
enum Part {
    Preface { left: usize },
    Head { have: usize, head: [u8; HEAD] },
    Payload { left: usize },
}

impl Default for Part {
    fn default() -> Self {
        Self::Preface { left: PREFACE }
    }
}

impl Part {
    const HEAD: Self = Self::Head { have: 0, head: [0; HEAD] };
}

/// What a peer has done since the last look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// The number of the frame or header list that has begun and is not finished, if there is one.
    pub(super) unfinished: Option<u64>,
    /// Whether it has begun a call.
    pub(super) has_called: bool,
}

impl Frames {
    /// Lets the connection read again.
    pub(super) fn begin_turn(&self) {
        let mut state = self.0.lock();
        state.readable = READ_MAX;
        state.is_cut = false;
    }

    /// Whether there was more to read than one turn may.
    pub(super) fn is_cut(&self) -> bool {
        self.0.lock().is_cut
    }

    /// Reads nothing any more.
    pub(super) fn stop_reading(&self) {
        self.0.lock().is_stopped = true;
    }

    /// Whether the connection was ended for frames that carry no call.
    pub(super) fn is_flooded(&self) -> bool {
        self.0.lock().is_flooded
    }

    /// Looks at what has come since the last look.
    pub(super) fn look(&self, now: Instant) -> Progress {
        let mut state = self.0.lock();
        let is_within = match state.part {
            Part::Head { have, .. } => have > 0 || state.in_headers,
            Part::Preface { .. } | Part::Payload { .. } => true,
        };
        let began = *state.control_began.get_or_insert(now);
        if now - began >= CONTROL_PERIOD {
            state.control_began = Some(now);
            (state.calls, state.settings, state.control) = (0, 0, 0);
        }
        Progress {
            unfinished: is_within.then_some(state.finished),
            has_called: std::mem::take(&mut state.has_called),
        }
    }
}

impl State {
    /// Takes in what was read. An error if it is too much of what carries no call.
    fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.readable = self.readable.saturating_sub(bytes.len());
        while !bytes.is_empty() {
            match &mut self.part {
                Part::Preface { left } => {
                    skip(&mut bytes, left);
                    if *left == 0 {
                        self.part = Part::HEAD;
                    }
                }
                Part::Payload { left } => {
                    skip(&mut bytes, left);
                    if *left == 0 {
                        self.end_frame();
                    }
                }
                Part::Head { have, head } => {
                    let (_, missing) = head.split_at_mut(*have);
                    let length = missing.len().min(bytes.len());
                    let (next, rest) = bytes.split_at(length);
                    for (place, byte) in missing.iter_mut().zip(next) {
                        *place = *byte;
                    }
                    *have += length;
                    bytes = rest;
                    if *have == HEAD {
                        let head = *head;
                        self.begin_frame(head);
                    }
                }
            }
        }
        let control_max =
            CONTROL_FRAMES_MAX.saturating_add(self.calls.saturating_mul(CONTROL_FRAMES_PER_CALL));
        if self.settings > SETTINGS_MAX || self.control > control_max {
            self.is_flooded = true;
            return Err(io::Error::other("too many frames that carry no call"));
        }
        Ok(())
    }

    fn begin_frame(&mut self, head: [u8; HEAD]) {
        const DATA: u8 = 0;
        const HEADERS: u8 = 1;
        const SETTINGS: u8 = 4;
        const CONTINUATION: u8 = 9;
        const END_STREAM: u8 = 1;
        const END_HEADERS: u8 = 4;
        let [high, middle, low, kind, flags, ..] = head;
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
        self.part = Part::Payload { left: length };
        if length == 0 {
            self.end_frame();
        }
    }

    fn end_frame(&mut self) {
        self.part = Part::HEAD;
        if !self.in_headers {
            self.finished = self.finished.wrapping_add(1);
        }
    }
}

fn skip(bytes: &mut &[u8], left: &mut usize) {
    let length = bytes.len().min(*left);
    *left -= length;
    *bytes = bytes.split_at(length).1;
}

/// A connection whose frames are watched.
#[derive(Debug)]
pub(super) struct Metered<T> {
    connection: T,
    frames: Frames,
}

impl<T> Metered<T> {
    pub(super) const fn new(connection: T, frames: Frames) -> Self {
        Self { connection, frames }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Metered<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let me = self.get_mut();
        let mut state = me.frames.0.lock();
        if state.is_stopped || state.readable == 0 {
            // The connection's poll loop begins the next turn: nothing else wakes it.
            state.is_cut = !state.is_stopped;
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut me.connection).poll_read(context, buffer))?;
        Poll::Ready(state.read(buffer.filled().split_at(before).1))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Metered<T> {
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

    fn begun() -> Frames {
        let frames = Frames::default();
        frames.0.lock().read(&[0; PREFACE]).unwrap();
        frames
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let sent = [&[0; PREFACE][..], &frame(0, 4, 0), &frame(7, 1, 4), &frame(3, 0, 0)].concat();
        for size in 1..=sent.len() {
            let frames = Frames::default();
            for piece in sent.chunks(size) {
                frames.0.lock().read(piece).unwrap();
            }
            assert_eq!(frames.0.lock().settings, 1, "{size}");
            let progress = frames.look(Instant::now());
            assert!(progress.unfinished.is_none() && progress.has_called, "{size}: {progress:?}");
            assert!(!frames.look(Instant::now()).has_called);
            let state = frames.0.lock();
            assert_eq!((state.calls, state.finished), (1, 3), "{size}");
        }
    }

    #[test]
    fn a_frame_or_header_list_that_is_not_finished_is_told() {
        let frames = Frames::default();
        frames.0.lock().read(&[0; PREFACE - 1]).unwrap();
        assert_eq!(frames.look(Instant::now()).unfinished, Some(0), "half a preface");
        frames.0.lock().read(&[0]).unwrap();
        assert_eq!(frames.look(Instant::now()).unfinished, None);
        frames.0.lock().read(&[0, 0]).unwrap();
        assert_eq!(frames.look(Instant::now()).unfinished, Some(0), "half a head");
        frames.0.lock().read(&[2, 1, 0, 0, 0, 0, 1, 0xff]).unwrap();
        assert_eq!(frames.look(Instant::now()).unfinished, Some(0), "half a payload");
        frames.0.lock().read(&[0xff]).unwrap();
        assert_eq!(frames.look(Instant::now()).unfinished, Some(0), "no END_HEADERS yet");
        frames.0.lock().read(&frame(1, 9, 4)).unwrap();
        assert_eq!(frames.look(Instant::now()).unfinished, None);
        frames.0.lock().read(&[0]).unwrap();
        assert_eq!(frames.look(Instant::now()).unfinished, Some(1), "another");
    }

    #[test]
    fn floods_of_frames_that_carry_no_call_are_errors() {
        for (kind, max) in [(4, SETTINGS_MAX), (6, CONTROL_FRAMES_MAX), (0, CONTROL_FRAMES_MAX)] {
            let frames = begun();
            let flood =
                |count: u32| (0..count).try_for_each(|_| frames.0.lock().read(&frame(0, kind, 0)));
            flood(max).unwrap();
            let began = Instant::now();
            frames.look(began);
            frames.look(began + CONTROL_PERIOD);
            flood(max).unwrap();
            frames.look(began + CONTROL_PERIOD * 2 - Duration::from_millis(1));
            assert!(!frames.is_flooded());
            flood(1).unwrap_err();
            assert!(frames.is_flooded(), "{kind}");
        }
        // A caller may send some with each call.
        let frames = begun();
        for _ in 0..CONTROL_FRAMES_MAX {
            frames.0.lock().read(&frame(0, 1, 5)).unwrap();
            for _ in 0..CONTROL_FRAMES_PER_CALL {
                frames.0.lock().read(&frame(4, 8, 0)).unwrap();
            }
        }
        assert!(!frames.is_flooded());
    }
}
