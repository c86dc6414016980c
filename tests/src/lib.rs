//! Starts the real server and its real neighbours on free ports of the loopback, and stops them by
//! process id. Nothing is mocked: what a test sees is what a caller would.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod ask;
mod certificates;
mod envoy;
mod http2;
mod process;
mod proxy;
mod redis;
mod sluicegate;
mod upstream;

pub use ask::{hit, hits};
pub use certificates::{Authority, Issued};
pub use envoy::{Answer, Envoy, Listener, bootstrap};
pub use http2::{Call, Caller, Frame, RawConnection};
pub use process::{Finished, Process, finish, until};
pub use proxy::{Mode, Proxy};
pub use redis::{Cluster, Migration, Redis, Sentinels, Setup};
pub use sluicegate::{Sluicegate, binary, free_port};
pub use upstream::Upstream;
