//! Holds the answers of a run to what an exact limiter would have answered.
//!
//! Which limits a request meets is asked of the server's own rules. What they admit is worked out anew, in `bound`.

mod bound;
mod edges;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeMap, HashMap};

use sluicegate_core::{
    Algorithm, CounterKey, Counting, CurrentLimit, Plan, Request, RequestError, Rule,
    plan::Planned,
    request::{Descriptor, Entry, Hits},
    rules::RuleSet,
    store::{Check, Veto},
};
use sluicegate_proto::text::descriptor::Entries;

use self::{
    bound::{Bound, Charge, Micros, Span, Usage},
    edges::{Edges, end},
};
use super::{
    history::{DescriptorAnswer, History, Outcome, Record},
    template::{Draw, Requests},
};
use crate::Limit;

/// How long after an error the hits of its request may still be charged.
const LATE_CHARGE: Micros = 10_000_000;

/// How long after a refusal what its request held for a moment may still refuse others: a request with several
/// descriptors may be charged for one of them until another one refuses, and a server remembers refusals for a second.
const HELD: Micros = 1_000_000;

/// Hits of a counter of which nothing is known: more than any limit.
const UNKNOWN: i64 = 1 << 40;

/// Rules, and the requests that are held to them.
#[derive(Debug)]
pub(super) struct Verifier<'r> {
    pub(super) rules: &'r RuleSet,
    pub(super) domain: &'r str,
    pub(super) requests: &'r Requests,
    pub(super) hits: u64,
    /// How far the servers' clocks may run away from this one during the run.
    pub(super) tolerance: Micros,
}

/// What was found.
#[derive(Debug)]
pub(super) struct Verified {
    /// One for each limit that was met, in the order of the rules.
    pub(super) rows: Vec<Row>,
}

impl Verified {
    /// Hits admitted past limits.
    pub(super) fn over(&self) -> i64 {
        self.rows.iter().map(|row| row.over).sum()
    }

    /// Hits refused without a reason.
    pub(super) fn under(&self) -> i64 {
        self.rows.iter().map(|row| row.under).sum()
    }
}

/// What was found about one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    /// The path of the rule; `None` for descriptors that no rule is about.
    pub(super) rule: Option<String>,
    /// Where it is in the limits files.
    pub(super) place: Option<String>,
    /// The limit in words.
    pub(super) limit: String,
    /// Requests that met it.
    pub(super) requests: u64,
    /// Those of them that were allowed.
    pub(super) allowed: u64,
    /// Those that it refused.
    pub(super) refused: u64,
    /// Those without an answer.
    pub(super) errors: u64,
    /// Hits that it admitted.
    pub(super) admitted: i64,
    /// Hits that it admitted past the limit.
    pub(super) over: i64,
    /// Hits that it refused while the limit cannot have been reached.
    pub(super) under: i64,
    /// Hits that counters had used before the first answer about them.
    pub(super) used_before: i64,
    /// In how long a span the windows of its counters may begin, at most: `None` where windows are not aligned.
    pub(super) edges: Option<Uncertainty>,
    /// The requests per unit that answers name, if it is another number.
    pub(super) server_requests: Option<u32>,
    /// Why its answers were not held to it.
    pub(super) not_verified: Option<&'static str>,
}

impl Row {
    /// Hits that an exact limiter would have admitted.
    pub(super) const fn exact(&self) -> i64 {
        self.admitted - self.over + self.under
    }
}

/// How well it is known where windows begin. The larger is the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Uncertainty {
    /// Within so many microseconds.
    Within(Micros),
    /// Not at all.
    Unknown,
}

/// Requests with the same draw meet the same limits.
struct PlannedRequest {
    met: Vec<MatchedDescriptor>,
    /// Whether there is one limit, so that nothing is ever given back because another one refuses.
    has_one_limit: bool,
}

