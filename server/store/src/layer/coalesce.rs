//! Coalescing: groups that arrive while the maximum number of calls is in progress wait, and are sent together in the
//! next call.
//!
//! Otherwise no group waits, and no timer is used: the slower the store answers, the more groups a call has. A call is
//! one batch to the store, which sends it as one script call for each slot. Each server has its own queue, so that a
//! slow server does not delay the others; only from the 65th server on do servers share queues.
//!
//! Equal groups of a batch whose checks are [`Charge::IfAllowed`](sluicegate_core::Charge::IfAllowed) are merged into
//! one group with the sum of their hits. If the sum fits, each group gets its answer as if they had been settled one
//! after another. If not, no hits were charged, and the answer shows how many of the groups fit. A second call has
//! those, and one further group, whose refusal answers all others. Groups that are still without an answer are sent
//! alone in a third call: no request waits for more than three calls.
//!
//! A group whose deadline passes during its call is answered [`StoreError::OutcomeUnknown`]. Its answer may still
//! arrive, and [`Store::late_answers`] returns it then.

mod call_task;
mod merged_group;
mod queued_store;
mod state;

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
    store::{Group, LateAnswersFuture},
};
use tokio::sync::oneshot;

use self::{
    call_task::CallTask,
    merged_group::WaitingGroup,
    state::{CoalesceState, error_for_all},
};
use super::late_answers_map::LateAnswersMap;
use crate::callback::Callback;

pub use self::{
    call_task::BATCH_CHECKS_MAX,
    queued_store::{BatchAnswers, CounterLocation, OnRedirection, QueuedStore},
};

/// The most groups that wait in one queue. Far more than a server answers before the deadlines of their callers.
pub const WAITING_GROUPS_MAX: usize = 8192;

/// Number of queues. Further servers share them.
const QUEUES: usize = 64;

/// A layer that merges the concurrent checks of many requests into few calls.
#[derive(Debug)]
pub struct Coalesce<S> {
    state: Arc<CoalesceState<S>>,
}

/// The caller's handle of its waiting group.
struct WaitingHandle {
    queue: usize,
    number: u64,
    answer: oneshot::Receiver<Answers>,
}

/// A group, or a slot group, whose answers may arrive late.
struct LateGroup {
    /// Position of each of its checks in the whole group.
    positions: Vec<usize>,
    answer: oneshot::Receiver<Answers>,
}

/// The late answers to a group of `checks` checks.
async fn await_late_groups(late_groups: Vec<LateGroup>, checks: usize) -> Answers {
    let mut answers: Answers = (0..checks).map(|_| Err(StoreError::OutcomeUnknown)).collect();
    for LateGroup { positions, answer } in late_groups {
        let Ok(own) = answer.await else { continue };
        for (position, answer) in positions.into_iter().zip(own) {
            answers.get_mut(position).into_iter().for_each(|it| *it = answer);
        }
    }
    answers
}

impl<S: QueuedStore> Coalesce<S> {
    /// Wraps `inner`, with at most `calls_max` concurrent calls per queue.
    pub fn new(inner: S, calls_max: NonZeroUsize) -> Self {
        let state = CoalesceState {
            inner,
            queues: (0..QUEUES).map(|_| Mutex::default()).collect(),
            calls_max: calls_max.get(),
            hits_unknown: AtomicU64::new(0),
            late_answers: LateAnswersMap::default(),
            late_calls: AtomicUsize::new(0),
            on_batch: Callback::default(),
        };
        Self { state: Arc::new(state) }
    }

    /// The wrapped store.
    pub fn inner(&self) -> &S {
        &self.state.inner
    }

    /// Sets a callback for the number of groups and slot groups in each call. Only the first callback is used.
    pub fn on_batch(&self, callback: impl Fn(usize) + Send + Sync + 'static) {
        self.state.on_batch.set(callback);
    }

    /// Groups that wait for a call.
    pub fn groups_waiting(&self) -> usize {
        self.state.queues.iter().map(|queue| queue.lock().waiting.len()).sum()
    }

    /// Unknown hits: the store did not report, not even late, whether it charged or refunded them. They may stay
    /// charged until they expire.
    pub fn hits_unknown(&self) -> u64 {
        self.state.hits_unknown.load(Ordering::Relaxed)
    }

    /// Calls whose late answers are awaited.
    pub fn late_calls(&self) -> usize {
        self.state.late_calls.load(Ordering::Relaxed)
    }

    /// Late answers that were not retrieved with [`Store::late_answers`]: 0 except while a call of `decide` returns.
    pub fn late_answers_uncollected(&self) -> usize {
        self.state.late_answers.len()
    }

