//! Slots of the simulated cluster, their moves between servers, and failovers.

use sluicegate_store::redis::Address;

use super::{Effect, Endpoint, SimulatedServers};

/// Number of slots of a cluster.
const SLOTS: u16 = 16_384;

impl SimulatedServers {
    /// The address of a server at the start.
    pub(crate) fn address(server: usize) -> Address {
        Self::address_of(Endpoint { server, promotions: 0 })
    }

    pub(super) fn address_of(Endpoint { server, promotions }: Endpoint) -> Address {
        Address { host: format!("redis-{server}-{promotions}"), port: 6379 }
    }

    /// The endpoint with an address; `None` if there is none.
    pub(crate) fn endpoint(&self, address: &Address) -> Option<Endpoint> {
        let (server, promotions) = address.host.strip_prefix("redis-")?.split_once('-')?;
        let (server, promotions): (usize, u32) = (server.parse().ok()?, promotions.parse().ok()?);
        let is_known = self.servers.get(server).is_some_and(|it| promotions <= it.promotions);
        is_known.then_some(Endpoint { server, promotions })
    }

    /// The current endpoint of a server. The address of a single server does not change with promotions.
    pub(super) fn current_endpoint(&self, server: usize) -> Endpoint {
        let promotions = if self.is_cluster { self.servers[server].promotions } else { 0 };
        Endpoint { server, promotions }
    }

    /// A Redis replica copies the keys of the server.
    pub(crate) fn replicate(&mut self, server: usize) {
        self.servers[server].replicated = Some(self.servers[server].data.clone());
    }

    /// Promotes a Redis replica in place of the server, with the keys that it has copied. Later changes are lost, and
    /// it has no scripts.
    pub(crate) fn fail_over(&mut self, server: usize) {
        let Some(replicated) = self.servers[server].replicated.take() else { return };
        self.advance_clock(server);
        self.keys_of(server).iter().for_each(|key| self.verify(server, key));
        let is_here = |key: &Vec<u8>| self.owner(key) == server || self.holder(key) == server;
        let keys: Vec<Vec<u8>> = self.counters.keys().filter(|it| is_here(it)).cloned().collect();
        self.epoch += 1;
        let it = &mut self.servers[server];
        it.data = replicated;
        it.has_scripts = false;
        it.promotions += 1;
        it.epoch = self.epoch;
        self.nodes = None;
        self.cut(|_, it| it == server);
        // The replica drops the keys of slots that have moved to another server meanwhile. Keys that were moving to the
        // failed server are lost.
        let names: Vec<Vec<u8>> = self.servers[server].data.keys().cloned().collect();
        for name in names {
            let owner = self.owner(&name);
            let is_moving_here = self.moving.get(&key_slot(&name)) == Some(&server)
                && !self.servers[owner].data.contains(&name);
            if owner != server && !is_moving_here {
                self.servers[server].data.remove(&name);
            }
        }
        self.advance_clock(server);
        for key in keys {
            let holder = self.holder(&key);
            let (before, after) = (
                self.counters[&key].hits(self.server_time(server)),
                self.hits(holder, &key, self.server_time(holder)),
            );
            self.record_snapshot(
                holder,
                &key,
                Effect { removed: before - after, ..Effect::default() },
            );
        }
    }

    /// Begins to move the slot of a key. Returns whether it can be moved.
    pub(crate) fn begin_move(&mut self, key: &[u8], to: usize) -> bool {
        let slot = key_slot(key);
        let can_move = self.is_cluster && self.owner(key) != to && !self.moving.contains_key(&slot);
        if can_move {
            self.moving.insert(slot, to);
        }
        can_move
    }

