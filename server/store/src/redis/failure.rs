//! Why a call to Redis has no reply, and whether it was run.

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::{
    Address,
    pipeline::{NoReply, Pending},
    reply::Reply,
};

/// How long a reply is waited for after its deadline, and after its connection was given up for silence. A server that was
/// paused answers then what it was sent before.
pub const LATE_MAX: Duration = Duration::from_secs(5);

/// The error code of a cluster that is down.
pub(super) const CLUSTERDOWN: &str = "CLUSTERDOWN";

/// A reply to each call.
pub(super) type Replies = SmallVec<[Result<Reply, Failure>; 1]>;

/// Why a call has no reply.
pub(super) enum Failure {
    /// Nothing was run: the slot belongs to another server.
    Moved(Address),
    /// Nothing was run: the slot is moving, and its keys are at another server already.
    Ask(Address),
    /// Nothing was run: the slot is moving, and its keys are at both servers.
    TryAgain,
    /// Nothing was run.
    NotRun,
    /// It is unknown whether the call was run.
    Unknown,
    /// Not known yet: the reply did not come before the deadline.
    Late(LateReply),
}

/// A reply that is still waited for after its deadline.
pub(super) struct LateReply {
    /// The server that was asked.
    pub(super) server: Address,
    pub(super) pending: Pending,
}

impl LateReply {
    /// The reply, if it comes until then. Else whether the call was run is [`Failure::Unknown`], or it is
    /// [`Failure::NotRun`].
    pub(super) async fn until(mut self, until: Instant) -> Result<Reply, Failure> {
        match within(Some(until), self.pending.reply()).await {
            Some(Ok(Reply::Error(text))) if is_not_run(&text) => Err(Failure::NotRun),
            Some(Err(NoReply::QueueFull | NoReply::NotSent)) => Err(Failure::NotRun),
            Some(Ok(Reply::Error(_)) | Err(NoReply::Broken)) | None => Err(Failure::Unknown),
            Some(Ok(reply)) => Ok(reply),
        }
    }
}

/// Why an operator has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// Nothing was run: the slot is at another server, or on its way.
    Elsewhere(String),
    /// Nothing was run, for another reason.
    Because(String),
    /// It is unknown whether it was run.
    Unknown(String),
}

/// What the future says before the deadline.
pub(super) async fn within<T>(
    deadline: Option<Instant>,
    future: impl Future<Output = T>,
) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline.into(), future).await.ok(),
        None => Some(future.await),
    }
}

/// Replies that mean that nothing was run: a script is refused as a whole, or by its first write.
pub(super) const NOT_RUN: [&str; 12] = [
    CLUSTERDOWN,
    "OOM",
    "READONLY",
    "LOADING",
    "BUSY",
    "MISCONF",
    "NOREPLICAS",
    "MASTERDOWN",
    "NOAUTH",
    "NOPERM",
    "WRONGPASS",
    "CROSSSLOT",
];

/// Whether an error reply means that the script was not run.
fn is_not_run(text: &str) -> bool {
    let code = text.split(' ').next().unwrap_or_default();
    NOT_RUN.contains(&code) || ["NOSCRIPT", "MOVED", "ASK", "TRYAGAIN"].contains(&code)
}
