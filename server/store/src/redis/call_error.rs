//! Why a call or a command has no result, and whether it was run.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::{
    Address,
    error_code::ErrorCode,
    pipeline::{PendingReply, PipelineError},
    reply::Reply,
};

/// How long a late reply is awaited: after its deadline, and after its connection was abandoned because the server did
/// not answer. A paused server answers earlier commands when it continues.
pub const LATE_REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// The reply to each call.
pub(super) type Replies = SmallVec<[Result<Reply, CallError>; 1]>;

/// Why a script call has no result, after the scripts were loaded if they were missing.
pub(super) enum CallError {
    /// The call was not run: the slot is at another server.
    Moved(Address),
    /// The call was not run: the slot is moving, and its keys are already at another server.
    Ask(Address),
    /// The call was not run: the slot is moving, and its keys are at both servers.
    TryAgain,
    /// The call was not run.
    NotRun,
    /// It is unknown whether the call was run.
    Unknown,
    /// No reply arrived by the deadline. It may arrive late.
    Late(LateReply),
}

/// A reply that is awaited after its deadline.
pub(super) struct LateReply {
    /// The server of the call.
    pub(super) server: Address,
    pub(super) pending: PendingReply,
}

impl LateReply {
    /// The reply, if it arrives by `deadline`. Fails with [`CallError::NotRun`] or [`CallError::Unknown`].
    pub(super) async fn wait_until(mut self, deadline: Instant) -> Result<Reply, CallError> {
        match until_deadline(Some(deadline), self.pending.reply()).await {
            Some(Ok(Reply::Error(text))) if ErrorCode::of(&text).is_not_run() => {
                Err(CallError::NotRun)
            }
            Some(Err(PipelineError::QueueFull | PipelineError::NotSent)) => Err(CallError::NotRun),
            Some(Ok(Reply::Error(_)) | Err(PipelineError::Broken)) | None => {
                Err(CallError::Unknown)
            }
            Some(Ok(reply)) => Ok(reply),
        }
    }
}

/// Why a single command has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CommandError {
    /// The command was not run: the slot is at another server, or moving.
    SlotMoved(String),
    /// The command was not run, for another reason.
    NotRun(String),
    /// It is unknown whether the command was run.
    Unknown(String),
}

/// The output of the future; `None` if the deadline passes first.
pub(super) async fn until_deadline<T>(
    deadline: Option<Instant>,
    future: impl Future<Output = T>,
) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline.into(), future).await.ok(),
        None => Some(future.await),
    }
}
