//! The admin listener: what operators ask a running server, apart from what Envoy asks.

mod log;
mod open;
mod server;
mod service;
mod token;

pub(crate) use open::{AdminError, Open};
pub(crate) use server::Services;
pub(crate) use service::Admin;
pub(crate) use token::Token;