/// What one descriptor met.
struct MatchedDescriptor {
    parts: Vec<AppliedLimit>,
    /// The row, where there is no limit that is verified.
    row: usize,
    counting: Counting,
    /// What a refusal does to the request.
    veto: Veto,
}

/// One limit of a descriptor.
struct AppliedLimit {
    counter: usize,
    row: usize,
    current: ShownLimit,
    requests_per_unit: u32,
}

/// A limit as answers show it. Its number is left out: the server may have another one.
#[derive(PartialEq, Eq)]
struct ShownLimit {
    name: String,
    unit: Option<&'static str>,
    unit_multiplier: u32,
}

impl From<&CurrentLimit<'_>> for ShownLimit {
    fn from(limit: &CurrentLimit<'_>) -> Self {
        let shown = limit.shown;
        Self {
            name: limit.name.unwrap_or_default().to_owned(),
            unit: Some(shown.unit.name()),
            unit_multiplier: shown.unit_multiplier,
        }
    }
}

impl From<&Limit> for ShownLimit {
    fn from(limit: &Limit) -> Self {
        Self {
            name: limit.name.clone(),
            unit: limit.unit.map(crate::Unit::name),
            unit_multiplier: limit.unit_multiplier,
        }
    }
}

/// What is known about one counter.
struct Counter {
    bound: Bound,
    counting: Counting,
    row: usize,
    edges: Edges,
    /// Charges that certainly were made, and admitted.
    admitted: Vec<Charge>,
    /// Charges that may have been made.
    possible: Vec<Charge>,
    /// The first moment at which anything was asked.
    since: Micros,
    /// The first answer about it.
    first: Option<FirstAnswer>,
    /// Hits that were left after admitted ones, if nothing was ever given back.
    left: Option<Vec<(Span, u32)>>,
    refuses: bool,
}

/// An answer about a counter.
#[derive(Clone, Copy)]
struct FirstAnswer {
    span: Span,
    /// Hits that had been used by then, those of its request included.
    used: i64,
}

/// A refusal by one descriptor.
struct Refusal {
    span: Span,
    shape: usize,
    descriptor: usize,
    /// Of the limit that the answer names.
    row: usize,
}

/// Descriptors of a request as the rules ask for them.
fn described<'a>(
    domain: &'a str,
    descriptors: &'a [Entries],
    hits: u64,
) -> Result<Request<'a>, RequestError> {
    let describe = |entries: &'a Entries| Descriptor {
        entries: entries.iter().map(|(key, value)| Entry { key, value }).collect(),
        hits: Hits::Add(hits),
        limit_override: None,
    };
    Request::new(domain, descriptors, usize::MAX, Vec::len, describe)
}

/// For each descriptor of a request whether it meets a rule.
///
/// # Errors
/// The request has too many descriptors or entries.
pub(super) fn meets_rules(
    rules: &RuleSet,
    domain: &str,
    descriptors: &[Entries],
) -> Result<Vec<bool>, RequestError> {
    let request = described(domain, descriptors, 1)?;
    let (plan, _) = Plan::new(rules, &request);
    Ok(plan.descriptors.iter().map(|met| !matches!(met, Planned::Unmatched)).collect())
}

