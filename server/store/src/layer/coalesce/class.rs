//! Equal groups that are asked as one, and what each member is answered.

use std::{sync::Arc, time::Instant};

use sluicegate_core::{
    Answers, Charge, Check, Decision,
    store::{Group, RefusalScope},
};
use smallvec::SmallVec;
use tokio::sync::oneshot;

/// The longest group that is looked at for equal ones.
const MERGED_MAX: usize = 8;

/// A group that waits for a call.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) number: u64,
    pub(super) group: Group,
    pub(super) deadline: Option<Instant>,
    pub(super) answer: oneshot::Sender<Answers>,
}

/// Equal groups, which are asked as one.
pub(super) struct Class {
    pub(super) group: Group,
    pub(super) members: SmallVec<[Waiting; 1]>,
    asks: Asks,
    /// How many equal groups can pass at most, if they may be asked as one; looked up when a second one comes.
    room: Option<Option<usize>>,
    /// Whether it is what is left of a class that was asked before.
    again: bool,
}

/// What a class asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    /// The hits of all, or of as many as can ever pass.
    All,
    /// Those of the first, whose refusal is the answer to all.
    First,
}

impl Class {
    pub(super) fn of(waiting: Waiting) -> Self {
        let group = Arc::clone(&waiting.group);
        let members = SmallVec::from_iter([waiting]);
        Self { group, members, asks: Asks::All, room: None, again: false }
    }

    /// Whether a group may join: if it is equal, and the sum of both says what becomes of each.
    pub(super) fn takes_in(&mut self, group: &[Check]) -> bool {
        *self.group == *group && self.room.get_or_insert_with(|| room(group)).is_some()
    }

    /// How many members it asks for.
    fn count(&self) -> usize {
        match self.asks {
            Asks::All => self.room.flatten().unwrap_or(1).clamp(1, self.members.len().max(1)),
            Asks::First => 1,
        }
    }

    /// The group that is asked.
    pub(super) fn asked(&self) -> Group {
        let count = self.count();
        if count == 1 {
            return Arc::clone(&self.group);
        }
        let times = u64::try_from(count).unwrap_or(u64::MAX);
        let asked = |check: &Check| {
            let take = Charge::Exactly(hits(check).saturating_mul(times));
            Check { charge: take, ..check.clone() }
        };
        self.group.iter().map(asked).collect()
    }

    /// Answers whom it can. What is left is to be asked again. `note_unknown` hears of checks whose outcome is unknown.
    pub(super) fn answer(
        mut self,
        answers: &Answers,
        note_unknown: impl FnOnce(&[Check], &Answers),
    ) -> Vec<Self> {
        let count = self.count();
        let decided: Option<SmallVec<[Decision; 4]>> =
            answers.iter().map(|answer| answer.ok()).collect();
        let decided = match decided {
            Some(decided) if self.members.len() > 1 => decided,
            Some(_) => return self.finish(answers),
            None => {
                note_unknown(&self.asked(), answers);
                return self.finish(answers);
            }
        };
        let passed = decided.iter().all(|decision| decision.allowed);
        let (answered, next) = match (passed, count) {
            // Neither do the others fit.
            (false, 1) => return self.finish(answers),
            (false, _) => (0, fitting(&self.group, &decided).min(count - 1)),
            // Groups after those that used up the limit will hardly pass.
            (true, count) => (count, 0),
        };
        let others: SmallVec<[Waiting; 1]> = self.members.drain(answered..).collect();
        share(&self.group, &decided, std::mem::take(&mut self.members));
        if self.again {
            // Some fit again meanwhile: each is sent alone, so that no group waits for a third guess.
            return others.into_iter().map(Self::of).collect();
        }
        let mut first = Self { members: others, asks: Asks::All, again: true, ..self };
        let members = first.members.drain(next..).collect();
        let group = Arc::clone(&first.group);
        let rest = Self { group, members, asks: Asks::First, room: first.room, again: true };
        [first, rest].into_iter().filter(|class| !class.members.is_empty()).collect()
    }

