//! `sluicectl`: arguments, command, exit code.

use std::process::ExitCode;

use clap::Parser;
use sluicectl::Cli;

fn main() -> ExitCode {
    sluicectl::run(&Cli::parse())
}