impl Verifier<'_> {
    /// Holds every answer to the rules.
    pub(super) fn verify(&self, history: &History) -> Verified {
        let mut findings = Findings::default();
        let shapes: Vec<_> = history.draws().map(|draw| self.shape(draw, &mut findings)).collect();
        for record in history.records() {
            if let Some(shape) = shapes.get(record.draw) {
                self.take_in(record, history, shape, &mut findings);
            }
        }
        let hits = i64::try_from(self.hits).unwrap_or(i64::MAX);
        findings.judge(&shapes, hits)
    }

    /// What requests with this draw meet.
    fn shape(&self, draw: &Draw, findings: &mut Findings) -> PlannedRequest {
        let descriptors = self.requests.descriptors(draw);
        // Draws do not change how large a request is, and one was looked at before the run.
        let Ok(request) = described(self.domain, &descriptors, self.hits) else {
            return PlannedRequest { met: Vec::new(), has_one_limit: false };
        };
        let (plan, group) = Plan::new(self.rules, &request);
        let met = plan.descriptors.iter().enumerate().map(|(at, planned)| {
            let checks = group.iter().filter(move |check| check.descriptor == at);
            let not_verified = match planned {
                _ if plan.is_too_costly => Some("matching takes too long, so the server denies it"),
                Planned::Limited { shadow_mode, .. } if *shadow_mode || plan.shadow_mode => {
                    Some("in shadow mode: answers do not tell what would have been refused")
                }
                _ => None,
            };
            findings.met(planned, checks, not_verified)
        });
        PlannedRequest { met: met.collect(), has_one_limit: group.len() == 1 }
    }

    fn take_in(
        &self,
        record: &Record,
        history: &History,
        shape: &PlannedRequest,
        findings: &mut Findings,
    ) {
        let hits = i64::try_from(self.hits).unwrap_or(i64::MAX);
        let span =
            Span { from: record.sent - self.tolerance, to: record.answered + self.tolerance };
        let Outcome::Answered { allowed, statuses } = &record.outcome else {
            for met in &shape.met {
                findings.count(met, |row| row.errors += 1);
                let span = Span { to: span.to + LATE_CHARGE, ..span };
                for part in &met.parts {
                    findings.may_be_charged(part, Charge { span, hits, window_ends: None });
                }
            }
            return;
        };
        // A server that is overloaded may refuse without a word about any descriptor.
        let told =
            |at: usize| (statuses.len() == shape.met.len()).then(|| statuses.get(at)).flatten();
        let over = |at: usize| told(at).is_some_and(|told| told.over);
        let vetoed = is_vetoed(&shape.met, over);
        let mut has_reason = *allowed || vetoed;
        for (at, met) in shape.met.iter().enumerate() {
            let over = over(at);
            findings.count(met, |row| row.allowed += u64::from(*allowed));
            if met.parts.is_empty() {
                if over && !allowed {
                    has_reason = true;
                    findings.refused_without_limit(met.row, hits);
                }
                continue;
            }
            let ChargeOutcome { admitted, possible } =
                ChargeOutcome::new(met, *allowed, vetoed, over);
            let answered_limit = told(at).and_then(|told| limit_of_answer(met, told, history));
            let window_ends = answered_limit.and_then(|(part, told, limit)| {
                findings.answered(part, span, told, limit, admitted && self.hits > 0)
            });
            for part in &met.parts {
                if !shape.has_one_limit {
                    findings.may_give_back(part);
                }
                // Of several limits the answer tells about one.
                let is_told = answered_limit.is_some_and(|(told, ..)| told.counter == part.counter);
                let window_ends = window_ends.filter(|_| is_told);
                let charge = Charge { span, hits, window_ends };
                if admitted {
                    findings.is_admitted(part, charge);
                }
                if let Some(late) = possible {
                    let span = Span { to: span.to + late, ..span };
                    findings.may_be_charged(part, Charge { span, ..charge });
                }
            }
            if over {
                let part = answered_limit.map(|(part, ..)| part).or(met.parts.first());
                let row = part.map_or(met.row, |part| part.row);
                findings.refuses(met, Refusal { span, shape: record.draw, descriptor: at, row });
            }
        }
        if !has_reason {
            let row =
                findings.row(None, "refused, though no descriptor was over its limit".to_owned());
            findings.note(row, |row| row.requests += 1);
            findings.refused_without_limit(row, hits);
        }
    }
}

/// Whether refusals of descriptors refuse the request: that of any, or those of all quota rules.
fn is_vetoed(met: &[MatchedDescriptor], over: impl Fn(usize) -> bool) -> bool {
    let of = |veto: Veto| {
        let each = met.iter().enumerate().filter(move |(_, met)| met.veto == veto);
        each.map(|(at, _)| over(at))
    };
    of(Veto::Alone).any(|over| over)
        || (of(Veto::Quota).count() > 0 && of(Veto::Quota).all(|over| over))
}

