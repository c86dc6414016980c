//! The text of `/rlconfig`: the limits in force, one line for each rule.

use sluicegate_core::{
    Rule,
    rule::{RuleLimit, RuleLimits},
    rules::{Domain, RuleSet},
};
use sluicegate_proto::text::printable;

/// All domains, each followed by its rules with their paths, in the order of the files. Domains without rules come
/// first.
pub(super) fn render(rules: &RuleSet) -> String {
    let mut text = String::new();
    let mut domain_before = None;
    for domain in rules.domains().filter(|domain| domain.is_empty()) {
        describe_domain(&mut text, domain);
    }
    for (domain, rule) in rules.rules() {
        if domain_before.replace(&domain.name) != Some(&domain.name) {
            describe_domain(&mut text, domain);
        }
        describe_rule(&mut text, rule);
    }
    text
}

fn describe_domain(text: &mut String, domain: &Domain) {
    push(text, format_args!("domain {}", domain.name));
    if let Some(tenant) = &domain.tenant {
        push(text, format_args!(" tenant={}", String::from_utf8_lossy(tenant)));
    }
    push(text, format_args!(" default_algorithm={}", domain.defaults.algorithm.name()));
    push(text, format_args!(" default_counting={}", domain.defaults.counting.name()));
    push(text, format_args!(" default_on_failure={}", domain.defaults.on_failure.name()));
    if let Some(body) = &domain.response_body {
        push(text, format_args!(" default_response_body={}", body.name()));
    }
    text.push('\n');
}

fn describe_rule(text: &mut String, rule: &Rule) {
    push(text, format_args!("  {}:", rule.path));
    match &rule.limits {
        RuleLimits::Unlimited { .. } => text.push_str(" unlimited"),
        RuleLimits::Limited(limits) => {
            for limit in limits {
                describe_limit(text, limit);
            }
            push(text, format_args!(" counting={}", rule.counting.name()));
            push(text, format_args!(" on_failure={}", rule.on_failure.name()));
        }
    }
    let flags = [
        ("shadow_mode", rule.shadow_mode),
        ("quota_mode", rule.quota_mode),
        ("detailed_metric", rule.detailed_metric),
        ("value_to_metric", rule.value_to_metric),
    ];
    for (name, _) in flags.into_iter().filter(|(_, set)| *set) {
        push(text, format_args!(" {name}"));
    }
    if let Some(body) = &rule.response_body {
        push(text, format_args!(" response_body={}", body.name()));
    }
    text.push('\n');
}

fn describe_limit(text: &mut String, rule_limit: &RuleLimit) {
    let RuleLimit { limit, displayed: shown, name, replaces } = rule_limit;
    push(text, format_args!(" [{shown} algorithm={}", limit.algorithm().name()));
    if limit.capacity() != limit.requests() {
        push(text, format_args!(" burst={}", limit.capacity()));
    }
    if let Some(name) = name {
        push(text, format_args!(" name={name}"));
    }
    if !replaces.is_empty() {
        push(text, format_args!(" replaces={}", replaces.join(",")));
    }
    text.push(']');
}

/// Appends a part of a line.
fn push(text: &mut String, part: std::fmt::Arguments<'_>) {
    text.push_str(&printable(&part.to_string()));
}
