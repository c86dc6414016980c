//! Where the service is.

use std::{fmt, str::FromStr};

use http::{Uri, uri::Scheme};
use thiserror::Error;

/// Where the service is: `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    text: String,
    secure: bool,
}

/// Why a text is not an [`Endpoint`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InvalidEndpoint {
    /// Without a scheme, or with another one.
    #[error("must start with http://, https:// or unix:")]
    Scheme,
    /// `unix:` without a path.
    #[error("must name a socket after unix:")]
    NoSocket,
    /// Paths belong to the methods of the service.
    #[error("must not have a path or query ({0})")]
    Path(String),
    /// Not a URL.
    #[error("must be a URL: {0}")]
    Url(#[from] http::uri::InvalidUri),
}

impl Endpoint {
    /// Whether the connection is encrypted.
    pub(crate) const fn is_secure(&self) -> bool {
        self.secure
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
            return Ok(Self { text: text.to_owned(), secure: false });
        }
        if !text.contains("://") {
            // `localhost:8081` is a URL too, but one that cannot be called.
            return Err(InvalidEndpoint::Scheme);
        }
        let url: Uri = text.parse()?;
        let secure = match url.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(InvalidEndpoint::Scheme),
        };
        match url.path_and_query().map(http::uri::PathAndQuery::as_str) {
            None | Some("" | "/") => Ok(Self { text: text.to_owned(), secure }),
            Some(path) => Err(InvalidEndpoint::Path(path.to_owned())),
        }
    }
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
    fn others_are_told_what_is_missing() {
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
