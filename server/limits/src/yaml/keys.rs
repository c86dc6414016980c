//! Which keys stand where, and what is said of those that stand elsewhere.

use sluicegate_core::rules::Problem;

/// A kind of map in a limits file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Root,
    Defaults,
    Descriptor,
    /// `rate_limit`.
    Limit,
    /// One of `limits`.
    LimitOfList,
    Replace,
}

const ROOT: &[&str] = &["domain", "descriptors", "tenant", "counting", "on_failure", "defaults"];
const DEFAULTS: &[&str] = &["algorithm"];
const DESCRIPTOR: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "limits",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
    "counting",
    "on_failure",
];
const LIMIT: &[&str] = &[
    "unit",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "algorithm",
    "window",
    "unit_multiplier",
    "burst",
];
const REPLACE: &[&str] = &["name"];

/// The keys of envoyproxy/ratelimit, which reads each of them anywhere, and ignores it where it makes no sense.
pub(super) const UPSTREAM: &[&str] = &[
    "domain",
    "descriptors",
    "key",
    "value",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

/// Which map a key belongs to, for the hint.
const HOMES: [(&[&str], &str); 3] = [
    (LIMIT, "move it into rate_limit"),
    (DESCRIPTOR, "move it into a descriptor"),
    (ROOT, "move it to the top of the file"),
];

impl Kind {
    /// The keys of such a map.
    pub(super) const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Root => ROOT,
            Self::Defaults => DEFAULTS,
            Self::Descriptor => DESCRIPTOR,
            Self::Limit | Self::LimitOfList => LIMIT,
            Self::Replace => REPLACE,
        }
    }

    /// Whether a key must be let stand here, because envoyproxy/ratelimit loads the file and ignores it.
    pub(super) fn tolerates(self, key: &str) -> bool {
        !matches!(self, Self::Defaults | Self::LimitOfList) && UPSTREAM.contains(&key)
    }

    /// What is wrong with a key that is not known here.
    pub(super) fn unknown(self, key: &str, column: usize) -> Problem {
        if self == Self::Root
            && let Some(key) = DEFAULTS.iter().find(|it| **it == key)
        {
            return Problem::MisplacedKey { key, instead: "move it into defaults" };
        }
        unknown(key, column, self.keys())
    }
}

/// What is wrong with a key that is none of those known.
pub(super) fn unknown(key: &str, column: usize, known: &[&str]) -> Problem {
    if let Some((key, instead)) = home(key) {
        return Problem::MisplacedKey { key, instead };
    }
    let distance = |name: &str| strsim::damerau_levenshtein(name, key);
    let close = |name: &&&str| {
        // Comparing takes memory for the product of both lengths.
        key.len() <= name.len() * 2 && distance(name) <= (key.len() / 3).max(1)
    };
    let nearest = known.iter().filter(close).min_by_key(|name| distance(name));
    let instead = match nearest {
        Some(name) => format!("did you mean {name}?"),
        None => format!("use one of {}", known.join(", ")),
    };
    Problem::UnknownKey { column, instead }
}

/// A key of limits files, if it is one: as it is written here, and where it belongs.
fn home(key: &str) -> Option<(&'static str, &'static str)> {
    HOMES.iter().find_map(|(keys, home)| Some((*keys.iter().find(|it| **it == key)?, *home)))
}

/// What a path calls a key: keys of limits files by their names, and all others `*`.
pub(super) fn step(key: &str) -> &'static str {
    if key == "<<" {
        return "<<";
    }
    home(key).map_or("*", |(key, _)| key)
}
