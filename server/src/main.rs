//! `sluicegate`: arguments, application, exit code.

use std::process::ExitCode;

use clap::Parser;
use sluicegate::{
    app,
    settings::{Cli, Command},
};

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(settings) => app::serve(&settings),
        Command::Validate(settings) => app::validate(&settings),
    }
}
