//! The Sluicegate process: edges and wiring. What decides lives in `sluicegate_core`, what counts in
//! `sluicegate_store`.

// A call to Redis is a deep nest of futures, most of them of the client library.
#![recursion_limit = "256"]

mod admin;
pub mod app;
pub mod commands;
mod decision;
mod explain;
mod grpc;
mod http;
pub mod limiter;
mod limits;
mod listen;
mod offload;
mod reloaded;
mod secret;
pub mod settings;
mod signals;
pub mod telemetry;
pub mod values;
mod watch;
