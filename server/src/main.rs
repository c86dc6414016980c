//! `sluicegate`: parses the arguments, runs the command, returns its exit code.

use std::{
    env,
    io::{self, Write as _},
    process::ExitCode,
};

use mimalloc::MiMalloc;
use sluicegate::{
    app, commands,
    settings::{Cli, Command, ParseError},
};

/// A request allocates about twenty times. docs/performance.md compares the allocator with the system's.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The exit code for wrong arguments, by the convention of shells.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    match Cli::read(env::args_os()).map(|cli| cli.command) {
        Ok(Command::Serve(settings)) => app::serve(&settings),
        Ok(Command::Validate(settings)) => commands::validate(&settings),
        Ok(Command::Diff(settings)) => commands::diff(&settings),
        Ok(Command::Schema) => commands::schema(),
        Err(ParseError::Help(help)) => {
            let _closed = help.print();
            if help.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
        }
        Err(ParseError::Mistakes(mistakes)) => {
            for mistake in mistakes {
                let _closed = writeln!(io::stderr(), "error: {mistake}");
            }
            ExitCode::from(USAGE)
        }
    }
}
