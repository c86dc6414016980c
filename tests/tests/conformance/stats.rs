//! `/stats`: values, and their growth.

use std::collections::BTreeMap;

/// Name → value.
pub(crate) type Page = BTreeMap<String, u64>;

/// Prefix of every name.
const SERVICE: &str = "ratelimit.service.";
const RULES: &str = "rate_limit.";

/// Short names of the statistics of a rule, in the order of `/stats`.
const WORDS: [(&str, &str); 6] = [
    ("total_hits", "total"),
    ("over_limit", "over"),
    ("near_limit", "near"),
    ("within_limit", "within"),
    ("over_limit_with_local_cache", "local"),
    ("shadow_mode", "shadow"),
];

/// Parses the page.
pub(crate) fn read(body: &str) -> Result<Page, String> {
    let line = |line: &str| {
        let (name, value) = line.rsplit_once(": ").ok_or_else(|| format!("/stats: {line:?}"))?;
        let value = value.parse().map_err(|error| format!("/stats: {line:?}: {error}"))?;
        Ok((name.to_owned(), value))
    };
    body.lines().map(line).collect()
}

/// The growth in the notation of cases: the rule's key → `total 1 within 1`; other names → the number.
pub(crate) fn growth(before: &Page, after: &Page) -> BTreeMap<String, String> {
    let mut rules = BTreeMap::<String, BTreeMap<usize, (&str, u64)>>::new();
    let mut grown = BTreeMap::new();
    for (name, value) in after {
        let by = value.saturating_sub(before.get(name).copied().unwrap_or(0));
        let Some(name) = name.strip_prefix(SERVICE).filter(|_| by > 0) else { continue };
        let of_rule = name.strip_prefix(RULES).and_then(|name| {
            let (key, kind) = name.rsplit_once('.')?;
            let place = WORDS.iter().position(|(it, _)| *it == kind)?;
            Some((key, place))
        });
        match of_rule {
            Some((key, place)) => {
                rules.entry(key.to_owned()).or_default().insert(place, (WORDS[place].1, by));
            }
            None => {
                let name = name.strip_prefix(RULES).unwrap_or(name);
                grown.insert(name.to_owned(), by.to_string());
            }
        }
    }
    for (key, counts) in rules {
        let words: Vec<_> = counts.values().map(|(word, by)| format!("{word} {by}")).collect();
        grown.insert(key, words.join(" "));
    }
    grown
}

#[test]
fn growth_lists_only_increased_values() {
    let page = |over: u64| {
        let rule = "ratelimit.service.rate_limit.d.key_a.b";
        read(&format!(
            "{rule}.over_limit: {over}\n{rule}.total_hits: 7\nratelimit.service.rate_limit.x.domain_not_found: {over}\n"
        ))
        .unwrap()
    };
    let grown = growth(&page(1), &page(3));
    let expected = [("d.key_a.b", "over 2"), ("x.domain_not_found", "2")];
    assert_eq!(grown, expected.map(|(name, it)| (name.to_owned(), it.to_owned())).into());
    assert_eq!(growth(&Page::new(), &page(1))["d.key_a.b"], "total 7 over 1");
}
