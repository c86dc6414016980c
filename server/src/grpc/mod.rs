//! Envoy's `RateLimitService`, with health and reflection beside it.

mod decode;
mod encode;
mod in_flight;
mod rls;
mod server;
mod status;
mod timeout;

pub(crate) use in_flight::InFlight;
pub(crate) use rls::{AnswerError, Rls};
pub(crate) use server::{Health, Services};
