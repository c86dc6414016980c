//! Equal groups that are sent as one group, and the answer to each of them.

use std::{sync::Arc, time::Instant};

use sluicegate_core::{
    Answers, Charge, Check, Decision,
    store::{Group, RefusalScope},
};
use smallvec::SmallVec;
use tokio::sync::oneshot;

/// The most checks of a group that can be merged with equal ones.
const MERGED_CHECKS_MAX: usize = 8;

/// A group that waits for a call.
#[derive(Debug)]
pub(super) struct WaitingGroup {
    pub(super) number: u64,
    pub(super) group: Group,
    pub(super) deadline: Option<Instant>,
    pub(super) answer: oneshot::Sender<Answers>,
}

/// Equal groups that are sent as one group.
pub(super) struct MergedGroup {
    pub(super) group: Group,
    pub(super) members: SmallVec<[WaitingGroup; 1]>,
    hits: HitsSent,
    /// How many such groups the limits can ever allow. Inner `None`: equal groups cannot be merged. Outer `None`: not
    /// computed yet, which happens when a second group is compared.
    allowed_groups_max: Option<Option<usize>>,
    /// Whether an earlier call did not answer these groups.
    is_retry: bool,
}

/// The hits that are sent for a merged group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HitsSent {
    /// The sum over all members, or over as many as the limits can ever allow.
    Sum,
    /// Those of the first member, whose refusal answers all members.
    First,
}

impl MergedGroup {
    /// A merged group with one member.
    pub(super) fn of(waiting: WaitingGroup) -> Self {
        let group = Arc::clone(&waiting.group);
        let members = SmallVec::from_iter([waiting]);
        Self { group, members, hits: HitsSent::Sum, allowed_groups_max: None, is_retry: false }
    }

    /// Whether a group can become a member: it is equal, and the answer to a sum of hits determines the answer to each
    /// member.
    pub(super) fn accepts(&mut self, group: &[Check]) -> bool {
        *self.group == *group
            && self.allowed_groups_max.get_or_insert_with(|| allowed_groups_max(group)).is_some()
    }

    /// The number of members whose hits are sent.
    fn members_sent(&self) -> usize {
        match self.hits {
            HitsSent::Sum => {
                self.allowed_groups_max.flatten().unwrap_or(1).clamp(1, self.members.len().max(1))
            }
            HitsSent::First => 1,
        }
    }

    /// The group to send.
    pub(super) fn to_send(&self) -> Group {
        let count = self.members_sent();
        if count == 1 {
            return Arc::clone(&self.group);
        }
        let times = u64::try_from(count).unwrap_or(u64::MAX);
        let multiplied = |check: &Check| {
            let charge = Charge::IfAllowed(hits(check).saturating_mul(times));
            Check { charge, ..check.clone() }
        };
        self.group.iter().map(multiplied).collect()
    }

    /// Answers the members that these answers decide, and returns the others to be sent again. Calls `note_unknown` if
    /// a check has no answer.
    pub(super) fn distribute(
        mut self,
        answers: &Answers,
        note_unknown: impl FnOnce(&[Check], &Answers),
    ) -> Vec<Self> {
        let count = self.members_sent();
        let decided: Option<SmallVec<[Decision; 4]>> =
            answers.iter().map(|answer| answer.ok()).collect();
        let decided = match decided {
            Some(decided) if self.members.len() > 1 => decided,
            Some(_) => return self.answer_all(answers),
            None => {
                note_unknown(&self.to_send(), answers);
                return self.answer_all(answers);
            }
        };
        let is_allowed = decided.iter().all(|decision| decision.allowed);
        let (answered, next) = match (is_allowed, count) {
            // The other members are equal, so they do not fit either.
            (false, 1) => return self.answer_all(answers),
            (false, _) => (0, count_fitting(&self.group, &decided).min(count - 1)),
            // The allowed members used up the limit, so the others will most likely be refused.
            (true, count) => (count, 0),
        };
        let others: SmallVec<[WaitingGroup; 1]> = self.members.drain(answered..).collect();
        answer_each(&self.group, &decided, std::mem::take(&mut self.members));
        if self.is_retry {
            // Hits were freed between the calls. Each member is sent alone, so that none waits for a fourth call.
            return others.into_iter().map(Self::of).collect();
        }
        let mut first = Self { members: others, hits: HitsSent::Sum, is_retry: true, ..self };
        let members = first.members.drain(next..).collect();
        let (group, allowed_groups_max) = (Arc::clone(&first.group), first.allowed_groups_max);
        let rest =
            Self { group, members, hits: HitsSent::First, allowed_groups_max, is_retry: true };
        [first, rest].into_iter().filter(|merged| !merged.members.is_empty()).collect()
    }

