//! The command line of `sluicectl`: a file for each command, and the arguments and output that commands share.

mod admin_server;
mod check;
mod descriptor;
mod explain;
mod health;
mod load;
mod log_level;
mod output;
mod peek;
mod reset;
mod rules;
mod server;
mod shared_flags;
mod status;
mod top;

use std::{
    error::Error,
    io::{self, Write as _},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use sluicegate_proto::text::printable;
use thiserror::Error;
use tonic::Code;

pub use self::{
    admin_server::{AdminServerListSettings, AdminServerSettings},
    check::CheckSettings,
    descriptor::RequestArguments,
    explain::ExplainSettings,
    health::HealthSettings,
    load::{InvalidTemplate, LoadSettings, Template},
    log_level::LogLevelSettings,
    output::OutputFormat,
    peek::PeekSettings,
    reset::ResetSettings,
    rules::RulesSettings,
    server::ServerSettings,
    shared_flags::SharedFlags,
    status::StatusSettings,
    top::TopSettings,
};
use sluicegate_client::{CheckError, ConnectError, Endpoint, InvalidToken, describe_error};

/// Inspects and tests Sluicegate. The commands check, health and load work with any server of Envoy's API.
#[derive(Debug, Parser)]
#[command(name = "sluicectl", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Try it:
  sluicectl check --domain api --descriptor tenant=acme,user=bob
  sluicectl explain --domain api --descriptor tenant=acme,user=bob
  sluicectl top

Exit codes:
  0  success, positive result
  1  success, negative result
  2  invalid command line, or an unusable file in it
  3  the server or its store is unreachable, too slow, or returned an error";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check whether a request is allowed, and what remains of its limits.
    ///
    /// This is a real request, as Envoy sends it: the hits are charged. Use --hits 0 to peek without a charge.
    Check(CheckSettings),

    /// Explain which limits a request matches, and show their counters.
    ///
    /// Shows how each descriptor matches the rules, level by level, with the reason why each other rule does not
    /// match; then each limit that applies, with its counter. Calls Sluicegate's admin listener, and charges nothing.
    Explain(ExplainSettings),

    /// Show or change the server's log level, without a restart.
    ///
    /// The change is logged at every level. It lasts until the server ends, or for the time of --for. Calls the admin
    /// listener of one process and affects only that process.
    LogLevel(LogLevelSettings),

    /// Check whether a server is SERVING (grpc.health.v1), as a container's health check.
    Health(HealthSettings),

    /// Send many requests, and count the decisions; with --verify compare the decisions with the limits.
    ///
    /// These are real requests, as Envoy sends them: their hits are charged. The server is Sluicegate or any other
    /// that implements Envoy's API.
    Load(LoadSettings),

    /// List the rules in force.
    ///
    /// Shows each rule with its limits, its modes and its place in the files. Defaults of the domain and the server's
    /// settings are included. Calls Sluicegate's admin listener.
    Rules(RulesSettings),

    /// Show counters: those of descriptors, or all of a tenant.
    ///
    /// Calls Sluicegate's admin listener, and charges nothing.
    Peek(PeekSettings),

    /// Reset counters to unused.
    Reset(ResetSettings),

    /// Show the status of the server: the limits in force, its store, the breaker of each Redis server, its replicas.
    ///
    /// Calls Sluicegate's admin listener.
    Status(StatusSettings),

    /// Show which counters refuse most now, or are nearest to their limits.
    ///
    /// In a terminal this is a live table; otherwise it is printed once. Calls Sluicegate's admin listener.
    Top(TopSettings),
}

/// Why a command failed.
#[derive(Debug, Error)]
enum Failure {
    #[error("cannot start")]
    Start(#[source] io::Error),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("{endpoint}")]
    Call { endpoint: Endpoint, source: CheckError },
    #[error("{endpoint}")]
    NotFound { endpoint: Endpoint, source: CheckError },
    #[error(transparent)]
    Load(#[from] load::LoadFailure),
    #[error("the terminal cannot be used")]
    Terminal(#[source] io::Error),
    #[error(transparent)]
    Token(#[from] InvalidToken),
    #[error(
        "--token-file: the token would cross the network unencrypted to {0}; use https://, unix: or a loopback address"
    )]
    TokenExposed(Endpoint),
}

impl Failure {
    /// Converts the error of a call about a named domain, tenant, limit or counter. If that does not exist, it is a
    /// negative result (exit code 1).
    fn from_lookup(endpoint: &Endpoint, source: CheckError) -> Self {
        let endpoint = endpoint.clone();
        match source {
            CheckError::Other { code: Code::NotFound, .. } => Self::NotFound { endpoint, source },
            _ => Self::Call { endpoint, source },
        }
    }

    fn exit_code(&self) -> ExitCode {
        match self {
            Self::NotFound { .. } => ExitCode::from(1),
            Self::Load(failure) => ExitCode::from(failure.exit_code()),
            // Clients connect lazily, so these errors are about settings.
            Self::Connect(_) | Self::Token(_) | Self::TokenExposed(_) => ExitCode::from(2),
            Self::Start(_) | Self::Terminal(_) | Self::Call { .. } => ExitCode::from(3),
        }
    }
}

/// Runs the command and returns its exit code.
#[must_use]
pub fn run(cli: &Cli) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime.map_err(Failure::Start).and_then(|runtime| match &cli.command {
        Command::Check(settings) => runtime.block_on(check::run(settings)),
        Command::Explain(settings) => runtime.block_on(explain::run(settings)),
        Command::Health(settings) => runtime.block_on(health::run(settings)),
        Command::Load(settings) => runtime.block_on(load::run(settings)),
        Command::LogLevel(settings) => runtime.block_on(log_level::run(settings)),
        Command::Rules(settings) => runtime.block_on(rules::run(settings)),
        Command::Peek(settings) => runtime.block_on(peek::run(settings)),
        Command::Reset(settings) => runtime.block_on(reset::run(settings)),
        Command::Status(settings) => runtime.block_on(status::run(settings)),
        Command::Top(settings) => runtime.block_on(top::run(settings)),
    });
    outcome.unwrap_or_else(|failure| {
        print_error(&failure);
        failure.exit_code()
    })
}

fn print_error(failure: &(dyn Error + 'static)) {
    // If standard error cannot be written, there is nowhere to report it.
    let _ = writeln!(io::stderr(), "error: {}", printable(&describe_error(failure)));
}
