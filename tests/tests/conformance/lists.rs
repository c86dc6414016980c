//! Checks that every id of envoyproxy/ratelimit's behaviour has a case, or a reason for having none.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use serde::Deserialize;

use crate::{
    case::{Counting, Kind, cases, folder, is_id},
    yaml,
};

/// The file with the lists, among the files of cases.
pub(crate) const FILE: &str = "lists.yaml";

/// The content of [`FILE`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Lists {
    /// All ids.
    ids: Vec<String>,
    /// Unsupported behaviour.
    out_of_scope: Vec<Listed>,
    /// Different behaviour.
    different_on_purpose: Vec<Listed>,
    /// Behaviour that does not involve the store, so that one store is enough.
    of_one_store: Vec<Listed>,
    /// Behaviour that other tests check.
    elsewhere: Vec<Elsewhere>,
}

/// Ids, with the reason.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    ids: String,
    why: String,
}

/// An id that cannot be expressed as a case.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Elsewhere {
    ids: String,
    /// The file, relative to the root of the repository, and a text in it.
    file: String,
    holds: String,
}

fn lists() -> Lists {
    let text = fs::read_to_string(folder().join(FILE)).unwrap();
    serde_json::from_value(yaml::read(FILE, &text))
        .unwrap_or_else(|error| panic!("{FILE}: {error}"))
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The ids of a text such as `N21, N25, S1` or `N26–N28`.
fn ids(text: &str) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    for part in text.split([',', ' ', '`', '/']).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once(['–', '-']).unwrap_or((part, part));
        if is_id(first) && is_id(last) && first[..1] == last[..1] {
            let number = |id: &str| id[1..].parse::<u32>().unwrap();
            ids.extend((number(first)..=number(last)).map(|it| format!("{}{it}", &first[..1])));
        }
    }
    ids
}

fn of_list(listed: &[Listed]) -> BTreeSet<String> {
    listed.iter().flat_map(|it| ids(&it.ids)).collect()
}

#[test]
fn ids_are_parsed_from_text() {
    let found = |text| ids(text).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(found("N21, N25, S1"), "N21 N25 S1");
    assert_eq!(found("N26–N28"), "N26 N27 N28");
    assert_eq!(found("N26-N28, `O2`"), "N26 N27 N28 O2");
    assert_eq!(found("memcached"), "");
}

#[test]
fn every_id_has_a_case_or_a_reason() {
    let lists = lists();
    let all: BTreeSet<String> = lists.ids.iter().flat_map(|text| ids(text)).collect();
    let mut stores = BTreeMap::<String, BTreeSet<&str>>::new();
    for counting in [Counting::Free, Counting::Upstream] {
        for kind in [Kind::Memory, Kind::Redis, Kind::Cluster] {
            for case in cases(counting, kind) {
                for id in case.ids() {
                    stores.entry(id).or_default().extend(case.stores.iter().map(|it| it.name()));
                }
            }
        }
    }
    let covered: BTreeSet<String> = stores.keys().cloned().collect();
    let unknown: Vec<_> = covered.difference(&all).collect();
    assert!(unknown.is_empty(), "unknown ids: {unknown:?}");
    let elsewhere: BTreeSet<String> = lists.elsewhere.iter().flat_map(|it| ids(&it.ids)).collect();
    let listed: BTreeSet<String> =
        [of_list(&lists.out_of_scope), of_list(&lists.different_on_purpose)]
            .into_iter()
            .flatten()
            .chain(elsewhere)
            .collect();
    let missing: Vec<_> =
        all.iter().filter(|id| !covered.contains(*id) && !listed.contains(*id)).collect();
    assert!(missing.is_empty(), "neither a case nor a reason: {missing:?}");
    let of_one_store: BTreeSet<String> = of_list(&lists.of_one_store);
    let partly: Vec<_> = stores
        .iter()
        .filter(|(id, stores)| {
            stores.len() < 3 && !listed.contains(*id) && !of_one_store.contains(*id)
        })
        .collect();
    assert!(partly.is_empty(), "not on all stores, without a reason: {partly:?}");
    let unknown: Vec<_> = listed.union(&of_one_store).filter(|id| !all.contains(*id)).collect();
    assert!(unknown.is_empty(), "listed, but unknown: {unknown:?}");
    let silent = lists.out_of_scope.iter().chain(&lists.different_on_purpose);
    let silent = silent.chain(&lists.of_one_store);
    let silent: Vec<_> = silent.filter(|it| it.why.is_empty()).map(|it| &it.ids).collect();
    assert!(silent.is_empty(), "without a reason: {silent:?}");
}

#[test]
fn cases_of_other_tests_exist() {
    for Elsewhere { ids, file, holds } in lists().elsewhere {
        let text = fs::read_to_string(root().join(&file)).unwrap_or_default();
        assert!(text.contains(&holds), "{ids}: {file} has no {holds}");
    }
}

/// The ids in the first column of the table below a heading.
fn of_table(page: &str, heading: &str) -> BTreeSet<String> {
    let is_heading =
        |line: &str| line.starts_with('#') && line.to_lowercase().contains(&heading.to_lowercase());
    let below = page.lines().skip_while(|line| !is_heading(line)).skip(1);
    let table = below.take_while(|line| !line.starts_with('#'));
    let rows = table.filter_map(|line| line.strip_prefix('|')?.split('|').next());
    rows.flat_map(ids).collect()
}

#[test]
fn the_migration_page_has_the_same_lists() {
    let lists = lists();
    let page = fs::read_to_string(root().join("docs/migration.md")).unwrap();
    for (heading, listed) in [
        ("Out of scope", &lists.out_of_scope),
        ("Different on purpose", &lists.different_on_purpose),
    ] {
        let (page, listed) = (of_table(&page, heading), of_list(listed));
        assert_eq!(page, listed, "{heading}: the page, and {FILE}");
    }
}
