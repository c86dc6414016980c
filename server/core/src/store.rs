//! The port to whatever keeps the counters.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use smallvec::SmallVec;
use thiserror::Error;

use crate::{
    CounterKey, Limit, OnFailure,
    algorithm::{HITS_MAX, Receipt},
};

/// Keeps counters and settles batches of checks against them.
///
/// A store owns its clock and answers in spans of time, so that replicas with skewed clocks agree.
pub trait Store: Send + Sync + 'static {
    /// Settles each group of the batch, all or nothing, and answers every check in order.
    fn decide(&self, batch: Batch) -> impl Future<Output = Answers> + Send;

    /// Whether these checks are settled all or nothing. If not, parts of them are, each for itself, and what one has
    /// taken is to be given back when another refuses.
    fn settles_whole(&self, _checks: &[Check]) -> bool {
        true
    }

    /// The late answers to a group that was the only one of its batch, if the store still waits for some. To be called
    /// right after `decide` has returned, before the caller awaits anything else.
    fn late(&self, _group: &Group) -> Option<Late> {
        None
    }
}

impl<S: Store> Store for Arc<S> {
    fn decide(&self, batch: Batch) -> impl Future<Output = Answers> + Send {
        S::decide(self, batch)
    }

    fn settles_whole(&self, checks: &[Check]) -> bool {
        S::settles_whole(self, checks)
    }

    fn late(&self, group: &Group) -> Option<Late> {
        S::late(self, group)
    }
}

/// The questions of one call to a store. By value, because a store may merge batches and outlive the
/// request that asked.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Each group is one request's checks and is settled all or nothing, whatever the others do.
    pub groups: SmallVec<[Group; 1]>,
    /// When the answers must be there. A store that waits for others gives up then, and answers what it
    /// knows; without one it waits as long as it takes.
    pub deadline: Option<Instant>,
}

impl Batch {
    /// A batch that asks for one request.
    #[must_use]
    pub fn of(group: Group, deadline: Option<Instant>) -> Self {
        Self { groups: SmallVec::from_iter([group]), deadline }
    }
}

/// The checks of one request, in the order of its descriptors. Shared, because whoever asks looks at them
/// again when the answers are there.
pub type Group = Arc<[Check]>;

/// One question: may these hits pass this counter?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Which counter.
    pub key: CounterKey,
    /// What it is held against.
    pub limit: Limit,
    /// How it consumes.
    pub take: Take,
    /// Position of the descriptor that asks. The checks of one descriptor stand side by side, and are
    /// charged all or none.
    pub descriptor: usize,
    /// What a refusal does to the request.
    pub veto: Veto,
    /// What answers if the store cannot.
    pub on_failure: OnFailure,
}

/// How a check consumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// These hits or nothing; a refusal is free. Zero hits is a peek.
    Exactly(u64),
    /// As many of these hits as there is room for.
    UpTo(u64),
    /// These hits, whatever the answer; usage may pass the limit. Allowed if `needs` hits would have
    /// fitted before: one for a debit of costs that are known afterwards, `hits` where refused hits count.
    Always {
        /// What is charged.
        hits: u64,
        /// What must have been available for the answer to be yes.
        needs: u64,
    },
    /// Gives hits back. Always allowed.
    GiveBack {
        /// What is given back.
        hits: u64,
        /// The take that is undone; without one, whatever usage there is.
        receipt: Option<Receipt>,
    },
}

impl Take {
    /// Whether usage can grow: a peek or a refund needs no counter that is not there.
    #[must_use]
    pub const fn charges(&self) -> bool {
        match *self {
            Self::Exactly(hits) | Self::UpTo(hits) | Self::Always { hits, .. } => hits > 0,
            Self::GiveBack { .. } => false,
        }
    }

    /// The hits that it charges or gives back at most.
    #[must_use]
    pub const fn hits(&self) -> u64 {
        let hits = match *self {
            Self::Exactly(hits)
            | Self::UpTo(hits)
            | Self::Always { hits, .. }
            | Self::GiveBack { hits, .. } => hits,
        };
        if hits < HITS_MAX { hits } else { HITS_MAX }
    }

    /// Whether what was taken goes back if the request is refused.
    #[must_use]
    pub const fn conditional(&self) -> bool {
        matches!(self, Self::Exactly(_) | Self::UpTo(_))
    }
}

/// What a check that is over does to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Veto {
    /// Nothing: the rule only simulates.
    None,
    /// Refuses the request.
    Alone,
    /// Refuses the request if every quota descriptor of it is over.
    Quota,
}

impl Veto {
    /// What is left of it where a part of a request is asked for itself: whether all quota descriptors are over
    /// shows only when every part has answered.
    #[must_use]
    pub const fn of_part(self) -> Self {
        match self {
            Self::Alone => Self::Alone,
            Self::Quota | Self::None => Self::None,
        }
    }
}

/// The answers to a batch: one for each check, in order.
pub type Answers = SmallVec<[Result<Decision, StoreError>; 4]>;

/// Answers that came after the deadline, one for each check of the batch, in order. A check that was answered in time, or
/// whose answer never came, is [`Unknown`](StoreError::Unknown) here.
pub type Late = Pin<Box<dyn Future<Output = Answers> + Send>>;

/// The answer to one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the hits may pass this counter.
    pub allowed: bool,
    /// Hits that were charged. Zero where the request was refused by another check.
    pub granted: u64,
    /// Hits still available, after this check.
    pub remaining: u64,
    /// Hits by which usage has passed the limit, after this check: by debits, or because refused hits count.
    pub excess: u64,
    /// Time until the counter is as if never used, or the fixed window ends.
    pub reset_after: Duration,
    /// The earliest time at which these hits would pass if nobody else came: zero if allowed, `None` if
    /// they never will.
    pub retry_after: Option<Duration>,
    /// Undoes the take, where hits were charged.
    pub receipt: Option<Receipt>,
    /// Who decided.
    pub source: Source,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The store, from the counter's state.
    Store,
    /// The deny cache, which remembers what the store refused.
    DenyCache,
    /// This process alone, against its share of the limit, because the store could not.
    Local,
    /// The failure policy, because the store could not.
    Policy,
    /// Nobody: the request was refused before this check was asked, and nothing is known.
    NotAsked,
}

impl Source {
    /// Everybody who can have decided.
    pub const ALL: [Self; 5] =
        [Self::Store, Self::DenyCache, Self::Local, Self::Policy, Self::NotAsked];

    /// The name in metrics and metadata.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::DenyCache => "deny_cache",
            Self::Local => "local",
            Self::Policy => "policy",
            Self::NotAsked => "not_asked",
        }
    }
}

/// Why a store could not answer a check.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// There is no room for one more counter.
    #[error("no room for another counter")]
    Full,
    /// The store cannot be asked. Nothing was charged.
    #[error("the store is not available")]
    Unavailable,
    /// The counter lies elsewhere by now, and the store was not to go after it. Nothing was charged.
    #[error("the counter lies elsewhere")]
    Elsewhere,
    /// No answer came in time, or the connection broke: the hits may have been charged or not.
    #[error("the store did not answer")]
    Unknown,
}
