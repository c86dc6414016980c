//! Rendering of explanations as text for users.

use std::time::Duration;

use super::{
    descriptor::{self, printable_bytes},
    duration_from_proto, format_span,
};
use crate::sluicegate::admin::v1::{
    Candidate, CounterState, DescriptorExplanation, ExplainResponse, Fit, LimitExplanation,
    Outcome, ReplacedLimit, Rule, limit_explanation::State,
};

/// The most characters of a cell to which its column is aligned.
const COLUMN_MAX: usize = 40;

/// Renders an explanation: first the verdict, then for each descriptor its outcome, the nodes that were compared, and
/// the limits that apply.
#[must_use]
pub fn render(explained: &ExplainResponse) -> String {
    let mut lines = vec![verdict(explained)];
    for descriptor in &explained.descriptors {
        lines.push(format!("  {}", entries(descriptor)));
        lines.push(format!("    {}", outcome(descriptor)));
        if descriptor.override_ignored {
            lines.push(
                "    the override in the request has no valid window and is ignored".to_owned(),
            );
        }
        for position in 0..descriptor.levels.len() {
            render_level(&mut lines, descriptor, position);
        }
        lines.extend(descriptor.replaced_limits.iter().map(replaced_limit));
        for limit in &descriptor.limits {
            render_limit(&mut lines, limit);
        }
    }
    lines.join("\n")
}

/// Whether the request would pass.
fn verdict(explained: &ExplainResponse) -> String {
    let mut limits = explained.descriptors.iter().flat_map(|it| &it.limits);
    match explained.would_pass {
        Some(true) => "would pass".to_owned(),
        Some(false) => match retry_after(explained) {
            Some(wait) => format!("would be refused, retry in {}", format_span(wait)),
            None => "would be refused".to_owned(),
        },
        None if limits.any(|limit| limit.state.is_some()) => {
            "unknown whether it would pass: a counter could not be read".to_owned()
        }
        None => "explained from files: no counter was read".to_owned(),
    }
}

/// Time until a refused request would pass; `None` if it never will. It passes as soon as every refusing descriptor
/// without quota mode has room and, if all quota descriptors refuse, one of these has room, too.
fn retry_after(explained: &ExplainResponse) -> Option<Duration> {
    let (mut waits, mut quotas) = (Vec::new(), Vec::new());
    let mut needs_quota = true;
    for descriptor in &explained.descriptors {
        let is_quota = descriptor.limits.iter().any(|limit| limit.quota_mode);
        match (is_quota, descriptor_wait(descriptor)) {
            (true, Some(wait)) => quotas.push(wait),
            (true, None) => needs_quota = false,
            (false, Some(wait)) => waits.push(wait),
            (false, None) => {}
        }
    }
    if needs_quota && !quotas.is_empty() {
        waits.push(quotas.into_iter().flatten().min());
    }
    waits.into_iter().collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// Time until every limit of a descriptor has room. `None` if no limit refuses, `Some(None)` if one never has room.
fn descriptor_wait(descriptor: &DescriptorExplanation) -> Option<Option<Duration>> {
    let refusing = descriptor.limits.iter().filter(|limit| !limit.shadow_mode);
    let refusing = refusing.filter_map(|limit| match &limit.state {
        Some(State::Counter(counter)) if !counter.would_pass => Some(counter),
        _ => None,
    });
    let waits: Vec<_> =
        refusing.map(|counter| counter.retry_after.map(duration_from_proto)).collect();
    (!waits.is_empty()).then(|| waits.into_iter().try_fold(Duration::ZERO, |a, b| Some(a.max(b?))))
}

/// The entries of a descriptor, in the syntax of descriptors.
fn entries(descriptor: &DescriptorExplanation) -> String {
    if descriptor.entries.is_empty() {
        return "(no entries)".to_owned();
    }
    descriptor::render(descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value)))
}

