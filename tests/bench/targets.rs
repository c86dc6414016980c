//! The targets, and whether they are met.

use std::fmt;

use crate::{
    load::{Load, Shape, Tenants},
    results::{Results, median},
    table::{Table, text},
    variant::Variant,
};

/// A target.
struct Target {
    what: String,
    bound: Bound,
    /// A better value, which is the goal.
    aim: Option<f64>,
    /// Number of digits after the decimal point.
    digits: usize,
    /// The measured value of each round.
    measured: Vec<f64>,
}

/// The bound of a value.
#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    fn is_met(self, measured: f64) -> bool {
        match self {
            Self::AtMost(bound) => measured <= bound,
            Self::AtLeast(bound) => measured >= bound,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(formatter, "≤ {bound}"),
            Self::AtLeast(bound) => write!(formatter, "≥ {bound}"),
        }
    }
}

/// The loads of the targets.
pub(crate) struct TargetLoads {
    /// Three limits, and more concurrent requests than the server can answer at once, all equal.
    pub(crate) one: Load,
    /// The same with many tenants.
    pub(crate) many: Load,
    /// One request at a time.
    pub(crate) idle: Load,
}

impl TargetLoads {
    /// `tenants`: number of tenants of the load with many.
    pub(crate) const fn new(tenants: usize) -> Self {
        Self {
            one: Load::plain(Shape::BUSY, Tenants::One),
            many: Load::plain(Shape::BUSY, Tenants::Uniform(tenants)),
            idle: Load::plain(Shape::IDLE, Tenants::One),
        }
    }

    /// All loads of the targets.
    pub(crate) const fn all(&self) -> [Load; 3] {
        [self.one, self.many, self.idle]
    }
}

/// The table of the targets, with the median, the least and the greatest value of all rounds.
pub(crate) fn table(results: &Results, loads: &TargetLoads) -> Table {
    let mut table = Table::new(&["what", "target", "aim", "met"], &["measured", "least", "most"]);
    for target in targets(results, loads) {
        let Target { what, bound, aim, digits, measured } = target;
        let median = median(&measured);
        let least = measured.iter().copied().fold(f64::INFINITY, f64::min);
        let most = measured.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        table.add(vec![
            what,
            bound.to_string(),
            aim.map(|aim| aim.to_string()).unwrap_or_default(),
            if bound.is_met(median) { "yes" } else { "**no**" }.to_owned(),
            text(median, digits),
            text(least, digits),
            text(most, digits),
        ]);
    }
    table
}

fn targets(results: &Results, loads: &TargetLoads) -> Vec<Target> {
    use Bound::{AtLeast, AtMost};
    let Results { rows, h2load, .. } = results;
    let target = |what: &str, bound, aim, digits, measured| Target {
        what: what.to_owned(),
        bound,
        aim,
        digits,
        measured,
    };
    let cpu = |load, variant| rows.ratios(load, variant, |it| it.cpu);
    let rate = |rows: &crate::results::Rows, load| rows.ratios(load, Variant::Redis, |it| it.rate);
    let latency = rows.both(&loads.idle, Variant::Redis, |it, empty| it.p50 - empty.p50);
    let mut targets = vec![
        target(
            "memory, one tenant: CPU ÷ empty",
            AtMost(1.2),
            None,
            2,
            cpu(&loads.one, Variant::Memory),
        ),
        target(
            "memory, many tenants: CPU ÷ empty",
            AtMost(1.2),
            None,
            2,
            cpu(&loads.many, Variant::Memory),
        ),
        target(
            "one Redis, one tenant: CPU ÷ empty",
            AtMost(1.65),
            Some(1.5),
            2,
            cpu(&loads.one, Variant::Redis),
        ),
        target(
            "one Redis, many tenants: CPU ÷ empty",
            AtMost(1.65),
            Some(1.5),
            2,
            cpu(&loads.many, Variant::Redis),
        ),
        target(
            "one Redis, one tenant, h2load: requests/s ÷ empty",
            AtLeast(0.5),
            Some(0.55),
            2,
            rate(h2load, &loads.one),
        ),
        target(
            "one Redis, many tenants: requests/s ÷ empty",
            AtLeast(0.5),
            Some(0.55),
            2,
            rate(rows, &loads.many),
        ),
        target(
            "Redis CPU per counter in a call ÷ raw `INCRBY` + `EXPIRE`",
            AtMost(1.2),
            Some(0.85),
            2,
            divided(results.called.iter().copied(), &results.raw_pairs),
        ),
        target(
            "cluster, many tenants: CPU ÷ empty",
            AtMost(2.2),
            None,
            2,
            cpu(&loads.many, Variant::Cluster),
        ),
        target(
            "idle: p50 on one Redis − p50 empty, ÷ one `EVALSHA`",
            AtMost(1.6),
            None,
            2,
            divided(latency, &results.round_trips),
        ),
        target(
            "flood on one key: Redis calls per refused request",
            AtMost(0.001),
            None,
            6,
            results.flood_calls.clone(),
        ),
    ];
    for (kind, ratio) in &results.matching {
        let what = format!("matching, {kind}: many rules ÷ few");
        targets.push(target(&what, AtMost(1.2), None, 2, vec![*ratio]));
    }
    for (algorithm, bytes) in &results.memory_bytes {
        let what = format!("memory, {}: bytes per counter", algorithm.name());
        targets.push(target(&what, AtMost(160.0), None, 0, vec![*bytes]));
    }
    for (algorithm, bytes) in &results.redis_bytes {
        let what = format!("one Redis, {}: bytes per counter", algorithm.name());
        targets.push(target(&what, AtMost(200.0), None, 0, vec![*bytes]));
    }
    targets
}

/// Divides the values of each round.
fn divided(dividends: impl IntoIterator<Item = f64>, divisors: &[f64]) -> Vec<f64> {
    dividends.into_iter().zip(divisors).map(|(dividend, divisor)| dividend / divisor).collect()
}
