//! One accepted connection, whatever it runs over.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// What the system accepts.
pub(super) type Socket = Either<TcpStream, UnixStream>;

/// A connection that is ready to be read: a TLS handshake is over.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: Either<Socket, Box<TlsStream<Socket>>>,
    info: TcpConnectInfo,
}

impl Connection {
    pub(super) fn plain(socket: Socket) -> Self {
        let info = connect_info(&socket);
        Self { stream: Either::Left(socket), info }
    }

    pub(super) fn tls(stream: TlsStream<Socket>) -> Self {
        let info = connect_info(stream.get_ref().0);
        Self { stream: Either::Right(Box::new(stream)), info }
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
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.info.clone()
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
