//! Mistakes in response bodies, and the bounds of templates.

use thiserror::Error;

use super::placeholder;

/// Maximum length of the text of a template in bytes.
pub const TEXT_BYTES_MAX: usize = 8_192;

/// Maximum number of placeholders in a template.
pub const PLACEHOLDERS_MAX: usize = 32;

/// Mistake in a `response_body`. Does not quote the text, because the file may not be a limits file.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ResponseBodyError {
    /// The content type is not a media type, or is too long.
    #[error("the content type is not valid")]
    ContentType,
    /// The text is too long.
    #[error("the text has more than {TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// A placeholder has an unknown name.
    #[error("the placeholder at line {line}, column {column} of the text is not known")]
    UnknownPlaceholder {
        /// Line in the text, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
    },
    /// The text has too many placeholders.
    #[error("the text has more than {PLACEHOLDERS_MAX} placeholders")]
    TooManyPlaceholders,
    /// The content type is JSON, and the text is not.
    #[error("the text with values in place of its placeholders is not JSON")]
    NotJson,
}

impl ResponseBodyError {
    /// How to fix the mistake, in one phrase.
    #[must_use]
    pub fn help(&self) -> String {
        match self {
            Self::ContentType => {
                "write a media type such as application/json or text/plain; charset=utf-8"
                    .to_owned()
            }
            Self::TooLong => "shorten it".to_owned(),
            Self::UnknownPlaceholder { .. } => format!("use one of {}", placeholder::all()),
            Self::TooManyPlaceholders => "remove some of them".to_owned(),
            Self::NotJson => {
                "correct it, with {domain}, {rule} and {name} inside double quotes".to_owned()
            }
        }
    }
}
