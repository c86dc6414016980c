//! Warnings about limits files: valid but probably unintended.

use std::fmt;

use thiserror::Error;

use super::file::SourceLocation;

/// A warning with its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileWarning {
    /// Where.
    pub location: SourceLocation,
    /// The warning and its fix.
    pub warning: Warning,
}

impl fmt::Display for CompileWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.location, self.warning)
    }
}

/// Kinds of warnings. The text names the fix.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Warning {
    /// A key in the wrong place, where it is ignored.
    #[error("key {key:?} is ignored here; {instead}")]
    Misplaced {
        /// The key.
        key: &'static str,
        /// Where it belongs.
        instead: &'static str,
    },
    /// A repeated key of one map. The last one counts.
    #[error(
        "key {key:?} occurs twice in one map, first in line {line}; this one counts, so remove the other"
    )]
    DuplicateKey {
        /// The key.
        key: String,
        /// Line of the first.
        line: usize,
    },
    /// The rest of a file is not loaded.
    #[error(
        "a further YAML document begins here and is ignored, as by envoyproxy/ratelimit: only the first of a file is \
         loaded; move it to a file of its own"
    )]
    ExtraDocument,
    /// Counts as zero.
    #[error(
        "requests_per_unit is missing, so the rule refuses everything; write 0 if that is meant"
    )]
    MissingRequests,
    /// An earlier pattern matches all that this one does.
    #[error(
        "never reached, because the pattern {earlier:?} above it matches the same values; put it first"
    )]
    HiddenPattern {
        /// The earlier pattern.
        earlier: String,
    },
    /// A pattern matches every value, and takes precedence over the key alone.
    #[error(
        "never reached, because the pattern {pattern:?} of the same key matches every value; remove one of them"
    )]
    HiddenKey {
        /// The pattern.
        pattern: String,
    },
    /// A `*` in a key, which is not a pattern.
    #[error(
        "the * in the key is an ordinary character here; a pattern goes into value, keys are matched exactly"
    )]
    StarInKey,
    /// Two nodes that are equal for envoyproxy/ratelimit.
    #[error(
        "envoyproxy/ratelimit joins key and value by _ and takes this for a duplicate of {other} in {location}; here \
         they differ, so rename one if both servers are to read the file"
    )]
    SameUpstreamKey {
        /// Key and value of the other node.
        other: String,
        /// Its location.
        location: String,
    },
    /// A key about limits on a node without a limit.
    #[error(
        "{0} has no effect on a descriptor without a limit, and is not passed on to those below; move it to a \
         descriptor with a limit"
    )]
    IgnoredWithoutLimit(&'static str),
    /// A key about the rules here and below, where there are none.
    #[error("{0} has no effect, because there is no limit here or below; remove it")]
    IgnoredWithoutLimitBelow(&'static str),
    /// A key about how values are shown, where they are not shown.
    #[error(
        "{0} has no effect beside share_threshold, because all values are shown as the pattern; remove one of them"
    )]
    IgnoredForSharedValue(&'static str),
    /// Quota mode has no effect in shadow mode.
    #[error(
        "quota_mode has no effect beside shadow_mode, which refuses no request; remove one of them"
    )]
    QuotaInShadow,
    /// A limit that does not apply.
    #[error("{0} has no effect beside unlimited; remove one of them")]
    IgnoredByUnlimited(&'static str),
    /// `replaces` names a limit that does not exist.
    #[error(
        "no limit of the domain is named {0:?}, so nothing is replaced; correct or remove the name"
    )]
    NameUnknown(String),
    /// `replaces` names more than one limit.
    #[error(
        "all {count} limits named {name:?} are replaced, first those in {first} and {second}; give them different \
         names if one is meant"
    )]
    ReplacesSeveral {
        /// The name.
        name: String,
        /// Number of limits with this name.
        count: usize,
        /// Location of one.
        first: String,
        /// Location of another.
        second: String,
    },
    /// A name of several limits.
    #[error(
        "{count} limits are named {name:?}, the first in {first}; callers and replaces cannot tell them apart, so \
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
    /// One request uses several slots, where a tenant would give one.
    #[error(
        "one request can meet several limits below {key:?}, which a Redis Cluster keeps in different slots; set \
         tenant: {key} at the top of the file to keep and decide them together, once envoyproxy/ratelimit, which \
         refuses that key, no longer reads it"
    )]
    TenantSuggested {
        /// Key that the chains have in common.
        key: String,
    },
    /// Envoy does not escape names in headers.
    #[error(
        "the name has a double quote, which breaks Envoy's x-ratelimit-limit header; remove it"
    )]
    QuoteInName,
}
