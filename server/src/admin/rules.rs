//! The admin call that lists the rules in force.

use std::sync::Arc;

use sluicegate_core::{
    Rule,
    rule::{RuleLimit, RuleLimits},
    rules::Domain,
};
use sluicegate_proto::sluicegate::admin::v1 as wire;
use tonic::Response;

use super::message_stream::{MessageStream, message_stream};
use crate::{explain::to_wire, limits::Snapshot};

/// The most rules that are filtered for one message.
const PAGE: usize = 256;

/// Lists rules. Yields between pages, so that a long list does not delay decisions.
pub(super) fn list(
    snapshot: Arc<Snapshot>,
    request: wire::ListRulesRequest,
) -> Response<MessageStream<wire::ListRulesResponse>> {
    let (sender, response) = message_stream();
    tokio::spawn(async move {
        let wanted = |domain: &Domain, rule: &Rule| {
            (request.domain.is_empty() || *request.domain == *domain.name)
                && rule.path.starts_with(&request.path_prefix)
        };
        let mut rules = snapshot.rules.rules().peekable();
        while rules.peek().is_some() {
            let page = rules.by_ref().take(PAGE).filter(|(domain, rule)| wanted(domain, rule));
            let page: Vec<_> = page.map(|(domain, rule)| listed(domain, rule)).collect();
            let page = wire::ListRulesResponse { rules: page };
            if !page.rules.is_empty() && sender.send(Ok(page)).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    });
    response
}

fn listed(domain: &Domain, rule: &Rule) -> wire::ListedRule {
    let (unlimited, limits) = match &rule.limits {
        RuleLimits::Unlimited { .. } => (true, Vec::new()),
        RuleLimits::Limited(limits) => (false, limits.iter().map(limit).collect()),
    };
    // Keys in limits files are text.
    let tenant = domain.tenant.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    wire::ListedRule {
        domain: domain.name.to_string(),
        tenant: tenant.into_owned(),
        rule: Some(to_wire::rule(rule)),
        unlimited,
        limits,
        counting: to_wire::counting(rule.counting).into(),
        on_failure: to_wire::on_failure(rule.on_failure).into(),
        shadow_mode: rule.shadow_mode,
        quota_mode: rule.quota_mode,
        response_body: rule
            .response_body
            .as_ref()
            .map(|body| body.name().to_owned())
            .unwrap_or_default(),
    }
}

fn limit(limit: &RuleLimit) -> wire::ListedLimit {
    let seconds = i64::from(limit.limit.window().seconds());
    wire::ListedLimit {
        name: limit.name.as_deref().unwrap_or_default().to_owned(),
        requests_per_unit: limit.displayed.requests_per_unit,
        unit: to_wire::unit(limit.displayed.unit).into(),
        unit_multiplier: limit.displayed.unit_multiplier,
        window: Some(prost_types::Duration { seconds, nanos: 0 }),
        capacity: limit.limit.capacity(),
        algorithm: to_wire::algorithm(limit.limit.algorithm()).into(),
        replaces: limit.replaces.iter().map(ToString::to_string).collect(),
    }
}
