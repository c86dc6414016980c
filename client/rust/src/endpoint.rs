//! Endpoints of services.

use std::{fmt, net::IpAddr, str::FromStr};

use http::{Uri, uri::Scheme};
use thiserror::Error;

/// Address of a service: `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    text: String,
    secure: bool,
    local: bool,
}

/// Why a text is not an [`Endpoint`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InvalidEndpoint {
    /// The scheme is missing or unknown.
    #[error("must start with http://, https:// or unix:")]
    Scheme,
    /// `unix:` has no path.
    #[error("must name a socket after unix:")]
    NoSocket,
    /// The URL has a path or query.
    #[error("must not have a path or query ({0})")]
    Path(String),
    /// The text is not a URL.
    #[error("must be a URL: {0}")]
    Url(#[from] http::uri::InvalidUri),
}

impl Endpoint {
    /// Whether the connection is encrypted.
    pub(crate) const fn is_secure(&self) -> bool {
        self.secure
    }

    /// Whether the connection cannot be read on the network, because it is encrypted, or its endpoint is a unix socket
    /// or a loopback address.
    #[must_use]
    pub const fn is_private(&self) -> bool {
        self.secure || self.local
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            if path.trim_start_matches('/').is_empty() {
                return Err(InvalidEndpoint::NoSocket);
            }
            return Ok(Self { text: text.to_owned(), secure: false, local: true });
        }
        if !text.contains("://") {
            // `localhost:8081` parses as a URL with the scheme `localhost`.
            return Err(InvalidEndpoint::Scheme);
        }
        let url: Uri = text.parse()?;
        let secure = match url.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(InvalidEndpoint::Scheme),
        };
        let local = url.host().is_some_and(is_loopback);
        match url.path_and_query().map(http::uri::PathAndQuery::as_str) {
            None | Some("" | "/") => Ok(Self { text: text.to_owned(), secure, local }),
            Some(path) => Err(InvalidEndpoint::Path(path.to_owned())),
        }
    }
}

/// Whether a host is this machine, without a DNS lookup.
fn is_loopback(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        text.parse::<Endpoint>().unwrap_err().to_string()
    }

    #[test]
    fn urls_and_sockets_are_endpoints() {
        for (text, secure) in [
            ("http://127.0.0.1:8081", false),
            ("http://[::1]:8081/", false),
            ("https://limiter.example", true),
            ("HTTPS://limiter.example", true),
            ("unix:/run/sluicegate.sock", false),
            ("unix:///run/sluicegate.sock", false),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.is_secure(), endpoint.to_string().as_str()), (secure, text));
        }
    }

    #[test]
    fn only_tls_unix_sockets_and_loopback_are_private() {
        for (text, private) in [
            ("http://127.0.0.1:8082", true),
            ("http://127.8.9.1:8082", true),
            ("http://[::1]:8082", true),
            ("http://[::ffff:127.0.0.1]:8082", true),
            ("http://localhost:8082", true),
            ("http://LocalHost:8082", true),
            ("unix:/run/sluicegate.sock", true),
            ("https://limiter.example", true),
            ("http://limiter.example:8082", false),
            ("http://10.0.0.1:8082", false),
            ("http://[::]:8082", false),
            ("http://0.0.0.0:8082", false),
            ("http://localhost.example:8082", false),
            ("http://localhost@limiter.example:8082", false),
            ("http://127.0.0.1.example:8082", false),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().is_private(), private, "{text}");
        }
    }

    #[test]
    fn invalid_endpoints_are_rejected_with_the_reason() {
        let scheme = "must start with http://, https:// or unix:";
        assert_eq!(problem("localhost:8081"), scheme);
        assert_eq!(problem("/run/sluicegate.sock"), scheme);
        assert_eq!(problem("ftp://localhost"), scheme);
        assert_eq!(problem(""), scheme);
        assert_eq!(problem("unix:"), "must name a socket after unix:");
        assert_eq!(problem("unix:///"), "must name a socket after unix:");
        assert_eq!(problem("http://localhost/json"), "must not have a path or query (/json)");
        assert_eq!(problem("http://a b"), "must be a URL: invalid uri character");
    }
}
