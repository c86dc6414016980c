//! The admin calls that read and change the log level.

use std::time::Duration;

use sluicegate_proto::sluicegate::admin::v1::{
    GetLogLevelResponse, LogLevel, SetLogLevelRequest, SetLogLevelResponse,
};
use tonic::{Request, Status};

use super::caller::Caller;
use crate::telemetry::{LogLevelChangeError, LogLevelStatus, log_levels};

/// The log level in force.
pub(super) fn level() -> Result<GetLogLevelResponse, Status> {
    let in_force = log_levels().map_err(|error| status(&error))?.in_force();
    Ok(GetLogLevelResponse { log_level: Some(message(in_force)) })
}

/// Changes the log level, and logs the caller.
pub(super) fn set_level(
    request: &Request<SetLogLevelRequest>,
) -> Result<SetLogLevelResponse, Status> {
    let SetLogLevelRequest { level, duration } = request.get_ref();
    // A negative duration becomes 0, which is rejected too.
    let duration = duration.map(|it| Duration::try_from(it).unwrap_or_default());
    let caller = Caller::of(request);
    let certificate = caller.certificate();
    let set = log_levels().and_then(|levels| levels.set(level, duration, &caller, certificate));
    Ok(SetLogLevelResponse { log_level: Some(message(set.map_err(|error| status(&error))?)) })
}

fn message(in_force: LogLevelStatus) -> LogLevel {
    let LogLevelStatus { level, next } = in_force;
    let (next_level, after) = next.unzip();
    LogLevel { level, next_level, next_level_after: after.and_then(|it| it.try_into().ok()) }
}

fn status(error: &LogLevelChangeError) -> Status {
    match error {
        LogLevelChangeError::Level(_) | LogLevelChangeError::Duration => {
            Status::invalid_argument(error.to_string())
        }
        LogLevelChangeError::ForeignLog => Status::failed_precondition(error.to_string()),
    }
}
