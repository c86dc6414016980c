//! The interface of stores, and its requests and answers.

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
/// A store owns its clock and answers in durations, so that replicas with skewed clocks agree.
pub trait Store: Send + Sync + 'static {
    /// Settles each group of the batch, all or nothing, and answers every check in order.
    fn decide(&self, batch: Batch) -> impl Future<Output = Answers> + Send;

    /// Whether these checks are settled all or nothing. If not, each slot settles its part, and the caller must refund
    /// the charges of one part if another refuses.
    fn settles_atomically(&self, _checks: &[Check]) -> bool {
        true
    }

    /// The late answers to a group that was the only one of its batch, if the store still awaits some. Must be called
    /// right after `decide` returns, before the caller awaits anything else.
    fn late_answers(&self, _group: &Group) -> Option<PendingAnswers> {
        None
    }

    /// Whether a counter can be asked at present, as far as is known without asking.
    fn is_available(&self, _key: &CounterKey) -> bool {
        true
    }
}

impl<S: Store> Store for Arc<S> {
    fn decide(&self, batch: Batch) -> impl Future<Output = Answers> + Send {
        S::decide(self, batch)
    }

    fn settles_atomically(&self, checks: &[Check]) -> bool {
        S::settles_atomically(self, checks)
    }

    fn late_answers(&self, group: &Group) -> Option<PendingAnswers> {
        S::late_answers(self, group)
    }

    fn is_available(&self, key: &CounterKey) -> bool {
        S::is_available(self, key)
    }
}

/// The groups of one call to a store. By value, because a store may merge batches and outlive the
/// request.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The groups. Each has one request's checks and is settled all or nothing, independently of the others.
    pub groups: SmallVec<[Group; 1]>,
    /// The deadline of the answers. At the deadline a store answers with what it
    /// has; without one it waits without bound.
    pub deadline: Option<Instant>,
}

impl Batch {
    /// A batch of one group.
    #[must_use]
    pub fn single(group: Group, deadline: Option<Instant>) -> Self {
        Self { groups: SmallVec::from_iter([group]), deadline }
    }
}

/// The checks of one request, in the order of its descriptors. Shared, because callers read them
/// again beside the answers.
pub type Group = Arc<[Check]>;

/// A check: may these hits be charged to this counter?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Key of the counter.
    pub key: CounterKey,
    /// The limit.
    pub limit: Limit,
    /// The kind of charge.
    pub charge: Charge,
    /// Position of the descriptor. The checks of one descriptor are adjacent, and are
    /// charged all or none.
    pub descriptor: usize,
    /// What a refusal does to the request.
    pub refusal_scope: RefusalScope,
    /// The failure policy.
    pub on_failure: OnFailure,
}

/// How a check charges its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Charges these hits or nothing; a refusal is free. Zero hits is a peek.
    Exactly(u64),
    /// Charges these hits, whatever the answer; usage may exceed the limit. Allowed if `needs` hits would have
    /// fitted before: one for a debit of costs that are known afterwards, `hits` for upstream counting.
    Always {
        /// Hits to charge.
        hits: u64,
        /// Hits that must have been available for the check to be allowed.
        needs: u64,
    },
    /// Refunds hits. Always allowed.
    Refund {
        /// Hits to refund.
        hits: u64,
        /// Receipt of the charge to undo; without one, any usage is reduced.
        receipt: Option<Receipt>,
    },
}

impl Charge {
    /// Whether usage can grow: a peek or a refund does not create a counter.
    #[must_use]
    pub const fn adds_hits(&self) -> bool {
        match *self {
            Self::Exactly(hits) | Self::Always { hits, .. } => hits > 0,
            Self::Refund { .. } => false,
        }
    }

    /// The most hits that it charges or refunds.
    #[must_use]
    pub const fn hits(&self) -> u64 {
        let hits = match *self {
            Self::Exactly(hits) | Self::Always { hits, .. } | Self::Refund { hits, .. } => hits,
        };
        if hits < HITS_MAX { hits } else { HITS_MAX }
    }

    /// Whether the charge is refunded if the request is refused.
    #[must_use]
    pub const fn is_conditional(&self) -> bool {
        matches!(self, Self::Exactly(_))
    }
}

/// What a refusing check does to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalScope {
    /// Nothing: the rule is in shadow mode.
    None,
    /// Refuses the request.
    Request,
    /// Refuses the request if all its quota descriptors are over their limits.
    Quota,
}

impl RefusalScope {
    /// The scope in one part of a multi-slot request: whether all quota descriptors are over is known
    /// only when every part has answered.
    #[must_use]
    pub const fn for_part_of_request(self) -> Self {
        match self {
            Self::Request => Self::Request,
            Self::Quota | Self::None => Self::None,
        }
    }
}

/// The answers to a batch: one for each check, in order.
pub type Answers = SmallVec<[Result<Decision, StoreError>; 4]>;

/// Answers that came after the deadline, one for each check of the batch, in order. A check that was answered in time, or
/// whose answer never came, is [`Unknown`](StoreError::Unknown) here.
pub type PendingAnswers = Pin<Box<dyn Future<Output = Answers> + Send>>;

/// The answer to one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the hits may pass this counter.
    pub allowed: bool,
    /// Charged hits. Zero if another check refused the request.
    pub charged: u64,
    /// Remaining hits, after this check.
    pub remaining: u64,
    /// Hits by which usage exceeds the limit, after this check: by debits or upstream counting.
    pub excess: u64,
    /// Time until the counter is unused again, or the fixed window ends.
    pub reset_after: Duration,
    /// Time until these hits would pass without other requests: zero if allowed, `None` if
    /// they never will.
    pub retry_after: Option<Duration>,
    /// Receipt of the charge, if hits were charged.
    pub receipt: Option<Receipt>,
    /// Source of the decision.
    pub source: Source,
}

/// Source of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The store, from the counter's state.
    Store,
    /// The deny cache, from an earlier refusal of the store.
    DenyCache,
    /// The local fallback, against this process's share of the limit, because the store did not answer.
    Local,
    /// The failure policy, because the store did not answer.
    Policy,
    /// None: the request was refused before this check.
    NotAsked,
}

impl Source {
    /// Every source.
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

/// Why a store did not answer a check.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// There is no room for another counter.
    #[error("no room for another counter")]
    Full,
    /// The store is unavailable. Nothing was charged.
    #[error("the store is not available")]
    Unavailable,
    /// The counter's slot has moved, and the store was not allowed to follow. Nothing was charged.
    #[error("the counter is on another node")]
    Moved,
    /// No answer came in time, or the connection broke: the hits may have been charged or not.
    #[error("the store did not answer")]
    Unknown,
}
