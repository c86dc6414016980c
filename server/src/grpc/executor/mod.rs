//! The executor of gRPC calls: runs the calls of a connection in that connection's task, and rate limit requests without
//! tonic.
//!
//! # Why
//!
//! tonic's server starts a task for each call, wakes another core for it, and boxes the service, its future and the
//! body several times. For a decision from memory that costs more than the decision. This module serves nearly every
//! call, a rate limit request of one plain message, with none of that. Whatever else callers send goes to tonic's
//! generated services.
//!
//! | file | what it is |
//! |---|---|
//! | `connection` | one HTTP/2 connection of hyper: its bounds, deadlines and poll loop |
//! | `tasks` | the calls in progress of a connection, which hyper hands to [`tasks::CallExecutor`] |
//! | `waker` | one waker for all that a connection polls |
//! | `calls` | from an HTTP/2 stream to an answer |
//! | `body` | the body of an answer |
//!
//! # What differs from tonic's server
//!
//! - **One task a connection.** Calls of a connection are polled in turn, in the connection's task, 64 at most between two
//!   writes, so a connection uses one core at a time. tonic has a task for each call. A call that panics resets its own
//!   stream only, with both.
//! - **Rate limit requests are not decoded by tonic's codec.** The body must be one message without compression.
//!   A `grpc-encoding` other than `identity` is answered UNIMPLEMENTED with `grpc-accept-encoding: identity`, a second
//!   message UNIMPLEMENTED, no message or a broken one INTERNAL, and a body that breaks off CANCELLED. tonic decodes every
//!   message of the body, and answers the first.
//! - **A message beyond a bound is answered OVER_LIMIT,** and the rest of it is read and dropped. tonic answers
//!   OUT_OF_RANGE.
//! - **`grpc-timeout` is applied to rate limit requests,** from the arrival of the headers to the answer, and answered
//!   CANCELLED as tonic's server does. Calls to health and reflection have `--grpc-message-timeout` for their first
//!   message and answer, and no deadline of the caller.
//! - **No layers, interceptors, extensions or trailers** of a rate limit request are looked at, and its metadata only for
//!   `grpc-timeout`, `grpc-encoding` and the trace context.
//! - **Bounds on memory, time and streams** of a connection and of its calls, and the answers to a crowded server, are
//!   those of docs/bounds.md. tonic's server has HTTP/2's alone.
//!
//! # Measuring it again
//!
//! The feature `tonic-server` of the crate serves rate limit requests with tonic's generated service on hyper's
//! executor instead ([`super::tonic_server`]). When tonic is updated:
//!
//! 1. `tests/over-tonic` runs the API tests with that feature: both ways must give the same answers.
//! 2. `tests/bench/instructions` counts the steps of a decision, and the benchmark of docs/performance.md compares a
//!    release build with the feature and one without. When the difference is below the noise, this module can go.

mod body;
pub(super) mod calls;
pub(super) mod connection;
mod tasks;
mod waker;
