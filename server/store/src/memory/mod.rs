//! The embedded store: counters in this process's memory.
//!
//! Counters lie in shards, each behind its own lock. A group locks the shards of its counters in
//! ascending order, so its checks are settled at one moment whatever other threads do, and no two
//! groups can wait for each other.

mod shard;

use parking_lot::{Mutex, MutexGuard};
use sluicegate_core::{Answers, Batch, Check, Store, StoreError, Time, algorithm::State, settle};
use smallvec::SmallVec;

use crate::{Clock, SystemClock};
use shard::Shard;

/// The most shards of a store: more than cores, so that threads seldom meet.
const SHARDS_MAX: usize = 64;

/// Fewer counters than this in a shard would make "full" a matter of chance.
const SHARD_COUNTERS_MIN: usize = 1024;

/// Counters that each decision looks at to find expired ones. More than one, so that sweeping outruns
/// filling.
const SWEEP_STEPS: usize = 2;

/// Counters looked at where a shard is full.
const SWEEP_STEPS_FULL: usize = 64;

/// Size of a memory store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySettings {
    /// The most counters held at once. What is beyond is answered [`StoreError::Full`].
    pub counters_max: usize,
}

/// Counters in memory.
#[derive(Debug)]
pub struct Memory<C = SystemClock> {
    shards: Box<[Mutex<Shard>]>,
    clock: C,
}

impl<C: Clock> Memory<C> {
    /// An empty store that tells the time by `clock`.
    pub fn new(settings: MemorySettings, clock: C) -> Self {
        let shards = (settings.counters_max / SHARD_COUNTERS_MIN).clamp(1, SHARDS_MAX);
        let share = |shard| (settings.counters_max + shard) / shards;
        Self {
            shards: (0..shards).map(|shard| Mutex::new(Shard::new(share(shard)))).collect(),
            clock,
        }
    }

    /// Counters held, including expired ones that are not swept yet.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether no counter is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops expired counters, looking at no more than `steps` in each shard. Decisions sweep as they
    /// go; this is for when there are none.
    pub fn sweep(&self, steps: usize) {
        let now = self.clock.now();
        for shard in &self.shards {
            shard.lock().sweep(now, steps);
        }
    }

    /// Settles one request's checks.
    fn settle(&self, group: &[Check]) -> Answers {
        let places: SmallVec<[usize; 4]> = group.iter().map(|check| self.place(check)).collect();
        let mut locked = Locked::new(&self.shards, &places);
        // Read under the locks: a thread that waited for them must not come with the past.
        let now = self.clock.now();
        locked.make_room(now, group.len());
        let mut opened = Opened::default();
        let checks = group.iter().zip(&places).enumerate();
        let slots: SmallVec<[Option<usize>; 4]> = checks
            .map(|(position, (check, &place))| {
                opened.slot(group, position, check, locked.shard(place)?)
            })
            .collect();
        let answers = settle(group, &slots, &mut opened.states, now, StoreError::Full);
        opened.close(group, &places, &mut locked, now);
        answers
    }

    /// The shard of a check's counter. From the high half of the hash: the low bits place the counter
    /// inside its shard.
    fn place(&self, check: &Check) -> usize {
        let hash = check.key.hash64() >> 32;
        usize::try_from(hash).unwrap_or_default() % self.shards.len()
    }
}

impl<C: Clock> Store for Memory<C> {
    async fn decide(&self, batch: Batch) -> Answers {
        batch.groups.iter().flat_map(|group| self.settle(group)).collect()
    }
}

/// The locked shards of one group, ascending.
struct Locked<'s>(SmallVec<[(usize, MutexGuard<'s, Shard>); 4]>);

impl<'s> Locked<'s> {
    fn new(shards: &'s [Mutex<Shard>], places: &[usize]) -> Self {
        let mut ascending: SmallVec<[usize; 4]> = SmallVec::from_slice(places);
        ascending.sort_unstable();
        ascending.dedup();
        let lock = |place: usize| Some((place, shards.get(place)?.lock()));
        Self(ascending.into_iter().filter_map(lock).collect())
    }

    /// Sweeps each shard a little, and more where the group might find it full.
    fn make_room(&mut self, now: Time, counters: usize) {
        for (_, shard) in &mut self.0 {
            shard.sweep(now, SWEEP_STEPS);
            if !shard.has_room(counters) {
                shard.sweep(now, SWEEP_STEPS_FULL);
            }
        }
    }

    fn shard(&mut self, place: usize) -> Option<&mut Shard> {
        self.0.iter_mut().find(|(at, _)| *at == place).map(|(_, shard)| &mut **shard)
    }
}

/// The counters of one group, taken out of their shards to be settled.
#[derive(Default)]
struct Opened {
    states: SmallVec<[State; 4]>,
    homes: SmallVec<[Home; 4]>,
}

/// Where a state belongs.
struct Home {
    /// The first check of its counter.
    check: usize,
    place: Place,
}

/// Where in the shard.
enum Place {
    /// At this position, which is sure while the shard is locked and not swept.
    At(usize),
    /// Nowhere yet; room is reserved.
    Reserved,
    /// Nowhere, and nothing has asked for room: a peek or a refund of a counter that is not there.
    Nowhere,
}

impl Opened {
    /// The slot of the check's counter, which is taken out of the shard if it was not before. `None`
    /// where a counter that is to be charged is new and finds no room.
    fn slot(
        &mut self,
        group: &[Check],
        position: usize,
        check: &Check,
        shard: &mut Shard,
    ) -> Option<usize> {
        let same = |home: &Home| group.get(home.check).is_some_and(|other| other.key == check.key);
        let slot = match self.homes.iter().position(same) {
            Some(slot) => slot,
            None => self.open(position, check, shard),
        };
        let home = self.homes.get_mut(slot)?;
        if matches!(home.place, Place::Nowhere) && check.take.charges() {
            if !shard.reserve() {
                return None;
            }
            home.place = Place::Reserved;
        }
        Some(slot)
    }

    fn open(&mut self, position: usize, check: &Check, shard: &mut Shard) -> usize {
        let (place, state) = match shard.take(check.key.as_bytes()) {
            Some((at, state)) => (Place::At(at), state),
            None => (Place::Nowhere, State::new(check.limit.algorithm())),
        };
        self.homes.push(Home { check: position, place });
        self.states.push(state);
        self.states.len() - 1
    }

    /// Puts the counters back where they belong. A new one that was not used leaves no trace.
    fn close(self, group: &[Check], places: &[usize], locked: &mut Locked<'_>, now: Time) {
        for (mut state, home) in self.states.into_iter().zip(self.homes) {
            let (Some(check), Some(&place)) = (group.get(home.check), places.get(home.check))
            else {
                continue;
            };
            let Some(shard) = locked.shard(place) else { continue };
            let now = state.advance(&check.limit, now);
            let expires = now.after_micros(state.reset_after(&check.limit, now));
            match home.place {
                Place::At(at) => shard.put_back(at, state, expires),
                Place::Reserved => {
                    let used = expires > now;
                    shard.release(check.key.as_bytes(), used.then_some((state, expires)));
                }
                Place::Nowhere => {}
            }
        }
    }
}