/// The limit that the status of a descriptor is about, if only one can be meant; and what the status says of it.
fn limit_of_answer<'m, 't>(
    met: &'m MatchedDescriptor,
    told: &'t DescriptorAnswer,
    history: &'t History,
) -> Option<(&'m AppliedLimit, &'t DescriptorAnswer, &'t Limit)> {
    let limit = history.limit(told.limit?)?;
    let current = ShownLimit::from(limit);
    let mut parts = met.parts.iter().filter(|part| part.current == current);
    let part = parts.next().filter(|_| parts.next().is_none())?;
    Some((part, told, limit))
}

/// Whether the hits of a descriptor were charged.
struct ChargeOutcome {
    /// Certainly, and as admitted.
    admitted: bool,
    /// Possibly, and by so much later than the answer.
    possible: Option<Micros>,
}

impl ChargeOutcome {
    fn new(met: &MatchedDescriptor, allowed: bool, vetoed: bool, over: bool) -> Self {
        // A request that passes although it is refused has used what it was refused, whatever the server says.
        let admitted = match met.counting {
            Counting::Free => allowed && (vetoed || !over),
            Counting::Debit | Counting::Upstream => !over || (allowed && vetoed),
        };
        let possible = match met.counting {
            _ if admitted => Some(0),
            Counting::Debit | Counting::Upstream => Some(0),
            // Another descriptor refused, and this one may have been charged until then.
            Counting::Free if !over => Some(HELD),
            Counting::Free => None,
        };
        Self { admitted, possible }
    }
}

/// Rows and counters while answers are taken in.
#[derive(Default)]
struct Findings {
    rows: Vec<Row>,
    /// By rule and limit. Rules come in the order of the files, and what has no rule first.
    by_limit: BTreeMap<(Option<usize>, String), usize>,
    counters: Vec<Counter>,
    by_key: HashMap<CounterKey, usize>,
    refusals: Vec<Refusal>,
}

impl Findings {
    fn row(&mut self, rule: Option<&Rule>, limit: String) -> usize {
        let Self { rows, by_limit, .. } = self;
        *by_limit.entry((rule.map(|rule| rule.id), limit)).or_insert_with_key(|(_, limit)| {
            rows.push(Row {
                rule: rule.map(|rule| rule.path.to_string()),
                place: rule.map(|rule| format!("{}:{}", rule.place.file, rule.place.line)),
                limit: limit.clone(),
                ..Row::default()
            });
            rows.len() - 1
        })
    }

    fn note(&mut self, row: usize, note: impl Fn(&mut Row)) {
        if let Some(row) = self.rows.get_mut(row) {
            note(row);
        }
    }

