//! Converts explanations of `sluicegate_core` into messages of the admin service.

use std::time::Duration;

use sluicegate_core::{
    Algorithm, Answers, Check, Counting, Decision, OnFailure, RequestError, Rule,
    explain::{AppliedLimit, DescriptorOutcome, ExplainedDescriptor, Explanation, PeekPlan},
    limit::Unit,
    rules::{Candidate, CandidateOutcome, LevelTrace, RuleSet},
};
use sluicegate_proto::{
    envoy::service::ratelimit::v3::RateLimitRequest,
    sluicegate::admin::v1::{self as wire, limit_explanation::State},
};
use sluicegate_store::redis::{KeyPrefix, hash_slot};

use crate::{grpc, telemetry::KeyHasher};

/// Explains a request by the rules. The plan has the peeks that read the counters.
pub(crate) fn explain(
    rules: &RuleSet,
    message: &RateLimitRequest,
    prefix: &KeyPrefix,
) -> Result<(wire::ExplainResponse, PeekPlan), RequestError> {
    let explanation = Explanation::new(rules, &grpc::decode(message, usize::MAX)?);
    Ok(respond(&explanation, message, prefix))
}

/// Explains a request by the rules as long as `is_wanted` returns true; `None` after that.
pub(crate) fn explain_until_cancelled(
    rules: &RuleSet,
    message: &RateLimitRequest,
    prefix: &KeyPrefix,
    is_wanted: impl Fn() -> bool,
) -> Result<Option<(wire::ExplainResponse, PeekPlan)>, RequestError> {
    let explanation =
        Explanation::unless_cancelled(rules, &grpc::decode(message, usize::MAX)?, is_wanted);
    Ok(explanation.map(|explanation| respond(&explanation, message, prefix)))
}

fn respond(
    explanation: &Explanation<'_>,
    message: &RateLimitRequest,
    prefix: &KeyPrefix,
) -> (wire::ExplainResponse, PeekPlan) {
    let peek_plan = PeekPlan::new(explanation);
    let mut descriptors: Vec<_> =
        explanation.descriptors.iter().map(|explained| descriptor(explained, prefix)).collect();
    for (explained, requested) in descriptors.iter_mut().zip(&message.descriptors) {
        explained.entries.clone_from(&requested.entries);
    }
    let would_pass = peek_plan.would_pass(&Answers::new());
    (wire::ExplainResponse { would_pass, descriptors }, peek_plan)
}

/// Adds the states of the counters to an explanation.
pub(crate) fn add_counter_states(
    response: &mut wire::ExplainResponse,
    peek_plan: &PeekPlan,
    answers: &Answers,
) {
    response.would_pass = peek_plan.would_pass(answers);
    let limits = response.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.limits);
    for (limit, answer) in limits.zip(answers) {
        limit.state = Some(match answer {
            Ok(decision) => State::Counter(counter(limit.capacity, decision)),
            Err(error) => State::Unanswered(error.to_string()),
        });
    }
}

/// Adds the key hashes of the counters, by which the decision log names them, to an explanation.
pub(crate) fn add_key_hashes(
    response: &mut wire::ExplainResponse,
    peeks: &[Check],
    hasher: &KeyHasher,
) {
    let limits = response.descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.limits);
    for (limit, check) in limits.zip(peeks) {
        limit.key_hash = hasher.hash(check.key.as_bytes());
    }
}

fn descriptor(
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
