//! Reading of limits files: every mistake is reported with its location, and valid files become the expected rules.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

// `cfg(test)` tells clippy that helpers beside the tests are test code too.
#[cfg(test)]
mod folders;
#[cfg(test)]
mod large;
#[cfg(test)]
mod merging;
#[cfg(test)]
mod metadata;
#[cfg(test)]
mod mistakes;
#[cfg(test)]
mod warnings;

use std::{
    fs,
    path::{Path, PathBuf},
};

use sluicegate_core::{
    Algorithm, Counting, ResponseBody, Rule,
    request::Entry,
    rule::{RuleLimit, RuleLimits},
    rules::{RuleSet, Warning},
};
use sluicegate_limits::compile_text;

fn fixtures(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/limits").join(kind)
}

/// All mistakes in a file, one per line.
fn mistakes(name: &str, text: &str) -> String {
    match compile_text(name, text) {
        Ok(_) => String::new(),
        Err(errors) => errors.iter().map(|error| format!("{error}\n")).collect(),
    }
}

#[test]
fn every_wrong_file_is_rejected_with_the_expected_mistakes() {
    // `BLESS=1` overwrites the expected texts. Review them before you commit them.
    let bless = std::env::var_os("BLESS").is_some();
    let mut wrong = String::new();
    let mut count = 0;
    for entry in fs::read_dir(fixtures("wrong")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|it| it != "yaml") {
            assert!(path.with_extension("yaml").exists(), "{} has no file", path.display());
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap();
        let found = mistakes(name, &fs::read_to_string(&path).unwrap());
        let expected = path.with_extension("txt");
        if bless {
            fs::write(&expected, &found).unwrap();
        }
        let expected = fs::read_to_string(expected).unwrap_or_default();
        if found.is_empty() || found != expected {
            wrong += &format!("--- {name}, expected\n{expected}--- found\n{found}");
        }
        count += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(count > 70, "only {count} files");
}

fn valid(name: &str) -> RuleSet {
    let text = fs::read_to_string(fixtures("valid").join(name)).unwrap();
    rules(name, &text)
}

fn rules(name: &str, text: &str) -> RuleSet {
    compile_text(name, text).unwrap_or_else(|errors| panic!("{errors:?}"))
}

/// The entries of `key=value key=value`.
fn entries(descriptor: &str) -> Vec<Entry<'_>> {
    descriptor
        .split_whitespace()
        .map(|entry| {
            let (key, value) = entry.split_once('=').unwrap();
            Entry { key: key.as_bytes(), value: value.as_bytes() }
        })
        .collect()
}

fn find<'r>(rules: &'r RuleSet, descriptor: &str) -> Option<&'r Rule> {
    rules.domains().next().unwrap().find(&entries(descriptor)).rule
}

/// The shared patterns that replace values, `-` for none.
fn shared(rules: &RuleSet, descriptor: &str) -> String {
    let found = rules.domains().next().unwrap().find(&entries(descriptor));
    let text = |pattern: &Option<&[u8]>| {
        pattern.map_or_else(|| "-".to_owned(), |it| String::from_utf8(it.to_vec()).unwrap())
    };
    found.shared_patterns.iter().map(text).collect::<Vec<_>>().join(" ")
}

/// The limits of a rule as text.
fn words(rule: Option<&Rule>) -> String {
    match rule.map(|rule| &rule.limits) {
        None => "none".to_owned(),
        Some(RuleLimits::Unlimited { .. }) => "unlimited".to_owned(),
        Some(RuleLimits::Limited(limits)) => {
            limits.iter().map(|limit| limit.displayed.to_string()).collect::<Vec<_>>().join(" and ")
        }
    }
}

fn only(rule: Option<&Rule>) -> &RuleLimit {
    match rule.map(|rule| &rule.limits) {
        Some(RuleLimits::Limited(limits)) if limits.len() == 1 => limits.first().unwrap(),
        other => panic!("not one limit: {other:?}"),
    }
}

