//! How answers are written, whatever the command.

use std::io::{self, Write as _};

use clap::ValueEnum;
pub(super) use sluicegate_proto::text::{seconds, span};

/// Formats of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Lines for people.
    Text,
    /// One JSON object.
    Json,
}

/// Writes the answer to the standard output.
pub(super) fn print(answer: &str) {
    // A reader that has gone does not change the answer, which is also in the exit code.
    let _ = writeln!(io::stdout(), "{}", answer.trim_end());
}
