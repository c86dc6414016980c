//! `sluicegate diff`: what other limits files would change.

use std::{path::PathBuf, process::ExitCode, slice};

use sluicegate_core::rules::{self, ChangeCounts, RuleSet};
use sluicegate_limits::{Sources, arguments::CompileArguments};

use super::say;
use crate::settings::DiffSettings;

/// Exit codes, as those of diff(1).
const DIFFERENT: u8 = 1;
const TROUBLE: u8 = 2;

/// Runs `sluicegate diff`: prints a line for each change, and a summary.
#[must_use]
pub fn diff(settings: &DiffSettings) -> ExitCode {
    let [old, new] = [&settings.old, &settings.new].map(|path| read(path, settings.compiling));
    let (Some(old), Some(new)) = (old, new) else { return ExitCode::from(TROUBLE) };
    let changes = rules::diff(&old, &new);
    if changes.is_empty() {
        say("equal");
        return ExitCode::SUCCESS;
    }
    for change in &changes {
        say(change);
    }
    say(ChangeCounts::of(&changes));
    ExitCode::from(DIFFERENT)
}

/// The rules of a file or folder. Mistakes are printed.
fn read(path: &PathBuf, compiling: CompileArguments) -> Option<RuleSet> {
    let rules = Sources::read(slice::from_ref(path), compiling.read_bounds.bounds())
        .compile(&compiling.options());
    rules.map_err(|mistakes| mistakes.lines().for_each(say)).ok()
}
