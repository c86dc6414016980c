//! An accepted connection, over TCP or a Unix socket, with or without TLS.

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

/// A TCP or Unix socket.
pub(super) type Socket = Either<TcpStream, UnixStream>;

/// An admitted socket. Reads and writes fail once the listener has dropped the connection.
#[derive(Debug)]
pub(super) struct AcceptedConnection {
    // The order of the fields closes the socket before the guard releases its place.
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

    /// Notes a completed write, and returns its result.
    fn note_write(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if result.is_ready() {
            self.handle().note_activity();
        }
        result
    }
}

/// A connection that is ready to be read. If it has TLS, the TLS handshake is complete.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Either<AcceptedConnection, Box<TlsStream<AcceptedConnection>>>,
    peer: Peer,
    handle: ConnectionHandle,
    /// Bytes to read until the end of the handshake. `None` if the handshake is over, or ends with the first request.
    handshake_left: Option<usize>,
}

/// The peer of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// The address, over TCP.
    pub(crate) address: Option<SocketAddr>,
    /// The process, over a Unix socket.
    pub(crate) process: Option<PeerProcess>,
    /// The names in the verified client certificate, DNS names first; none without a certificate.
    pub(crate) certificate_names: Arc<[Box<str>]>,
}

/// A process on this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerProcess {
    /// The id of its user.
    pub(crate) user: u32,
    /// The process id, if the system reports it.
    pub(crate) id: Option<i32>,
}

impl Peer {
    fn new(socket: &Socket) -> Self {
        let process = match socket {
            Either::Left(_) => None,
            Either::Right(unix) => {
                unix.peer_cred().ok().map(|it| PeerProcess { user: it.uid(), id: it.pid() })
            }
        };
        let address = connect_info(socket).remote_addr;
        Self { address, process, certificate_names: Arc::default() }
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
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let certificate_names = certificate.map(client_names::names_of).unwrap_or_default();
        let peer = Peer { certificate_names, ..Peer::new(socket.socket()) };
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

    /// The handle that marks the connection as used at its first complete request.
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

/// Both addresses of a TCP connection; `None` for a Unix socket.
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
        self.handle().register_waker(context);
        self.handle().ensure_not_dropped()?;
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.socket).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.handle().note_received();
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
        self.handle().ensure_not_dropped()?;
        let result = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.note_write(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.handle().ensure_not_dropped()?;
        let result = Pin::new(&mut self.socket).poll_write_vectored(context, bytes);
        self.note_write(result)
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
