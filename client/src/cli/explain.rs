//! `sluicectl explain`.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use sluicegate_proto::{
    sluicegate::admin::v1::{
        Candidate, CounterState, DescriptorExplanation, ExplainResponse, LimitExplanation, Rule,
        limit_explanation::State,
    },
    text::{
        explanation::{algorithm, counting, fit_word, on_failure, outcome_word, text, unit},
        from_wire,
    },
};

use super::{AdminServerSettings, Failure, OutputFormat, Question, output};

/// Settings of `sluicectl explain`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct ExplainSettings {
    /// What to ask about.
    #[command(flatten)]
    pub question: Question,

    /// How many hits to ask about: would they pass? 0 asks about one; a negative number asks as if hits were
    /// given back. None are taken, and none given back.
    #[arg(long, value_name = "HITS", default_value = "1", allow_negative_numbers = true)]
    pub hits: i64,

    /// How the answer is written.
    #[arg(long, env = "SLUICEGATE_OUTPUT", value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,

    /// Which admin listener to ask.
    #[command(flatten)]
    pub server: AdminServerSettings,
}

const AFTER_HELP: &str = "\
Try it:
  sluicectl explain --domain api --descriptor tenant=acme,user=bob

Exit codes:
  0  explained; the hits would pass
  1  explained; the hits would be refused
  2  the command line cannot be used, or a file that it names
  3  the server could not be asked, or could not ask a counter: unreachable, too slow, or an error";

/// Asks, prints the explanation and says in the exit code whether the hits would pass.
pub(super) async fn run(settings: &ExplainSettings) -> Result<ExitCode, Failure> {
    let client = settings.server.client()?;
    let explained = client
        .explain(settings.question.check(settings.hits))
        .await
        .map_err(|source| Failure::Ask { endpoint: client.endpoint().clone(), source })?;
    output::print(&match settings.output {
        OutputFormat::Text => text(&explained),
        OutputFormat::Json => json(&explained).to_string(),
    });
    Ok(ExitCode::from(match explained.would_pass {
        Some(true) => 0,
        Some(false) => 1,
        None => 3,
    }))
}

/// Every key is always there; what is not known is null.
fn json(explained: &ExplainResponse) -> Value {
    json!({
        "would_pass": explained.would_pass,
        "descriptors": explained.descriptors.iter().map(descriptor).collect::<Vec<_>>(),
    })
}

fn descriptor(descriptor: &DescriptorExplanation) -> Value {
    let entries = descriptor
        .entries
        .iter()
        .map(|entry| json!({ "key": lossy(&entry.key), "value": lossy(&entry.value) }));
    let levels = descriptor.levels.iter().map(|level| {
        json!({
            "candidates": level.candidates.iter().map(candidate).collect::<Vec<_>>(),
            "left_out": level.left_out,
        })
    });
    let replaced = descriptor.replaced_limits.iter().map(
        |limit| json!({ "name": limit.name, "replaced_by": limit.replaced_by.as_ref().map(rule) }),
    );
    json!({
        "descriptor": entries.collect::<Vec<_>>(),
        "outcome": outcome_word(descriptor),
        "rule": descriptor.rule.as_ref().map(rule),
        "override_ignored": descriptor.override_ignored,
        "levels": levels.collect::<Vec<_>>(),
        "limits": descriptor.limits.iter().map(limit).collect::<Vec<_>>(),
        "replaced_limits": replaced.collect::<Vec<_>>(),
    })
}

fn rule(rule: &Rule) -> Value {
    json!({ "path": rule.path, "file": rule.file, "line": rule.line })
}

fn candidate(candidate: &Candidate) -> Value {
    json!({
        "key": candidate.key,
        "value": candidate.value,
        "file": candidate.file,
        "line": candidate.line,
        "fit": fit_word(candidate),
    })
}

fn limit(limit: &LimitExplanation) -> Value {
    let (counter, unanswered) = match &limit.state {
        Some(State::Counter(state)) => (Some(counter(state)), None),
        Some(State::Unanswered(why)) => (None, Some(why)),
        None => (None, None),
    };
    json!({
        "name": limit.name,
        "requests_per_unit": limit.requests_per_unit,
        "unit": unit(limit),
        "unit_multiplier": limit.unit_multiplier,
        "capacity": limit.capacity,
        "algorithm": algorithm(limit),
        "counting": counting(limit),
        "on_failure": on_failure(limit),
        "shadow_mode": limit.shadow_mode,
        "quota_mode": limit.quota_mode,
        "counter_key": limit.counter_key,
        "hash_slot": limit.hash_slot,
        "key_hash": (!limit.key_hash.is_empty()).then_some(&limit.key_hash),
        "counter": counter,
        "unanswered": unanswered,
    })
}

fn counter(state: &CounterState) -> Value {
    let seconds = |span: Option<_>| span.map(|span| output::seconds(from_wire(span)));
    json!({
        "used": state.used,
        "remaining": state.remaining,
        "reset_after_seconds": seconds(state.reset_after),
        "would_pass": state.would_pass,
        "retry_after_seconds": seconds(state.retry_after),
    })
}

/// JSON has no room for bytes that are not text.
fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
