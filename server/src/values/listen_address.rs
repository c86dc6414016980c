//! The address of a listener, in the syntax of the command line.

use std::{
    fmt,
    net::{Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
};

use thiserror::Error;

const UNIX: &str = "unix:";

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// `HOST:PORT`. A host name is resolved when the address is bound.
    Tcp(String),
    /// `unix:PATH`.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Whether other machines can connect to this address. True for host names, which are not resolved.
    pub(crate) fn is_open_to_network(&self) -> bool {
        match self {
            Self::Unix(_) => false,
            Self::Tcp(address) => address
                .parse::<SocketAddr>()
                .map_or(true, |address| !address.ip().to_canonical().is_loopback()),
        }
    }
}

/// Why a text is not the address of a listener.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AddressError {
    /// The text has neither form.
    #[error("not an address: expected HOST:PORT or unix:PATH")]
    Form,
    /// There is no host before the port.
    #[error("no host: write 0.0.0.0:{0} or [::]:{0} to listen on every address")]
    NoHost(u16),
    /// The host has invalid characters, or colons without being an IPv6 address in brackets.
    #[error("not a host: {0:?} (write an IPv6 address in brackets)")]
    Host(String),
    /// The part after the last colon is not a port.
    #[error("not a port: {0:?} (0 to 65535)")]
    Port(String),
    /// There is no path after `unix:`.
    #[error("no path after unix:")]
    NoPath,
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix(UNIX) {
            Some(path) => unix(path),
            None => tcp(text),
        }
    }
}

fn unix(path: &str) -> Result<ListenAddress, AddressError> {
    // gRPC also writes unix:///run/x.sock.
    let path = if path.starts_with("///") { path.trim_start_matches("//") } else { path };
    if path.is_empty() {
        return Err(AddressError::NoPath);
    }
    Ok(ListenAddress::Unix(Path::new(path).to_owned()))
}

fn tcp(text: &str) -> Result<ListenAddress, AddressError> {
    let (host, port) = text.rsplit_once(':').ok_or(AddressError::Form)?;
    let Ok(number) = port.parse::<u16>() else {
        return Err(AddressError::Port(port.to_owned()));
    };
    if host.is_empty() {
        return Err(AddressError::NoHost(number));
    }
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match v6 {
        Some(host) => host.parse::<Ipv6Addr>().is_ok(),
        None => !host.contains([':', '/', '[', ']', ' ']),
    };
    if !is_host {
        return Err(AddressError::Host(host.to_owned()));
    }
    Ok(ListenAddress::Tcp(text.to_owned()))
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => out.write_str(address),
            Self::Unix(path) => write!(out, "{UNIX}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AddressError, ListenAddress};

    fn tcp(text: &str) -> ListenAddress {
        ListenAddress::Tcp(text.to_owned())
    }

    #[test]
    fn addresses_are_displayed_as_they_were_parsed() {
        for text in [
            "127.0.0.1:8081",
            "[::1]:8081",
            "localhost:0",
            "unix:/run/sluicegate.sock",
            "unix:a.sock",
        ] {
            let address: ListenAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        assert_eq!("localhost:1".parse(), Ok(tcp("localhost:1")));
        assert_eq!("unix:///run/a".parse(), Ok(ListenAddress::Unix("/run/a".into())));
    }

    #[test]
    fn only_loopback_and_sockets_are_closed_to_the_network() {
        for (address, open) in [
            ("127.0.0.1:1", false),
            ("127.1.2.3:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("unix:/run/admin.sock", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("10.0.0.1:1", true),
            ("[fe80::1]:1", true),
            ("localhost:1", true),
        ] {
            let parsed: ListenAddress = address.parse().unwrap();
            assert_eq!(parsed.is_open_to_network(), open, "{address}");
        }
    }

    #[test]
    fn errors_name_the_mistake() {
        let cases = [
            ("", "not an address: expected HOST:PORT or unix:PATH"),
            ("/run/sluicegate.sock", "not an address: expected HOST:PORT or unix:PATH"),
            ("unix:", "no path after unix:"),
            (":8081", "no host: write 0.0.0.0:8081 or [::]:8081 to listen on every address"),
            ("localhost:", "not a port: \"\" (0 to 65535)"),
            ("localhost:65536", "not a port: \"65536\" (0 to 65535)"),
            ("::1:8081", "not a host: \"::1\" (write an IPv6 address in brackets)"),
            ("[localhost]:1", "not a host: \"[localhost]\" (write an IPv6 address in brackets)"),
            (
                "http://localhost:1",
                "not a host: \"http://localhost\" (write an IPv6 address in brackets)",
            ),
        ];
        for (text, message) in cases {
            let parsed: Result<ListenAddress, AddressError> = text.parse();
            assert_eq!(parsed.unwrap_err().to_string(), message, "{text}");
        }
    }
}
