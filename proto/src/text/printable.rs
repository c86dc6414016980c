//! Escaping of characters that are not visible, for terminals, logs and metrics.
//!
//! Control characters can move the cursor of a terminal or begin another line. Format characters, such as U+202E, which
//! reverses the direction of writing, and the separators U+2028 and U+2029 can make a text look like another one. Names
//! in limits files, values of requests and messages of servers may contain any of them.

use std::{borrow::Cow, fmt::Write as _};

/// Escapes all characters that are not visible, such as `\u{202e}` and `\n`. The result is one line.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escape_matching(text, is_hidden, |char, into| into.extend(char.escape_debug()))
}

/// Escapes each line as [`printable`] does, and leaves line feeds.
#[must_use]
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    let is_hidden = |char| char != '\n' && is_hidden(char);
    escape_matching(text, is_hidden, |char, into| into.extend(char.escape_debug()))
}

/// Escapes all characters of JSON that are not visible, such as `\u202e`, without changing its meaning. Leaves line
/// feeds and white space between its elements.
#[must_use]
pub fn printable_json(json: &str) -> Cow<'_, str> {
    // Other characters than ASCII occur only inside the strings of JSON, which already escape control characters below
    // U+0020.
    let is_hidden = |char: char| !matches!(char, '\n' | '\r' | '\t') && is_hidden(char);
    escape_matching(json, is_hidden, |char, into| {
        for unit in char.encode_utf16(&mut [0; 2]) {
            let _infallible = write!(into, "\\u{unit:04x}");
        }
    })
}

fn escape_matching(
    text: &str,
    is_hidden: impl Fn(char) -> bool,
    escape: impl Fn(char, &mut String),
) -> Cow<'_, str> {
    let Some(first) = text.find(&is_hidden) else { return Cow::Borrowed(text) };
    let (visible, rest) = text.split_at(first);
    let mut replaced = visible.to_owned();
    for char in rest.chars() {
        if is_hidden(char) { escape(char, &mut replaced) } else { replaced.push(char) }
    }
    Cow::Owned(replaced)
}

/// Whether a character is not visible: a control, format or separator character, a space other than U+0020, for private
/// use or not assigned. These are the characters that `Debug` of the standard library escapes, apart from quotes and
/// the backslash.
pub(super) fn is_hidden(char: char) -> bool {
    if char.is_ascii() {
        return char.is_ascii_control();
    }
    // `escape_debug` escapes a combining character at the beginning of a text, so the text begins with another one.
    let mut text = String::from('x');
    text.push(char);
    text.escape_debug().nth(1) == Some('\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_text_is_not_changed() {
        for text in ["", "plain \"text\" \\n", "été e\u{301} 漢字 Ωμέγα नमस्ते 🙂", "a=b|c"]
        {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text), "{text}");
            assert!(matches!(printable_json(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        assert_eq!(printable_lines("a\nb\n"), "a\nb\n");
        assert_eq!(printable_json("{\n  \"a\": 1\n}"), "{\n  \"a\": 1\n}");
    }

    #[test]
    fn characters_that_are_not_visible_are_escaped() {
        for (text, escaped) in [
            ("a\u{202e}b", "a\\u{202e}b"),
            ("a\u{2028}b\u{2029}", "a\\u{2028}b\\u{2029}"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("a\r\n\tb\u{7f}\u{85}\u{9b}", "a\\r\\n\\tb\\u{7f}\\u{85}\\u{9b}"),
            ("\u{0}", "\\0"),
        ] {
            assert_eq!(printable(text), escaped);
        }
        assert_eq!(printable_lines("a\n\u{1b}b"), "a\n\\u{1b}b");
        let (from, to) = ('\u{e0001}', "\"\\udb40\\udc01\"");
        assert_eq!(printable_json(&format!("\"{from}\"")), to);
        assert_eq!(printable_json("\"\u{202e}\u{7f}\""), "\"\\u202e\\u007f\"");
    }

    #[test]
    fn every_format_character_and_separator_is_escaped() {
        // General categories Cc, Cf, Zl and Zp of Unicode 16.
        let ranges = [
            '\0'..='\u{1f}',
            '\u{7f}'..='\u{9f}',
            '\u{ad}'..='\u{ad}',
            '\u{600}'..='\u{605}',
            '\u{61c}'..='\u{61c}',
            '\u{6dd}'..='\u{6dd}',
            '\u{70f}'..='\u{70f}',
            '\u{890}'..='\u{891}',
            '\u{8e2}'..='\u{8e2}',
            '\u{180e}'..='\u{180e}',
            '\u{200b}'..='\u{200f}',
            '\u{2028}'..='\u{202e}',
            '\u{2060}'..='\u{2064}',
            '\u{2066}'..='\u{206f}',
            '\u{feff}'..='\u{feff}',
            '\u{fff9}'..='\u{fffb}',
            '\u{110bd}'..='\u{110bd}',
            '\u{110cd}'..='\u{110cd}',
            '\u{13430}'..='\u{1343f}',
            '\u{1bca0}'..='\u{1bca3}',
            '\u{1d173}'..='\u{1d17a}',
            '\u{e0001}'..='\u{e0001}',
            '\u{e0020}'..='\u{e007f}',
        ];
        for char in ranges.into_iter().flatten() {
            assert!(is_hidden(char), "{char:?}");
            let escaped = printable_json(&format!("\"{char}\"")).into_owned();
            assert!(escaped.is_ascii(), "{escaped}");
        }
    }
}
