//! Why a call to Redis has no reply, and whether it was run.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::{
    Address,
    error_code::ErrorCode,
    pipeline::{NoReply, PendingReply},
    reply::Reply,
};

/// How long a late reply is awaited: after its deadline, and after its connection was abandoned because the server did
/// not answer. A paused server answers earlier commands when it continues.
pub const LATE_MAX: Duration = Duration::from_secs(5);

/// The reply to each call.
pub(super) type Replies = SmallVec<[Result<Reply, Failure>; 1]>;

/// Why a script call has no result.
pub(super) enum Failure {
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
    /// The reply, if it arrives by `until`. Fails with [`Failure::NotRun`] or [`Failure::Unknown`].
    pub(super) async fn until(mut self, until: Instant) -> Result<Reply, Failure> {
        match within(Some(until), self.pending.reply()).await {
            Some(Ok(Reply::Error(text))) if ErrorCode::of(&text).is_not_run() => {
                Err(Failure::NotRun)
            }
            Some(Err(NoReply::QueueFull | NoReply::NotSent)) => Err(Failure::NotRun),
            Some(Ok(Reply::Error(_)) | Err(NoReply::Broken)) | None => Err(Failure::Unknown),
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
pub(super) async fn within<T>(
    deadline: Option<Instant>,
    future: impl Future<Output = T>,
) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline.into(), future).await.ok(),
        None => Some(future.await),
    }
}
