//! Calls that read and change the log level.

use std::time::Duration;

use sluicegate_proto::sluicegate::admin::v1::{
    GetLogLevelResponse, LogLevel, SetLogLevelRequest, SetLogLevelResponse,
};
use tonic::{Request, Status};

use super::caller::Caller;
use crate::telemetry::{ChangeError, LogLevelStatus, log_levels};

/// What is logged.
pub(super) fn level() -> Result<GetLogLevelResponse, Status> {
    let in_force = log_levels().map_err(|error| refused(&error))?.in_force();
    Ok(GetLogLevelResponse { log_level: Some(message(in_force)) })
}

/// Changes what is logged, and logs who did.
pub(super) fn set_level(
    request: &Request<SetLogLevelRequest>,
) -> Result<SetLogLevelResponse, Status> {
    let SetLogLevelRequest { level, duration } = request.get_ref();
    // A negative one is as wrong as none at all.
    let within = duration.map(|span| Duration::try_from(span).unwrap_or_default());
    let caller = Caller::of(request);
    let certificate = caller.certificate();
    let set = log_levels().and_then(|levels| levels.set(level, within, &caller, certificate));
    Ok(SetLogLevelResponse { log_level: Some(message(set.map_err(|error| refused(&error))?)) })
}

fn message(in_force: LogLevelStatus) -> LogLevel {
    let LogLevelStatus { level, then } = in_force;
    let (next_level, after) = then.unzip();
    LogLevel { level, next_level, next_level_after: after.and_then(|it| it.try_into().ok()) }
}

fn refused(error: &ChangeError) -> Status {
    match error {
        ChangeError::Level(_) | ChangeError::Duration => {
            Status::invalid_argument(error.to_string())
        }
        ChangeError::NotOwn => Status::failed_precondition(error.to_string()),
    }
}
