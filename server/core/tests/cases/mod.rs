//! How often a property is tried.

use proptest::prelude::ProptestConfig;

/// At least so often; more where `PROPTEST_CASES` says so.
pub(crate) fn at_least(cases: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig { cases: cases.max(config.cases), failure_persistence: None, ..config }
}
