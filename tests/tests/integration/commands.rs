//! `sluicegate diff` and `sluicegate validate`.

use std::{fs, path::Path};

use sluicegate_tests::{Finished, binary, finish};
use tokio::process::Command;

/// Runs `sluicegate` in a folder.
async fn run(folder: &Path, arguments: &[&str]) -> Finished {
    let mut command = Command::new(binary("sluicegate"));
    command.current_dir(folder).args(arguments);
    finish(command).await
}

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

const OLD: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 100}
  - key: path
    value: /a/*
    rate_limit: {unit: second, requests_per_unit: 5}
  - key: path
    value: /*
    rate_limit: {unit: second, requests_per_unit: 50}
  - key: login
    rate_limit: {unit: hour, requests_per_unit: 5}
";

const NEW: &str = "
domain: shop
tenant: tenant
descriptors:
  - key: path
    value: /*
    rate_limit: {unit: second, requests_per_unit: 50}
  - key: path
    value: /a/*
    rate_limit: {unit: second, requests_per_unit: 5}
  - key: tenant
    shadow_mode: true
    rate_limit: {window: 60s, requests_per_unit: 200, algorithm: token_bucket, burst: 20}
  - key: signup
    limits:
      - {unit: second, requests_per_unit: 1}
      - {unit: day, requests_per_unit: 100, algorithm: gcra}
";

const MORE: &str = "
domain: more
descriptors:
  - key: user
    rate_limit: {unlimited: true}
";

#[tokio::test]
async fn diff_lists_changes_of_rules() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    write(folder, "old.yaml", OLD);
    write(folder, "new/shop.yaml", NEW);
    write(folder, "new/team/more.yml", MORE);
    write(folder, "new/.hidden.yaml", "not a map");
    let answer = run(folder, &["diff", "old.yaml", "new"]).await;
    assert_eq!(
        (answer.code, &*answer.stdout, &*answer.stderr),
        (
            1,
            "\
added more: a domain of 1 rules
added more: user: unlimited
changed shop: tenant none -> tenant; counters restart
removed shop: login: 5 per hour (fixed_window)
changed shop: path: order of patterns /a/*, /* -> /*, /a/*
added shop: signup: 1 per second (fixed_window) and 100 per day (gcra)
changed shop: tenant: requests_per_unit 100 -> 200
changed shop: tenant: algorithm fixed_window -> token_bucket; counters restart
changed shop: tenant: burst none -> 20
changed shop: tenant: shadow_mode false -> true
3 added, 1 removed, 3 changed, 2 restart counters
",
            ""
        )
    );
}

#[tokio::test]
async fn diff_of_equal_limits_exits_with_0() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    write(folder, "old.yaml", OLD);
    write(folder, "new/a/shop.yaml", &format!("# As before, elsewhere.\n{OLD}"));
    let answer = run(folder, &["diff", "old.yaml", "new"]).await;
    assert_eq!((answer.code, &*answer.stdout), (0, "equal\n"));
}

#[tokio::test]
async fn diff_of_invalid_limits_exits_with_2() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    write(folder, "old.yaml", &OLD.replace("hour", "fortnight"));
    write(folder, "new.yaml", &NEW.replace("tenant: tenant", "tenants: tenant"));
    let answer = run(folder, &["diff", "old.yaml", "new.yaml"]).await;
    assert_eq!(
        (answer.code, &*answer.stdout),
        (
            2,
            "\
old.yaml:13: descriptors[3].rate_limit.unit: the unit is not known; use second, minute, hour, day, week, month or year
new.yaml:3: the key in column 1 is not known here; did you mean tenant?
"
        )
    );
    let answer = run(folder, &["diff", "old.yaml", "none.yaml"]).await;
    assert_eq!(answer.code, 2);
    assert!(answer.stdout.contains("none.yaml: No such file"), "{answer:?}");
    assert_eq!(run(folder, &["diff", "old.yaml"]).await.code, 2);
}

#[tokio::test]
async fn validate_prints_warnings_and_all_mistakes() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    write(folder, "b.yaml", &MORE.replace("unlimited: true", "unit: day"));
    let answer = run(folder, &["validate", "b.yaml"]).await;
    assert_eq!(
        (answer.code, &*answer.stdout),
        (
            0,
            "\
warning: b.yaml:5: descriptors[0].rate_limit: requests_per_unit is missing, so the rule refuses all requests; write 0 if that is intended
ok: 1 domains, 1 rules, 1 warnings
"
        )
    );
    write(folder, "c.yaml", &OLD.replace("hour", "fortnight").replace("key: path", "kee: path"));
    let answer = run(folder, &["validate", "b.yaml", "c.yaml"]).await;
    assert_eq!((answer.code, answer.stdout.lines().count()), (1, 3), "{answer:?}");
}
