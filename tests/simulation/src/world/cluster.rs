//! Slots, their moves between servers, and failovers.

use sluicegate_store::redis::Address;

use super::{Effect, Endpoint, State};

/// Slots of a cluster.
const SLOTS: u16 = 16_384;

impl State {
    /// The address under which a server is known at the start.
    pub(crate) fn address(server: usize) -> Address {
        Self::address_of(Endpoint { server, promotions: 0 })
    }

    pub(super) fn address_of(Endpoint { server, promotions }: Endpoint) -> Address {
        Address { host: format!("redis-{server}-{promotions}"), port: 6379 }
    }

    /// What is at an address.
    pub(crate) fn endpoint(&self, address: &Address) -> Option<Endpoint> {
        let (server, promotions) = address.host.strip_prefix("redis-")?.split_once('-')?;
        let (server, promotions): (usize, u32) = (server.parse().ok()?, promotions.parse().ok()?);
        let is_known = self.servers.get(server).is_some_and(|it| promotions <= it.promotions);
        is_known.then_some(Endpoint { server, promotions })
    }

    /// The present address of a server. In front of a single server stands a name that follows promotions.
    pub(super) fn present(&self, server: usize) -> Endpoint {
        let promotions = if self.is_cluster { self.servers[server].promotions } else { 0 };
        Endpoint { server, promotions }
    }

    /// What a replica has copied by now.
    pub(crate) fn save(&mut self, server: usize) {
        self.servers[server].saved = Some(self.servers[server].data.clone());
    }

    /// A replica takes the place of the server, with what it had copied. What it had not is lost, and it was never sent a
    /// script.
    pub(crate) fn fail_over(&mut self, server: usize) {
        let Some(saved) = self.servers[server].saved.take() else { return };
        self.wake(server);
        self.keys_of(server).iter().for_each(|key| self.verify(server, key));
        let is_here = |key: &Vec<u8>| self.owner(key) == server || self.holder(key) == server;
        let keys: Vec<Vec<u8>> = self.counters.keys().filter(|it| is_here(it)).cloned().collect();
        self.epoch += 1;
        let it = &mut self.servers[server];
        it.data = saved;
        it.has_scripts = false;
        it.promotions += 1;
        it.epoch = self.epoch;
        self.nodes = None;
        self.cut(|_, it| it == server);
        // What has moved away meanwhile, it does not keep; what was moving to it is lost with it.
        let names: Vec<Vec<u8>> = self.servers[server].data.names().cloned().collect();
        for name in names {
            let owner = self.owner(&name);
            let is_coming = self.moving.get(&key_slot(&name)) == Some(&server)
                && !self.servers[owner].data.contains(&name);
            if owner != server && !is_coming {
                self.servers[server].data.remove(&name);
            }
        }
        self.wake(server);
        for key in keys {
            let holder = self.holder(&key);
            let (before, after) = (
                self.counters[&key].hits(self.server_time(server)),
                self.hits(holder, &key, self.server_time(holder)),
            );
            self.note(holder, &key, Effect { removed: before - after, ..Effect::default() });
        }
    }

    /// Begins to move the slot of a key.
    pub(crate) fn begin_move(&mut self, key: &[u8], to: usize) -> bool {
        let slot = key_slot(key);
        let may = self.is_cluster && self.owner(key) != to && !self.moving.contains_key(&slot);
        if may {
            self.moving.insert(slot, to);
        }
        may
    }

    /// Moves one key of a slot that moves, or ends the move. Returns whether there is more.
    pub(crate) fn step_move(&mut self, key: &[u8]) -> bool {
        let slot = key_slot(key);
        let Some(&to) = self.moving.get(&slot) else { return false };
        let from = self.owner(key);
        self.wake(from);
        self.wake(to);
        // What has expired by the clock of this server may not have by that of the other.
        let is_gone = |it: &Vec<u8>| key_slot(it) == slot && self.holder(it) == from;
        let gone: Vec<Vec<u8>> = self.counters.keys().filter(|it| is_gone(it)).cloned().collect();
        for key in gone {
            if !self.servers[from].data.contains(&key) {
                self.verify(from, &key);
                self.note(from, &key, Effect::default());
            }
        }
        let mut names = self.servers[from].data.names().filter(|it| key_slot(it) == slot).cloned();
        if let Some(name) = names.next() {
            drop(names);
            self.verify(from, &name);
            let mut moved = std::mem::take(&mut self.servers[from].data);
            moved.migrate(&name, &mut self.servers[to].data);
            self.servers[from].data = moved;
            let now = (self.elapsed(), self.server_time(from));
            if let Some(counter) = self.counters.get_mut(&name) {
                counter.moved.get_or_insert(now);
            }
            self.note(to, &name, Effect::default());
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

    /// Which server has a key's slot.
    pub(super) fn owner(&self, key: &[u8]) -> usize {
        if !self.is_cluster {
            return 0;
        }
        let slot = key_slot(key);
        let evenly = usize::from(slot) * self.servers.len() / usize::from(SLOTS);
        self.moved.get(&slot).copied().unwrap_or(evenly)
    }

    /// Which server has a key, if any has: in a move, the one that it moves to may.
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

    /// The list of the cluster's nodes.
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
            let (present, epoch) = (self.present(number), self.servers[number].epoch);
            let Address { host, port } = Self::address_of(present);
            let ranges: String =
                ranges.iter().map(|(first, last)| format!(" {first}-{last}")).collect();
            let primary =
                format!("{host} {host}:{port}@1 master - 0 0 {epoch} connected{ranges}\n");
            let replicas = (0..present.promotions).map(|promotions| {
                let replica = Self::address_of(Endpoint { promotions, ..present }).host;
                format!("{replica} {replica}:{port}@1 slave {host} 0 0 {epoch} connected\n")
            });
            [primary].into_iter().chain(replicas).collect::<String>()
        };
        ranges.into_iter().enumerate().map(line).collect()
    }
}

/// The slot of a key: that of what stands between its first braces, if anything does.
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
