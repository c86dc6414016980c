//! `sluicegate diff`: compares limits files.

use std::{path::PathBuf, process::ExitCode, slice};

use sluicegate_core::rules::{self, ChangeCounts, RuleSet};
use sluicegate_limits::{FileContents, arguments::CompileArguments};

use super::print_lines;
use crate::settings::DiffSettings;

/// Exit codes, as of diff(1).
const DIFFERENT: u8 = 1;
const TROUBLE: u8 = 2;

/// Runs `sluicegate diff`: prints a line for each change, and a summary.
#[must_use]
pub fn diff(settings: &DiffSettings) -> ExitCode {
    let [old, new] = [&settings.old, &settings.new].map(|path| read(path, settings.compile));
    let (Some(old), Some(new)) = (old, new) else { return ExitCode::from(TROUBLE) };
    let changes = rules::diff(&old, &new);
    if changes.is_empty() {
        print_lines("equal");
        return ExitCode::SUCCESS;
    }
    for change in &changes {
        print_lines(change);
    }
    print_lines(ChangeCounts::of(&changes));
    ExitCode::from(DIFFERENT)
}

/// The rules of a file or folder. Prints the mistakes if there are any.
fn read(path: &PathBuf, compile: CompileArguments) -> Option<RuleSet> {
    let rules = FileContents::read(slice::from_ref(path), compile.read_bounds.bounds())
        .compile(&compile.options());
    rules.map_err(|mistakes| mistakes.lines().for_each(print_lines)).ok()
}
