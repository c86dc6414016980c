//! The load generator: a closed loop of encoded requests over a minimal HTTP/2 client. It only detects that there is an
//! answer, so that it uses as little CPU as possible on the machine that it shares with the servers.
//!
//! The decisions are verified by the servers' metrics.

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

/// When to stop sending requests.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// After this number of requests on all connections.
    Requests(usize),
    /// After this duration.
    After(Duration),
}

/// The result of a load.
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
    /// Number of all requests.
    pub(crate) const fn requests(&self) -> u64 {
        self.allowed + self.refused
    }
}

/// Sends requests in their order, repeatedly. Every connection begins at another position.
///
/// # Panics
/// A request is answered without a message, because the call failed.
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

/// CPU time of this thread. The runtime has one thread, so it is that of the generator.
fn thread_cpu() -> Duration {
    ClockId::CLOCK_THREAD_CPUTIME_ID.now().unwrap().into()
}

/// The requests that a connection may still send.
struct Budget {
    requests: usize,
    until: Option<Instant>,
}

impl Budget {
    /// Counts a request against the budget. Returns whether it may be sent.
    fn spend(&mut self, now: Instant) -> bool {
        if self.until.is_some_and(|until| now >= until) {
            self.requests = 0;
        }
        let left = self.requests > 0;
        self.requests = self.requests.saturating_sub(1);
        left
    }
}

/// The frame types that the generator uses.
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

/// Bytes of a frame's header: length, type, flags and stream.
const FRAME_HEAD: usize = 9;

/// Initial flow control window.
const WINDOW: u32 = 65_535;

/// The flow control window that the generator announces.
const ANNOUNCED_WINDOW: u32 = (1 << 31) - 1;

/// Bytes that are read before a window update.
const UNACKNOWLEDGED_MAX: u32 = 1 << 30;

/// Size of the read buffer.
const READ: usize = 1 << 17;

/// Path of the call.
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
    /// Position in the order of the next request.
    next: usize,
    /// The requests from the oldest unanswered one on.
    sent: VecDeque<Sent>,
    /// Stream of the first of them; streams of requests have odd numbers.
    oldest: u32,
    in_progress: usize,
    write: Vec<u8>,
    read: Vec<u8>,
    /// Number of bytes in `read`.
    filled: usize,
    /// The server's remaining flow control window.
    window: i64,
    unacknowledged: u32,
    /// The encoded headers of the next request.
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
            unacknowledged: 0,
            headers: first_headers(address),
            allowed: 0,
            refused: 0,
            latency: Histogram::new(3).unwrap(),
        };
        connection.write.extend_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        connection.frame(kind::SETTINGS, 0, 0, &[]);
        connection.frame(kind::WINDOW_UPDATE, 0, 0, &(ANNOUNCED_WINDOW - WINDOW).to_be_bytes());
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

    /// Adds requests to the write buffer until the maximum is in progress.
    fn send(&mut self, budget: &mut Budget) {
        let now = Instant::now();
        while self.in_progress < self.streams {
            let requests = Arc::clone(&self.requests);
            let body = &requests.bodies[requests.order[self.next]];
            let length = i64::try_from(body.framed.len()).unwrap();
            if self.window < length || !budget.spend(now) {
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

    /// Processes all complete frames that were read.
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
                self.unacknowledged += read;
                if self.unacknowledged > UNACKNOWLEDGED_MAX {
                    let read = std::mem::take(&mut self.unacknowledged);
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

/// The headers of the first request, which the server adds to its dynamic table.
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

/// The headers of further requests, by their indexes in the dynamic table, newest first.
const INDEXED_HEADERS: [u8; 6] = [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];
