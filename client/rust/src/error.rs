//! Errors of connecting and of calls.

use std::{error::Error, io, iter, path::PathBuf, time::Duration};

use thiserror::Error;
use tonic::{Code, Status, TimeoutExpired};

use crate::{Endpoint, InvalidEndpoint};

/// Why a client cannot be built.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The endpoint is not valid.
    #[error("endpoint {0}")]
    Endpoint(#[from] InvalidEndpoint),
    /// There are TLS settings for a connection without TLS.
    #[error("TLS settings need an https:// endpoint, not {0}")]
    TlsUnused(Endpoint),
    /// A certificate or key cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// The file of CA certificates has none.
    #[error("{} holds no certificate in PEM", .0.display())]
    NoCertificate(PathBuf),
    /// The settings contradict each other: for example, the key does not belong to the certificate.
    #[error("settings cannot be used")]
    Settings(#[source] tonic::transport::Error),
    /// The service cannot be reached. [`Builder::connect_lazy`](crate::Builder::connect_lazy) does not
    /// need it.
    #[error("cannot connect to {endpoint}: {reason}")]
    Unreachable {
        /// Address of the service.
        endpoint: Endpoint,
        /// The error.
        reason: String,
    },
}

/// Why a check, or another call of a client, failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// The service rejects the request. It would reject a second attempt too.
    #[error("invalid request: {reason}")]
    InvalidRequest {
        /// The message of the service.
        reason: String,
    },
    /// The service cannot be reached, or the connection broke. The call may have been counted.
    #[error("unavailable: {reason}")]
    Unavailable {
        /// The error.
        reason: String,
    },
    /// The deadline passed. The call may have been counted.
    #[error("no answer within {deadline:?}")]
    DeadlineExceeded {
        /// The time that the client waited.
        deadline: Duration,
    },
    /// The service allowed the request without applying a limit that came with it, because it does not know the
    /// domain.
    #[error("the service did not apply the limit of the request; does it know the domain?")]
    OverrideNotApplied,
    /// Any other status of the service.
    #[error("{code:?}: {reason}")]
    Other {
        /// The gRPC code.
        code: Code,
        /// The message.
        reason: String,
    },
}

/// Parts of error texts that are typical of a connection where only one side uses TLS, or where the client lacks a
/// certificate. Which text occurs depends on which side notices first.
const TLS_MISMATCH_ERRORS: [&str; 5] = [
    "operation was canceled",
    "connection closed",
    "broken pipe",
    "onnection reset by peer",
    "frame with invalid size",
];

/// Beginning of tonic's message for a response that is not gRPC.
const NOT_GRPC: &str = "grpc-status header missing, mapped from HTTP status code";

/// Text that is added to [`TLS_MISMATCH_ERRORS`].
const TLS_MISMATCH_HINT: &str =
    "does it ask for TLS or for a client certificate, or is it another listener?";

impl CheckError {
    /// Converts the status of a failed call.
    ///
    /// `deadline` is the deadline of the call. `listener` names the listener that serves such calls: if the call
    /// probably reached another one, the error suggests it ("is this …?").
    #[must_use]
    pub fn new(status: &Status, deadline: Duration, listener: &str) -> Self {
        // Only a status that tonic created in this process has a source.
        let local = status.source();
        let mut reason = local.map_or_else(|| status.message().to_owned(), describe_error);
        if local.is_some() && TLS_MISMATCH_ERRORS.iter().any(|part| reason.contains(part)) {
            reason = format!("{reason}; {TLS_MISMATCH_HINT}");
        }
        if reason.is_empty() || reason.starts_with(NOT_GRPC) {
            reason = match status.code() {
                Code::Unimplemented => format!("no such service here; is this {listener}?"),
                code if reason.is_empty() => code.description().to_owned(),
                _ => format!("{reason}; is this {listener}?"),
            };
        }
        match status.code() {
            Code::InvalidArgument | Code::OutOfRange => Self::InvalidRequest { reason },
            Code::DeadlineExceeded => Self::DeadlineExceeded { deadline },
            // tonic's client and server return this code when a deadline passes.
            Code::Cancelled if local.is_none_or(is_timeout) => Self::DeadlineExceeded { deadline },
            Code::Unavailable => Self::Unavailable { reason },
            _ if local.is_some() => Self::Unavailable { reason },
            code => Self::Other { code, reason },
        }
    }
}

fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(<dyn Error>::is::<TimeoutExpired>)
}

/// The error and its causes in one line, without repetition.
#[must_use]
pub fn describe_error(error: &(dyn Error + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    for part in causes(error).map(ToString::to_string) {
        // tonic wraps errors in others that add no text, or repeat their source.
        if part != "transport error" && !parts.last().is_some_and(|last| last.ends_with(&part)) {
            parts.push(part);
        }
    }
    parts.join(": ")
}

/// The error and its causes, outermost first.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |&error| error.source())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_millis(7);
    const LISTENER: &str = "the listener";

    #[test]
    fn grpc_codes_map_to_call_errors() {
        let error = |status: Status| CheckError::new(&status, DEADLINE, LISTENER);
        let reason = || "why".to_owned();

        assert_eq!(
            error(Status::invalid_argument("why")),
            CheckError::InvalidRequest { reason: reason() }
        );
        assert_eq!(
            error(Status::out_of_range("why")),
            CheckError::InvalidRequest { reason: reason() }
        );
        assert_eq!(error(Status::unavailable("why")), CheckError::Unavailable { reason: reason() });
        for late in [Status::deadline_exceeded("why"), Status::cancelled("why")] {
            assert_eq!(error(late), CheckError::DeadlineExceeded { deadline: DEADLINE });
        }
        assert_eq!(
            error(Status::unimplemented("why")),
            CheckError::Other { code: Code::Unimplemented, reason: reason() }
        );
    }

    #[test]
    fn broken_connection_is_unavailable_with_any_code() {
        let broken = io::Error::new(io::ErrorKind::ConnectionReset, "reset");
        let error = CheckError::new(&Status::from_error(Box::new(broken)), DEADLINE, LISTENER);
        assert_eq!(error, CheckError::Unavailable { reason: "reset".to_owned() });
    }

    #[test]
    fn errors_of_another_listener_name_the_expected_one() {
        let error = |status: Status| CheckError::new(&status, DEADLINE, LISTENER).to_string();
        assert_eq!(
            error(Status::unimplemented("")),
            "Unimplemented: no such service here; is this the listener?"
        );
        // The answer of a web server, which tonic converts to a status.
        assert_eq!(
            error(Status::unimplemented(format!("{NOT_GRPC} 404"))),
            "Unimplemented: no such service here; is this the listener?"
        );
        assert_eq!(
            error(Status::permission_denied(format!("{NOT_GRPC} 403"))),
            format!("PermissionDenied: {NOT_GRPC} 403; is this the listener?")
        );
        assert_eq!(error(Status::unimplemented("why")), "Unimplemented: why");
        assert_eq!(error(Status::internal("")), "Internal: Internal error");
    }

    #[test]
    fn dropped_connection_hints_at_tls_or_another_listener() {
        let error = |text: &str| {
            let broken = io::Error::other(text.to_owned());
            CheckError::new(&Status::from_error(Box::new(broken)), DEADLINE, LISTENER).to_string()
        };
        for text in [
            "operation was canceled: connection closed",
            "stream closed because of a broken pipe",
            "connection error detected: frame with invalid size",
            "Connection reset by peer (os error 104)",
        ] {
            assert_eq!(error(text), format!("unavailable: {text}; {TLS_MISMATCH_HINT}"));
        }
        assert_eq!(error("Connection refused"), "unavailable: Connection refused");
        // Messages of the service pass unchanged.
        let status = Status::unavailable("connection closed");
        let error = CheckError::new(&status, DEADLINE, LISTENER);
        assert_eq!(error.to_string(), "unavailable: connection closed");
    }
}
