//! Random bytes as a limits file: rules or mistakes, without a panic, a hang or excessive memory.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match sluicegate_limits::compile_text("fuzz.yaml", text) {
        Ok(rules) => {
            for (domain, rule) in rules.rules() {
                assert!(!domain.name.is_empty() && !rule.path.is_empty());
            }
        }
        Err(mistakes) => assert!(!mistakes.is_empty()),
    }
});
