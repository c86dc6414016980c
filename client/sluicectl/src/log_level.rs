//! `sluicectl log-level`.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use serde_json::json;
use sluicegate_proto::{sluicegate::admin::v1::LogLevel, text::duration_from_proto};

use super::{AdminServerSettings, Failure, OutputFormat, output};

/// Settings of `sluicectl log-level`.
#[derive(Args, Clone, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct LogLevelSettings {
    /// New log level: error, warn, info, debug or trace, also by module (info,h2=debug). Without it, the current
    /// level is printed.
    #[arg(value_name = "LEVEL")]
    pub level: Option<String>,

    /// Duration of the change. Then the level that was last set without a duration applies again.
    #[arg(long = "for", value_name = "DURATION", requires = "level")]
    #[arg(value_parser = humantime::parse_duration)]
    pub duration: Option<Duration>,

    /// Output format.
    #[arg(long, env = "SLUICECTL_OUTPUT", value_name = "FORMAT", default_value = "text")]
    pub output: OutputFormat,

    /// The admin listener.
    #[command(flatten)]
    pub server: AdminServerSettings,
}

const AFTER_HELP: &str = "\
Try it:
  sluicectl log-level
  sluicectl log-level info,sluicegate=debug --for 10m

Exit codes:
  0  done
  2  invalid command line, or an unusable file in it
  3  the server is unreachable, or rejects the level";

/// Changes the level if one is given, and prints the level in force.
pub(super) async fn run(settings: &LogLevelSettings) -> Result<ExitCode, Failure> {
    let client = settings.server.client()?;
    let answer = match &settings.level {
        None => client.log_level().await,
        Some(level) => client.set_log_level(level, settings.duration).await,
    };
    let in_force =
        answer.map_err(|source| Failure::Call { endpoint: client.endpoint().clone(), source })?;
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
            let after = next_level_after.map(duration_from_proto).unwrap_or_default();
            format!("{level}; {next} in {}", output::format_span(after))
        }
    }
}

fn json(in_force: &LogLevel) -> String {
    let LogLevel { level, next_level, next_level_after } = in_force;
    let after = next_level_after.map(|span| output::seconds(duration_from_proto(span)));
    json!({ "level": level, "next_level": next_level, "next_level_after_seconds": after })
        .to_string()
}
