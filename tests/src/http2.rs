//! HTTP/2 callers that can do what gRPC libraries do not: leave calls open, ignore pings, send invalid frames.

use std::{io, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request, Response};
use prost::Message;
use sluicegate_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, tcp::OwnedWriteHalf},
    task::JoinHandle,
};

/// The connection preface of HTTP/2 clients.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The path of a rate limit call.
pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Timeout of each step, far longer than any step takes.
const BOUND: Duration = Duration::from_secs(60);

/// A connection whose calls are sent step by step.
#[derive(Debug)]
pub struct Caller {
    requests: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
    authority: String,
}

impl Caller {
    /// Connects to a loopback address.
    pub async fn connect(address: &str) -> Self {
        Self::connect_on(TcpStream::connect(address).await.unwrap(), address).await
    }

    /// Starts HTTP/2 on an open connection to `address`.
    ///
    /// # Panics
    /// The server has closed the connection.
    pub async fn connect_on(socket: TcpStream, address: &str) -> Self {
        let (requests, connection) = h2::client::handshake(socket).await.unwrap();
        Self { requests, connection: tokio::spawn(connection), authority: address.to_owned() }
    }

    /// Begins a call: sends its headers, and no message yet.
    ///
    /// # Errors
    /// The server accepts no more calls on this connection.
    pub async fn begin(&self) -> Result<Call, h2::Error> {
        self.begin_with(&[]).await
    }

    /// Begins a call with these headers beside the usual ones.
    ///
    /// # Errors
    /// The server accepts no more calls on this connection.
    pub async fn begin_with(&self, headers: &[(&str, &str)]) -> Result<Call, h2::Error> {
        let mut requests = self.requests.clone().ready().await?;
        let mut request = Request::post(format!("http://{}{PATH}", self.authority))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (response, body) = requests.send_request(request.body(()).unwrap(), false)?;
        Ok(Call { response, body })
    }

    /// The maximum number of concurrent calls that the server has announced.
    #[must_use]
    pub fn max_calls(&self) -> usize {
        self.requests.current_max_send_streams()
    }

    /// Waits until the server has closed the connection.
    ///
    /// # Errors
    /// The connection ends with an error.
    ///
    /// # Panics
    /// The server does not close the connection.
    pub async fn closed(self) -> Result<(), h2::Error> {
        let Self { requests, connection, .. } = self;
        let closed = within(connection).await.unwrap();
        // Keep the sender until here: dropping it would close the connection from this side.
        drop(requests);
        closed
    }
}

/// A call in progress.
#[derive(Debug)]
pub struct Call {
    response: ResponseFuture,
    body: h2::SendStream<Bytes>,
}

impl Call {
    /// Sends the message and waits for the answer.
    ///
    /// # Errors
    /// The connection breaks.
    ///
    /// # Panics
    /// The answer is an error of gRPC.
    pub async fn ask(self, request: &RateLimitRequest) -> Result<RateLimitResponse, h2::Error> {
        let (status, body) = self.send([framed(request)], true).await?;
        assert_eq!(status, "0");
        Ok(RateLimitResponse::decode(&body[5..]).unwrap())
    }

    /// Sends a part of the message only. Dropping the call resets its stream.
    ///
    /// # Errors
    /// The connection breaks.
    pub fn begin_message(mut self, part: Bytes) -> Result<Self, h2::Error> {
        self.body.send_data(part, false)?;
        Ok(self)
    }

    /// Sends a body in pieces, and waits for the gRPC status and the body of the answer. Without `end` the stream stays
    /// open, so the server expects more.
    ///
    /// # Errors
    /// The connection breaks.
    ///
    /// # Panics
    /// The answer has no status.
    pub async fn send(
        mut self,
        pieces: impl IntoIterator<Item = Bytes>,
        end: bool,
    ) -> Result<(String, Vec<u8>), h2::Error> {
        for piece in pieces {
            self.body.send_data(piece, false)?;
        }
        if end {
            self.body.send_data(Bytes::new(), true)?;
        }
        within(async {
            let (head, body, trailers) = whole(self.response.await?).await?;
            let status = trailers.get("grpc-status").or_else(|| head.get("grpc-status"));
            Ok((status.unwrap().to_str().unwrap().to_owned(), body))
        })
        .await
    }

    /// Waits for the error that answers a call without a message.
    ///
    /// # Panics
    /// The answer is not an error, or none arrives.
    pub async fn cut(self) {
        let cut = within(async { whole(self.response.await?).await }).await;
        // `begin_message` may have sent a part of the message: keep the stream open until here.
        drop(self.body);
        assert!(cut.is_err(), "answered: {cut:?}");
    }
}

/// A message in gRPC framing.
pub fn framed(message: &impl Message) -> Bytes {
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(message.encoded_len().try_into().unwrap());
    message.encode(&mut frame).unwrap();
    frame.freeze()
}

async fn whole(
    response: Response<h2::RecvStream>,
) -> Result<(HeaderMap, Vec<u8>, HeaderMap), h2::Error> {
    let (head, mut stream) = response.into_parts();
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        body.extend_from_slice(&data);
    }
    Ok((head.headers, body, stream.trailers().await?.unwrap_or_default()))
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(BOUND, future).await.expect("takes too long")
}

/// A frame from a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A ping, or the reply to one.
    Ping([u8; 8]),
    /// GOAWAY: the server accepts no more calls.
    GoAway,
    /// Any other frame, by its type.
    Other(u8),
}

/// A connection that sends the preface and then only the bytes given.
#[derive(Debug)]
pub struct RawConnection(TcpStream);

