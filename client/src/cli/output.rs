//! How answers are written, whatever the command.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use clap::ValueEnum;

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

/// The span in whole seconds. Rounded up: a caller that waits as long must not come too early.
pub(super) fn seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// The span for people, in whole seconds.
pub(super) fn span(span: Duration) -> String {
    humantime::format_duration(Duration::from_secs(seconds(span))).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_rounded_up() {
        assert_eq!(seconds(Duration::from_millis(41_001)), 42);
        assert_eq!(span(Duration::from_millis(41_001)), "42s");
        assert_eq!(span(Duration::from_secs(3_725)), "1h 2m 5s");
    }
}
