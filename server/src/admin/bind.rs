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
pub(crate) struct BoundAdminListener {
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
        is_resolved && !self.is_authenticated && self.address.is_open_to_network()
    }

    /// Binds the listener.
    ///
    /// # Errors
    /// The address cannot be bound, or the network could reach it without credentials.
    pub(crate) async fn bind(self) -> Result<BoundAdminListener, BindError> {
        let Self { address, tls, token, is_authenticated } = self;
        let listener = Listener::bind(&address).await.map_err(BindError::Listen)?;
        // The bound address, in which host names are resolved.
        if listener.local_address().is_open_to_network() {
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
        Ok(BoundAdminListener { listener, tls, token })
    }
}
