//! The commands of one connection and the replies to them.
//!
//! One task writes what callers have queued, in batches, and hands each reply to its caller, in order. When the
//! connection ends, commands that were written have an unknown outcome, and those that still waited were not sent.

use std::{collections::VecDeque, io, sync::OnceLock};

use bytes::{Buf as _, Bytes, BytesMut};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::{mpsc, oneshot},
};

use super::reply::{Reply, ReplyBounds, ReplyError, ReplyReader};

/// The most commands that wait to be written, and the most that wait for their reply. Far more than a healthy server ever
/// lets wait.
pub(super) const WAITING_MAX: usize = 20_000;

/// Commands taken from the queue at once.
const BATCH_MAX: usize = 256;

/// Nothing more is taken from the queue while so many bytes wait for the socket.
const OUTPUT_MAX: usize = 64 * 1024;

/// Why a command has no reply.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum NoReply {
    /// It was not sent: too many wait.
    #[error("too many commands wait for the connection")]
    QueueFull,
    /// It was not sent: the connection has ended.
    #[error("the connection broke before the command was sent")]
    NotSent,
    /// It may have been run.
    #[error("the connection broke")]
    Broken,
}

/// Why a connection has ended.
#[derive(Debug, Error)]
pub(super) enum End {
    #[error("the connection broke")]
    Closed,
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("Redis sent {0}")]
    Reply(#[from] ReplyError),
    /// Nobody can send commands any more.
    #[error("the connection is no longer used")]
    Unused,
}

/// The place of a caller in the queue.
struct Waiting {
    /// Taken by the reply.
    caller: Option<oneshot::Sender<Result<Reply, NoReply>>>,
    is_written: bool,
    bounds: ReplyBounds,
    /// Replies before the one that the caller waits for.
    skipped: u8,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(caller) = self.caller.take() {
            let why = if self.is_written { NoReply::Broken } else { NoReply::NotSent };
            let _gone = caller.send(Err(why));
        }
    }
}

/// Sends commands over a connection.
#[derive(Clone)]
pub(super) struct Commands(mpsc::Sender<(Bytes, Waiting)>);

/// What the task of a connection takes its commands from.
pub(super) struct Queue(mpsc::Receiver<(Bytes, Waiting)>);

/// A command whose reply has not come yet. Dropped before the command is written, it is not sent.
pub(super) struct Pending(Result<oneshot::Receiver<Result<Reply, NoReply>>, NoReply>);

/// A queue of commands, empty.
pub(super) fn queue() -> (Commands, Queue) {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    (Commands(sender), Queue(receiver))
}

impl Commands {
    /// Queues a command.
    pub(super) fn send(&self, command: Bytes, bounds: ReplyBounds) -> Pending {
        self.send_after(0, command, bounds)
    }

    /// Queues commands, one behind the other, of which the last one's reply counts.
    pub(super) fn send_after(&self, others: u8, commands: Bytes, bounds: ReplyBounds) -> Pending {
        let (sender, receiver) = oneshot::channel();
        let caller = Some(sender);
        let waiting = Waiting { caller, is_written: false, bounds, skipped: others };
        Pending(match self.0.try_send((commands, waiting)) {
            Ok(()) => Ok(receiver),
            Err(mpsc::error::TrySendError::Full((_, mut waiting))) => {
                waiting.caller = None;
                Err(NoReply::QueueFull)
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(NoReply::NotSent),
        })
    }

    /// Resolves when the connection has ended.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }
}

impl Pending {
    /// The reply.
    pub(super) async fn reply(self) -> Result<Reply, NoReply> {
        // Whoever has the sender answers before it goes.
        self.0?.await.unwrap_or(Err(NoReply::Broken))
    }
}

/// Writes commands and reads replies until the connection ends. `ended` gets the reason, before callers get theirs.
pub(super) async fn run(
    socket: impl AsyncRead + AsyncWrite + Send,
    queue: Queue,
    ended: &OnceLock<End>,
) {
    let mut waiting = VecDeque::new();
    let mut queue = queue;
    let end = exchange(socket, &mut queue.0, &mut waiting).await;
    ended.get_or_init(|| end);
}

async fn exchange(
    socket: impl AsyncRead + AsyncWrite + Send,
    queue: &mut mpsc::Receiver<(Bytes, Waiting)>,
    waiting: &mut VecDeque<Waiting>,
) -> End {
    let (mut from, mut to) = tokio::io::split(socket);
    let mut reader = ReplyReader::default();
    let mut output = BytesMut::new();
    let mut taken = Vec::with_capacity(BATCH_MAX);
    // TLS keeps bytes until it is flushed.
    let mut is_flushed = true;
    loop {
        let may_take = output.len() < OUTPUT_MAX && waiting.len() < WAITING_MAX;
        tokio::select! {
            // Replies first: they make room.
            biased;
            read = from.read_buf(reader.input()) => match read {
                Ok(0) => return End::Closed,
                Ok(_) => {
                    if let Err(error) = hand_out(&mut reader, waiting) {
                        return End::Reply(error);
                    }
                }
                Err(error) => return End::Io(error),
            },
            written = write(&mut to, &output), if !(output.is_empty() && is_flushed) => match written {
                Ok(bytes) => {
                    is_flushed = output.is_empty();
                    output.advance(bytes);
                }
                Err(error) => return End::Io(error),
            },
            count = queue.recv_many(&mut taken, BATCH_MAX), if may_take => {
                if count == 0 {
                    return End::Unused;
                }
                for (command, mut place) in taken.drain(..) {
                    // What nobody waits for any more is not charged either.
                    if place.caller.as_ref().is_some_and(|caller| !caller.is_closed()) {
                        output.extend_from_slice(&command);
                        place.is_written = true;
                        waiting.push_back(place);
                    }
                }
            }
        }
    }
}

/// Writes some of the output; if there is none, flushes.
async fn write(to: &mut (impl AsyncWrite + Unpin), output: &[u8]) -> io::Result<usize> {
    if output.is_empty() {
        return to.flush().await.map(|()| 0);
    }
    match to.write(output).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        bytes => Ok(bytes),
    }
}

/// Gives the replies that have arrived to those who wait for them.
fn hand_out(reader: &mut ReplyReader, waiting: &mut VecDeque<Waiting>) -> Result<(), ReplyError> {
    loop {
        let Some(first) = waiting.front_mut() else {
            return if reader.is_empty() { Ok(()) } else { Err(ReplyError::Unsolicited) };
        };
        let Some(reply) = reader.next(first.bounds)? else { return Ok(()) };
        if first.skipped > 0 {
            first.skipped -= 1;
        } else if let Some(caller) = waiting.pop_front().and_then(|mut it| it.caller.take()) {
            let _gave_up = caller.send(Ok(reply));
        }
    }
}
