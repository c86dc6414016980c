//! Large limits files load in time.

use std::{
    fs,
    time::{Duration, Instant},
};

use sluicegate_core::rules::{CompileOptions, FINDINGS_LISTED_MAX, Findings};
use sluicegate_limits::{FileContents, ReadBounds, compile_text};

use super::{expect, warnings};

/// Far above the usual time, and far below the time of a quadratic algorithm.
const IN_TIME: Duration = Duration::from_secs(180);

#[test]
fn a_hundred_thousand_rules_load() {
    let tenants = (0..25_000).map(|tenant| {
        format!(
            "
  - key: tenant
    value: tenant-{tenant}
    rate_limit:
      name: plan_{tenant}
      unit: day
      requests_per_unit: {tenant}
    descriptors:
      - key: user
        rate_limit: {{unit: minute, requests_per_unit: 60}}
      - key: user
        value: robot-*
        share_threshold: true
        limits:
          - {{window: 30s, requests_per_unit: 6, algorithm: sliding_window_log}}
          - {{unit: hour, requests_per_unit: 60, algorithm: gcra, burst: 5}}
      - key: user
        value: admin
        shadow_mode: true
        rate_limit: {{unlimited: true, name: open_{tenant}}}"
        )
    });
    let folder = tempfile::tempdir().unwrap();
    let text = format!("domain: large\ndescriptors:{}\n", tenants.collect::<String>());
    fs::write(folder.path().join("large.yaml"), text).unwrap();
    let begun = Instant::now();
    let contents = FileContents::read(&[folder.path().to_owned()], ReadBounds::default());
    let rules = contents.compile(&CompileOptions::default()).unwrap();
    let taken = begun.elapsed();
    assert_eq!((rules.rules().count(), &*warnings(&rules)), (100_000, ""));
    expect(
        &rules,
        &[
            ("tenant=tenant-24999", "24999 per day"),
            ("tenant=tenant-17 user=ann", "60 per minute"),
            ("tenant=tenant-17 user=robot-9", "6 per 30 seconds and 60 per hour"),
            ("tenant=tenant-17 user=admin", "unlimited"),
            ("tenant=tenant-25000", "none"),
        ],
    );
    assert!(taken < IN_TIME, "{taken:?}");
}

#[test]
fn large_levels_and_many_mistakes_are_reported_in_time() {
    let begun = Instant::now();
    fn numbers<T>(findings: &Findings<T>) -> (usize, bool) {
        (findings.len(), findings.unlisted() > 0)
    }
    let many = |line: &dyn Fn(usize) -> String| {
        let text: String = (0..25_000).map(line).collect();
        let text = format!("domain: d\ndescriptors:\n{text}");
        compile_text("large.yaml", &text)
    };
    let keys = many(&|index| format!("- {{key: k{index}}}\n"));
    assert!(keys.is_ok());
    let twice = many(&|index| format!("- {{key: k{}}}\n", index / 2));
    assert_eq!(numbers(&twice.unwrap_err()), (FINDINGS_LISTED_MAX, true));
    let wrong = many(&|_| "- {key: k, valu: 1}\n".to_owned());
    assert_eq!(numbers(&wrong.unwrap_err()), (FINDINGS_LISTED_MAX, true));
    let patterns = many(&|index| format!("- {{key: k, value: v{index}/*}}\n"));
    assert!(patterns.is_ok());
    let ignored = many(&|index| format!("- {{key: k, value: v{index}, unit: day}}\n"));
    let ignored = ignored.unwrap();
    assert_eq!(numbers(ignored.warnings()), (FINDINGS_LISTED_MAX, true));
    assert_eq!(ignored.warnings().total(), 25_000);
    assert!(begun.elapsed() < IN_TIME, "{:?}", begun.elapsed());
}
