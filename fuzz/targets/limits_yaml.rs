//! Random bytes as a limits file: rules or mistakes, without a panic, a hang or excessive memory.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sluicegate_core::{
    ResponseBody, Rule,
    response_body::{PLACEHOLDERS_MAX, ResponseBodyValues, TEXT_BYTES_MAX},
    rules::Domain,
};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match sluicegate_limits::compile_text("fuzz.yaml", text) {
        Ok(rules) => {
            for (domain, rule) in rules.rules() {
                assert!(!domain.name.is_empty() && !rule.path.is_empty());
                if let Some(body) = &rule.response_body {
                    check_body(body, domain, rule);
                }
            }
        }
        Err(mistakes) => assert!(!mistakes.is_empty()),
    }
});

/// Asserts that the body with any values is as long as its bounds allow, and JSON if its type is JSON.
fn check_body(body: &ResponseBody, domain: &Domain, rule: &Rule) {
    let unknown = ResponseBodyValues { domain: &domain.name, ..ResponseBodyValues::default() };
    let known = ResponseBodyValues {
        rule: Some(&rule.path),
        limit: Some(u32::MAX),
        retry_after: Some(u64::MAX),
        ..unknown
    };
    for values in [unknown, known] {
        let text = body.render(&values);
        // A character of a value needs at most six bytes.
        assert!(text.len() <= TEXT_BYTES_MAX + PLACEHOLDERS_MAX * 6 * 257);
        assert!(!body.is_json() || serde_json::from_str::<serde_json::Value>(&text).is_ok());
    }
}
