//! The table of a listener's connections, and which of them is dropped first.

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

/// Sweeps without a complete request after which a connection in use may be dropped for a new one: 5 s.
pub(in crate::listen) const IDLE_SWEEPS: u32 = 10;

/// Age after which a connection that has sent nothing is dropped before older ones that have.
pub(in crate::listen) const SILENT_AGE: Duration = Duration::from_millis(100);

/// Numbers of connections, which grow with time.
pub(super) type Id = u64;

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) next: Id,
    /// Every connection until its socket is closed.
    pub(super) open: HashMap<Id, Arc<ConnectionState>>,
    /// Those among them that have been dropped.
    pub(super) dropped: usize,
    /// Those that are not dropped, by address.
    pub(super) origins: HashMap<Origin, OriginConnections>,
    /// Those of all addresses that are pending.
    pub(super) pending_count: usize,
    /// Whether no connection in use was idle when that was looked for last, since the last sweep.
    pub(super) none_is_idle: bool,
}

/// Where a connection comes from, as far as connections are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    Address(IpAddr),
    /// A Unix socket.
    Local,
}

impl Origin {
    /// One IPv4 address, or 64 bits of an IPv6 address: a single host commands all addresses that share them.
    pub(super) fn of(address: Option<SocketAddr>) -> Self {
        match address.map(|address| address.ip().to_canonical()) {
            None => Self::Local,
            Some(IpAddr::V6(address)) => {
                Self::Address(IpAddr::V6((address.to_bits() >> 64 << 64).into()))
            }
            Some(address) => Self::Address(address),
        }
    }
}

/// The connections of one address that are not dropped, oldest first.
#[derive(Debug, Default)]
pub(super) struct OriginConnections {
    pub(super) pending: BTreeSet<Id>,
    pub(super) in_use: BTreeSet<Id>,
}

impl OriginConnections {
    pub(super) fn len(&self) -> usize {
        self.pending.len() + self.in_use.len()
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct ConnectionState {
    pub(super) id: Id,
    pub(super) origin: Origin,
    pub(super) accepted: Instant,
    pub(super) phase: AtomicU8,
    pub(super) dropped: AtomicBool,
    /// The task that waits for the socket.
    pub(super) waker: AtomicWaker,
    /// Whether the peer has sent anything.
    pub(super) heard: AtomicBool,
    /// Whether bytes passed since the last sweep.
    pub(super) active: AtomicBool,
    /// Sweeps in a row without a byte.
    pub(super) silent_sweeps: AtomicU32,
    /// Whether a request was completed since the last sweep.
    pub(super) requested: AtomicBool,
    /// Sweeps in a row without a complete request.
    pub(super) idle_sweeps: AtomicU32,
}

pub(super) const HANDSHAKE: u8 = 0;
pub(super) const PENDING: u8 = 1;
pub(super) const IN_USE: u8 = 2;

impl ConnectionState {
    pub(super) fn phase(&self) -> u8 {
        self.phase.load(Ordering::Relaxed)
    }
}

/// Adds a sweep to those in a row without an event, unless there was one since the last. Returns how many they are.
pub(super) fn count_sweep(event: &AtomicBool, sweeps: &AtomicU32) -> u32 {
    let happened = event.swap(false, Ordering::Relaxed);
    let count = if happened { 0 } else { sweeps.load(Ordering::Relaxed).saturating_add(1) };
    sweeps.store(count, Ordering::Relaxed);
    count
}

impl Table {
    pub(super) fn live(&self) -> usize {
        self.open.len() - self.dropped
    }

    pub(super) fn pending_of(&self, origin: Origin) -> usize {
        self.origins.get(&origin).map_or(0, |it| it.pending.len())
    }

    pub(super) fn add_pending(&mut self, slot: &ConnectionState) {
        self.origins.entry(slot.origin).or_default().pending.insert(slot.id);
        self.pending_count += 1;
    }

    pub(super) fn set_in_use(&mut self, slot: &ConnectionState) {
        let Some(of_origin) = self.origins.get_mut(&slot.origin) else { return };
        if of_origin.pending.remove(&slot.id) {
            of_origin.in_use.insert(slot.id);
            self.pending_count -= 1;
        }
    }

    /// Counts the connection no longer.
    pub(super) fn forget(&mut self, slot: &ConnectionState) {
        let Some(of_origin) = self.origins.get_mut(&slot.origin) else { return };
        self.pending_count -= usize::from(of_origin.pending.remove(&slot.id));
        of_origin.in_use.remove(&slot.id);
        if of_origin.len() == 0 {
            self.origins.remove(&slot.origin);
        }
    }

    /// Makes the connection's next read or write fail. Returns whether that is new.
    pub(super) fn drop_connection(&mut self, slot: &ConnectionState) -> bool {
        let is_new = !slot.dropped.swap(true, Ordering::AcqRel);
        if is_new {
            self.forget(slot);
            self.dropped += 1;
            slot.waker.wake();
        }
        is_new
    }

    /// The oldest pending connection of an address that has had time to send something and has not, or else its oldest.
    pub(super) fn oldest_pending_of(&self, origin: Origin) -> Option<Arc<ConnectionState>> {
        let pending = &self.origins.get(&origin)?.pending;
        let mut pending = pending.iter().filter_map(|id| self.open.get(id)).peekable();
        let oldest = pending.peek().copied();
        let now = Instant::now();
        let is_silent = |slot: &&Arc<ConnectionState>| {
            !slot.heard.load(Ordering::Relaxed) && now - slot.accepted >= SILENT_AGE
        };
        pending.find(is_silent).or(oldest).cloned()
    }

    /// The same of the address that has the most pending connections.
    pub(super) fn oldest_pending(&self) -> Option<Arc<ConnectionState>> {
        let (origin, _) = self.origins.iter().max_by_key(|(_, it)| it.pending.len())?;
        self.oldest_pending_of(*origin)
    }

    /// A connection of the address that has the most, if a new connection leaves `new` with fewer: a pending one, or
    /// else the newest, because the older ones are probably those that it had before it took so many. Else a pending
    /// one of `new` itself.
    pub(super) fn of_the_largest_origin(&self, new: Origin) -> Option<Arc<ConnectionState>> {
        let own = self.origins.get(&new).map_or(0, OriginConnections::len);
        let (origin, largest) = self.origins.iter().max_by_key(|(_, it)| it.len())?;
        if largest.len() <= own + 1 {
            return self.oldest_pending_of(new);
        }
        let newest = || self.open.get(largest.in_use.last()?).cloned();
        self.oldest_pending_of(*origin).or_else(newest)
    }

    /// The connection in use that has been idle for longest, if that is long enough.
    pub(super) fn idlest(&mut self) -> Option<Arc<ConnectionState>> {
        if self.none_is_idle {
            return None;
        }
        let idle = |slot: &&Arc<ConnectionState>| slot.idle_sweeps.load(Ordering::Relaxed);
        let idlest = self
            .open
            .values()
            .filter(|slot| slot.phase() == IN_USE && !slot.dropped.load(Ordering::Relaxed))
            .filter(|slot| idle(slot) >= IDLE_SWEEPS)
            .max_by_key(idle)
            .cloned();
        self.none_is_idle = idlest.is_none();
        idlest
    }
}
