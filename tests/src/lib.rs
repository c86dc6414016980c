//! Test harness: starts the real server, Envoy, Redis and other real programs on free loopback ports, and stops them
//! by process id. There are no mocks: a test sees what a caller sees.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails"
)]

mod ask;
mod attack;
mod catalogue;
mod certificates;
mod clock;
mod collector;
pub mod counter_costs;
mod envoy;
mod fleet;
mod healthy;
mod held;
pub mod http2;
mod load;
mod markdown;
pub mod matching_costs;
mod process;
mod prometheus;
mod proxy;
mod redis;
mod sluicegate;
pub mod tools;
mod upstream;
mod window;
pub mod yaml;

pub use ask::{chain, hit, hits, request};
pub use attack::Attack;
pub use catalogue::Catalogue;
pub use certificates::{Authority, Issued};
pub use clock::ManualClock;
pub use collector::Collector;
pub use envoy::{Answer, Envoy, Listener, bootstrap, example_token, traced};
pub use fleet::Fleet;
pub use healthy::{HealthReport, HealthyClient};
pub use held::{HangingStore, HeldCall};
pub use http2::{Call, Caller, Frame, RawConnection, framed};
pub use load::{Asked, Load};
pub use markdown::fenced;
pub use process::{Finished, Process, finish, until};
pub use prometheus::Prometheus;
pub use proxy::{Mode, Proxy};
pub use redis::{Cluster, Migration, Redis, Sentinels, Setup};
pub use sluicegate::{Sluicegate, binary, free_port};
pub use upstream::Upstream;
pub use window::{long_window, long_windows, until_long_window_ends};
