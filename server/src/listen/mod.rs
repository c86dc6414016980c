//! Listeners: TCP and Unix sockets, TLS, and the admission of connections.
//!
//! The gRPC, HTTP, admin and usage listeners each serve a [`Listener::incoming`] stream of connections. It has no end and no
//! errors, so that failed connections do not affect others.

mod accept;
mod admission;
mod byte_budget;
mod capacity;
mod client_names;
mod connection;
mod metrics;
mod serve;
#[cfg(test)]
mod tests;
mod tls;
mod unix;

pub(crate) use accept::Listener;
pub(crate) use admission::{
    Admission, AdmissionBounds, ConnectionHandle, DropReason, HandshakeEnd, ListenerBound,
};
pub(crate) use byte_budget::{ByteBudget, HeldBytes};
pub(crate) use capacity::{Capacity, CapacityError};
pub(crate) use connection::{Connection, Peer, PeerProcess};
pub(crate) use metrics::register_metrics;
pub(crate) use serve::serve;
pub(crate) use tls::{Alpn, Tls, TlsError};
