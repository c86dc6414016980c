//! `sluicegate validate`: checks limits files, or explains which limits a request matches.

use std::process::ExitCode;

use sluicegate_core::rules::RuleSet;
use sluicegate_limits::FileContents;
use sluicegate_proto::{envoy::service::ratelimit::v3::RateLimitRequest, text::explanation};
use sluicegate_store::redis::KeyPrefix;

use super::print_lines;
use crate::{app::print_error, explain::explain, settings::ValidateSettings};

/// Runs `sluicegate validate`: prints mistakes or warnings, or with `--explain` the limits that a request matches.
#[must_use]
pub fn validate(settings: &ValidateSettings) -> ExitCode {
    let contents = FileContents::read(&settings.limits, settings.compile.read_bounds.bounds());
    match contents.compile(&settings.defaults.options(settings.compile)) {
        Ok(set) => match settings.explain.request() {
            Some(request) => explain_offline(&set, &request, &settings.explain.key_prefix),
            None => {
                report(&set);
                ExitCode::SUCCESS
            }
        },
        Err(mistakes) => {
            mistakes.lines().for_each(print_lines);
            ExitCode::FAILURE
        }
    }
}

fn report(set: &RuleSet) {
    for warning in set.warnings().lines() {
        print_lines(format_args!("warning: {warning}"));
    }
    let (domains, rules) = (set.domains().count(), set.rules().count());
    let warnings = set.warnings().total();
    print_lines(format_args!("ok: {domains} domains, {rules} rules, {warnings} warnings"));
}

fn explain_offline(rules: &RuleSet, request: &RateLimitRequest, prefix: &KeyPrefix) -> ExitCode {
    match explain(rules, request, prefix) {
        Ok((explained, _)) => {
            print_lines(explanation::render(&explained));
            ExitCode::SUCCESS
        }
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}
