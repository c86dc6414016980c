//! The admin listener: what operators ask a running server, apart from what Envoy asks.

mod caller;
mod connection;
mod log;
mod message_stream;
mod names;
mod open;
mod resets;
mod rules;
mod server;
mod service;
mod status;
mod store;
mod tenant;
mod token;
mod top;

pub(crate) use names::Names;
pub(crate) use open::{AdminAccess, BindError, BoundListener};
#[cfg(test)]
pub(crate) use resets::END_TIMEOUT as RESETS_END_TIMEOUT;
pub(crate) use resets::Resets;
pub(crate) use server::Services;
pub(crate) use service::Admin;
pub(crate) use status::StatusSources;
pub(crate) use token::{Token, TokenError};
