//! Log levels: parsing, and changes at runtime.

use std::{
    fmt,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use thiserror::Error;
use tokio::task::AbortHandle;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use super::writer::AUDIT_TARGET;

/// The longest text of levels, in bytes.
const LEVEL_MAX: usize = 4096;

/// A text is not a valid log level.
#[derive(Debug, Error)]
#[error("{given:?} is not a level; use off, error, warn, info, debug or trace, or MODULE=LEVEL")]
pub(crate) struct InvalidLevel {
    given: String,
}

/// Parses levels: `MODULE=LEVEL` for a module, `LEVEL` for all other modules (default: info). Stricter than
/// `EnvFilter`, which accepts a word that is no level as a module, and the empty text, and in both cases disables all
/// other modules.
pub(super) fn filter(given: &str) -> Result<EnvFilter, InvalidLevel> {
    let invalid = || InvalidLevel { given: given.chars().take(LEVEL_MAX).collect() };
    for part in given.split(',').map(str::trim) {
        let level = match part.split_once('=') {
            None => part,
            Some((module, level)) if !module.trim().is_empty() => level.trim(),
            Some(_) => return Err(invalid()),
        };
        let level = (!level.is_empty()).then(|| level.parse::<LevelFilter>());
        level.and_then(Result::ok).ok_or_else(invalid)?;
    }
    // A directive with a span or a field is more specific than the one below for audit lines, and could disable them.
    if given.len() > LEVEL_MAX || given.contains('[') {
        return Err(invalid());
    }
    // If the log file is beside the limits files, a log line for each file event would cause another event. To log
    // the events of `notify` and `mio`, set a level for these modules.
    EnvFilter::try_new(format!("info,notify=info,mio=info,{given},{AUDIT_TARGET}=info"))
        .map_err(|_| invalid())
}

/// Replaces the filter of the log. Returns false if the log does not exist any more.
pub(super) type ReplaceFilter = Box<dyn Fn(EnvFilter) -> bool + Send + Sync>;

/// Reads and changes the level of the log.
pub(crate) struct LogLevels {
    replace: ReplaceFilter,
    level: Mutex<Level>,
}

struct Level {
    /// The permanent level.
    permanent: String,
    /// The temporary level that is in force instead, if there is one.
    temporary: Option<TemporaryLevel>,
}

struct TemporaryLevel {
    text: String,
    until: Instant,
    /// The task that restores the permanent level.
    restoring: AbortHandle,
}

/// The level in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogLevelStatus {
    /// The level, in the syntax of `--log-level`.
    pub(crate) level: String,
    /// If the level is temporary: the permanent level, and the time until it is restored.
    pub(crate) next: Option<(String, Duration)>,
}

/// Why the level cannot be changed.
#[derive(Debug, Error)]
pub(crate) enum LogLevelChangeError {
    /// The level is invalid.
    #[error(transparent)]
    Level(#[from] InvalidLevel),
    /// The duration is 0, negative, or too long for the clock.
    #[error("the duration must be longer than 0 and within the range of the clock")]
    Duration,
    /// Another program, which has the server as a library, has set up the log.
    #[error("the log is not the server's own")]
    ForeignLog,
}

impl LogLevels {
    /// A log with this level.
    pub(super) fn new(level: String, replace: ReplaceFilter) -> Self {
        let level = Mutex::new(Level { permanent: level, temporary: None });
        Self { replace, level }
    }

    /// The level in force.
    pub(crate) fn in_force(&self) -> LogLevelStatus {
        self.level.lock().in_force()
    }

    /// Changes the level, permanently or for a `duration`. After the duration the permanent level is restored. Logs
    /// `caller` and `certificate`, the name in its certificate. Requires a runtime.
    ///
    /// # Errors
    /// The level or the duration is invalid, or the log is not the server's. Nothing changes.
    pub(crate) fn set(
        &'static self,
        given: &str,
        duration: Option<Duration>,
        caller: &dyn fmt::Display,
        certificate: Option<&str>,
    ) -> Result<LogLevelStatus, LogLevelChangeError> {
        let filter = filter(given)?;
        let until = match duration {
            Some(Duration::ZERO) => return Err(LogLevelChangeError::Duration),
            Some(it) => Some(Instant::now().checked_add(it).ok_or(LogLevelChangeError::Duration)?),
            None => None,
        };
        let mut level = self.level.lock();
        let former = level.in_force().level;
        if let Some(temporary) = level.temporary.take() {
            temporary.restoring.abort();
        }
        match until {
            None => given.clone_into(&mut level.permanent),
            Some(until) => {
                let restoring = tokio::spawn(async move {
                    tokio::time::sleep_until(until.into()).await;
                    self.restore(until);
                });
                let restoring = restoring.abort_handle();
                level.temporary = Some(TemporaryLevel { text: given.to_owned(), until, restoring });
            }
        }
        if !(self.replace)(filter) {
            return Err(LogLevelChangeError::ForeignLog);
        }
        let for_seconds = duration.map(|it| it.as_secs_f64());
        tracing::info!(
            target: AUDIT_TARGET, %caller, certificate, log_level = given, former, for_seconds,
            "log level changed",
        );
        Ok(level.in_force())
    }

    /// Restores the permanent level after the temporary level that ends at this time.
    fn restore(&self, until: Instant) {
        let mut level = self.level.lock();
        // The level may have been changed while this call waited for the lock.
        if let Some(temporary) = level.temporary.take_if(|it| it.until == until)
            && let Ok(filter) = filter(&level.permanent)
        {
            let _no_log_left = (self.replace)(filter);
            let (log_level, former) = (&*level.permanent, &*temporary.text);
            tracing::info!(target: AUDIT_TARGET, log_level, former, "log level restored");
        }
    }
}

impl Level {
    fn in_force(&self) -> LogLevelStatus {
        match &self.temporary {
            None => LogLevelStatus { level: self.permanent.clone(), next: None },
            Some(TemporaryLevel { text, until, .. }) => {
                let left = until.saturating_duration_since(Instant::now());
                LogLevelStatus { level: text.clone(), next: Some((self.permanent.clone(), left)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_validated() {
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
            let text = filter(other).unwrap_err().to_string();
            assert!(
                text.starts_with(&format!("{other:?} is not a level; use off, error, ")),
                "{text}"
            );
        }
        assert!(filter(&"h2=info,".repeat(1000)).is_err());
    }

    #[test]
    fn modules_without_a_level_use_info() {
        for (given, default) in [
            ("h2=debug", LevelFilter::INFO),
            ("sluicegate=debug,h2=off", LevelFilter::INFO),
            ("h2=debug,warn", LevelFilter::WARN),
            ("off", LevelFilter::OFF),
        ] {
            let shown = filter(given).unwrap().to_string();
            let bare = shown.split(',').find(|part| !part.contains('='));
            assert_eq!(bare, Some(&*default.to_string()), "{given}: {shown}");
        }
    }
}