    fn met<'c>(
        &mut self,
        planned: &Planned<'_>,
        checks: impl Iterator<Item = &'c Check>,
        not_verified: Option<&'static str>,
    ) -> MatchedDescriptor {
        let free = |row| MatchedDescriptor {
            parts: Vec::new(),
            row,
            counting: Counting::Free,
            veto: Veto::None,
        };
        let (rule, limits) = match planned {
            Planned::Unmatched => return free(self.row(None, "no limit applies".to_owned())),
            Planned::Unlimited(rule) => return free(self.row(Some(rule), "unlimited".to_owned())),
            Planned::Limited { rule, limits, .. } => (*rule, limits),
        };
        let mut met = free(0);
        for (check, current) in checks.zip(limits) {
            let row = self.row(rule, words(check, current));
            met.row = row;
            if not_verified.is_some() {
                self.note(row, |row| row.not_verified = not_verified);
                continue;
            }
            met.veto = check.veto;
            if let Planned::Limited { counting, .. } = planned {
                met.counting = *counting;
            }
            let counter = self.counter(check, met.counting, row);
            let (requests_per_unit, current) =
                (current.shown.requests_per_unit, ShownLimit::from(current));
            met.parts.push(AppliedLimit { counter, row, current, requests_per_unit });
        }
        met
    }

    fn counter(&mut self, check: &Check, counting: Counting, row: usize) -> usize {
        let Self { counters, by_key, .. } = self;
        *by_key.entry(check.key.clone()).or_insert_with(|| {
            let bound = Bound::new(&check.limit, counting);
            counters.push(Counter {
                bound,
                counting,
                row,
                edges: Edges::new(bound.window()),
                admitted: Vec::new(),
                possible: Vec::new(),
                since: Micros::MAX,
                first: None,
                left: Some(Vec::new()),
                refuses: false,
            });
            counters.len() - 1
        })
    }

    /// Counts a request in the rows that a descriptor of it is about.
    fn count(&mut self, met: &MatchedDescriptor, note: impl Fn(&mut Row)) {
        let mut count = |row| {
            self.note(row, |row| {
                row.requests += 1;
                note(row);
            });
        };
        match &met.parts[..] {
            [] => count(met.row),
            parts => parts.iter().for_each(|part| count(part.row)),
        }
    }

    fn refused_without_limit(&mut self, row: usize, hits: i64) {
        self.note(row, |row| {
            row.refused += 1;
            row.under += if row.not_verified.is_some() { 0 } else { hits };
        });
    }

    fn is_admitted(&mut self, part: &AppliedLimit, charge: Charge) {
        self.note(part.row, |row| row.admitted += charge.hits);
        if let Some(counter) = self.counters.get_mut(part.counter) {
            counter.admitted.push(charge);
        }
    }

    fn may_be_charged(&mut self, part: &AppliedLimit, charge: Charge) {
        if let Some(counter) = self.counters.get_mut(part.counter) {
            counter.since = counter.since.min(charge.span.from);
            counter.possible.push(charge);
        }
    }

    fn may_give_back(&mut self, part: &AppliedLimit) {
        if let Some(counter) = self.counters.get_mut(part.counter) {
            counter.left = None;
        }
    }

    /// Learns from an answer about a limit. Returns where the window ends in which the hits were charged, if it tells.
    fn answered(
        &mut self,
        part: &AppliedLimit,
        span: Span,
        told: &DescriptorAnswer,
        limit: &Limit,
        is_charged: bool,
    ) -> Option<Span> {
        let requests = limit.requests_per_unit;
        if requests != part.requests_per_unit {
            self.note(part.row, |row| row.server_requests = Some(requests));
        }
        let counter = self.counters.get_mut(part.counter)?;
        if counter.first.is_none_or(|first| span.to < first.span.to) {
            // No answer tells how much a bucket holds: as much as by the files, or by how much more the rate is.
            let more = i64::from(requests) - i64::from(part.requests_per_unit);
            let used = counter.bound.capacity() + more - i64::from(told.remaining);
            // Where usage can pass the limit, no answer tells by how much it has.
            let is_known = told.remaining > 0 || counter.counting == Counting::Free;
            counter.first = Some(FirstAnswer { span, used: if is_known { used } else { UNKNOWN } });
        }
        if let (Some(left), true) = (&mut counter.left, is_charged && !told.over) {
            left.push((span, told.remaining));
        }
        // A refusal is told how long to wait, which need not be the end of a window.
        let until = told.until_reset.filter(|until| *until > 0 && !told.over && is_charged)?;
        let ends = counter.bound.window_end(end(span, Micros::from(until) * 1_000_000))?;
        counter.edges.note(ends);
        Some(ends)
    }

    fn refuses(&mut self, met: &MatchedDescriptor, refusal: Refusal) {
        self.note(refusal.row, |row| row.refused += 1);
        for part in &met.parts {
            if let Some(counter) = self.counters.get_mut(part.counter) {
                counter.refuses = true;
                counter.since = counter.since.min(refusal.span.from);
            }
        }
        self.refusals.push(refusal);
    }

    /// Holds what was taken in to the bounds.
    fn judge(mut self, shapes: &[PlannedRequest], hits: i64) -> Verified {
        let mut usages = Vec::with_capacity(self.counters.len());
        for counter in &mut self.counters {
            let Some(row) = self.rows.get_mut(counter.row) else {
                usages.push(None);
                continue;
            };
            counter.find_edges();
            let edge = counter.edges.edge();
            row.over += counter.bound.over(edge, &counter.admitted);
            if counter.bound.is_aligned() {
                let uncertainty = counter.edges.uncertainty();
                let uncertainty = uncertainty.map_or(Uncertainty::Unknown, Uncertainty::Within);
                row.edges = row.edges.max(Some(uncertainty));
            }
            usages.push(counter.refuses.then(|| counter.usage(row)));
        }
        for refusal in &self.refusals {
            let met = shapes.get(refusal.shape).and_then(|it| it.met.get(refusal.descriptor));
            let Some(met) = met else { continue };
            let needs = match met.counting {
                Counting::Free => hits.max(1),
                Counting::Debit => 1,
                Counting::Upstream => hits,
            };
            let mut usages = met.parts.iter().filter_map(|part| usages.get(part.counter)?.as_ref());
            if !usages.any(|usage| usage.may_refuse(refusal.span, needs))
                && let Some(row) = self.rows.get_mut(refusal.row)
            {
                row.under += hits.max(1);
            }
        }
        let order = self.by_limit.into_values();
        Verified { rows: order.filter_map(|at| self.rows.get(at).cloned()).collect() }
    }
}

