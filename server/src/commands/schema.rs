//! `sluicegate schema`: the JSON Schema of limits files.

use std::process::ExitCode;

use super::print_lines;

/// Runs `sluicegate schema`.
#[must_use]
pub fn schema() -> ExitCode {
    print_lines(format_args!("{:#}", sluicegate_limits::json_schema()));
    ExitCode::SUCCESS
}
