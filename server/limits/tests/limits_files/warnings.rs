//! Warnings: valid but probably unintended, each with its location and a fix.

use super::{rules, warnings};

/// Checks the warnings about a file named `a.yaml`.
#[track_caller]
fn expect_warnings(text: &str, expected: &str) {
    let expected: String = expected.lines().map(|line| format!("a.yaml:{line}\n")).collect();
    assert_eq!(warnings(&rules("a.yaml", text)), expected);
}

/// A domain with these descriptors, one per line. `$` stands for a limit.
fn descriptors(lines: &str) -> String {
    let lines: String =
        lines.trim().lines().map(|line| format!("  - {{{}}}\n", line.trim())).collect();
    format!("domain: d\ndescriptors:\n{lines}")
        .replace('$', "rate_limit: {unit: day, requests_per_unit: 1}")
}

#[test]
fn requests_per_unit_missing() {
    expect_warnings(
        &descriptors(
            "key: a, rate_limit: {unit: second}\nkey: b, rate_limit: {unit: second, requests_per_unit: 0}",
        ),
        "3: descriptors[0].rate_limit: requests_per_unit is missing, so the rule refuses all requests; write 0 if that is intended",
    );
}

#[test]
fn unreachable_rules() {
    expect_warnings(
        &descriptors(
            "
            key: p, value: ab*, $
            key: p, value: a*c, $
            key: p, value: abc*, $
            key: p, value: abc, $
            key: q, value: abc*, $
            key: r, $
            key: r, value: '*', $
            key: r, value: x, $
            key: r, value: x*, $
            key: s, value: '*x', $
            key: s, $
            ",
        ),
        "\
5: descriptors[2]: never reached, because the earlier pattern \"ab*\" matches the same values; move this one before it
8: descriptors[5]: never reached, because the pattern \"*\" of the same key matches every value; remove one of them
11: descriptors[8]: never reached, because the earlier pattern \"*\" matches the same values; move this one before it",
    );
}

#[test]
fn keys_in_the_wrong_place() {
    let limit = |index: usize, key: &str| {
        format!("descriptors[{index}]: key {key:?} is ignored here; move it into rate_limit")
    };
    expect_warnings(
        "
domain: d
unit: day
shadow_mode: true
descriptors:
  - key: a
    unit: day
    name: n
    requests_per_unit: 5
    domain: d
  - key: b
    rate_limit:
      unit: day
      requests_per_unit: 5
      key: b
      shadow_mode: true
      rate_limit: {unit: day}
      replaces: [{name: n, unit: day}]
  - key: c
    rate_limit: {unlimited: true, name: n}
",
        &format!(
            "\
3: key \"unit\" is ignored here; move it into rate_limit
4: key \"shadow_mode\" is ignored here; move it into a descriptor
7: {}
8: {}
9: {}
10: descriptors[0]: key \"domain\" is ignored here; move it to the top of the file
15: descriptors[1].rate_limit: key \"key\" is ignored here; move it into a descriptor
16: descriptors[1].rate_limit: key \"shadow_mode\" is ignored here; move it into a descriptor
17: descriptors[1].rate_limit: key \"rate_limit\" is ignored here; move it into a descriptor
18: descriptors[1].rate_limit.replaces[0]: key \"unit\" is ignored here; move it into rate_limit",
            limit(0, "unit"),
            limit(0, "name"),
            limit(0, "requests_per_unit"),
        ),
    );
}

#[test]
fn unknown_and_duplicate_names() {
    expect_warnings(
        &descriptors(
            "
            key: a, rate_limit: {unit: day, requests_per_unit: 1, name: twice}
            key: b, rate_limit: {unit: day, requests_per_unit: 1, name: once}
            key: c, rate_limit: {unlimited: true, name: twice, replaces: [{name: nowhere}]}
            key: d, rate_limit: {unit: day, requests_per_unit: 1, name: unused}
            key: e, rate_limit: {unit: day, requests_per_unit: 1, name: unused}
            key: f, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: once}, {name: twice}]}
            ",
        ),
        "\
5: descriptors[2].rate_limit.name: 2 limits are named \"twice\", the first in line 3; callers and replaces cannot distinguish them, so give them different names
5: descriptors[2].rate_limit.replaces[0].name: no limit of the domain is named \"nowhere\", so nothing is replaced; correct or remove the name
7: descriptors[4].rate_limit.name: 2 limits are named \"unused\", the first in line 6; callers and replaces cannot distinguish them, so give them different names
8: descriptors[5].rate_limit.replaces[1].name: all 2 limits named \"twice\" are replaced, for example those in line 3 and line 5; give them different names if only one is intended",
    );
}

