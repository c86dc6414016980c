//! The Sluicegate process: edges and wiring. What decides lives in `sluicegate_core`, what counts in
//! `sluicegate_store`.

pub mod app;
mod grpc;
mod http;
pub mod limiter;
pub mod limits;
mod listen;
pub mod settings;
pub mod telemetry;
mod watch;
