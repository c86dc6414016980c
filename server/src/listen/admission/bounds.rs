//! Bounds of a listener, and the reasons for dropping connections and rejecting requests.

use std::time::Duration;

/// Bounds on the connections of a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionBounds {
    /// The most connections.
    pub(crate) connections: usize,
    /// The most pending connections of one address.
    pub(crate) pending_per_address: usize,
    /// The time for the handshake.
    pub(crate) handshake_timeout: Duration,
    /// The event that ends the handshake.
    pub(crate) handshake_end: HandshakeEnd,
    /// The time after which an idle connection is closed.
    pub(crate) idle_timeout: Option<Duration>,
}

/// The event that ends the handshake of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeEnd {
    /// The arrival of this many bytes, counted after TLS.
    Bytes(usize),
    /// The first complete request.
    Request,
}

/// Why a listener dropped a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// The connection was new, and no other connection could be dropped for it.
    NotAdmitted,
    /// The connection was the oldest pending one of an address with too many pending connections.
    PendingPerAddress,
    /// A new connection replaced it, because it was a pending one of the address with the most of them, the longest
    /// idle one, or one of the address with the most connections.
    Replaced,
    /// Its handshake or first request did not complete in time.
    Timeout,
    /// No byte was sent or received for too long.
    Idle,
}

impl DropReason {
    /// All reasons.
    pub(crate) const ALL: [Self; 5] =
        [Self::NotAdmitted, Self::PendingPerAddress, Self::Replaced, Self::Timeout, Self::Idle];

    /// The reason as a label of a metric.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::NotAdmitted => "refused",
            Self::PendingPerAddress => "address",
            Self::Replaced => "replaced",
            Self::Timeout => "timeout",
            Self::Idle => "idle",
        }
    }
}

/// A bound that a request of the HTTP, admin or usage listener exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListenerBound {
    /// The time for its body.
    BodyTime,
    /// The time for the peer to read the response.
    ResponseReadTime,
    /// The bytes of the messages of all admin calls together.
    HeldBytes,
    /// The Watch and reflection calls in progress.
    StreamingCalls,
}

impl ListenerBound {
    /// All bounds.
    pub(crate) const ALL: [Self; 4] =
        [Self::BodyTime, Self::ResponseReadTime, Self::HeldBytes, Self::StreamingCalls];

    /// The bound as a label of a metric.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::BodyTime => "body_time",
            Self::ResponseReadTime => "answer_time",
            Self::HeldBytes => "held_bytes",
            Self::StreamingCalls => "lasting_calls",
        }
    }
}

impl AdmissionBounds {
    /// The most pending connections: half of all, so that a flood of them does not displace idle connections in use.
    pub(super) fn pending_max(&self) -> usize {
        self.connections.div_ceil(2)
    }
}
