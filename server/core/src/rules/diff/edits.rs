//! Changed keys of a rule or a domain.

use std::fmt::{self, Display};

use crate::{
    ResponseBody, Rule,
    metadata::{Map, Value},
    rule::{DisplayedRate, RuleLimit, RuleLimits},
    rules::{Domain, truncated},
};

/// Text for an absent value.
const NONE: &str = "none";

/// A changed key, with its old and new value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// The key.
    pub key: String,
    /// The old value, as text.
    pub from: String,
    /// The new value, as text.
    pub to: String,
    /// Whether counters restart: the change gives them other keys, and so they start from zero.
    pub resets_counters: bool,
}

impl Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, from, to, resets_counters } = self;
        let suffix = if *resets_counters { "; counters restart" } else { "" };
        write!(f, "{key} {from} -> {to}{suffix}")
    }
}

/// The changed settings of a domain.
pub(super) fn domain_edits(old: &Domain, new: &Domain) -> Vec<Edit> {
    let mut edits = Edits::default();
    let tenant = |domain: &Domain| {
        let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        domain.tenant.as_deref().map_or_else(|| NONE.to_owned(), text)
    };
    // Resets counters, because the tenant is the hash tag of their keys.
    edits.add_resetting("tenant", tenant(old), tenant(new));
    edits.response_body(old.response_body.as_deref(), new.response_body.as_deref());
    let (old, new) = (old.defaults, new.defaults);
    edits.add("defaults.algorithm", old.algorithm.name(), new.algorithm.name());
    edits.add("counting", old.counting.name(), new.counting.name());
    edits.add("on_failure", old.on_failure.name(), new.on_failure.name());
    edits.edits
}

/// The changed keys of a node's rule, which may have been added to the node or removed from it.
pub(super) fn rule_edits(old: Option<&Rule>, new: Option<&Rule>) -> Vec<Edit> {
    let mut edits = Edits::default();
    let (Some(old), Some(new)) = (old, new) else {
        let describe = |rule: Option<&Rule>| {
            rule.map_or_else(|| NONE.to_owned(), |rule| describe_limits(&rule.limits))
        };
        edits.add("limit", describe(old), describe(new));
        return edits.edits;
    };
    edits.limits(&old.limits, &new.limits);
    edits.add("counting", old.counting.name(), new.counting.name());
    edits.add("on_failure", old.on_failure.name(), new.on_failure.name());
    edits.add("shadow_mode", old.shadow_mode, new.shadow_mode);
    edits.add("quota_mode", old.quota_mode, new.quota_mode);
    edits.add("detailed_metric", old.detailed_metric, new.detailed_metric);
    edits.add("value_to_metric", old.value_to_metric, new.value_to_metric);
    let metadata =
        |rule: &Rule| rule.metadata.as_ref().map_or_else(|| NONE.to_owned(), describe_map);
    edits.add("metadata", metadata(old), metadata(new));
    edits.response_body(old.response_body.as_deref(), new.response_body.as_deref());
    edits.edits
}

/// The limits, as text.
pub(super) fn describe_limits(limits: &RuleLimits) -> String {
    match limits {
        RuleLimits::Unlimited { .. } => "unlimited".to_owned(),
        RuleLimits::Limited(limits) => {
            limits.iter().map(describe_limit).collect::<Vec<_>>().join(" and ")
        }
    }
}

fn describe_limit(limit: &RuleLimit) -> String {
    let burst = burst(limit).map_or_else(String::new, |burst| format!(", burst {burst}"));
    format!("{} ({}{burst})", limit.displayed, limit.limit.algorithm().name())
}

/// The burst, if it differs from the requests per window.
fn burst(limit: &RuleLimit) -> Option<u32> {
    let limit = limit.limit;
    let differs = limit.algorithm().has_burst() && limit.capacity() != limit.requests();
    differs.then(|| limit.capacity())
}

/// Collects changed keys.
#[derive(Default)]
struct Edits {
    edits: Vec<Edit>,
}

impl Edits {
    /// Adds a key, if its value has changed.
    fn add(&mut self, key: impl Into<String>, from: impl Display, to: impl Display) {
        self.push(key.into(), from.to_string(), to.to_string(), false);
    }

    /// Adds a key whose change resets counters, if its value has changed.
    fn add_resetting(&mut self, key: impl Into<String>, from: impl Display, to: impl Display) {
        self.push(key.into(), from.to_string(), to.to_string(), true);
    }

    fn push(&mut self, key: String, from: String, to: String, resets_counters: bool) {
        if from != to {
            self.edits.push(Edit { key, from, to, resets_counters });
        }
    }

    fn limits(&mut self, old: &RuleLimits, new: &RuleLimits) {
        match (old, new) {
            (
                RuleLimits::Unlimited { name: old_name, replaces: old },
                RuleLimits::Unlimited { name: new_name, replaces: new },
            ) => {
                self.names("", old_name.as_deref(), new_name.as_deref());
                self.replaces("", old, new);
            }
            (RuleLimits::Limited(old), RuleLimits::Limited(new)) => self.paired_limits(old, new),
            _ => self.add("limit", describe_limits(old), describe_limits(new)),
        }
    }

