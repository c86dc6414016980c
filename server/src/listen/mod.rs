//! Where gRPC connections come from: TCP or a Unix socket, with or without TLS.
//!
//! tonic serves a [`Listener::incoming`] stream and knows nothing of what is here. The stream never
//! ends and never yields an error: what goes wrong with one connection, or for a while with all, is
//! no reason to stop serving the others.

mod accept;
mod address;
mod client_names;
mod connection;
#[cfg(test)]
mod tests;
mod tls;
mod unix;

pub(crate) use accept::Listener;
pub(crate) use address::{AddressError, ListenAddress};
pub(crate) use connection::{Connection, Peer, Process};
pub(crate) use tls::{Tls, TlsError, TlsSettings};
