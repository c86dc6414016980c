//! The Redis servers as a URL.

use std::{fmt, str::FromStr};

use percent_encoding::percent_decode_str;
use thiserror::Error;

/// Port of a Redis server in a URL without one.
const REDIS_PORT: u16 = 6379;

/// Port of a sentinel in a URL without one.
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

/// The kind of a Redis installation, and the addresses at which it is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deployment {
    /// One server.
    Single(Address),
    /// A Redis Cluster. Any of these nodes lists the others.
    Cluster(Vec<Address>),
    /// A primary and its Redis replicas, watched by sentinels.
    Sentinel {
        /// Addresses of the sentinels.
        sentinels: Vec<Address>,
        /// Name of the primary at the sentinels.
        name: String,
    },
}

/// A parsed URL of Redis.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl {
    /// The servers.
    pub deployment: Deployment,
    /// Whether connections use TLS.
    pub tls: bool,
    /// ACL user.
    pub username: Option<String>,
    /// Password of that user, or of the server.
    pub password: Option<String>,
    /// Number of the database; 0 for a cluster.
    pub database: u8,
}

/// Does not show the password.
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

/// Why a URL is not valid. Contains no part of the URL: parts of an unescaped password, or of one without a host after
/// it, can be misparsed as host, port or database, and must not be logged.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum UrlError {
    /// Not one of the known schemes.
    #[error(
        "begins with none of redis://, rediss://, redis-cluster://, rediss-cluster://, redis-sentinel://, rediss-sentinel://"
    )]
    Scheme,
    /// No host, or an empty one.
    #[error("a host is missing")]
    NoHost,
    /// Several hosts for a single server.
    #[error("{0} takes one host; use redis-cluster:// or redis-sentinel:// for several")]
    SeveralHosts(&'static str),
    /// A port is not a number.
    #[error("a port is not a number from 0 to 65535")]
    Port,
    /// The database is not a number.
    #[error("the database is not a number from 0 to 255")]
    Database,
    /// An `@` after a `/`: the `/` is most likely a character of the password.
    #[error("there is a / before the last @; in a user or password write / as %2F")]
    Unescaped,
    /// A cluster has one database.
    #[error("Redis Cluster has no database but 0")]
    ClusterDatabase,
    /// No name of a primary: sentinels may watch several.
    #[error("the primary's name is missing: redis-sentinel://host:26379/NAME")]
    NoPrimaryName,
    /// The escapes of user or password are not UTF-8.
    #[error("user or password is not UTF-8")]
    NotUtf8,
}

impl FromStr for RedisUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') {
            return Err(UrlError::Unescaped);
        }
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (username, password) = parse_credentials(user)?;
        let hosts = |default_port| parse_addresses(hosts, default_port);
        let (tls, deployment, database) = match scheme {
            "redis" => (false, single_host(hosts(REDIS_PORT)?, "redis://")?, path),
            "rediss" => (true, single_host(hosts(REDIS_PORT)?, "rediss://")?, path),
            "redis-cluster" => (false, Deployment::Cluster(hosts(REDIS_PORT)?), path),
            "rediss-cluster" => (true, Deployment::Cluster(hosts(REDIS_PORT)?), path),
            "redis-sentinel" | "rediss-sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                if name.is_empty() {
                    return Err(UrlError::NoPrimaryName);
                }
                let sentinels = hosts(SENTINEL_PORT)?;
                let deployment = Deployment::Sentinel { sentinels, name: name.to_owned() };
                (scheme == "rediss-sentinel", deployment, database)
            }
            _ => return Err(UrlError::Scheme),
        };
        let database = parse_database(database)?;
        if database > 0 && matches!(deployment, Deployment::Cluster(_)) {
            return Err(UrlError::ClusterDatabase);
        }
        Ok(Self { deployment, tls, username, password, database })
    }
}

fn parse_database(database: &str) -> Result<u8, UrlError> {
    if database.is_empty() {
        return Ok(0);
    }
    database.parse().map_err(|_| UrlError::Database)
}

/// `user:password`, `:password` or `user`, with `%` escapes.
fn parse_credentials(text: &str) -> Result<(Option<String>, Option<String>), UrlError> {
    let decode = |text: &str| {
        let text = percent_decode_str(text).decode_utf8().map_err(|_| UrlError::NotUtf8)?;
        Ok((!text.is_empty()).then(|| text.into_owned()))
    };
    let (user, password) = text.split_once(':').unwrap_or((text, ""));
    Ok((decode(user)?, decode(password)?))
}

fn single_host(mut hosts: Vec<Address>, scheme: &'static str) -> Result<Deployment, UrlError> {
    match (hosts.pop(), hosts.is_empty()) {
        (Some(host), true) => Ok(Deployment::Single(host)),
        (None, _) => Err(UrlError::NoHost),
        (Some(_), false) => Err(UrlError::SeveralHosts(scheme)),
    }
}

fn parse_addresses(hosts: &str, default_port: u16) -> Result<Vec<Address>, UrlError> {
    hosts.split(',').map(|host| parse_address(host.trim(), default_port)).collect()
}

/// `host`, `host:port`, `[v6]` or `[v6]:port`.
fn parse_address(text: &str, default_port: u16) -> Result<Address, UrlError> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        // The last colon, because an IPv6 address may have no brackets.
        None => match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(UrlError::NoHost);
    }
    let port = port.map_or(Ok(default_port), |port| port.parse().map_err(|_| UrlError::Port))?;
    Ok(Address { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_contain_no_part_of_a_password() {
        for (url, error) in [
            ("secret", UrlError::Scheme),
            ("http://:secret@host", UrlError::Scheme),
            ("redis://user:secret", UrlError::Port),
            ("redis://user:se/cret@host", UrlError::Unescaped),
            ("redis://user:12/secret@host", UrlError::Unescaped),
            ("redis://:secret@host:secret", UrlError::Port),
            ("redis://:secret@", UrlError::NoHost),
            ("redis://:12/secret", UrlError::NoHost),
            ("redis://user:12/secret", UrlError::Database),
            ("redis://:secret@host,secret", UrlError::SeveralHosts("redis://")),
            ("redis://:secret%ff@host", UrlError::NotUtf8),
            ("redis-cluster://:secret@host/1", UrlError::ClusterDatabase),
            ("redis-cluster://user:se/cret@host", UrlError::Unescaped),
            ("redis-sentinel://:secret@host", UrlError::NoPrimaryName),
            ("redis-sentinel://user:12/secret@host/main", UrlError::Unescaped),
            ("redis-sentinel://:secret@host/main/secret", UrlError::Database),
        ] {
            let found = url.parse::<RedisUrl>().unwrap_err();
            assert_eq!(found, error, "{url}");
            for shown in [found.to_string(), format!("{found:?}")] {
                assert!(!shown.contains("secret") && !shown.contains("cret"), "{url}: {shown}");
            }
        }
    }

    #[test]
    fn escaped_password_is_decoded_and_not_shown() {
        let url: RedisUrl = "redis://user:se%2Fcr@et@host/3".parse().unwrap();
        assert_eq!(url.password.as_deref(), Some("se/cr@et"));
        assert_eq!((url.username.as_deref(), url.database), (Some("user"), 3));
        assert!(!format!("{url:?}").contains("se/cr"));
    }
}