/// Checks which rule each descriptor matches.
fn expect(rules: &RuleSet, table: &[(&str, &str)]) {
    for (descriptor, expected) in table {
        assert_eq!(words(find(rules, descriptor)), *expected, "{descriptor}");
    }
}

/// All warnings, one per line.
fn warnings(rules: &RuleSet) -> String {
    rules.warnings().iter().map(|warning| format!("{warning}\n")).collect()
}

/// Checks the shared patterns of each descriptor.
fn expect_shared(rules: &RuleSet, table: &[(&str, &str)]) {
    for (descriptor, expected) in table {
        assert_eq!(shared(rules, descriptor), *expected, "{descriptor}");
    }
}

#[test]
fn upstreams_basic_rules_match() {
    let rules = valid("basic.yaml");
    assert!(rules.domain("foo_domain").is_none());
    assert!(rules.warnings().is_empty());
    expect(
        &rules,
        &[
            ("", "none"),
            ("key1=something", "none"),
            ("key1=value1", "none"),
            ("key2=value2 subkey=subvalue", "none"),
            ("key1=something subkey1=subvalue1", "none"),
            ("subkey1=subvalue1", "none"),
            ("key1=value1 subkey1=something", "5 per second"),
            ("key1=value1 subkey1=subvalue1", "10 per second"),
            ("key2=something", "20 per minute"),
            ("key2=", "20 per minute"),
            ("key2=value2", "30 per minute"),
            ("key2=VALUE2", "20 per minute"),
            ("key2=value3", "none"),
            ("key3=foo", "1 per hour"),
            ("key4=foo", "1 per day"),
            ("key6=foo", "unlimited"),
            ("key7=unspecified_value", "70 per minute"),
            ("key7=another_value", "70 per minute"),
            ("key5=value5", "15 per day"),
            ("key5=value5 subkey5=subvalue5", "25 per day"),
            ("key5=value6", "none"),
            ("key2_value2=x", "none"),
        ],
    );
    assert_eq!(only(find(&rules, "key3=foo")).name, None);
    assert_eq!(only(find(&rules, "key4=foo")).name.as_deref(), Some("key4_rate_limit"));
    assert!(find(&rules, "key7=x").unwrap().detailed_metric);
    assert_eq!(&*find(&rules, "key1=value1 subkey1=x").unwrap().path, "key1=value1.subkey1");
}

#[test]
fn upstreams_wildcards_match() {
    let rules = valid("wildcards.yaml");
    expect(
        &rules,
        &[
            ("noVal=foo1", "20 per minute"),
            ("noVal=foo2", "20 per minute"),
            ("wild=foo1", "20 per minute"),
            ("wild=foo", "20 per minute"),
            ("wild=foo*", "20 per minute"),
            ("wild=bar", "none"),
            ("wild=xfoo", "none"),
            ("noWild=foo", "20 per minute"),
            ("noWild=foo1", "none"),
            ("midWild=barab", "20 per minute"),
            ("midWild=bar123b", "20 per minute"),
            ("midWild=barb", "20 per minute"),
            ("midWild=bar", "none"),
            ("midWild=barbc", "none"),
            ("multiWild=foo123bar456baz", "10 per minute"),
            ("multiWild=foobarbaz", "10 per minute"),
            ("multiWild=foobaz", "none"),
            ("multiWild=foobazbar", "none"),
            ("nestedWild=val1 wild=goober", "20 per minute"),
            ("nestedWild=val1 wild=foo", "none"),
            ("p=abc", "1 per minute"),
            ("p=abd", "9 per minute"),
            ("order=bz", "1 per minute"),
            ("order=az", "2 per minute"),
            ("order=a", "3 per minute"),
            ("all=", "4 per minute"),
            ("all=x", "4 per minute"),
            ("overlap=abba", "5 per minute"),
            ("overlap=aba", "none"),
        ],
    );
    expect_shared(&rules, &[("wild=foo1", ""), ("midWild=barb", "")]);
}

