//! Checks of the sources against ARCHITECTURE.md.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod source;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use sluicegate_tests::{fenced, tools::workspace};

use source::{Modules, Source, circles, has_word, path_attributes, sources};

/// The crates whose files do not import each other in a circle.
const CRATES: [&str; 5] =
    ["server/src", "server/core/src", "server/files/src", "server/limits/src", "server/store/src"];

/// The most lines of a file, tests excluded.
const LINES_MAX: usize = 500;

/// Names that were replaced and must not come back, by folder: see docs/glossary.md.
const RETIRED: [(&str, &[&str]); 10] = [
    ("client", &["AdminServersSettings", "CallError", "ServerArguments"]),
    ("client/sluicectl/src/load", &["Claim", "Edge", "Reason", "Requests"]),
    (
        "server/core/src",
        &[
            "CompileError",
            "CompileWarning",
            "LimitsNode",
            "MatchOutcome",
            "PendingAnswers",
            "SearchBudget",
            "Unmatched",
            "UsableOverride",
            "for_part_of_request",
            "find_within",
            "has_quota_left",
            "is_too_costly",
            "manner",
            "searches_max",
            "until_reset",
        ],
    ),
    (
        "server/limits/src",
        &["CountingName", "OnFailureName", "Sources", "complete_on_off_flag", "noted", "odd"],
    ),
    (
        "server/src",
        &[
            "ADMIN_PART",
            "AnswerDeadline",
            "AnswerTime",
            "Answered",
            "Answering",
            "Arrived",
            "Asking",
            "BoundListener",
            "ByCode",
            "CallBytes",
            "ChangeError",
            "ClientNames",
            "ConnectionBytes",
            "DomainCounters",
            "Early",
            "EndSignal",
            "FALLBACK_FOUND",
            "FALLBACK_MISSED",
            "FREE_BYTES",
            "HTTP_PART",
            "HitsOf",
            "InForce",
            "KeyHash",
            "LARGE_AT_ONCE",
            "LARGE_MAX",
            "LASTING_CALLS_MAX",
            "LOCAL_DRAIN_TIMEOUT",
            "LastingCalls",
            "Made",
            "MetLimit",
            "Metered",
            "NoLog",
            "OfOrigin",
            "Patience",
            "PerSecond",
            "Place",
            "Punctuality",
            "Pushed",
            "REDIS_PART",
            "RateLimitLayer",
            "ReadBody",
            "RequestBound",
            "RequestStream",
            "ResponseBytes",
            "RuleCounters",
            "RuleMetrics",
            "RuleSetCounters",
            "SMALL_MIN",
            "Scanned",
            "Show",
            "StoreLabel",
            "TURNS_MAX",
            "Telemetry",
            "Told",
            "TopLabels",
            "Traced",
            "Turn",
            "Vitals",
            "Walker",
            "Woken",
            "are_none",
            "begin_turn",
            "give_back",
            "given_back",
            "heard",
            "in_redis",
            "oldest_pending",
            "refuse_undecided",
            "register_count",
            "register_counts",
            "register_gauges",
            "say",
            "start_tenant",
            "told",
            "vitals",
        ],
    ),
    ("server/src/admin", &["Streamed", "Gone"]),
    ("server/src/http", &["AnswerTimed", "OfTrace", "Pages", "answer_timer"]),
    ("server/src/listen", &["Admitted", "PlaceGuard"]),
    (
        "server/store/src",
        &[
            "Alike",
            "Caller",
            "Class",
            "Conclusion",
            "Debt",
            "Debts",
            "Elsewhere",
            "Failure",
            "Fitness",
            "GiveBacks",
            "Kept",
            "KnownCounters",
            "LATE_MAX",
            "Lane",
            "Lanes",
            "LateAnswers",
            "Ledger",
            "Leftover",
            "Link",
            "LinkError",
            "LinkSettings",
            "Listed",
            "Listener",
            "Locked",
            "Mark",
            "NoAnswer",
            "NoReply",
            "NodeEvents",
            "Numbered",
            "Observed",
            "Outage",
            "Part",
            "Piece",
            "Place",
            "Questions",
            "Redirected",
            "Refunds",
            "Refused",
            "Remembered",
            "Replied",
            "SETTLING",
            "Settled",
            "Ticket",
            "Unheard",
            "allows",
            "complain",
            "complaint",
            "concerned",
            "fitness",
            "forget_all",
            "give_back",
            "give_backs",
            "heard",
            "in_redis",
            "is_settled",
            "is_up",
            "keep_task",
            "late_kept",
            "ledger",
            "may_evict",
            "note_change",
            "owed",
            "settlements_pending",
            "suspects",
            "told",
            "trouble",
            "unheard",
            "veto_code",
        ],
    ),
    ("server/store/src/redis", &["Line", "MemoryCursor", "Size"]),
];

