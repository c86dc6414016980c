//! Which keys stand where, and what is said of those that stand elsewhere.

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
    (LIMIT, "into rate_limit"),
    (DESCRIPTOR, "into a descriptor"),
    (ROOT, "to the top of the file"),
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

    /// What may have been meant by a key that is not known here.
    pub(super) fn hint(self, key: &str) -> String {
        if self == Self::Root && DEFAULTS.contains(&key) {
            return "move it into defaults".to_owned();
        }
        hint(key, self.keys())
    }
}

/// What may have been meant by a key that is none of those known.
pub(super) fn hint(key: &str, known: &[&str]) -> String {
    if let Some((_, home)) = HOMES.iter().find(|(keys, _)| keys.contains(&key)) {
        return format!("move it {home}");
    }
    let close = |name: &&&str| strsim::damerau_levenshtein(name, key) <= (key.len() / 3).max(1);
    let nearest =
        known.iter().filter(close).min_by_key(|name| strsim::damerau_levenshtein(name, key));
    match nearest {
        Some(name) => format!("did you mean {name}?"),
        None => format!("use one of {}", known.join(", ")),
    }
}
