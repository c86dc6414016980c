//! Random descriptors and trees of rules: a rule that matches has a node for each entry, whose value or pattern
//! matches.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use sluicegate_core::request::Entry;

#[derive(Arbitrary, Debug)]
struct Input {
    /// Each rule as its levels.
    rules: Vec<Vec<Level>>,
    entries: Vec<(Key, Text)>,
}

#[derive(Arbitrary, Debug)]
struct Level {
    key: Key,
    value: Option<Text>,
}

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Key {
    A,
    B,
    Both,
}

impl Key {
    const fn text(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
            Self::Both => "a_b",
        }
    }
}

/// A value of a small alphabet, so that patterns often match.
#[derive(Arbitrary, Debug)]
struct Text(Vec<Letter>);

#[derive(Arbitrary, Debug, Clone, Copy)]
enum Letter {
    X,
    Y,
    Star,
    Slash,
}

impl Text {
    fn text(&self) -> String {
        let letter = |letter: &Letter| match letter {
            Letter::X => 'x',
            Letter::Y => 'y',
            Letter::Star => '*',
            Letter::Slash => '/',
        };
        self.0.iter().take(8).map(letter).collect()
    }
}

fuzz_target!(|input: Input| {
    let mut yaml = String::from("domain: d\ndescriptors:\n");
    for rule in input.rules.iter().take(8).filter(|rule| !rule.is_empty()) {
        push(&mut yaml, &rule[..rule.len().min(6)], 0);
    }
    let Ok(rules) = sluicegate_limits::compile_text("fuzz.yaml", &yaml) else { return };
    let Some(domain) = rules.domain("d") else { return };
    let values: Vec<_> = input.entries.iter().map(|(key, value)| (key.text(), value.text())).collect();
    let entries: Vec<_> = values
        .iter()
        .map(|(key, value)| Entry { key: key.as_bytes(), value: value.as_bytes() })
        .collect();
    if let Some(rule) = domain.find(&entries).rule {
        let expected = fits(&input.rules, &values);
        assert!(expected, "{} does not lead to {:?}", rule.path, values);
    }
});

fn push(yaml: &mut String, levels: &[Level], depth: usize) {
    let Some((level, below)) = levels.split_first() else { return };
    let indent = "  ".repeat(depth);
    yaml.push_str(&format!("{indent}- key: {}\n", level.key.text()));
    if let Some(value) = &level.value {
        yaml.push_str(&format!("{indent}  value: \"{}\"\n", value.text()));
    }
    if below.is_empty() {
        yaml.push_str(&format!("{indent}  rate_limit: {{unit: minute, requests_per_unit: 1}}\n"));
    } else {
        yaml.push_str(&format!("{indent}  descriptors:\n"));
        push(yaml, below, depth + 1);
    }
}

/// Whether some rule has one level for each entry, each of which matches its entry.
fn fits(rules: &[Vec<Level>], values: &[(&str, String)]) -> bool {
    rules.iter().take(8).any(|rule| {
        let levels = &rule[..rule.len().min(6)];
        levels.len() == values.len()
            && levels.iter().zip(values).all(|(level, (key, value))| {
                let pattern = level.value.as_ref().map(Text::text).filter(|it| !it.is_empty());
                level.key.text() == *key && pattern.is_none_or(|pattern| glob(&pattern, value))
            })
    })
}

/// A simple implementation, for short texts.
fn glob(pattern: &str, value: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == value,
        Some((head, tail)) => value.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|at| glob(tail, &rest[at..]))
        }),
    }
}
