//! The log: to the standard error stream, as text or JSON. Nothing is logged per request above debug, except decisions
//! for those who ask for them.

use std::{
    fmt, io,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use thiserror::Error;
use tokio::task::AbortHandle;
use tracing_subscriber::{
    EnvFilter, filter::LevelFilter, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use super::{
    log_fields::TextFields,
    log_rate::{LogRate, RateLayer, Suppressed},
    log_writer::{LogGuard, LogWriter},
};
use crate::settings::{LogFormat, LogSettings};

/// What operators change is logged under this name, whatever the level.
pub(crate) const AUDIT: &str = "sluicegate::audit";

/// The longest text that can name levels, in bytes.
const LEVEL_MAX: usize = 4096;

/// What was given for `--log-level` is no level, or the system gives no thread that writes.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct LogError(#[from] NoLog);

#[derive(Debug, Error)]
enum NoLog {
    #[error("--log-level: {0}")]
    Level(InvalidLevel),
    #[error("cannot write the log: {0}")]
    Thread(io::Error),
}

/// What was given for a level is none.
#[derive(Debug, Error)]
#[error("{given:?} is not a level; use error, warn, info, debug or trace, or MODULE=LEVEL")]
pub(crate) struct InvalidLevel {
    given: String,
}

/// Starts the log of this process, which is written to its end when what is returned is dropped. A log that
/// was started before stays.
pub(crate) fn start(settings: &LogSettings) -> Result<LogGuard, LogError> {
    let filter = filter(&settings.log_level).map_err(NoLog::Level)?;
    let (writer, guard) =
        LogWriter::start(io::stderr(), settings.log_format).map_err(NoLog::Thread)?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer.clone());
    let rate = Arc::<LogRate>::default();
    let bound = RateLayer(Arc::clone(&rate));
    let (put, started): (Put, _) = match settings.log_format {
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
        let level = Level { text: settings.log_level.clone(), lent: None };
        let _first = LEVELS.set(Levels { put, level: Arc::new(Mutex::new(level)), writer, rate });
    }
    Ok(guard)
}

/// The level of a module stands after its name; what has none is that of all others, info if there is none. The filter
/// by itself would take a bare word for a module, nothing for a level, and log nothing else.
fn filter(given: &str) -> Result<EnvFilter, InvalidLevel> {
    let no_level = || InvalidLevel { given: given.chars().take(LEVEL_MAX).collect() };
    for part in given.split(',').map(str::trim) {
        let level = match part.split_once('=') {
            None => part,
            Some((module, level)) if !module.trim().is_empty() => level.trim(),
            Some(_) => return Err(no_level()),
        };
        let level = (!level.is_empty()).then(|| level.parse::<LevelFilter>());
        level.and_then(Result::ok).ok_or_else(no_level)?;
    }
    // With a span or a field a directive is more particular than the one below that keeps the audit.
    if given.len() > LEVEL_MAX || given.contains('[') {
        return Err(no_level());
    }
    // What is said of every event of a file would be an event itself, if the log lies beside the limits. Who wants
    // them names them.
    EnvFilter::try_new(format!("info,notify=info,mio=info,{given},{AUDIT}=info"))
        .map_err(|_| no_level())
}

/// Puts another filter in force. Returns whether there is still a log to filter.
type Put = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

/// Set with the log, which a process has one of.
static LEVELS: OnceLock<Levels> = OnceLock::new();

/// What is logged, and the means to change it.
pub(crate) struct Levels {
    put: Put,
    level: Arc<Mutex<Level>>,
    writer: LogWriter,
    rate: Arc<LogRate>,
}

struct Level {
    /// The one that stays.
    text: String,
    /// The one in force for a while in its place.
    lent: Option<Lent>,
}

struct Lent {
    text: String,
    until: Instant,
    returning: AbortHandle,
}

/// What is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InForce {
    /// As `--log-level` would say it.
    pub(crate) level: String,
    /// What comes after it by itself, and when.
    pub(crate) then: Option<(String, Duration)>,
}

/// Why the level stays as it is.
#[derive(Debug, Error)]
pub(crate) enum ChangeError {
    /// It is no level.
    #[error(transparent)]
    Level(#[from] InvalidLevel),
    /// The span is nothing, or more than a clock has.
    #[error("how long it is in force: a duration longer than 0 and shorter than the clock's end")]
    Duration,
    /// The log is that of a program around the server.
    #[error("the log is not the server's own")]
    NotOwn,
}

/// The levels of this process's log, unless the log is somebody else's.
pub(crate) fn levels() -> Result<&'static Levels, ChangeError> {
    LEVELS.get().ok_or(ChangeError::NotOwn)
}

