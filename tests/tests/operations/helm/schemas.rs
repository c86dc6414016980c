//! Validates every object of the chart against the schemas of Kubernetes and of the Prometheus operator.

use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use sluicegate_tests::tools::{self, workspace};

use super::chart::Rendered;

/// The oldest Kubernetes that the chart supports, two common versions, and the newest with a schema.
const VERSIONS: [&str; 4] = ["1.27", "1.31", "1.35", "1.37"];

/// The mistakes in the objects of these files; empty if all are valid.
fn mistakes(version: &str, files: &[PathBuf]) -> Vec<String> {
    let mut validate = tools::manifests("kubernetes-validate");
    let output =
        validate.args(["-k", version, "--strict", "--quiet"]).args(files).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8(printed).unwrap();
    // Custom kinds have other schemas.
    let lines = printed.lines().filter(|line| {
        !(line.contains("Couldn't find schema") && line.contains(" monitoring.coreos.com/v1 "))
    });
    let mut mistakes: Vec<_> = lines.map(str::to_owned).collect();
    if mistakes.is_empty() && !output.status.success() {
        mistakes.push(format!("{}: {printed}", output.status));
    }
    mistakes
}

/// The mistakes in objects of custom kinds.
fn custom_mistakes(objects: &[&Value]) -> Vec<String> {
    let mut node = Command::new("node")
        .arg(workspace().join("tests/manifests/validate.mjs"))
        .arg(tools::manifest_schemas())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let input = serde_json::to_vec(objects).unwrap();
    node.stdin.take().unwrap().write_all(&input).unwrap();
    let output = node.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.success(), printed.is_empty(), "{:?} {printed}", output.status);
    printed.lines().map(str::to_owned).collect()
}

fn is_custom(object: &Value) -> bool {
    object["apiVersion"].as_str().unwrap().starts_with("monitoring.coreos.com/")
}

fn written(folder: &Path, name: &str, objects: &[Value]) -> PathBuf {
    // JSON is valid YAML.
    let documents: Vec<_> = objects.iter().map(Value::to_string).collect();
    let path = folder.join(format!("{name}.yaml"));
    fs::write(&path, documents.join("\n---\n")).unwrap();
    path
}

#[test]
fn every_object_fits_its_schema() {
    let folder = tempfile::tempdir().unwrap();
    let (mut files, mut custom) = (Vec::new(), Vec::new());
    for rendered in Rendered::matrix() {
        let name = rendered.values.file_stem().unwrap().to_str().unwrap().to_owned();
        let path = folder.path().join(format!("{name}.yaml"));
        fs::write(&path, &rendered.text).unwrap();
        files.push(path);
        custom.extend(rendered.objects.into_iter().filter(is_custom));
    }
    for version in VERSIONS {
        assert_eq!(mistakes(version, &files), [""; 0], "Kubernetes {version}");
    }
    for kind in ["ServiceMonitor", "PrometheusRule"] {
        assert!(custom.iter().any(|object| object["kind"] == kind), "{kind} was not checked");
    }
    assert_eq!(custom_mistakes(&Vec::from_iter(&custom)), [""; 0]);
}

#[test]
fn the_oldest_version_is_the_charts_minimum() {
    let chart = fs::read_to_string(workspace().join("helm/Chart.yaml")).unwrap();
    assert!(chart.contains(&format!("kubeVersion: \">={}.0-0\"", VERSIONS[0])));
}

#[test]
fn invalid_objects_are_detected() {
    let folder = tempfile::tempdir().unwrap();
    let object = |kind: &str, version: &str, spec: Value| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "edge"}, "spec": spec});
    let service = json!({"ports": [{"port": 1}], "selector": {"a": "b"}});
    let good = written(folder.path(), "good", &[object("Service", "v1", service.clone())]);
    let monitor = json!({"selector": {}, "endpoints": [{"port": "http"}]});
    for version in VERSIONS {
        assert_eq!(mistakes(version, std::slice::from_ref(&good)), [""; 0]);
        for (name, bad) in [
            ("kind", object("Servize", "v1", service.clone())),
            ("group", object("Service", "example.com/v1", service.clone())),
            ("field", object("Service", "v1", json!({"ports": [{"port": 1, "prot": 2}]}))),
            ("type", object("Service", "v1", json!({"ports": [{"port": "http"}]}))),
        ] {
            let file = written(folder.path(), name, &[bad]);
            assert_ne!(mistakes(version, &[file]), [""; 0], "{name}, Kubernetes {version}");
        }
    }
    let operator = "monitoring.coreos.com/v1";
    assert_eq!(custom_mistakes(&[&object("ServiceMonitor", operator, monitor.clone())]), [""; 0]);
    let rule = |rule: Value| json!({"groups": [{"name": "a", "rules": [rule]}]});
    for (bad, mistake) in [
        (object("ServiceMonitors", operator, monitor.clone()), "no schema for"),
        (object("ServiceMonitor", "example.com/v1", monitor), "no schema for"),
        (
            object("ServiceMonitor", operator, json!({"endpoints": []})),
            "required property selector",
        ),
        (
            object(
                "ServiceMonitor",
                operator,
                json!({"selector": {}, "endpoints": [{"prot": "a"}]}),
            ),
            "unknown field /spec/endpoints/0/prot",
        ),
        (
            object(
                "PrometheusRule",
                operator,
                rule(json!({"alert": "A", "expr": "up", "fur": "1m"})),
            ),
            "unknown field /spec/groups/0/rules/0/fur",
        ),
        (
            object("PrometheusRule", operator, rule(json!({"alert": "A", "expr": "up", "for": 1}))),
            "/spec/groups/0/rules/0/for must be string",
        ),
    ] {
        let printed = custom_mistakes(&[&bad]);
        assert!(printed.iter().any(|line| line.contains(mistake)), "{mistake}: {printed:?}");
    }
}
