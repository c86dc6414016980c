//! The table of a listener's connections, and the choice of the connection to drop.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use futures::task::AtomicWaker;

/// The sweeps without a complete request after which a new connection may replace a connection in use: 5 s.
pub(in crate::listen) const IDLE_SWEEPS: u32 = 10;

/// A connection of at least this age that has sent nothing is dropped before older connections that have sent
/// something.
pub(in crate::listen) const SILENT_AGE: Duration = Duration::from_millis(100);

/// Numbers of connections, in the order in which they were accepted.
pub(super) type ConnectionId = u64;

#[derive(Debug, Default)]
pub(super) struct ConnectionTable {
    pub(super) next: ConnectionId,
    /// All connections whose sockets are open.
    pub(super) open: HashMap<ConnectionId, Arc<ConnectionState>>,
    /// The number of open connections that have been dropped.
    pub(super) dropped: usize,
    /// The connections that are not dropped, by origin.
    pub(super) origins: HashMap<Origin, OriginConnections>,
    /// The number of pending connections of all origins.
    pub(super) pending_count: usize,
    /// Whether a search since the last sweep found no idle connection in use.
    pub(super) none_is_idle: bool,
}

/// The origin of a connection. Bounds per address apply to origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    /// An IPv4 address, or the /64 network of an IPv6 address.
    Address(IpAddr),
    /// A Unix socket.
    UnixSocket,
}

impl Origin {
    /// The origin of a peer. A single host may use all addresses of its IPv6 /64 network.
    pub(super) fn of(address: Option<SocketAddr>) -> Self {
        match address.map(|address| address.ip().to_canonical()) {
            None => Self::UnixSocket,
            Some(IpAddr::V6(address)) => {
                Self::Address(IpAddr::V6((address.to_bits() >> 64 << 64).into()))
            }
            Some(address) => Self::Address(address),
        }
    }
}

/// The connections of one origin that are not dropped, oldest first.
#[derive(Debug, Default)]
pub(super) struct OriginConnections {
    pub(super) pending: BTreeSet<ConnectionId>,
    pub(super) in_use: BTreeSet<ConnectionId>,
}

impl OriginConnections {
    pub(super) fn len(&self) -> usize {
        self.pending.len() + self.in_use.len()
    }
}

/// The state of one connection.
#[derive(Debug)]
pub(super) struct ConnectionState {
    pub(super) id: ConnectionId,
    pub(super) origin: Origin,
    pub(super) accepted: Instant,
    pub(super) phase: AtomicU8,
    pub(super) dropped: AtomicBool,
    /// The task that waits for the socket.
    pub(super) waker: AtomicWaker,
    /// Whether the peer has sent anything.
    pub(super) has_received: AtomicBool,
    /// Whether bytes were sent or received since the last sweep.
    pub(super) active: AtomicBool,
    /// Consecutive sweeps without a byte.
    pub(super) sweeps_without_bytes: AtomicU32,
    /// Whether a request was completed since the last sweep.
    pub(super) requested: AtomicBool,
    /// Consecutive sweeps without a complete request.
    pub(super) sweeps_without_request: AtomicU32,
}

pub(super) const HANDSHAKE: u8 = 0;
pub(super) const PENDING: u8 = 1;
pub(super) const IN_USE: u8 = 2;

impl ConnectionState {
    pub(super) fn phase(&self) -> u8 {
        self.phase.load(Ordering::Relaxed)
    }
}

/// Increments `sweeps`, or sets it to 0 if `event` was set since the last sweep, and clears `event`. Returns `sweeps`,
/// the number of consecutive sweeps without an event.
pub(super) fn count_sweep(event: &AtomicBool, sweeps: &AtomicU32) -> u32 {
    let happened = event.swap(false, Ordering::Relaxed);
    let count = if happened { 0 } else { sweeps.load(Ordering::Relaxed).saturating_add(1) };
    sweeps.store(count, Ordering::Relaxed);
    count
}

impl ConnectionTable {
    /// The number of connections that are not dropped.
    pub(super) fn live(&self) -> usize {
        self.open.len() - self.dropped
    }

