//! Coalescing: groups that arrive during a call wait, and go out together in the next call.
//!
//! Without a call in progress nothing waits, and no timer is used: the slower the store answers, the
//! more groups a call has. Each server has its own queue, so that a slow server does not delay
//! the others.
//!
//! Equal groups of a batch whose checks charge exactly their hits are merged into one group with the
//! sum of their hits. If the sum fits, each group gets its answer as if they had been settled one after the
//! other. If not, nothing was charged, and the answer shows how many of them fit: those are sent again,
//! and one of the others, whose refusal answers all of them. Groups that are still without an
//! answer are then sent alone: no request waits for more than three calls.
//!
//! A group whose deadline passes during its call is answered [`StoreError::Unknown`]. Its answer may still arrive, and
//! [`Store::late_answers`] returns it then.

mod caller;
mod class;
mod lanes;
mod shared;

use std::{
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use parking_lot::Mutex;
use sluicegate_core::{
    Answers, Batch, Check, CounterKey, Store, StoreError,
    store::{Group, PendingAnswers},
};
use tokio::sync::oneshot;

use self::{
    caller::Caller,
    class::Waiting,
    shared::{Shared, all},
};
use super::late::LateAnswers;
use crate::observed::Observed;

pub use self::{
    caller::BATCH_MAX,
    lanes::{Lanes, Place, Redirected, Settled},
};

/// The most groups that wait in one lane. Far more than a server answers before their callers give up.
pub const WAITING_MAX: usize = 8192;

/// Lanes; servers beyond that many share them.
const LANES: usize = 64;

/// Merges what many callers ask at once into few calls.
#[derive(Debug)]
pub struct Coalesce<S> {
    shared: Arc<Shared<S>>,
}

/// What its caller holds meanwhile.
struct Ticket {
    lane: usize,
    number: u64,
    answer: oneshot::Receiver<Answers>,
}

/// The answer to a group, or to a part of one, that may come late.
struct Unheard {
    /// Position of each of its checks in the whole group.
    positions: Vec<usize>,
    answer: oneshot::Receiver<Answers>,
}

/// The late answers to a group of so many checks.
async fn heard(parts: Vec<Unheard>, checks: usize) -> Answers {
    let mut answers: Answers = (0..checks).map(|_| Err(StoreError::Unknown)).collect();
    for Unheard { positions, answer } in parts {
        let Ok(of_part) = answer.await else { continue };
        for (position, answer) in positions.into_iter().zip(of_part) {
            answers.get_mut(position).into_iter().for_each(|it| *it = answer);
        }
    }
    answers
}

impl<S: Lanes> Coalesce<S> {
    /// Asks `inner`, with at most `calls_max` calls of each lane on their way at once.
    pub fn new(inner: S, calls_max: NonZeroUsize) -> Self {
        let shared = Shared {
            inner,
            lanes: (0..LANES).map(|_| Mutex::default()).collect(),
            calls_max: calls_max.get(),
            hits_unknown: AtomicU64::new(0),
            late: LateAnswers::default(),
            late_calls: AtomicUsize::new(0),
            batches: Observed::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The store inside.
    pub fn inner(&self) -> &S {
        &self.shared.inner
    }

    /// Sets a listener for the number of groups, or parts of them, in each call. Only the first listener is used.
    pub fn on_batch(&self, listener: impl Fn(usize) + Send + Sync + 'static) {
        self.shared.batches.tell(listener);
    }

    /// Groups that wait for a call.
    pub fn waiting(&self) -> usize {
        self.shared.lanes.iter().map(|lane| lane.lock().waiting.len()).sum()
    }

    /// Unknown hits: the store did not report, not even late, whether it charged or refunded them. They may stay
    /// charged until they expire.
    pub fn hits_unknown(&self) -> u64 {
        self.shared.hits_unknown.load(Ordering::Relaxed)
    }

    /// Calls whose late answers are awaited.
    pub fn late_calls(&self) -> usize {
        self.shared.late_calls.load(Ordering::Relaxed)
    }

    /// Late answers that were not asked for with [`Store::late_answers`]: none, unless a call of `decide` is just returning.
    pub fn late_kept(&self) -> usize {
        self.shared.late.len()
    }

    /// Asks about one group and waits for the answers until the deadline. Returns the parts whose answers may come late.
    async fn ask(&self, group: Group, deadline: Option<Instant>) -> (Answers, Vec<Unheard>) {
        let Some(lane) = self.shared.lane_of(&group) else {
            // Rare, so that what it keeps is not part of every request's future.
            return Box::pin(self.ask_parts(&group, deadline)).await;
        };
        let Some(ticket) = self.enqueue(lane, Arc::clone(&group), deadline) else {
            return (all(&group, StoreError::Unavailable), Vec::new());
        };
        let (answers, late) = self.answer(ticket, &group, deadline).await;
        let unheard = late.map(|answer| Unheard { positions: (0..group.len()).collect(), answer });
        (answers, unheard.into_iter().collect())
    }

    /// Asks about a group on several slots, each part for itself.
    async fn ask_parts(&self, group: &Group, deadline: Option<Instant>) -> (Answers, Vec<Unheard>) {
        let parts = self.shared.parts(group);
        let asked: Vec<_> = parts
            .into_iter()
            .map(|part| {
                let ticket = self.enqueue(part.place.lane, Arc::clone(&part.group), deadline);
                (part, ticket)
            })
            .collect();
        let mut answers: Answers = all(group, StoreError::Unavailable);
        let mut unheard = Vec::new();
        for (part, ticket) in asked {
            let Some(ticket) = ticket else { continue };
            let (of_part, late) = self.answer(ticket, &part.group, deadline).await;
            for (&position, answer) in part.positions.iter().zip(of_part) {
                answers.get_mut(position).into_iter().for_each(|it| *it = answer);
            }
            let positions = part.positions;
            unheard.extend(late.map(|answer| Unheard { positions, answer }));
        }
        (answers, unheard)
    }

    /// Puts a group into a lane; `None` if it is full.
    fn enqueue(&self, lane: usize, group: Group, deadline: Option<Instant>) -> Option<Ticket> {
        let lane = lane % LANES;
        let (sender, answer) = oneshot::channel();
        let (number, call) = {
            let mut queue = self.shared.lanes.get(lane)?.lock();
            if queue.waiting.len() >= WAITING_MAX {
                return None;
            }
            let number = queue.next;
            queue.next += 1;
            queue.waiting.push_back(Waiting { number, group, deadline, answer: sender });
            let call = queue.callers < self.shared.calls_max;
            queue.callers += usize::from(call);
            (number, call)
        };
        if call {
            // In its own task: the reply must be read even if callers stop waiting.
            tokio::spawn(Caller::new(Arc::clone(&self.shared), lane).run());
        }
        Some(Ticket { lane, number, answer })
    }

    /// Waits for the answers until the deadline. If the group was sent and they did not come, returns where they may
    /// come late.
    async fn answer(
        &self,
        ticket: Ticket,
        group: &[Check],
        deadline: Option<Instant>,
    ) -> (Answers, Option<oneshot::Receiver<Answers>>) {
        let Ticket { lane, number, mut answer } = ticket;
        let answered = match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline.into(), &mut answer).await.ok(),
            None => Some((&mut answer).await),
        };
        match answered {
            Some(Ok(answers)) if answers.len() == group.len() => (answers, None),
            None if self.shared.leave(lane, number) => (all(group, StoreError::Unavailable), None),
            None => (all(group, StoreError::Unknown), Some(answer)),
            Some(_) => {
                // The call has panicked.
                let answers = all(group, StoreError::Unknown);
                self.shared.note_unknown(group, &answers);
                (answers, None)
            }
        }
    }
}

impl<S: Lanes> Store for Coalesce<S> {
    fn settles_atomically(&self, checks: &[Check]) -> bool {
        self.shared.lane_of(checks).is_some()
    }

    async fn decide(&self, batch: Batch) -> Answers {
        let Batch { mut groups, deadline } = batch;
        if groups.len() == 1
            && let Some(group) = groups.pop()
        {
            let (answers, unheard) = self.ask(Arc::clone(&group), deadline).await;
            if !unheard.is_empty() {
                self.shared.late.keep(&group, Box::pin(heard(unheard, group.len())));
            }
            return answers;
        }
        let asked = groups.into_iter().map(|group| self.ask(group, deadline));
        let asked = futures::future::join_all(asked).await.into_iter();
        asked.flat_map(|(answers, _)| answers).collect()
    }

    fn late_answers(&self, group: &Group) -> Option<PendingAnswers> {
        self.shared.late.take(group)
    }

    fn is_available(&self, key: &CounterKey) -> bool {
        self.shared.inner.is_available(key)
    }
}
