//! The executor of gRPC calls. It runs the calls of a connection in the connection's task, and rate limit requests
//! without tonic.
//!
//! # Why
//!
//! tonic's server starts a task for each call, wakes another core for it, and boxes the service, its future and the
//! body several times. For a decision from memory that costs more than the decision. This module avoids it for nearly
//! all calls: rate limit requests of one message without compression. Other rate limit calls are answered with an error
//! status. Calls to health and reflection go to tonic's generated services.
//!
//! | file | content |
//! |---|---|
//! | `connection` | one HTTP/2 connection of hyper: its bounds, deadlines and poll loop |
//! | `in_progress` | the calls in progress of a connection, which hyper passes to [`in_progress::CallExecutor`] |
//! | `waker` | one waker for everything that a connection polls |
//! | `calls` | from the HTTP/2 stream of a call to its response |
//! | `body` | the body of a response |
//!
//! # What differs from tonic's server
//!
//! - **One task a connection.** Calls of a connection are polled in turn, in the connection's task, at most 64 new and
//!   64 woken ones between two writes, so a connection uses one core at a time. tonic has a task for each call. A call
//!   that panics resets its own stream only, with both.
//! - **Rate limit requests are not decoded by tonic's codec.** The body must be one message without compression. A
//!   `grpc-encoding` other than `identity` is answered UNIMPLEMENTED with `grpc-accept-encoding: identity`, a second
//!   message UNIMPLEMENTED, a missing or malformed message INTERNAL, and a body whose stream ends early CANCELLED.
//!   tonic decodes all messages of the body, and answers the first.
//! - **A message that exceeds a bound is answered OVER_LIMIT,** and the rest of it is read and dropped. tonic answers
//!   OUT_OF_RANGE.
//! - **`grpc-timeout` is applied to rate limit requests,** from the arrival of the headers to the answer, and answered
//!   CANCELLED as tonic's server does. Calls to health and reflection have `--grpc-message-timeout` for their first
//!   message and answer, and no deadline of the caller.
//! - **No layers, interceptors, extensions or trailers** of a rate limit request are looked at, and its metadata only
//!   for `grpc-timeout`, `grpc-encoding` and the trace context.
//! - **Bounds on memory, time and streams** of a connection and of its calls, and the answers beyond them, are those of
//!   docs/bounds.md. tonic's server has only those of HTTP/2.
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
mod in_progress;
mod waker;
