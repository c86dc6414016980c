//! Results of all rounds.

use sluicegate_core::Algorithm;

use crate::{load::Load, measure::Sample, variant::Variant};

/// A value of a sample.
pub(crate) type Value = fn(&Sample) -> f64;

/// The results of a load on a server.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// The load.
    pub(crate) load: Load,
    /// The server.
    pub(crate) variant: Variant,
    /// A sample of each round.
    pub(crate) samples: Vec<Sample>,
    /// Allocations per request, if they were counted.
    pub(crate) allocations: Option<f64>,
}

impl Row {
    /// The median of all rounds.
    pub(crate) fn median(&self, value: Value) -> f64 {
        median(&Vec::from_iter(self.samples.iter().map(value)))
    }
}

/// The results of all loads on all servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows(Vec<Row>);

impl Rows {
    /// Adds the sample of a round.
    pub(crate) fn add(&mut self, load: Load, variant: Variant, sample: Sample) {
        match self.0.iter_mut().find(|row| row.load == load && row.variant == variant) {
            Some(row) => row.samples.push(sample),
            None => self.0.push(Row { load, variant, samples: vec![sample], allocations: None }),
        }
    }

    /// Adds allocations per request.
    pub(crate) fn count(&mut self, load: &Load, variant: Variant, allocations: f64) {
        let mut rows = self.0.iter_mut();
        let row = rows.find(|row| row.load == *load && row.variant == variant);
        row.unwrap().allocations = Some(allocations);
    }

    /// All rows, in the order of measurement.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Row> {
        self.0.iter()
    }

    /// The samples of all rounds.
    ///
    /// # Panics
    /// The load was not measured on this server.
    pub(crate) fn samples(&self, load: &Load, variant: Variant) -> &[Sample] {
        let row = self.0.iter().find(|row| row.load == *load && row.variant == variant);
        &row.unwrap().samples
    }

    /// In each round, a server's value divided by that of the empty server.
    pub(crate) fn ratios(&self, load: &Load, variant: Variant, value: Value) -> Vec<f64> {
        self.both(load, variant, |it, empty| value(it) / value(empty))
    }

    /// In each round, a value computed from a server's sample and that of the empty server.
    pub(crate) fn both(
        &self,
        load: &Load,
        variant: Variant,
        value: impl Fn(&Sample, &Sample) -> f64,
    ) -> Vec<f64> {
        let empty = self.samples(load, Variant::Empty);
        self.samples(load, variant).iter().zip(empty).map(|(it, empty)| value(it, empty)).collect()
    }
}

/// All results that the targets concern.
#[derive(Clone, Debug, Default)]
pub(crate) struct Results {
    /// The loads of the targets.
    pub(crate) rows: Rows,
    /// The loads of one body, sent by h2load.
    pub(crate) h2load: Rows,
    /// In each round, CPU of Redis for a raw pair of commands in a pipeline, in µs.
    pub(crate) raw_pairs: Vec<f64>,
    /// CPU of Redis, in µs, for a counter in a call of Sluicegate's.
    pub(crate) called: Vec<f64>,
    /// In each round, the round trip of a script, in µs.
    pub(crate) round_trips: Vec<f64>,
    /// In each round, scripts called per refused request in a flood.
    pub(crate) flood_calls: Vec<f64>,
    /// For each kind of rules: the cost of matching with many rules, divided by that with few.
    pub(crate) matching: Vec<(&'static str, f64)>,
    /// Bytes of a counter in the memory store.
    pub(crate) memory_bytes: Vec<(Algorithm, f64)>,
    /// Bytes of a counter in Redis.
    pub(crate) redis_bytes: Vec<(Algorithm, f64)>,
}

/// The median; of an even number of values the lower one in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted[(sorted.len() - 1) / 2]
}
