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

use super::client_names;

/// What the system accepts.
pub(super) type Socket = Either<TcpStream, UnixStream>;

/// A connection that is ready to be read: a TLS handshake is over.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Either<Socket, Box<TlsStream<Socket>>>,
    peer: Peer,
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
    /// Its number, where the system tells.
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
    pub(super) fn plain(socket: Socket) -> Self {
        let peer = Peer::new(&socket);
        Self { stream: Either::Left(socket), peer }
    }

    pub(super) fn tls(stream: TlsStream<Socket>) -> Self {
        let (socket, session) = stream.get_ref();
        let shown = session.peer_certificates().and_then(<[_]>::first);
        let certificate = shown.and_then(client_names::name).map(Into::into);
        let peer = Peer { certificate, ..Peer::new(socket) };
        Self { stream: Either::Right(Box::new(stream)), peer }
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

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
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
