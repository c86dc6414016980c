//! Connections between processes and servers: bytes in memory, with delays.

use std::{
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Either, join, select},
};
use sluicegate_store::redis::{Address, ByteStream, Connect};
use tokio::{
    io::{
        AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf,
        ReadHalf, WriteHalf,
    },
    sync::{Notify, mpsc},
    time::{Instant, sleep_until},
};

use crate::{
    resp,
    world::{Endpoint, Ran, World},
};

/// Bytes that wait in a connection: more than a process ever sends at once.
const BUFFER: usize = 1 << 20;

/// The most bytes that an unsteady connection carries at once, now and then.
const TORN_MAX: usize = 40;

/// Connects one process to the servers.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) world: World,
    pub(crate) process: usize,
    /// Whether connections carry bytes in random parts, and let other tasks run in between.
    pub(crate) unsteady: bool,
}

impl Connect for Network {
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let (world, process, unsteady) = (self.world.clone(), self.process, self.unsteady);
        let address = address.clone();
        async move {
            let found = {
                let mut state = world.lock();
                let found = state.endpoint(&address);
                found.map(|it| (it, state.delay(), state.paused_until(it.server)))
            };
            let Some((endpoint, under_way, paused)) = found else {
                return Err(io::ErrorKind::NotFound.into());
            };
            sleep_until(paused.max(Instant::now() + under_way)).await;
            let (ours, theirs) = tokio::io::duplex(BUFFER);
            let cut = Arc::new(Notify::new());
            let rng = {
                let mut state = world.lock();
                state.connected(process, endpoint.server, Arc::clone(&cut));
                unsteady.then(|| fastrand::Rng::with_seed(state.rng.u64(..)))
            };
            tokio::spawn(serve(world, process, endpoint, theirs, cut));
            Ok(match rng {
                Some(rng) => Box::new(Unsteady { inner: ours, rng }) as Box<dyn ByteStream>,
                None => Box::new(ours),
            })
        }
        .boxed()
    }
}

/// A stream that carries bytes in random parts, and lets other tasks run in between.
struct Unsteady {
    inner: DuplexStream,
    rng: fastrand::Rng,
}

impl Unsteady {
    /// Whether other tasks run first.
    fn yields(&mut self, context: &Context<'_>) -> bool {
        let yields = self.rng.u32(0..4) == 0;
        if yields {
            context.waker().wake_by_ref();
        }
        yields
    }

    /// How many of so many bytes are carried at once.
    fn part(&mut self, all: usize) -> usize {
        if self.rng.u32(0..4) == 0 { all.min(self.rng.usize(1..=TORN_MAX)) } else { all }
    }
}

impl AsyncRead for Unsteady {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.yields(context) {
            return Poll::Pending;
        }
        let most = self.part(buffer.remaining());
        let mut bytes = [0; TORN_MAX];
        if most > TORN_MAX {
            return Pin::new(&mut self.inner).poll_read(context, buffer);
        }
        let mut part = ReadBuf::new(&mut bytes[..most]);
        let read = Pin::new(&mut self.inner).poll_read(context, &mut part);
        buffer.put_slice(part.filled());
        read
    }
}

impl AsyncWrite for Unsteady {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.yields(context) {
            return Poll::Pending;
        }
        let part = self.part(bytes.len());
        Pin::new(&mut self.inner).poll_write(context, &bytes[..part])
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// A reply that is sent at a time, and the counters that get back charges of refused requests with it.
struct Sent {
    at: Instant,
    bytes: Vec<u8>,
    undone: Vec<Vec<u8>>,
}

/// Serves a connection until it ends. What the server has received by then, it still runs, unless the cut of the
/// connection loses it.
async fn serve(
    world: World,
    process: usize,
    endpoint: Endpoint,
    stream: DuplexStream,
    cut: Arc<Notify>,
) {
    let (received, mut commands) = mpsc::unbounded_channel::<(Instant, Vec<Vec<u8>>)>();
    let (replied, replies) = mpsc::unbounded_channel::<Sent>();
    let loses = world.lock().rng.bool();
    let is_lost = AtomicBool::new(false);
    let lost = &is_lost;
    let talk = {
        let world = world.clone();
        async move {
            let (from, to) = tokio::io::split(stream);
            let exchange = pin!(exchange(&world, process, from, to, received, replies));
            let cut = pin!(cut.notified());
            if let Either::Left(_) = select(cut, exchange).await {
                lost.store(loses, Ordering::Relaxed);
            }
        }
    };
    let work = async move {
        let mut asking = false;
        while let Some((arrives, command)) = commands.recv().await {
            sleep_until(arrives).await;
            loop {
                let paused = world.lock().paused_until(endpoint.server);
                if paused <= Instant::now() {
                    break;
                }
                sleep_until(paused).await;
            }
            if lost.load(Ordering::Relaxed) {
                continue;
            }
            let mut state = world.lock();
            let Ran { reply, undone } = state.run(endpoint, asking, &command);
            asking = command.first().is_some_and(|it| it == b"ASKING");
            let mut bytes = Vec::new();
            resp::write(&reply, &mut bytes);
            let at = Instant::now() + state.delay();
            let _ended = replied.send(Sent { at, bytes, undone });
        }
    };
    join(talk, work).await;
}

/// Hands commands to the server and replies to the process, each after its time under way and in order.
async fn exchange(
    world: &World,
    process: usize,
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    received: mpsc::UnboundedSender<(Instant, Vec<Vec<u8>>)>,
    mut replies: mpsc::UnboundedReceiver<Sent>,
) {
    let read = async {
        let mut input = Vec::new();
        let mut arrives = Instant::now();
        loop {
            while let Some(command) = resp::take_command(&mut input) {
                arrives = arrives.max(Instant::now() + world.lock().delay());
                let _ended = received.send((arrives, command));
            }
            match from.read_buf(&mut input).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    };
    let write = async {
        let mut arrives = Instant::now();
        while let Some(Sent { at, bytes, undone }) = replies.recv().await {
            arrives = arrives.max(at);
            sleep_until(arrives).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
            if !undone.is_empty() {
                world.lock().replied(process, undone);
            }
        }
    };
    select(pin!(read), pin!(write)).await;
}
