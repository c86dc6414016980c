//! The numbers of connections of each listener and of the store, from the settings and the limit of open files.

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use thiserror::Error;

use super::{Admission, AdmissionBounds, HandshakeEnd};
use crate::settings::{ListenerConnectionSettings, StoreChoice};

/// File descriptors reserved for everything but connections of callers and connections to Redis: a collector, files,
/// queries for the Redis servers, and the runtime.
const FILES_RESERVED: usize = 64;

/// With counters in Redis, a quarter of the other descriptors is for connections to Redis, but at least [`REDIS_MIN`].
const REDIS_DIVISOR: usize = 4;

/// The fewest connections to Redis: two for each primary of a usual cluster, and some for new primaries.
const REDIS_MIN: usize = 16;

/// The default maximum numbers of connections, if there are enough descriptors.
const GRPC_MAX: usize = 16_384;
const HTTP_MAX: usize = 1_024;

/// The most connections of the admin listener, which serves a few operators.
const ADMIN_MAX: usize = 128;

/// The most connections of the usage listener, which serves the backends of portals.
const USAGE_MAX: usize = 256;

/// If there are few descriptors, HTTP gets a fifth of them, and the admin and the usage listener a tenth each.
const HTTP_DIVISOR: usize = 5;
const ADMIN_DIVISOR: usize = 10;
const USAGE_DIVISOR: usize = 10;

/// The bytes that end the handshake of a gRPC connection: the HTTP/2 preface and the header of the SETTINGS frame after
/// it.
const PREFACE_BYTES: usize = 24 + 9;

/// Why connections cannot be divided among the listeners.
#[derive(Debug, Error)]
pub enum CapacityError {
    /// There are too few descriptors to serve.
    #[error(
        "the limit of open files is {files}, and at least {} are needed: raise it (ulimit -n)",
        FILES_RESERVED * 3 / 2
    )]
    TooFewFiles {
        /// The limit.
        files: usize,
    },
    /// The settings allow more connections than there are descriptors.
    #[error(
        "{connections} connections (--grpc-max-connections, --http-max-connections and {}) and \
         {others} other files, with those for Redis, exceed the limit of open files, {files}: raise it (ulimit -n) or allow fewer connections",
        fixed_connections(*admin, *usage)
    )]
    TooManyConnections {
        /// The connections of all listeners.
        connections: usize,
        /// The connections of the admin listener.
        admin: usize,
        /// The connections of the usage listener.
        usage: usize,
        /// The descriptors for other files and connections to Redis.
        others: usize,
        /// The limit.
        files: usize,
    },
    /// The limit cannot be read.
    #[error("cannot read the limit of open files: {0}")]
    Unknown(#[from] io::Error),
}

fn fixed_connections(admin: usize, usage: usize) -> String {
    match usage {
        0 => format!("{admin} for the admin listener"),
        usage => format!("{admin} for the admin listener, {usage} for the usage listener"),
    }
}

/// The admission of each listener, and the number of connections to Redis.
#[derive(Clone, Debug)]
pub(crate) struct Capacity {
    /// The admission of the gRPC listener.
    pub(crate) grpc: Admission,
    /// The admission of the HTTP listener.
    pub(crate) http: Admission,
    /// The admission of the admin listener.
    pub(crate) admin: Admission,
    /// The admission of the usage listener; `None` if it is off.
    pub(crate) usage: Option<Admission>,
    /// The most connections to Redis; 0 if counters are in memory.
    pub(crate) redis: usize,
}

/// The most connections of each listener, and to Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ConnectionMaxima {
    grpc: usize,
    http: usize,
    admin: usize,
    usage: usize,
    redis: usize,
}

impl Capacity {
    /// Raises the soft limit of open files to the hard one, and divides the descriptors among the listeners
    /// and the store. `has_usage`: whether there is a usage listener.
    ///
    /// # Errors
    /// There are fewer descriptors than the settings require.
    pub(crate) fn new(
        settings: &ListenerConnectionSettings,
        store: &StoreChoice,
        has_usage: bool,
    ) -> Result<Self, CapacityError> {
        let maxima = ConnectionMaxima::of(settings, store, has_usage, raise_file_limit()?)?;
        let admission = |connections, handshake_end, idle_timeout| {
            Admission::new(AdmissionBounds {
                connections,
                pending_per_address: settings.max_pending_connections_per_address,
                handshake_timeout: settings.handshake_timeout,
                handshake_end,
                idle_timeout,
            })
        };
        Ok(Self {
            grpc: admission(maxima.grpc, HandshakeEnd::Bytes(PREFACE_BYTES), None),
            http: admission(maxima.http, HandshakeEnd::Request, Some(settings.http_idle_timeout)),
            admin: admission(maxima.admin, HandshakeEnd::Request, None),
            usage: has_usage.then(|| {
                admission(maxima.usage, HandshakeEnd::Request, Some(settings.http_idle_timeout))
            }),
            redis: maxima.redis,
        })
    }

    /// The listeners with their names in metrics.
    pub(crate) fn listeners(&self) -> impl Iterator<Item = (&'static str, &Admission)> {
        let always = [("grpc", &self.grpc), ("http", &self.http), ("admin", &self.admin)];
        always.into_iter().chain(self.usage.iter().map(|usage| ("usage", usage)))
    }
}

