//! Asks a rate limit service whether a request may pass.
//!
//! The service is Sluicegate or any other that speaks Envoy's `RateLimitService`. What the limits are is
//! the service's affair; a caller names a domain and describes what it is about to do:
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
//!     println!("come back in {:?}", verdict.retry_after());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # What the caller decides
//!
//! A call that fails is no verdict. Whether the request then passes is for the caller to say; Envoy lets
//! it pass unless told otherwise. [`CheckError`] tells apart what is worth telling apart.
//!
//! Nothing is ever retried. A call that failed may have been counted, and a second one would count again.
//!
//! # Where to look
//!
//! - [`Client`], and [`Builder`] for TLS, time limits and starting before the service does
//! - [`Check`], [`Descriptor`] and [`LimitOverride`]: the question
//! - [`Verdict`] and [`Status`]: the answer
//! - [`AdminClient`]: Sluicegate's admin listener: why a request is answered as it is, who is being limited, counters and
//!   their resets, how the server does
//! - `cli`, with the feature of that name (on by default): the command line of `sluicectl`

mod admin;
mod check;
#[cfg(feature = "cli")]
pub mod cli;
mod client;
mod connect;
mod endpoint;
mod error;
mod verdict;

pub use admin::{AdminClient, Answers, InvalidToken};
pub use check::{Check, Descriptor, LimitOverride};
pub use client::Client;
pub use connect::Builder;
pub use endpoint::{Endpoint, InvalidEndpoint};
pub use error::{CheckError, ConnectError};
/// The code of a call that failed, in [`CheckError::Other`].
pub use tonic::Code as GrpcCode;
pub use verdict::{Code, Header, Limit, Status, Unit, Verdict};
