//! The load generator: HTTP/2 by hand over encoded requests, closed loop. It reads no more of an answer than that
//! there is one, so that it takes as little as possible of a machine that it shares with the servers.
//!
//! What was decided is not its business: the servers' own counters say that.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use nix::time::ClockId;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::load::{Requests, Shape};

/// When no more requests are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// After so many on all connections.
    Requests(usize),
    /// After so long.
    After(Duration),
}

/// What was sent and how it was answered.
#[derive(Clone, Debug)]
pub(crate) struct Driven {
    /// Allowed requests.
    pub(crate) allowed: u64,
    /// Requests that are refused.
    pub(crate) refused: u64,
    /// From the first request to the last answer.
    pub(crate) elapsed: Duration,
    /// From the write to the read, in nanoseconds.
    pub(crate) latency: Histogram<u64>,
    /// CPU time of the generator itself.
    pub(crate) cpu: Duration,
}

impl Driven {
    /// All of them.
    pub(crate) const fn requests(&self) -> u64 {
        self.allowed + self.refused
    }
}

/// Sends requests in their order, again and again. Every connection begins elsewhere.
///
/// # Panics
/// A request is answered without a message, which is how gRPC says that it failed.
pub(crate) async fn drive(
    address: &str,
    shape: Shape,
    requests: &Arc<Requests>,
    end: End,
) -> Driven {
    let mut connections = Vec::new();
    for number in 0..shape.connections {
        connections.push(Connection::open(address, number, shape, Arc::clone(requests)).await);
    }
    let cpu = thread_cpu();
    let started = Instant::now();
    let tasks: Vec<_> = connections
        .into_iter()
        .enumerate()
        .map(|(number, mut connection)| {
            let budget = match end {
                End::Requests(all) => Budget {
                    requests: all / shape.connections
                        + usize::from(number < all % shape.connections),
                    until: None,
                },
                End::After(span) => Budget { requests: usize::MAX, until: Some(started + span) },
            };
            tokio::spawn(async move {
                connection.run(budget).await;
                connection
            })
        })
        .collect();
    let mut driven = Driven {
        allowed: 0,
        refused: 0,
        elapsed: Duration::ZERO,
        latency: Histogram::new(3).unwrap(),
        cpu: Duration::ZERO,
    };
    for task in tasks {
        let connection = task.await.unwrap();
        driven.allowed += connection.allowed;
        driven.refused += connection.refused;
        driven.latency.add(connection.latency).unwrap();
    }
    driven.elapsed = started.elapsed();
    driven.cpu = thread_cpu() - cpu;
    driven
}

/// The runtime has one thread, so this is the generator's.
fn thread_cpu() -> Duration {
    ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap().into()
}

/// What may still be sent.
struct Budget {
    requests: usize,
    until: Option<Instant>,
}

impl Budget {
    fn take(&mut self, now: Instant) -> bool {
        if self.until.is_some_and(|until| now >= until) {
            self.requests = 0;
        }
        let left = self.requests > 0;
        self.requests = self.requests.saturating_sub(1);
        left
    }
}

/// The kinds of frames that matter here.
mod kind {
    pub(super) const DATA: u8 = 0;
    pub(super) const HEADERS: u8 = 1;
    pub(super) const RESET: u8 = 3;
    pub(super) const SETTINGS: u8 = 4;
    pub(super) const PING: u8 = 6;
    pub(super) const GOAWAY: u8 = 7;
    pub(super) const WINDOW_UPDATE: u8 = 8;
}

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// A frame's length, kind, flags and stream.
const FRAME_HEAD: usize = 9;

/// Initial flow control window of a side.
const WINDOW: u32 = 65_535;

/// The room that this side says it has.
const ROOM: u32 = (1 << 31) - 1;

/// Bytes read before a window update.
const READ_UNTOLD_MAX: u32 = 1 << 30;

/// How much is read at once.
const READ: usize = 1 << 17;

/// What is asked for.
pub(crate) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// A request in progress.
#[derive(Clone, Copy)]
struct Sent {
    at: Instant,
    has_message: bool,
    answered: bool,
}

struct Connection {
    socket: TcpStream,
    requests: Arc<Requests>,
    streams: usize,
    /// The place in the order that comes next.
    next: usize,
    /// Streams from the oldest that is not answered on.
    sent: VecDeque<Sent>,
    /// The number of the first of them; streams have the odd ones.
    oldest: u32,
    in_progress: usize,
    write: Vec<u8>,
    read: Vec<u8>,
    /// How many bytes of `read` are filled.
    filled: usize,
    /// What the server has room for.
    window: i64,
    read_untold: u32,
    /// The headers of a request, once the server knows them.
    headers: Vec<u8>,
    allowed: u64,
    refused: u64,
    latency: Histogram<u64>,
}

