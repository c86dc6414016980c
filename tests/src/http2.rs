//! Callers that do what a gRPC library would not: leave calls open, answer no ping.

use std::{io, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request, Response};
use prost::Message;
use sluicegate_proto::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
};

const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Far beyond what any step takes.
const BOUND: Duration = Duration::from_secs(60);

/// A connection whose calls go step by step.
#[derive(Debug)]
pub struct Caller {
    requests: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
    authority: String,
}

impl Caller {
    /// Connects to an address of the loopback.
    pub async fn connect(address: &str) -> Self {
        let socket = TcpStream::connect(address).await.unwrap();
        let (requests, connection) = h2::client::handshake(socket).await.unwrap();
        Self { requests, connection: tokio::spawn(connection), authority: address.to_owned() }
    }

    /// Begins a call: its headers, no message yet.
    ///
    /// # Errors
    /// The server takes no more calls on this connection.
    pub async fn begin(&self) -> Result<Call, h2::Error> {
        self.begin_with(&[]).await
    }

    /// Begins a call with these headers beside the usual ones.
    ///
    /// # Errors
    /// The server takes no more calls on this connection.
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

    /// Waits until the server has closed the connection.
    ///
    /// # Errors
    /// It does so in the middle of something.
    ///
    /// # Panics
    /// It does not.
    pub async fn closed(self) -> Result<(), h2::Error> {
        let Self { requests, connection, .. } = self;
        let closed = within(connection).await.unwrap();
        // Without it, this side would have closed the connection.
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

    /// Sends a body in pieces, and waits for the status and the body of the answer. Without an `end` the server
    /// does not know that there is no more.
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

    /// Waits for the answer to a call without a message, which can only be an error.
    ///
    /// # Panics
    /// It is something else, or does not come.
    pub async fn cut(self) {
        let cut = within(async { whole(self.response.await?).await }).await;
        // The message may have been begun by somebody: keep it open until here.
        drop(self.body);
        assert!(cut.is_err(), "answered: {cut:?}");
    }
}

/// A message as gRPC frames it.
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

/// What a server sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Is to be answered, unless it is an answer.
    Ping([u8; 8]),
    /// No more calls are taken.
    GoAway,
    /// Anything else, by its type.
    Other(u8),
}

/// A connection that says hello and then only what it is told to.
#[derive(Debug)]
pub struct RawConnection(TcpStream);

impl RawConnection {
    /// Connects to an address of the loopback and says hello.
    pub async fn connect(address: &str) -> Self {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        socket.write_all(&settings).await.unwrap();
        Self(socket)
    }

    /// The next frame; none if the server has closed the connection.
    ///
    /// # Panics
    /// Nothing comes.
    pub async fn frame(&mut self) -> Option<Frame> {
        within(self.read()).await.ok()
    }

    /// Skips frames until one of this kind.
    ///
    /// # Panics
    /// The connection is closed before.
    pub async fn until<T>(&mut self, what: &str, find: impl Fn(&Frame) -> Option<T>) -> T {
        loop {
            let frame = self.frame().await.unwrap_or_else(|| panic!("closed before {what}"));
            if let Some(it) = find(&frame) {
                return it;
            }
        }
    }

    /// Answers a ping.
    pub async fn pong(&mut self, payload: [u8; 8]) {
        let frame = [&[0, 0, 8, 6, 1, 0, 0, 0, 0][..], &payload].concat();
        self.0.write_all(&frame).await.unwrap();
    }

    /// Waits until the server has closed the connection.
    ///
    /// # Panics
    /// It does not.
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
