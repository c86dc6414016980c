//! What a listener admits, and why it drops a connection or refuses a request.

use std::time::Duration;

/// What a listener admits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdmissionBounds {
    /// The most connections.
    pub(crate) connections: usize,
    /// The most pending connections of one peer address.
    pub(crate) pending_per_address: usize,
    /// The time for the handshake.
    pub(crate) handshake_timeout: Duration,
    /// What ends the handshake.
    pub(crate) handshake: Handshake,
    /// The time after which an idle connection is closed.
    pub(crate) idle_timeout: Option<Duration>,
}

/// What ends the handshake phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handshake {
    /// So many bytes, counted after TLS.
    Bytes(usize),
    /// The first complete request.
    Request,
}

/// Why a connection was dropped by its listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// It was new, and all places were taken by connections in use.
    Refused,
    /// It was pending, and its address had too many pending connections.
    Address,
    /// It was the oldest pending or longest idle one, or one of an address with too many, when a new connection needed
    /// its place.
    Replaced,
    /// Its handshake or first request took too long.
    Timeout,
    /// It was idle for too long.
    Idle,
}

impl DropReason {
    /// All reasons, in the order of their numbers.
    pub(crate) const ALL: [Self; 5] =
        [Self::Refused, Self::Address, Self::Replaced, Self::Timeout, Self::Idle];

    /// The reason as a label of a metric.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Address => "address",
            Self::Replaced => "replaced",
            Self::Timeout => "timeout",
            Self::Idle => "idle",
        }
    }
}

/// A bound that a request of the HTTP or admin listener met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestBound {
    /// The time for its body.
    BodyTime,
    /// The time in which the peer takes the answer.
    AnswerTime,
    /// The bytes of all bodies together.
    HeldBytes,
    /// The calls of Watch and reflection in progress.
    LastingCalls,
}

impl RequestBound {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Self; 4] =
        [Self::BodyTime, Self::AnswerTime, Self::HeldBytes, Self::LastingCalls];

    /// The bound as a label of a metric.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::BodyTime => "body_time",
            Self::AnswerTime => "answer_time",
            Self::HeldBytes => "held_bytes",
            Self::LastingCalls => "lasting_calls",
        }
    }
}

impl AdmissionBounds {
    /// The most pending connections: half of all, so that a flood of them leaves idle connections in use alone.
    pub(super) fn pending_max(&self) -> usize {
        self.connections.div_ceil(2)
    }
}
