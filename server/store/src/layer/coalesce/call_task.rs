//! The task that makes the calls of a queue.

use std::{collections::HashMap, sync::Arc};

use foldhash::fast::RandomState;
use sluicegate_core::{Batch, StoreError};

use super::{
    merged_group::{MergedGroup, WaitingGroup, hash, is_undo, latest_deadline},
    queued_store::{OnRedirection, QueuedStore},
    state::{CoalesceState, error_for_all},
};
use crate::clock;

/// The most checks of one call; a single group may have more. They take about half a millisecond of a Redis
/// server, which answers no other call meanwhile.
pub const BATCH_CHECKS_MAX: usize = 512;

/// Makes the calls of a queue, one after another, while groups wait.
pub(super) struct CallTask<S: QueuedStore> {
    state: Arc<CoalesceState<S>>,
    queue: usize,
    /// The groups of the next call, in order.
    merged_groups: Vec<MergedGroup>,
    /// Positions in `merged_groups` by hash of the group, to find the one that an equal group can join.
    positions: HashMap<u64, usize, RandomState>,
}

impl<S: QueuedStore> CallTask<S> {
    pub(super) fn new(state: Arc<CoalesceState<S>>, queue: usize) -> Self {
        Self { state, queue, merged_groups: Vec::new(), positions: HashMap::default() }
    }

    pub(super) async fn run(mut self) {
        while self.fill_next_call() {
            self.make_call().await;
        }
    }

    /// Moves waiting groups into the next call, up to [`BATCH_CHECKS_MAX`] checks. Returns false, and the task ends, if
    /// the call has no group.
    fn fill_next_call(&mut self) -> bool {
        let mut checks: usize = self.merged_groups.iter().map(|merged| merged.group.len()).sum();
        let taken: Vec<WaitingGroup> = {
            let Some(queue) = self.state.queues.get(self.queue) else { return false };
            let mut queue = queue.lock();
            let fits = |waiting: &&WaitingGroup| {
                let is_first = checks == 0;
                checks += waiting.group.len();
                is_first || checks <= BATCH_CHECKS_MAX
            };
            let count = queue.waiting.iter().take_while(fits).count();
            if count == 0 && self.merged_groups.is_empty() {
                queue.call_tasks -= 1;
                return false;
            }
            queue.waiting.drain(..count).collect()
        };
        self.positions.clear();
        let now = clock::now();
        for waiting in taken {
            if waiting.deadline.is_some_and(|deadline| deadline <= now) {
                // Not sent: its caller decides by failure policy already, so it must not be charged.
                let error = StoreError::Unavailable;
                let _cancelled = waiting.answer.send(error_for_all(&waiting.group, error));
            } else if !waiting.answer.is_closed() {
                self.add(waiting);
            }
        }
        true
    }

    /// Adds a group to the next call, merged with an equal one if there is one.
    fn add(&mut self, waiting: WaitingGroup) {
        let known = self.positions.entry(hash(&waiting.group)).or_insert(self.merged_groups.len());
        if let Some(merged) = self.merged_groups.get_mut(*known)
            && merged.accepts(&waiting.group)
        {
            merged.members.push(waiting);
        } else {
            *known = self.merged_groups.len();
            self.merged_groups.push(MergedGroup::of(waiting));
        }
    }

    /// Makes one call and distributes its answers.
    async fn make_call(&mut self) {
        if self.merged_groups.is_empty() {
            return;
        }
        let merged_groups = std::mem::take(&mut self.merged_groups);
        // Refunds have long deadlines, which must not delay the detection of a server that does not answer.
        let is_request = |merged: &&MergedGroup| merged.group.iter().any(|check| !is_undo(check));
        let Some(deadline) = latest_deadline(merged_groups.iter().filter(is_request)) else {
            tokio::spawn(Arc::clone(&self.state).call_separately(merged_groups));
            return;
        };
        let groups = merged_groups.iter().map(MergedGroup::to_send).collect();
        self.state.on_batch.call(merged_groups.iter().map(|merged| merged.members.len()).sum());
        let batch = Batch { groups, deadline };
        let batch_answers = self.state.inner.settle(batch, OnRedirection::Report).await;
        self.merged_groups =
            self.state.distribute(merged_groups, batch_answers, OnRedirection::Report);
        if !self.merged_groups.is_empty() {
            let now = clock::now();
            self.merged_groups.retain_mut(|merged| merged.retain_waiting(now));
        }
    }
}

/// If a call panics, the queue can start another task.
impl<S: QueuedStore> Drop for CallTask<S> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(queue) = self.state.queues.get(self.queue)
        {
            queue.lock().call_tasks -= 1;
        }
    }
}
