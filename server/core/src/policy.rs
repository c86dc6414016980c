//! Counting and failure policies of rules.

/// How hits are charged: `counting` in limits files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Counting {
    /// Refusals are free: a request that any enforced rule refuses is charged nowhere.
    #[default]
    Free,
    /// For costs that are known afterwards: hits are charged in full, even past the limit. They are allowed if at least
    /// one hit remained before.
    Debit,
    /// As envoyproxy/ratelimit counts: each descriptor is charged by itself, even with hits that are refused.
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

/// Failure policy of a rule: what decides if the store does not. `on_failure` in limits files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// The hits pass without counting.
    Allow,
    /// The hits are refused.
    Deny,
    /// This process decides by itself, against its share of the limit. Refuses if there is no local fallback, or if the
    /// store was full.
    #[default]
    Local,
    /// The request is answered with an error, so that the caller's failure mode decides. Refuses if the store was full.
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