/// Lines of this process's log that were not written because nobody read them.
pub(crate) fn lines_dropped() -> u64 {
    LEVELS.get().map_or(0, |levels| levels.writer.dropped())
}

/// Lines of libraries that this process's log does not have because they were too many.
pub(crate) fn lines_suppressed() -> u64 {
    LEVELS.get().map_or(0, |levels| levels.rate.suppressed())
}

/// Logs how many lines of libraries were suppressed in intervals that have ended, or, at the end of the process, in
/// `all`.
pub(crate) fn report_suppressed(all: bool) {
    let Some(levels) = LEVELS.get() else { return };
    for Suppressed { target, level, lines } in levels.rate.take(Instant::now(), all) {
        tracing::warn!(library = %target, %level, lines, "too many lines of a library suppressed");
    }
}

impl Levels {
    /// What is logged now.
    pub(crate) fn in_force(&self) -> InForce {
        self.level.lock().in_force()
    }

    /// Logs what `given` says from now on, or for so long; then again what was said last without an end. Needs a
    /// runtime. `caller` is who asks, and `certificate` what they showed.
    ///
    /// # Errors
    /// There is no such level, or no such span of time. Nothing changes.
    pub(crate) fn set(
        &'static self,
        given: &str,
        within: Option<Duration>,
        caller: &dyn fmt::Display,
        certificate: Option<&str>,
    ) -> Result<InForce, ChangeError> {
        let filter = filter(given)?;
        let until = match within {
            Some(Duration::ZERO) => return Err(ChangeError::Duration),
            Some(span) => Some(Instant::now().checked_add(span).ok_or(ChangeError::Duration)?),
            None => None,
        };
        let mut level = self.level.lock();
        let former = level.in_force().level;
        if let Some(lent) = level.lent.take() {
            lent.returning.abort();
        }
        match until {
            None => given.clone_into(&mut level.text),
            Some(until) => {
                let returning = tokio::spawn(async move {
                    tokio::time::sleep_until(until.into()).await;
                    self.return_from(until);
                });
                let returning = returning.abort_handle();
                level.lent = Some(Lent { text: given.to_owned(), until, returning });
            }
        }
        if !(self.put)(filter) {
            return Err(ChangeError::NotOwn);
        }
        let for_seconds = within.map(|span| span.as_secs_f64());
        tracing::info!(
            target: AUDIT, %caller, certificate, log_level = given, former, for_seconds,
            "log level changed",
        );
        Ok(level.in_force())
    }

    /// Ends the level that was in force until then.
    fn return_from(&self, until: Instant) {
        let mut level = self.level.lock();
        // Somebody else may have changed it while this waited for the lock.
        if let Some(lent) = level.lent.take_if(|lent| lent.until == until)
            && let Ok(filter) = filter(&level.text)
        {
            let _no_log_left = (self.put)(filter);
            tracing::info!(target: AUDIT, log_level = level.text, former = lent.text, "log level is back");
        }
    }
}

impl Level {
    fn in_force(&self) -> InForce {
        match &self.lent {
            None => InForce { level: self.text.clone(), then: None },
            Some(Lent { text, until, .. }) => {
                let left = until.saturating_duration_since(Instant::now());
                InForce { level: text.clone(), then: Some((self.text.clone(), left)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_level_is_one() {
        for level in
            ["error", "info", "INFO", "off", "info,h2=debug", "h2=trace", "warn, info", "h2=off"]
        {
            assert!(filter(level).is_ok(), "{level}");
        }
        for other in [
            "",
            "loud",
            "info,",
            "info,,warn",
            "h2=loud",
            "sluicegate",
            ",",
            " ",
            "[{caller}]=off",
            "h2=",
            "info=",
            "info,h2= ",
            "=info",
            "=",
            "h2=debug=info",
        ] {
            let said = filter(other).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{other:?} is not a level; use error, ")), "{said}");
        }
        assert!(filter(&"h2=info,".repeat(1000)).is_err());
    }

    #[test]
    fn what_is_not_named_stays_at_info() {
        for (given, of_all) in [
            ("h2=debug", LevelFilter::INFO),
            ("sluicegate=debug,h2=off", LevelFilter::INFO),
            ("h2=debug,warn", LevelFilter::WARN),
            ("off", LevelFilter::OFF),
        ] {
            let shown = filter(given).unwrap().to_string();
            let bare = shown.split(',').find(|part| !part.contains('='));
            assert_eq!(bare, Some(&*of_all.to_string()), "{given}: {shown}");
        }
    }
}