impl Counter {
    /// Learns where windows end from how much is left: within a window it only becomes less. For windows of a second, of
    /// whose end answers tell nothing.
    fn find_edges(&mut self) {
        let Some(mut sent) = self.left.take().filter(|_| self.bound.only_uses_up()) else { return };
        let mut answered = sent.clone();
        sent.sort_unstable_by_key(|(span, _)| span.from);
        answered.sort_unstable_by_key(|(span, _)| span.to);
        let mut before = answered.into_iter().peekable();
        let mut last = None;
        for (span, left) in sent {
            while let Some(earlier) = before.next_if(|(earlier, _)| earlier.to < span.from) {
                last = Some(earlier);
            }
            if let Some((earlier, left_before)) = last
                && left >= left_before
            {
                self.edges.note(Span { from: earlier.from, to: span.to });
            }
        }
    }

    /// What can have counted at any moment, with what had been used before the first answer.
    fn usage(&mut self, row: &mut Row) -> Usage {
        let (bound, edge) = (self.bound, self.edges.edge());
        let (to, before) = match self.first {
            Some(FirstAnswer { span, used: UNKNOWN }) => (span.to, UNKNOWN),
            Some(FirstAnswer { span, used }) => {
                let own = Usage::new(bound, edge, &self.possible).most(span);
                (span.to, (used - own).max(0))
            }
            None => (self.since, UNKNOWN),
        };
        if before > 0 {
            row.used_before += if before == UNKNOWN { 0 } else { before };
            let span = Span { from: self.since, to };
            self.possible.push(Charge { span, hits: before, window_ends: None });
        }
        Usage::new(bound, edge, &self.possible)
    }
}

/// A limit in words.
fn words(check: &Check, current: &CurrentLimit<'_>) -> String {
    let CurrentLimit { shown, name } = current;
    let name = name.map(|name| format!("{name}: ")).unwrap_or_default();
    let unit = shown.unit.name();
    let per = match shown.unit_multiplier {
        1 => unit.to_owned(),
        units => format!("{units} {unit}s"),
    };
    let algorithm = check.limit.algorithm();
    let burst = match algorithm {
        Algorithm::TokenBucket | Algorithm::Gcra => format!(", burst {}", check.limit.capacity()),
        _ => String::new(),
    };
    format!("{name}{} per {per}, {}{burst}", shown.requests_per_unit, algorithm.name())
}
