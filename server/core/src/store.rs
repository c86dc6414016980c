//! The trait of stores, with the checks that they are given and the decisions that they return.

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

/// A store: keeps counters and settles groups of checks against them.
///
/// A store has its own clock and answers in durations, so that replicas with skewed clocks agree.
pub trait Store: Send + Sync + 'static {
    /// Settles each group of the batch: makes all of its conditional charges or none, and its other charges in any
    /// case.
    /// Answers every check in order.
    fn decide(&self, batch: Batch) -> impl Future<Output = Answers> + Send;

    /// Whether the conditional charges of these checks are made all or none. If not, their counters are on several
    /// slots: each slot settles its own checks, and the caller must refund the charges on one slot if another refuses.
    fn settles_atomically(&self, _checks: &[Check]) -> bool {
        true
    }

    /// Returns the late answers to a group that was sent as a batch of its own; `None` if no answer is outstanding. The
    /// caller must call this when `decide` returns, before it awaits anything else.
    fn late_answers(&self, _group: &Group) -> Option<LateAnswersFuture> {
        None
    }

    /// Whether the store expects to answer checks of a counter at present. Does not contact Redis.
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

    fn late_answers(&self, group: &Group) -> Option<LateAnswersFuture> {
        S::late_answers(self, group)
    }

    fn is_available(&self, key: &CounterKey) -> bool {
        S::is_available(self, key)
    }
}

/// The groups that go to a store in one call. Stores own it, because they may merge batches and settle them after the
/// request has ended.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The groups. Each has the checks of one request and is settled independently of the others.
    pub groups: SmallVec<[Group; 1]>,
    /// The deadline of the answers. At the deadline the store returns the answers that it has, and errors for the other
    /// checks. Without a deadline it waits without bound.
    pub deadline: Option<Instant>,
}

impl Batch {
    /// A batch of one group.
    #[must_use]
    pub fn single(group: Group, deadline: Option<Instant>) -> Self {
        Self { groups: SmallVec::from_iter([group]), deadline }
    }
}

/// The checks of one request, in the order of its descriptors. Reference-counted, because callers read them again
/// beside the answers.
pub type Group = Arc<[Check]>;

/// A question to the store: may these hits be charged to this counter?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Key of the counter.
    pub key: CounterKey,
    /// The limit.
    pub limit: Limit,
    /// The hits, and how to charge them.
    pub charge: Charge,
    /// Position of the descriptor in the request. The checks of one descriptor are adjacent, and their conditional
    /// charges are made all or none.
    pub descriptor: usize,
    /// What a refusal of this check does to the request.
    pub refusal_scope: RefusalScope,
    /// The failure policy of the rule.
    pub on_failure: OnFailure,
}

/// How a check charges its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// Charges these hits if they fit the limit, else nothing. Zero hits is a peek, allowed if one more hit would fit.
    IfAllowed(u64),
    /// Charges these hits whether or not they are allowed, so that usage may exceed the limit. Allowed if `needs` hits
    /// would have fitted before: 1 for `counting: debit`, `hits` for `counting: upstream`.
    Always {
        /// Hits to charge.
        hits: u64,
        /// Hits that must have been available for the check to be allowed.
        needs: u64,
    },
    /// Refunds hits. Is always allowed.
    Refund {
        /// Hits to refund.
        hits: u64,
        /// Receipt of the charge to undo. Without one, any usage is reduced.
        receipt: Option<Receipt>,
    },
}

impl Charge {
    /// Whether usage can grow. A peek or a refund does not create a counter.
    #[must_use]
    pub const fn adds_hits(&self) -> bool {
        match *self {
            Self::IfAllowed(hits) | Self::Always { hits, .. } => hits > 0,
            Self::Refund { .. } => false,
        }
    }

