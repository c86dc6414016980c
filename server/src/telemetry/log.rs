//! The log: to the standard error stream, as text or JSON. Nothing is logged per request above debug.

use std::io;

use tracing_subscriber::{EnvFilter, filter::ParseError};

use crate::settings::{LogFormat, LogSettings};

/// Starts the log of this process. A log that was started before stays.
///
/// # Errors
/// The level is none.
pub(crate) fn start(settings: &LogSettings) -> Result<(), ParseError> {
    let filter = EnvFilter::try_new(&settings.log_level)?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let _already_started = match settings.log_format {
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
    };
    Ok(())
}
