//! The Sluicegate process: listeners, settings and telemetry around `sluicegate_core`, which decides, and
//! `sluicegate_store`, which stores counters.

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
mod usage;
pub mod values;
mod watch;