/// The outcome of matching a descriptor, as a sentence.
fn outcome(descriptor: &DescriptorExplanation) -> String {
    let at = descriptor.levels.len();
    let rule = descriptor.rule.as_ref().map(rule_name);
    let rule = rule.as_deref();
    match (descriptor.outcome(), rule) {
        (Outcome::Limited, Some(rule)) => format!("limited by rule {rule}"),
        (Outcome::Limited, None) => "limited".to_owned(),
        (Outcome::Overridden, Some(rule)) => {
            format!("limited by the override in the request, instead of rule {rule}")
        }
        (Outcome::Overridden, None) => {
            "limited by the override in the request; no rule matches".to_owned()
        }
        (Outcome::Unlimited, Some(rule)) => format!("unlimited by rule {rule}"),
        (Outcome::Unlimited, None) => "unlimited".to_owned(),
        (Outcome::Replaced, Some(rule)) => {
            format!("no limit applies: those of rule {rule} are replaced")
        }
        (Outcome::Replaced, None) => "no limit applies: they are replaced".to_owned(),
        (Outcome::DomainNotConfigured, _) => {
            "no limit applies: no limits file has this domain".to_owned()
        }
        (Outcome::NoEntries, _) => "no limit applies: the descriptor has no entries".to_owned(),
        (Outcome::NoMatch, _) if descriptor.levels.iter().all(|it| it.candidates.is_empty()) => {
            "no limit applies: the domain has no rules".to_owned()
        }
        (Outcome::NoMatch, _) => {
            format!("no limit applies: no node at level {at} matches {}", entry(descriptor, at))
        }
        (Outcome::TooDeep, _) => format!(
            "no limit applies: the rules end at level {at}, the descriptor continues with {}",
            entry(descriptor, at + 1)
        ),
        (Outcome::TooShallow, _) => format!(
            "no limit applies: the descriptor ends at level {at}, and only rules below have limits"
        ),
        (Outcome::NoLimit, _) => {
            format!("no limit applies: the node that matches at level {at} has no limit")
        }
        (Outcome::Unspecified, _) => {
            "unknown outcome: this program is older than the server".to_owned()
        }
    }
}

/// The entry of a level. Levels are numbered from 1.
fn entry(descriptor: &DescriptorExplanation, level: usize) -> String {
    let entry = level.checked_sub(1).and_then(|position| descriptor.entries.get(position));
    descriptor::render(entry.map(|entry| (&*entry.key, &*entry.value)))
}

/// Path and location of a rule.
#[must_use]
pub fn rule_name(rule: &Rule) -> String {
    format!("{} ({})", printable_bytes(rule.path.as_bytes()), location(&rule.file, rule.line))
}

/// File and line.
fn location(file: &str, line: u32) -> String {
    format!("{}:{line}", printable_bytes(file.as_bytes()))
}

/// Adds the lines of a level: its entry, and the nodes that were compared with it.
fn render_level(lines: &mut Vec<String>, descriptor: &DescriptorExplanation, position: usize) {
    let Some(level) = descriptor.levels.get(position) else { return };
    let at = position + 1;
    lines.push(format!("    level {at}, {}", entry(descriptor, at)));
    let nodes: Vec<[String; 2]> = level.candidates.iter().map(node_and_location).collect();
    let width = |column: usize| {
        let cells = nodes.iter().filter_map(|cells| cells.get(column));
        let widths = cells.map(|cell| cell.chars().count());
        widths.filter(|width| *width <= COLUMN_MAX).max().unwrap_or_default()
    };
    let (node_width, location_width) = (width(0), width(1));
    for (candidate, [node, location]) in level.candidates.iter().zip(&nodes) {
        let (fit, reason) = fit_and_reason(candidate.fit());
        let line =
            format!("      {fit:9}  {node:node_width$}  {location:location_width$}  {reason}");
        lines.push(line.trim_end().to_owned());
    }
    if level.left_out > 0 {
        lines.push(format!("      and {} more", level.left_out));
    }
}

/// The cells of a node: key and value, and location.
fn node_and_location(candidate: &Candidate) -> [String; 2] {
    let value = candidate.value.as_ref().map(|value| format!("={value}")).unwrap_or_default();
    let node = printable_bytes(format!("{}{value}", candidate.key).as_bytes());
    [node, location(&candidate.file, candidate.line)]
}

