//! One accepted connection, whatever it runs over.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::{
    admission::{ConnectionGuard, ConnectionHandle},
    client_names,
};

/// What the system accepts.
pub(super) type Socket = Either<TcpStream, UnixStream>;

/// A socket that has a place, and fails after the place was taken away.
#[derive(Debug)]
pub(super) struct AcceptedConnection {
    // Closed before its place is released.
    socket: Socket,
    guard: ConnectionGuard,
}

impl AcceptedConnection {
    pub(super) fn new(socket: Socket, guard: ConnectionGuard) -> Self {
        Self { socket, guard }
    }

    pub(super) fn socket(&self) -> &Socket {
        &self.socket
    }

    fn handle(&self) -> &ConnectionHandle {
        &self.guard.0
    }

    fn written(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if result.is_ready() {
            self.handle().touch();
        }
        result
    }
}

/// A connection that is ready to be read: a TLS handshake is over.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Either<AcceptedConnection, Box<TlsStream<AcceptedConnection>>>,
    peer: Peer,
    handle: ConnectionHandle,
    /// Bytes that are still to be read until the handshake is over. `None` if it does not end by bytes, or is over.
    handshake_left: Option<usize>,
}

/// Who is at the other end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// Its address, if it came by TCP.
    pub(crate) address: Option<SocketAddr>,
    /// Its user and process, if it came by a Unix socket.
    pub(crate) process: Option<Process>,
    /// The first name in the certificate that it has shown.
    pub(crate) certificate: Option<Arc<str>>,
}

/// A process on this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    /// Its user.
    pub(crate) user: u32,
    /// Its file descriptor, if the system has one.
    pub(crate) id: Option<i32>,
}

impl Peer {
    fn new(socket: &Socket) -> Self {
        let process = match socket {
            Either::Left(_) => None,
            Either::Right(unix) => {
                unix.peer_cred().ok().map(|it| Process { user: it.uid(), id: it.pid() })
            }
        };
        Self { address: connect_info(socket).remote_addr, process, certificate: None }
    }
}

impl Connection {
    pub(super) fn plain(socket: AcceptedConnection) -> Self {
        let peer = Peer::new(socket.socket());
        let handle = socket.handle().clone();
        Self::new(Either::Left(socket), peer, handle)
    }

    pub(super) fn tls(stream: TlsStream<AcceptedConnection>) -> Self {
        let (socket, session) = stream.get_ref();
        let shown = session.peer_certificates().and_then(<[_]>::first);
        let certificate = shown.and_then(client_names::name).map(Into::into);
        let peer = Peer { certificate, ..Peer::new(socket.socket()) };
        let handle = socket.handle().clone();
        Self::new(Either::Right(Box::new(stream)), peer, handle)
    }

    fn new(
        stream: Either<AcceptedConnection, Box<TlsStream<AcceptedConnection>>>,
        peer: Peer,
        handle: ConnectionHandle,
    ) -> Self {
        let handshake_left = handle.handshake_bytes();
        Self { stream, peer, handle, handshake_left }
    }

    /// The place of this connection, to be marked at its first complete request.
    pub(crate) fn handle(&self) -> ConnectionHandle {
        self.handle.clone()
    }

    fn count_handshake(&mut self, read: usize) {
        let Some(left) = self.handshake_left else { return };
        self.handshake_left = left.checked_sub(read).filter(|left| *left > 0);
        if self.handshake_left.is_none() {
            self.handle.end_handshake();
        }
    }
}

/// Both addresses of a TCP connection. Those of a Unix socket say nothing.
pub(super) fn connect_info(socket: &Socket) -> TcpConnectInfo {
    match socket {
        Either::Left(tcp) => tcp.connect_info(),
        Either::Right(_) => TcpConnectInfo { local_addr: None, remote_addr: None },
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.peer.clone()
    }
}

impl AsyncRead for AcceptedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.handle().watch(context);
        self.handle().check()?;
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.socket).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.handle().hear();
        }
        result
    }
}

impl AsyncWrite for AcceptedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.handle().check()?;
        let result = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.written(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.handle().check()?;
        let result = Pin::new(&mut self.socket).poll_write_vectored(context, bytes);
        self.written(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.count_handshake(buffer.filled().len() - before);
        result
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
