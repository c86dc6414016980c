//! Counts of reached bounds on the connections and calls of the gRPC listener. Bounds on requests, which refuse them,
//! are in [`crate::telemetry::RefusalBound`].

use crate::telemetry::Count;

/// A bound of the gRPC listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrpcBound {
    /// `--grpc-message-timeout`.
    MessageTimeout,
    /// `--grpc-max-in-flight-share`.
    InFlightShare,
    /// `--grpc-max-streaming-calls`.
    StreamingCalls,
    /// `--grpc-max-streaming-calls-per-connection`.
    StreamingCallsPerConnection,
    /// `--grpc-max-waiting-bytes` and `--grpc-max-waiting-bytes-per-connection`, reached by responses that callers do
    /// not read, or by calls to health and reflection.
    WaitingBytes,
    /// `--grpc-max-connection-idle`.
    ConnectionIdle,
    /// Frames that carry no call: [`super::frames`].
    ControlFrames,
    /// A bound of the HTTP/2 library: streams begun beyond `--grpc-max-concurrent-streams`, streams reset, frames of
    /// one header list, small DATA frames.
    Http2,
}

impl GrpcBound {
    const ALL: [Self; 8] = [
        Self::MessageTimeout,
        Self::InFlightShare,
        Self::StreamingCalls,
        Self::StreamingCallsPerConnection,
        Self::WaitingBytes,
        Self::ConnectionIdle,
        Self::ControlFrames,
        Self::Http2,
    ];

    /// The name in metrics.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::MessageTimeout => "message_timeout",
            Self::InFlightShare => "in_flight_share",
            Self::StreamingCalls => "streaming_calls",
            Self::StreamingCallsPerConnection => "streaming_calls_per_connection",
            Self::WaitingBytes => "waiting_bytes",
            Self::ConnectionIdle => "connection_idle",
            Self::ControlFrames => "control_frames",
            Self::Http2 => "http2",
        }
    }
}

/// The number of times that each bound was reached.
#[derive(Debug, Default)]
pub(crate) struct ReachedBounds([Count; GrpcBound::ALL.len()]);

impl ReachedBounds {
    /// Counts that a bound was reached.
    pub(super) fn add(&self, reached: GrpcBound) {
        for (bound, count) in self.all() {
            if bound == reached {
                count.add(1);
            }
        }
    }

    /// All bounds with their counts.
    pub(crate) fn all(&self) -> impl Iterator<Item = (GrpcBound, &Count)> {
        GrpcBound::ALL.into_iter().zip(&self.0)
    }
}
