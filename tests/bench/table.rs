//! Markdown tables.

use std::fmt;

use crate::{
    load::Load,
    results::{Row, Rows, Value, median},
};

/// A table: the first columns are text, the others numbers.
pub(crate) struct Table {
    texts: usize,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates an empty table with columns of text, and then columns of numbers.
    pub(crate) fn new(texts: &[&str], numbers: &[&str]) -> Self {
        let head = texts.iter().chain(numbers).map(|name| (*name).to_owned()).collect();
        Self { texts: texts.len(), head, rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// The row does not have as many cells as the table has columns.
    pub(crate) fn add(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.head.len(), "{row:?}");
        self.rows.push(row);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "| {} |", self.head.join(" | "))?;
        let rule = |place| if place < self.texts { "---" } else { "---:" };
        let rules: Vec<_> = (0..self.head.len()).map(rule).collect();
        writeln!(formatter, "|{}|", rules.join("|"))?;
        for row in &self.rows {
            writeln!(formatter, "| {} |", row.join(" | "))?;
        }
        Ok(())
    }
}

/// The costs of loads on every server, ratios first: medians of all rounds.
pub(crate) fn costs(rows: &Rows) -> Table {
    let mut table = Table::new(
        &["streams", "requests of", "limits", "refused", "server"],
        &[
            "CPU ÷ empty",
            "requests/s ÷ empty",
            "CPU, µs",
            "requests/s",
            "p50, µs",
            "p99, µs",
            "Redis CPU per counter, µs",
            "Redis calls per request",
            "allocations per request",
        ],
    );
    for row in rows.iter() {
        let Row { load, variant, allocations, .. } = row;
        let Load { shape, tenants, chain, refusals } = load;
        let mut cells = vec![shape.to_string(), tenants.to_string(), chain.to_string()];
        cells.push(if *refusals { "90 %" } else { "none" }.to_owned());
        cells.push(variant.to_string());
        cells.push(text(median(&rows.ratios(load, *variant, |it| it.cpu)), 2));
        cells.push(text(median(&rows.ratios(load, *variant, |it| it.rate)), 2));
        cells.push(text(row.median(|it| it.cpu), 1));
        let whole: [Value; 3] = [|it| it.rate, |it| it.p50, |it| it.p99];
        cells.extend(whole.map(|value| text(row.median(value), 0)));
        let redis = |digits, value| if variant.has_redis() { text(value, digits) } else { none() };
        cells.push(redis(2, row.median(|it| it.redis_cpu)));
        cells.push(redis(4, row.median(|it| it.calls)));
        cells.push(allocations.map_or_else(none, |allocations| text(allocations, 1)));
        table.add(cells);
    }
    table
}

/// The cell of a missing value.
fn none() -> String {
    "–".to_owned()
}

/// A number with `digits` after the decimal point.
pub(crate) fn text(number: f64, digits: usize) -> String {
    format!("{number:.digits$}")
}
