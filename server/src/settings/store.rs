//! Settings of the store, of connections to Redis, and of failures.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use clap::{ArgAction, Args};
use sluicegate_limits::arguments::configure_on_off_flag;
use sluicegate_store::redis::{KeyPrefix, RedisUrl, UrlError};
use thiserror::Error;

use super::positive_duration;

/// Settings of the store.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Store")]
pub struct StoreSettings {
    /// Store of the counters: memory, for a single replica, or Redis, for any number: redis://HOST:PORT/DATABASE,
    /// redis-cluster://HOST:PORT,HOST:PORT, redis-sentinel://HOST:PORT,HOST:PORT/NAME; with TLS rediss://,
    /// rediss-cluster://, rediss-sentinel://. USER:PASSWORD@ may precede the first host, but other users of the
    /// machine can see a command line.
    #[arg(long, env = "SLUICEGATE_STORE", value_name = "STORE", default_value = "memory")]
    #[arg(hide_env_values = true)]
    pub store: StoreChoice,

    /// Prefix of every key, so that several installations can share one Redis.
    #[arg(long, env = "SLUICEGATE_KEY_PREFIX", value_name = "TEXT", default_value = "")]
    pub key_prefix: KeyPrefix,

    /// Maximum number of refusals in the deny cache, which refuses repeated requests without a call to Redis. 0
    /// disables it.
    #[arg(
        long,
        env = "SLUICEGATE_DENY_CACHE_ENTRIES",
        value_name = "ENTRIES",
        default_value = "100000"
    )]
    pub deny_cache_entries: usize,

    /// Maximum number of counters in memory: all of them, or with Redis those of `on_failure: local`. A request that
    /// needs one more is refused, or with `on_failure: allow` allowed. Counters in use are never evicted.
    #[arg(
        long,
        env = "SLUICEGATE_MEMORY_MAX_COUNTERS",
        value_name = "COUNTERS",
        default_value = "1000000"
    )]
    pub memory_max_counters: NonZeroUsize,
}

/// The store of the counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    /// This process's memory. The counters are lost when it stops, and not shared with other replicas.
    Memory,
    /// Redis.
    Redis(RedisUrl),
}

impl FromStr for StoreChoice {
    type Err = StoreChoiceError;

    fn from_str(text: &str) -> Result<Self, StoreChoiceError> {
        match text {
            "memory" => Ok(Self::Memory),
            text if text.contains("://") => Ok(Self::Redis(text.parse()?)),
            _ => Err(StoreChoiceError::Unknown),
        }
    }
}

/// Why a value of `--store` is invalid.
#[derive(Debug, Error)]
pub enum StoreChoiceError {
    /// The value is neither `memory` nor an address.
    #[error(
        "use memory, or an address that begins with redis://, redis-cluster:// or redis-sentinel://"
    )]
    Unknown,
    /// The address has a mistake.
    #[error(transparent)]
    Url(#[from] UrlError),
}

/// Settings of connections to Redis.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Redis")]
pub struct RedisArguments {
    /// ACL user, if the address has none.
    #[arg(long, env = "SLUICEGATE_REDIS_USERNAME", value_name = "USER")]
    pub redis_username: Option<String>,

    /// Password, if the address has none. Prefer the environment variable or a file: other users of the machine can
    /// see a command line.
    #[arg(long, env = "SLUICEGATE_REDIS_PASSWORD", value_name = "PASSWORD")]
    #[arg(hide_env_values = true, conflicts_with = "redis_password_file")]
    pub redis_password: Option<String>,

    /// File whose first line is the password. It is read for each connection, so a new password needs no restart.
    #[arg(long, env = "SLUICEGATE_REDIS_PASSWORD_FILE", value_name = "FILE")]
    pub redis_password_file: Option<PathBuf>,

    /// CA certificates for the servers (PEM), in place of the system's. Read for each connection, as are the other
    /// TLS files.
    #[arg(long, env = "SLUICEGATE_REDIS_TLS_CA", value_name = "FILE")]
    pub redis_tls_ca: Option<PathBuf>,

    /// Client certificate chain (PEM), for mTLS.
    #[arg(long, env = "SLUICEGATE_REDIS_TLS_CERT", value_name = "FILE")]
    #[arg(requires = "redis_tls_key")]
    pub redis_tls_cert: Option<PathBuf>,

    /// Private key of the client certificate (PEM).
    #[arg(long, env = "SLUICEGATE_REDIS_TLS_KEY", value_name = "FILE")]
    #[arg(requires = "redis_tls_cert")]
    pub redis_tls_key: Option<PathBuf>,

    /// Connections to each server, and so the number of concurrent calls to it. Requests that arrive meanwhile are
    /// sent together in the next call.
    #[arg(
        long,
        env = "SLUICEGATE_REDIS_CONNECTIONS",
        value_name = "CONNECTIONS",
        default_value = "2"
    )]
    pub redis_connections: NonZeroUsize,

    /// Timeout of a connection attempt, and time that the start waits for a connection, at most 2s. Requests do not
    /// wait for connections: without a connection the failure policies apply.
    #[arg(
        long,
        env = "SLUICEGATE_REDIS_CONNECT_TIMEOUT",
        value_name = "DURATION",
        default_value = "1s"
    )]
    #[arg(value_parser = positive_duration)]
    pub redis_connect_timeout: Duration,
}

/// Settings for the time when the store does not answer.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Failure", mut_args(configure_on_off_flag))]
pub struct FailureSettings {
    /// Time for the store to answer. Then the failure policies apply. They apply earlier if the caller's deadline
    /// (grpc-timeout) is short: a quarter of it, and at least 2 ms, is reserved for sending the answer.
    #[arg(
        long,
        env = "SLUICEGATE_DECISION_TIMEOUT",
        value_name = "DURATION",
        default_value = "10ms"
    )]
    #[arg(value_parser = positive_duration)]
    pub decision_timeout: Duration,

    /// Number of replicas that `on_failure: local` divides limits by. Default: the number of replicas that this one
    /// last counted in Redis; 1 if it has not reached Redis since its start.
    #[arg(long, env = "SLUICEGATE_REPLICAS", value_name = "REPLICAS")]
    pub replicas: Option<NonZeroU32>,

    /// Maximum number of recently checked counters whose remaining hits a replica stores, so that `on_failure: local`
    /// starts from them, and of counters that it debits when Redis answers again. 0: local counters start unused, and
    /// are not debited.
    #[arg(
        long,
        env = "SLUICEGATE_FALLBACK_COUNTERS",
        value_name = "COUNTERS",
        default_value = "100000"
    )]
    pub fallback_counters: usize,

    /// Report NOT_SERVING while the store does not answer. By default health stays SERVING, because otherwise no
    /// replica is left to apply the failure policies.
    #[arg(long, env = "SLUICEGATE_HEALTH_REQUIRES_STORE", value_name = "BOOL", action = ArgAction::Set)]
    pub health_requires_store: bool,
}
