//! Judges what happened in a run, by arithmetic of its own.
//!
//! The servers write down each change of a counter. A check that the store answered must be explained by the counter at
//! some moment between question and answer; and what the scripts have changed of a counter, all calls together, must be
//! the sum of what callers were told.

use std::{fmt, time::Duration};

use sluicegate_core::{
    Decision, Limit, OnFailure, Take,
    store::{Source, Veto},
};

use crate::{
    run::{Asked, History, Outcome},
    scenario::{CheckPlan, Kind, Scenario},
    world::{Counter, Delays, Piece},
};

/// How long a refusal may be remembered.
const REMEMBERED: Duration = Duration::from_secs(1);

/// Calls that a request waits for at most.
const CALLS_MAX: u32 = 4;

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule that is broken.
    pub rule: &'static str,
    /// The action of the scenario that it is about, if it is about one.
    pub action: Option<usize>,
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.rule)?;
        if let Some(action) = self.action {
            write!(f, "action {action}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// Everything in a run that must not happen.
pub(crate) fn judge(scenario: &Scenario, history: &History) -> Vec<Violation> {
    let mut judge = Judge { scenario, history, found: Vec::new() };
    if history.not_connected {
        judge.add("connected in time", None, "the stack is degraded".to_owned());
    }
    history.asked.iter().for_each(|asked| judge.answer_in_time(asked));
    if scenario.kind == Kind::Memory {
        judge.memory();
    } else {
        history.asked.iter().for_each(|asked| judge.answers(asked));
        history.asked.iter().for_each(|asked| judge.local(asked));
        (0..scenario.counters.len()).for_each(|counter| judge.conservation(counter));
        judge.missing();
    }
    judge.rest();
    judge.found
}

struct Judge<'r> {
    scenario: &'r Scenario,
    history: &'r History,
    found: Vec<Violation>,
}

/// Hits that a check asks for.
fn hits(take: Take) -> u64 {
    match take {
        Take::Exactly(hits)
        | Take::UpTo(hits)
        | Take::Always { hits, .. }
        | Take::GiveBack { hits, .. } => hits,
    }
}

/// Hits that must be left for a check to be allowed.
fn needs(take: Take) -> u64 {
    match take {
        Take::Exactly(hits) => hits.max(1),
        Take::UpTo(0) | Take::GiveBack { .. } => 0,
        Take::UpTo(_) => 1,
        Take::Always { needs, .. } => needs,
    }
}

fn is_conditional(take: Take) -> bool {
    matches!(take, Take::Exactly(_) | Take::UpTo(_))
}

/// Whether the descriptor of a check has a check that is not allowed.
fn is_over(checks: &[CheckPlan], allowed: &[bool], descriptor: usize) -> bool {
    let of_descriptor = checks.iter().zip(allowed).filter(|(it, _)| it.descriptor == descriptor);
    of_descriptor.into_iter().any(|(_, allowed)| !allowed)
}

/// Whether the request is refused: one descriptor that may refuse alone is over, or all those with a quota.
fn is_refused(checks: &[CheckPlan], allowed: &[bool]) -> bool {
    let mut quotas = Vec::new();
    let mut descriptors: Vec<(usize, Veto)> = Vec::new();
    for check in checks {
        if descriptors.last().is_none_or(|(last, _)| *last != check.descriptor) {
            descriptors.push((check.descriptor, check.veto));
        }
    }
    for (descriptor, veto) in descriptors {
        let over = is_over(checks, allowed, descriptor);
        match veto {
            Veto::Alone if over => return true,
            Veto::Quota => quotas.push(over),
            Veto::Alone | Veto::None => {}
        }
    }
    !quotas.is_empty() && quotas.iter().all(|over| *over)
}

/// What a check was answered.
fn decided(asked: &Asked, at: usize) -> Option<&Decision> {
    match &asked.outcome {
        Outcome::Decided(decisions) => decisions.get(at),
        Outcome::Deferred | Outcome::Left => None,
    }
}

/// Gives back what some checks took on condition.
fn undo(
    checks: &[CheckPlan],
    answers: &mut [(bool, u64)],
    used: &mut [i64],
    is_undone: impl Fn(&CheckPlan) -> bool,
) {
    for (check, (_, granted)) in checks.iter().zip(answers) {
        if is_conditional(check.take) && is_undone(check) {
            used[check.counter] -= i64::try_from(std::mem::take(granted)).unwrap();
        }
    }
}

impl Judge<'_> {
    fn add(&mut self, rule: &'static str, action: Option<usize>, what: String) {
        self.found.push(Violation { rule, action, what });
    }

    fn limit(&self, check: &CheckPlan) -> Limit {
        self.scenario.counters[check.counter].limits[check.limit]
    }

    fn answer_in_time(&mut self, asked: &Asked) {
        if !matches!(asked.outcome, Outcome::Left) && asked.ended.1 > asked.deadline {
            let (ended, deadline) = (asked.ended.1, asked.deadline);
            let what = format!("answered at {ended:?}, after its deadline {deadline:?}");
            self.add("answers come in time", Some(asked.action), what);
        }
    }

    /// The answers to one request of a store in Redis.
    fn answers(&mut self, asked: &Asked) {
        let decisions = match &asked.outcome {
            Outcome::Decided(decisions) => decisions,
            Outcome::Deferred if self.scenario.is_calm => {
                let what = "deferred though nothing failed".to_owned();
                return self.add("failures have a reason", Some(asked.action), what);
            }
            Outcome::Deferred | Outcome::Left => return,
        };
        for (position, decision) in decisions.iter().enumerate() {
            match decision.source {
                Source::Store if decision.allowed => self.admission(asked, position, decisions),
                Source::Store => self.refusal(asked, position),
                Source::DenyCache => self.remembered(asked, position),
                Source::NotAsked if decisions.iter().any(|it| it.source == Source::DenyCache) => {}
                Source::NotAsked | Source::Local | Source::Policy if self.scenario.is_calm => {
                    let what =
                        format!("check {position}: {:?} though nothing failed", decision.source);
                    self.add("failures have a reason", Some(asked.action), what);
                }
                Source::NotAsked | Source::Local | Source::Policy => {}
            }
        }
    }

    /// Nothing is admitted past a limit: there was room at some moment.
    fn admission(&mut self, asked: &Asked, at: usize, decisions: &[Decision]) {
        let (check, granted) = (&asked.checks[at], decisions[at].granted);
        let allowed: Vec<bool> = decisions.iter().map(|it| it.allowed).collect();
        let limit = self.limit(check);
        // What checks before it had taken when it was asked.
        let had_taken = |(it, decision): &(&CheckPlan, &Decision)| {
            let is_here = it.counter == check.counter && decision.source == Source::Store;
            let is_undone = it.descriptor != check.descriptor
                && is_over(&asked.checks, &allowed, it.descriptor);
            match it.take {
                Take::Always { .. } => is_here,
                Take::Exactly(_) => is_here && decision.allowed && !is_undone,
                Take::UpTo(_) | Take::GiveBack { .. } => false,
            }
        };
        let before = asked.checks[..at].iter().zip(decisions).filter(had_taken);
        let before: u64 = before.map(|(it, _)| hits(it.take)).sum();
        let least = Span::of(asked).least(&self.history.counters[check.counter], &limit);
        let granted = if is_conditional(check.take) { granted } else { 0 };
        let needs = needs(check.take).max(granted);
        if needs > 0 && least + before + needs > u64::from(limit.capacity()) {
            let what = format!(
                "check {at}: {needs} hits pass where at least {least} of {} are used, and {before} by checks before it",
                limit.capacity()
            );
            self.add("nothing is admitted past a limit", Some(asked.action), what);
        }
    }

    /// While the store does not answer, a process admits no more than its share of what it last heard was left.
    fn local(&mut self, asked: &Asked) {
        for (at, check) in asked.checks.iter().enumerate() {
            let Some(decision) = decided(asked, at) else { continue };
            let is_known_whole =
                self.scenario.is_exact && !self.history.counters[check.counter].is_cut;
            if decision.source != Source::Local || !decision.allowed || !is_known_whole {
                continue;
            }
            // Everything that this process has asked about the counter.
            let of_counter = self.history.asked.iter().filter(|it| it.process == asked.process);
            let of_counter = of_counter.flat_map(|it| {
                let positions =
                    (0..it.checks.len()).filter(|&at| it.checks[at].counter == check.counter);
                positions.map(move |at| (it, at))
            });
            let of_counter: Vec<_> = of_counter.collect();
            let is_other = |it: &CheckPlan| {
                it.limit != check.limit
                    || it.on_failure != check.on_failure
                    || !is_conditional(it.take)
            };
            if of_counter.iter().any(|(it, at)| is_other(&it.checks[*at])) {
                continue;
            }
            let heard = of_counter.iter().filter_map(|(it, at)| {
                let decision = decided(it, *at).filter(|it| it.source == Source::Store)?;
                (it.ended.0 < asked.began.0).then_some((it, decision))
            });
            let heard: Vec<_> = heard.collect();
            let Some((last, _)) = heard.iter().max_by_key(|(it, _)| it.ended.0) else { continue };
            // Of answers to questions that were open together, any may be the latest.
            let left = heard.iter().filter(|(it, _)| it.ended.0 > last.began.0);
            let left = left.map(|(_, decision)| decision.remaining).max().unwrap_or(0);
            let since = of_counter
                .iter()
                .filter(|(it, _)| it.began.0 > last.ended.0 && it.ended.0 <= asked.ended.0);
            let of_local = since.filter_map(|(it, at)| {
                decided(it, *at).filter(|it| it.source == Source::Local && it.allowed)
            });
            let admitted: u64 = of_local.map(|it| it.granted).sum();
            // A counter that was not used is as good as unknown: each process may admit at least one hit.
            let was_used = left < u64::from(self.limit(check).capacity());
            if was_used && admitted * u64::try_from(self.scenario.processes).unwrap() > left {
                let what = format!(
                    "check {at}: the process admitted {admitted} hits by itself, where {left} were left for {}",
                    self.scenario.processes
                );
                self.add("what was used stays used in an outage", Some(asked.action), what);
            }
        }
    }

    /// Every refusal has a reason at some moment.
    fn refusal(&mut self, asked: &Asked, at: usize) {
        let check = &asked.checks[at];
        let limit = self.limit(check);
        let most = Span::of(asked).most(&self.history.counters[check.counter], &limit);
        self.explain(asked, at, most);
    }

    /// A refusal that was remembered has a reason since the process last heard of hits that came back, and not long ago.
    fn remembered(&mut self, asked: &Asked, at: usize) {
        let check = &asked.checks[at];
        let limit = self.limit(check);
        let returned = self.history.returns.iter().filter(|it| {
            it.process == asked.process
                && it.counter.is_none_or(|counter| counter == check.counter)
                && it.ended.0 < asked.began.0
        });
        let span = Span {
            first_event: returned.map(|it| it.ended.0).max().unwrap_or(0),
            begins: asked.began.1.saturating_sub(REMEMBERED),
            looked_at: asked.began.1,
            ..Span::of(asked)
        };
        let most = span.most(&self.history.counters[check.counter], &limit);
        self.explain(asked, at, most);
        if self.scenario.deny_cache_entries == 0 {
            let what = format!("check {at}: nothing is remembered");
            self.add("refusals have a reason", Some(asked.action), what);
        }
    }

    fn explain(&mut self, asked: &Asked, at: usize, most: u64) {
        let check = &asked.checks[at];
        let capacity = u64::from(self.limit(check).capacity());
        let before: u64 = asked.checks[..at]
            .iter()
            .filter(|it| it.counter == check.counter && !matches!(it.take, Take::GiveBack { .. }))
            .map(|it| hits(it.take))
            .sum();
        let needs = needs(check.take);
        if most + before + needs <= capacity {
            let what = format!(
                "check {at}: {needs} hits refused where at most {most} of {capacity} are used, and {before} by checks before it"
            );
            self.add("refusals have a reason", Some(asked.action), what);
        }
    }

    /// What the scripts have changed is what callers were told.
    fn conservation(&mut self, number: usize) {
        let counter = &self.history.counters[number];
        let (mut least, mut most) = (0, 0);
        for asked in &self.history.asked {
            for (position, check) in asked.checks.iter().enumerate() {
                if check.counter == number {
                    let (low, high) = self.charged(asked, position);
                    least += low;
                    most += high;
                }
            }
        }
        let net: i64 = counter.pieces.iter().map(|it| it.change).sum();
        if !(least..=most).contains(&net) {
            let what = format!(
                "counter {number}: the scripts charged {net} hits, answers say {least} to {most}"
            );
            self.add("counters are the sum of what was answered", None, what);
        }
    }

    /// What is charged beyond what callers were told is counted as unknown.
    fn missing(&mut self) {
        let mut missing = 0;
        for (number, counter) in self.history.counters.iter().enumerate() {
            let net: i64 = counter.pieces.iter().map(|it| it.change).sum();
            let told = self.history.asked.iter().flat_map(|asked| {
                let positions =
                    (0..asked.checks.len()).filter(|&at| asked.checks[at].counter == number);
                positions.map(|at| self.charged(asked, at).1 - self.charged_in_vain(asked, at))
            });
            missing += (net - told.sum::<i64>()).max(0);
        }
        let unknown: u64 = self.history.rest.iter().map(|it| it.hits_unknown).sum();
        if missing > i64::try_from(unknown).unwrap() {
            let what = format!(
                "{missing} hits are charged and told to no caller, {unknown} counted as unknown"
            );
            self.add("missing hits are counted as unknown", None, what);
        }
    }

    /// The hits that a check may have charged though it was told otherwise, unless they were given back.
    fn charged_in_vain(&self, asked: &Asked, at: usize) -> i64 {
        let check = &asked.checks[at];
        let is_loose = self.history.counters[check.counter].is_cut || !self.scenario.is_exact;
        if !is_conditional(check.take) || is_loose {
            return 0;
        }
        let most = self.charged(asked, at).1;
        match &asked.outcome {
            Outcome::Left if !self.scenario.is_calm && check.on_failure == OnFailure::Local => {
                most / 2
            }
            Outcome::Left => 0,
            Outcome::Deferred => most,
            Outcome::Decided(decisions) => {
                let allowed: Vec<bool> = decisions.iter().map(|it| it.allowed).collect();
                let is_free = is_refused(&asked.checks, &allowed)
                    || is_over(&asked.checks, &allowed, check.descriptor);
                match decisions[at].source {
                    _ if is_free => most,
                    // Charged once, by the debit.
                    Source::Local => most / 2,
                    _ => 0,
                }
            }
        }
    }

    /// The hits that a check may have charged, at least and at most.
    fn charged(&self, asked: &Asked, at: usize) -> (i64, i64) {
        let check = &asked.checks[at];
        let counter = &self.history.counters[check.counter];
        let hits = i64::try_from(hits(check.take)).unwrap();
        // What was taken and is given back may count no longer.
        let is_loose = counter.is_cut || !self.scenario.is_exact;
        if matches!(check.take, Take::GiveBack { .. }) {
            let is_known =
                matches!(&asked.outcome, Outcome::Decided(it) if it[at].source == Source::Store);
            return (-hits, if is_known && !is_loose { -hits } else { 0 });
        }
        let failed = self.history.rest[asked.process].give_backs_failed > 0;
        let Outcome::Decided(decisions) = &asked.outcome else {
            // Where something failed, what a refused request took may be unknown.
            let is_free =
                self.scenario.is_calm && is_conditional(check.take) && self.must_be_refused(asked);
            // Settled without its caller, by this process: charged by a call without an answer, and debited.
            let may_be_local = !self.scenario.is_calm && check.on_failure == OnFailure::Local;
            let most = if may_be_local { 2 * hits } else { hits };
            return (0, if is_free && !failed && !is_loose { 0 } else { most });
        };
        let allowed: Vec<bool> = decisions.iter().map(|it| it.allowed).collect();
        let decision = &decisions[at];
        match decision.source {
            Source::DenyCache => (0, 0),
            Source::NotAsked if self.scenario.is_calm => (0, 0),
            // Charged by a call without an answer, and debited.
            Source::Local => (0, 2 * hits),
            Source::Policy | Source::NotAsked => (0, hits),
            Source::Store if !is_conditional(check.take) => (hits, hits),
            Source::Store if !decision.allowed => (0, 0),
            Source::Store => {
                let is_free = is_refused(&asked.checks, &allowed)
                    || is_over(&asked.checks, &allowed, check.descriptor);
                let granted = match check.take {
                    Take::UpTo(_) => i64::try_from(decision.granted).unwrap().min(hits),
                    _ => hits,
                };
                match is_free {
                    false => (granted, granted),
                    true if failed || is_loose => (0, hits),
                    true => (0, 0),
                }
            }
        }
    }

    /// Whether a request whose caller has left cannot have been admitted: one of its checks, which may refuse alone, had
    /// no room at any moment.
    fn must_be_refused(&self, asked: &Asked) -> bool {
        let Delays { max, slow_max, .. } = self.scenario.delays;
        let call = Duration::from_millis(2 * max.max(slow_max));
        let span = Span {
            last_event: u64::MAX,
            ends: asked.deadline.min(asked.ended.1 + call * CALLS_MAX),
            ..Span::of(asked)
        };
        asked.checks.iter().any(|check| {
            let limit = self.limit(check);
            let capacity = u64::from(limit.capacity());
            let least = span.least(&self.history.counters[check.counter], &limit);
            let is_full = least + needs(check.take) > capacity;
            let may_refuse = check.veto == Veto::Alone && check.take != Take::UpTo(0);
            may_refuse && is_full
        })
    }

    /// The answers of a store in memory: those of a limiter that settles one request after the other.
    fn memory(&mut self) {
        let mut used = vec![0_i64; self.scenario.counters.len()];
        let resets = self.history.returns.iter().filter(|it| it.is_reset);
        let mut resets = resets.filter_map(|it| Some((it.ended.0, it.counter?))).peekable();
        for asked in &self.history.asked {
            while let Some((_, counter)) = resets.next_if(|it| it.0 < asked.began.0) {
                used[counter] = 0;
            }
            let expected = self.settle(&asked.checks, &mut used);
            if let Outcome::Decided(decisions) = &asked.outcome {
                let told: Vec<_> = decisions.iter().map(|it| (it.allowed, it.granted)).collect();
                if told != expected {
                    let what = format!("allowed and granted are {told:?}, not {expected:?}");
                    self.add("memory decides as a sequential limiter", Some(asked.action), what);
                }
            }
        }
        resets.for_each(|(_, counter)| used[counter] = 0);
        let used: Vec<_> = used.into_iter().map(Some).collect();
        if used != self.history.used {
            let what = format!("counters have {:?} at the end, not {used:?}", self.history.used);
            self.add("counters are the sum of what was answered", None, what);
        }
    }

    /// What one request is answered, allowed and granted, where nothing else happens meanwhile.
    fn settle(&self, checks: &[CheckPlan], used: &mut [i64]) -> Vec<(bool, u64)> {
        let mut answers: Vec<(bool, u64)> = Vec::new();
        for (at, check) in checks.iter().enumerate() {
            answers.push(self.take(check, &mut used[check.counter]));
            let is_last = checks.get(at + 1).is_none_or(|next| next.descriptor != check.descriptor);
            let allowed: Vec<bool> = answers.iter().map(|it| it.0).collect();
            if is_last && is_over(checks, &allowed, check.descriptor) {
                undo(checks, &mut answers, used, |it| it.descriptor == check.descriptor);
            }
        }
        let allowed: Vec<bool> = answers.iter().map(|it| it.0).collect();
        if is_refused(checks, &allowed) {
            undo(checks, &mut answers, used, |_| true);
        }
        answers
    }

    /// Asks one counter, and charges it.
    fn take(&self, check: &CheckPlan, used: &mut i64) -> (bool, u64) {
        let number = |it: u64| i64::try_from(it).unwrap();
        let free = i64::from(self.limit(check).capacity()) - *used;
        let fits = number(needs(check.take)) <= free;
        let (allowed, granted) = match check.take {
            Take::Exactly(hits) => (fits, if fits { hits } else { 0 }),
            Take::UpTo(hits) => (fits || hits == 0, hits.min(u64::try_from(free).unwrap_or(0))),
            Take::Always { hits, .. } => (fits, hits),
            Take::GiveBack { hits, .. } => {
                *used = (*used - number(hits)).max(0);
                (true, 0)
            }
        };
        *used += number(granted);
        (allowed, granted)
    }

    /// Nothing is left at the end.
    fn rest(&mut self) {
        for (process, rest) in self.history.rest.iter().enumerate() {
            let counts = (rest.waiting, rest.split, rest.pending);
            if counts != (0, 0, 0) {
                let what = format!("process {process}: waiting, split and pending are {counts:?}");
                self.add("nothing is left", None, what);
            }
            let unknown = (rest.hits_unknown, rest.give_backs_failed);
            if self.scenario.is_calm && unknown != (0, 0) {
                let what = format!(
                    "process {process}: unknown hits and failed give-backs are {unknown:?}"
                );
                self.add("failures have a reason", None, what);
            }
        }
        if self.history.tasks_left > 0 {
            let what = format!("{} tasks", self.history.tasks_left);
            self.add("nothing is left", None, what);
        }
    }
}