impl Connection {
    async fn open(address: &str, number: usize, shape: Shape, requests: Arc<Requests>) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        socket.set_nodelay(true).unwrap();
        let next = requests.order.len() / shape.connections * number;
        let mut connection = Self {
            socket,
            requests,
            streams: shape.streams,
            next,
            sent: VecDeque::new(),
            oldest: 1,
            in_progress: 0,
            write: Vec::new(),
            read: vec![0; READ],
            filled: 0,
            window: WINDOW.into(),
            read_untold: 0,
            headers: first_headers(address),
            allowed: 0,
            refused: 0,
            latency: Histogram::new(3).unwrap(),
        };
        connection.write.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        connection.frame(kind::SETTINGS, 0, 0, &[]);
        connection.frame(kind::WINDOW_UPDATE, 0, 0, &(ROOM - WINDOW).to_be_bytes());
        connection
    }

    /// Keeps its streams busy until nothing may be sent, and waits for the last answers.
    async fn run(&mut self, mut budget: Budget) {
        loop {
            self.send(&mut budget);
            if self.in_progress == 0 && self.write.is_empty() {
                return;
            }
            self.socket.write_all(&self.write).await.unwrap();
            self.write.clear();
            if self.in_progress > 0 {
                let read = self.socket.read(&mut self.read[self.filled..]).await.unwrap();
                assert!(read > 0, "the server has closed the connection");
                self.filled += read;
                self.receive();
            }
        }
    }

    /// Puts as many requests into the buffer as may be in progress.
    fn send(&mut self, budget: &mut Budget) {
        let now = Instant::now();
        while self.in_progress < self.streams {
            let requests = Arc::clone(&self.requests);
            let body = &requests.bodies[requests.order[self.next]];
            let length = i64::try_from(body.framed.len()).unwrap();
            if self.window < length || !budget.take(now) {
                return;
            }
            self.window -= length;
            self.next = (self.next + 1) % requests.order.len();
            if body.refused {
                self.refused += 1;
            } else {
                self.allowed += 1;
            }
            let stream = self.oldest + 2 * u32::try_from(self.sent.len()).unwrap();
            let headers = std::mem::take(&mut self.headers);
            self.frame(kind::HEADERS, END_HEADERS, stream, &headers);
            self.headers = if stream == 1 { INDEXED_HEADERS.to_vec() } else { headers };
            self.frame(kind::DATA, END_STREAM, stream, &body.framed);
            self.sent.push_back(Sent { at: now, has_message: false, answered: false });
            self.in_progress += 1;
        }
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        self.write.extend_from_slice(&length[1..]);
        self.write.extend_from_slice(&[kind, flags]);
        self.write.extend_from_slice(&stream.to_be_bytes());
        self.write.extend_from_slice(payload);
    }

    /// Takes all whole frames from what was read.
    fn receive(&mut self) {
        let now = Instant::now();
        let read = std::mem::take(&mut self.read);
        let mut rest = &read[..self.filled];
        while let Some((head, after)) = rest.split_at_checked(FRAME_HEAD) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let Some((payload, after)) = after.split_at_checked(length.try_into().unwrap()) else {
                break;
            };
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            self.received(head[3], head[4], stream, payload, now);
            rest = after;
        }
        let left = rest.len();
        let from = self.filled - left;
        self.read = read;
        self.read.copy_within(from..self.filled, 0);
        self.filled = left;
    }

    fn received(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8], now: Instant) {
        match kind {
            kind::DATA => {
                let read = u32::try_from(payload.len()).unwrap();
                self.stream(stream).has_message |= read > 0;
                self.read_untold += read;
                if self.read_untold > READ_UNTOLD_MAX {
                    let read = std::mem::take(&mut self.read_untold);
                    self.frame(kind::WINDOW_UPDATE, 0, 0, &read.to_be_bytes());
                }
            }
            kind::HEADERS if flags & END_STREAM != 0 => self.answered(stream, now),
            kind::SETTINGS if flags & ACK == 0 => self.frame(kind::SETTINGS, ACK, 0, &[]),
            kind::PING if flags & ACK == 0 => self.frame(kind::PING, ACK, 0, payload),
            kind::WINDOW_UPDATE if stream == 0 => {
                self.window += i64::from(u32::from_be_bytes(payload.try_into().unwrap()));
            }
            kind::RESET | kind::GOAWAY => panic!("the server sends {kind}: {payload:?}"),
            _ => {}
        }
    }

    fn answered(&mut self, stream: u32, now: Instant) {
        let sent = self.stream(stream);
        assert!(sent.has_message, "a request was answered with an error");
        sent.answered = true;
        let latency = now.duration_since(sent.at).as_nanos();
        self.latency.record(latency.try_into().unwrap()).unwrap();
        self.in_progress -= 1;
        while self.sent.front().is_some_and(|sent| sent.answered) {
            self.sent.pop_front();
            self.oldest += 2;
        }
    }

    fn stream(&mut self, stream: u32) -> &mut Sent {
        &mut self.sent[usize::try_from((stream - self.oldest) / 2).unwrap()]
    }
}

/// The headers of the first request, which the server is to remember.
fn first_headers(address: &str) -> Vec<u8> {
    // POST, http: entries of the table that both sides have from the start.
    let mut headers = vec![0x83, 0x86];
    let mut remembered = |name: &[u8], value: &str| {
        headers.extend_from_slice(name);
        headers.push(value.len().try_into().unwrap());
        headers.extend_from_slice(value.as_bytes());
    };
    remembered(&[0x44], PATH);
    remembered(&[0x41], address);
    remembered(&[0x5f], "application/grpc");
    remembered(b"\x40\x02te", "trailers");
    headers
}

/// The same by their places in the table: the last that was remembered is the first.
const INDEXED_HEADERS: [u8; 6] = [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];
