//! Warnings about limits files: valid but probably unintended.

use std::fmt;

use thiserror::Error;

use super::file::SourceLocation;

/// A warning with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedWarning {
    /// The location.
    pub location: SourceLocation,
    /// The warning, whose text has the fix.
    pub warning: Warning,
}

impl fmt::Display for LocatedWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.warning)
    }
}

/// Kinds of warnings. The text says what happens and how to fix it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Warning {
    /// A key of limits files in a map where it is ignored.
    #[error("key {key:?} is ignored here; {instead}")]
    Misplaced {
        /// The key.
        key: &'static str,
        /// The fix: the map that it belongs to.
        instead: &'static str,
    },
    /// A map has a key twice. The last one counts.
    #[error(
        "key {key:?} occurs twice in one map, first in line {line}; this one counts, so remove the other"
    )]
    DuplicateKey {
        /// The key.
        key: String,
        /// Line of the first one, from 1.
        line: usize,
    },
    /// The file has more than one YAML document, of which only the first is loaded.
    #[error(
        "a further YAML document begins here and is ignored, as by envoyproxy/ratelimit: only the first of a file is \
         loaded; move it to a file of its own"
    )]
    ExtraDocument,
    /// `requests_per_unit` is missing, and counts as 0.
    #[error(
        "requests_per_unit is missing, so the rule refuses all requests; write 0 if that is intended"
    )]
    MissingRequests,
    /// A pattern is never reached, because an earlier one matches all values that it matches.
    #[error(
        "never reached, because the earlier pattern {earlier:?} matches the same values; move this one before it"
    )]
    HiddenPattern {
        /// The earlier pattern.
        earlier: String,
    },
    /// A node without a value is never reached, because a pattern of the same key matches every value.
    #[error(
        "never reached, because the pattern {pattern:?} of the same key matches every value; remove one of them"
    )]
    HiddenKey {
        /// The pattern.
        pattern: String,
    },
    /// A key has a `*`, which is an ordinary character there.
    #[error(
        "the * in the key is an ordinary character here; a pattern goes into value, keys are matched exactly"
    )]
    StarInKey,
    /// Two nodes are the same for envoyproxy/ratelimit.
    #[error(
        "envoyproxy/ratelimit joins key and value by _ and takes this for a duplicate of {other} in {location}; here \
         they differ, so rename one if both servers are to read the file"
    )]
    SameUpstreamKey {
        /// Key and value of the other node.
        other: String,
        /// Location of the other node.
        location: String,
    },
    /// A key that concerns limits is on a node without a limit.
    #[error(
        "{0} has no effect on a descriptor without a limit, and is not passed on to those below; move it to a \
         descriptor with a limit"
    )]
    IgnoredWithoutLimit(&'static str),
    /// A key that concerns the limits here and below is on a node without any.
    #[error("{0} has no effect, because there is no limit here or below; remove it")]
    IgnoredWithoutLimitBelow(&'static str),
    /// A key that adds values to metrics is beside `share_threshold`, which shows the pattern instead.
    #[error(
        "{0} has no effect beside share_threshold, because all values are shown as the pattern; remove one of them"
    )]
    IgnoredForSharedValue(&'static str),
    /// `quota_mode` is beside `shadow_mode` and has no effect.
    #[error(
        "quota_mode has no effect beside shadow_mode, which refuses no request; remove one of them"
    )]
    QuotaInShadow,
    /// A key of a limit is beside `unlimited` and has no effect.
    #[error("{0} has no effect beside unlimited; remove one of them")]
    IgnoredByUnlimited(&'static str),
    /// `replaces` names a limit that does not exist.
    #[error(
        "no limit of the domain is named {0:?}, so nothing is replaced; correct or remove the name"
    )]
    NameUnknown(String),
    /// `replaces` has a name that several limits have.
    #[error(
        "all {count} limits named {name:?} are replaced, for example those in {first} and {second}; give them different \
         names if only one is intended"
    )]
    ReplacesSeveral {
        /// The name.
        name: String,
        /// Number of limits with this name.
        count: usize,
        /// Location of the first.
        first: String,
        /// Location of the second.
        second: String,
    },
    /// Several limits have the same name.
    #[error(
        "{count} limits are named {name:?}, the first in {first}; callers and replaces cannot distinguish them, so \
         give them different names"
    )]
    DuplicateName {
        /// The name.
        name: String,
        /// Number of limits with this name.
        count: usize,
        /// Location of the first.
        first: String,
    },
    /// The limits that one request checks are on several slots, and would be on one slot if `tenant` were set.
    #[error(
        "a request can check several limits below {key:?}, whose counters are on different slots of a Redis Cluster; \
         set tenant: {key} at the top of the file to keep them on one slot and decide them together, once \
         envoyproxy/ratelimit, which rejects that key, no longer reads the file"
    )]
    TenantSuggested {
        /// The key that identifies the tenant.
        key: String,
    },
    /// The name of a limit has a double quote, which Envoy does not escape in headers.
    #[error(
        "the name has a double quote, which breaks Envoy's x-ratelimit-limit header; remove it"
    )]
    QuoteInName,
}
