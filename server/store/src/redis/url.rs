//! Where Redis is, as one address line.

use std::{fmt, str::FromStr};

use percent_encoding::percent_decode_str;
use thiserror::Error;

/// Port of a Redis server that names none.
const REDIS_PORT: u16 = 6379;

/// Port of a sentinel that names none.
const SENTINEL_PORT: u16 = 26379;

/// Host and port of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Name or IP address.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// How the servers of an installation find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deployment {
    /// One server.
    Single(Address),
    /// Redis Cluster, found through any of these nodes.
    Cluster(Vec<Address>),
    /// A server and its replicas, of which sentinels choose the primary.
    Sentinel {
        /// Where to ask.
        sentinels: Vec<Address>,
        /// The name under which they watch the primary.
        name: String,
    },
}

/// What an address line says.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// Which servers.
    pub deployment: Deployment,
    /// Whether to speak TLS.
    pub tls: bool,
    /// ACL user.
    pub username: Option<String>,
    /// Password of that user, or of the server.
    pub password: Option<String>,
    /// Number of the database; a cluster has only 0.
    pub database: u8,
}

/// Without the password.
impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { deployment, tls, username, password, database } = self;
        f.debug_struct("RedisUrl")
            .field("deployment", deployment)
            .field("tls", tls)
            .field("username", username)
            .field("password", &password.as_ref().map(|_| "…"))
            .field("database", database)
            .finish()
    }
}

/// What is wrong with an address line. The line itself is not repeated: it may hold a password.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum UrlError {
    /// Not one of the known schemes.
    #[error(
        "begins with none of redis://, rediss://, redis-cluster://, rediss-cluster://, redis-sentinel://, rediss-sentinel://"
    )]
    Scheme,
    /// No host, or an empty one.
    #[error("a host is missing")]
    NoHost,
    /// Several hosts where one is meant.
    #[error("{0} takes one host; use redis-cluster:// or redis-sentinel:// for several")]
    SeveralHosts(&'static str),
    /// Not a port.
    #[error("{0:?} is no port")]
    Port(String),
    /// Not a database number.
    #[error("{0:?} is no database number (0 to 255)")]
    Database(String),
    /// A cluster has one database.
    #[error("Redis Cluster has no database but 0")]
    ClusterDatabase,
    /// The sentinels watch several primaries.
    #[error("the primary's name is missing: redis-sentinel://host:26379/NAME")]
    NoName,
    /// Escapes that are not UTF-8.
    #[error("user or password is not UTF-8")]
    NotText,
}

impl FromStr for RedisUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (username, password) = credentials(user)?;
        let hosts = |port| addresses(hosts, port);
        let (tls, deployment, database) = match scheme {
            "redis" => (false, single(hosts(REDIS_PORT)?, "redis://")?, path),
            "rediss" => (true, single(hosts(REDIS_PORT)?, "rediss://")?, path),
            "redis-cluster" => (false, Deployment::Cluster(hosts(REDIS_PORT)?), path),
            "rediss-cluster" => (true, Deployment::Cluster(hosts(REDIS_PORT)?), path),
            "redis-sentinel" | "rediss-sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err(UrlError::NoName);
                }
                let sentinels = hosts(SENTINEL_PORT)?;
                let deployment = Deployment::Sentinel { sentinels, name: name.to_owned() };
                (scheme == "rediss-sentinel", deployment, database)
            }
            _ => return Err(UrlError::Scheme),
        };
        let database = number(database)?;
        if database > 0 && matches!(deployment, Deployment::Cluster(_)) {
            return Err(UrlError::ClusterDatabase);
        }
        Ok(Self { deployment, tls, username, password, database })
    }
}

fn number(database: &str) -> Result<u8, UrlError> {
    if database.is_empty() {
        return Ok(0);
    }
    database.parse().map_err(|_| UrlError::Database(database.to_owned()))
}

/// `user:password`, `:password` or `user`, with `%` escapes.
fn credentials(text: &str) -> Result<(Option<String>, Option<String>), UrlError> {
    let decode = |text: &str| {
        let text = percent_decode_str(text).decode_utf8().map_err(|_| UrlError::NotText)?;
        Ok((!text.is_empty()).then(|| text.into_owned()))
    };
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    Ok((decode(user)?, decode(password)?))
}

fn single(mut hosts: Vec<Address>, scheme: &'static str) -> Result<Deployment, UrlError> {
    match (hosts.pop(), hosts.is_empty()) {
        (Some(host), true) => Ok(Deployment::Single(host)),
        (None, _) => Err(UrlError::NoHost),
        (Some(_), false) => Err(UrlError::SeveralHosts(scheme)),
    }
}

fn addresses(hosts: &str, default_port: u16) -> Result<Vec<Address>, UrlError> {
    hosts.split(',').map(|host| address(host.trim(), default_port)).collect()
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
fn address(text: &str, default_port: u16) -> Result<Address, UrlError> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        // From the right: servers name IPv6 addresses without brackets.
        None => match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(UrlError::NoHost);
    }
    let port = port.map_or(Ok(default_port), |port| {
        port.parse().map_err(|_| UrlError::Port(port.to_owned()))
    })?;
    Ok(Address { host: host.to_owned(), port })
}
