//! Keys of limits files: which map has which keys, and the mistakes for other keys.

use sluicegate_core::rules::Mistake;

/// A kind of map in a limits file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapKind {
    /// The whole file.
    Root,
    /// `defaults`.
    Defaults,
    /// An element of `descriptors`.
    Descriptor,
    /// `rate_limit`.
    Limit,
    /// An element of `limits`.
    LimitOfList,
    /// An element of `replaces`.
    Replace,
    /// `response_body`.
    ResponseBody,
}

const ROOT: &[&str] =
    &["domain", "descriptors", "tenant", "counting", "on_failure", "defaults", "response_body"];
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
    "response_body",
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
const RESPONSE_BODY: &[&str] = &["content_type", "text"];

/// The keys of envoyproxy/ratelimit, which accepts each of them in every map, and ignores it where it has no meaning.
pub(super) const UPSTREAM_KEYS: &[&str] = &[
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

/// The keys of a map, and the fix if one of them is in another map.
const KEY_FIXES: [(&[&str], &str); 4] = [
    (LIMIT, "move it into rate_limit"),
    (DESCRIPTOR, "move it into a descriptor"),
    (ROOT, "move it to the top of the file"),
    (RESPONSE_BODY, "move it into response_body"),
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
            Self::ResponseBody => RESPONSE_BODY,
        }
    }

    /// Whether a key is accepted here with a warning, because envoyproxy/ratelimit accepts and ignores it.
    pub(super) fn tolerates(self, key: &str) -> bool {
        !matches!(self, Self::Defaults | Self::LimitOfList | Self::ResponseBody)
            && UPSTREAM_KEYS.contains(&key)
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
    if let Some((key, instead)) = key_fix(key) {
        return Mistake::MisplacedKey { key, instead };
    }
    let distance = |name: &str| strsim::damerau_levenshtein(name, key);
    let is_similar = |name: &&&str| {
        // The lengths are compared first, because the distance needs memory in proportion to their product.
        key.len() <= name.len() * 2 && distance(name) <= (key.len() / 3).max(1)
    };
    let nearest = known.iter().filter(is_similar).min_by_key(|name| distance(name));
    let instead = match nearest {
        Some(name) => format!("did you mean {name}?"),
        None => format!("use one of {}", known.join(", ")),
    };
    Mistake::UnknownKey { column, instead }
}

/// The key with this name, and the fix if it is in another map; `None` for an unknown key.
fn key_fix(key: &str) -> Option<(&'static str, &'static str)> {
    KEY_FIXES.iter().find_map(|(keys, fix)| Some((*keys.iter().find(|it| **it == key)?, *fix)))
}

/// A key as paths show it: known keys by name, all others as `*`, because the file may not be a limits file.
pub(super) fn path_step(key: &str) -> &'static str {
    if key == "<<" {
        return "<<";
    }
    key_fix(key).map_or("*", |(key, _)| key)
}
