//! The queues of groups that wait, and what becomes of the answers to a call.

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
    store::{Group, PendingAnswers},
};

use super::{
    class::{Class, Waiting, latest},
    lanes::{Lanes, Place, Redirected, Settled},
};
use crate::{clock, layer::late::LateAnswers, observed::Observed};

#[derive(Debug)]
pub(super) struct Shared<S> {
    pub(super) inner: S,
    pub(super) lanes: Box<[Mutex<Lane>]>,
    /// The most calls of one lane that are on their way at once.
    pub(super) calls_max: usize,
    pub(super) hits_unknown: AtomicU64,
    pub(super) late: LateAnswers,
    /// Calls whose late answers are awaited.
    pub(super) late_calls: AtomicUsize,
    pub(super) batches: Observed<usize>,
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    /// By number, ascending.
    pub(super) waiting: VecDeque<Waiting>,
    /// Number of the next one that comes.
    pub(super) next: u64,
    /// Tasks that make calls.
    pub(super) callers: usize,
}

/// The part of a group on one slot.
pub(super) struct Part {
    pub(super) place: Place,
    pub(super) group: Group,
    /// Position of each of these checks in the whole group.
    pub(super) positions: Vec<usize>,
}

impl<S: Lanes> Shared<S> {
    /// The queue of a group on one slot; `None` if it is on several.
    pub(super) fn lane_of(&self, group: &[Check]) -> Option<usize> {
        let (first, others) = group.split_first()?;
        let place = self.inner.place(&first.key);
        others.iter().all(|check| self.inner.place(&check.key) == place).then_some(place.lane)
    }

    pub(super) fn parts(&self, group: &[Check]) -> Vec<Part> {
        let mut places: Vec<(Place, Vec<usize>)> = Vec::new();
        for (position, check) in group.iter().enumerate() {
            let place = self.inner.place(&check.key);
            match places.iter_mut().find(|(known, _)| *known == place) {
                Some((_, positions)) => positions.push(position),
                None => places.push((place, vec![position])),
            }
        }
        let part = |(place, positions): (Place, Vec<usize>)| {
            let checks = positions.iter().filter_map(|&at| group.get(at)).cloned();
            let checks = checks
                .map(|check| Check { refusal_scope: check.refusal_scope.for_one_slot(), ..check });
            Part { place, group: checks.collect(), positions }
        };
        places.into_iter().map(part).collect()
    }

    /// Removes a waiting group; false if it was sent.
    pub(super) fn leave(&self, lane: usize, number: u64) -> bool {
        let Some(lane) = self.lanes.get(lane) else { return false };
        let mut lane = lane.lock();
        let found = lane.waiting.binary_search_by_key(&number, |waiting| waiting.number);
        found.is_ok_and(|at| lane.waiting.remove(at).is_some())
    }
}

impl<S> Shared<S> {
    /// Counts hits of which it will not be known whether they are charged.
    pub(super) fn note_unknown(&self, group: &[Check], answers: &Answers) {
        let asked = group.iter().zip(answers);
        let unknown = asked.filter(|(_, answer)| **answer == Err(StoreError::Unknown));
        let hits: u64 = unknown.map(|(check, _)| check.charge.hits()).sum();
        self.hits_unknown.fetch_add(hits, Ordering::Relaxed);
    }
}

impl<S: Lanes> Shared<S> {
    /// Hands out the answers to classes that were asked. What is returned is to be asked again.
    pub(super) fn hand_out(
        self: &Arc<Self>,
        classes: Vec<Class>,
        settled: Settled,
        redirected: Redirected,
    ) -> Vec<Class> {
        let Settled { answers, late } = settled;
        let mut answers = answers.into_iter();
        let (mut again, mut unheard, mut first) = (Vec::new(), Vec::new(), 0);
        for class in classes {
            let checks = class.group.len();
            let of_class: Answers = answers.by_ref().take(checks).collect();
            let is_elsewhere = of_class.contains(&Err(StoreError::Moved));
            if is_elsewhere && redirected == Redirected::Report {
                tokio::spawn(Arc::clone(self).ask_apart(class.apart()));
            } else if late.is_some() && of_class.contains(&Err(StoreError::Unknown)) {
                unheard.push((first, class));
            } else {
                again.extend(
                    class.answer(&of_class, |group, answers| self.note_unknown(group, answers)),
                );
            }
            first += checks;
        }
        if let Some(late) = late {
            self.late_calls.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(Arc::clone(self).hand_out_late(unheard, late));
        }
        again
    }

    /// Hands out the answers that come late, to classes that begin at these positions of the batch.
    async fn hand_out_late(self: Arc<Self>, classes: Vec<(usize, Class)>, late: PendingAnswers) {
        let answers = late.await;
        for (first, class) in classes {
            let of_class = answers.iter().skip(first).take(class.group.len()).copied().collect();
            for left in class.answer(&of_class, |group, answers| self.note_unknown(group, answers))
            {
                // It was not charged, and its time is up.
                let answers = all(&left.group, StoreError::Unavailable);
                left.finish(&answers);
            }
        }
        self.late_calls.fetch_sub(1, Ordering::Relaxed);
    }

    /// Asks about classes wherever their counters are, in a call of its own, so that no other waits for it.
    pub(super) async fn ask_apart(self: Arc<Self>, mut classes: Vec<Class>) {
        let now = clock::now();
        classes.retain_mut(|class| class.is_wanted(now));
        if classes.is_empty() {
            return;
        }
        let groups = classes.iter().map(Class::asked).collect();
        let deadline = latest(&classes).flatten();
        self.batches.note(classes.iter().map(|class| class.members.len()).sum());
        let settled = self.inner.settle(Batch { groups, deadline }, Redirected::Follow).await;
        self.hand_out(classes, settled, Redirected::Follow);
    }
}

/// The same error for every check.
pub(super) fn all(group: &[Check], error: StoreError) -> Answers {
    group.iter().map(|_| Err(error)).collect()
}
