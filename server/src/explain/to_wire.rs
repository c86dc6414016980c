//! Converts rules, limits and their explanations into messages of the admin service.

use std::time::Duration;

use sluicegate_core::{
    Algorithm, Counting, Decision, OnFailure, Rule,
    explain::{AppliedLimit, DescriptorOutcome, ExplainedDescriptor},
    limit::Unit,
    rules::{Candidate, CandidateOutcome, LevelTrace},
};
use sluicegate_proto::sluicegate::admin::v1 as wire;
use sluicegate_store::redis::{KeyPrefix, hash_slot};

pub(super) fn descriptor(
    explained: &ExplainedDescriptor<'_>,
    prefix: &KeyPrefix,
) -> wire::DescriptorExplanation {
    let levels = explained.trace.iter().flat_map(|trace| &trace.levels);
    let replaced = explained.replaced_limits.iter().map(|replaced| wire::ReplacedLimit {
        name: replaced.name.to_owned(),
        replaced_by: Some(rule(replaced.replaced_by)),
    });
    wire::DescriptorExplanation {
        entries: Vec::new(),
        outcome: outcome(explained.outcome).into(),
        rule: explained.rule.map(rule),
        levels: levels.map(level).collect(),
        limits: explained.limits.iter().map(|applied| limit(applied, prefix)).collect(),
        replaced_limits: replaced.collect(),
        override_ignored: explained.override_ignored,
    }
}

pub(crate) fn rule(rule: &Rule) -> wire::Rule {
    wire::Rule {
        path: rule.path.to_string(),
        file: rule.location.file.to_string(),
        line: number(rule.location.line),
    }
}

fn number(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn level(level: &LevelTrace<'_>) -> wire::Level {
    wire::Level {
        candidates: level.candidates.iter().map(candidate).collect(),
        left_out: number(level.left_out),
    }
}

fn candidate(candidate: &Candidate<'_>) -> wire::Candidate {
    // Keys and values of limits files are text.
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    wire::Candidate {
        key: text(candidate.key),
        value: candidate.value.map(text),
        file: candidate.location.file.to_string(),
        line: number(candidate.location.line),
        fit: fit(candidate.outcome).into(),
    }
}

pub(crate) fn limit(applied: &AppliedLimit<'_>, prefix: &KeyPrefix) -> wire::LimitExplanation {
    let check = &applied.check;
    wire::LimitExplanation {
        name: applied.name.unwrap_or_default().to_owned(),
        requests_per_unit: applied.displayed.requests_per_unit,
        unit: unit(applied.displayed.unit).into(),
        unit_multiplier: applied.displayed.unit_multiplier,
        capacity: check.limit.capacity(),
        algorithm: algorithm(check.limit.algorithm()).into(),
        counting: counting(applied.counting).into(),
        on_failure: on_failure(check.on_failure).into(),
        shadow_mode: applied.shadow_mode,
        quota_mode: applied.quota_mode,
        counter_key: prefix.name(&check.key),
        hash_slot: hash_slot(&check.key).into(),
        state: None,
        key_hash: String::new(),
    }
}

pub(crate) fn counter(capacity: u32, decision: &Decision) -> wire::CounterState {
    wire::CounterState {
        used: u64::from(capacity).saturating_sub(decision.remaining) + decision.excess,
        remaining: decision.remaining,
        reset_after: duration(decision.reset_after),
        would_pass: decision.allowed,
        retry_after: decision.retry_after.filter(|_| !decision.allowed).and_then(duration),
    }
}

fn duration(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}

const fn outcome(outcome: DescriptorOutcome) -> wire::Outcome {
    match outcome {
        DescriptorOutcome::Limited => wire::Outcome::Limited,
        DescriptorOutcome::Overridden => wire::Outcome::Overridden,
        DescriptorOutcome::Unlimited => wire::Outcome::Unlimited,
        DescriptorOutcome::Replaced => wire::Outcome::Replaced,
        DescriptorOutcome::DomainNotConfigured => wire::Outcome::DomainNotConfigured,
        DescriptorOutcome::NoEntries => wire::Outcome::NoEntries,
        DescriptorOutcome::NoMatch => wire::Outcome::NoMatch,
        DescriptorOutcome::TooDeep => wire::Outcome::TooDeep,
        DescriptorOutcome::TooShallow => wire::Outcome::TooShallow,
        DescriptorOutcome::NoLimit => wire::Outcome::NoLimit,
    }
}

const fn fit(fit: CandidateOutcome) -> wire::Fit {
    match fit {
        CandidateOutcome::Matched => wire::Fit::Taken,
        CandidateOutcome::ExactFirst => wire::Fit::ExactFirst,
        CandidateOutcome::PatternFirst => wire::Fit::PatternFirst,
        CandidateOutcome::PatternMismatch => wire::Fit::PatternDoesNotFit,
        CandidateOutcome::OtherValue => wire::Fit::OtherValue,
        CandidateOutcome::OtherKey => wire::Fit::OtherKey,
    }
}

pub(crate) const fn unit(unit: Unit) -> wire::Unit {
    match unit {
        Unit::Second => wire::Unit::Second,
        Unit::Minute => wire::Unit::Minute,
        Unit::Hour => wire::Unit::Hour,
        Unit::Day => wire::Unit::Day,
        Unit::Week => wire::Unit::Week,
        Unit::Month => wire::Unit::Month,
        Unit::Year => wire::Unit::Year,
    }
}

pub(crate) const fn algorithm(algorithm: Algorithm) -> wire::Algorithm {
    match algorithm {
        Algorithm::FixedWindow => wire::Algorithm::FixedWindow,
        Algorithm::SlidingWindowLog => wire::Algorithm::SlidingWindowLog,
        Algorithm::SlidingWindowCounter => wire::Algorithm::SlidingWindowCounter,
        Algorithm::TokenBucket => wire::Algorithm::TokenBucket,
        Algorithm::Gcra => wire::Algorithm::Gcra,
    }
}

pub(crate) const fn counting(counting: Counting) -> wire::Counting {
    match counting {
        Counting::Free => wire::Counting::Free,
        Counting::Debit => wire::Counting::Debit,
        Counting::Upstream => wire::Counting::Upstream,
    }
}

pub(crate) const fn on_failure(policy: OnFailure) -> wire::OnFailure {
    match policy {
        OnFailure::Allow => wire::OnFailure::Allow,
        OnFailure::Deny => wire::OnFailure::Deny,
        OnFailure::Local => wire::OnFailure::Local,
        OnFailure::Defer => wire::OnFailure::Defer,
    }
}
