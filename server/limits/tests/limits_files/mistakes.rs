//! Mistakes in limits files: first those for which envoyproxy/ratelimit does not load a file. The numbers `l1` to `l15`
//! in names of tests are those of `tests/conformance/loader.yaml`.

use std::fs;

use sluicegate_core::rules::CompileOptions;
use sluicegate_limits::{FileContents, ReadBounds};

use super::mistakes;

/// Checks the mistakes in a file named `a.yaml`.
#[track_caller]
fn expect_mistakes(text: &str, expected: &str) {
    let expected: String = expected.lines().map(|line| format!("a.yaml:{line}\n")).collect();
    assert_eq!(mistakes("a.yaml", text), expected);
}

/// A descriptor of one limit.
fn limit(fields: &str) -> String {
    format!("domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{{fields}}}\n")
}

#[test]
fn l1_domain_missing() {
    let missing = "1: domain is missing or empty; give domain a value";
    expect_mistakes("", missing);
    expect_mistakes("# nothing\n", missing);
    expect_mistakes("descriptors: []\n", missing);
    expect_mistakes("domain:\n", "1: domain: domain is missing or empty; give domain a value");
    expect_mistakes("\ndomain: ''\n", "2: domain: domain is missing or empty; give domain a value");
}

#[test]
fn l2_domain_in_two_files() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.yaml"), "domain: shop\n").unwrap();
    fs::write(folder.path().join("b.yaml"), "# b\ndomain: shop\n").unwrap();
    let contents = FileContents::read(&[folder.path().to_owned()], ReadBounds::default());
    let errors = contents.compile(&CompileOptions::default()).unwrap_err();
    let message = errors[0].to_string().replace(&format!("{}/", folder.path().display()), "");
    assert_eq!(
        (errors.len(), &*message),
        (
            1,
            "b.yaml:2: domain: domain \"shop\" is also defined in a.yaml; keep a domain in one file, or set --merge-domains"
        )
    );
}

#[test]
fn l3_descriptor_without_key() {
    expect_mistakes(
        "domain: d\ndescriptors:\n  - value: v\n  - key: ''\n  - {key: k, descriptors: [{value: v}]}\n",
        "\
3: descriptors[0]: key is missing or empty; give key a value
4: descriptors[1]: key is missing or empty; give key a value
5: descriptors[2].descriptors[0]: key is missing or empty; give key a value",
    );
}

#[test]
fn l4_key_and_value_twice() {
    expect_mistakes(
        "
domain: d
descriptors:
  - key: a
    descriptors:
      - {key: b, value: c}
      - {key: b, value: d}
      - {key: b, value: c}
  - key: a
    value: ''
",
        "\
8: descriptors[0].descriptors[2]: a.b=c occurs twice at this level, first in line 6; remove one of them, or put both limits into a list under limits
9: descriptors[1]: a occurs twice at this level, first in line 4; remove one of them, or put both limits into a list under limits",
    );
}

#[test]
fn l5_unit_unknown() {
    let help = "use second, minute, hour, day, week, month or year";
    for unit in ["unknown", "fortnight", "''", "seconds"] {
        expect_mistakes(
            &limit(&format!("unit: {unit}, requests_per_unit: 1")),
            &format!("4: descriptors[0].rate_limit.unit: the unit is not known; {help}"),
        );
    }
    expect_mistakes(
        &limit("requests_per_unit: 1"),
        "4: descriptors[0].rate_limit: neither unit nor window is given; give either unit (with unit_multiplier) or window",
    );
    assert_eq!(mistakes("a.yaml", &limit("unit: WeeK, requests_per_unit: 1")), "");
}

#[test]
fn l6_unlimited_with_a_unit() {
    expect_mistakes(
        &limit("unlimited: true, unit: Second"),
        "4: descriptors[0].rate_limit.unit: unlimited excludes unit; remove unit or unlimited",
    );
    expect_mistakes(
        &limit("unlimited: true, algorithm: gcra"),
        "4: descriptors[0].rate_limit: unlimited excludes algorithm; remove algorithm or unlimited",
    );
}

#[test]
fn l7_replaces_without_a_name() {
    expect_mistakes(
        &limit("unit: second, requests_per_unit: 1, replaces: [{name: ''}, {}]"),
        "\
4: descriptors[0].rate_limit.replaces[0].name: name is missing or empty; give name a value
4: descriptors[0].rate_limit.replaces[1]: name is missing or empty; give name a value",
    );
}

#[test]
fn l8_replaces_itself() {
    expect_mistakes(
        &limit("unit: second, requests_per_unit: 1, name: n, replaces: [{name: n}]"),
        "4: descriptors[0].rate_limit.replaces[0].name: \"n\" replaces itself; remove it from replaces",
    );
}

