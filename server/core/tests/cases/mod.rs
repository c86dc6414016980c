//! How often a property is tried.

use proptest::prelude::ProptestConfig;

/// At least so often; more where `PROPTEST_CASES` says so.
pub(crate) fn at_least(cases: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    // Enough to see what is wrong; to the end it would take hours.
    let max_shrink_iters = config.max_shrink_iters.min(2_000);
    let cases = cases.max(config.cases);
    ProptestConfig { cases, max_shrink_iters, failure_persistence: None, ..config }
}
