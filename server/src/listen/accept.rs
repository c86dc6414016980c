//! Accepts connections, and runs their TLS handshakes concurrently.

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

/// The pause after a failed accept. The usual cause is a lack of file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(10);

/// The shortest time between two log lines about failed accepts.
const ACCEPT_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// A bound listener. Dropping it, or its stream of connections, releases the address.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: ListeningSocket,
    address: ListenAddress,
    /// The earliest time of the next accept.
    accept_from: Instant,
    /// The earliest time of the next log line about a failed accept.
    log_from: Instant,
}

#[derive(Debug)]
enum ListeningSocket {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// Binds an address.
    ///
    /// # Errors
    /// The host name cannot be resolved, or the address cannot be bound.
    pub(crate) async fn bind(address: &ListenAddress) -> io::Result<Self> {
        let (socket, address) = match address {
            ListenAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).await?;
                let bound = listener.local_addr()?;
                (ListeningSocket::Tcp(listener), ListenAddress::Tcp(bound.to_string()))
            }
            ListenAddress::Unix(path) => {
                let (listener, file) = unix::bind(path).await?;
                (ListeningSocket::Unix(listener, file), address.clone())
            }
        };
        let now = Instant::now();
        Ok(Self { socket, address, accept_from: now, log_from: now })
    }

    /// The bound address: host names are resolved, and port 0 is replaced by the selected port.
    pub(crate) fn local_address(&self) -> ListenAddress {
        self.address.clone()
    }

    /// The bound address of a TCP listener; `None` for a Unix socket.
    pub(crate) fn socket_address(&self) -> Option<SocketAddr> {
        match &self.socket {
            ListeningSocket::Tcp(listener) => listener.local_addr().ok(),
            ListeningSocket::Unix(..) => None,
        }
    }

    /// The stream of accepted and admitted connections; with `tls`, of those whose TLS handshake succeeds. It has no
    /// end and no errors. Dropping it drops connections whose handshake is not complete.
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

    /// Waits for a connection. Retries after errors. Cancel safe.
    async fn accept(&mut self, admission: &Admission) -> Socket {
        loop {
            admission.wait_for_room().await;
            time::sleep_until(self.accept_from).await;
            match self.socket.accept().await {
                Ok(socket) => return socket,
                Err(error) if is_client_disconnect(&error) => {
                    tracing::debug!(%error, "client disconnected before its connection was accepted");
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

impl ListeningSocket {
    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (socket, _peer) = listener.accept().await?;
                // Responses are small, and callers wait for each. Fails only if the client has disconnected.
                let _disconnected = socket.set_nodelay(true);
                Ok(Either::Left(socket))
            }
            Self::Unix(listener, _file) => {
                let (socket, _peer) = listener.accept().await?;
                Ok(Either::Right(socket))
            }
        }
    }
}

fn is_client_disconnect(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

/// Accepts connections, and runs many handshakes concurrently, so that a slow client does not delay others.
#[derive(Debug)]
struct Incoming {
    listener: Listener,
    tls: Option<Tls>,
    admission: Admission,
    sweep: Interval,
    /// A task for each handshake, so that several cores share the cryptography.
    handshakes: JoinSet<Option<Connection>>,
    /// Bounds the handshakes that are polled at the same time.
    handshake_polls: Arc<Semaphore>,
}

impl Incoming {
    fn new(listener: Listener, tls: Option<Tls>, admission: Admission) -> Self {
        let mut sweep = time::interval(SWEEP_INTERVAL);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let handshake_polls = Arc::new(Semaphore::new((cores / 2).max(1)));
        Self { listener, tls, admission, sweep, handshakes: JoinSet::new(), handshake_polls }
    }

    /// The next connection that is ready to be read.
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
                    // Dropping a socket that is not admitted closes it.
                    let Some(guard) = self.admission.admit(peer) else { continue };
                    let socket = AcceptedConnection::new(socket, guard);
                    let Some(tls) = self.tls.clone() else { return Connection::plain(socket) };
                    let polls = Arc::clone(&self.handshake_polls);
                    self.handshakes.spawn(complete_handshake(tls, socket, polls));
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

async fn complete_handshake(
    tls: Tls,
    socket: AcceptedConnection,
    polls: Arc<Semaphore>,
) -> Option<Connection> {
    let peer = connect_info(socket.socket()).remote_addr;
    match poll_with_permit(tls.acceptor().accept(socket), polls).await {
        Ok(stream) => Some(Connection::tls(stream)),
        Err(error) => {
            tls.count_failure();
            tracing::debug!(?peer, %error, "TLS handshake failed");
            None
        }
    }
}

/// Polls a handshake only while it has a permit. A signature takes up to a millisecond of CPU time. The permits
/// restrict handshakes to half of the cores, so that many concurrent ones do not delay decisions, and other tasks run
/// between two polls.
async fn poll_with_permit<T>(
    handshake: impl Future<Output = io::Result<T>>,
    permits: Arc<Semaphore>,
) -> io::Result<T> {
    let mut handshake = pin!(handshake);
    let mut permits = PollSemaphore::new(permits);
    future::poll_fn(|context| {
        let _permit = ready!(permits.poll_acquire(context));
        handshake.as_mut().poll(context)
    })
    .await
}
