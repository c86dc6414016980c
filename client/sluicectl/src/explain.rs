//! `sluicectl explain`.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use sluicegate_proto::{
    sluicegate::admin::v1::{Candidate, DescriptorExplanation, ExplainResponse},
    text::explanation::{fit_name, outcome_name, render},
};

use super::{AdminServerSettings, Failure, OutputFormat, RequestArguments, output};

/// Settings of `sluicectl explain`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct ExplainSettings {
    /// The request.
    #[command(flatten)]
    pub request: RequestArguments,

    /// Hits to explain. 0 is explained as one hit; a negative number as a refund. Nothing is charged or refunded.
    #[arg(long, value_name = "HITS", default_value = "1", allow_negative_numbers = true)]
    pub hits: i64,

    /// Output format.
    #[arg(long, env = "SLUICECTL_OUTPUT", value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,

    /// The admin listener.
    #[command(flatten)]
    pub server: AdminServerSettings,
}

const AFTER_HELP: &str = "\
Try it:
  sluicectl explain --domain api --descriptor tenant=acme,user=bob

Exit codes:
  0  the hits would be allowed
  1  the hits would be refused
  2  invalid command line, or an unusable file in it
  3  the server or its store is unreachable, too slow, or returned an error";

/// Prints the explanation. The exit code is 0 if the hits would be allowed, 1 if refused, 3 if the store did not
/// answer.
pub(super) async fn run(settings: &ExplainSettings) -> Result<ExitCode, Failure> {
    let client = settings.server.client()?;
    let explained = client
        .explain(settings.request.check(settings.hits))
        .await
        .map_err(|source| Failure::Call { endpoint: client.endpoint().clone(), source })?;
    output::print(
        settings.output,
        &match settings.output {
            OutputFormat::Text => render(&explained),
            OutputFormat::Json => json(&explained).to_string(),
        },
    );
    Ok(ExitCode::from(match explained.would_pass {
        Some(true) => 0,
        Some(false) => 1,
        None => 3,
    }))
}

/// Every key is always present; an unknown value is null.
fn json(explained: &ExplainResponse) -> Value {
    json!({
        "would_pass": explained.would_pass,
        "descriptors": explained.descriptors.iter().map(descriptor).collect::<Vec<_>>(),
    })
}

fn descriptor(descriptor: &DescriptorExplanation) -> Value {
    let levels = descriptor.levels.iter().map(|level| {
        json!({
            "candidates": level.candidates.iter().map(candidate).collect::<Vec<_>>(),
            "left_out": level.left_out,
        })
    });
    let replaced = descriptor.replaced_limits.iter().map(
        |limit| json!({ "name": limit.name, "replaced_by": limit.replaced_by.as_ref().map(output::rule) }),
    );
    json!({
        "descriptor": output::entries(&descriptor.entries),
        "outcome": outcome_name(descriptor),
        "rule": descriptor.rule.as_ref().map(output::rule),
        "override_ignored": descriptor.override_ignored,
        "levels": levels.collect::<Vec<_>>(),
        "limits": descriptor.limits.iter().map(output::limit).collect::<Vec<_>>(),
        "replaced_limits": replaced.collect::<Vec<_>>(),
    })
}

fn candidate(candidate: &Candidate) -> Value {
    json!({
        "key": candidate.key,
        "value": candidate.value,
        "file": candidate.file,
        "line": candidate.line,
        "fit": fit_name(candidate),
    })
}
