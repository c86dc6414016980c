//! Connections between processes and servers: bytes in memory, with delays.

use std::{
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Either, join, select},
};
use sluicegate_store::redis::{Address, ByteStream, Connect};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf},
    sync::{Notify, mpsc},
    time::{Instant, sleep_until},
};

use crate::{
    resp,
    world::{State, World},
};

/// Bytes that wait in a connection: more than a process ever sends at once.
const BUFFER: usize = 1 << 20;

/// Connects one process to the servers.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) world: World,
    pub(crate) process: usize,
}

impl Connect for Network {
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        let (world, process) = (self.world.clone(), self.process);
        let server = State::server_at(address);
        async move {
            let (under_way, paused) = {
                let mut state = world.lock();
                let server = server.filter(|it| *it < state.servers());
                let Some(server) = server else { return Err(io::ErrorKind::NotFound.into()) };
                (state.delay(), state.paused_until(server))
            };
            let Some(server) = server else { return Err(io::ErrorKind::NotFound.into()) };
            sleep_until(paused.max(Instant::now() + under_way)).await;
            let (ours, theirs) = tokio::io::duplex(BUFFER);
            let cut = Arc::new(Notify::new());
            world.lock().connected(process, server, Arc::clone(&cut));
            tokio::spawn(serve(world, server, theirs, cut));
            Ok(Box::new(ours) as Box<dyn ByteStream>)
        }
        .boxed()
    }
}

/// Serves a connection until it ends. What the server has received by then, it still runs, unless the cut of the
/// connection loses it.
async fn serve(world: World, server: usize, stream: DuplexStream, cut: Arc<Notify>) {
    let (received, mut commands) = mpsc::unbounded_channel::<(Instant, Vec<Vec<u8>>)>();
    let (replied, replies) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let loses = world.lock().rng.bool();
    let is_lost = AtomicBool::new(false);
    let lost = &is_lost;
    let talk = {
        let world = world.clone();
        async move {
            let (from, to) = tokio::io::split(stream);
            let exchange = pin!(exchange(&world, from, to, received, replies));
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
                let paused = world.lock().paused_until(server);
                if paused <= Instant::now() {
                    break;
                }
                sleep_until(paused).await;
            }
            if lost.load(Ordering::Relaxed) {
                continue;
            }
            let mut state = world.lock();
            let reply = state.run(server, asking, &command);
            asking = command.first().is_some_and(|it| it == b"ASKING");
            let mut bytes = Vec::new();
            resp::write(&reply, &mut bytes);
            let _ended = replied.send((Instant::now() + state.delay(), bytes));
        }
    };
    join(talk, work).await;
}

/// Hands commands to the server and replies to the process, each after its time under way and in order.
async fn exchange(
    world: &World,
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    received: mpsc::UnboundedSender<(Instant, Vec<Vec<u8>>)>,
    mut replies: mpsc::UnboundedReceiver<(Instant, Vec<u8>)>,
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
        while let Some((at, reply)) = replies.recv().await {
            arrives = arrives.max(at);
            sleep_until(arrives).await;
            if to.write_all(&reply).await.is_err() {
                return;
            }
        }
    };
    select(pin!(read), pin!(write)).await;
}
