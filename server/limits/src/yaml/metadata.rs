//! `metadata`: a free map, as far as JSON can say it.

use granit_parser::ScalarStyle;
use sluicegate_core::metadata::{self, Value};

use super::{Data, Fields, Node, Reader, Spot, is_null, scalar};

impl Reader<'_> {
    pub(super) fn metadata(&mut self, of: &Fields<'_, '_>) -> Option<metadata::Map> {
        let (spot, node) = of.get("metadata").filter(|(_, node)| !is_null(node))?;
        match self.free(&spot, node)? {
            Value::Map(map) => Some(map),
            _ => {
                self.wrong_type(&spot, node, "a map");
                None
            }
        }
    }

    /// A value of any shape; `None` if something in it is broken, and noted.
    fn free(&mut self, spot: &Spot, node: &Node<'_>) -> Option<Value> {
        match &node.data {
            Data::List(nodes) => {
                let values = nodes
                    .iter()
                    .enumerate()
                    .map(|(index, node)| self.free(&Spot::of(node, spot.path.index(index)), node));
                all(values).map(Value::List)
            }
            Data::Map(nodes) => {
                let mut merged = Vec::new();
                let entries: Vec<_> = nodes
                    .iter()
                    .filter_map(|(key, value)| {
                        let at = Spot::of(key, spot.path.clone());
                        if let Some(("<<", ScalarStyle::Plain)) = scalar(key) {
                            merged.push((at, value));
                            return None;
                        }
                        Some(self.name(&at, key).zip(self.free(&below(spot, key), value)))
                    })
                    .collect();
                let mut map: metadata::Map = all(entries.into_iter())?;
                for (at, node) in merged {
                    self.merge(&mut map, &at, node)?;
                }
                Some(Value::Map(map))
            }
            _ => match scalar(node) {
                _ if is_null(node) => Some(Value::Null),
                Some((text, ScalarStyle::Plain)) => {
                    let value = plain(text);
                    if value.is_none() {
                        self.wrong_type(spot, node, "a finite number, or a text in quotes");
                    }
                    value
                }
                Some((text, _)) => Some(Value::Text(text.into())),
                None => {
                    self.wrong_type(spot, node, "a text, a number, true or false, a list or a map");
                    None
                }
            },
        }
    }

    /// A key: JSON knows only texts.
    fn name(&mut self, at: &Spot, key: &Node<'_>) -> Option<Box<str>> {
        match scalar(key) {
            Some(_) if is_no_text(key) => {
                self.wrong_type(at, key, "the key in quotes");
                None
            }
            Some((name, _)) => Some(name.into()),
            None => {
                self.wrong_type(at, key, "a text as the key");
                None
            }
        }
    }

    /// Adds what `<<` names and the map has not.
    fn merge(&mut self, into: &mut metadata::Map, at: &Spot, node: &Node<'_>) -> Option<()> {
        let nodes = match &node.data {
            Data::List(nodes) => nodes,
            _ => std::slice::from_ref(node),
        };
        for node in nodes {
            let Value::Map(more) = self.free(at, node)? else {
                self.wrong_type(at, node, "a map");
                return None;
            };
            for (name, value) in more {
                into.entry(name).or_insert(value);
            }
        }
        Some(())
    }
}

/// Whether a key without quotes stands for something else than a text.
pub(super) fn is_no_text(key: &Node<'_>) -> bool {
    match scalar(key) {
        Some((text, ScalarStyle::Plain)) => {
            is_null(key) || !matches!(plain(text), Some(Value::Text(_)))
        }
        _ => false,
    }
}

/// A whole number that fits, as Go's reader takes it: 12, `1_000`, 0x1f, 0b11.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
pub(super) fn whole(text: &str) -> Option<u32> {
    let is_float = !text.starts_with(['0', '+']) && text.contains(['.', 'e', 'E']);
    let number = number(text).filter(|it| !is_float && it.fract() == 0.0)?;
    (0.0..=f64::from(u32::MAX)).contains(&number).then_some(number as u32)
}

/// Where the value of a key is noted.
fn below(spot: &Spot, key: &Node<'_>) -> Spot {
    Spot::of(key, spot.path.key("*"))
}

/// The kind of a scalar, in words that tell nothing of it but its length.
pub(super) fn kind_of(text: &str, style: ScalarStyle) -> String {
    let of_length = || {
        let length = text.chars().count();
        let s = if length == 1 { "" } else { "s" };
        format!("a text of {length} character{s}")
    };
    match (style, plain(text)) {
        (ScalarStyle::Plain, None | Some(Value::Number(_))) => "a number".to_owned(),
        (ScalarStyle::Plain, Some(Value::Bool(_))) => "a boolean".to_owned(),
        (ScalarStyle::Plain, Some(_)) => of_length(),
        _ => of_length() + " in quotes",
    }
}

/// All values, if none is missing. Unlike `collect` it looks at those behind a missing one, too: every mistake is
/// to be told.
fn all<T, C: FromIterator<T>>(values: impl Iterator<Item = Option<T>>) -> Option<C> {
    let values: Vec<_> = values.collect();
    values.into_iter().collect()
}

/// What a text without quotes stands for, as Go's reader of YAML 1.1 takes it; `None` for a number that JSON cannot
/// say.
fn plain(text: &str) -> Option<Value> {
    match text {
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => {
            Some(Value::Bool(true))
        }
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            Some(Value::Bool(false))
        }
        _ if is_special(text) => None,
        _ => match number(text) {
            Some(number) => number.is_finite().then_some(Value::Number(number)),
            None => Some(Value::Text(text.into())),
        },
    }
}

/// Whether it is what YAML calls infinity, or no number at all.
pub(super) fn is_special(text: &str) -> bool {
    let magnitude = text.strip_prefix(['+', '-']).unwrap_or(text);
    matches!(magnitude, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN")
}

/// A number: 12, -1.5, 1e3, `1_000`, 0x1f, 0o17, 017, 0b11.
#[expect(clippy::cast_precision_loss, reason = "numbers of JSON are doubles")]
fn number(text: &str) -> Option<f64> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if !rest.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    let digits = rest.replace('_', "");
    let radix = |prefixes: [&str; 2], radix| {
        let digits = prefixes.iter().find_map(|prefix| digits.strip_prefix(prefix))?;
        u64::from_str_radix(digits, radix).ok()
    };
    let whole = radix(["0x", "0X"], 16)
        .or_else(|| radix(["0b", "0B"], 2))
        .or_else(|| radix(["0o", "0O"], 8))
        .or_else(|| radix(["0", "0"], 8));
    let value = match whole {
        Some(whole) => whole as f64,
        None if digits
            .bytes()
            .all(|it| matches!(it, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-')) =>
        {
            digits.parse().ok()?
        }
        None => return None,
    };
    Some(sign * value)
}
