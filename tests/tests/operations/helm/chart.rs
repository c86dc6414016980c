//! The rendered chart.

use std::{fs, path::PathBuf};

use serde_json::Value;
use sluicegate_tests::{
    tools::{self, succeed, workspace},
    yaml,
};

/// The values files of the matrix. The tests of the chart check each.
pub(super) fn matrix() -> Vec<PathBuf> {
    let folder = workspace().join("helm/ci");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.collect();
    files.sort();
    assert!(files.len() > 1, "{files:?}");
    files
}

/// The output of Helm for one values file.
#[derive(Debug)]
pub(super) struct Rendered {
    /// The values file, for messages.
    pub(super) values: PathBuf,
    /// The text.
    pub(super) text: String,
    /// The objects of the text.
    pub(super) objects: Vec<Value>,
}

impl Rendered {
    /// Renders the chart with these values, as release `edge` in the namespace `limits`.
    pub(super) fn new(values: PathBuf) -> Self {
        let mut helm = tools::helm();
        helm.args(["template", "edge", "helm", "--namespace", "limits", "--values"]);
        let text = succeed(helm.arg(&values));
        let objects = yaml::read_all(&values.display().to_string(), &text);
        Self { values, text, objects }
    }

    /// The whole matrix.
    pub(super) fn matrix() -> impl Iterator<Item = Self> {
        matrix().into_iter().map(Self::new)
    }

    /// The objects of a kind.
    pub(super) fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |object| object["kind"] == kind)
    }

    /// The only object of a kind, if there is one.
    pub(super) fn only(&self, kind: &str) -> Option<&Value> {
        let mut all = self.of_kind(kind);
        let first = all.next();
        assert!(all.next().is_none(), "{}: several of {kind}", self.values.display());
        first
    }

    /// The object with that name, if there is one.
    pub(super) fn named(&self, kind: &str, name: &Value) -> Option<&Value> {
        self.of_kind(kind).find(|object| object["metadata"]["name"] == *name)
    }

    /// The Deployment.
    pub(super) fn deployment(&self) -> &Value {
        self.only("Deployment").unwrap()
    }

    /// The specification of the server's pods.
    pub(super) fn pod(&self) -> &Value {
        &self.deployment()["spec"]["template"]["spec"]
    }

    /// The server's container.
    pub(super) fn container(&self) -> &Value {
        let containers = self.pod()["containers"].as_array().unwrap();
        assert_eq!(containers.len(), 1);
        &containers[0]
    }

    /// Every pod specification: the Deployment's and the test's.
    pub(super) fn pods(&self) -> Vec<&Value> {
        let tests = self.of_kind("Pod").map(|pod| &pod["spec"]);
        [self.pod()].into_iter().chain(tests).collect()
    }

    /// The server's command line, after the name of the binary.
    pub(super) fn arguments(&self) -> Vec<&str> {
        texts(&self.container()["args"])
    }

    /// The value of a flag.
    pub(super) fn flag(&self, flag: &str) -> Option<&str> {
        let flags = self.arguments().into_iter();
        let mut given = flags.filter_map(|it| it.strip_prefix(flag)?.strip_prefix('='));
        let value = given.next();
        assert!(given.next().is_none(), "{flag} is given twice");
        value
    }
}

/// The texts of a list; empty if there is no list.
pub(super) fn texts(list: &Value) -> Vec<&str> {
    let list = list.as_array().map_or(&[][..], Vec::as_slice);
    list.iter().map(|text| text.as_str().unwrap()).collect()
}
