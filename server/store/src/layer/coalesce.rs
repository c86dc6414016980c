//! Natural batching: while a call is on its way, what arrives waits, and goes out together as the next call.
//!
//! Nothing waits while no call is on its way, and no timer decides how long: the slower the store answers, the
//! more goes out at once. Checks that lie at different servers wait in different lanes, so that a slow
//! server delays nobody else.
//!
//! Groups of a batch that are equal, all checks of which ask for their hits or nothing, are asked as one group that
//! asks for all of their hits. If those fit, each has its share, as if they had been asked one after the
//! other. If not, nothing was charged, and the answer tells how many of them fit: those are asked again,
//! and of the others one, whose refusal is the answer to all of them. Whoever is still without an
//! answer then is asked for alone: no request waits for more than three calls.
//!
//! A group whose deadline passes during its call is answered [`StoreError::Unknown`]. Its answer may still come, and is
//! then handed on by [`Store::late`].

use std::{
    collections::{HashMap, VecDeque},
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use sluicegate_core::{
    Answers, Batch, Check, CounterKey, Decision, Store, StoreError, Take,
    store::{Group, Late, Veto},
};
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::late::LateAnswers;
use crate::{clock, observed::Observed};

/// The most checks that one call asks; a single group may have more. About half a millisecond of a Redis
/// server, which answers nobody else meanwhile.
pub const BATCH_MAX: usize = 512;

/// The most groups that wait in one lane. Far more than a server answers before their callers give up.
pub const WAITING_MAX: usize = 8192;

/// Lanes; servers beyond that many share them.
const LANES: usize = 64;

/// The longest group that is looked at for equal ones.
const MERGED_MAX: usize = 8;

/// A store that tells which checks it can be asked at once.
pub trait Lanes: Store {
    /// Where a counter lies at present.
    fn place(&self, key: &CounterKey) -> Place;

    /// As [`decide`](Store::decide), and hands on the answers that come after the deadline.
    fn settle(
        &self,
        batch: Batch,
        _redirected: Redirected,
    ) -> impl Future<Output = Settled> + Send {
        async move { Settled { answers: self.decide(batch).await, late: None } }
    }
}

/// What to do about counters that turn out to be on another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirected {
    /// Ask that server.
    Follow,
    /// Answer [`StoreError::Elsewhere`], so that the rest of the batch does not wait for them.
    Report,
}

/// The answers to a batch at its deadline, and those that may come later.
pub struct Settled {
    /// One for each check, in order.
    pub answers: Answers,
    /// The answers that did not come in time: [`StoreError::Unknown`] in `answers`.
    pub late: Option<Late>,
}

/// Where a counter lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whom to ask: what lies in one lane is asked in one call.
    pub lane: usize,
    /// What a group has on one slot is settled all or nothing.
    pub slot: u16,
}

/// Merges what many callers ask at once into few calls.
#[derive(Debug)]
pub struct Coalesce<S> {
    shared: Arc<Shared<S>>,
}

#[derive(Debug)]
struct Shared<S> {
    inner: S,
    lanes: Box<[Mutex<Lane>]>,
    /// The most calls of one lane that are on their way at once.
    calls_max: usize,
    hits_unknown: AtomicU64,
    late: LateAnswers,
    /// Calls whose late answers are awaited.
    late_calls: AtomicUsize,
    batches: Observed<usize>,
}

#[derive(Debug, Default)]
struct Lane {
    /// By number, ascending.
    waiting: VecDeque<Waiting>,
    /// Number of the next one that comes.
    next: u64,
    /// Tasks that make calls.
    callers: usize,
}

/// A group that waits for a call.
#[derive(Debug)]
struct Waiting {
    number: u64,
    group: Group,
    deadline: Option<Instant>,
    answer: oneshot::Sender<Answers>,
}

/// What its caller holds meanwhile.
struct Ticket {
    lane: usize,
    number: u64,
    answer: oneshot::Receiver<Answers>,
}

/// The answer to a group, or to a part of one, that may come late.
struct Unheard {
    /// Where each of its checks stands in the whole group.
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

    /// Has it told how many groups, or parts of them, each call asks about. Only the first who asks is told.
    pub fn on_batch(&self, listener: impl Fn(usize) + Send + Sync + 'static) {
        self.shared.batches.tell(listener);
    }

    /// Groups that wait for a call.
    pub fn waiting(&self) -> usize {
        self.shared.lanes.iter().map(|lane| lane.lock().waiting.len()).sum()
    }

    /// Hits of which the store did not tell whether it charged them, or took them back, also not late. They may stay
    /// charged until they expire.
    pub fn hits_unknown(&self) -> u64 {
        self.shared.hits_unknown.load(Ordering::Relaxed)
    }