#[test]
fn duplicate_key_is_a_warning_and_the_last_counts() {
    let text = "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: day, requests_per_unit: 1}\n    key: b\n";
    expect_warnings(
        text,
        "5: descriptors[0]: key \"key\" occurs twice in one map, first in line 3; this one counts, so remove the other",
    );
    let rules = rules("a.yaml", text);
    let paths: Vec<_> = rules.rules().map(|(_, rule)| &*rule.path).collect();
    assert_eq!(paths, ["b"]);
}

#[test]
fn aliased_limit_does_not_duplicate_its_name() {
    expect_warnings(
        "
domain: d
descriptors:
  - key: a
    value: x
    descriptors: &below
      - key: b
        rate_limit: {unit: day, requests_per_unit: 1, name: n}
  - key: a
    descriptors: *below
  - key: c
    rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: n}]}
",
        "",
    );
}

#[test]
fn stars_in_keys() {
    expect_warnings(
        &descriptors("key: 'a*', value: b, $"),
        "3: descriptors[0]: the * in the key is an ordinary character here; a pattern goes into value, keys are matched exactly",
    );
}

#[test]
fn keys_that_upstream_confuses() {
    let duplicate =
        "envoyproxy/ratelimit joins key and value by _ and takes this for a duplicate of";
    let advice = "here they differ, so rename one if both servers are to read the file";
    expect_warnings(
        &descriptors(
            "
            key: a_b, $
            key: a, value: b, $
            key: c, value: d_e, $
            key: c_d, value: e, $
            key: f_g, $
            key: f, $
            key: f, value: h, $
            ",
        ),
        &format!(
            "\
3: descriptors[0]: {duplicate} a=b in line 4; {advice}
6: descriptors[3]: {duplicate} c=d_e in line 5; {advice}"
        ),
    );
}

#[test]
fn keys_without_effect() {
    let no_limit = "has no effect on a descriptor without a limit, and is not passed on to those below; move it to a descriptor with a limit";
    let nothing = "has no effect, because there is no limit here or below; remove it";
    let shared = "has no effect beside share_threshold, because all values are shown as the pattern; remove one of them";
    expect_warnings(
        &descriptors(
            "
            key: a, shadow_mode: true, quota_mode: true, descriptors: [{key: x, $}]
            key: b, counting: free, on_failure: deny, metadata: {a: 1}
            key: c, detailed_metric: true
            key: d, value_to_metric: true, descriptors: [{key: x, $}]
            key: e, value_to_metric: true
            key: f, value: x*, share_threshold: true, descriptors: [{key: x, $}]
            key: g, value: x*, share_threshold: true, descriptors: [{key: x, rate_limit: {unlimited: true}}]
            key: h, value: x*, share_threshold: true, detailed_metric: true, value_to_metric: true, $
            key: i, shadow_mode: true, quota_mode: true, $
            key: k, response_body: openai
            key: j, shadow_mode: true, detailed_metric: true, metadata: {a: 1}, counting: free, on_failure: deny, $
            ",
        ),
        &format!(
            "\
3: descriptors[0]: quota_mode {no_limit}
3: descriptors[0]: shadow_mode {no_limit}
4: descriptors[1]: counting {no_limit}
4: descriptors[1]: metadata {no_limit}
4: descriptors[1]: on_failure {no_limit}
5: descriptors[2]: detailed_metric {no_limit}
7: descriptors[4]: value_to_metric {nothing}
9: descriptors[6]: share_threshold {nothing}
10: descriptors[7]: detailed_metric {shared}
10: descriptors[7]: value_to_metric {shared}
11: descriptors[8]: quota_mode has no effect beside shadow_mode, which refuses no request; remove one of them
12: descriptors[9]: response_body {no_limit}"
        ),
    );
}

