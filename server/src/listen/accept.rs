//! Accepting connections, and TLS handshakes beside it.

use std::{
    future, io, net::SocketAddr, num::NonZeroUsize, pin::pin, sync::Arc, task::ready,
    time::Duration,
};

use futures::{Stream, stream};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::Semaphore,
    task::JoinSet,
    time::{self, Instant, Interval, MissedTickBehavior},
};
use tokio_util::{either::Either, sync::PollSemaphore};

use super::{
    Admission, Tls,
    admission::SWEEP_INTERVAL,
    connection::{AcceptedConnection, Connection, Socket, connect_info},
    unix::{self, SocketFile},
};
use crate::values::ListenAddress;

/// How long to leave a listener alone that cannot accept, mostly for want of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(10);

/// The time between two lines in the log about that.
const ACCEPT_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A bound address. Dropping it, or the stream that it becomes, gives the address back.
#[derive(Debug)]
pub(crate) struct Listener {
    source: Source,
    address: ListenAddress,
    /// Not before this is the next connection accepted.
    accept_from: Instant,
    /// Not before this is the next failure to accept logged.
    log_from: Instant,
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
        let now = Instant::now();
        Ok(Self { source, address, accept_from: now, log_from: now })
    }

    /// Where it listens: names looked up, and the port that port 0 became.
    pub(crate) fn local_address(&self) -> ListenAddress {
        self.address.clone()
    }

    /// The address and port, of a TCP listener.
    pub(crate) fn socket_address(&self) -> Option<SocketAddr> {
        match &self.source {
            Source::Tcp(listener) => listener.local_addr().ok(),
            Source::Unix(..) => None,
        }
    }

    /// The connections that are accepted from now on and given a place, without end and without errors. With `tls`,
    /// those whose TLS handshake succeeds. When it is dropped, connections in their handshakes are dropped too.
    pub(crate) fn incoming(
        self,
        tls: Option<Tls>,
        admission: Admission,
    ) -> impl Stream<Item = io::Result<Connection>> + Send {
        stream::unfold(Incoming::new(self, tls, admission), |mut incoming| async move {
            let connection = incoming.next().await;
            Some((Ok(connection), incoming))
        })
    }

    /// Waits for a connection, through whatever goes wrong. Cancel safe.
    async fn accept(&mut self, admission: &Admission) -> Socket {
        loop {
            admission.room().await;
            time::sleep_until(self.accept_from).await;
            match self.source.accept().await {
                Ok(socket) => return socket,
                Err(error) if is_of_the_client(&error) => {
                    tracing::debug!(%error, "connection was gone before it was accepted");
                }
                Err(error) => {
                    let now = Instant::now();
                    if now >= self.log_from {
                        tracing::warn!(%error, address = %self.address, "cannot accept connections");
                        self.log_from = now + ACCEPT_LOG_INTERVAL;
                    }
                    admission.free_descriptor();
                    self.accept_from = now + ACCEPT_BACKOFF;
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

/// Accepts connections and shakes hands with many at a time, so that a slow client does not delay others.
#[derive(Debug)]
struct Incoming {
    listener: Listener,
    tls: Option<Tls>,
    admission: Admission,
    sweep: Interval,
    /// Tasks of their own: the arithmetic of many handshakes spreads over cores.
    handshakes: JoinSet<Option<Connection>>,
    turns: Arc<Semaphore>,
}

impl Incoming {
    fn new(listener: Listener, tls: Option<Tls>, admission: Admission) -> Self {
        let mut sweep = time::interval(SWEEP_INTERVAL);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let turns = Arc::new(Semaphore::new((cores / 2).max(1)));
        Self { listener, tls, admission, sweep, handshakes: JoinSet::new(), turns }
    }

    /// The next connection that can be read.
    async fn next(&mut self) -> Connection {
        loop {
            tokio::select! {
                _ = self.sweep.tick() => self.admission.sweep(),
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = done {
                        return connection;
                    }
                }
                socket = self.listener.accept(&self.admission) => {
                    let peer = connect_info(&socket).remote_addr;
                    // A socket without a place is closed at once.
                    let Some(handle) = self.admission.admit(peer) else { continue };
                    let socket = AcceptedConnection::new(socket, handle);
                    let Some(tls) = self.tls.clone() else { return Connection::plain(socket) };
                    self.handshakes.spawn(shake_hands(tls, socket, Arc::clone(&self.turns)));
                }
            }
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.admission.end_handshakes();
    }
}

async fn shake_hands(
    tls: Tls,
    socket: AcceptedConnection,
    turns: Arc<Semaphore>,
) -> Option<Connection> {
    let peer = connect_info(socket.socket()).remote_addr;
    match in_turns(tls.acceptor().accept(socket), turns).await {
        Ok(stream) => Some(Connection::tls(stream)),
        Err(error) => {
            tls.count_failure();
            tracing::debug!(?peer, %error, "TLS handshake failed");
            None
        }
    }
}

/// Polls a handshake only in its turn. Signatures take up to a millisecond each: many that are due at once would
/// delay every decision, so they run on half of the cores, and other tasks run between any two of them.
async fn in_turns<T>(
    handshake: impl Future<Output = io::Result<T>>,
    turns: Arc<Semaphore>,
) -> io::Result<T> {
    let mut handshake = pin!(handshake);
    let mut turns = PollSemaphore::new(turns);
    future::poll_fn(|context| {
        let _turn = ready!(turns.poll_acquire(context));
        handshake.as_mut().poll(context)
    })
    .await
}
