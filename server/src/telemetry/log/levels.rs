//! The level of the log: parsing, and changes while the server runs.

use std::{
    fmt,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use thiserror::Error;
use tokio::task::AbortHandle;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use super::writer::AUDIT;

/// The longest text that can name levels, in bytes.
const LEVEL_MAX: usize = 4096;

/// What was given for a level is none.
#[derive(Debug, Error)]
#[error("{given:?} is not a level; use error, warn, info, debug or trace, or MODULE=LEVEL")]
pub(crate) struct InvalidLevel {
    given: String,
}

/// The level of a module follows its name; a level without a name is for all other modules, by default info. The filter
/// itself would parse a bare word as a module, an empty word as a level, and log nothing else.
pub(super) fn filter(given: &str) -> Result<EnvFilter, InvalidLevel> {
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
    // If the log file is beside the limits files, a log line for each file event would cause another event. To log them,
    // name the module.
    EnvFilter::try_new(format!("info,notify=info,mio=info,{given},{AUDIT}=info"))
        .map_err(|_| no_level())
}

/// Replaces the filter. Returns whether the log still exists.
pub(super) type ReplaceFilter = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

/// The level of the log, and the means to change it.
pub(crate) struct LogLevels {
    replace: ReplaceFilter,
    level: Mutex<Level>,
}

struct Level {
    /// The one that stays.
    text: String,
    /// The one in force for a while in its place.
    temporary: Option<TemporaryLevel>,
}

struct TemporaryLevel {
    text: String,
    until: Instant,
    returning: AbortHandle,
}

/// The level in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogLevelStatus {
    /// In the syntax of `--log-level`.
    pub(crate) level: String,
    /// The level that returns when a temporary one ends, and the time until then.
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

impl LogLevels {
    /// A log with this level.
    pub(super) fn new(level: String, replace: ReplaceFilter) -> Self {
        let level = Mutex::new(Level { text: level, temporary: None });
        Self { replace, level }
    }

    /// The level in force now.
    pub(crate) fn in_force(&self) -> LogLevelStatus {
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
    ) -> Result<LogLevelStatus, ChangeError> {
        let filter = filter(given)?;
        let until = match within {
            Some(Duration::ZERO) => return Err(ChangeError::Duration),
            Some(span) => Some(Instant::now().checked_add(span).ok_or(ChangeError::Duration)?),
            None => None,
        };
        let mut level = self.level.lock();
        let former = level.in_force().level;
        if let Some(temporary) = level.temporary.take() {
            temporary.returning.abort();
        }
        match until {
            None => given.clone_into(&mut level.text),
            Some(until) => {
                let returning = tokio::spawn(async move {
                    tokio::time::sleep_until(until.into()).await;
                    self.return_from(until);
                });
                let returning = returning.abort_handle();
                level.temporary = Some(TemporaryLevel { text: given.to_owned(), until, returning });
            }
        }
        if !(self.replace)(filter) {
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
        // Another call may have changed it while this one waited for the lock.
        if let Some(temporary) = level.temporary.take_if(|it| it.until == until)
            && let Ok(filter) = filter(&level.text)
        {
            let _no_log_left = (self.replace)(filter);
            tracing::info!(target: AUDIT, log_level = level.text, former = temporary.text, "log level is back");
        }
    }
}

impl Level {
    fn in_force(&self) -> LogLevelStatus {
        match &self.temporary {
            None => LogLevelStatus { level: self.text.clone(), then: None },
            Some(TemporaryLevel { text, until, .. }) => {
                let left = until.saturating_duration_since(Instant::now());
                LogLevelStatus { level: text.clone(), then: Some((self.text.clone(), left)) }
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
