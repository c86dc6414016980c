//! The log: to the standard error stream, as text or JSON. Nothing is logged per request above debug.

use std::io;

use thiserror::Error;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use crate::settings::{LogFormat, LogSettings};

/// What was given for `--log-level` is no level.
#[derive(Debug, Error)]
#[error(
    "--log-level: {given:?} is not a level; use error, warn, info, debug or trace, or MODULE=LEVEL"
)]
pub struct LogError {
    given: String,
}

/// Starts the log of this process. A log that was started before stays.
pub(crate) fn start(settings: &LogSettings) -> Result<(), LogError> {
    let filter = filter(&settings.log_level)?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let _already_started = match settings.log_format {
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    Ok(())
}

/// A bare word must be a level: the filter would take it for a module, and log nothing else.
fn filter(given: &str) -> Result<EnvFilter, LogError> {
    let bare = given.split(',').filter(|part| !part.contains('='));
    let no_level = || LogError { given: given.to_owned() };
    for word in bare {
        word.trim().parse::<LevelFilter>().map_err(|_| no_level())?;
    }
    // What the client library says of every connection, the store says once. What is said of every event of
    // a file would be an event itself, if the log lies beside the limits. Who wants them names them.
    EnvFilter::try_new(format!("fred=off,notify=info,mio=info,{given}")).map_err(|_| no_level())
}
