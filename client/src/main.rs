//! `sluicectl`: arguments, command, exit code.

use std::process::ExitCode;

use clap::Parser;
use sluicegate_client::cli::{self, Cli};

fn main() -> ExitCode {
    cli::run(&Cli::parse())
}