    pub(super) fn pending_of(&self, origin: Origin) -> usize {
        self.origins.get(&origin).map_or(0, |it| it.pending.len())
    }

    pub(super) fn add_pending(&mut self, connection: &ConnectionState) {
        self.origins.entry(connection.origin).or_default().pending.insert(connection.id);
        self.pending_count += 1;
    }

    pub(super) fn set_in_use(&mut self, connection: &ConnectionState) {
        let Some(of_origin) = self.origins.get_mut(&connection.origin) else { return };
        if of_origin.pending.remove(&connection.id) {
            of_origin.in_use.insert(connection.id);
            self.pending_count -= 1;
        }
    }

    /// Removes a connection from its origin.
    pub(super) fn remove_from_origin(&mut self, connection: &ConnectionState) {
        let Some(of_origin) = self.origins.get_mut(&connection.origin) else { return };
        self.pending_count -= usize::from(of_origin.pending.remove(&connection.id));
        of_origin.in_use.remove(&connection.id);
        if of_origin.len() == 0 {
            self.origins.remove(&connection.origin);
        }
    }

    /// Makes the next read or write of a connection fail. Returns false if it was dropped before.
    pub(super) fn drop_connection(&mut self, connection: &ConnectionState) -> bool {
        let is_new = !connection.dropped.swap(true, Ordering::AcqRel);
        if is_new {
            self.remove_from_origin(connection);
            self.dropped += 1;
            connection.waker.wake();
        }
        is_new
    }

    /// The oldest pending connection of an origin that has sent nothing for [`SILENT_AGE`], or else its oldest pending
    /// one.
    pub(super) fn pending_to_drop_of(&self, origin: Origin) -> Option<Arc<ConnectionState>> {
        let pending = &self.origins.get(&origin)?.pending;
        let mut pending = pending.iter().filter_map(|id| self.open.get(id)).peekable();
        let oldest = pending.peek().copied();
        let now = Instant::now();
        let is_silent = |connection: &&Arc<ConnectionState>| {
            !connection.has_received.load(Ordering::Relaxed)
                && now - connection.accepted >= SILENT_AGE
        };
        pending.find(is_silent).or(oldest).cloned()
    }

    /// [`Self::pending_to_drop_of`] for the origin with the most pending connections.
    pub(super) fn pending_to_drop(&self) -> Option<Arc<ConnectionState>> {
        let (origin, _) = self.origins.iter().max_by_key(|(_, it)| it.pending.len())?;
        self.pending_to_drop_of(*origin)
    }

    /// A connection of the origin with the most connections: a pending one, or else the newest, because the older ones
    /// are probably from the time before it opened so many. If `new` would then have at least as many connections as
    /// the largest origin, one of its own pending connections.
    pub(super) fn of_the_largest_origin(&self, new: Origin) -> Option<Arc<ConnectionState>> {
        let own = self.origins.get(&new).map_or(0, OriginConnections::len);
        let (origin, largest) = self.origins.iter().max_by_key(|(_, it)| it.len())?;
        if largest.len() <= own + 1 {
            return self.pending_to_drop_of(new);
        }
        let newest = || self.open.get(largest.in_use.last()?).cloned();
        self.pending_to_drop_of(*origin).or_else(newest)
    }

    /// The longest idle connection in use; `None` if none has been idle for [`IDLE_SWEEPS`].
    pub(super) fn longest_idle(&mut self) -> Option<Arc<ConnectionState>> {
        if self.none_is_idle {
            return None;
        }
        let idle = |connection: &&Arc<ConnectionState>| {
            connection.sweeps_without_request.load(Ordering::Relaxed)
        };
        let longest_idle = self
            .open
            .values()
            .filter(|connection| {
                connection.phase() == IN_USE && !connection.dropped.load(Ordering::Relaxed)
            })
            .filter(|connection| idle(connection) >= IDLE_SWEEPS)
            .max_by_key(idle)
            .cloned();
        self.none_is_idle = longest_idle.is_none();
        longest_idle
    }
}
