//! Interpretation of scalars: nulls, numbers and booleans, as Go's YAML reader interprets them.

use granit_parser::ScalarStyle;
use sluicegate_core::metadata::Value;

use super::node::{YamlNode, YamlNodeData};

/// The text of a scalar as written, and its style; `None` for other nodes.
pub(super) fn scalar<'n>(node: &'n YamlNode<'_>) -> Option<(&'n str, ScalarStyle)> {
    match &node.data {
        YamlNodeData::Scalar(text, style) => Some((text, *style)),
        _ => None,
    }
}

/// Whether a node is null: an empty scalar, or `null` without quotes.
pub(super) fn is_null(node: &YamlNode<'_>) -> bool {
    matches!(scalar(node), Some(("" | "~" | "null" | "Null" | "NULL", ScalarStyle::Plain)))
}

/// Whether a decimal number has a leading zero.
pub(super) fn has_leading_zero(number: &str) -> bool {
    let digits = number.strip_prefix('+').unwrap_or(number);
    let is_radix = |it: &u8| matches!(it, b'x' | b'X' | b'b' | b'B');
    digits.len() > 1 && digits.starts_with('0') && !digits.as_bytes().get(1).is_some_and(is_radix)
}

/// Whether YAML parses the text, without quotes, as a number that is not an integer.
pub(super) fn is_float(text: &str) -> bool {
    if is_special(text) {
        return true;
    }
    let has_digits = text.bytes().any(|byte| byte.is_ascii_digit());
    let has_fraction = text.contains(['.', 'e', 'E']);
    has_digits && has_fraction && text.parse::<f64>().is_ok()
}

/// Whether a length of time is in months or years. humantime's months and years have other lengths than the units
/// `month` and `year`.
pub(super) fn has_ambiguous_unit(text: &str) -> bool {
    let ambiguous = ["M", "month", "months", "y", "yr", "yrs", "year", "years"];
    text.split(|letter: char| !letter.is_alphabetic()).any(|word| ambiguous.contains(&word))
}

/// Whether a key without quotes is a number, a boolean or null, and not a text.
pub(super) fn is_not_text(key: &YamlNode<'_>) -> bool {
    match scalar(key) {
        Some((text, ScalarStyle::Plain)) => {
            is_null(key) || !matches!(plain_value(text), Some(Value::Text(_)))
        }
        _ => false,
    }
}

/// A whole number from 0 to 2^32 - 1, in the notations of Go's YAML reader: 12, `1_000`, 0x1f, 0b11.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
pub(super) fn whole_number(text: &str) -> Option<u32> {
    let is_float = !text.starts_with(['0', '+']) && text.contains(['.', 'e', 'E']);
    let number = number(text).filter(|it| !is_float && it.fract() == 0.0)?;
    (0.0..=f64::from(u32::MAX)).contains(&number).then_some(number as u32)
}

/// A description of a scalar that has only its kind and length.
pub(super) fn describe_scalar(text: &str, style: ScalarStyle) -> String {
    let of_length = || {
        let length = text.chars().count();
        let s = if length == 1 { "" } else { "s" };
        format!("a text of {length} character{s}")
    };
    match (style, plain_value(text)) {
        (ScalarStyle::Plain, None | Some(Value::Number(_))) => "a number".to_owned(),
        (ScalarStyle::Plain, Some(Value::Bool(_))) => "a boolean".to_owned(),
        (ScalarStyle::Plain, Some(_)) => of_length(),
        _ => of_length() + " in quotes",
    }
}

/// The JSON value of a text without quotes, by the rules of YAML 1.1 as Go's reader applies them; `None` for a number
/// that JSON cannot express.
pub(super) fn plain_value(text: &str) -> Option<Value> {
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

/// Whether a text is YAML's infinity or not-a-number.
fn is_special(text: &str) -> bool {
    let magnitude = text.strip_prefix(['+', '-']).unwrap_or(text);
    matches!(magnitude, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN")
}

/// A number in any notation: 12, -1.5, 1e3, `1_000`, 0x1f, 0o17, 017, 0b11; `None` for other texts.
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