    /// A class for each member.
    pub(super) fn apart(self) -> Vec<Self> {
        self.members.into_iter().map(Self::of).collect()
    }

    /// Gives the same answers to all.
    pub(super) fn finish(self, answers: &Answers) -> Vec<Self> {
        for member in self.members {
            // Callers that have left get no answer.
            let _left = member.answer.send(answers.clone());
        }
        Vec::new()
    }

    /// Whether a member still waits. For those that have left, or whose time is up, nothing is asked any more.
    pub(super) fn is_wanted(&mut self, now: Instant) -> bool {
        let is_late = |member: &Waiting| member.deadline.is_some_and(|deadline| deadline <= now);
        self.members.retain(|member| !member.answer.is_closed() && !is_late(member));
        !self.members.is_empty()
    }
}

/// When the last member of these gives up; `None` in it if one never does.
pub(super) fn latest<'c>(classes: impl IntoIterator<Item = &'c Class>) -> Option<Option<Instant>> {
    let deadlines = classes.into_iter().flat_map(|class| &class.members).map(|it| it.deadline);
    deadlines.reduce(|a, b| Some(a?.max(b?)))
}

/// Whether the check undoes a take that was in vain.
pub(super) const fn undoes(check: &Check) -> bool {
    matches!(check.charge, Charge::Refund { receipt: Some(_), .. })
}

/// Gives each the answer as if the groups had been settled one after the other.
fn share(group: &[Check], decided: &[Decision], members: SmallVec<[Waiting; 1]>) {
    let count = members.len();
    for (position, member) in members.into_iter().enumerate() {
        let after = u64::try_from(count - 1 - position).unwrap_or(0);
        let shares = group.iter().zip(decided).map(|(check, decision)| {
            let hits_after = hits(check).saturating_mul(after);
            let sooner = decision.receipt.map(|it| it.reset_reduction(&check.limit, hits_after));
            Ok(Decision {
                charged: hits(check),
                remaining: decision.remaining.saturating_add(hits_after),
                reset_after: decision.reset_after.saturating_sub(sooner.unwrap_or_default()),
                receipt: decision.receipt.map(|it| it.for_first_part(&check.limit, hits_after)),
                ..*decision
            })
        });
        let _left = member.answer.send(shares.collect());
    }
}

/// How many groups fit of those that together did not.
fn fitting(group: &[Check], decided: &[Decision]) -> usize {
    let each =
        group.iter().zip(decided).map(|(check, decision)| decision.remaining / hits(check).max(1));
    usize::try_from(each.min().unwrap_or(0)).unwrap_or(usize::MAX)
}

/// How many groups equal to this one can pass at most; `None` if their sum does not say what becomes of each.
fn room(group: &[Check]) -> Option<usize> {
    let adds = |check: &Check| hits(check) > 0 && check.refusal_scope == RefusalScope::Request;
    let once = |at: usize, check: &Check| group.iter().skip(at + 1).all(|it| it.key != check.key);
    let each = group.iter().enumerate().all(|(at, check)| adds(check) && once(at, check));
    if group.len() > MERGED_MAX || !each {
        return None;
    }
    let room = group.iter().map(|check| u64::from(check.limit.capacity()) / hits(check).max(1));
    room.min().map(|room| usize::try_from(room).unwrap_or(usize::MAX))
}

/// The hits of a check that asks for all of them or nothing; zero for others.
const fn hits(check: &Check) -> u64 {
    match check.charge {
        Charge::Exactly(hits) => hits,
        Charge::Always { .. } | Charge::Refund { .. } => 0,
    }
}

/// The same for equal groups.
pub(super) fn hash(group: &[Check]) -> u64 {
    group.iter().fold(0, |hash, check| hash.rotate_left(7) ^ check.key.hash64())
}