#[test]
fn l9_not_yaml_or_wrong_type() {
    expect_mistakes(
        "domain: d\ndescriptors: [\n",
        "2: not YAML: unclosed bracket '['; correct the syntax",
    );
    let number = "write a whole number from 0 to 4294967295";
    for (wrong, kind) in
        [("-1", "a number"), ("4294967296", "a number"), ("ten", "a text of 3 characters")]
    {
        expect_mistakes(
            &limit(&format!("unit: second, requests_per_unit: {wrong}")),
            &format!(
                "4: descriptors[0].rate_limit.requests_per_unit: {kind} is not valid here; {number}"
            ),
        );
    }
    expect_mistakes(
        "domain: d\ndescriptors:\n  - key: k\n    rate_limit: 5\n    shadow_mode: 1\n    value: [v]\n",
        "\
4: descriptors[0].rate_limit: a number is not valid here; write a map
5: descriptors[0].shadow_mode: a number is not valid here; write true or false
6: descriptors[0].value: a list is not valid here; write a text",
    );
}

#[test]
fn mistake_in_a_limit_does_not_hide_others() {
    expect_mistakes(
        "\
domain: d
descriptors:
  - key: a
    rate_limit: {unit: fortnight, requestsperunit: 5, name: n, replaces: [{name: n}, {name: \"\"}]}
  - key: b
    limits: [{unit: minute, requests_per_unit: x}, 3, {unit: foo, requests_per_unit: 1}]
",
        "\
4: descriptors[0].rate_limit.unit: the unit is not known; use second, minute, hour, day, week, month or year
4: descriptors[0].rate_limit: the key in column 35 is not known here; did you mean requests_per_unit?
4: descriptors[0].rate_limit.replaces[0].name: \"n\" replaces itself; remove it from replaces
4: descriptors[0].rate_limit.replaces[1].name: name is missing or empty; give name a value
6: descriptors[1].limits[0].requests_per_unit: a text of 1 character is not valid here; write a whole number from 0 to 4294967295
6: descriptors[1].limits[1]: a number is not valid here; write a map
6: descriptors[1].limits[2].unit: the unit is not known; use second, minute, hour, day, week, month or year",
    );
}

#[test]
fn l10_key_that_is_not_a_text() {
    expect_mistakes(
        "domain: d\n{a: b}: c\n? [x]\n: y\n",
        "\
2: a map is not valid here; write a text as the key
3: a list is not valid here; write a text as the key",
    );
    expect_mistakes("domain: d\n1: c\n", "2: a number is not valid here; write a text as the key");
}

#[test]
fn l11_key_unknown() {
    expect_mistakes(
        "domain: d\ndescriptors:\n  - key: k\n    ratelimit: {unit: second}\n  - key: l\n    rate_limit: {unit: second, requestsperunit: 1, colour: red}\n",
        "\
4: descriptors[0]: the key in column 5 is not known here; did you mean rate_limit?
6: descriptors[1].rate_limit: the key in column 32 is not known here; did you mean requests_per_unit?
6: descriptors[1].rate_limit: the key in column 52 is not known here; use one of unit, requests_per_unit, unlimited, name, replaces, algorithm, window, unit_multiplier, burst",
    );
}

/// envoyproxy/ratelimit rejects keys that it does not know, so rejecting our own keys in the wrong map rejects no file
/// that it loads.
#[test]
fn l11_own_key_in_the_wrong_map() {
    expect_mistakes(
        "
domain: d
algorithm: gcra
unit_multiplier: 2
descriptors:
  - key: k
    tenant: k
    defaults: {}
    burst: 3
    window: 1s
    rate_limit: {unit: second, requests_per_unit: 1, limits: [], counting: free, on_failure: deny}
  - key: l
    limits:
      - {unit: second, requests_per_unit: 1, shadow_mode: true}
",
        "\
3: key \"algorithm\" is not known here; move it into defaults
4: key \"unit_multiplier\" is not known here; move it into rate_limit
7: descriptors[0]: key \"tenant\" is not known here; move it to the top of the file
8: descriptors[0]: key \"defaults\" is not known here; move it to the top of the file
9: descriptors[0]: key \"burst\" is not known here; move it into rate_limit
10: descriptors[0]: key \"window\" is not known here; move it into rate_limit
11: descriptors[0].rate_limit: key \"limits\" is not known here; move it into a descriptor
11: descriptors[0].rate_limit: key \"counting\" is not known here; move it into a descriptor
11: descriptors[0].rate_limit: key \"on_failure\" is not known here; move it into a descriptor
14: descriptors[1].limits[0]: key \"shadow_mode\" is not known here; move it into a descriptor",
    );
}

#[test]
fn l12_list_of_other_than_maps() {
    expect_mistakes(
        "domain: d\ndescriptors:\n  - text\n  - [k]\n  -\n  - key: k\n    rate_limit: {unit: second, requests_per_unit: 1, replaces: [n]}\n",
        "\
3: descriptors[0]: a text of 4 characters is not valid here; write a map
4: descriptors[1]: a list is not valid here; write a map
5: descriptors[2]: an empty value is not valid here; write a map
7: descriptors[3].rate_limit.replaces[0]: a boolean is not valid here; write a map such as {name: other}",
    );
}

#[test]
fn l13_float() {
    expect_mistakes(
        "domain: 1.5\ndescriptors:\n  - key: k\n    value: 1.10\n  - key: 2e3\n    rate_limit: {unit: second, requests_per_unit: 1.0}\n",
        "\
1: domain: a number is not valid here; write a text in quotes
4: descriptors[0].value: a number is not valid here; write a text in quotes
5: descriptors[1].key: a number is not valid here; write a text in quotes
6: descriptors[1].rate_limit.requests_per_unit: a number is not valid here; write a whole number from 0 to 4294967295",
    );
}

#[test]
fn l14_share_threshold_without_a_star() {
    expect_mistakes(
        "domain: d\ndescriptors:\n  - {key: k, value: v, share_threshold: true}\n  - {key: l, share_threshold: true}\n",
        "\
3: descriptors[0]: share_threshold needs a value with a *; add a * to the value, or remove share_threshold
4: descriptors[1]: share_threshold needs a value with a *; add a * to the value, or remove share_threshold",
    );
}

#[test]
fn l15_metadata_that_json_cannot_express() {
    expect_mistakes(
        "
domain: d
descriptors:
  - key: a
    metadata: [x]
  - key: b
    metadata:
      1: one
      nothing: .nan
      list: [1, -.INF, {true: 1}]
      huge: 1e999
      ? [k]
      : v
      tagged: !mine x
",
        "\
5: descriptors[0].metadata: a list is not valid here; write a map
8: descriptors[1].metadata: a number is not valid here; write the key in quotes
9: descriptors[1].metadata.*: a number is not valid here; write a finite number, or a text in quotes
10: descriptors[1].metadata.*[1]: a number is not valid here; write a finite number, or a text in quotes
10: descriptors[1].metadata.*[2]: a boolean is not valid here; write the key in quotes
11: descriptors[1].metadata.*: a number is not valid here; write a finite number, or a text in quotes
12: descriptors[1].metadata: a list is not valid here; write a text as the key",
    );
}

/// The value of a key in the wrong map is ignored, except for mistakes that envoyproxy/ratelimit rejects too.
#[test]
fn ignored_keys_are_checked_for_mistakes() {
    expect_mistakes(
        "
domain: d
rate_limit: {unit: second, requestperunit: 1, metadata: {any: 1.5, thing: here}}
descriptors:
  - key: k
    domain: 1.5
    name: {replaces: [x, {name: y, unit: 1.5, burst: 3}]}
",
        "\
3: rate_limit: the key in column 28 is not known here; did you mean requests_per_unit?
6: descriptors[0].domain: a number is not valid here; write a text in quotes
7: descriptors[0].name.replaces[0]: a text of 1 character is not valid here; write a map
7: descriptors[0].name.replaces[1].unit: a number is not valid here; write a text in quotes
7: descriptors[0].name.replaces[1]: key \"burst\" is not known here; move it into rate_limit",
    );
}

#[test]
fn paths_and_aliases_are_bounded() {
    let rule = "{key: k$, rate_limit: {unit: day, requests_per_unit: 1}},";
    let rules: String = (0..80).map(|index| rule.replace('$', &index.to_string())).collect();
    let long = "x".repeat(1_000_000);
    let help = "the paths of all rules have more than 67108864 bytes; shorten keys and values that have many rules below them, or split the rules between servers";
    expect_mistakes(
        &format!("domain: d\ndescriptors: [{{key: {long}, descriptors: [{rules}]}}]\n"),
        &format!("2: descriptors[0].descriptors[67]: {help}"),
    );
    expect_mistakes(
        &format!("domain: {long}\ndescriptors: [{rules}]\n"),
        &format!("2: descriptors[67]: {help}"),
    );
    let text = format!(
        "domain: d\ndescriptors: [{{key: k, metadata: {{x: &x {long}, y: [{}]}}}}]\n",
        "*x,".repeat(20)
    );
    let help = "aliases expand to more than 16777216 bytes of text in all; use fewer aliases";
    expect_mistakes(&text, &format!("2: descriptors[0].metadata.*[16]: {help}"));
}

#[test]
fn mistakes_quote_the_beginning_of_a_long_name() {
    let long = "x".repeat(300);
    expect_mistakes(
        &format!("domain: d\ndescriptors: [{{key: {long}}}, {{key: {long}}}]\n"),
        &format!(
            "2: descriptors[1]: {}… occurs twice at this level, first in line 2; remove one of them, or put both limits into a list under limits",
            "x".repeat(256)
        ),
    );
}
