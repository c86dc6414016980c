//! Templates: text with placeholders.

use std::{fmt, fmt::Write as _};

use super::{
    error::{PLACEHOLDERS_MAX, ResponseBodyError, TEXT_BYTES_MAX},
    placeholder::Placeholder,
};

/// Maximum length of a text value in characters. Longer values are cut off.
const VALUE_CHARS_MAX: usize = 256;

/// How values are escaped, by content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escaping {
    /// As in a JSON string.
    Json,
    /// As in HTML and XML.
    Markup,
    /// Not at all.
    Plain,
}

impl Escaping {
    pub(super) fn of(content_type: &str) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default().trim_end_matches(' ');
        let subtype = essence.split_once('/').map_or("", |(_, subtype)| subtype);
        match subtype.to_ascii_lowercase().rsplit('+').next() {
            Some("json") => Self::Json,
            Some("html" | "xml") => Self::Markup,
            _ => Self::Plain,
        }
    }
}

/// Values of the placeholders. A value is `None` if it is unknown.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseBodyValues<'a> {
    /// Name of the domain.
    pub domain: &'a str,
    /// Path of the rule.
    pub rule: Option<&'a str>,
    /// Name of the limit.
    pub name: Option<&'a str>,
    /// Requests per window.
    pub limit: Option<u32>,
    /// Length of the window in seconds.
    pub window: Option<u32>,
    /// Remaining hits.
    pub remaining: Option<u64>,
    /// Seconds until the reset.
    pub reset: Option<u64>,
    /// Seconds until the same request can pass.
    pub retry_after: Option<u64>,
    /// Milliseconds until the same request can pass.
    pub retry_after_ms: Option<u64>,
}

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(Box<str>),
    Value {
        placeholder: Placeholder,
        /// Text for an unknown number.
        unknown: &'static str,
    },
}

/// A text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    escaping: Escaping,
    parts: Box<[Part]>,
}

impl Template {
    pub(super) fn compile(text: &str, escaping: Escaping) -> Result<Self, ResponseBodyError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(ResponseBodyError::TooLong);
        }
        let mut parts = Vec::new();
        let mut in_string = InJsonString::default();
        let (mut rest, mut placeholders) = (text, 0);
        while let Some((before, name, after)) = next_placeholder(rest) {
            let Some(placeholder) = Placeholder::from_name(name) else {
                let at = text.len() - rest.len() + before.len();
                return Err(unknown_placeholder(text.get(..at).unwrap_or_default()));
            };
            placeholders += 1;
            if placeholders > PLACEHOLDERS_MAX {
                return Err(ResponseBodyError::TooManyPlaceholders);
            }
            in_string.pass(before);
            if !before.is_empty() {
                parts.push(Part::Text(before.into()));
            }
            let is_json_value = escaping == Escaping::Json && !in_string.is_inside;
            let unknown = if is_json_value { "null" } else { "unknown" };
            parts.push(Part::Value { placeholder, unknown });
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        Ok(Self { escaping, parts: parts.into() })
    }

    pub(super) fn render(&self, values: &ResponseBodyValues<'_>) -> String {
        let lengths = self.parts.iter().map(|part| match part {
            Part::Text(text) => text.len(),
            Part::Value { .. } => 16,
        });
        let mut body = String::with_capacity(lengths.sum());
        for part in &self.parts {
            match part {
                Part::Text(text) => body.push_str(text),
                Part::Value { placeholder, unknown } => {
                    self.push_value(&mut body, *placeholder, unknown, values);
                }
            }
        }
        body
    }

    fn push_value(
        &self,
        body: &mut String,
        placeholder: Placeholder,
        unknown: &str,
        values: &ResponseBodyValues<'_>,
    ) {
        let number = match placeholder {
            Placeholder::Domain => return self.push_text(body, values.domain),
            Placeholder::Rule => return self.push_text(body, values.rule.unwrap_or_default()),
            Placeholder::Name => return self.push_text(body, values.name.unwrap_or_default()),
            Placeholder::Limit => values.limit.map(u64::from),
            Placeholder::Window => values.window.map(u64::from),
            Placeholder::Remaining => values.remaining,
            Placeholder::Reset => values.reset,
            Placeholder::RetryAfter => values.retry_after,
            Placeholder::RetryAfterMs => values.retry_after_ms,
        };
        match number {
            // Writing to a `String` cannot fail.
            Some(number) => _ = write!(body, "{number}"),
            None => body.push_str(unknown),
        }
    }

    fn push_text(&self, body: &mut String, text: &str) {
        for (position, char) in text.chars().enumerate() {
            if position == VALUE_CHARS_MAX {
                body.push('…');
                return;
            }
            match (self.escaping, char) {
                (Escaping::Json, '"' | '\\') => body.extend(['\\', char]),
                (Escaping::Json, '\0'..='\x1f') => {
                    // Writing to a `String` cannot fail.
                    _ = write!(body, "\\u{:04x}", u32::from(char));
                }
                (Escaping::Markup, '&') => body.push_str("&amp;"),
                (Escaping::Markup, '<') => body.push_str("&lt;"),
                (Escaping::Markup, '>') => body.push_str("&gt;"),
                (Escaping::Markup, '"') => body.push_str("&quot;"),
                (Escaping::Markup, '\'') => body.push_str("&#39;"),
                _ => body.push(char),
            }
        }
    }
}

impl fmt::Display for Template {
    /// The text, as it was compiled.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                Part::Text(text) => f.write_str(text)?,
                Part::Value { placeholder, .. } => write!(f, "{{{}}}", placeholder.name())?,
            }
        }
        Ok(())
    }
}

/// The first name in braces, with the text before and after it. A name has letters, digits, `_`, `-` and `.`, so that
/// the braces of JSON and CSS are text.
fn next_placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    text.match_indices('{').find_map(|(at, _)| {
        let (before, rest) = (text.get(..at)?, text.get(at + 1..)?);
        let length = rest.bytes().position(|byte| !is_name(byte))?;
        let (name, rest) = rest.split_at_checked(length)?;
        let after = rest.strip_prefix('}')?;
        (!name.is_empty()).then_some((before, name, after))
    })
}

fn unknown_placeholder(before: &str) -> ResponseBodyError {
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    ResponseBodyError::UnknownPlaceholder { line, column }
}

/// Whether a position of a JSON text is inside a string.
#[derive(Default)]
struct InJsonString {
    is_inside: bool,
    is_escaped: bool,
}

impl InJsonString {
    fn pass(&mut self, text: &str) {
        for byte in text.bytes() {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = self.is_inside,
                b'"' => self.is_inside = !self.is_inside,
                _ => {}
            }
        }
    }
}
