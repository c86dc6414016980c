//! The gRPC listener: Envoy's `RateLimitService`, health and reflection.

mod bound;
mod byte_budgets;
mod decode;
mod executor;
mod frames;
mod health;
mod in_flight;
mod message;
mod response;
mod rls;
mod server;
mod status;
mod timeout;
mod tonic_server;

pub(crate) use decode::request as decode;
pub(crate) use health::ListenerHealth;
pub(crate) use in_flight::InFlight;
pub(crate) use response::{HeadersError, Responder};
pub(crate) use rls::{AnswerError, DecodeError, EncodedRequest, LARGE_REQUESTS_MAX, Rls};
pub(crate) use server::{Services, reflection, register_metrics};
pub(crate) use timeout::{caller_timeout, decision_timeout};
