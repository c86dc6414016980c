//! The log: text or JSON on the standard error stream. Above debug level, single requests are logged only in the
//! decision log. Warnings that requests can cause are bounded in number.
//!
//! `levels` changes the level at runtime, `fields` formats fields in text, `writer` writes on its own thread, `rate`
//! bounds the lines of libraries.

mod fields;
mod levels;
mod rate;
mod writer;

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Instant,
};

use thiserror::Error;
use tracing_subscriber::{layer::SubscriberExt as _, util::SubscriberInitExt as _};

use self::{
    fields::TextFields,
    levels::ReplaceFilter,
    rate::{LogRate, LogRateLayer, SuppressedLines},
    writer::{LogGuard, LogWriter},
};
use crate::settings::{LogFormat, LogSettings};

#[cfg(test)]
pub(crate) use self::writer::END_TIMEOUT;
pub(crate) use self::{
    levels::{LogLevelChangeError, LogLevelStatus, LogLevels},
    writer::AUDIT_TARGET,
};

/// Why the log cannot start: `--log-level` is invalid, or the system does not provide a thread.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct LogError(#[from] LogSetupError);

#[derive(Debug, Error)]
enum LogSetupError {
    #[error("--log-level: {0}")]
    Level(levels::InvalidLevel),
    #[error("cannot write the log: {0}")]
    Thread(io::Error),
}

/// The log of this process.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    levels: LogLevels,
    writer: LogWriter,
    rate: Arc<LogRate>,
}

/// Starts the log of this process. Dropping the guard writes all lines. If the process has a log already, that one
/// stays.
pub(crate) fn start(settings: &LogSettings) -> Result<LogGuard, LogError> {
    let filter = levels::filter(&settings.log_level).map_err(LogSetupError::Level)?;
    let (writer, guard) =
        LogWriter::start(io::stderr(), settings.log_format).map_err(LogSetupError::Thread)?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer.clone());
    let rate = Arc::<LogRate>::default();
    let bound = LogRateLayer(Arc::clone(&rate));
    let (replace, started): (ReplaceFilter, _) = match settings.log_format {
        LogFormat::Text => {
            let log = log.with_ansi(false).fmt_fields(TextFields).with_filter_reloading();
            let handle = log.reload_handle();
            (
                Box::new(move |filter| handle.reload(filter).is_ok()),
                log.finish().with(bound).try_init(),
            )
        }
        LogFormat::Json => {
            let log = log.json().flatten_event(true).with_filter_reloading();
            let handle = log.reload_handle();
            (
                Box::new(move |filter| handle.reload(filter).is_ok()),
                log.finish().with(bound).try_init(),
            )
        }
    };
    if started.is_ok() {
        let levels = LogLevels::new(settings.log_level.clone(), replace);
        let _first = LOG.set(Log { levels, writer, rate });
    }
    Ok(guard)
}

/// The levels of the server's log.
///
/// # Errors
/// Another program, which has the server as a library, has set up the log.
pub(crate) fn levels() -> Result<&'static LogLevels, LogLevelChangeError> {
    LOG.get().map(|log| &log.levels).ok_or(LogLevelChangeError::ForeignLog)
}

/// The number of lines that were dropped because the log was not read fast enough or writing failed.
pub(crate) fn lines_dropped() -> u64 {
    LOG.get().map_or(0, |log| log.writer.dropped())
}

/// The number of lines of libraries that were suppressed because there were too many.
pub(crate) fn lines_suppressed() -> u64 {
    LOG.get().map_or(0, |log| log.rate.suppressed())
}

/// Logs the number of suppressed lines of libraries in intervals that have ended; with `all`, in the current intervals
/// too.
pub(crate) fn report_suppressed(all: bool) {
    let Some(log) = LOG.get() else { return };
    for SuppressedLines { target, level, lines } in log.rate.drain(Instant::now(), all) {
        tracing::warn!(library = %target, %level, lines, "too many lines of a library suppressed");
    }
}
