//! Stats keys: names of rules in metrics, made of the keys and values on their path.
//!
//! With `value_to_metric` and `detailed_metric` a name has values of the request. With `share_threshold` it has the
//! pattern.

use std::{borrow::Cow, net::Ipv4Addr};

use super::file::DescriptorNode;
use crate::{key::DigestCache, request::Entry};

/// The stats key of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatsKey {
    /// A name that is the same for all requests.
    Fixed(Box<str>),
    /// A name that has values of the request: one part for each level.
    ByValue(Box<[StatsKeyPart]>),
}

/// The part of a stats key for one level of the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatsKeyPart {
    /// Key and value, as configured.
    Text(Box<str>),
    /// The key, which is followed by the value of the request at this level.
    KeyAndRequestValue(Box<str>),
}

impl StatsKey {
    /// The stats key of a rule. `nodes` are those on the path to it, the last of which has the rule.
    #[must_use]
    pub(super) fn new(nodes: &[&DescriptorNode]) -> Self {
        let detailed = nodes.last().is_some_and(|leaf| leaf.detailed_metric);
        let parts: Vec<StatsKeyPart> =
            nodes.iter().map(|node| StatsKeyPart::of(node, detailed)).collect();
        if parts.iter().any(|part| matches!(part, StatsKeyPart::KeyAndRequestValue(_))) {
            return Self::ByValue(parts.into());
        }
        let texts: Vec<&str> = parts.iter().map(StatsKeyPart::text).collect();
        Self::Fixed(texts.join(".").into())
    }

    /// The name for a descriptor with these entries. A digest replaces each long value, as in counter keys.
    #[must_use]
    pub fn for_entries<'v>(
        &self,
        entries: &[Entry<'v>],
        digests: &mut DigestCache<'v>,
    ) -> Cow<'_, str> {
        let parts = match self {
            Self::Fixed(name) => return Cow::Borrowed(name),
            Self::ByValue(parts) => parts,
        };
        let mut name = String::new();
        for (position, part) in parts.iter().enumerate() {
            if position > 0 {
                name.push('.');
            }
            name.push_str(part.text());
            let value = entries.get(position).map(|entry| entry.value).unwrap_or_default();
            if matches!(part, StatsKeyPart::KeyAndRequestValue(_)) && !value.is_empty() {
                name.push('_');
                match digests.for_long_value(value) {
                    Some(digest) => name.push_str(digest.as_str()),
                    None => name.push_str(&sanitize(&String::from_utf8_lossy(value))),
                }
            }
        }
        Cow::Owned(name)
    }
}

impl StatsKeyPart {
    fn of(node: &DescriptorNode, detailed: bool) -> Self {
        let value = node.value.as_ref().map(|value| &*value.value).filter(|it| !it.is_empty());
        let by_value = (detailed || node.value_to_metric) && !node.share_threshold;
        match value {
            _ if by_value => Self::KeyAndRequestValue(sanitize(&node.key).into()),
            Some(value) => Self::Text(sanitize(&format!("{}_{value}", node.key)).into()),
            None => Self::Text(sanitize(&node.key).into()),
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::KeyAndRequestValue(text) => text,
        }
    }
}

/// Writes `_` in place of characters that metrics systems use as separators: `:`, `|`, control characters, and the dots
/// of IPv4 addresses.
#[must_use]
pub fn sanitize(text: &str) -> String {
    let mut sanitized = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let numeric = rest.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(numeric);
        if number.parse::<Ipv4Addr>().is_ok() {
            sanitized.push_str(&number.replace('.', "_"));
        } else {
            sanitized.push_str(number);
        }
        let other = after.find(|it: char| it.is_ascii_digit() || it == '.').unwrap_or(after.len());
        let (other, after) = after.split_at(other);
        sanitized
            .push_str(&other.replace(|it: char| matches!(it, ':' | '|') || it.is_control(), "_"));
        rest = after;
    }
    sanitized
}

#[cfg(test)]
mod tests {
    use super::sanitize;

    #[test]
    fn sanitize_replaces_separators() {
        for (text, sanitized) in [
            ("/foo:*:bar", "/foo_*_bar"),
            ("a|b", "a_b"),
            ("10.1.2.3", "10_1_2_3"),
            ("from 10.1.2.3:80", "from 10_1_2_3_80"),
            ("v1.2.3", "v1.2.3"),
            ("api.example.com", "api.example.com"),
            ("a\nb", "a_b"),
            ("", ""),
        ] {
            assert_eq!(sanitize(text), sanitized);
        }
    }
}
