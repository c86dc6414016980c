//! Admission of connections: how many a listener holds, and which one it drops for a new one.
//!
//! A connection passes three phases. In the *handshake* it has to show within a deadline that it speaks the listener's
//! protocol; it is *pending* until its first complete request, and *in use* from then on. Connections that are not in use
//! cost an attacker nothing, so they are dropped first: of the address that has the most of them the oldest one that has
//! sent nothing for a moment, or else the oldest. So a client that connects during a flood gets a place and the time for its handshake.
//! A connection in use is dropped if it has completed no request for a while. When all are busy, places are divided
//! among addresses: the one that has the most gives one to an address that has fewer, and is itself refused more.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    task::Context,
    time::{Duration, Instant},
};

use futures::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// How often the ages and the activity of connections are checked.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_millis(500);

/// Sweeps without a complete request after which a connection in use may be dropped for a new one: 5 s.
pub(super) const IDLE_SWEEPS: u32 = 10;

/// The time for a handshake while half of the pending places are taken.
const HANDSHAKE_TIMEOUT_CROWDED: Duration = Duration::from_secs(1);

/// Age after which a connection that has sent nothing is dropped before older ones that have.
pub(super) const SILENT_AGE: Duration = Duration::from_millis(100);

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

/// The connections of one listener. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Admission(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    bounds: AdmissionBounds,
    table: Mutex<Table>,
    /// Told at each connection that was closed.
    closed: Notify,
    dropped: [AtomicU64; DropReason::ALL.len()],
    bounds_met: [AtomicU64; RequestBound::ALL.len()],
}

/// Numbers of connections, which grow with time.
type Id = u64;

#[derive(Debug, Default)]
struct Table {
    next: Id,
    /// Every connection until its socket is closed.
    open: HashMap<Id, Arc<Slot>>,
    /// Those among them that have been dropped.
    dropped: usize,
    /// Those that are not dropped, by address.
    origins: HashMap<Origin, OfOrigin>,
    /// Those of all addresses that are pending.
    pending_count: usize,
    /// Whether no connection in use was idle when that was looked for last, since the last sweep.
    none_is_idle: bool,
}

/// Where a connection comes from, as far as connections are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Origin {
    Address(IpAddr),
    /// A Unix socket.
    Local,
}