#[test]
fn upstreams_shared_thresholds_match() {
    let rules = valid("shared.yaml");
    expect(
        &rules,
        &[
            ("files=files/a.pdf", "100 per hour"),
            ("files=files/subdir/f.txt", "100 per hour"),
            ("nested=parent files=nested/file1.txt", "200 per hour"),
            ("files=top/x files=nested/y", "300 per hour"),
            ("route=api/v1 method=GET", "60 per hour"),
            ("service=svc/user endpoint=get", "80 per hour"),
            ("path=path/a file=file/b type=t", "120 per hour"),
            ("user=user/alice resource=res/file1 action=read", "150 per hour"),
            ("file=test1", "50 per hour"),
            ("file=test2", "100 per hour"),
            ("file=test123", "100 per hour"),
            ("midpath=/api/a/v1", "100 per hour"),
            ("multiroute=svcAepBrpc", "50 per hour"),
            ("multiroute=svceprpc", "50 per hour"),
            ("multiroute=svcABCrpc", "none"),
            ("midroute=/apiXv2", "80 per hour"),
            ("tenant=t1prod resource=resXv2", "60 per hour"),
        ],
    );
    expect_shared(
        &rules,
        &[
            ("files=files/a.pdf", "files/*"),
            ("files=files/b.csv", "files/*"),
            ("files=files/c.txt", "files/*"),
            ("files=files/subdir/f.txt", "files/*"),
            ("files=files/*", "files/*"),
            ("nested=parent files=nested/file1.txt", "- nested/*"),
            ("nested=parent files=nested/file2.csv", "- nested/*"),
            ("files=top/x files=nested/y", "top/* nested/*"),
            ("route=api/v1 method=GET", "api/*"),
            ("path=path/a file=file/b type=t", "path/*"),
            ("user=user/alice resource=res/file1 action=read", "user/* res/*"),
            ("user=user/bob resource=res/file2 action=write", "user/* res/*"),
            ("file=test1", ""),
            ("file=test2", "test*"),
            ("file=test123", "test*"),
            ("multiroute=svcXXXepYYYrpc", "svc*ep*rpc"),
            ("tenant=t1prod resource=resXv2", "t*prod res*v2"),
        ],
    );
    assert!(find(&rules, "midroute=/apiXv2").unwrap().value_to_metric);
    assert!(find(&rules, "service=svc/user endpoint=get").unwrap().detailed_metric);
}

#[test]
fn upstreams_replacements_are_read() {
    let rules = valid("replaces.yaml");
    let names = |descriptor| {
        let limit = only(find(&rules, descriptor));
        (limit.name.as_deref(), limit.replaces.iter().map(|it| &**it).collect::<Vec<_>>())
    };
    assert_eq!(names("foo=x bar=y"), (None, vec![]));
    assert_eq!(names("foo=x bar=bkthomps"), (Some("bkthomps"), vec![]));
    assert_eq!(names("foo=x bar=banned"), (Some("banned_limit"), vec![]));
    assert_eq!(
        names("source_cluster=proxy destination_cluster=override"),
        (None, vec!["banned_limit"])
    );
    assert_eq!(
        names("source_cluster=proxy destination_cluster=bkthomps"),
        (None, vec!["bkthomps"])
    );
    assert_eq!(names("source_cluster=proxy destination_cluster=fake"), (Some("fake_name"), vec![]));
    assert_eq!(names("category=account"), (None, vec!["bkthomps", "fake_name"]));
}

