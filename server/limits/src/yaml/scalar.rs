//! Scalars, as they are written.

use granit_parser::ScalarStyle;

use super::{Data, Node, metadata::is_special};

/// A scalar as it is written, and its style.
pub(super) fn scalar<'n>(node: &'n Node<'_>) -> Option<(&'n str, ScalarStyle)> {
    match &node.data {
        Data::Scalar(text, style) => Some((text, *style)),
        _ => None,
    }
}

pub(super) fn is_null(node: &Node<'_>) -> bool {
    matches!(scalar(node), Some(("" | "~" | "null" | "Null" | "NULL", ScalarStyle::Plain)))
}

pub(super) fn has_zero_in_front(number: &str) -> bool {
    let digits = number.strip_prefix('+').unwrap_or(number);
    let other = |it: &u8| matches!(it, b'x' | b'X' | b'b' | b'B');
    digits.len() > 1 && digits.starts_with('0') && !digits.as_bytes().get(1).is_some_and(other)
}

/// Whether YAML would take the plain text for a number that is not whole.
pub(super) fn is_float(text: &str) -> bool {
    if is_special(text) {
        return true;
    }
    let digits = text.bytes().any(|byte| byte.is_ascii_digit());
    let part = text.contains(['.', 'e', 'E']);
    digits && part && text.parse::<f64>().is_ok()
}

/// Whether a length of time is given in months or years, which mean other lengths there than as a unit.
pub(super) fn has_vague_unit(text: &str) -> bool {
    let vague = ["M", "month", "months", "y", "yr", "yrs", "year", "years"];
    text.split(|letter: char| !letter.is_alphabetic()).any(|word| vague.contains(&word))
}