    /// Moves one key of a slot that is moving, or ends the move if there are no more. Returns whether the move
    /// continues.
    pub(crate) fn step_move(&mut self, key: &[u8]) -> bool {
        let slot = key_slot(key);
        let Some(&to) = self.moving.get(&slot) else { return false };
        let from = self.owner(key);
        self.advance_clock(from);
        self.advance_clock(to);
        // A key that has expired by the clock of this server may not have expired by the clock of the other.
        let may_have_expired = |it: &Vec<u8>| key_slot(it) == slot && self.holder(it) == from;
        let counters = self.counters.keys().filter(|it| may_have_expired(it));
        for key in counters.cloned().collect::<Vec<_>>() {
            if !self.servers[from].data.contains(&key) {
                self.verify(from, &key);
                self.record_snapshot(from, &key, Effect::default());
            }
        }
        let mut names = self.servers[from].data.keys().filter(|it| key_slot(it) == slot).cloned();
        if let Some(name) = names.next() {
            drop(names);
            self.verify(from, &name);
            let mut source = std::mem::take(&mut self.servers[from].data);
            source.migrate(&name, &mut self.servers[to].data);
            self.servers[from].data = source;
            let now = (self.elapsed(), self.server_time(from));
            if let Some(counter) = self.counters.get_mut(&name) {
                counter.moved.get_or_insert(now);
            }
            self.record_snapshot(to, &name, Effect::default());
            return true;
        }
        drop(names);
        self.moving.remove(&slot);
        self.moved.insert(slot, to);
        self.epoch += 1;
        self.servers[to].epoch = self.epoch;
        self.nodes = None;
        false
    }

    /// The server that owns the slot of a key.
    pub(super) fn owner(&self, key: &[u8]) -> usize {
        if !self.is_cluster {
            return 0;
        }
        let slot = key_slot(key);
        let evenly = usize::from(slot) * self.servers.len() / usize::from(SLOTS);
        self.moved.get(&slot).copied().unwrap_or(evenly)
    }

    /// The server that has a key, if any has it: the owner of its slot or, while the slot moves, the server that it
    /// moves to.
    pub(super) fn holder(&self, key: &[u8]) -> usize {
        let owner = self.owner(key);
        match self.moving.get(&key_slot(key)) {
            Some(&to)
                if !self.servers[owner].data.contains(key)
                    && self.servers[to].data.contains(key) =>
            {
                to
            }
            _ => owner,
        }
    }

    /// The reply to `CLUSTER NODES`.
    pub(super) fn list_nodes(&self) -> String {
        let mut ranges = vec![Vec::<(u16, u16)>::new(); self.servers.len()];
        let mut begin = 0;
        let owner_of = |slot: u16| {
            let evenly = usize::from(slot) * self.servers.len() / usize::from(SLOTS);
            self.moved.get(&slot).copied().unwrap_or(evenly)
        };
        for slot in 0..SLOTS {
            if slot + 1 == SLOTS || owner_of(slot + 1) != owner_of(slot) {
                ranges[owner_of(slot)].push((begin, slot));
                begin = slot + 1;
            }
        }
        let line = |(number, ranges): (usize, Vec<(u16, u16)>)| {
            let (endpoint, epoch) = (self.current_endpoint(number), self.servers[number].epoch);
            let Address { host, port } = Self::address_of(endpoint);
            let ranges: String =
                ranges.iter().map(|(first, last)| format!(" {first}-{last}")).collect();
            let primary =
                format!("{host} {host}:{port}@1 master - 0 0 {epoch} connected{ranges}\n");
            let replicas = (0..endpoint.promotions).map(|promotions| {
                let replica = Self::address_of(Endpoint { promotions, ..endpoint }).host;
                format!("{replica} {replica}:{port}@1 slave {host} 0 0 {epoch} connected\n")
            });
            [primary].into_iter().chain(replicas).collect::<String>()
        };
        ranges.into_iter().enumerate().map(line).collect()
    }
}

/// The slot of a key, by its hash tag if it has one.
pub(super) fn key_slot(key: &[u8]) -> u16 {
    let tag = || {
        let begin = key.iter().position(|byte| *byte == b'{')? + 1;
        let length = key[begin..].iter().position(|byte| *byte == b'}').filter(|it| *it > 0)?;
        Some(&key[begin..begin + length])
    };
    // CRC-16/XMODEM, bit by bit.
    let crc = tag().unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    });
    crc % SLOTS
}
