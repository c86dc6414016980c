//! Placeholders of templates.

/// A placeholder, by the value that replaces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placeholder {
    Domain,
    Rule,
    Name,
    Limit,
    Window,
    Remaining,
    Reset,
    RetryAfter,
    RetryAfterMs,
}

/// Every placeholder with its name.
const PLACEHOLDERS: [(&str, Placeholder); 9] = [
    ("domain", Placeholder::Domain),
    ("rule", Placeholder::Rule),
    ("name", Placeholder::Name),
    ("limit", Placeholder::Limit),
    ("window", Placeholder::Window),
    ("remaining", Placeholder::Remaining),
    ("reset", Placeholder::Reset),
    ("retry_after", Placeholder::RetryAfter),
    ("retry_after_ms", Placeholder::RetryAfterMs),
];

/// All placeholders as a template writes them.
pub(super) fn all() -> String {
    PLACEHOLDERS.map(|(name, _)| format!("{{{name}}}")).join(", ")
}

impl Placeholder {
    pub(super) fn from_name(name: &str) -> Option<Self> {
        PLACEHOLDERS.iter().find(|(it, _)| *it == name).map(|(_, placeholder)| *placeholder)
    }

    pub(super) fn name(self) -> &'static str {
        let found = PLACEHOLDERS.iter().find(|(_, it)| *it == self);
        found.map_or("", |(name, _)| name)
    }
}