impl ConnectionMaxima {
    fn of(
        settings: &ListenerConnectionSettings,
        store: &StoreChoice,
        has_usage: bool,
        files: usize,
    ) -> Result<Self, CapacityError> {
        let free = files.saturating_sub(FILES_RESERVED);
        if free < FILES_RESERVED / 2 {
            return Err(CapacityError::TooFewFiles { files });
        }
        let redis = match store {
            StoreChoice::Memory => 0,
            StoreChoice::Redis(_) => REDIS_MIN.max(free / REDIS_DIVISOR),
        };
        let free = free - redis;
        let admin = ADMIN_MAX.min(free / ADMIN_DIVISOR);
        let usage = if has_usage { USAGE_MAX.min(free / USAGE_DIVISOR) } else { 0 };
        let http = settings.http_max_connections.map(usize::from);
        let http = http.unwrap_or_else(|| HTTP_MAX.min(free / HTTP_DIVISOR));
        let grpc = settings.grpc_max_connections.map(usize::from);
        let grpc = grpc.unwrap_or_else(|| {
            // At least one, so that too many HTTP connections cause the error below.
            let others = http.saturating_add(admin).saturating_add(usage);
            GRPC_MAX.min(free.saturating_sub(others)).max(1)
        });
        let connections = grpc.saturating_add(http).saturating_add(admin).saturating_add(usage);
        if connections > free {
            let others = FILES_RESERVED + redis;
            return Err(CapacityError::TooManyConnections {
                connections,
                admin,
                usage,
                others,
                files,
            });
        }
        Ok(Self { grpc, http, admin, usage, redis })
    }
}

/// Raises the soft limit of open files to the hard limit, and returns it. The default soft limit is low only for
/// programs that use `select(2)`, which this one does not.
fn raise_file_limit() -> io::Result<usize> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let files = match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            tracing::warn!(%error, soft, hard, "cannot raise the limit of open files");
            soft
        }
    };
    Ok(usize::try_from(files).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn settings(grpc: Option<usize>, http: Option<usize>) -> ListenerConnectionSettings {
        let number = |it: Option<usize>| it.map(|it| it.try_into().unwrap());
        ListenerConnectionSettings {
            grpc_max_connections: number(grpc),
            http_max_connections: number(http),
            max_pending_connections_per_address: 256,
            handshake_timeout: Duration::from_secs(10),
            http_idle_timeout: Duration::from_secs(75),
        }
    }

    #[test]
    fn descriptors_are_divided_among_the_listeners() {
        let of = |files| {
            ConnectionMaxima::of(&settings(None, None), &StoreChoice::Memory, false, files).unwrap()
        };
        assert_eq!(
            of(usize::MAX),
            ConnectionMaxima { grpc: 16_384, http: 1_024, admin: 128, usage: 0, redis: 0 }
        );
        assert_eq!(
            of(1_024),
            ConnectionMaxima { grpc: 672, http: 192, admin: 96, usage: 0, redis: 0 }
        );
        assert_eq!(
            of(256),
            ConnectionMaxima { grpc: 135, http: 38, admin: 19, usage: 0, redis: 0 }
        );
        assert_eq!(of(96), ConnectionMaxima { grpc: 23, http: 6, admin: 3, usage: 0, redis: 0 });
        let given =
            ConnectionMaxima::of(&settings(Some(10), Some(20)), &StoreChoice::Memory, false, 256)
                .unwrap();
        assert_eq!(given, ConnectionMaxima { grpc: 10, http: 20, admin: 19, usage: 0, redis: 0 });
    }

    #[test]
    fn the_usage_listener_takes_descriptors_from_grpc() {
        let of =
            |files| ConnectionMaxima::of(&settings(None, None), &StoreChoice::Memory, true, files);
        let maxima =
            ConnectionMaxima { grpc: 16_384, http: 1_024, admin: 128, usage: 256, redis: 0 };
        assert_eq!(of(usize::MAX).unwrap(), maxima);
        let maxima = ConnectionMaxima { grpc: 576, http: 192, admin: 96, usage: 96, redis: 0 };
        assert_eq!(of(1_024).unwrap(), maxima);
        let error =
            ConnectionMaxima::of(&settings(Some(673), None), &StoreChoice::Memory, true, 1_024);
        let text = "and 96 for the admin listener, 96 for the usage listener) and";
        assert!(error.unwrap_err().to_string().contains(text));
    }

    #[test]
    fn connections_to_redis_have_a_quarter() {
        let redis = StoreChoice::Redis("redis://localhost".parse().unwrap());
        let of = |files| ConnectionMaxima::of(&settings(None, None), &redis, false, files).unwrap();
        assert_eq!(
            of(65_536),
            ConnectionMaxima { grpc: 16_384, http: 1_024, admin: 128, usage: 0, redis: 16_368 }
        );
        assert_eq!(
            of(1_024),
            ConnectionMaxima { grpc: 504, http: 144, admin: 72, usage: 0, redis: 240 }
        );
        assert_eq!(of(96), ConnectionMaxima { grpc: 12, http: 3, admin: 1, usage: 0, redis: 16 });
    }

    #[test]
    fn too_few_descriptors_are_an_error() {
        let error = |settings, files| {
            ConnectionMaxima::of(&settings, &StoreChoice::Memory, false, files)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            error(settings(None, None), 95),
            "the limit of open files is 95, and at least 96 are needed: raise it (ulimit -n)"
        );
        let text = "connections (--grpc-max-connections, --http-max-connections and 96 for the admin listener) and \
                    64 other files, with those for Redis, exceed the limit of open files, 1024: raise it (ulimit -n) or allow fewer connections";
        assert_eq!(error(settings(Some(673), None), 1_024), format!("961 {text}"));
        assert_eq!(error(settings(None, Some(5_000)), 1_024), format!("5097 {text}"));
    }
}
