//! The format of a file of cases.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::Value;

use crate::{step::Step, yaml};

/// The folder of the case files.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance")
}

/// `--default-counting`: the two modes in which every case runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    Free,
    Upstream,
}

impl Counting {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Upstream => "upstream",
        }
    }
}

/// Kinds of stores.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Memory,
    Redis,
    Cluster,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Redis => "redis",
            Self::Cluster => "cluster",
        }
    }
}

/// A case, in one mode.
#[derive(Debug)]
pub(crate) struct Case {
    /// Its ids, and a description.
    pub(crate) title: String,
    /// Its file.
    pub(crate) file: String,
    pub(crate) counting: Counting,
    pub(crate) domain: String,
    /// Name → text.
    pub(crate) limits: BTreeMap<String, String>,
    /// Flags of `serve`.
    pub(crate) flags: Vec<String>,
    /// Initial time of the clock, in seconds since 1970.
    pub(crate) at: u64,
    pub(crate) stores: Vec<Kind>,
    /// Expected error of a start that fails.
    pub(crate) fails: Option<String>,
    pub(crate) steps: Vec<Step>,
}

impl Case {
    /// The ids that the case covers: the first words of the title.
    pub(crate) fn ids(&self) -> Vec<String> {
        let words = self.title.split(' ');
        words.take_while(|word| is_id(word)).map(str::to_owned).collect()
    }
}

/// Whether a word is an id: a capital letter and a number.
pub(crate) fn is_id(word: &str) -> bool {
    let number = word.strip_prefix(|letter: char| letter.is_ascii_uppercase());
    number.is_some_and(|it| !it.is_empty() && it.bytes().all(|digit| digit.is_ascii_digit()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    domain: Option<String>,
    #[serde(default)]
    limits: Option<LimitsText>,
    cases: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    case: String,
    domain: Option<String>,
    limits: Option<LimitsText>,
    #[serde(default)]
    flags: String,
    #[serde(default = "usual_time")]
    at: u64,
    #[serde(default = "all_stores")]
    stores: Vec<Kind>,
    fails: Option<String>,
    #[serde(default)]
    steps: Vec<Step>,
}

const fn usual_time() -> u64 {
    1234
}

fn all_stores() -> Vec<Kind> {
    vec![Kind::Memory, Kind::Redis, Kind::Cluster]
}

/// Limits files: one, or several by name. A single word is the name of a file in `limits/`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum LimitsText {
    One(String),
    Several(BTreeMap<String, String>),
}

impl LimitsText {
    /// Name → text.
    pub(crate) fn files(&self) -> BTreeMap<String, String> {
        let text = |text: &String| {
            if text.is_empty() || text.contains([':', '\n']) {
                return text.clone();
            }
            let path = folder().join("limits").join(format!("{text}.yaml"));
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        match self {
            Self::One(one) => BTreeMap::from([("limits.yaml".to_owned(), text(one))]),
            Self::Several(files) => {
                files.iter().map(|(name, it)| (name.clone(), text(it))).collect()
            }
        }
    }
}

/// All cases for one mode and store.
pub(crate) fn cases(counting: Counting, store: Kind) -> Vec<Case> {
    let mut paths: Vec<_> =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let of_cases = |path: &&PathBuf| {
        path.extension().is_some_and(|it| it == "yaml") && !path.ends_with(crate::lists::FILE)
    };
    paths.iter().filter(of_cases).flat_map(|path| of_file(path, counting, store)).collect()
}

fn of_file(path: &Path, counting: Counting, store: Kind) -> Vec<Case> {
    let name = path.file_name().unwrap().to_str().unwrap();
    let value = yaml::read(name, &fs::read_to_string(path).unwrap());
    let value = yaml::choose(value, &["free", "upstream"], counting.name());
    let value = yaml::choose(value, &["memory", "redis", "cluster"], store.name());
    let file: File =
        serde_json::from_value(value).unwrap_or_else(|error| panic!("{name}: {error}"));
    let case = |value: &Value| {
        let title = value["case"].as_str().unwrap_or("a case without a title");
        let written = Written::deserialize(value);
        let written = written.unwrap_or_else(|error| panic!("{name}: {title}: {error}"));
        let of_case = |it: &Option<LimitsText>| it.as_ref().map(LimitsText::files);
        let limits = of_case(&written.limits).or_else(|| of_case(&file.limits));
        let case = Case {
            title: written.case,
            file: name.to_owned(),
            counting,
            domain: written.domain.or_else(|| file.domain.clone()).unwrap_or_default(),
            limits: limits.unwrap_or_else(|| panic!("{name}: {title}: no limits")),
            flags: written.flags.split_whitespace().map(str::to_owned).collect(),
            at: written.at,
            stores: written.stores,
            fails: written.fails,
            steps: written.steps,
        };
        assert!(!case.ids().is_empty(), "{name}: {title}: begins with no id");
        assert!(case.fails.is_some() || !case.steps.is_empty(), "{name}: {title}: asserts nothing");
        case
    };
    file.cases.iter().map(case).collect()
}