    /// Compares limits in pairs: those that share a counter, then the others in order.
    fn paired_limits(&mut self, old: &[RuleLimit], new: &[RuleLimit]) {
        let mut unpaired: Vec<Option<&RuleLimit>> = old.iter().map(Some).collect();
        let mut pairs: Vec<Option<&RuleLimit>> = new
            .iter()
            .map(|new| {
                let same = |old: &&mut Option<&RuleLimit>| {
                    old.is_some_and(|it| counter(it) == counter(new))
                };
                unpaired.iter_mut().find(same).and_then(Option::take)
            })
            .collect();
        let mut rest = unpaired.into_iter().flatten();
        for pair in pairs.iter_mut().filter(|pair| pair.is_none()) {
            *pair = rest.next();
        }
        let single = old.len() == 1 && new.len() == 1;
        for (index, (old, new)) in pairs.iter().zip(new).enumerate() {
            let at = format!("limits[{index}]");
            match old {
                Some(old) if single => self.limit("", old, new),
                Some(old) => self.limit(&format!("{at}."), old, new),
                None => self.add(at, NONE, describe_limit(new)),
            }
        }
        for removed in rest {
            self.add("limits", describe_limit(removed), NONE);
        }
        // The order matters, because overrides use the algorithm of the first limit.
        let [from, to] = [old, new].map(|limits| limits.iter().map(counter).collect::<Vec<_>>());
        if from != to && from.len() == to.len() && from.iter().all(|it| to.contains(it)) {
            let describe = |limits: &[RuleLimit]| {
                limits.iter().map(describe_limit).collect::<Vec<_>>().join(", ")
            };
            self.add("order of limits", describe(old), describe(new));
        }
    }

    /// Compares two limits. `at` is the path of the new one.
    fn limit(&mut self, at: &str, old: &RuleLimit, new: &RuleLimit) {
        let RuleLimit { limit: from, displayed: old_rate, name: old_name, replaces: old_replaces } =
            old;
        let RuleLimit { limit: to, displayed: new_rate, name: new_name, replaces: new_replaces } =
            new;
        self.add(format!("{at}requests_per_unit"), from.requests(), to.requests());
        let resets_counters = from.window() != to.window();
        self.push(format!("{at}window"), window(*old_rate), window(*new_rate), resets_counters);
        self.add_resetting(
            format!("{at}algorithm"),
            from.algorithm().name(),
            to.algorithm().name(),
        );
        let number =
            |burst: Option<u32>| burst.map_or_else(|| NONE.to_owned(), |it| it.to_string());
        self.add(format!("{at}burst"), number(burst(old)), number(burst(new)));
        self.names(at, old_name.as_deref(), new_name.as_deref());
        self.replaces(at, old_replaces, new_replaces);
    }

    fn response_body(&mut self, old: Option<&ResponseBody>, new: Option<&ResponseBody>) {
        if old == new {
            return;
        }
        let text = |body: Option<&ResponseBody>| body.map_or_else(|| NONE.to_owned(), truncated);
        let (key, resets_counters) = ("response_body".to_owned(), false);
        self.edits.push(Edit { key, from: text(old), to: text(new), resets_counters });
    }

    fn names(&mut self, at: &str, old: Option<&str>, new: Option<&str>) {
        let text =
            |name: Option<&str>| name.map_or_else(|| NONE.to_owned(), |it| format!("{it:?}"));
        self.add(format!("{at}name"), text(old), text(new));
    }

    fn replaces(&mut self, at: &str, old: &[Box<str>], new: &[Box<str>]) {
        self.add(format!("{at}replaces"), format!("{old:?}"), format!("{new:?}"));
    }
}

/// What identifies the limit's counter among those of its descriptor.
fn counter(limit: &RuleLimit) -> (crate::Algorithm, crate::Window) {
    (limit.limit.algorithm(), limit.limit.window())
}

fn window(rate: DisplayedRate) -> String {
    match rate.unit_multiplier {
        1 => rate.unit.name().to_owned(),
        units => format!("{units} {}s", rate.unit.name()),
    }
}

fn describe_map(map: &Map) -> String {
    let entries = map.iter().map(|(name, value)| format!("{name:?}: {}", describe_value(value)));
    let entries: Vec<_> = entries.collect();
    format!("{{{}}}", entries.join(", "))
}

fn describe_value(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(it) => it.to_string(),
        Value::Number(it) => it.to_string(),
        Value::Text(it) => format!("{it:?}"),
        Value::List(list) => {
            format!("[{}]", list.iter().map(describe_value).collect::<Vec<_>>().join(", "))
        }
        Value::Map(it) => describe_map(it),
    }
}
