//! Metrics of a server, from its Prometheus page.

use std::collections::BTreeMap;

/// The values of all series.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Parses the page.
    pub(crate) fn new(page: &str) -> Self {
        let series = page.lines().filter(|line| !line.starts_with('#'));
        let series = series.filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        });
        Self(series.collect())
    }

    /// The increase of a metric since `before`, in all series with these labels.
    pub(crate) fn since(&self, before: &Self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let difference = self.sum(name, labels) - before.sum(name, labels);
        // Counts are whole numbers, far below the largest exact double.
        format!("{difference:.0}").parse().unwrap()
    }

    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels: Vec<_> =
            labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
        let series = self.0.iter().filter(|(series, _)| {
            let rest = series.strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
                && labels.iter().all(|label| series.contains(label))
        });
        series.map(|(_, value)| value).sum()
    }
}
