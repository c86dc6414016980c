//! Random bytes as HTTP/2: frames are counted correctly in whatever pieces they arrive, and an unfinished frame or
//! header list is detected.

#![no_main]

#[expect(dead_code, reason = "the server uses more of it")]
#[path = "../../server/src/grpc/frames.rs"]
mod frames;

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

use arbitrary::Arbitrary;
use frames::{FrameMeter, MeteredConnection};
use libfuzzer_sys::fuzz_target;
use tokio::{
    io::{AsyncRead as _, ReadBuf},
    time::Instant,
};

const PREFACE: usize = 24;
const HEAD: usize = 9;

/// Frames of the types of HTTP/2, followed by random bytes.
#[derive(Arbitrary, Debug)]
struct Input<'a> {
    frames: Vec<Frame<'a>>,
    rest: &'a [u8],
    piece: u16,
}

#[derive(Arbitrary, Debug)]
struct Frame<'a> {
    kind: u8,
    flags: u8,
    payload: &'a [u8],
    times: u16,
}

/// Numbers of frames that a peer has sent.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    calls: u32,
    settings: u32,
    control: u32,
    /// A frame or a header list is not finished.
    is_within: bool,
}

fuzz_target!(|input: Input<'_>| {
    let mut sent = vec![0; PREFACE];
    for frame in input.frames.iter().take(4) {
        let payload = &frame.payload[..frame.payload.len().min(255)];
        let head = [0, 0, payload.len() as u8, frame.kind % 12, frame.flags, 0, 0, 0, 1];
        let frame_bytes = [&head[..], payload].concat();
        sent.extend(frame_bytes.repeat(usize::from(frame.times % 512)));
    }
    sent.extend(input.rest);

    let meter = FrameMeter::default();
    let mut connection = MeteredConnection::new(&sent[..], meter.clone());
    let mut buffer = vec![0; usize::from(input.piece).max(1)];
    let context = &mut Context::from_waker(Waker::noop());
    loop {
        meter.begin_poll();
        let mut read = ReadBuf::new(&mut buffer);
        match Pin::new(&mut connection).poll_read(context, &mut read) {
            Poll::Ready(Ok(())) if read.filled().is_empty() => break,
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => {
                assert!(meter.is_flooded());
                let sent = count(&sent);
                assert!(sent.settings > 100 || sent.control > 10_000, "{sent:?}");
                return;
            }
            Poll::Pending => panic!("nothing is read"),
        }
    }
    assert!(!meter.is_flooded());
    let expected = count(&sent);
    assert!(expected.settings <= 100 && expected.control <= 10_000 + 16 * expected.calls);
    let progress = meter.progress(Instant::now());
    assert_eq!(progress.has_called, expected.calls > 0);
    assert_eq!(progress.unfinished_sequence.is_some(), expected.is_within);
});

fn count(sent: &[u8]) -> Counts {
    let (mut counts, mut in_headers) = (Counts::default(), false);
    let mut rest = &sent[PREFACE..];
    while let Some((head, after)) = rest.split_at_checked(HEAD) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (kind, flags) = (head[3], head[4]);
        match kind {
            0 if length > 0 || flags & 1 > 0 => {}
            1 => counts.calls += 1,
            4 => counts.settings += 1,
            _ => counts.control += 1,
        }
        if kind == 1 || kind == 9 {
            in_headers = flags & 4 == 0;
        }
        rest = match after.split_at_checked(length) {
            Some((_, rest)) => rest,
            None => return Counts { is_within: true, ..counts },
        };
    }
    Counts { is_within: in_headers || !rest.is_empty(), ..counts }
}