/// Whether a node matched its entry, and if not, why not.
const fn fit_and_reason(fit: Fit) -> (&'static str, &'static str) {
    match fit {
        Fit::Unspecified => ("", "unknown reason: this program is older than the server"),
        Fit::Taken => ("taken", ""),
        Fit::OtherKey => ("not taken", "another key"),
        Fit::OtherValue => ("not taken", "another value"),
        Fit::PatternDoesNotFit => ("not taken", "the pattern does not match"),
        Fit::ExactFirst => ("not taken", "the exact value takes precedence"),
        Fit::PatternFirst => ("not taken", "an earlier pattern matches"),
    }
}

/// The line of a limit that does not apply.
fn replaced_limit(limit: &ReplacedLimit) -> String {
    let by = limit.replaced_by.as_ref().map_or_else(|| "another rule".to_owned(), rule_name);
    format!("    limit {} does not apply: replaced by {by}", printable_bytes(limit.name.as_bytes()))
}

/// Adds the lines of a limit that applies, with its counter.
pub fn render_limit(lines: &mut Vec<String>, limit: &LimitExplanation) {
    let mut head = format!("    limit {}", rate(limit));
    if !limit.name.is_empty() {
        head += &format!(" ({})", printable_bytes(limit.name.as_bytes()));
    }
    head += &format!(", {}", algorithm_name(limit));
    if limit.capacity != limit.requests_per_unit {
        head += &format!(", burst {}", limit.capacity);
    }
    head += &format!(", counting {}, on_failure {}", counting_name(limit), on_failure_name(limit));
    for (is_set, mode) in [(limit.shadow_mode, "shadow_mode"), (limit.quota_mode, "quota_mode")] {
        if is_set {
            head += &format!(", {mode}");
        }
    }
    lines.push(head);
    lines.push(format!("      counter  {}", limit.counter_key));
    lines.push(format!("      slot     {}", limit.hash_slot));
    if !limit.key_hash.is_empty() {
        lines.push(format!("      hash     {}", limit.key_hash));
    }
    match &limit.state {
        Some(State::Counter(counter)) => {
            lines.push(format!("      state    {}", state(limit, counter)));
        }
        Some(State::Unanswered(why)) => {
            lines.push(format!("      state    not known: {}", printable_bytes(why.as_bytes())));
        }
        None => {}
    }
}

/// The rate of a limit: `10 per minute`, `10 per 5 minutes`.
fn rate(limit: &LimitExplanation) -> String {
    let (requests, unit) = (limit.requests_per_unit, unit_name(limit));
    match limit.unit_multiplier {
        1 => format!("{requests} per {unit}"),
        units => format!("{requests} per {units} {unit}s"),
    }
}

/// The state of a counter, as a sentence.
fn state(limit: &LimitExplanation, counter: &CounterState) -> String {
    let CounterState { used, remaining, .. } = counter;
    let mut text = format!("{used} of {} used, {remaining} left", limit.capacity);
    let reset_after = counter.reset_after.map(duration_from_proto).unwrap_or_default();
    if !reset_after.is_zero() {
        text += &format!(", resets in {}", format_span(reset_after));
    }
    text += &match (counter.would_pass, counter.retry_after) {
        (true, _) => "; passes".to_owned(),
        (false, Some(wait)) => {
            format!("; refuses, passes in {}", format_span(duration_from_proto(wait)))
        }
        (false, None) => "; refuses, never passes".to_owned(),
    };
    text
}

/// The unit's name in limits files.
#[must_use]
pub fn unit_name(limit: &LimitExplanation) -> String {
    enum_name(limit.unit().as_str_name(), "UNIT_")
}

/// The algorithm's name in limits files.
#[must_use]
pub fn algorithm_name(limit: &LimitExplanation) -> String {
    enum_name(limit.algorithm().as_str_name(), "ALGORITHM_")
}

/// The counting's name in limits files.
#[must_use]
pub fn counting_name(limit: &LimitExplanation) -> String {
    enum_name(limit.counting().as_str_name(), "COUNTING_")
}

/// The failure policy's name in limits files.
#[must_use]
pub fn on_failure_name(limit: &LimitExplanation) -> String {
    enum_name(limit.on_failure().as_str_name(), "ON_FAILURE_")
}

/// The outcome's name in JSON output.
#[must_use]
pub fn outcome_name(descriptor: &DescriptorExplanation) -> String {
    enum_name(descriptor.outcome().as_str_name(), "OUTCOME_")
}

