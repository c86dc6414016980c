//! `response_body` of limits files: the body of responses to refused requests.
//!
//! A body is a template, which is compiled when the limits files are loaded. The values of its placeholders come from
//! limits files and counters, never from the request.

mod error;
mod placeholder;
mod template;

use std::fmt;

use self::template::{Escaping, Template};
pub use self::{
    error::{PLACEHOLDERS_MAX, ResponseBodyError, TEXT_BYTES_MAX},
    template::ResponseBodyValues,
};

/// Maximum length of a content type in bytes.
pub const CONTENT_TYPE_BYTES_MAX: usize = 128;

/// Body of responses to refused requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseBody {
    /// Name of the preset; `None` for a template of a limits file.
    preset: Option<&'static str>,
    content_type: Box<str>,
    template: Template,
    /// Template for refusals without a wait, if it differs.
    without_wait: Option<Template>,
}

/// Preset: a body that needs no text in the limits file.
struct Preset {
    name: &'static str,
    content_type: &'static str,
    text: &'static str,
    /// Text for refusals without a wait.
    without_wait: &'static str,
}

/// Every preset.
const PRESETS: [Preset; 3] = [
    // RFC 9457. The clients' middleware sends the same body if the server sends none.
    Preset {
        name: "problem_json",
        content_type: "application/problem+json",
        text: r#"{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"The rate limit is exceeded.","retryAfter":{retry_after}}"#,
        without_wait: r#"{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"The rate limit is exceeded."}"#,
    },
    Preset {
        name: "openai",
        content_type: "application/json",
        text: r#"{"error":{"message":"Rate limit reached. Please try again in {retry_after}s.","type":"requests","param":null,"code":"rate_limit_exceeded"}}"#,
        without_wait: r#"{"error":{"message":"Rate limit reached.","type":"requests","param":null,"code":"rate_limit_exceeded"}}"#,
    },
    Preset {
        name: "anthropic",
        content_type: "application/json",
        text: r#"{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed the rate limit. Please try again in {retry_after} seconds."}}"#,
        without_wait: r#"{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed the rate limit."}}"#,
    },
];

impl ResponseBody {
    /// Names of all presets.
    pub const PRESETS: [&str; 3] = {
        let [first, second, third] = &PRESETS;
        [first.name, second.name, third.name]
    };

    /// The preset with this name; `None` if there is none.
    #[must_use]
    pub fn preset(name: &str) -> Option<Self> {
        let preset = PRESETS.iter().find(|preset| preset.name == name)?;
        let template = |text| Template::compile(text, Escaping::Json).ok();
        Some(Self {
            preset: Some(preset.name),
            content_type: preset.content_type.into(),
            template: template(preset.text)?,
            without_wait: Some(template(preset.without_wait)?),
        })
    }

    /// Compiles a template. Does not check that the text of a JSON type is JSON.
    ///
    /// # Errors
    /// The content type or the text is not valid.
    pub fn compile(content_type: &str, text: &str) -> Result<Self, ResponseBodyError> {
        if !is_content_type(content_type) {
            return Err(ResponseBodyError::ContentType);
        }
        let template = Template::compile(text, Escaping::of(content_type))?;
        Ok(Self { preset: None, content_type: content_type.into(), template, without_wait: None })
    }

    /// The name of the preset, or the content type.
    #[must_use]
    pub fn name(&self) -> &str {
        self.preset.unwrap_or(&self.content_type)
    }

    /// The content type.
    #[must_use]
    pub const fn content_type(&self) -> &str {
        &self.content_type
    }

    /// Whether the content type is JSON.
    #[must_use]
    pub fn is_json(&self) -> bool {
        Escaping::of(&self.content_type) == Escaping::Json
    }

    /// Renders the body.
    #[must_use]
    pub fn render(&self, values: &ResponseBodyValues<'_>) -> String {
        match &self.without_wait {
            Some(template) if values.retry_after.is_none() => template.render(values),
            _ => self.template.render(values),
        }
    }
}

impl fmt::Display for ResponseBody {
    /// The name of the preset, or the content type and the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.preset {
            Some(name) => f.write_str(name),
            None => write!(f, "{} {:?}", self.content_type, self.template.to_string()),
        }
    }
}

