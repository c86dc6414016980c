//! `sluicegate validate`: what is wrong with limits files.

use std::process::ExitCode;

use super::say;
use crate::{limits::Sources, settings::ValidateSettings};

/// Runs `sluicegate validate`: prints what is wrong with the files, and what is odd.
#[must_use]
pub fn validate(settings: &ValidateSettings) -> ExitCode {
    match Sources::read(&settings.limits).compile(&settings.compiling.options()) {
        Ok(set) => {
            for warning in set.warnings() {
                say(format_args!("warning: {warning}"));
            }
            let (domains, rules) = (set.domains().count(), set.rules().count());
            let warnings = set.warnings().len();
            say(format_args!("ok: {domains} domains, {rules} rules, {warnings} warnings"));
            ExitCode::SUCCESS
        }
        Err(mistakes) => {
            for mistake in mistakes {
                say(mistake);
            }
            ExitCode::FAILURE
        }
    }
}
