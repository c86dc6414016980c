//! The queues of waiting groups, and the distribution of a call's answers to them.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use sluicegate_core::{
    Answers, Batch, Check, StoreError,
    store::{Group, LateAnswersFuture},
};

use super::{
    merged_group::{MergedGroup, WaitingGroup, latest_deadline},
    queued_store::{BatchAnswers, CounterLocation, OnRedirection, QueuedStore},
};
use crate::{callback::Callback, clock, layer::late_answers_map::LateAnswersMap};

/// What the layer shares with its tasks.
#[derive(Debug)]
pub(super) struct CoalesceState<S> {
    pub(super) inner: S,
    pub(super) queues: Box<[Mutex<Queue>]>,
    /// The most concurrent calls of one queue.
    pub(super) calls_max: usize,
    pub(super) hits_unknown: AtomicU64,
    pub(super) late_answers: LateAnswersMap,
    /// Calls whose late answers are awaited.
    pub(super) late_calls: AtomicUsize,
    pub(super) on_batch: Callback<usize>,
}

/// The groups that wait for a call to one server, or to one of those that share the queue.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By number, ascending.
    pub(super) waiting: VecDeque<WaitingGroup>,
    /// Number of the next group.
    pub(super) next: u64,
    /// Tasks that make calls.
    pub(super) call_tasks: usize,
}

/// The checks of a group on one slot.
pub(super) struct SlotGroup {
    pub(super) location: CounterLocation,
    pub(super) group: Group,
    /// Position of each of these checks in the whole group.
    pub(super) positions: Vec<usize>,
}

impl<S: QueuedStore> CoalesceState<S> {
    /// The queue of a group; `None` if its counters are on several slots.
    pub(super) fn queue_of(&self, group: &[Check]) -> Option<usize> {
        let (first, others) = group.split_first()?;
        let location = self.inner.location(&first.key);
        let is_same = |check: &Check| self.inner.location(&check.key) == location;
        others.iter().all(is_same).then_some(location.queue)
    }

    /// Splits a group by slot.
    pub(super) fn slot_groups(&self, group: &[Check]) -> Vec<SlotGroup> {
        let mut locations: Vec<(CounterLocation, Vec<usize>)> = Vec::new();
        for (position, check) in group.iter().enumerate() {
            let location = self.inner.location(&check.key);
            match locations.iter_mut().find(|(known, _)| *known == location) {
                Some((_, positions)) => positions.push(position),
                None => locations.push((location, vec![position])),
            }
        }
        let slot_group = |(location, positions): (CounterLocation, Vec<usize>)| {
            let checks = positions.iter().filter_map(|&at| group.get(at)).cloned();
            let checks = checks
                .map(|check| Check { refusal_scope: check.refusal_scope.for_one_slot(), ..check });
            SlotGroup { location, group: checks.collect(), positions }
        };
        locations.into_iter().map(slot_group).collect()
    }

    /// Removes a waiting group. Returns false if it was already sent.
    pub(super) fn remove_waiting(&self, queue: usize, number: u64) -> bool {
        let Some(queue) = self.queues.get(queue) else { return false };
        let mut queue = queue.lock();
        let found = queue.waiting.binary_search_by_key(&number, |waiting| waiting.number);
        found.is_ok_and(|at| queue.waiting.remove(at).is_some())
    }
}

impl<S> CoalesceState<S> {
    /// Counts the hits of checks that are answered [`StoreError::OutcomeUnknown`].
    pub(super) fn note_unknown(&self, group: &[Check], answers: &Answers) {
        let answered = group.iter().zip(answers);
        let unknown = answered.filter(|(_, answer)| **answer == Err(StoreError::OutcomeUnknown));
        let hits: u64 = unknown.map(|(check, _)| check.charge.hits()).sum();
        self.hits_unknown.fetch_add(hits, Ordering::Relaxed);
    }
}

impl<S: QueuedStore> CoalesceState<S> {
    /// Distributes the answers of a call to its merged groups. Returns the groups that need another call.
    pub(super) fn distribute(
        self: &Arc<Self>,
        merged_groups: Vec<MergedGroup>,
        batch_answers: BatchAnswers,
        on_redirection: OnRedirection,
    ) -> Vec<MergedGroup> {
        let BatchAnswers { answers, late } = batch_answers;
        let mut answers = answers.into_iter();
        let (mut retries, mut unanswered, mut first) = (Vec::new(), Vec::new(), 0);
        for merged in merged_groups {
            let checks = merged.group.len();
            let own: Answers = answers.by_ref().take(checks).collect();
            let has_moved = own.contains(&Err(StoreError::Moved));
            if has_moved && on_redirection == OnRedirection::Report {
                tokio::spawn(Arc::clone(self).call_separately(merged.split()));
            } else if late.is_some() && own.contains(&Err(StoreError::OutcomeUnknown)) {
                unanswered.push((first, merged));
            } else {
                retries.extend(
                    merged.distribute(&own, |group, answers| self.note_unknown(group, answers)),
                );
            }
            first += checks;
        }
        if let Some(late) = late {
            self.late_calls.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(Arc::clone(self).distribute_late(unanswered, late));
        }
        retries
    }

    /// Distributes late answers to merged groups, each with the position of its first check in the batch.
    async fn distribute_late(
        self: Arc<Self>,
        merged_groups: Vec<(usize, MergedGroup)>,
        late: LateAnswersFuture,
    ) {
        let answers = late.await;
        for (first, merged) in merged_groups {
            let own = answers.iter().skip(first).take(merged.group.len()).copied().collect();
            for retry in merged.distribute(&own, |group, answers| self.note_unknown(group, answers))
            {
                // It was not charged, and its deadline has passed.
                let answers = error_for_all(&retry.group, StoreError::Unavailable);
                retry.answer_all(&answers);
            }
        }
        self.late_calls.fetch_sub(1, Ordering::Relaxed);
    }

    /// Makes a separate call for these groups and follows redirections, so that no other group waits for them.
    pub(super) async fn call_separately(self: Arc<Self>, mut merged_groups: Vec<MergedGroup>) {
        let now = clock::now();
        merged_groups.retain_mut(|merged| merged.retain_waiting(now));
        if merged_groups.is_empty() {
            return;
        }
        let groups = merged_groups.iter().map(MergedGroup::to_send).collect();
        let deadline = latest_deadline(&merged_groups).flatten();
        self.on_batch.call(merged_groups.iter().map(|merged| merged.members.len()).sum());
        let batch_answers =
            self.inner.settle(Batch { groups, deadline }, OnRedirection::Follow).await;
        self.distribute(merged_groups, batch_answers, OnRedirection::Follow);
    }
}

/// The same error for every check.
pub(super) fn error_for_all(group: &[Check], error: StoreError) -> Answers {
    group.iter().map(|_| Err(error)).collect()
}
