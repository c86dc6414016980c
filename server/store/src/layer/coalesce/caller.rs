//! The task that makes the calls of a lane.

use std::{collections::HashMap, sync::Arc};

use foldhash::fast::RandomState;
use sluicegate_core::{Batch, StoreError};

use super::{
    class::{Class, Waiting, hash, latest, undoes},
    lanes::{Lanes, Redirected},
    shared::{Shared, all},
};
use crate::clock;

/// The most checks of one call; a single group may have more. They take about half a millisecond of a Redis
/// server, which answers no other call meanwhile.
pub const BATCH_MAX: usize = 512;

/// Makes the calls of a lane, one after the other, while requests wait.
pub(super) struct Caller<S: Lanes> {
    shared: Arc<Shared<S>>,
    lane: usize,
    /// What the next call asks, in order.
    classes: Vec<Class>,
    /// Positions in `classes` of groups by hash, which equal ones may join.
    open: HashMap<u64, usize, RandomState>,
}

impl<S: Lanes> Caller<S> {
    pub(super) fn new(shared: Arc<Shared<S>>, lane: usize) -> Self {
        Self { shared, lane, classes: Vec::new(), open: HashMap::default() }
    }

    pub(super) async fn run(mut self) {
        while self.fill() {
            self.call().await;
        }
    }

    /// Takes what waits, up to what one call may ask. False, and this caller is done, if there is nothing.
    fn fill(&mut self) -> bool {
        let mut checks: usize = self.classes.iter().map(|class| class.group.len()).sum();
        let taken: Vec<Waiting> = {
            let Some(lane) = self.shared.lanes.get(self.lane) else { return false };
            let mut lane = lane.lock();
            let fits = |waiting: &&Waiting| {
                let is_first = checks == 0;
                checks += waiting.group.len();
                is_first || checks <= BATCH_MAX
            };
            let count = lane.waiting.iter().take_while(fits).count();
            if count == 0 && self.classes.is_empty() {
                lane.callers -= 1;
                return false;
            }
            lane.waiting.drain(..count).collect()
        };
        self.open.clear();
        let now = clock::now();
        for waiting in taken {
            if waiting.deadline.is_some_and(|deadline| deadline <= now) {
                // What is not waited for any more is not charged either.
                let error = StoreError::Unavailable;
                let _left = waiting.answer.send(all(&waiting.group, error));
            } else if !waiting.answer.is_closed() {
                self.join(waiting);
            }
        }
        true
    }

    fn join(&mut self, waiting: Waiting) {
        let known = self.open.entry(hash(&waiting.group)).or_insert(self.classes.len());
        if let Some(class) = self.classes.get_mut(*known)
            && class.takes_in(&waiting.group)
        {
            class.members.push(waiting);
        } else {
            *known = self.classes.len();
            self.classes.push(Class::of(waiting));
        }
    }

    /// Asks once, and hands out the answers.
    async fn call(&mut self) {
        if self.classes.is_empty() {
            return;
        }
        let classes = std::mem::take(&mut self.classes);
        // Refunds have long deadlines, and a server that does not answer must be noticed soon.
        let is_request = |class: &&Class| class.group.iter().any(|check| !undoes(check));
        let Some(deadline) = latest(classes.iter().filter(is_request)) else {
            tokio::spawn(Arc::clone(&self.shared).ask_apart(classes));
            return;
        };
        let groups = classes.iter().map(Class::asked).collect();
        self.shared.batches.note(classes.iter().map(|class| class.members.len()).sum());
        let batch = Batch { groups, deadline };
        let settled = self.shared.inner.settle(batch, Redirected::Report).await;
        self.classes = self.shared.hand_out(classes, settled, Redirected::Report);
        if !self.classes.is_empty() {
            let now = clock::now();
            self.classes.retain_mut(|class| class.is_wanted(now));
        }
    }
}

/// Contains the panic of a call.
impl<S: Lanes> Drop for Caller<S> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(lane) = self.shared.lanes.get(self.lane)
        {
            lane.lock().callers -= 1;
        }
    }
}