    /// A merged group for each member.
    pub(super) fn split(self) -> Vec<Self> {
        self.members.into_iter().map(Self::of).collect()
    }

    /// Sends the same answers to all members. Returns no group to be sent again.
    pub(super) fn answer_all(self, answers: &Answers) -> Vec<Self> {
        for member in self.members {
            let _cancelled = member.answer.send(answers.clone());
        }
        Vec::new()
    }

    /// Removes members whose callers were cancelled or whose deadlines have passed. Returns whether any is left.
    pub(super) fn retain_waiting(&mut self, now: Instant) -> bool {
        let is_late =
            |member: &WaitingGroup| member.deadline.is_some_and(|deadline| deadline <= now);
        self.members.retain(|member| !member.answer.is_closed() && !is_late(member));
        !self.members.is_empty()
    }
}

/// The latest deadline of all members; `Some(None)` if a member has no deadline, `None` without members.
pub(super) fn latest_deadline<'m>(
    merged_groups: impl IntoIterator<Item = &'m MergedGroup>,
) -> Option<Option<Instant>> {
    let members = merged_groups.into_iter().flat_map(|merged| &merged.members);
    members.map(|it| it.deadline).reduce(|a, b| Some(a?.max(b?)))
}

/// Whether the check refunds one particular charge, of a request that was refused or failed.
pub(super) const fn is_undo(check: &Check) -> bool {
    matches!(check.charge, Charge::Refund { receipt: Some(_), .. })
}

/// Answers each member of an allowed sum as if the groups had been settled one after another.
fn answer_each(group: &[Check], decided: &[Decision], members: SmallVec<[WaitingGroup; 1]>) {
    let count = members.len();
    for (position, member) in members.into_iter().enumerate() {
        let after = u64::try_from(count - 1 - position).unwrap_or(0);
        let answers = group.iter().zip(decided).map(|(check, decision)| {
            let hits_after = hits(check).saturating_mul(after);
            let sooner = decision.receipt.map(|it| it.reset_reduction(&check.limit, hits_after));
            Ok(Decision {
                charged: hits(check),
                remaining: decision.remaining.saturating_add(hits_after),
                reset_after: decision.reset_after.saturating_sub(sooner.unwrap_or_default()),
                receipt: decision.receipt.map(|it| it.without_last_hits(&check.limit, hits_after)),
                ..*decision
            })
        });
        let _cancelled = member.answer.send(answers.collect());
    }
}

/// The number of equal groups that fit, by the answer that refused their sum.
fn count_fitting(group: &[Check], decided: &[Decision]) -> usize {
    let each =
        group.iter().zip(decided).map(|(check, decision)| decision.remaining / hits(check).max(1));
    usize::try_from(each.min().unwrap_or(0)).unwrap_or(usize::MAX)
}

/// The number of groups equal to this one that the limits can ever allow; `None` if the answer to their sum does not
/// determine the answer to each.
fn allowed_groups_max(group: &[Check]) -> Option<usize> {
    let adds = |check: &Check| hits(check) > 0 && check.refusal_scope == RefusalScope::Request;
    let once = |at: usize, check: &Check| group.iter().skip(at + 1).all(|it| it.key != check.key);
    let each = group.iter().enumerate().all(|(at, check)| adds(check) && once(at, check));
    if group.len() > MERGED_CHECKS_MAX || !each {
        return None;
    }
    let groups = group.iter().map(|check| u64::from(check.limit.capacity()) / hits(check).max(1));
    groups.min().map(|groups| usize::try_from(groups).unwrap_or(usize::MAX))
}

/// The hits of a [`Charge::IfAllowed`]; zero for other charges.
const fn hits(check: &Check) -> u64 {
    match check.charge {
        Charge::IfAllowed(hits) => hits,
        Charge::Always { .. } | Charge::Refund { .. } => 0,
    }
}

/// A hash that is the same for equal groups.
pub(super) fn hash(group: &[Check]) -> u64 {
    group.iter().fold(0, |hash, check| hash.rotate_left(7) ^ check.key.hash64())
}