impl RawConnection {
    /// Connects to a loopback address and sends the preface.
    pub async fn connect(address: &str) -> Self {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(PREFACE).await.unwrap();
        socket.write_all(&frame(kind::SETTINGS, 0, 0, &[])).await.unwrap();
        Self(socket)
    }

    /// The next frame; `None` if the server has closed the connection.
    ///
    /// # Panics
    /// No frame arrives in time.
    pub async fn frame(&mut self) -> Option<Frame> {
        within(self.read()).await.ok()
    }

    /// Skips frames until `find` accepts one. `what` names it in the panic message.
    ///
    /// # Panics
    /// The connection is closed before that.
    pub async fn until<T>(&mut self, what: &str, find: impl Fn(&Frame) -> Option<T>) -> T {
        loop {
            let frame = self.frame().await.unwrap_or_else(|| panic!("closed before {what}"));
            if let Some(it) = find(&frame) {
                return it;
            }
        }
    }

    /// Sends bytes as they are.
    ///
    /// # Panics
    /// The server has closed the connection.
    pub async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.unwrap();
    }

    /// Replies to a ping.
    pub async fn pong(&mut self, payload: [u8; 8]) {
        self.0.write_all(&frame(kind::PING, 1, 0, &payload)).await.unwrap();
    }

    /// Waits until the server has closed the connection.
    ///
    /// # Panics
    /// The server does not close the connection.
    pub async fn closed(mut self) {
        within(async { while self.read().await.is_ok() {} }).await;
    }

    async fn read(&mut self) -> io::Result<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length.try_into().unwrap()];
        self.0.read_exact(&mut payload).await?;
        Ok(match head[3] {
            6 => Frame::Ping(payload.try_into().unwrap()),
            7 => Frame::GoAway,
            other => Frame::Other(other),
        })
    }
}

/// Types of HTTP/2 frames.
#[expect(missing_docs, reason = "HTTP/2's names")]
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Flags of HTTP/2 frames.
#[expect(missing_docs, reason = "HTTP/2's names")]
pub mod flag {
    pub const END_STREAM: u8 = 1;
    pub const END_HEADERS: u8 = 4;
}

/// An encoded HTTP/2 frame.
///
/// # Panics
/// The payload is too long.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    assert!(length < 1 << 24, "a frame has at most 16 MiB");
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The header list of a rate limit call with these headers beside the usual ones, not compressed.
#[must_use]
pub fn call_headers(headers: &[(&str, &str)]) -> Vec<u8> {
    call_headers_to(PATH, headers)
}

/// The header list of a call to this path with these headers beside the usual ones, not compressed.
#[must_use]
pub fn call_headers_to(path: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let usual = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "attacker"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    let mut block = Vec::new();
    for (name, value) in usual.iter().chain(headers) {
        // Literal header field without indexing, with a new name.
        block.push(0);
        put_text(&mut block, name);
        put_text(&mut block, value);
    }
    block
}

/// Appends a string literal of HPACK: its length, with a prefix of seven bits, and the text.
fn put_text(block: &mut Vec<u8>, text: &str) {
    match text.len().checked_sub(127) {
        None => block.push(u8::try_from(text.len()).unwrap()),
        Some(mut rest) => {
            block.push(127);
            while rest >= 128 {
                block.push(128 | u8::try_from(rest % 128).unwrap());
                rest /= 128;
            }
            block.push(u8::try_from(rest).unwrap());
        }
    }
    block.extend(text.as_bytes());
}

/// The frames of a header list of any length.
#[must_use]
pub fn header_frames(stream: u32, block: &[u8]) -> Vec<u8> {
    const FRAME_MAX: usize = 16_384;
    let mut frames = Vec::new();
    let mut pieces = block.chunks(FRAME_MAX).peekable();
    let mut kind = kind::HEADERS;
    while let Some(piece) = pieces.next() {
        let flags = if pieces.peek().is_none() { flag::END_HEADERS } else { 0 };
        frames.extend(frame(kind, flags, stream, piece));
        kind = kind::CONTINUATION;
    }
    frames
}

/// A connection that sends the bytes given, and discards received bytes.
#[derive(Debug)]
pub struct Flood {
    sender: OwnedWriteHalf,
    dropped: JoinHandle<()>,
}

impl Flood {
    /// Connects to a loopback address, and sends nothing.
    pub async fn silent(address: &str) -> Self {
        let (mut receiver, sender) = TcpStream::connect(address).await.unwrap().into_split();
        let dropped = tokio::spawn(async move {
            // The copy ends when the server closes or resets the connection.
            _ = tokio::io::copy(&mut receiver, &mut tokio::io::sink()).await;
        });
        Self { sender, dropped }
    }

    /// Connects, and sends the preface with these settings.
    pub async fn connect(address: &str, settings: &[(u16, u32)]) -> Self {
        let mut flood = Self::silent(address).await;
        let hello = [PREFACE, &settings_frame(settings)].concat();
        assert!(flood.send(&hello).await, "the server does not listen");
        flood
    }

    /// Sends bytes. Returns whether the connection accepted them.
    pub async fn send(&mut self, bytes: &[u8]) -> bool {
        !self.dropped.is_finished() && self.sender.write_all(bytes).await.is_ok()
    }

    /// Waits until the server has closed the connection.
    ///
    /// # Panics
    /// The server does not close the connection.
    pub async fn closed(&mut self) {
        within(&mut self.dropped).await.unwrap();
    }

    /// Whether the server has closed the connection.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.dropped.is_finished()
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.dropped.abort();
    }
}

/// A SETTINGS frame.
#[must_use]
pub fn settings_frame(settings: &[(u16, u32)]) -> Vec<u8> {
    let setting = |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(kind::SETTINGS, 0, 0, &settings.iter().flat_map(setting).collect::<Vec<_>>())
}
