//! Output that the commands share: escaping, tables, and JSON of rules and limits.

use std::io::{self, Write as _};

use clap::ValueEnum;
use serde_json::{Value, json};
pub(super) use sluicegate_proto::text::{format_span, seconds};
use sluicegate_proto::{
    envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry,
    sluicegate::admin::v1::{CounterState, LimitExplanation, Rule, limit_explanation::State},
    text::{
        duration_from_proto,
        explanation::{algorithm_name, counting_name, on_failure_name, unit_name},
        printable, printable_json, printable_lines,
    },
};

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Text.
    Text,
    /// One JSON object.
    Json,
}

/// Writes text of this format to standard output. Control characters are escaped, because names and values in it are
/// not trusted.
pub(super) fn print(format: OutputFormat, text: &str) {
    let text = match format {
        OutputFormat::Text => printable_lines(text.trim_end()),
        OutputFormat::Json => printable_json(text.trim_end()),
    };
    // If the reader has closed the pipe, the exit code still reports the result.
    let _ = writeln!(io::stdout(), "{text}");
}

/// A table whose columns are as wide as their widest cell.
pub(super) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table with these column headings.
    pub(super) fn new(heads: [&str; N]) -> Self {
        Self { rows: vec![heads.map(str::to_owned)] }
    }

    /// Adds a row.
    pub(super) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| printable(&cell).into_owned()));
    }

    /// The table as lines of text.
    pub(super) fn text(&self) -> String {
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let line = |row: &[String; N]| {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// A rule, with file and line.
pub(super) fn rule(rule: &Rule) -> Value {
    json!({ "path": rule.path, "file": rule.file, "line": rule.line })
}

/// The entries of a descriptor.
pub(super) fn entries(entries: &[Entry]) -> Value {
    let entry = |it: &Entry| json!({ "key": lossy(&it.key), "value": lossy(&it.value) });
    entries.iter().map(entry).collect()
}

/// Inserts a key into an object.
pub(super) fn insert(object: &mut Value, key: &str, value: Value) {
    if let Value::Object(object) = object {
        object.insert(key.to_owned(), value);
    }
}

/// A limit and its counter. Every key is always present; an unknown value is null.
pub(super) fn limit(limit: &LimitExplanation) -> Value {
    let (counter, unanswered) = match &limit.state {
        Some(State::Counter(state)) => (Some(counter(state)), None),
        Some(State::Unanswered(why)) => (None, Some(why)),
        None => (None, None),
    };
    json!({
        "name": limit.name,
        "requests_per_unit": limit.requests_per_unit,
        "unit": unit_name(limit),
        "unit_multiplier": limit.unit_multiplier,
        "capacity": limit.capacity,
        "algorithm": algorithm_name(limit),
        "counting": counting_name(limit),
        "on_failure": on_failure_name(limit),
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
    let seconds = |span: Option<_>| span.map(|span| seconds(duration_from_proto(span)));
    json!({
        "used": state.used,
        "remaining": state.remaining,
        "reset_after_seconds": seconds(state.reset_after),
        "would_pass": state.would_pass,
        "retry_after_seconds": seconds(state.retry_after),
    })
}

/// Text for JSON, with U+FFFD in place of bytes that are not UTF-8.
fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
