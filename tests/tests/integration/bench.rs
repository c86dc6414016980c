//! Tests that the benchmark runs and prints every row. Its measurements in this test are meaningless.

use sluicegate_tests::{binary, finish};
use tokio::process::Command;

#[tokio::test]
async fn the_bench_measures_every_row() {
    let mut command = Command::new(binary("sluicegate-bench"));
    command.arg("--smoke");
    let finished = finish(command).await;
    assert_eq!(finished.code, 0, "{finished:?}");
    let printed = finished.stdout;
    let count = |start: String| printed.lines().filter(|line| line.starts_with(&start)).count();
    let loads = [
        ("1 × 1 | one tenant | 3 | none", 2),
        ("1 × 10 | 20 tenants, Zipf | 3 | none", 1),
        ("2 × 100 | 20 tenants | 1 | none", 1),
        ("1 × 1 | 20 tenants | 3 | 90 %", 1),
        ("1 × 10 | one tenant | 1 | 90 %", 1),
        ("2 × 100 | 20 tenants, Zipf | 1 | 90 %", 1),
        ("2 × 100 | one tenant | 3 | none", 1),
        ("2 × 100 | 20 tenants | 3 | none", 1),
    ];
    for server in ["empty", "memory", "one Redis", "cluster"] {
        for (load, times) in loads {
            assert_eq!(count(format!("| {load} | {server} | ")), times, "{load}: {printed}");
        }
        // The rows of h2load.
        assert_eq!(count(format!("| {server} | ")), 1, "{printed}");
    }
    let (_, targets) = printed.split_once("### Targets").unwrap();
    let (targets, _) = targets.split_once("###").unwrap();
    let rows: Vec<_> = targets.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    assert_eq!(rows.len(), 16, "{targets}");
    for row in rows {
        let cells: Vec<_> = row.split(" | ").map(|cell| cell.trim_end_matches(" |")).collect();
        assert!(["yes", "**no**"].contains(&cells[3]), "{row}");
        assert!(cells[4..].iter().all(|it| it.parse::<f64>().is_ok_and(f64::is_finite)), "{row}");
    }
}
