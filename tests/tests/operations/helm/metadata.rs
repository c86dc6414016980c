//! Versions, values, schema and README of the chart.

use std::{collections::BTreeSet, fs};

use clap::CommandFactory as _;
use serde_json::Value;
use sluicegate::settings::Cli;
use sluicegate_tests::{
    tools::{self, succeed, workspace},
    yaml,
};

use super::chart::{Rendered, matrix};

fn file(name: &str) -> String {
    fs::read_to_string(workspace().join("helm").join(name)).unwrap()
}

fn schema() -> Value {
    serde_json::from_str(&file("values.schema.json")).unwrap()
}

#[test]
fn the_chart_has_the_version_of_the_workspace() {
    let chart = yaml::read("Chart.yaml", &file("Chart.yaml"));
    for version in ["version", "appVersion"] {
        assert_eq!(chart[version], env!("CARGO_PKG_VERSION"), "{version}");
    }
}

#[test]
fn helm_lints_the_chart_with_every_values_file() {
    succeed(tools::helm().args(["lint", "--strict", "helm"]));
    for values in matrix() {
        succeed(tools::helm().args(["lint", "--strict", "helm", "--values"]).arg(values));
    }
}

#[test]
fn helm_packages_the_chart() {
    let folder = tempfile::tempdir().unwrap();
    let mut helm = tools::helm();
    succeed(helm.args(["package", "helm", "--destination"]).arg(folder.path()));
    let name = format!("sluicegate-{}.tgz", env!("CARGO_PKG_VERSION"));
    let mut helm = tools::helm();
    let shown = succeed(helm.args(["template", "edge"]).arg(folder.path().join(name)));
    let unpacked = succeed(tools::helm().args(["template", "edge", "helm"]));
    assert_eq!(shown, unpacked, "a file is missing in the package, or its place matters");
}

/// The schema of a value, with references resolved.
fn resolved<'a>(schema: &'a Value, node: &'a Value) -> &'a Value {
    node["$ref"].as_str().map_or(node, |reference| {
        schema
            .pointer(reference.strip_prefix('#').unwrap())
            .unwrap_or_else(|| panic!("{reference}"))
    })
}

/// Asserts that the schema and the values have the same keys.
fn compare(schema: &Value, node: &Value, values: &Value, path: &str) {
    let node = resolved(schema, node);
    let Some(properties) = node["properties"].as_object() else { return };
    assert_eq!(node["additionalProperties"], false, "{path} accepts unknown keys");
    let values = values.as_object().unwrap_or_else(|| panic!("{path} is not a map"));
    for (name, value) in values {
        let known = properties.get(name).unwrap_or_else(|| panic!("{path}.{name} has no schema"));
        compare(schema, known, value, &format!("{path}.{name}"));
    }
    // Values that are maps for users are empty.
    if !values.is_empty() {
        let unknown: Vec<_> = properties.keys().filter(|it| !values.contains_key(*it)).collect();
        // Keys of Helm itself, and resources of Kubernetes.
        let unknown: Vec<_> =
            unknown.into_iter().filter(|it| *it != "global" && *it != "claims").collect();
        assert!(unknown.is_empty(), "{path}: not in values.yaml: {unknown:?}");
    }
}

#[test]
fn the_schema_has_exactly_the_values() {
    let (schema, values) = (schema(), yaml::read("values.yaml", &file("values.yaml")));
    compare(&schema, &schema, &values, "");
}

/// The flags of `sluicegate serve`.
fn flags() -> BTreeSet<String> {
    let mut command = Cli::command();
    command.build();
    let serve = command.find_subcommand("serve").unwrap();
    let flags = serve.get_arguments().filter_map(|it| it.get_long()).map(str::to_owned);
    flags.filter(|flag| !["help", "version"].contains(&flag.as_str())).collect()
}

/// Flags that the chart sets from values.
fn own_flags() -> BTreeSet<String> {
    let mut own = BTreeSet::new();
    let settings = schema()["properties"]["settings"]["properties"].clone();
    for rendered in Rendered::matrix() {
        let names = rendered.arguments().into_iter().filter_map(|it| it.strip_prefix("--"));
        let names = names.map(|it| it.split('=').next().unwrap());
        own.extend(names.filter(|it| settings.get(it).is_none()).map(str::to_owned));
    }
    own
}

#[test]
fn every_flag_can_be_set_in_exactly_one_place() {
    let schema = schema();
    let settings = &schema["properties"]["settings"]["properties"];
    let settings: BTreeSet<_> = settings.as_object().unwrap().keys().cloned().collect();
    // The chart passes every setting as a flag, except the password, which is in a Secret.
    let secret = ["config", "redis-password"].map(str::to_owned);
    let others: BTreeSet<_> =
        flags().difference(&own_flags()).filter(|flag| !secret.contains(flag)).cloned().collect();
    let missing: Vec<_> = others.difference(&settings).collect();
    let unknown: Vec<_> = settings.difference(&others).collect();
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "properties of settings in values.schema.json: add {missing:?}, remove {unknown:?}"
    );
}

/// The table of the values, with their comments as meaning.
fn table() -> String {
    let text = file("values.yaml");
    let values = yaml::read("values.yaml", &text);
    let mut table = "| value | default | meaning |\n|---|---|---|\n".to_owned();
    let (mut path, mut comment): (Vec<(usize, String)>, Vec<&str>) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let trimmed = line.trim_start();
        let indent = line.len() - trimmed.len();
        if let Some(words) = trimmed.strip_prefix("# ") {
            comment.push(words);
            continue;
        }
        let meaning = std::mem::take(&mut comment).join(" ");
        let Some((name, _)) = trimmed.split_once(':').filter(|_| !trimmed.starts_with('-')) else {
            continue;
        };
        path.retain(|(of, _)| *of < indent);
        path.push((indent, name.to_owned()));
        if meaning.is_empty() {
            continue;
        }
        let names: Vec<_> = path.iter().map(|(_, name)| name.as_str()).collect();
        let default = values.pointer(&format!("/{}", names.join("/"))).unwrap();
        let (name, meaning) = (names.join("."), meaning.replace('|', "\\|"));
        table += &format!("| `{name}` | `{default}` | {meaning} |\n");
    }
    table
}

/// A value without a comment must be part of a value with one, such as the fields of a security context.
#[test]
fn the_readme_has_the_table_of_the_values() {
    let (table, readme) = (table(), file("README.md"));
    let values = yaml::read("values.yaml", &file("values.yaml"));
    for name in values.as_object().unwrap().keys() {
        let is_documented = table.lines().any(|line| {
            line.starts_with(&format!("| `{name}` |")) || line.starts_with(&format!("| `{name}."))
        });
        assert!(is_documented, "{name} has no comment in values.yaml");
    }
    assert!(readme.contains(&table), "the table of the README must be:\n{table}");
}