/// Names in code that read time, randomness and the environment, by row of the table in ARCHITECTURE.md.
const READS: [(&str, &[&str]); 4] = [
    ("monotonic clock", &["Instant::now"]),
    ("wall clock", &["SystemTime::now", "time::now"]),
    ("randomness", &["fastrand", "getrandom", "RandomState", "RandomIdGenerator"]),
    (
        "environment",
        &[
            "env::var",
            "env::vars",
            "env::vars_os",
            "env::args",
            "env::args_os",
            "EnvResourceDetector",
        ],
    ),
];

fn architecture() -> String {
    fs::read_to_string(workspace().join("ARCHITECTURE.md")).unwrap()
}

/// The rows of the table in a section, each as the names in backticks of its cells.
fn table(section: &str) -> Vec<[(String, Vec<String>); 2]> {
    let text = architecture();
    let (_, behind) = text.split_once(&format!("\n## {section}\n")).unwrap_or_else(|| {
        panic!("ARCHITECTURE.md has no section {section:?}");
    });
    let section = behind.split_once("\n## ").map_or(behind, |(section, _)| section);
    let rows = section.lines().filter_map(|line| {
        let (first, second) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
        let named = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        Some([(first.to_owned(), named(first)), (second.to_owned(), named(second))])
    });
    // The head.
    rows.skip(1).collect()
}

/// Fails with one line for each finding.
fn none(findings: &[String]) {
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

#[test]
fn modules_of_the_server_import_only_lower_modules() {
    let order: Vec<Vec<String>> =
        table("Module order").into_iter().map(|[(_, modules), _]| modules).collect();
    let level = |module: &str| order.iter().position(|level| level.iter().any(|it| it == module));
    let modules = Modules::read("server/src");
    let mut findings = Vec::new();
    let found: BTreeSet<&String> = modules.paths().filter_map(|path| path.first()).collect();
    for module in &found {
        if level(module).is_none() {
            findings.push(format!("ARCHITECTURE.md, Module order: `{module}` is missing"));
        }
    }
    for module in order.iter().flatten().filter(|module| !found.contains(module)) {
        findings.push(format!("ARCHITECTURE.md, Module order: there is no `{module}`"));
    }
    for import in modules.imports() {
        let (Some(from), Some(to)) = (import.from.first(), import.to.first()) else { continue };
        if from != to && level(from) <= level(to) {
            findings.push(format!("{}: `{from}` must not import `{to}`", import.place));
        }
    }
    none(&findings);
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut findings = Vec::new();
    for folder in CRATES {
        let mut imports = Modules::read(folder).imports();
        // The root only re-exports names.
        imports.retain(|import| !import.from.is_empty() && !import.to.is_empty());
        for import in circles(&imports) {
            let (from, to) = (import.from.join("::"), import.to.join("::"));
            findings.push(format!("{}: in a circle: {from} imports {to}", import.place));
        }
    }
    none(&findings);
}

#[test]
fn time_randomness_and_environment_are_read_as_documented() {
    let rows = table("Time, randomness and environment");
    let sources: Vec<Source> = CRATES.iter().flat_map(|folder| sources(folder)).collect();
    let mut findings = Vec::new();
    for (what, words) in READS {
        let row = rows.iter().find(|[(first, _), _]| first == what);
        let allowed = row.map(|[_, (_, files)]| files.clone()).unwrap_or_default();
        for source in &sources {
            let lines: Vec<usize> = words.iter().flat_map(|it| source.lines_with(it)).collect();
            let is_allowed = allowed.iter().any(|it| is_in(&source.path, it));
            for line in lines.iter().filter(|_| !is_allowed) {
                findings.push(format!("{}:{line}: reads the {what}", source.path));
            }
        }
        for file in &allowed {
            let reads = |it: &&Source| words.iter().any(|word| !it.lines_with(word).is_empty());
            if !sources.iter().filter(reads).any(|it| is_in(&it.path, file)) {
                findings.push(format!("ARCHITECTURE.md: {file} does not read the {what}"));
            }
        }
    }
    none(&findings);
}

/// Whether a path is `named`, or in the folder `named`.
fn is_in(path: &str, named: &str) -> bool {
    path == named || (named.ends_with('/') && path.starts_with(named))
}

#[test]
fn no_production_file_is_longer_than_500_lines() {
    let folders = ["proto/src", "server", "client"];
    let long = folders.iter().flat_map(|folder| sources(folder)).filter_map(|source| {
        let lines = source.production_lines;
        (lines > LINES_MAX)
            .then(|| format!("{}: {lines} lines, more than {LINES_MAX}", source.path))
    });
    none(&long.collect::<Vec<_>>());
}

#[test]
fn the_code_map_lists_the_existing_folders() {
    let named: BTreeSet<String> =
        table("Code map").into_iter().flat_map(|[(_, paths), _]| paths).collect();
    let mut findings = Vec::new();
    for path in &named {
        let is_folder = workspace().join(path).is_dir();
        if is_folder != path.ends_with('/') || !workspace().join(path).exists() {
            findings.push(format!("ARCHITECTURE.md, Code map: there is no {path}"));
        }
    }
    let mut wanted = BTreeSet::new();
    for folder in ["proto/src", "server", "client", "tests", "fuzz/targets"] {
        folders_with_sources(&workspace().join(folder), &mut wanted);
    }
    for file in fs::read_dir(workspace().join("server/src")).unwrap() {
        let path = file.unwrap().path();
        let folder = path.with_extension("");
        if path.is_file() && !folder.is_dir() {
            wanted.insert(format!("server/src/{}", path.file_name().unwrap().to_str().unwrap()));
        }
    }
    for path in wanted.difference(&named) {
        findings.push(format!("ARCHITECTURE.md, Code map: {path} is missing"));
    }
    none(&findings);
}

/// The folders below one that have Rust files, and are not hidden or built.
fn folders_with_sources(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            folders_with_sources(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") && name != "build.rs" {
            let folder = folder.strip_prefix(workspace()).unwrap().to_str().unwrap();
            found.insert(format!("{folder}/"));
        }
    }
}

