//! Number of cases of a property test.

use proptest::prelude::ProptestConfig;

/// At least `cases`; more if `PROPTEST_CASES` says so.
#[must_use]
pub fn at_least(cases: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    // Shrinking to the end would take hours.
    let max_shrink_iters = config.max_shrink_iters.min(2_000);
    let cases = cases.max(config.cases);
    ProptestConfig { cases, max_shrink_iters, failure_persistence: None, ..config }
}
