//! A TCP proxy that injects network faults.

use std::{future, net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::Instant,
};

/// A TCP proxy in this process, in front of one address.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    task: JoinHandle<()>,
}

/// Faults that the proxy injects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// No fault: bytes pass.
    Pass,
    /// Bytes pass with this delay, in both directions.
    Delay(Duration),
    /// Bytes are lost. A connection that has lost some stays silent, also after the mode ends.
    Swallow,
    /// This many bytes of the server's next reply pass, then that connection is closed. Then the mode is `Pass`.
    Cut(usize),
    /// All connections are closed, new ones at once.
    Refuse,
}

impl Proxy {
    /// Starts a proxy without faults in front of `server`.
    pub async fn start(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mode = watch::Sender::new(Mode::Pass);
        let task = tokio::spawn(accept(listener, server.to_owned(), mode.clone()));
        Self { address, mode, task }
    }

    /// The address of the proxy.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Sets the mode for all connections from now on.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// The current mode: [`Mode::Cut`] ends by itself.
    #[must_use]
    pub fn mode(&self) -> Mode {
        *self.mode.borrow()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, server: String, mode: watch::Sender<Mode>) {
    // Ends all connections when the proxy is dropped.
    let mut connections = JoinSet::new();
    loop {
        let (caller, _) = listener.accept().await.unwrap();
        connections.spawn(connection(caller, server.clone(), mode.clone()));
    }
}

/// Forwards bytes until either side closes, then closes both.
async fn connection(caller: TcpStream, server: String, mode: watch::Sender<Mode>) {
    let mut changes = mode.subscribe();
    if *changes.borrow_and_update() == Mode::Refuse {
        return;
    }
    let Ok(server) = TcpStream::connect(server).await else { return };
    for socket in [&caller, &server] {
        socket.set_nodelay(true).unwrap();
    }
    let (from_caller, to_caller) = caller.into_split();
    let (from_server, to_server) = server.into_split();
    let refused = changes.wait_for(|mode| *mode == Mode::Refuse);
    tokio::select! {
        () = carry(from_caller, to_server, Way::Request, &mode) => {}
        () = carry(from_server, to_caller, Way::Reply, &mode) => {}
        _ = refused => {}
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Reply,
}

async fn carry(from: OwnedReadHalf, to: OwnedWriteHalf, way: Way, mode: &watch::Sender<Mode>) {
    // Bytes with the times at which they are due. Unbounded, because a slow network accepts as many bytes as a fast
    // one.
    let (sender, receiver) = mpsc::unbounded_channel();
    let receive = async {
        receive(from, sender, way, mode).await;
        // Delivers the bytes that were received before.
        future::pending::<()>().await;
    };
    tokio::select! {
        () = receive => {}
        () = deliver(receiver, to) => {}
    }
}

async fn receive(
    mut from: OwnedReadHalf,
    deliver: mpsc::UnboundedSender<(Instant, Vec<u8>)>,
    way: Way,
    mode: &watch::Sender<Mode>,
) {
    let mut buffer = vec![0; 65_536];
    let mut silent = false;
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let mut cut = None;
        // Only one connection is cut.
        mode.send_if_modified(|mode| {
            if let (Mode::Cut(after), Way::Reply) = (*mode, way) {
                cut = Some(after);
                *mode = Mode::Pass;
            }
            cut.is_some()
        });
        let mode = *mode.borrow();
        silent |= mode == Mode::Swallow;
        if silent {
            continue;
        }
        let delay = if let Mode::Delay(delay) = mode { delay } else { Duration::ZERO };
        let bytes = &buffer[..cut.unwrap_or(length).min(length)];
        let sent = deliver.send((Instant::now() + delay, bytes.to_owned()));
        if sent.is_err() || cut.is_some() {
            return;
        }
    }
}

async fn deliver(mut due: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>, mut to: OwnedWriteHalf) {
    while let Some((time, bytes)) = due.recv().await {
        tokio::time::sleep_until(time).await;
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
