//! The admin listener: the service that operators call with `sluicectl`.

mod bind;
mod caller;
mod connection;
mod log_level;
mod message_stream;
mod names;
mod resets;
mod rules;
mod server;
mod service;
mod status;
mod store_calls;
mod tenant;
mod token;
mod top;

pub(crate) use bind::{AdminAccess, BindError, BoundAdminListener};
pub(crate) use names::CounterNames;
#[cfg(test)]
pub(crate) use resets::END_TIMEOUT as RESETS_END_TIMEOUT;
pub(crate) use resets::Resets;
pub(crate) use server::Services;
pub(crate) use service::Admin;
pub(crate) use status::StatusSources;
pub(crate) use token::{Token, TokenError};
