//! The log: to the standard error stream, as text or JSON. Nothing is logged per request above debug, except decisions
//! where `--decision-log-ratio` asks for them.
//!
//! `levels` changes the level while the server runs, `fields` quotes values in text, `writer` is the thread that writes,
//! `rate` bounds what libraries log.

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
    rate::{LogRate, RateLimitLayer, SuppressedLines},
    writer::{LogGuard, LogWriter},
};
use crate::settings::{LogFormat, LogSettings};

#[cfg(test)]
pub(crate) use self::writer::END_TIMEOUT;
pub(crate) use self::{
    levels::{ChangeError, LogLevelStatus, LogLevels},
    writer::AUDIT,
};

/// Why the log cannot start: `--log-level` is invalid, or the system gives no thread that writes.
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

/// Starts the log of this process, which is written to its end when what is returned is dropped. A log that
/// was started before stays.
pub(crate) fn start(settings: &LogSettings) -> Result<LogGuard, LogError> {
    let filter = levels::filter(&settings.log_level).map_err(LogSetupError::Level)?;
    let (writer, guard) =
        LogWriter::start(io::stderr(), settings.log_format).map_err(LogSetupError::Thread)?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer.clone());
    let rate = Arc::<LogRate>::default();
    let bound = RateLimitLayer(Arc::clone(&rate));
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

/// The levels of this process's log.
///
/// # Errors
/// The program around the server has set up a log of its own.
pub(crate) fn levels() -> Result<&'static LogLevels, ChangeError> {
    LOG.get().map(|log| &log.levels).ok_or(ChangeError::NotOwn)
}

/// Lines that were dropped because the log was not read fast enough.
pub(crate) fn lines_dropped() -> u64 {
    LOG.get().map_or(0, |log| log.writer.dropped())
}

/// Lines of libraries that were suppressed because there were too many.
pub(crate) fn lines_suppressed() -> u64 {
    LOG.get().map_or(0, |log| log.rate.suppressed())
}

/// Logs how many lines of libraries were suppressed in intervals that have ended, or, when the process ends, in all
/// intervals (`all`).
pub(crate) fn report_suppressed(all: bool) {
    let Some(log) = LOG.get() else { return };
    for SuppressedLines { target, level, lines } in log.rate.take(Instant::now(), all) {
        tracing::warn!(library = %target, %level, lines, "too many lines of a library suppressed");
    }
}
