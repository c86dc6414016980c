//! A client for rate limit services with Envoy's API.
//!
//! The service is Sluicegate or any other with Envoy's `RateLimitService`. The limits are configured in the service.
//! A caller sends a domain and descriptors:
//!
//! ```no_run
//! use sluicegate_client::{Check, Client};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Client::connect("http://127.0.0.1:8081").await?;
//!
//! let verdict = limiter
//!     .check(Check::new("api").descriptor([("tenant", "acme"), ("user", "bob")]).hits(3))
//!     .await?;
//! if !verdict.allowed {
//!     println!("retry after {:?}", verdict.retry_after());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Failed calls
//!
//! If a call fails, the caller decides whether its request passes; Envoy lets it pass by
//! default. [`CheckError`] lists the kinds of failures.
//!
//! The client never retries: a failed call may have been charged, and a second one would be charged again.
//!
//! # Types
//!
//! - [`Client`], and [`Builder`] for TLS, deadlines and lazy connections
//! - [`Check`], [`Descriptor`] and [`LimitOverride`]: the request
//! - [`Verdict`] and [`Status`]: the answer
//! - [`Client::acquire`], [`Pacer`] and [`backoff()`]: waiting until a limit allows
//! - `tower` (feature `tower`): middleware for axum, tonic and other servers
//! - [`AdminClient`]: Sluicegate's admin service: explanations, counters and resets, top counters, status of the server

mod acquire;
mod admin;
mod backoff;
mod check;
mod client;
mod connect;
mod endpoint;
mod error;
mod pacer;
#[cfg(feature = "tower")]
pub mod tower;
mod verdict;

pub use acquire::AcquireError;
pub use admin::{AdminClient, InvalidToken, ResponseStream};
pub use backoff::{backoff, parse_retry_after};
pub use check::{Check, Descriptor, LimitOverride};
pub use client::Client;
pub use connect::Builder;
pub use endpoint::{Endpoint, InvalidEndpoint};
pub use error::{CheckError, ConnectError, describe_error};
pub use pacer::{InvalidWeights, Pacer, PacerBuilder};
/// gRPC code of [`CheckError::Other`].
pub use tonic::Code as GrpcCode;
pub use verdict::{Code, Header, Limit, Status, Unit, Verdict};

/// Compiles the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