/// Whether a text is a media type, such as `text/plain; charset=utf-8`, and fits a header.
fn is_content_type(text: &str) -> bool {
    let is_token = |text: &str| {
        let is_tchar =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        !text.is_empty() && text.bytes().all(is_tchar)
    };
    let (essence, parameters) = text.split_once(';').unwrap_or((text, ""));
    let Some((kind, subtype)) = essence.trim_end_matches(' ').split_once('/') else { return false };
    text.len() <= CONTENT_TYPE_BYTES_MAX
        && is_token(kind)
        && is_token(subtype)
        && parameters.bytes().all(|byte| matches!(byte, b' '..=b'~'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: ResponseBodyValues<'_> = ResponseBodyValues {
        domain: "api",
        rule: Some("user=\"<ann>\""),
        name: Some("daily"),
        limit: Some(100),
        window: Some(86_400),
        remaining: Some(0),
        reset: Some(42),
        retry_after: Some(2),
        retry_after_ms: Some(1_500),
    };

    /// What is known if a request is refused without a decision.
    const UNKNOWN: ResponseBodyValues<'_> = ResponseBodyValues {
        domain: "api",
        rule: None,
        name: None,
        limit: None,
        window: None,
        remaining: None,
        reset: None,
        retry_after: None,
        retry_after_ms: None,
    };

    fn rendered(content_type: &str, text: &str, values: &ResponseBodyValues<'_>) -> String {
        ResponseBody::compile(content_type, text).unwrap().render(values)
    }

    #[test]
    fn placeholders_are_replaced() {
        let text =
            "{domain} {name} {limit} {window} {remaining} {reset} {retry_after} {retry_after_ms}";
        assert_eq!(rendered("text/plain", text, &VALUES), "api daily 100 86400 0 42 2 1500");
        let unknown = "api  unknown unknown unknown unknown unknown unknown";
        assert_eq!(rendered("text/plain", text, &UNKNOWN), unknown);
    }

    #[test]
    fn other_braces_are_text() {
        let text = "{} { limit } a{color:red} {limit {limit} }{";
        assert_eq!(rendered("text/css", text, &VALUES), "{} { limit } a{color:red} {limit 100 }{");
        assert_eq!(
            rendered("application/json", "{\"a\":{\"b\":{limit}}}", &VALUES),
            "{\"a\":{\"b\":100}}"
        );
    }

    #[test]
    fn values_are_escaped_by_content_type() {
        for (content_type, expected) in [
            ("application/json", "\"user=\\\"<ann>\\\"\""),
            ("application/problem+json; charset=utf-8", "\"user=\\\"<ann>\\\"\""),
            ("Text/HTML", "\"user=&quot;&lt;ann&gt;&quot;\""),
            ("image/svg+xml", "\"user=&quot;&lt;ann&gt;&quot;\""),
            ("text/plain", "\"user=\"<ann>\"\""),
        ] {
            assert_eq!(rendered(content_type, "\"{rule}\"", &VALUES), expected, "{content_type}");
        }
        let control = ResponseBodyValues { rule: Some("a\n\\\u{1}ü"), ..VALUES };
        assert_eq!(rendered("text/json", "{rule}", &control), "a\\u000a\\\\\\u0001ü");
    }

    #[test]
    fn unknown_number_is_null_in_json_and_a_word_in_its_strings() {
        let text = r#"{"a\"":{limit},"b":"{limit}","c":"\\","d":{reset}}"#;
        let expected = r#"{"a\"":null,"b":"unknown","c":"\\","d":null}"#;
        assert_eq!(rendered("application/json", text, &UNKNOWN), expected);
    }

    #[test]
    fn long_values_are_cut_off() {
        let long = "ö".repeat(1_000);
        let values = ResponseBodyValues { rule: Some(&long), ..VALUES };
        let expected = "ö".repeat(256) + "…";
        assert_eq!(rendered("text/plain", "{rule}", &values), expected);
    }

    #[test]
    fn mistakes_are_reported() {
        let error = |content_type: &str, text: &str| {
            ResponseBody::compile(content_type, text).map(|_| ()).unwrap_err()
        };
        for content_type in
            ["", "json", "a/", "/b", "a b/c", "a/b\n", "a/b; c=\u{e4}", "text/plain\r\nx: y"]
        {
            assert_eq!(
                error(content_type, "x"),
                ResponseBodyError::ContentType,
                "{content_type:?}"
            );
        }
        let long = "a/".to_owned() + &"b".repeat(CONTENT_TYPE_BYTES_MAX - 1);
        assert_eq!(error(&long, "x"), ResponseBodyError::ContentType);
        assert_eq!(error("a/b", &"x".repeat(TEXT_BYTES_MAX + 1)), ResponseBodyError::TooLong);
        let many = "{limit}".repeat(PLACEHOLDERS_MAX + 1);
        assert_eq!(error("a/b", &many), ResponseBodyError::TooManyPlaceholders);
        for (text, line, column) in [
            ("{retry-after}", 1, 1),
            ("a\nö {Limit}", 2, 3),
            ("{limit}\n\n{limit} {user.id}", 3, 9),
        ] {
            let expected = ResponseBodyError::UnknownPlaceholder { line, column };
            assert_eq!(error("text/plain", text), expected, "{text:?}");
        }
    }

    #[test]
    fn every_preset_renders_with_and_without_a_wait() {
        for name in ResponseBody::PRESETS {
            let preset = ResponseBody::preset(name).unwrap();
            assert!(preset.is_json() && preset.name() == name && preset.to_string() == name);
            let (wait, no_wait) = (preset.render(&VALUES), preset.render(&UNKNOWN));
            assert!(wait.contains('2') && wait.len() > no_wait.len(), "{wait}");
            assert!(!no_wait.contains("null,\"retry") && !no_wait.contains("unknown"), "{no_wait}");
        }
        assert_eq!(ResponseBody::preset("none"), None);
    }

    #[test]
    fn display_has_the_text_as_written() {
        let body = ResponseBody::compile("text/plain", "a {limit}\n{}").unwrap();
        assert_eq!(body.to_string(), "text/plain \"a {limit}\\n{}\"");
        assert_eq!(body.name(), "text/plain");
    }
}
