//! The format of fields in the text log: `name=value`, with quotes where the end of a value would be ambiguous.

use std::fmt::{self, Debug};

use sluicegate_proto::text::printable;
use tracing::field::{Field, Visit};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{FormatFields, format},
};

/// Writes the message without quotes, and ambiguous values and all strings with quotes.
#[derive(Debug)]
pub(super) struct TextFields;

impl<'writer> FormatFields<'writer> for TextFields {
    fn format_fields<R: RecordFields>(
        &self,
        writer: format::Writer<'writer>,
        fields: R,
    ) -> fmt::Result {
        let mut line = FieldWriter { writer, is_begun: false, written: Ok(()) };
        fields.record(&mut line);
        line.written
    }
}

struct FieldWriter<'writer> {
    writer: format::Writer<'writer>,
    is_begun: bool,
    written: fmt::Result,
}

impl FieldWriter<'_> {
    fn write(&mut self, name: &str, value: &str) -> fmt::Result {
        if self.is_begun {
            self.writer.write_char(' ')?;
        }
        self.is_begun = true;
        if name == "message" {
            return self.writer.write_str(&printable(value));
        }
        write!(self.writer, "{name}=")?;
        if is_unambiguous(value) {
            self.writer.write_str(value)
        } else {
            write!(self.writer, "{value:?}")
        }
    }
}

impl Visit for FieldWriter<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Omits the source locations of libraries, which are paths on the build machine.
        if self.written.is_ok() && !field.name().starts_with("log.") {
            self.written = self.write(field.name(), &format!("{value:?}"));
        }
    }
}

/// Whether the value is a single word, or a quoted string.
fn is_unambiguous(value: &str) -> bool {
    let is_plain =
        |char: char| !(char.is_whitespace() || char.is_control() || "\"=".contains(char));
    if let Some(quoted) = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        let mut escaped = false;
        return quoted.chars().all(|char| {
            let inside = escaped || char != '"';
            escaped = char == '\\' && !escaped;
            inside && !char.is_control()
        }) && !escaped;
    }
    !value.is_empty() && value.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The text log of a function, without times.
    fn logged(act: impl FnOnce()) -> String {
        let written = Written::default();
        let writer = written.clone();
        let log = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .without_time()
            .with_target(false)
            .fmt_fields(TextFields)
            .finish();
        tracing::subscriber::with_default(log, act);
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn values_of_several_words_are_quoted() {
        let line = logged(|| {
            tracing::info!(
                limit = Some(display("5 per hour")),
                rule = "a b",
                word = "one",
                server = %"127.0.0.1:1",
                list = ?["a", "b"],
                empty = %"",
                number = 1.5,
                none = None::<&str>,
                "limited now",
            );
        });
        let wanted = r#" INFO limited now limit="5 per hour" rule="a b" word="one" server=127.0.0.1:1 list="[\"a\", \"b\"]" empty="" number=1.5"#;
        assert_eq!(line, format!("{wanted}\n"));
    }

    #[test]
    fn ambiguous_values_are_quoted() {
        for (value, written) in [
            ("a=b", r#""a=b""#),
            ("\"a\" is no b", r#""\"a\" is no b""#),
            ("\"a\" or \"b\"", r#""\"a\" or \"b\"""#),
            ("\"a\\\"", r#""\"a\\\"""#),
            ("\"", r#""\"""#),
            ("a\n INFO b", r#""a\n INFO b""#),
            ("\u{1b}[2J", r#""\u{1b}[2J""#),
            ("\"quoted text\"", "\"quoted text\""),
            ("word", "word"),
        ] {
            let line = logged(|| tracing::info!(%value, "message"));
            assert_eq!(line, format!(" INFO message value={written}\n"));
        }
    }

    #[test]
    fn source_locations_of_libraries_are_omitted() {
        let line = logged(|| {
            tracing::info!(log.target = "a", log.file = "/b", log.line = 1, field = "c", "d");
        });
        assert_eq!(line, " INFO d field=\"c\"\n");
    }

    #[test]
    fn a_message_is_one_line() {
        let line = logged(|| tracing::info!("one\ntwo \u{1b}[2J{}", "é"));
        assert_eq!(line, " INFO one\\ntwo \\u{1b}[2Jé\n");
    }
}