#[test]
fn numbers_beside_unlimited() {
    expect_warnings(
        &descriptors("key: a, rate_limit: {unlimited: true, unit: parsec, requests_per_unit: 5}"),
        "\
3: descriptors[0].rate_limit.unit: unit has no effect beside unlimited; remove one of them
3: descriptors[0].rate_limit.requests_per_unit: requests_per_unit has no effect beside unlimited; remove one of them",
    );
}

#[test]
fn quotes_in_names() {
    expect_warnings(
        &descriptors("key: n, rate_limit: {unit: second, requests_per_unit: 1, name: 'a \"b\"'}"),
        "3: descriptors[0].rate_limit.name: the name has a double quote, which breaks Envoy's x-ratelimit-limit header; remove it",
    );
}

#[test]
fn nested_limits_without_a_tenant() {
    let advice = |key: &str| {
        format!(
            "a request can check several limits below {key:?}, whose counters are on different slots of a Redis Cluster; set tenant: {key} at the top of the file to keep them on one slot and decide them together, once envoyproxy/ratelimit, which rejects that key, no longer reads the file"
        )
    };
    let chain =
        "key: org, $, descriptors: [{key: user, $}]\nkey: team, $, descriptors: [{key: user, $}]";
    expect_warnings(&descriptors(chain), &format!("3: descriptors[0]: {}", advice("org")));
    expect_warnings(&descriptors(chain).replace("domain: d", "domain: d\ntenant: team"), "");
    // The value is the same for all requests: as a tenant it would put all of them into one slot.
    expect_warnings(
        &descriptors(
            "key: tier, value: free, $, descriptors: [{key: org, $, descriptors: [{key: user, $}]}]",
        ),
        &format!("3: descriptors[0].descriptors[0]: {}", advice("org")),
    );
    for no_chain in [
        "key: org, value: acme, $, descriptors: [{key: user, $}]",
        "key: org, value: a*, share_threshold: true, $, descriptors: [{key: user, $}]",
        "key: org, descriptors: [{key: user, $}, {key: route, $}]",
        "key: org, rate_limit: {unlimited: true}, descriptors: [{key: user, $}]",
    ] {
        expect_warnings(&descriptors(no_chain), "");
    }
}

#[test]
fn documents_after_the_first() {
    let warned = "a further YAML document begins here and is ignored, as by envoyproxy/ratelimit: only the first of a file is loaded; move it to a file of its own";
    expect_warnings("domain: a\n---\ndomain: b\n", &format!("2: {warned}"));
    expect_warnings("---\ndomain: a\n...\n# more\n---\n- 1\n---\n- 2\n", &format!("5: {warned}"));
    expect_warnings("domain: a\n---\n---\n'': []\n", &format!("3: {warned}"));
    expect_warnings("domain: a\n--- [\n", &format!("2: {warned}"));
    expect_warnings("domain: a\n...\ndomain: b\n", &format!("3: {warned}"));
    for single in
        ["---\ndomain: a\n---\n", "domain: a\n...\n", "domain: a\n---\n# no more\n---\n...\n"]
    {
        expect_warnings(single, "");
    }
}

#[test]
fn the_last_of_equal_keys_counts() {
    let text = "domain: a\ndescriptors:\n- key: a\n  \"key\": b\n  rate_limit: {unit: day, requests_per_unit: 1}\n";
    let rules = rules("a.yaml", text);
    assert_eq!(rules.rules().map(|(_, rule)| &*rule.path).collect::<Vec<_>>(), ["b"]);
    assert_eq!(
        warnings(&rules),
        "a.yaml:4: descriptors[0]: key \"key\" occurs twice in one map, first in line 3; this one counts, so remove the other\n"
    );
}
