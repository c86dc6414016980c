//! Binds the admin listener, unless the network could reach it without credentials.

use std::{io, net::SocketAddr};

use super::Token;
use crate::{
    listen::{Listener, Tls},
    values::ListenAddress,
};

/// The address of the admin listener, and the credentials that it requires.
pub(crate) struct AdminAccess {
    /// The configured address.
    pub(crate) address: ListenAddress,
    /// TLS of the listener.
    pub(crate) tls: Option<Tls>,
    /// The token that callers must send.
    pub(crate) token: Option<Token>,
    /// Whether callers need a token or a client certificate.
    pub(crate) is_authenticated: bool,
}

/// The bound admin listener, and the credentials that it requires.
pub(crate) struct BoundListener {
    /// The listener.
    pub(crate) listener: Listener,
    /// TLS of the listener.
    pub(crate) tls: Option<Tls>,
    /// The token that callers must send.
    pub(crate) token: Option<Token>,
}

/// Why the admin listener cannot be bound.
#[derive(Debug)]
pub(crate) enum BindError {
    /// The address cannot be bound.
    Listen(io::Error),
    /// The network could reach the listener without credentials.
    Unprotected,
}

impl AdminAccess {
    /// Whether the network could reach the listener without credentials. Returns false for host names, which are not
    /// resolved yet.
    pub(crate) fn is_unprotected(&self) -> bool {
        let is_resolved = match &self.address {
            ListenAddress::Unix(_) => true,
            ListenAddress::Tcp(address) => address.parse::<SocketAddr>().is_ok(),
        };
        is_resolved && !self.is_authenticated && is_open_to_the_network(&self.address)
    }

    /// Binds the listener.
    ///
    /// # Errors
    /// The address cannot be bound, or the network could reach it without credentials.
    pub(crate) async fn bind(self) -> Result<BoundListener, BindError> {
        let Self { address, tls, token, is_authenticated } = self;
        let listener = Listener::bind(&address).await.map_err(BindError::Listen)?;
        // The bound address, in which host names are resolved.
        if is_open_to_the_network(&listener.local_address()) {
            if !is_authenticated {
                return Err(BindError::Unprotected);
            }
            if tls.is_none() {
                tracing::warn!(
                    %address,
                    "the admin token crosses the network unencrypted; set --admin-tls-cert"
                );
            }
        }
        Ok(BoundListener { listener, tls, token })
    }
}

/// Whether other machines can connect to a bound address.
fn is_open_to_the_network(bound: &ListenAddress) -> bool {
    match bound {
        ListenAddress::Unix(_) => false,
        ListenAddress::Tcp(address) => address
            .parse::<SocketAddr>()
            .map_or(true, |address| !address.ip().to_canonical().is_loopback()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_loopback_and_sockets_are_closed_to_the_network() {
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
        ] {
            assert_eq!(is_open_to_the_network(&address.parse().unwrap()), open, "{address}");
        }
    }
}