    /// Calls whose late answers are awaited.
    pub fn late_calls(&self) -> usize {
        self.shared.late_calls.load(Ordering::Relaxed)
    }

    /// Late answers that were not asked for with [`Store::late`]: none, unless a call of `decide` is just returning.
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
            // A task of its own: what has been sent must be heard of, whoever stops waiting.
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
    fn settles_whole(&self, checks: &[Check]) -> bool {
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

    fn late(&self, group: &Group) -> Option<Late> {
        self.shared.late.take(group)
    }
}

/// What of a group lies on one slot.
struct Part {
    place: Place,
    group: Group,
    /// Where each of these checks stands in the whole group.
    positions: Vec<usize>,
}

impl<S: Lanes> Shared<S> {
    /// The lane of a group that lies on one slot; `None` if it does not.
    fn lane_of(&self, group: &[Check]) -> Option<usize> {
        let (first, others) = group.split_first()?;
        let place = self.inner.place(&first.key);
        others.iter().all(|check| self.inner.place(&check.key) == place).then_some(place.lane)
    }

    fn parts(&self, group: &[Check]) -> Vec<Part> {
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
            let checks = checks.map(|check| Check { veto: check.veto.of_part(), ..check });
            Part { place, group: checks.collect(), positions }
        };
        places.into_iter().map(part).collect()
    }

    /// Takes back a group that still waits; false if it was sent.
    fn leave(&self, lane: usize, number: u64) -> bool {
        let Some(lane) = self.lanes.get(lane) else { return false };
        let mut lane = lane.lock();
        let found = lane.waiting.binary_search_by_key(&number, |waiting| waiting.number);
        found.is_ok_and(|at| lane.waiting.remove(at).is_some())
    }
}

impl<S> Shared<S> {
    /// Counts hits of which it will not be known whether they are charged.
    fn note_unknown(&self, group: &[Check], answers: &Answers) {
        let asked = group.iter().zip(answers);
        let unknown = asked.filter(|(_, answer)| **answer == Err(StoreError::Unknown));
        let hits: u64 = unknown.map(|(check, _)| check.take.hits()).sum();
        self.hits_unknown.fetch_add(hits, Ordering::Relaxed);
    }
}