/// A part of a run.
#[derive(Clone, Copy, Debug)]
struct Span {
    first_event: u64,
    begins: Duration,
    /// What has passed by then counts no longer.
    looked_at: Duration,
    last_event: u64,
    ends: Duration,
}

impl Span {
    /// From question to answer.
    fn of(asked: &Asked) -> Self {
        Self {
            first_event: asked.began.0,
            begins: asked.began.1,
            looked_at: asked.began.1,
            last_event: asked.ended.0,
            ends: asked.ended.1,
        }
    }

    /// How a counter was in it, each with the time at which the next change came.
    fn pieces<'c>(
        &self,
        counter: &'c Counter,
    ) -> impl Iterator<Item = (&'c Piece, Option<&'c Piece>)> {
        let &Self { first_event, begins, last_event, ends, .. } = self;
        let nexts = counter.pieces.iter().skip(1).map(Some).chain([None]);
        counter.pieces.iter().zip(nexts).filter(move |(piece, next)| {
            let is_past = next.is_some_and(|it| it.number < first_event || it.at < begins);
            !is_past && piece.number <= last_event && piece.at <= ends
        })
    }

    /// The most hits that were used.
    fn most(&self, counter: &Counter, limit: &Limit) -> u64 {
        let used = self.pieces(counter).map(|(piece, _)| {
            let for_a_moment = if piece.number >= self.first_event { piece.given } else { 0 };
            at(piece, limit, piece.at.max(self.looked_at)) + for_a_moment
        });
        used.max().unwrap_or(0)
    }

    /// The least hits that were used.
    fn least(&self, counter: &Counter, limit: &Limit) -> u64 {
        let used = self.pieces(counter).map(|(piece, next)| {
            let next = next.filter(|it| it.number <= self.last_event && it.at <= self.ends);
            let until = next.map_or(self.ends, |it| it.at);
            at(piece, limit, until).saturating_sub(next.map_or(0, |it| it.given))
        });
        used.min().unwrap_or(0)
    }
}

/// Hits used at a time.
fn at(piece: &Piece, limit: &Limit, time: Duration) -> u64 {
    let passed = u64::try_from(time.saturating_sub(piece.at).as_micros()).unwrap();
    piece.usage.hits(limit, piece.server_time + passed)
}

impl Violation {
    /// The run has panicked.
    pub(crate) fn panicked() -> Self {
        Self { rule: "nothing panics", action: None, what: "see above".to_owned() }
    }
}
