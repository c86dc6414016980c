//! Licences and sources of the dependencies. `tests/advisories` checks for known vulnerabilities.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Output},
};

use sluicegate_tests::tools::{cargo_deny, succeed, workspace};

fn check(manifest: &Path) -> Output {
    let mut deny = cargo_deny();
    deny.arg("--manifest-path").arg(manifest).args(["--config", "deny.toml", "--offline"]);
    deny.args(["check", "--hide-inclusion-graph", "bans", "licenses", "sources"]);
    deny.output().unwrap()
}

#[test]
fn every_dependency_has_an_allowed_licence_and_source() {
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let output = check(&workspace().join(manifest));
        assert!(output.status.success(), "{manifest}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Proves that the check above detects violations.
#[test]
fn forbidden_dependencies_are_detected() {
    for (package, table, error) in [
        ("license = \"GPL-3.0-only\"", "", "rejected"),
        ("license = \"MIT\"", "[dependencies]\nserde = \"*\"", "wildcard"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let manifest = folder.path().join("Cargo.toml");
        let text = format!(
            "[package]\nname = \"planted\"\nversion = \"0.0.0\"\nedition = \"2024\"\n{package}\n{table}\n[workspace]\n"
        );
        fs::write(&manifest, text).unwrap();
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::write(folder.path().join("src/lib.rs"), "").unwrap();
        // Needs only crates that the workspace has fetched.
        fs::copy(workspace().join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
        let output = check(&manifest);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(error), "{text}");
    }
}

/// The output of `cargo tree` for a package.
fn tree(package: &str, arguments: &[&str]) -> String {
    let mut tree = Command::new(env!("CARGO"));
    tree.args(["tree", "--offline", "--locked", "--prefix", "none", "--package", package]);
    succeed(tree.args(arguments).current_dir(workspace()))
}

/// Features of a package and its dependencies in a release build.
fn features(package: &str) -> String {
    tree(package, &["--edges", "features,no-dev"])
}

/// Names of a package's dependencies.
fn linked(package: &str) -> BTreeSet<String> {
    let lines = tree(package, &["--edges", "normal", "--format", "{p}"]);
    lines.lines().filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect()
}

#[test]
fn shipped_programs_cannot_disable_fixes() {
    let feature = "sluicegate-core feature \"simulation\"";
    for package in ["sluicegate", "sluicectl"] {
        let features = features(package);
        assert!(features.contains("sluicegate-core feature \"default\""), "{package}: {features}");
        assert!(!features.contains(feature), "{package}: {features}");
    }
    assert!(features("sluicegate-simulation").contains(feature));
}

#[test]
fn advisories_are_a_step_of_the_test_command() {
    let command = fs::read_to_string(workspace().join("tests/run")).unwrap();
    assert!(command.lines().any(|line| line == "step \"advisories\" tests/advisories"));
    // A missing database is the only failure that is not an error.
    let mut without_tool = Command::new(workspace().join("tests/advisories"));
    let nowhere = tempfile::tempdir().unwrap();
    without_tool.env("SLUICEGATE_TOOLS", nowhere.path()).env("PATH", "/usr/bin:/bin");
    assert!(!without_tool.output().unwrap().status.success());
}

/// Users of the client library do not compile the dependencies of the command line.
#[test]
fn the_client_library_has_no_command_line() {
    let of_the_command_line =
        ["clap", "indicatif", "ratatui", "sluicegate-core", "sluicegate-limits"];
    let library = linked("sluicegate-client");
    assert!(library.contains("tonic"), "{library:?}");
    let program = linked("sluicectl");
    for package in of_the_command_line {
        assert!(!library.contains(package), "{package}: {library:?}");
        assert!(program.contains(package), "{package}: {program:?}");
    }
}
