//! The commands of one connection and the replies to them.
//!
//! One task writes the queued commands in batches, and passes each reply to its caller, in order. When the
//! connection ends, commands that were written have an unknown outcome, and commands still in the queue were not sent.

use std::{collections::VecDeque, io, sync::OnceLock, time::Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::{mpsc, oneshot},
};

use super::reply::{Reply, ReplyBounds, ReplyError, ReplyReader};
use crate::clock;

/// The most commands that wait to be written, and the most that wait for their replies. A healthy server never has so
/// many.
pub(super) const WAITING_COMMANDS_MAX: usize = 20_000;

/// Commands taken from the queue at once.
const WRITE_BATCH_MAX: usize = 256;

/// Bytes waiting for the socket above which no more commands are taken from the queue.
const OUTPUT_MAX: usize = 64 * 1024;

/// Why a command has no reply.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum PipelineError {
    /// The command was not sent: the queue is full.
    #[error("too many commands wait for the connection")]
    QueueFull,
    /// The command was not sent: the connection had ended, or the deadline had passed.
    #[error("the command was not sent before its deadline or the end of the connection")]
    NotSent,
    /// The connection ended before the reply. The command may have been run.
    #[error("the connection broke")]
    Broken,
}

/// Why a connection has ended.
#[derive(Debug, Error)]
pub(super) enum ConnectionEnd {
    #[error("the connection broke")]
    Closed,
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    #[error("Redis sent {0}")]
    Reply(#[from] ReplyError),
    /// Every [`CommandSender`] was dropped.
    #[error("the connection is no longer used")]
    Unused,
}

/// A command in the queue, or one that waits for its reply.
struct QueuedCommand {
    /// `None` once the reply is sent.
    caller: Option<oneshot::Sender<Result<Reply, PipelineError>>>,
    is_written: bool,
    /// The command is not sent after the deadline.
    deadline: Option<Instant>,
    bounds: ReplyBounds,
    /// Number of replies to skip before the caller's.
    replies_to_skip: u8,
}

impl QueuedCommand {
    /// Whether the command must be sent. If the caller no longer waits, the command must not charge anything.
    fn is_wanted(&self, now: Instant) -> bool {
        self.caller.as_ref().is_some_and(|caller| !caller.is_closed())
            && self.deadline.is_none_or(|deadline| deadline > now)
    }
}

impl Drop for QueuedCommand {
    fn drop(&mut self) {
        if let Some(caller) = self.caller.take() {
            let why = if self.is_written { PipelineError::Broken } else { PipelineError::NotSent };
            let _cancelled = caller.send(Err(why));
        }
    }
}

/// Sends commands over a connection.
#[derive(Clone)]
pub(super) struct CommandSender(mpsc::Sender<(Bytes, QueuedCommand)>);

/// The receiving end of a queue of commands, for the task of the connection.
pub(super) struct CommandQueue(mpsc::Receiver<(Bytes, QueuedCommand)>);

/// A reply that has not arrived. If it is dropped before its command is written, the command is not sent.
pub(super) struct PendingReply(
    Result<oneshot::Receiver<Result<Reply, PipelineError>>, PipelineError>,
);

/// An empty queue of commands.
pub(super) fn command_queue() -> (CommandSender, CommandQueue) {
    let (sender, receiver) = mpsc::channel(WAITING_COMMANDS_MAX);
    (CommandSender(sender), CommandQueue(receiver))
}

impl CommandSender {
    /// Queues a command.
    pub(super) fn send(&self, command: Bytes, bounds: ReplyBounds) -> PendingReply {
        self.send_for_last_reply(0, command, bounds, None)
    }

    /// Queues `preceding` commands and one more, whose reply alone is returned. They are not sent after the deadline.
    pub(super) fn send_for_last_reply(
        &self,
        preceding: u8,
        commands: Bytes,
        bounds: ReplyBounds,
        deadline: Option<Instant>,
    ) -> PendingReply {
        let (sender, receiver) = oneshot::channel();
        let caller = Some(sender);
        let waiting = QueuedCommand {
            caller,
            is_written: false,
            deadline,
            bounds,
            replies_to_skip: preceding,
        };
        PendingReply(match self.0.try_send((commands, waiting)) {
            Ok(()) => Ok(receiver),
            Err(mpsc::error::TrySendError::Full((_, mut waiting))) => {
                waiting.caller = None;
                Err(PipelineError::QueueFull)
            }
            Err(mpsc::error::TrySendError::Closed(_)) => Err(PipelineError::NotSent),
        })
    }

