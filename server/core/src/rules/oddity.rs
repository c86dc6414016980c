//! What can be served but is probably not meant.

use std::fmt;

use thiserror::Error;

use super::file::Place;

/// Something that can be served but is probably not what was meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileWarning {
    /// Where.
    pub place: Place,
    /// What, and what to do about it.
    pub oddity: Oddity,
}

impl fmt::Display for CompileWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.oddity)
    }
}

/// What can be odd about limits files. The text says what to do about it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Oddity {
    /// A key that is read elsewhere, and ignored where it stands.
    #[error("key {key:?} is ignored here; {instead}")]
    Misplaced {
        /// The key.
        key: &'static str,
        /// Where it belongs.
        instead: &'static str,
    },
    /// A key of one map, of which the last counts.
    #[error(
        "key {key:?} stands twice in one map, first in line {line}, and this one counts; remove the other"
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
    FurtherDocument,
    /// Counts as zero.
    #[error(
        "requests_per_unit is missing, so the rule refuses everything; write 0 if that is meant"
    )]
    NoRequests,
    /// An earlier pattern matches all that this one does.
    #[error(
        "never reached, because the pattern {earlier:?} above it matches the same values; put it first"
    )]
    Hidden {
        /// The earlier pattern.
        earlier: String,
    },
    /// A pattern matches every value, and goes before the key alone.
    #[error(
        "never reached, because the pattern {pattern:?} of the same key matches every value; remove one of them"
    )]
    HiddenKey {
        /// The pattern.
        pattern: String,
    },
    /// A star that is no pattern.
    #[error(
        "the * in the key is an ordinary character here; a pattern goes into value, keys are matched exactly"
    )]
    StarInKey,
    /// Two nodes that are one to envoyproxy/ratelimit.
    #[error(
        "envoyproxy/ratelimit joins key and value by _ and takes this for a duplicate of {other} in {place}; here \
         they differ, so rename one if both servers are to read the file"
    )]
    Joined {
        /// Key and value of the other node.
        other: String,
        /// Where it is.
        place: String,
    },
    /// A key that says something about limits, where there is none.
    #[error(
        "{0} has no effect on a descriptor without a limit, and is not passed on to those below; move it to a \
         descriptor with a limit"
    )]
    NoLimit(&'static str),
    /// A key that says something about the rules here and below, where there are none.
    #[error("{0} has no effect, because there is no limit here or below; remove it")]
    NoLimitBelow(&'static str),
    /// A key that says how values are shown, where they are not.
    #[error(
        "{0} has no effect beside share_threshold, because all values are shown as the pattern; remove one of them"
    )]
    SharedValue(&'static str),
    /// Shadow mode is the stronger.
    #[error(
        "quota_mode has no effect beside shadow_mode, which never refuses anybody; remove one of them"
    )]
    QuotaInShadow,
    /// A limit that does not apply.
    #[error("{0} has no effect beside unlimited; remove one of them")]
    BesideUnlimited(&'static str),
    /// `replaces` names what is not there.
    #[error(
        "no limit of the domain is named {0:?}, so nothing is replaced; correct the name or remove it"
    )]
    NameUnknown(String),
    /// `replaces` names more than one limit.
    #[error(
        "all {count} limits named {name:?} are replaced, first those in {first} and {second}; give them different \
         names if one is meant"
    )]
    NameTwice {
        /// The name.
        name: String,
        /// How many limits have it.
        count: usize,
        /// Where one is.
        first: String,
        /// Where another is.
        second: String,
    },
    /// A name of several limits.
    #[error(
        "{count} limits are named {name:?}, the first in {first}; callers and replaces cannot tell them apart, so \
         give them different names"
    )]
    SameName {
        /// The name.
        name: String,
        /// How many have it.
        count: usize,
        /// Where the first is.
        first: String,
    },
    /// One request asks several slots that could be one.
    #[error(
        "one request can meet several limits below {key:?}, which a Redis Cluster keeps in different slots; set \
         tenant: {key} at the top of the file to keep and decide them together, once envoyproxy/ratelimit, which \
         refuses that key, no longer reads it"
    )]
    NoTenant {
        /// Key that the chains have in common.
        key: String,
    },
    /// Envoy does not escape names in headers.
    #[error(
        "the name has a double quote, which breaks Envoy's x-ratelimit-limit header; remove it"
    )]
    QuoteInName,
}
