//! Keys of limits files: their places, and errors for keys in other places.

use sluicegate_core::rules::Mistake;

/// A kind of map in a limits file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapKind {
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

/// The keys of envoyproxy/ratelimit, which accepts each of them anywhere, and ignores it in the wrong place.
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

/// The map that a key belongs to, for the hint.
const KEY_PLACES: [(&[&str], &str); 3] = [
    (LIMIT, "move it into rate_limit"),
    (DESCRIPTOR, "move it into a descriptor"),
    (ROOT, "move it to the top of the file"),
];

impl MapKind {
    /// The keys of this kind of map.
    pub(super) const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Root => ROOT,
            Self::Defaults => DEFAULTS,
            Self::Descriptor => DESCRIPTOR,
            Self::Limit | Self::LimitOfList => LIMIT,
            Self::Replace => REPLACE,
        }
    }

    /// Whether a key is accepted here, because envoyproxy/ratelimit loads the file and ignores it.
    pub(super) fn tolerates(self, key: &str) -> bool {
        !matches!(self, Self::Defaults | Self::LimitOfList) && UPSTREAM.contains(&key)
    }

    /// The mistake for a key that is not allowed here.
    pub(super) fn unknown_key(self, key: &str, column: usize) -> Mistake {
        if self == Self::Root
            && let Some(key) = DEFAULTS.iter().find(|it| **it == key)
        {
            return Mistake::MisplacedKey { key, instead: "move it into defaults" };
        }
        unknown_key(key, column, self.keys())
    }
}

/// The mistake for an unknown key.
pub(super) fn unknown_key(key: &str, column: usize, known: &[&str]) -> Mistake {
    if let Some((key, instead)) = key_place(key) {
        return Mistake::MisplacedKey { key, instead };
    }
    let distance = |name: &str| strsim::damerau_levenshtein(name, key);
    let close = |name: &&&str| {
        // The comparison takes memory of the product of both lengths.
        key.len() <= name.len() * 2 && distance(name) <= (key.len() / 3).max(1)
    };
    let nearest = known.iter().filter(close).min_by_key(|name| distance(name));
    let instead = match nearest {
        Some(name) => format!("did you mean {name}?"),
        None => format!("use one of {}", known.join(", ")),
    };
    Mistake::UnknownKey { column, instead }
}

/// The known key of this name, and the map that it belongs to.
fn key_place(key: &str) -> Option<(&'static str, &'static str)> {
    KEY_PLACES.iter().find_map(|(keys, home)| Some((*keys.iter().find(|it| **it == key)?, *home)))
}

/// A key in a path: known keys by name, all others as `*`.
pub(super) fn path_step(key: &str) -> &'static str {
    if key == "<<" {
        return "<<";
    }
    key_place(key).map_or("*", |(key, _)| key)
}