/// The name of a candidate's [`Fit`] in JSON output.
#[must_use]
pub fn fit_name(candidate: &Candidate) -> String {
    enum_name(candidate.fit().as_str_name(), "FIT_")
}

/// The name of a value of a protobuf enumeration, in lower case and without the prefix that all its values have.
#[must_use]
pub fn enum_name(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry,
        sluicegate::admin::v1::{Algorithm, Counting, Level, OnFailure, Unit},
    };

    fn entries(pairs: &[(&'static str, &'static str)]) -> Vec<Entry> {
        pairs
            .iter()
            .map(|(key, value)| Entry { key: (*key).into(), value: (*value).into() })
            .collect()
    }

    fn candidate(key: &str, value: Option<&str>, line: u32, fit: Fit) -> Candidate {
        let (key, value, file) = (key.to_owned(), value.map(str::to_owned), "a.yaml".to_owned());
        Candidate { key, value, file, line, fit: fit.into() }
    }

    fn rule(path: &str, line: u32) -> Option<Rule> {
        Some(Rule { path: path.to_owned(), file: "a.yaml".to_owned(), line })
    }

    fn limit(state: Option<State>) -> LimitExplanation {
        LimitExplanation {
            name: "burst".to_owned(),
            requests_per_unit: 10,
            unit: Unit::Minute.into(),
            unit_multiplier: 5,
            capacity: 10,
            algorithm: Algorithm::FixedWindow.into(),
            counting: Counting::Free.into(),
            on_failure: OnFailure::Local.into(),
            shadow_mode: false,
            quota_mode: true,
            counter_key: "s1:fw:300:{api:user=bob}".to_owned(),
            hash_slot: 7,
            state,
            key_hash: "0123456789abcdef".to_owned(),
        }
    }

    fn counter(used: u64, retry_after: Option<i64>) -> State {
        let seconds = |seconds| prost_types::Duration { seconds, nanos: 0 };
        State::Counter(CounterState {
            used,
            remaining: 10 - used,
            reset_after: Some(seconds(61)),
            would_pass: used < 10,
            retry_after: retry_after.map(seconds),
        })
    }

    fn limited(state: Option<State>) -> DescriptorExplanation {
        DescriptorExplanation {
            entries: entries(&[("user", "bob")]),
            outcome: Outcome::Limited.into(),
            rule: rule("user", 4),
            levels: vec![Level {
                candidates: vec![
                    candidate("user", None, 4, Fit::Taken),
                    candidate("user", Some("eve*"), 12, Fit::PatternDoesNotFit),
                ],
                left_out: 3,
            }],
            limits: vec![limit(state)],
            replaced_limits: Vec::new(),
            override_ignored: false,
        }
    }

    #[test]
    fn renders_a_limit_with_its_counter() {
        let explained = ExplainResponse {
            would_pass: Some(false),
            descriptors: vec![limited(Some(counter(10, Some(59))))],
        };
        assert_eq!(
            render(&explained),
            "\
would be refused, retry in 59s
  user=bob
    limited by rule user (a.yaml:4)
    level 1, user=bob
      taken      user       a.yaml:4
      not taken  user=eve*  a.yaml:12  the pattern does not match
      and 3 more
    limit 10 per 5 minutes (burst), fixed_window, counting free, on_failure local, quota_mode
      counter  s1:fw:300:{api:user=bob}
      slot     7
      hash     0123456789abcdef
      state    10 of 10 used, 0 left, resets in 1m 1s; refuses, passes in 59s"
        );
    }

    #[test]
    fn retry_time_includes_quota_limits_only_if_none_has_room() {
        let over = |quota_mode, shadow_mode, wait: Option<i64>| {
            let mut one = limited(Some(counter(10, wait)));
            for limit in &mut one.limits {
                (limit.quota_mode, limit.shadow_mode) = (quota_mode, shadow_mode);
            }
            one
        };
        let first = |descriptors: &[DescriptorExplanation]| {
            let explained =
                ExplainResponse { would_pass: Some(false), descriptors: descriptors.to_vec() };
            render(&explained).lines().next().unwrap().to_owned()
        };
        let (alone, quota) =
            (|wait| over(false, false, Some(wait)), |wait| over(true, false, Some(wait)));
        let room = limited(Some(counter(1, None)));
        let wait_5 = "would be refused, retry in 5s";
        assert_eq!(first(&[alone(5), alone(3)]), wait_5);
        assert_eq!(first(&[alone(5), over(false, true, Some(50))]), wait_5);
        // Another quota limit has room, or refuses nothing because it is in shadow mode.
        assert_eq!(first(&[alone(5), quota(50), room.clone()]), wait_5);
        assert_eq!(first(&[alone(5), quota(50), over(true, true, Some(60))]), wait_5);
        assert_eq!(first(&[alone(5), over(true, false, None), room]), wait_5);
        // No quota limit has room: the first that will have room is enough.
        assert_eq!(first(&[quota(50), quota(5), over(true, false, None)]), wait_5);
        assert_eq!(first(&[alone(2), quota(50), quota(5)]), wait_5);
        assert_eq!(first(&[alone(5), quota(3), quota(50)]), wait_5);
        // A quota descriptor with several limits has room when all of them have.
        let mut several = quota(5);
        several.limits.extend(quota(2).limits);
        assert_eq!(first(&[several, quota(50)]), wait_5);
        for never in [[over(false, false, None), quota(5)], [alone(5), over(true, false, None)]] {
            assert_eq!(first(&never), "would be refused");
        }
    }

    #[test]
    fn the_first_line_is_the_verdict() {
        let first = |would_pass, state| {
            let explained = ExplainResponse { would_pass, descriptors: vec![limited(state)] };
            render(&explained).lines().next().unwrap().to_owned()
        };
        assert_eq!(first(Some(true), Some(counter(3, None))), "would pass");
        assert_eq!(first(Some(false), Some(counter(10, None))), "would be refused");
        let unanswered = State::Unanswered("unavailable".to_owned());
        assert_eq!(
            first(None, Some(unanswered)),
            "unknown whether it would pass: a counter could not be read"
        );
        assert_eq!(first(None, None), "explained from files: no counter was read");
    }

    #[test]
    fn each_outcome_is_a_sentence() {
        let sentence = |outcome: Outcome, levels: usize, rule: Option<Rule>| {
            let level =
                Level { candidates: vec![candidate("x", None, 1, Fit::OtherKey)], left_out: 0 };
            super::outcome(&DescriptorExplanation {
                entries: entries(&[("a", "1"), ("b", "2")]),
                outcome: outcome.into(),
                levels: vec![level; levels],
                rule,
                ..DescriptorExplanation::default()
            })
        };
        let cases = [
            (
                Outcome::Overridden,
                2,
                rule("a.b", 7),
                "limited by the override in the request, instead of rule a.b (a.yaml:7)",
            ),
            (
                Outcome::Overridden,
                1,
                None,
                "limited by the override in the request; no rule matches",
            ),
            (Outcome::Unlimited, 2, rule("a.b", 7), "unlimited by rule a.b (a.yaml:7)"),
            (
                Outcome::Replaced,
                2,
                rule("a.b", 7),
                "no limit applies: those of rule a.b (a.yaml:7) are replaced",
            ),
            (
                Outcome::DomainNotConfigured,
                0,
                None,
                "no limit applies: no limits file has this domain",
            ),
            (Outcome::NoEntries, 0, None, "no limit applies: the descriptor has no entries"),
            (Outcome::NoMatch, 0, None, "no limit applies: the domain has no rules"),
            (Outcome::NoMatch, 2, None, "no limit applies: no node at level 2 matches b=2"),
            (
                Outcome::TooDeep,
                1,
                None,
                "no limit applies: the rules end at level 1, the descriptor continues with b=2",
            ),
            (
                Outcome::TooShallow,
                2,
                None,
                "no limit applies: the descriptor ends at level 2, and only rules below have limits",
            ),
            (
                Outcome::NoLimit,
                2,
                None,
                "no limit applies: the node that matches at level 2 has no limit",
            ),
        ];
        for (outcome, levels, rule, expected) in cases {
            assert_eq!(sentence(outcome, levels, rule), expected);
        }
    }
}
