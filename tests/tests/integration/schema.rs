//! The JSON Schema of limits files: it accepts all valid fixtures, and finds the mistakes that a schema can express.

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use sluicegate_tests::{
    binary,
    tools::{self, succeed, workspace},
    yaml,
};

// Reasons why the schema does not find a mistake.
const ALGORITHM: &str =
    "the algorithm that applies may be a default, and bounds the numbers of a limit";
const DEFAULT: &str = "what applies may be a default of the file or of the server";
const RELATION: &str = "what rules say about each other";
const BOUND: &str = "a bound of the server";
const STYLE: &str = "YAML loads quotes, octal numbers and merges before a schema sees them";
const TEMPLATE: &str = "what the text of a response body contains";
const TIME: &str = "arithmetic of time";

/// Mistakes that the schema does not find, by the name of their fixture, with the reason.
const NOT_EXPRESSED: &[(&str, &str)] = &[
    ("burst_not_taken", ALGORITHM),
    ("duplicate", RELATION),
    ("duplicate_empty_value", RELATION),
    ("gcra_too_fast", ALGORITHM),
    ("gcra_too_long", ALGORITHM),
    ("levels_65", BOUND),
    ("limits_same_counter", RELATION),
    ("log_by_defaults", DEFAULT),
    ("log_too_long", ALGORITHM),
    ("log_with_debit", DEFAULT),
    ("log_with_upstream", DEFAULT),
    ("merge_of_text", STYLE),
    ("number_octal", STYLE),
    ("number_octal_signed", STYLE),
    ("number_text", STYLE),
    ("replaces_itself", RELATION),
    ("response_body_not_json", TEMPLATE),
    ("response_body_placeholder_unknown", TEMPLATE),
    ("response_body_placeholders", TEMPLATE),
    ("share_without_pattern", RELATION),
    ("too_many_limits", BOUND),
    ("unit_multiplier_alone", RELATION),
    ("unit_multiplier_large", TIME),
    ("window_month", TIME),
    ("window_not_whole", TIME),
    ("window_too_long", TIME),
    ("window_without_unit", TIME),
    ("window_zero", TIME),
];

/// The output of `sluicegate schema`.
fn schema() -> String {
    succeed(Command::new(binary("sluicegate")).arg("schema"))
}

/// The first document of each limits file in a folder, by file name. `None` if the YAML cannot be loaded.
fn documents(folder: &str) -> BTreeMap<String, Option<Value>> {
    let files = fs::read_dir(workspace().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let is_yaml = |path: &Path| path.extension().is_some_and(|it| it == "yaml");
    let files = files.filter(|path| is_yaml(path));
    let document = |path: &Path| {
        let text = fs::read_to_string(path).unwrap();
        // The server's reader bounds aliases and nesting, other readers do not.
        let is_bomb = |name: &str| name.contains("bomb") || name.contains("nest");
        let is_bomb = path.file_stem().is_some_and(|name| is_bomb(&name.to_string_lossy()));
        (!is_bomb).then(|| yaml::first(&text).ok()).flatten()
    };
    files
        .map(|path| (format!("{folder}/{}", path.file_name().unwrap().display()), document(&path)))
        .collect()
}

/// The documents that the schema rejects, with the first mistake of each.
fn rejected(documents: &BTreeMap<String, Value>) -> BTreeMap<String, String> {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let input = json!({"schema": schema, "documents": documents});
    let mut node = Command::new("node");
    node.arg(workspace().join("tests/manifests/schema.mjs")).arg(tools::manifest_schemas());
    let mut node = node.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    node.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    let output = node.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_valid_limits_file_fits_the_schema() {
    let folders = ["tests/fixtures/limits/valid", "tests/conformance/limits", "examples/limits"];
    let valid: BTreeMap<_, _> = folders.into_iter().flat_map(documents).collect();
    assert!(valid.len() > 15, "{valid:?}");
    let valid = valid.into_iter().map(|(name, document)| (name, document.expect("valid YAML")));
    let rejected = rejected(&valid.collect());
    assert!(rejected.is_empty(), "{rejected:#?}");
}

#[test]
fn the_schema_finds_every_mistake_that_it_can_express() {
    let wrong = documents("tests/fixtures/limits/wrong");
    assert!(wrong.len() > 70);
    let loaded: BTreeMap<_, _> =
        wrong.into_iter().filter_map(|(name, document)| Some((name, document?))).collect();
    let rejected = rejected(&loaded);
    let name =
        |path: &String| path.rsplit('/').next().unwrap().trim_end_matches(".yaml").to_owned();
    let accepted: Vec<_> =
        loaded.keys().filter(|path| !rejected.contains_key(*path)).map(name).collect();
    let listed: Vec<_> = NOT_EXPRESSED.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(
        accepted, listed,
        "files that the schema accepts, and those that it is known to accept"
    );
}

#[test]
fn the_examples_have_the_printed_schema() {
    let path = workspace().join("examples/limits.schema.json");
    let schema = schema();
    if env::var_os("SNAPSHOTS").is_some_and(|action| action == "overwrite") {
        fs::write(path, schema).unwrap();
        return;
    }
    assert!(
        fs::read_to_string(path).unwrap() == schema,
        "examples/limits.schema.json is not what `sluicegate schema` prints: write that into it"
    );
    for entry in fs::read_dir(workspace().join("examples/limits")).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(
            text.starts_with("# yaml-language-server: $schema=../limits.schema.json\n"),
            "{text}"
        );
    }
}
