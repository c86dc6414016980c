//! Where gRPC connections come from: TCP or a Unix socket, with or without TLS.
//!
//! tonic serves a [`Listener::incoming`] stream and knows nothing of what is here. The stream never
//! ends and never yields an error: what goes wrong with one connection, or for a while with all, is
//! no reason to stop serving the others.

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
    Admission, AdmissionBounds, ConnectionHandle, DropReason, Handshake, RequestBound,
};
pub(crate) use byte_budget::{ByteBudget, HeldBytes};
pub(crate) use capacity::{Capacity, CapacityError};
pub(crate) use connection::{Connection, Peer, Process};
pub(crate) use metrics::register_metrics;
pub(crate) use serve::serve;
pub(crate) use tls::{Tls, TlsError};