    /// Sends one group and waits for its answers until the deadline. Also returns the groups whose answers may arrive
    /// late.
    async fn send(&self, group: Group, deadline: Option<Instant>) -> (Answers, Vec<LateGroup>) {
        let Some(queue) = self.state.queue_of(&group) else {
            // Boxed, because it is rare and would enlarge the future of every request.
            return Box::pin(self.send_slot_groups(&group, deadline)).await;
        };
        let Some(handle) = self.enqueue(queue, Arc::clone(&group), deadline) else {
            return (error_for_all(&group, StoreError::Unavailable), Vec::new());
        };
        let (answers, late) = self.await_answers(handle, &group, deadline).await;
        let late = late.map(|answer| LateGroup { positions: (0..group.len()).collect(), answer });
        (answers, late.into_iter().collect())
    }

    /// As [`send`](Self::send) for a multi-slot request: sends each slot group separately.
    async fn send_slot_groups(
        &self,
        group: &Group,
        deadline: Option<Instant>,
    ) -> (Answers, Vec<LateGroup>) {
        let slot_groups = self.state.slot_groups(group);
        let sent: Vec<_> = slot_groups
            .into_iter()
            .map(|it| {
                let handle = self.enqueue(it.location.queue, Arc::clone(&it.group), deadline);
                (it, handle)
            })
            .collect();
        let mut answers: Answers = error_for_all(group, StoreError::Unavailable);
        let mut late_groups = Vec::new();
        for (slot_group, handle) in sent {
            let Some(handle) = handle else { continue };
            let (own, late) = self.await_answers(handle, &slot_group.group, deadline).await;
            for (&position, answer) in slot_group.positions.iter().zip(own) {
                answers.get_mut(position).into_iter().for_each(|it| *it = answer);
            }
            let positions = slot_group.positions;
            late_groups.extend(late.map(|answer| LateGroup { positions, answer }));
        }
        (answers, late_groups)
    }

    /// Adds a group to a queue; `None` if the queue is full.
    fn enqueue(
        &self,
        queue: usize,
        group: Group,
        deadline: Option<Instant>,
    ) -> Option<WaitingHandle> {
        let position = queue % QUEUES;
        let (sender, answer) = oneshot::channel();
        let (number, starts_task) = {
            let mut queue = self.state.queues.get(position)?.lock();
            if queue.waiting.len() >= WAITING_GROUPS_MAX {
                return None;
            }
            let number = queue.next;
            queue.next += 1;
            queue.waiting.push_back(WaitingGroup { number, group, deadline, answer: sender });
            let starts_task = queue.call_tasks < self.state.calls_max;
            queue.call_tasks += usize::from(starts_task);
            (number, starts_task)
        };
        if starts_task {
            // A separate task, because the reply must be read even if callers are cancelled.
            tokio::spawn(CallTask::new(Arc::clone(&self.state), position).run());
        }
        Some(WaitingHandle { queue: position, number, answer })
    }

    /// Waits for the answers until the deadline. If the group was sent and is not answered by then, also returns the
    /// receiver of its late answers.
    async fn await_answers(
        &self,
        handle: WaitingHandle,
        group: &[Check],
        deadline: Option<Instant>,
    ) -> (Answers, Option<oneshot::Receiver<Answers>>) {
        let WaitingHandle { queue, number, mut answer } = handle;
        let answered = match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline.into(), &mut answer).await.ok(),
            None => Some((&mut answer).await),
        };
        match answered {
            Some(Ok(answers)) if answers.len() == group.len() => (answers, None),
            None if self.state.remove_waiting(queue, number) => {
                (error_for_all(group, StoreError::Unavailable), None)
            }
            None => (error_for_all(group, StoreError::OutcomeUnknown), Some(answer)),
            Some(_) => {
                // The call has panicked.
                let answers = error_for_all(group, StoreError::OutcomeUnknown);
                self.state.note_unknown(group, &answers);
                (answers, None)
            }
        }
    }
}

impl<S: QueuedStore> Store for Coalesce<S> {
    fn settles_atomically(&self, checks: &[Check]) -> bool {
        self.state.queue_of(checks).is_some()
    }

    async fn decide(&self, batch: Batch) -> Answers {
        let Batch { mut groups, deadline } = batch;
        if groups.len() == 1
            && let Some(group) = groups.pop()
        {
            let (answers, late_groups) = self.send(Arc::clone(&group), deadline).await;
            if !late_groups.is_empty() {
                self.state
                    .late_answers
                    .insert(&group, Box::pin(await_late_groups(late_groups, group.len())));
            }
            return answers;
        }
        let answered = groups.into_iter().map(|group| self.send(group, deadline));
        let answered = futures::future::join_all(answered).await.into_iter();
        answered.flat_map(|(answers, _)| answers).collect()
    }

    fn late_answers(&self, group: &Group) -> Option<LateAnswersFuture> {
        self.state.late_answers.take(group)
    }

    fn is_available(&self, key: &CounterKey) -> bool {
        self.state.inner.is_available(key)
    }
}