impl Origin {
    /// One IPv4 address, or 64 bits of an IPv6 address: a single host commands all addresses that share them.
    fn of(address: Option<SocketAddr>) -> Self {
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
struct OfOrigin {
    pending: BTreeSet<Id>,
    in_use: BTreeSet<Id>,
}

impl OfOrigin {
    fn len(&self) -> usize {
        self.pending.len() + self.in_use.len()
    }
}

/// One connection.
#[derive(Debug)]
struct Slot {
    id: Id,
    origin: Origin,
    accepted: Instant,
    phase: AtomicU8,
    dropped: AtomicBool,
    /// The task that waits for the socket.
    waker: AtomicWaker,
    /// Whether the peer has sent anything.
    heard: AtomicBool,
    /// Whether bytes passed since the last sweep.
    active: AtomicBool,
    /// Sweeps in a row without a byte.
    silent_sweeps: AtomicU32,
    /// Whether a request was completed since the last sweep.
    requested: AtomicBool,
    /// Sweeps in a row without a complete request.
    idle_sweeps: AtomicU32,
}

const HANDSHAKE: u8 = 0;
const PENDING: u8 = 1;
const IN_USE: u8 = 2;

impl Slot {
    fn phase(&self) -> u8 {
        self.phase.load(Ordering::Relaxed)
    }
}

/// Adds a sweep to those in a row without an event, unless there was one since the last. Returns how many they are.
fn count_sweep(event: &AtomicBool, sweeps: &AtomicU32) -> u32 {
    let happened = event.swap(false, Ordering::Relaxed);
    let count = if happened { 0 } else { sweeps.load(Ordering::Relaxed).saturating_add(1) };
    sweeps.store(count, Ordering::Relaxed);
    count
}

impl Table {
    fn live(&self) -> usize {
        self.open.len() - self.dropped
    }

    fn pending_of(&self, origin: Origin) -> usize {
        self.origins.get(&origin).map_or(0, |it| it.pending.len())
    }

    fn add_pending(&mut self, slot: &Slot) {
        self.origins.entry(slot.origin).or_default().pending.insert(slot.id);
        self.pending_count += 1;
    }

    fn set_in_use(&mut self, slot: &Slot) {
        let Some(of_origin) = self.origins.get_mut(&slot.origin) else { return };
        if of_origin.pending.remove(&slot.id) {
            of_origin.in_use.insert(slot.id);
            self.pending_count -= 1;
        }
    }

    /// Counts the connection no longer.
    fn forget(&mut self, slot: &Slot) {
        let Some(of_origin) = self.origins.get_mut(&slot.origin) else { return };
        self.pending_count -= usize::from(of_origin.pending.remove(&slot.id));
        of_origin.in_use.remove(&slot.id);
        if of_origin.len() == 0 {
            self.origins.remove(&slot.origin);
        }
    }

    /// Makes the connection's next read or write fail. Returns whether that is new.
    fn drop_connection(&mut self, slot: &Slot) -> bool {
        let is_new = !slot.dropped.swap(true, Ordering::AcqRel);
        if is_new {
            self.forget(slot);
            self.dropped += 1;
            slot.waker.wake();
        }
        is_new
    }

    /// The oldest pending connection of an address that has had time to send something and has not, or else its oldest.
    fn oldest_pending_of(&self, origin: Origin) -> Option<Arc<Slot>> {
        let pending = &self.origins.get(&origin)?.pending;
        let mut pending = pending.iter().filter_map(|id| self.open.get(id)).peekable();
        let oldest = pending.peek().copied();
        let now = Instant::now();
        let is_silent = |slot: &&Arc<Slot>| {
            !slot.heard.load(Ordering::Relaxed) && now - slot.accepted >= SILENT_AGE
        };
        pending.find(is_silent).or(oldest).cloned()
    }

    /// The same of the address that has the most pending connections.
    fn oldest_pending(&self) -> Option<Arc<Slot>> {
        let (origin, _) = self.origins.iter().max_by_key(|(_, it)| it.pending.len())?;
        self.oldest_pending_of(*origin)
    }

    /// A connection of the address that has the most, if a new connection leaves `new` with fewer: a pending one, or
    /// else the newest, because the older ones are probably those that it had before it took so many. Else a pending
    /// one of `new` itself.
    fn of_the_largest_origin(&self, new: Origin) -> Option<Arc<Slot>> {
        let own = self.origins.get(&new).map_or(0, OfOrigin::len);
        let (origin, largest) = self.origins.iter().max_by_key(|(_, it)| it.len())?;
        if largest.len() <= own + 1 {
            return self.oldest_pending_of(new);
        }
        let newest = || self.open.get(largest.in_use.last()?).cloned();
        self.oldest_pending_of(*origin).or_else(newest)
    }

    /// The connection in use that has been idle for longest, if that is long enough.
    fn idlest(&mut self) -> Option<Arc<Slot>> {
        if self.none_is_idle {
            return None;
        }
        let idle = |slot: &&Arc<Slot>| slot.idle_sweeps.load(Ordering::Relaxed);
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

impl Admission {
    pub(crate) fn new(bounds: AdmissionBounds) -> Self {
        Self(Arc::new(Shared {
            bounds,
            table: Mutex::default(),
            closed: Notify::new(),
            dropped: Default::default(),
            bounds_met: Default::default(),
        }))
    }

    /// The most connections.
    pub(crate) fn max(&self) -> usize {
        self.0.bounds.connections
    }

    /// Open connections.
    pub(crate) fn open(&self) -> usize {
        self.0.table.lock().open.len()
    }

    /// Open connections without a complete request.
    pub(crate) fn pending(&self) -> usize {
        self.0.table.lock().pending_count
    }

    /// Connections that were dropped for this reason.
    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.0.count(reason).load(Ordering::Relaxed)
    }

    /// Requests that met this bound.
    pub(crate) fn bound_met(&self, bound: RequestBound) -> u64 {
        self.0.count_of(bound).load(Ordering::Relaxed)
    }

    /// Whether three quarters of the places are in use, so that connections should end after their answers.
    pub(crate) fn is_crowded(&self) -> bool {
        let table = self.0.table.lock();
        (table.live() - table.pending_count) * 4 > self.0.bounds.connections * 3
    }

    /// Waits until another connection may be accepted. Those that were dropped hold their descriptors until their tasks
    /// have run; at most one connection is open beyond the bound meanwhile.
    pub(super) async fn room(&self) {
        loop {
            let closed = self.0.closed.notified();
            if self.open() <= self.max() {
                return;
            }
            closed.await;
        }
    }

    /// Gives a place to a new connection, if need be another's. `None` if all places are in use.
    pub(super) fn admit(&self, peer: Option<SocketAddr>) -> Option<PlaceGuard> {
        let bounds = &self.0.bounds;
        let origin = Origin::of(peer);
        let mut table = self.0.table.lock();
        let of_origin = table.pending_of(origin);
        if of_origin >= bounds.pending_per_address {
            let oldest = table.oldest_pending_of(origin);
            self.0.drop_one(&mut table, oldest, DropReason::Address);
        } else if table.pending_count >= bounds.pending_max() {
            let oldest = table.oldest_pending();
            self.0.drop_one(&mut table, oldest, DropReason::Replaced);
        }
        if table.live() >= bounds.connections && !self.0.make_room(&mut table, Some(origin)) {
            self.0.count(DropReason::Refused).fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let id = table.next;
        table.next += 1;
        let slot = Arc::new(Slot {
            id,
            origin,
            accepted: Instant::now(),
            phase: AtomicU8::new(HANDSHAKE),
            dropped: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            heard: AtomicBool::new(false),
            active: AtomicBool::new(true),
            silent_sweeps: AtomicU32::new(0),
            requested: AtomicBool::new(false),
            idle_sweeps: AtomicU32::new(0),
        });
        table.open.insert(id, Arc::clone(&slot));
        table.add_pending(&slot);
        Some(PlaceGuard(Place { shared: Arc::clone(&self.0), slot }))
    }

    /// Drops a connection that is pending or idle, if there is one, because the process has no more descriptors.
    pub(super) fn free_descriptor(&self) {
        self.0.make_room(&mut self.0.table.lock(), None);
    }

    /// Drops connections that take too long, and notes which are idle.
    pub(super) fn sweep(&self) {
        let bounds = &self.0.bounds;
        let now = Instant::now();
        let mut table = self.0.table.lock();
        table.none_is_idle = false;
        let crowded = table.pending_count * 2 >= bounds.pending_max();
        let mut late = Vec::new();
        for slot in table.open.values() {
            count_sweep(&slot.requested, &slot.idle_sweeps);
            let silent_sweeps = count_sweep(&slot.active, &slot.silent_sweeps);
            if slot.phase() == HANDSHAKE {
                let of_origin = table.pending_of(slot.origin);
                let short = crowded || of_origin * 2 >= bounds.pending_per_address;
                let timeout = bounds.handshake_timeout;
                let timeout = if short { timeout.min(HANDSHAKE_TIMEOUT_CROWDED) } else { timeout };
                if now.duration_since(slot.accepted) >= timeout {
                    late.push((Arc::clone(slot), DropReason::Timeout));
                }
            } else if bounds.idle_timeout.is_some_and(|it| SWEEP_INTERVAL * silent_sweeps >= it) {
                late.push((Arc::clone(slot), DropReason::Idle));
            }
        }
        for (slot, reason) in late {
            self.0.drop_one(&mut table, Some(slot), reason);
        }
    }

    /// Drops the connections whose handshake is not over: the listener is closed.
    pub(super) fn end_handshakes(&self) {
        let mut table = self.0.table.lock();
        let ended: Vec<_> =
            table.open.values().filter(|slot| slot.phase() == HANDSHAKE).cloned().collect();
        for slot in ended {
            table.drop_connection(&slot);
        }
    }
}

impl AdmissionBounds {
    /// The most pending connections: half of all, so that a flood of them leaves idle connections in use alone.
    fn pending_max(&self) -> usize {
        self.connections.div_ceil(2)
    }
}

impl Shared {
    fn count(&self, reason: DropReason) -> &AtomicU64 {
        let [refused, address, replaced, timeout, idle] = &self.dropped;
        match reason {
            DropReason::Refused => refused,
            DropReason::Address => address,
            DropReason::Replaced => replaced,
            DropReason::Timeout => timeout,
            DropReason::Idle => idle,
        }
    }

    fn count_of(&self, bound: RequestBound) -> &AtomicU64 {
        let [body_time, answer_time, held_bytes, lasting_calls] = &self.bounds_met;
        match bound {
            RequestBound::BodyTime => body_time,
            RequestBound::AnswerTime => answer_time,
            RequestBound::HeldBytes => held_bytes,
            RequestBound::LastingCalls => lasting_calls,
        }
    }

    /// Drops this connection. Returns whether there was one to drop.
    fn drop_one(&self, table: &mut Table, slot: Option<Arc<Slot>>, reason: DropReason) -> bool {
        let dropped = slot.is_some_and(|slot| table.drop_connection(&slot));
        if dropped {
            self.count(reason).fetch_add(1, Ordering::Relaxed);
        }
        dropped
    }

    /// Drops a connection for a new one from this address, or for none: a pending one if a quarter of the places are
    /// pending, else an idle one, else one of the address that has the most, or a pending one. So clients that are
    /// connecting keep places when all others are in use.
    fn make_room(&self, table: &mut Table, new: Option<Origin>) -> bool {
        let pending_first = table.pending_count * 4 > self.bounds.connections;
        let victim = if pending_first { None } else { table.idlest() };
        let victim = victim.or_else(|| match new {
            Some(new) if !pending_first => table.of_the_largest_origin(new),
            _ => table.oldest_pending(),
        });
        self.drop_one(table, victim, DropReason::Replaced)
    }
}

/// The place of one connection, to be marked as used. Clones are for the same connection.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
}

impl Place {
    /// Notes that the connection has sent a complete request.
    pub(crate) fn mark_used(&self) {
        self.slot.requested.store(true, Ordering::Relaxed);
        if self.slot.phase() == IN_USE {
            return;
        }
        let mut table = self.shared.table.lock();
        self.slot.phase.store(IN_USE, Ordering::Relaxed);
        table.set_in_use(&self.slot);
    }

    /// Counts a request that met a bound.
    pub(crate) fn count_bound(&self, bound: RequestBound) {
        self.shared.count_of(bound).fetch_add(1, Ordering::Relaxed);
    }

    /// The bytes, after TLS, that end the handshake; `None` if only a complete request does.
    pub(super) fn handshake_bytes(&self) -> Option<usize> {
        match self.shared.bounds.handshake {
            Handshake::Bytes(bytes) => Some(bytes),
            Handshake::Request => None,
        }
    }

    /// Notes that the handshake is over.
    pub(super) fn end_handshake(&self) {
        let (from, to, order) = (HANDSHAKE, PENDING, Ordering::Relaxed);
        let _other_phase = self.slot.phase.compare_exchange(from, to, order, order);
    }

    /// Notes that the peer has sent something.
    pub(super) fn hear(&self) {
        self.slot.heard.store(true, Ordering::Relaxed);
        self.touch();
    }

    /// Notes that bytes have passed.
    pub(super) fn touch(&self) {
        self.slot.active.store(true, Ordering::Relaxed);
    }

    /// Wakes this task when the connection is dropped.
    pub(super) fn watch(&self, context: &Context<'_>) {
        self.slot.waker.register(context.waker());
    }

    /// Fails once the connection has been dropped.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.slot.dropped.load(Ordering::Acquire) {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "dropped by the listener: too slow, or its place was needed",
            ));
        }
        Ok(())
    }
}

/// Holds a place until the connection is closed.
#[derive(Debug)]
pub(super) struct PlaceGuard(pub(super) Place);

impl Drop for PlaceGuard {
    fn drop(&mut self) {
        let Place { shared, slot } = &self.0;
        let mut table = shared.table.lock();
        table.forget(slot);
        table.open.remove(&slot.id);
        if slot.dropped.load(Ordering::Acquire) {
            table.dropped -= 1;
        }
        drop(table);
        shared.closed.notify_one();
    }
}
