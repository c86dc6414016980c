//! Simulated connections between processes and servers: streams in memory, with delays.

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
    world::{CommandResult, Endpoint, World},
};

/// Capacity of a stream in bytes: more than a process ever sends at once.
const BUFFER: usize = 1 << 20;

/// Maximum size of a part when a stream is split at random, in bytes.
const TORN_MAX: usize = 40;

/// Connects one process to the servers.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) world: World,
    pub(crate) process: usize,
    /// Whether connections carry bytes in random parts, and let other tasks run first at random.
    pub(crate) is_jittery: bool,
}

impl Connect for Network {
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let (world, process, is_jittery) = (self.world.clone(), self.process, self.is_jittery);
        let address = address.clone();
        async move {
            let found = {
                let mut state = world.lock();
                let endpoint = state.endpoint(&address);
                endpoint.map(|it| (it, state.delay(), state.paused_until(it.server)))
            };
            let Some((endpoint, delay, paused_until)) = found else {
                return Err(io::ErrorKind::NotFound.into());
            };
            sleep_until(paused_until.max(Instant::now() + delay)).await;
            let (ours, theirs) = tokio::io::duplex(BUFFER);
            let cut = Arc::new(Notify::new());
            let rng = {
                let mut state = world.lock();
                state.add_connection(process, endpoint.server, Arc::clone(&cut));
                is_jittery.then(|| fastrand::Rng::with_seed(state.rng.u64(..)))
            };
            tokio::spawn(serve(world, process, endpoint, theirs, cut));
            Ok(match rng {
                Some(rng) => Box::new(TornStream { inner: ours, rng }) as Box<dyn ByteStream>,
                None => Box::new(ours),
            })
        }
        .boxed()
    }
}

/// A stream that carries bytes in random parts, and lets other tasks run first at random.
struct TornStream {
    inner: DuplexStream,
    rng: fastrand::Rng,
}

impl TornStream {
    /// Whether other tasks run first.
    fn yields(&mut self, context: &Context<'_>) -> bool {
        let yields = self.rng.u32(0..4) == 0;
        if yields {
            context.waker().wake_by_ref();
        }
        yields
    }

    /// The number of bytes that are carried at once, of `length` bytes.
    fn part(&mut self, length: usize) -> usize {
        if self.rng.u32(0..4) == 0 { length.min(self.rng.usize(1..=TORN_MAX)) } else { length }
    }
}

impl AsyncRead for TornStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.yields(context) {
            return Poll::Pending;
        }
        let length = self.part(buffer.remaining());
        let mut bytes = [0; TORN_MAX];
        if length > TORN_MAX {
            return Pin::new(&mut self.inner).poll_read(context, buffer);
        }
        let mut part = ReadBuf::new(&mut bytes[..length]);
        let read = Pin::new(&mut self.inner).poll_read(context, &mut part);
        buffer.put_slice(part.filled());
        read
    }
}

impl AsyncWrite for TornStream {
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

/// A reply under way to a process.
struct SentReply {
    /// When it arrives.
    arrives: Instant,
    bytes: Vec<u8>,
    /// The counters on which the command has undone charges of refused requests.
    undone: Vec<Vec<u8>>,
}

/// Serves a connection until it ends. Commands that the server has received by then still run, unless the connection is
/// cut in a way that loses them.
async fn serve(
    world: World,
    process: usize,
    endpoint: Endpoint,
    stream: DuplexStream,
    cut: Arc<Notify>,
) {
    let (received, mut commands) = mpsc::unbounded_channel::<(Instant, Vec<Vec<u8>>)>();
    let (replied, replies) = mpsc::unbounded_channel::<SentReply>();
    let cut_loses_commands = world.lock().rng.bool();
    let are_lost = AtomicBool::new(false);
    let are_lost = &are_lost;
    let transport = {
        let world = world.clone();
        async move {
            let (from, to) = tokio::io::split(stream);
            let exchange = pin!(exchange(&world, process, from, to, received, replies));
            let cut = pin!(cut.notified());
            if let Either::Left(_) = select(cut, exchange).await {
                are_lost.store(cut_loses_commands, Ordering::Relaxed);
            }
        }
    };
    let execution = async move {
        let mut asking = false;
        while let Some((arrives, command)) = commands.recv().await {
            sleep_until(arrives).await;
            loop {
                let paused_until = world.lock().paused_until(endpoint.server);
                if paused_until <= Instant::now() {
                    break;
                }
                sleep_until(paused_until).await;
            }
            if are_lost.load(Ordering::Relaxed) {
                continue;
            }
            let mut state = world.lock();
            let CommandResult { reply, undone } = state.run(endpoint, asking, &command);
            asking = command.first().is_some_and(|it| it == b"ASKING");
            let mut bytes = Vec::new();
            resp::write(&reply, &mut bytes);
            let arrives = Instant::now() + state.delay();
            let _ended = replied.send(SentReply { arrives, bytes, undone });
        }
    };
    join(transport, execution).await;
}

/// Passes commands to the server and replies to the process, in order and each after its delay.
async fn exchange(
    world: &World,
    process: usize,
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    received: mpsc::UnboundedSender<(Instant, Vec<Vec<u8>>)>,
    mut replies: mpsc::UnboundedReceiver<SentReply>,
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
        let mut last = Instant::now();
        while let Some(SentReply { arrives, bytes, undone }) = replies.recv().await {
            last = last.max(arrives);
            sleep_until(last).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
            if !undone.is_empty() {
                world.lock().record_undone_charges(process, undone);
            }
        }
    };
    select(pin!(read), pin!(write)).await;
}
