//! Several files that describe one domain.

use std::{fs, path::PathBuf};

use sluicegate_core::rules::{CompileOptions, RuleSet};
use sluicegate_limits::{FileContents, ReadBounds};
use tempfile::TempDir;

use super::{expect, warnings};

/// Files with these texts, named a.yaml, b.yaml and so on.
struct Files {
    folder: TempDir,
    paths: Vec<PathBuf>,
}

impl Files {
    fn new(texts: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let paths = ('a'..).zip(texts).map(|(name, text)| {
            let path = folder.path().join(format!("{name}.yaml"));
            fs::write(&path, text).unwrap();
            path
        });
        Self { paths: paths.collect(), folder }
    }

    fn compile(&self) -> Result<RuleSet, String> {
        let options = CompileOptions { merge_domains: true, ..CompileOptions::default() };
        FileContents::read(&self.paths, ReadBounds::default()).compile(&options).map_err(|errors| {
            let mistakes: String = errors.iter().map(|error| format!("{error}\n")).collect();
            self.without_folder(&mistakes)
        })
    }

    fn without_folder(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.folder.path().display()), "")
    }
}

const USERS: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: second, requests_per_unit: 1}
  - key: path
    value: /a/*
    rate_limit: {unit: second, requests_per_unit: 2}
";

const PATHS: &str = "
domain: shop
descriptors:
  - key: path
    value: /*
    rate_limit: {unit: second, requests_per_unit: 3}
  - key: path
    value: /a/b
    rate_limit: {unit: second, requests_per_unit: 4}
";

const OTHER: &str = "
domain: other
descriptors:
  - key: user
    rate_limit: {unit: second, requests_per_unit: 9}
";

#[test]
fn trees_merge_at_the_first_level_in_file_order() {
    let rules = Files::new(&[USERS, OTHER, PATHS]).compile().unwrap();
    let names: Vec<_> = rules.domains().map(|domain| &*domain.name).collect();
    assert_eq!(names, ["shop", "other"]);
    let ids: Vec<_> = rules.rules().map(|(_, rule)| rule.id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4]);
    expect(
        &rules,
        &[
            ("user=x", "1 per second"),
            ("path=/a/x", "2 per second"),
            ("path=/x", "3 per second"),
            ("path=/a/b", "4 per second"),
        ],
    );
    // The order of the files is that of the patterns.
    let reversed = Files::new(&[PATHS, OTHER, USERS]);
    let rules = reversed.compile().unwrap();
    expect(&rules, &[("path=/a/x", "3 per second")]);
    assert_eq!(
        reversed.without_folder(&warnings(&rules)),
        "c.yaml:6: descriptors[1]: never reached, because the earlier pattern \"/*\" matches the same values; move this one before it\n"
    );
}

#[test]
fn l4_key_and_value_twice_across_files() {
    let errors = Files::new(&[USERS, OTHER, USERS]).compile().unwrap_err();
    assert_eq!(
        errors,
        "\
c.yaml:4: descriptors[0]: user occurs twice at this level, first in a.yaml:4; remove one of them, or put both limits into a list under limits
c.yaml:6: descriptors[1]: path=/a/* occurs twice at this level, first in a.yaml:6; remove one of them, or put both limits into a list under limits
"
    );
}

#[test]
fn setting_of_one_file_applies_to_the_whole_domain() {
    let settings = "
tenant: user
counting: debit
on_failure: deny
response_body: {content_type: text/plain, text: '{limit}'}
defaults: {algorithm: gcra}
";
    let with = PATHS.to_owned() + settings;
    let rules = Files::new(&[USERS, &with]).compile().unwrap();
    let domain = rules.domain("shop").unwrap();
    assert_eq!(domain.tenant.as_deref(), Some(&b"user"[..]));
    for (_, rule) in rules.rules() {
        assert_eq!((rule.counting.name(), rule.on_failure.name()), ("debit", "deny"));
        assert_eq!(rule.response_body.as_ref().unwrap().name(), "text/plain");
    }
    assert_eq!(domain.defaults.algorithm.name(), "gcra");
    let both = USERS.to_owned() + settings;
    assert!(Files::new(&[&both, &with]).compile().is_ok());
}

#[test]
fn conflicting_settings_are_mistakes_with_both_locations() {
    let one = "domain: shop\ntenant: org\ncounting: free\non_failure: deny\ndefaults: {algorithm: gcra}\nresponse_body: openai\n";
    let two = "domain: shop\ndefaults: {algorithm: token_bucket}\non_failure: allow\ncounting: debit\ntenant: user\nresponse_body: none\n";
    let errors = Files::new(&[one, OTHER, two]).compile().unwrap_err();
    assert_eq!(
        errors,
        "\
c.yaml:2: defaults.algorithm: default algorithm of the domain differs from a.yaml:5; give all files of the domain the same default algorithm, or only one of them
c.yaml:3: on_failure: on_failure of the domain differs from a.yaml:4; give all files of the domain the same on_failure, or only one of them
c.yaml:4: counting: counting of the domain differs from a.yaml:3; give all files of the domain the same counting, or only one of them
c.yaml:5: tenant: tenant of the domain differs from a.yaml:2; give all files of the domain the same tenant, or only one of them
c.yaml:6: response_body: response_body of the domain differs from a.yaml:6; give all files of the domain the same response_body, or only one of them
"
    );
}

#[test]
fn replaced_names_are_resolved_across_files() {
    let names = "domain: shop\ndescriptors:\n  - key: n\n    rate_limit: {unit: day, requests_per_unit: 1, name: n}\n";
    let replaces = "domain: shop\ndescriptors:\n  - key: r\n    rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: n}]}\n";
    let files = Files::new(&[replaces, names]);
    assert_eq!(warnings(&files.compile().unwrap()), "");
    let more = names.replace("key: n", "key: m");
    let files = Files::new(&[replaces, names, &more]);
    assert_eq!(
        files.without_folder(&warnings(&files.compile().unwrap())),
        "a.yaml:4: descriptors[0].rate_limit.replaces[0].name: all 2 limits named \"n\" are replaced, for example those in b.yaml:4 and c.yaml:4; give them different names if only one is intended\n\
         c.yaml:4: descriptors[0].rate_limit.name: 2 limits are named \"n\", the first in b.yaml:4; callers and replaces cannot distinguish them, so give them different names\n"
    );
}
