//! `sluicectl log-level`.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use serde_json::json;
use sluicegate_proto::{sluicegate::admin::v1::LogLevel, text::from_wire};

use super::{AdminServerSettings, Failure, OutputFormat, output};

/// Settings of `sluicectl log-level`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct LogLevelSettings {
    /// What to log from now on: error, warn, info, debug or trace, also by module (info,h2=debug). Without it, what is
    /// logged stays as it is, and is told.
    #[arg(value_name = "LEVEL")]
    pub level: Option<String>,

    /// For how long. Then what was set last without an end is logged again, by itself.
    #[arg(long = "for", value_name = "DURATION", requires = "level")]
    #[arg(value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,

    /// How the answer is written.
    #[arg(long, env = "SLUICEGATE_OUTPUT", value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,

    /// Which admin listener to ask.
    #[command(flatten)]
    pub server: AdminServerSettings,
}

const AFTER_HELP: &str = "\
Try it:
  sluicectl log-level
  sluicectl log-level info,sluicegate=debug --for 10m

Exit codes:
  0  done
  2  the command line cannot be used, or a file that it names
  3  the server could not be asked, or takes no such level";

/// Asks or changes, and prints what is in force.
pub(super) async fn run(settings: &LogLevelSettings) -> Result<ExitCode, Failure> {
    let client = settings.server.client()?;
    let answer = match &settings.level {
        None => client.log_level().await,
        Some(level) => client.set_log_level(level, settings.duration).await,
    };
    let in_force =
        answer.map_err(|source| Failure::Ask { endpoint: client.endpoint().clone(), source })?;
    output::print(
        settings.output,
        &match settings.output {
            OutputFormat::Text => text(&in_force),
            OutputFormat::Json => json(&in_force),
        },
    );
    Ok(ExitCode::SUCCESS)
}

fn text(in_force: &LogLevel) -> String {
    let LogLevel { level, next_level, next_level_after } = in_force;
    match next_level {
        None => level.clone(),
        Some(next) => {
            let after = next_level_after.map(from_wire).unwrap_or_default();
            format!("{level}; {next} in {}", output::span(after))
        }
    }
}

fn json(in_force: &LogLevel) -> String {
    let LogLevel { level, next_level, next_level_after } = in_force;
    let after = next_level_after.map(|span| output::seconds(from_wire(span)));
    json!({ "level": level, "next_level": next_level, "next_level_after_seconds": after })
        .to_string()
}
