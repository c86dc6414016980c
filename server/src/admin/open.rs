//! Opening the admin listener, for nobody but those who may come.

use std::{io, net::SocketAddr};

use thiserror::Error;

use super::{Token, token::TokenError};
use crate::{
    listen::{ListenAddress, Listener, Tls, TlsError, TlsSettings},
    settings::{AdminListen, AdminSettings},
};

/// Why there is no admin listener.
#[derive(Debug, Error)]
pub enum AdminError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: ListenAddress,
        /// What the system says.
        source: io::Error,
    },
    /// Anybody on the network could come.
    #[error(
        "--admin-listen {address} is open to the network: set --admin-token-file, or --admin-tls-client-ca, or listen on 127.0.0.1 or a unix socket"
    )]
    Unguarded {
        /// The address.
        address: ListenAddress,
    },
    /// The token cannot be used.
    #[error("--admin-token-file")]
    Token(#[from] TokenError),
    /// The TLS files cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// An admin listener that is open, and who may come.
pub(crate) struct Open {
    /// Where connections come from.
    pub(crate) listener: Listener,
    /// What they are encrypted with.
    pub(crate) tls: Option<Tls>,
    /// What callers must show.
    pub(crate) token: Option<Token>,
}

impl Open {
    /// Opens the listener that the settings ask for, if they ask for one.
    ///
    /// # Errors
    /// It cannot be opened, or would be open to everybody.
    pub(crate) async fn new(settings: &AdminSettings) -> Result<Option<Self>, AdminError> {
        let AdminListen::At(address) = &settings.admin_listen else { return Ok(None) };
        let token = settings.admin_token_file.as_deref().map(Token::load).transpose()?;
        let tls = load_tls(settings)?;
        let cannot = |source| AdminError::Listen { address: address.clone(), source };
        let listener = Listener::bind(address).await.map_err(cannot)?;
        // What was bound, not what was asked for: names are looked up by now.
        if is_open_to_the_network(&listener.local_address()) {
            if token.is_none() && settings.admin_tls_client_ca.is_none() {
                return Err(AdminError::Unguarded { address: address.clone() });
            }
            if tls.is_none() {
                tracing::warn!(
                    %address,
                    "the admin token crosses the network unencrypted; set --admin-tls-cert"
                );
            }
        }
        Ok(Some(Self { listener, tls, token }))
    }
}

fn load_tls(settings: &AdminSettings) -> Result<Option<Tls>, TlsError> {
    let tls = TlsSettings::given(
        settings.admin_tls_cert.clone(),
        settings.admin_tls_key.clone(),
        settings.admin_tls_client_ca.clone(),
        settings.admin_tls_client_names.clone(),
    );
    tls.map(Tls::load).transpose()
}

/// Whether others than this machine can connect to a bound address.
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
