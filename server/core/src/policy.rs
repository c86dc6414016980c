//! Counting and failure policies of rules.

/// How hits are charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counting {
    /// A request that any enforced rule refuses is charged nowhere.
    #[default]
    Free,
    /// For costs known afterwards: hits are charged in full even past the limit, and allowed
    /// if any were left before.
    Debit,
    /// As envoyproxy/ratelimit counts: each descriptor by itself, refused hits included.
    Upstream,
}

impl Counting {
    /// Every kind of counting.
    pub const ALL: [Self; 3] = [Self::Free, Self::Debit, Self::Upstream];

    /// The name in limits files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Debit => "debit",
            Self::Upstream => "upstream",
        }
    }
}

/// Failure policies: what answers if the store does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// The hits pass without counting.
    Allow,
    /// The hits are refused.
    Deny,
    /// This process decides by itself, against its share of the limit.
    #[default]
    Local,
    /// The request is answered with an error, so that the caller's failure mode decides.
    Defer,
}

impl OnFailure {
    /// Every policy.
    pub const ALL: [Self; 4] = [Self::Allow, Self::Deny, Self::Local, Self::Defer];

    /// The name in limits files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Local => "local",
            Self::Defer => "defer",
        }
    }
}