#[test]
fn own_keys_are_read() {
    let rules = valid("own_keys.yaml");
    let domain = rules.domain("own").unwrap();
    assert_eq!(domain.tenant.as_deref(), Some(&b"organisation"[..]));
    assert_eq!(domain.defaults.algorithm, Algorithm::SlidingWindowCounter);
    assert_eq!(domain.defaults.counting, Counting::Debit);
    assert!(domain.has_response_bodies);
    let body = |key: &str| find(&rules, &format!("{key}=x")).unwrap().response_body.as_deref();
    assert_eq!(body("default"), None);
    assert_eq!(body("multiplier"), ResponseBody::preset("openai").as_ref());
    assert_eq!(body("window").unwrap().content_type(), "application/json");
    assert_eq!(body("odd_window"), domain.response_body.as_deref());
    assert_eq!(domain.response_body.as_ref().unwrap().name(), "problem_json");
    let numbers = |key: &str| {
        let rule = find(&rules, &format!("{key}=x"));
        let RuleLimit { limit, displayed: shown, .. } = only(rule);
        let shown = shown.to_string();
        let seconds = limit.window().seconds();
        (shown, limit.algorithm(), seconds, limit.capacity(), rule.unwrap().counting)
    };
    let expected = [
        ("default", "10 per minute", Algorithm::SlidingWindowCounter, 60, 10, Counting::Debit),
        (
            "multiplier",
            "10 per 5 minutes",
            Algorithm::SlidingWindowCounter,
            300,
            10,
            Counting::Debit,
        ),
        (
            "window",
            "10 per 36 hours",
            Algorithm::SlidingWindowCounter,
            129_600,
            10,
            Counting::Debit,
        ),
        (
            "odd_window",
            "10 per 90 seconds",
            Algorithm::SlidingWindowCounter,
            90,
            10,
            Counting::Debit,
        ),
        ("bucket", "10 per second", Algorithm::TokenBucket, 1, 50, Counting::Debit),
        ("bucket_default", "10 per second", Algorithm::TokenBucket, 1, 10, Counting::Debit),
        ("gcra", "10 per second", Algorithm::Gcra, 1, 3, Counting::Free),
        ("log", "100 per minute", Algorithm::SlidingWindowLog, 60, 100, Counting::Free),
        (
            "fixed",
            "4294967295 per month",
            Algorithm::FixedWindow,
            2_592_000,
            u32::MAX,
            Counting::Upstream,
        ),
    ];
    for (key, shown, algorithm, seconds, capacity, counting) in expected {
        let expected = (shown.to_owned(), algorithm, seconds, capacity, counting);
        assert_eq!(numbers(key), expected, "{key}");
    }
    let several = find(&rules, "several=x").unwrap();
    assert!(several.quota_mode && !several.shadow_mode);
    assert_eq!(words(Some(several)), "5 per second and 1000 per day");
    let RuleLimits::Limited(limits) = &several.limits else { panic!("{several:?}") };
    let parts: Vec<_> = limits
        .iter()
        .map(|it| (it.limit.algorithm(), it.name.as_deref(), it.replaces.len()))
        .collect();
    let expected =
        [(Algorithm::SlidingWindowCounter, Some("burst"), 0), (Algorithm::FixedWindow, None, 1)];
    assert_eq!(parts, expected);
    let free = find(&rules, "free=x").unwrap();
    assert!(free.shadow_mode);
    assert!(
        matches!(&free.limits, RuleLimits::Unlimited { name: Some(name), .. } if &**name == "open")
    );
    assert!(rules.warnings().is_empty());
    for (position, (_, rule)) in rules.rules().enumerate() {
        assert_eq!(rule.id, position);
    }
}

#[test]
fn yaml_notations_are_read() {
    let rules = valid("yaml.yaml");
    assert_eq!(rules.domains().map(|domain| &*domain.name).collect::<Vec<_>>(), ["yaml"]);
    assert_eq!(rules.warnings()[0].warning, Warning::ExtraDocument);
    assert_eq!((rules.warnings().len(), rules.warnings()[0].location.line), (1, 35));
    expect(
        &rules,
        &[
            ("number=404", "1 per minute"),
            ("number=404.5", "1 per minute"),
            ("number=405", "none"),
            ("word=true", "1 per minute"),
            ("word=off", "2 per minute"),
            ("word=false", "none"),
            ("word=null", "3 per hour"),
            ("address=10.0.0.1", "1 per minute"),
            ("tagged=1.5", "1 per minute"),
            ("nothing=at_all", "1 per minute"),
        ],
    );
    assert_eq!(only(find(&rules, "word=null")).name.as_deref(), Some("first"));
}
