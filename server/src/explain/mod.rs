//! Explains requests, with messages of the admin service as the result.

pub(crate) mod to_wire;

use sluicegate_core::{
    Answers, Check, RequestError,
    explain::{Explanation, PeekPlan},
    rules::RuleSet,
};
use sluicegate_proto::{
    envoy::service::ratelimit::v3::RateLimitRequest,
    sluicegate::admin::v1::{self as wire, limit_explanation::State},
};
use sluicegate_store::redis::KeyPrefix;

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
    let mut descriptors: Vec<_> = explanation
        .descriptors
        .iter()
        .map(|explained| to_wire::descriptor(explained, prefix))
        .collect();
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
            Ok(decision) => State::Counter(to_wire::counter(limit.capacity, decision)),
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