    /// Resolves when the connection has ended.
    pub(super) async fn closed(&self) {
        self.0.closed().await;
    }
}

impl PendingReply {
    /// The reply.
    pub(super) async fn reply(&mut self) -> Result<Reply, PipelineError> {
        match &mut self.0 {
            // The connection's task answers before it drops the sender.
            Ok(reply) => reply.await.unwrap_or(Err(PipelineError::Broken)),
            Err(error) => Err(*error),
        }
    }
}

/// Writes commands and reads replies until the connection ends, or until every [`CommandSender`] is dropped and every
/// reply is read. Sets `ended` to the reason before callers get their errors.
pub(super) async fn run(
    socket: impl AsyncRead + AsyncWrite + Send,
    queue: CommandQueue,
    ended: &OnceLock<ConnectionEnd>,
) {
    let mut waiting = VecDeque::new();
    let mut queue = queue;
    let end = exchange(socket, &mut queue.0, &mut waiting).await;
    ended.get_or_init(|| end);
}

async fn exchange(
    socket: impl AsyncRead + AsyncWrite + Send,
    queue: &mut mpsc::Receiver<(Bytes, QueuedCommand)>,
    waiting: &mut VecDeque<QueuedCommand>,
) -> ConnectionEnd {
    let (mut from, mut to) = tokio::io::split(socket);
    let mut reader = ReplyReader::default();
    let mut output = BytesMut::new();
    let mut taken = Vec::with_capacity(WRITE_BATCH_MAX);
    // TLS keeps bytes until it is flushed.
    let mut is_flushed = true;
    let mut is_used = true;
    loop {
        if !is_used && waiting.is_empty() {
            return ConnectionEnd::Unused;
        }
        let may_take = is_used && output.len() < OUTPUT_MAX && waiting.len() < WAITING_COMMANDS_MAX;
        tokio::select! {
            // Replies first, because they make room for commands.
            biased;
            read = from.read_buf(reader.input()) => match read {
                Ok(0) => return ConnectionEnd::Closed,
                Ok(_) => {
                    if let Err(error) = deliver_replies(&mut reader, waiting) {
                        return ConnectionEnd::Reply(error);
                    }
                }
                Err(error) => return ConnectionEnd::Io(error),
            },
            written = write(&mut to, &output), if !(output.is_empty() && is_flushed) => match written {
                Ok(bytes) => {
                    is_flushed = output.is_empty();
                    output.advance(bytes);
                }
                Err(error) => return ConnectionEnd::Io(error),
            },
            count = queue.recv_many(&mut taken, WRITE_BATCH_MAX), if may_take => {
                is_used = count > 0;
                let now = clock::now();
                for (command, mut queued) in taken.drain(..) {
                    if queued.is_wanted(now) {
                        output.extend_from_slice(&command);
                        queued.is_written = true;
                        waiting.push_back(queued);
                    }
                }
            }
        }
    }
}

/// Writes a part of the output; without output, flushes.
async fn write(to: &mut (impl AsyncWrite + Unpin), output: &[u8]) -> io::Result<usize> {
    if output.is_empty() {
        return to.flush().await.map(|()| 0);
    }
    match to.write(output).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        bytes => Ok(bytes),
    }
}

/// Passes the replies that have arrived to their callers.
fn deliver_replies(
    reader: &mut ReplyReader,
    waiting: &mut VecDeque<QueuedCommand>,
) -> Result<(), ReplyError> {
    loop {
        let Some(first) = waiting.front_mut() else {
            return if reader.is_empty() { Ok(()) } else { Err(ReplyError::Unsolicited) };
        };
        let Some(reply) = reader.next(first.bounds)? else { return Ok(()) };
        if first.replies_to_skip > 0 {
            first.replies_to_skip -= 1;
        } else if let Some(caller) = waiting.pop_front().and_then(|mut it| it.caller.take()) {
            let _cancelled = caller.send(Ok(reply));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::DuplexStream;

    use super::*;

    /// A connection and the server's end of it.
    fn connected() -> (CommandSender, DuplexStream, tokio::task::JoinHandle<Option<ConnectionEnd>>)
    {
        let (ours, theirs) = tokio::io::duplex(1024);
        let (commands, queue) = command_queue();
        let task = tokio::spawn(async move {
            let ended = OnceLock::new();
            run(ours, queue, &ended).await;
            ended.into_inner()
        });
        (commands, theirs, task)
    }

    async fn received(server: &mut DuplexStream) -> Vec<u8> {
        let mut bytes = vec![0; 1024];
        let length = server.read(&mut bytes).await.unwrap();
        bytes.truncate(length);
        bytes
    }

    #[tokio::test]
    async fn command_past_its_deadline_is_not_sent() {
        let (commands, mut server, _task) = connected();
        let send = |text: &'static [u8], deadline| {
            commands.send_for_last_reply(0, text.into(), ReplyBounds::LIST, Some(deadline))
        };
        let now = clock::now();
        let mut late = send(b"late", now);
        let mut timely = send(b"timely", now + Duration::from_secs(1));
        assert_eq!(received(&mut server).await, b"timely");
        assert_eq!(late.reply().await, Err(PipelineError::NotSent));
        server.write_all(b":1\r\n").await.unwrap();
        assert_eq!(timely.reply().await, Ok(Reply::Integer(1)));
    }

    #[tokio::test]
    async fn connection_without_callers_ends_after_the_last_reply() {
        let (commands, mut server, task) = connected();
        let mut pending = commands.send(Bytes::from_static(b"one"), ReplyBounds::LIST);
        assert_eq!(received(&mut server).await, b"one");
        drop(commands);
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        server.write_all(b":1\r\n").await.unwrap();
        assert_eq!(pending.reply().await, Ok(Reply::Integer(1)));
        assert!(matches!(task.await.unwrap(), Some(ConnectionEnd::Unused)));
    }

    #[tokio::test]
    async fn unsent_commands_of_a_broken_connection_were_not_run() {
        let (commands, server, task) = connected();
        let mut sent = commands.send(Bytes::from_static(b"one"), ReplyBounds::LIST);
        tokio::task::yield_now().await;
        drop(server);
        assert!(matches!(task.await.unwrap(), Some(ConnectionEnd::Closed)));
        assert_eq!(sent.reply().await, Err(PipelineError::Broken));
        let mut unsent = commands.send(Bytes::from_static(b"two"), ReplyBounds::LIST);
        assert_eq!(unsent.reply().await, Err(PipelineError::NotSent));
    }
}
