//! The list of metrics in `docs/metrics.md`, and checks of queries against it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use crate::tools::workspace;

/// Labels that Prometheus adds to series.
const TARGET_LABELS: [&str; 3] = ["namespace", "job", "instance"];

/// Names and labels of metrics.
#[derive(Debug)]
pub struct Catalogue {
    labels: BTreeMap<String, BTreeSet<String>>,
}

impl Catalogue {
    /// Reads the page.
    ///
    /// # Panics
    /// The page has no table of metrics.
    #[must_use]
    pub fn read() -> Self {
        let page = fs::read_to_string(workspace().join("docs/metrics.md")).unwrap();
        let mut labels = BTreeMap::new();
        for row in page.lines() {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let [_, name, kind, label_names, ..] = cells[..] else { continue };
            let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else {
                continue;
            };
            if !["counter", "gauge", "histogram"].contains(&kind) {
                continue;
            }
            let quoted = label_names.split('`').skip(1).step_by(2);
            let own: BTreeSet<_> = quoted.map(str::to_owned).collect();
            if kind == "histogram" {
                let with_bound = own.iter().cloned().chain(["le".to_owned()]).collect();
                labels.insert(format!("{name}_bucket"), with_bound);
                labels.insert(format!("{name}_sum"), own.clone());
                labels.insert(format!("{name}_count"), own);
            } else {
                labels.insert(name.to_owned(), own);
            }
        }
        labels.insert("up".to_owned(), BTreeSet::new());
        assert!(labels.len() > 20, "docs/metrics.md has no table of metrics: {labels:?}");
        Self { labels }
    }

    /// Adds the metric of a recording rule: the part of its name before the first colon has the labels.
    ///
    /// # Panics
    /// The name does not have the form `level:metric:operations`, or the query's result has other labels.
    pub fn record(&mut self, name: &str, query: &str) {
        let parts: Vec<_> = name.split(':').collect();
        let [level, metric, _] = parts[..] else { panic!("{name} is not level:metric:operations") };
        assert!(metric.starts_with("sluicegate_"), "{name}");
        let by = format!(" by ({}) ", level.replace('_', ", "));
        assert!(query.contains(&by), "{name}: {query}");
        self.check(query);
        let own = level.split('_').filter(|it| !TARGET_LABELS.contains(it)).map(str::to_owned);
        self.labels.insert(name.to_owned(), own.collect());
    }

    /// Every name that a query can use; a histogram has three.
    #[must_use]
    pub fn names(&self) -> BTreeSet<String> {
        self.labels.keys().cloned().collect()
    }

    /// Returns the metrics that a query names, after checking that they exist and have the labels in the query.
    ///
    /// # Panics
    /// The query names a metric or a label that does not exist, or no metric at all.
    pub fn check(&self, query: &str) -> BTreeSet<String> {
        let tokens = tokens(query);
        let mut used = BTreeSet::new();
        let mut grouped_by = BTreeSet::new();
        for (at, token) in tokens.iter().enumerate() {
            let next = tokens.get(at + 1).map(String::as_str);
            if ["by", "on", "without", "ignoring"].contains(&token.as_str()) && next == Some("(") {
                let list = tokens[at + 2..].iter().take_while(|it| *it != ")");
                grouped_by.extend(list.filter(|it| *it != ",").cloned());
            }
            let is_metric = token == "up"
                || token.contains(':')
                || ["sluicegate_", "process_"].iter().any(|prefix| token.starts_with(prefix));
            if !is_metric {
                continue;
            }
            let labels = self.labels.get(token);
            let labels = labels.unwrap_or_else(|| panic!("there is no metric {token}: {query}"));
            used.insert(token.clone());
            if next == Some("{") {
                let matchers: Vec<_> =
                    tokens[at + 2..].iter().take_while(|it| *it != "}").collect();
                for matcher in matchers.split(|it| *it == ",") {
                    let label = matcher[0].as_str();
                    assert!(
                        labels.contains(label) || TARGET_LABELS.contains(&label),
                        "{token} has no label {label}: {query}"
                    );
                }
            }
        }
        assert!(!used.is_empty(), "no metric in {query}");
        for label in grouped_by {
            let known = used.iter().any(|name| self.labels[name].contains(&label));
            assert!(
                known || TARGET_LABELS.contains(&label.as_str()),
                "no metric has the label {label}: {query}"
            );
        }
        used
    }
}

/// Splits a query into names and single other characters, without strings and comments.
fn tokens(query: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = query.chars().peekable();
    while let Some(first) = rest.next() {
        match first {
            '#' => while rest.next_if(|it| *it != '\n').is_some() {},
            '"' => {
                // No query here has an escaped quote.
                while rest.next().is_some_and(|it| it != '"') {}
            }
            _ if first.is_whitespace() => {}
            _ if is_name(first) => {
                let mut name = String::from(first);
                while let Some(more) = rest.next_if(|it| is_name(*it)) {
                    name.push(more);
                }
                tokens.push(name);
            }
            _ => tokens.push(first.into()),
        }
    }
    tokens
}

fn is_name(it: char) -> bool {
    it.is_ascii_alphanumeric() || ['_', ':'].contains(&it)
}
