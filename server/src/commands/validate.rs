//! `sluicegate validate`: what is wrong with limits files, and what a request would meet in them.

use std::process::ExitCode;

use sluicegate_core::rules::RuleSet;
use sluicegate_limits::Sources;
use sluicegate_proto::{envoy::service::ratelimit::v3::RateLimitRequest, text::explanation};
use sluicegate_store::redis::KeyPrefix;

use super::say;
use crate::{app::print_error, explain::explain, settings::ValidateSettings};

/// Runs `sluicegate validate`: prints what is wrong with the files, and what is odd; or why a request would
/// meet the limits that it would meet.
#[must_use]
pub fn validate(settings: &ValidateSettings) -> ExitCode {
    let sources = Sources::read(&settings.limits, settings.compiling.read_bounds.bounds());
    match sources.compile(&settings.holding.options(settings.compiling)) {
        Ok(set) => match settings.explain.request() {
            Some(request) => explain_offline(&set, &request, &settings.explain.key_prefix),
            None => {
                report(&set);
                ExitCode::SUCCESS
            }
        },
        Err(mistakes) => {
            mistakes.lines().for_each(say);
            ExitCode::FAILURE
        }
    }
}

fn report(set: &RuleSet) {
    for warning in set.warnings().lines() {
        say(format_args!("warning: {warning}"));
    }
    let (domains, rules) = (set.domains().count(), set.rules().count());
    let warnings = set.warnings().total();
    say(format_args!("ok: {domains} domains, {rules} rules, {warnings} warnings"));
}

fn explain_offline(rules: &RuleSet, request: &RateLimitRequest, prefix: &KeyPrefix) -> ExitCode {
    match explain(rules, request, prefix) {
        Ok((explained, _)) => {
            say(explanation::render(&explained));
            ExitCode::SUCCESS
        }
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}
