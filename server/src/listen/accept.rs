//! Accepting connections, and TLS handshakes beside it.

use std::{io, time::Duration};

use futures::{Stream, StreamExt, stream};
use tokio::{
    net::{TcpListener, UnixListener},
    task::JoinSet,
    time::{self, Instant},
};
use tokio_util::either::Either;

use super::{
    ListenAddress, Tls,
    connection::{Connection, Socket, connect_info},
    unix::{self, SocketFile},
};

/// How long to leave a listener alone that cannot accept: what it lacks, mostly file descriptors,
/// does not come back at once, and each try is a line in the log.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(500);

/// The most handshakes in progress. Beyond it connections wait to be accepted.
const HANDSHAKES_MAX: usize = 512;

/// How long a handshake may take. Clients that connect and say nothing hold a place no longer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A bound address. Dropping it, or the stream that it becomes, gives the address back.
#[derive(Debug)]
pub(crate) struct Listener {
    source: Source,
    address: ListenAddress,
    /// Not before this is the next connection accepted.
    accept_from: Instant,
}

#[derive(Debug)]
enum Source {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// Starts to listen.
    ///
    /// # Errors
    /// The host is unknown, the address is taken, or the system refuses.
    pub(crate) async fn bind(address: &ListenAddress) -> io::Result<Self> {
        let (source, address) = match address {
            ListenAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).await?;
                let bound = listener.local_addr()?;
                (Source::Tcp(listener), ListenAddress::Tcp(bound.to_string()))
            }
            ListenAddress::Unix(path) => {
                let (listener, file) = unix::bind(path).await?;
                (Source::Unix(listener, file), address.clone())
            }
        };
        Ok(Self { source, address, accept_from: Instant::now() })
    }

    /// Where it listens: names looked up, and the port that port 0 became.
    pub(crate) fn local_address(&self) -> ListenAddress {
        self.address.clone()
    }

    /// The connections that are accepted from now on, without end and without errors. With `tls`,
    /// those whose handshake succeeds.
    pub(crate) fn incoming(
        self,
        tls: Option<Tls>,
    ) -> impl Stream<Item = io::Result<Connection>> + Send {
        match tls {
            None => endless(self, Self::next).left_stream(),
            Some(tls) => {
                let bounds =
                    HandshakeBounds { pending_max: HANDSHAKES_MAX, timeout: HANDSHAKE_TIMEOUT };
                endless(Handshakes::new(self, tls, bounds), Handshakes::next).right_stream()
            }
        }
    }

    async fn next(mut self) -> (Connection, Self) {
        let socket = self.accept().await;
        (Connection::plain(socket), self)
    }

    /// Waits for a connection, through whatever goes wrong. Cancel safe.
    async fn accept(&mut self) -> Socket {
        loop {
            time::sleep_until(self.accept_from).await;
            match self.source.accept().await {
                Ok(socket) => return socket,
                Err(error) if is_of_the_client(&error) => {
                    tracing::debug!(%error, "connection was gone before it was accepted");
                }
                Err(error) => {
                    tracing::warn!(%error, address = %self.address, "cannot accept connections");
                    self.accept_from = Instant::now() + ACCEPT_BACKOFF;
                }
            }
        }
    }
}

impl Source {
    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (socket, _peer) = listener.accept().await?;
                // Answers are small and each is waited for. Fails only if the client has gone.
                let _gone = socket.set_nodelay(true);
                Ok(Either::Left(socket))
            }
            Self::Unix(listener, _file) => {
                let (socket, _peer) = listener.accept().await?;
                Ok(Either::Right(socket))
            }
        }
    }
}

fn is_of_the_client(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

/// The stream of what `next` returns, over and over.
pub(super) fn endless<S, F>(
    state: S,
    next: impl Fn(S) -> F,
) -> impl Stream<Item = io::Result<Connection>>
where
    F: Future<Output = (Connection, S)>,
{
    stream::unfold((state, next), |(state, next)| async move {
        let (connection, state) = next(state).await;
        Some((Ok(connection), (state, next)))
    })
}

/// Bounds of the handshakes in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandshakeBounds {
    pub(super) pending_max: usize,
    pub(super) timeout: Duration,
}

/// Accepts connections and shakes hands with many at a time, so that a slow client delays nobody.
#[derive(Debug)]
pub(super) struct Handshakes {
    listener: Listener,
    tls: Tls,
    bounds: HandshakeBounds,
    /// Tasks of their own: the arithmetic of many handshakes spreads over all cores.
    pending: JoinSet<Option<Connection>>,
}

impl Handshakes {
    pub(super) fn new(listener: Listener, tls: Tls, bounds: HandshakeBounds) -> Self {
        Self { listener, tls, bounds, pending: JoinSet::new() }
    }

    /// The next connection whose handshake succeeds.
    pub(super) async fn next(mut self) -> (Connection, Self) {
        loop {
            let has_place = self.pending.len() < self.bounds.pending_max;
            tokio::select! {
                Some(done) = self.pending.join_next() => {
                    if let Ok(Some(connection)) = done {
                        return (connection, self);
                    }
                }
                socket = self.listener.accept(), if has_place => {
                    self.pending.spawn(shake_hands(self.tls.clone(), socket, self.bounds.timeout));
                }
            }
        }
    }
}

async fn shake_hands(tls: Tls, socket: Socket, timeout: Duration) -> Option<Connection> {
    let peer = connect_info(&socket).remote_addr;
    let handshake = time::timeout(timeout, tls.acceptor().accept(socket)).await;
    match handshake.unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into())) {
        Ok(stream) => Some(Connection::tls(stream)),
        Err(error) => {
            tls.count_failure();
            tracing::debug!(?peer, %error, "TLS handshake failed");
            None
        }
    }
}