    /// The most hits that are charged or refunded, at most [`HITS_MAX`].
    #[must_use]
    pub const fn hits(&self) -> u64 {
        let hits = match *self {
            Self::IfAllowed(hits) | Self::Always { hits, .. } | Self::Refund { hits, .. } => hits,
        };
        if hits < HITS_MAX { hits } else { HITS_MAX }
    }

    /// Whether the charge is undone if the request is refused.
    #[must_use]
    pub const fn is_conditional(&self) -> bool {
        matches!(self, Self::IfAllowed(_))
    }
}

/// What the refusal of a check does to its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalScope {
    /// Nothing, because the rule is in shadow mode or the check is a refund.
    None,
    /// Refuses the request.
    Request,
    /// Refuses the request if all its quota descriptors are over their limits.
    Quota,
}

impl RefusalScope {
    /// The scope in a check of a multi-slot request. One slot cannot know whether all quota descriptors are over their
    /// limits, so there a quota descriptor refuses nothing.
    #[must_use]
    pub const fn for_one_slot(self) -> Self {
        match self {
            Self::Request => Self::Request,
            Self::Quota | Self::None => Self::None,
        }
    }
}

/// The answers to a batch: one decision or error for each check, in order.
pub type Answers = SmallVec<[Result<Decision, StoreError>; 4]>;

/// Late answers: those that arrive after the deadline, one for each check of the batch, in order. A check that was
/// answered in time, or is never answered, is [`OutcomeUnknown`](StoreError::OutcomeUnknown) here.
pub type LateAnswersFuture = Pin<Box<dyn Future<Output = Answers> + Send>>;

/// The answer to one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the hits may pass this limit.
    pub allowed: bool,
    /// Hits that are charged. 0 for a conditional charge ([`Charge::IfAllowed`]) whose request is refused, by this
    /// check or by another.
    pub charged: u64,
    /// Hits that the counter can still admit after this check.
    pub remaining: u64,
    /// Hits by which usage exceeds the limit after this check. It can exceed the limit after debits, with upstream
    /// counting, or if the limit was lowered.
    pub excess: u64,
    /// Reset: time until the fixed window ends or, for other algorithms, until the counter is unused again.
    pub reset_after: Duration,
    /// Time until the same hits could pass if no other hits are charged meanwhile. Zero if they are allowed, `None` if
    /// they never can pass.
    pub retry_after: Option<Duration>,
    /// Receipt of the charge; `None` if no hits were charged.
    pub receipt: Option<Receipt>,
    /// Source of the decision.
    pub source: DecisionSource,
}

/// What made a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecisionSource {
    /// The store, from the counter's state.
    Store,
    /// The deny cache, from an earlier refusal by the store.
    DenyCache,
    /// The local fallback, against this process's share of the limit, because the store did not answer.
    LocalFallback,
    /// The failure policy, because the store did not answer.
    FailurePolicy,
    /// Nothing: the request was refused before this check, which was not sent to the store.
    NotAsked,
}

impl DecisionSource {
    /// Every source.
    pub const ALL: [Self; 5] =
        [Self::Store, Self::DenyCache, Self::LocalFallback, Self::FailurePolicy, Self::NotAsked];

    /// The name in metrics and metadata.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::DenyCache => "deny_cache",
            Self::LocalFallback => "local",
            Self::FailurePolicy => "policy",
            Self::NotAsked => "not_asked",
        }
    }
}

/// Reason why a store did not answer a check.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum StoreError {
    /// The memory of this process has no room for another counter. Nothing was charged.
    #[error("no room for another counter")]
    Full,
    /// The store is unavailable. Nothing was charged.
    #[error("the store is not available")]
    Unavailable,
    /// The counter's slot is on another node now, and the caller asked the store not to follow the redirection. Nothing
    /// was charged.
    #[error("the counter is on another node")]
    Moved,
    /// There was no answer in time, or the connection broke. The hits may have been charged or not.
    #[error("the store did not answer")]
    OutcomeUnknown,
}
