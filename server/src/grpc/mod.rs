//! Envoy's `RateLimitService`, with health and reflection beside it.

mod decode;
mod encode;
mod in_flight;
mod rls;
mod server;
mod status;

pub(crate) use in_flight::InFlight;
pub(crate) use rls::Rls;
pub(crate) use server::{Health, Services};
