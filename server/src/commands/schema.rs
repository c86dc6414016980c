//! `sluicegate schema`: the JSON Schema of limits files.

use std::process::ExitCode;

use super::say;

/// Runs `sluicegate schema`.
#[must_use]
pub fn schema() -> ExitCode {
    say(format_args!("{:#}", sluicegate_limits::schema()));
    ExitCode::SUCCESS
}
