//! Tests that `docs/bounds.md` is complete and correct.

use std::{any::TypeId, collections::BTreeMap, fs, num, path::Path, time::Duration};

use clap::{Arg, CommandFactory};
use sluicegate::settings::Cli;
use sluicegate_tests::tools::workspace;

/// Flags with numbers or durations that are not bounds.
const NO_BOUNDS: [&str; 1] = ["replicas"];

fn page() -> String {
    fs::read_to_string(workspace().join("docs/bounds.md")).unwrap()
}

/// The cells of the rows that begin with a name in backticks, by name.
fn rows(page: &str) -> BTreeMap<&str, Vec<&str>> {
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, first, rest @ ..] = &cells[..] else { return None };
        Some((first.strip_prefix('`')?.strip_suffix('`')?, rest.to_vec()))
    });
    rows.collect()
}

/// Whether a flag has a number or a duration, or its help calls it a maximum.
fn is_bound(flag: &Arg) -> bool {
    let types = [
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<num::NonZeroU32>(),
        TypeId::of::<num::NonZeroU64>(),
        TypeId::of::<num::NonZeroUsize>(),
        TypeId::of::<Duration>(),
    ];
    let kind = flag.get_value_parser().type_id();
    types.iter().any(|it| kind == *it) || flag.get_id().as_str().split('_').any(|it| it == "max")
}

#[test]
fn every_bounding_flag_is_on_the_page_with_its_default() {
    let page = page();
    let rows = rows(&page);
    let cli = Cli::command();
    let serve = cli.find_subcommand("serve").unwrap();
    let flags = serve.get_arguments().filter(|flag| is_bound(flag));
    let flags = flags.filter_map(|flag| Some((flag.get_long()?, flag)));
    let flags = BTreeMap::from_iter(flags.filter(|(name, _)| !NO_BOUNDS.contains(name)));
    assert!(flags.len() > 15, "{:?}", flags.keys());
    for (name, flag) in &flags {
        let row = rows.get(&*format!("--{name}")).unwrap_or_else(|| panic!("no row of --{name}"));
        let default = flag.get_default_values().first().map(|it| it.to_str().unwrap());
        if let Some(default) = default {
            assert_eq!(row[0], default, "--{name}");
        }
        for (cell, text) in ["default", "bounds", "when met"].iter().zip(row) {
            assert!(!text.is_empty(), "--{name} has no {cell}");
        }
    }
    let listed = rows.keys().filter_map(|name| name.strip_prefix("--"));
    let gone: Vec<_> = listed.filter(|name| !flags.contains_key(name)).collect();
    assert!(gone.is_empty(), "rows without a flag: {gone:?}");
}

#[test]
fn every_metric_of_the_page_counts() {
    let metrics = fs::read_to_string(workspace().join("docs/metrics.md")).unwrap();
    let page = page();
    let named = page.split('`').skip(1).step_by(2);
    let named: Vec<_> = named.filter(|it| it.starts_with("sluicegate_")).collect();
    assert!(named.len() > 5, "{named:?}");
    for name in named {
        assert!(metrics.contains(&format!("| `{name}` | counter |")), "{name} is not a counter");
    }
}

/// The value of a constant's expression in the notation of the page: `16`, `64 MiB`, `10 s`.
fn shown(expression: &str) -> String {
    let expression = expression.replace(['_', ' '], "");
    let number = |text: &str| text.parse::<u64>().unwrap_or_else(|_| panic!("{expression}"));
    for (function, unit) in [("Duration::fromsecs(", "s"), ("Duration::frommillis(", "ms")] {
        if let Some(rest) = expression.strip_prefix(function) {
            return format!("{} {unit}", number(rest.strip_suffix(')').unwrap()));
        }
    }
    let value = match expression.split_once("<<") {
        Some((left, right)) => number(left) << number(right),
        None => expression.split('*').map(number).product(),
    };
    // A number of bytes is written as a product or a shift.
    match value {
        _ if !expression.contains(['<', '*']) => value.to_string(),
        _ if value.is_multiple_of(1 << 30) => format!("2^{}", value.ilog2()),
        _ if value.is_multiple_of(1 << 20) => format!("{} MiB", value >> 20),
        _ => format!("{} KiB", value >> 10),
    }
}

/// The expression of a constant in a file of the workspace.
fn constant(file: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let (_, declared) = text.split_once(&format!("const {name}: "))?;
    let (_, value) = declared.split_once(" = ")?;
    Some(value.split_once(';')?.0.to_owned())
}

#[test]
fn every_fixed_bound_of_the_page_has_its_value() {
    let page = page();
    let rows = rows(&page);
    let rows: Vec<_> =
        rows.iter().filter_map(|(name, row)| Some((name.split_once("::")?, row))).collect();
    assert!(rows.len() > 20, "{rows:?}");
    for ((file, name), row) in rows {
        let expression = constant(&workspace().join(file), name);
        let expression = expression.unwrap_or_else(|| panic!("{file} has no constant {name}"));
        assert_eq!(row[0], shown(&expression), "{file}::{name}");
    }
}