#[test]
fn retired_names_do_not_return() {
    let mut findings = Vec::new();
    for (folder, names) in RETIRED {
        for source in sources(folder) {
            for name in names {
                for line in source.lines_with(name) {
                    findings.push(format!("{}:{line}: `{name}` was replaced", source.path));
                }
            }
        }
    }
    none(&findings);
}

/// fuzz/, a workspace of its own, may: its targets need readers that are private to the server.
/// The code blocks are part of tests of the clients.
#[test]
fn the_backoff_page_shows_tested_code() {
    // Without the indentation.
    let lines = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let page = fs::read_to_string(workspace().join("docs/backoff.md")).unwrap();
    for (language, file) in [
        ("go", "client/go/pacing_test.go"),
        ("python", "client/python/tests/test_pacing.py"),
        ("ts", "client/typescript/test/pacing.test.ts"),
        ("java", "client/java/src/test/java/io/sluicegate/client/BackoffTest.java"),
        ("rust", "tests/tests/integration/apps.rs"),
    ] {
        let [block] = fenced(&page, language)[..] else { panic!("one block for {language}") };
        let source = lines(&fs::read_to_string(workspace().join(file)).unwrap());
        assert!(source.contains(&*lines(block)), "{file} does not contain\n{block}");
    }
}

#[test]
fn no_path_attribute_leaves_its_crate() {
    let mut findings = Vec::new();
    for crates in ["proto", "server", "client", "tests"] {
        for (at, named) in path_attributes(crates) {
            let named = at.parent().unwrap().join(named).canonicalize().unwrap();
            if !named.starts_with(manifest_folder(&at)) {
                findings.push(format!(
                    "{}: {} belongs to another crate",
                    at.display(),
                    named.display()
                ));
            }
        }
    }
    none(&findings);
}

/// The folder of the crate that a file belongs to.
fn manifest_folder(file: &Path) -> PathBuf {
    let mut folders = file.ancestors().skip(1);
    let folder = folders.find(|it| it.join("Cargo.toml").exists()).unwrap();
    folder.canonicalize().unwrap()
}

/// Proves that the checks above detect violations.
#[test]
fn violations_of_the_rules_are_detected() {
    let file = |path: &str, text: &str| Source::of(path, text);
    let modules = Modules::of(
        "src",
        vec![
            file("src/lib.rs", "mod a;\nmod b;\nmod c;\n"),
            file("src/a/mod.rs", "mod inner;\npub use inner::Inner;\n"),
            file(
                "src/a/inner.rs",
                "use crate::{\n    c::{self, D as E},\n    b::B,\n};\npub struct Inner;\n",
            ),
            file("src/b.rs", "pub struct B;\nfn f() {\n    crate::a::Inner::new();\n}\n"),
            file(
                "src/c.rs",
                "// use crate::a;\nconst TEXT: &str = r#\"use crate::b;\"#;\n#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n",
            ),
        ],
    );
    let imports = modules.imports();
    let places: Vec<&str> = imports.iter().map(|import| &*import.place).collect();
    let expected = [
        "src/a/inner.rs:1: crate::c",
        "src/a/inner.rs:1: crate::c::D",
        "src/a/inner.rs:1: crate::b::B",
        "src/b.rs:3: crate::a::Inner::new",
    ];
    assert_eq!(places, expected);
    let in_circle: Vec<&str> = circles(&imports).into_iter().map(|import| &*import.place).collect();
    assert_eq!(in_circle, [expected[2], expected[3]]);

    let text = "//! Doc.\n\nfn f() -> char {\n    '\"'\n}\n\n#[cfg(test)]\nmod tests {\n    fn now() {}\n}\n";
    let source = file("src/d.rs", text);
    assert_eq!((source.production_lines, source.lines_with("now")), (6, Vec::new()));
    assert_eq!(source.lines_with("char"), [3]);
    assert!(has_word("a Told b", "Told") && !has_word("Tolds", "Told"));
}