impl<S: Lanes> Shared<S> {
    /// Hands out the answers to classes that were asked. What is returned is to be asked again.
    fn hand_out(
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
            let is_elsewhere = of_class.contains(&Err(StoreError::Elsewhere));
            if is_elsewhere && redirected == Redirected::Report {
                tokio::spawn(Arc::clone(self).ask_apart(class.apart()));
            } else if late.is_some() && of_class.contains(&Err(StoreError::Unknown)) {
                unheard.push((first, class));
            } else {
                again.extend(class.answer(&of_class, self));
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
    async fn hand_out_late(self: Arc<Self>, classes: Vec<(usize, Class)>, late: Late) {
        let answers = late.await;
        for (first, class) in classes {
            let of_class = answers.iter().skip(first).take(class.group.len()).copied().collect();
            for left in class.answer(&of_class, &self) {
                // It was not charged, and its time is up.
                let answers = all(&left.group, StoreError::Unavailable);
                left.finish(&answers);
            }
        }
        self.late_calls.fetch_sub(1, Ordering::Relaxed);
    }

    /// Asks about classes wherever their counters are, in a call of its own, so that no other waits for it.
    async fn ask_apart(self: Arc<Self>, mut classes: Vec<Class>) {
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

fn all(group: &[Check], error: StoreError) -> Answers {
    group.iter().map(|_| Err(error)).collect()
}

/// Makes the calls of a lane, one after the other, as long as somebody waits.
struct Caller<S: Lanes> {
    shared: Arc<Shared<S>>,
    lane: usize,
    /// What the next call asks, in order.
    classes: Vec<Class>,
    /// Where in `classes` groups of a hash stand that more may join.
    open: HashMap<u64, usize, RandomState>,
}

impl<S: Lanes> Caller<S> {
    fn new(shared: Arc<Shared<S>>, lane: usize) -> Self {
        Self { shared, lane, classes: Vec::new(), open: HashMap::default() }
    }

    async fn run(mut self) {
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
        // What was taken in vain has much time to be given back, and a server that does not answer is to be noticed soon.
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

/// A call that panics takes nobody else with it.
impl<S: Lanes> Drop for Caller<S> {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(lane) = self.shared.lanes.get(self.lane)
        {
            lane.lock().callers -= 1;
        }
    }
}

/// Equal groups, which are asked as one.
struct Class {
    group: Group,
    members: SmallVec<[Waiting; 1]>,
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
    fn of(waiting: Waiting) -> Self {
        let group = Arc::clone(&waiting.group);
        let members = SmallVec::from_iter([waiting]);
        Self { group, members, asks: Asks::All, room: None, again: false }
    }

    /// Whether a group may join: if it is equal, and the sum of both says what becomes of each.
    fn takes_in(&mut self, group: &[Check]) -> bool {
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
    fn asked(&self) -> Group {
        let count = self.count();
        if count == 1 {
            return Arc::clone(&self.group);
        }
        let times = u64::try_from(count).unwrap_or(u64::MAX);
        let asked = |check: &Check| {
            let take = Take::Exactly(hits(check).saturating_mul(times));
            Check { take, ..check.clone() }
        };
        self.group.iter().map(asked).collect()
    }

    /// Answers whom it can. What is left is to be asked again.
    fn answer<S>(mut self, answers: &Answers, shared: &Shared<S>) -> Vec<Self> {
        let count = self.count();
        let decided: Option<SmallVec<[Decision; 4]>> =
            answers.iter().map(|answer| answer.ok()).collect();
        let decided = match decided {
            Some(decided) if self.members.len() > 1 => decided,
            Some(_) => return self.finish(answers),
            None => {
                shared.note_unknown(&self.asked(), answers);
                return self.finish(answers);
            }
        };
        let passed = decided.iter().all(|decision| decision.allowed);
        let (answered, next) = match (passed, count) {
            // Neither do the others fit.
            (false, 1) => return self.finish(answers),
            (false, _) => (0, fitting(&self.group, &decided).min(count - 1)),
            // Whoever comes after those that took all there is will hardly pass.
            (true, count) => (count, 0),
        };
        let others: SmallVec<[Waiting; 1]> = self.members.drain(answered..).collect();
        share(&self.group, &decided, std::mem::take(&mut self.members));
        if self.again {
            // Meanwhile there is room for some: each for itself, so that nobody waits for a third guess.
            return others.into_iter().map(Self::of).collect();
        }
        let mut first = Self { members: others, asks: Asks::All, again: true, ..self };
        let members = first.members.drain(next..).collect();
        let group = Arc::clone(&first.group);
        let rest = Self { group, members, asks: Asks::First, room: first.room, again: true };
        [first, rest].into_iter().filter(|class| !class.members.is_empty()).collect()
    }

    /// A class for each member.
    fn apart(self) -> Vec<Self> {
        self.members.into_iter().map(Self::of).collect()
    }

    /// Gives the same answers to all.
    fn finish(self, answers: &Answers) -> Vec<Self> {
        for member in self.members {
            // Who has left is told nothing.
            let _left = member.answer.send(answers.clone());
        }
        Vec::new()
    }

    /// Whether a member still waits. For those that have left, or whose time is up, nothing is asked any more.
    fn is_wanted(&mut self, now: Instant) -> bool {
        let is_late = |member: &Waiting| member.deadline.is_some_and(|deadline| deadline <= now);
        self.members.retain(|member| !member.answer.is_closed() && !is_late(member));
        !self.members.is_empty()
    }
}

/// When the last member of these gives up; `None` in it if one never does.
fn latest<'c>(classes: impl IntoIterator<Item = &'c Class>) -> Option<Option<Instant>> {
    let deadlines = classes.into_iter().flat_map(|class| &class.members).map(|it| it.deadline);
    deadlines.reduce(|a, b| Some(a?.max(b?)))
}

/// Whether the check undoes a take that was in vain.
const fn undoes(check: &Check) -> bool {
    matches!(check.take, Take::GiveBack { receipt: Some(_), .. })
}

/// Gives each what it would have heard, had they been asked one after the other.
fn share(group: &[Check], decided: &[Decision], members: SmallVec<[Waiting; 1]>) {
    let count = members.len();
    for (position, member) in members.into_iter().enumerate() {
        let after = u64::try_from(count - 1 - position).unwrap_or(0);
        let shares = group.iter().zip(decided).map(|(check, decision)| {
            let hits_after = hits(check).saturating_mul(after);
            let sooner = decision.receipt.map(|it| it.reset_sooner(&check.limit, hits_after));
            Ok(Decision {
                granted: hits(check),
                remaining: decision.remaining.saturating_add(hits_after),
                reset_after: decision.reset_after.saturating_sub(sooner.unwrap_or_default()),
                receipt: decision.receipt.map(|it| it.before(&check.limit, hits_after)),
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
    let adds = |check: &Check| hits(check) > 0 && check.veto == Veto::Alone;
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
    match check.take {
        Take::Exactly(hits) => hits,
        Take::UpTo(_) | Take::Always { .. } | Take::GiveBack { .. } => 0,
    }
}

/// The same for equal groups.
fn hash(group: &[Check]) -> u64 {
    group.iter().fold(0, |hash, check| hash.rotate_left(7) ^ check.key.hash64())
}
