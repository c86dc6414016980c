//! `sluicegate`: arguments, application, exit code.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::{Parser, error::ErrorKind};
use mimalloc::MiMalloc;
use sluicegate::{
    app, commands,
    settings::{Cli, Command},
};

/// A request allocates a score of times. Measured against the system's in docs/performance.md.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// What a shell expects of a command that was called wrongly.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(Cli { command: Command::Serve(settings) }) => app::serve(&settings),
        Ok(Cli { command: Command::Validate(settings) }) => commands::validate(&settings),
        Ok(Cli { command: Command::Diff(settings) }) => commands::diff(&settings),
        // --help, --version, or nothing at all.
        Err(answer) if is_help(answer.kind()) => {
            let _closed = answer.print();
            if answer.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
        }
        Err(error) => {
            let _closed = writeln!(io::stderr(), "{}", one_line(&error));
            ExitCode::from(USAGE)
        }
    }
}

const fn is_help(kind: ErrorKind) -> bool {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    matches!(kind, DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand)
}

/// What is wrong with the arguments, without the usage that clap prints below it: a log wants one line.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let said = text.lines().take_while(|line| !line.starts_with("Usage:"));
    let said = said.filter(|line| !line.starts_with("For more information"));
    said.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}
