//! Why the server cannot start.

use std::{error::Error, fmt, io};

use sluicegate_core::rules::{Findings, LocatedMistake};
use sluicegate_store::redis::FileError;
use thiserror::Error;

use crate::{
    admin::TokenError,
    grpc::HeadersError,
    listen::{CapacityError, TlsError},
    secret::SecretError,
    telemetry::{LogError, MetricsError, OtlpError},
    usage::TenantsError,
    values::ListenAddress,
};

/// A reason why the server cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The limits files have mistakes.
    #[error("{}", .0.lines().collect::<Vec<_>>().join("\n"))]
    Limits(Findings<LocatedMistake>),
    /// An address cannot be bound.
    #[error("{flag}: the {listener} listener cannot listen on {address}")]
    Listen {
        /// The flag that sets the address.
        flag: &'static str,
        /// The listener.
        listener: &'static str,
        /// The address.
        address: ListenAddress,
        /// The system's error.
        source: io::Error,
    },
    /// The network could reach the admin listener without a token or a client certificate.
    #[error(
        "--admin-listen {0} is open to the network: set --admin-token-file, or --admin-tls-client-ca, or listen on 127.0.0.1 or a unix socket"
    )]
    UnprotectedAdmin(ListenAddress),
    /// The limit of open files is too low for the connections that the settings allow.
    #[error(transparent)]
    Capacity(#[from] CapacityError),
    /// The TLS files of a listener cannot be used.
    #[error("TLS of the {listener} listener")]
    Tls {
        /// The listener.
        listener: &'static str,
        /// What is wrong with the files.
        source: TlsError,
    },
    /// The admin token cannot be used.
    #[error("--admin-token-file")]
    Token(#[from] TokenError),
    /// The tenants of the usage listener cannot be used.
    #[error("--usage-tenants-file")]
    Tenants(#[from] TenantsError),
    /// The salt of key hashes cannot be used.
    #[error("--key-hash-salt-file")]
    Salt(#[from] SecretError),
    /// A file for connections to Redis cannot be used.
    #[error("cannot connect to Redis")]
    Redis(#[from] FileError),
    /// Settings of Redis contradict each other.
    #[error("{0}")]
    RedisSettings(&'static str),
    /// Settings of response headers contradict each other.
    #[error(transparent)]
    Headers(#[from] HeadersError),
    /// The log cannot be started.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Metrics cannot be set up.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The settings of the collector cannot be used.
    #[error(transparent)]
    Otlp(#[from] OtlpError),
    /// gRPC reflection cannot describe the services.
    #[error("cannot describe the services: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The system does not provide threads or signal handlers.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// All errors of one start. The text has a line for each, with its causes.
#[derive(Debug, Default)]
pub struct StartErrors(Vec<StartError>);

impl StartErrors {
    /// Returns the value of a result, or adds its error and returns `None`.
    pub(super) fn collect<T, E: Into<StartError>>(&mut self, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// Adds an error.
    pub(super) fn push(&mut self, error: impl Into<StartError>) {
        self.0.push(error.into());
    }

    /// Adds other errors.
    pub(super) fn extend(&mut self, errors: Self) {
        self.0.extend(errors.0);
    }

    /// Whether there is no error.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The errors.
    pub(super) fn iter(&self) -> impl Iterator<Item = &StartError> {
        self.0.iter()
    }
}

impl<E: Into<StartError>> From<E> for StartErrors {
    fn from(error: E) -> Self {
        Self(vec![error.into()])
    }
}

impl fmt::Display for StartErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.iter().map(|error| with_causes(error)).collect();
        f.write_str(&texts.join("\n"))
    }
}

impl Error for StartErrors {}

/// The texts of an error and its causes, separated by colons.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
