//! The simulated Redis servers: their keys, slots and faults, and a record of what became of each counter.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use sluicegate_core::Limit;
use sluicegate_store::redis::{Address, Reply, Script};
use tokio::{sync::Notify, time::Instant};

use crate::{
    embedded::{Data, EmbeddedRedis, Program},
    usage::Usage,
};

/// Slots of a cluster.
const SLOTS: u16 = 16_384;

thread_local! {
    /// One interpreter serves all runs of a thread.
    static LUA: EmbeddedRedis = EmbeddedRedis::new();
}

/// The servers, shared by all that is simulated.
#[derive(Clone, Debug)]
pub(crate) struct World(Arc<Mutex<State>>);

/// How long messages are under way, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    pub(crate) min: u64,
    pub(crate) max: u64,
    /// One message of so many takes up to `slow_max`; 0 for none.
    pub(crate) slow_one_in: u64,
    pub(crate) slow_max: u64,
}

/// What happened to a counter.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// The number of the event.
    pub(crate) number: u64,
    /// When, since the start of the run.
    pub(crate) at: Duration,
    /// The same by the server's clock, in microseconds.
    pub(crate) server_time: u64,
    pub(crate) usage: Usage,
    /// Hits that the call gave back: for a moment within it, usage may have been higher or lower by as many.
    pub(crate) given: u64,
    /// By how much a script changed the hits used.
    pub(crate) change: i64,
}

/// What a counter went through.
#[derive(Debug)]
pub(crate) struct Counter {
    pub(crate) limit: Limit,
    pub(crate) pieces: Vec<Piece>,
    /// Whether it was reset, or set back by a failover.
    pub(crate) is_cut: bool,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) rng: fastrand::Rng,
    pub(crate) delays: Delays,
    began: Instant,
    /// The time of all clocks at the start, in microseconds since the Unix epoch.
    base: u64,
    events: u64,
    servers: Vec<Server>,
    /// Whether the servers are a cluster: its slots are divided among them evenly, but for those that moved.
    is_cluster: bool,
    moved: BTreeMap<u16, usize>,
    moving: BTreeMap<u16, usize>,
    epoch: u64,
    /// The list of the cluster's nodes, as long as it is true.
    nodes: Option<Vec<u8>>,
    pub(crate) counters: BTreeMap<Vec<u8>, Counter>,
    connections: Vec<(usize, usize, Arc<Notify>)>,
}

#[derive(Debug)]
struct Server {
    data: Data,
    saved: Option<Data>,
    skew: i64,
    paused_until: Instant,
    refuses: Option<(Instant, &'static str)>,
    has_scripts: bool,
    epoch: u64,
}

impl World {
    pub(crate) fn new(
        seed: u64,
        servers: usize,
        is_cluster: bool,
        base: u64,
        delays: Delays,
        counters: impl IntoIterator<Item = (Vec<u8>, Limit)>,
    ) -> Self {
        let began = Instant::now();
        let server = |number: usize| Server {
            data: Data::default(),
            saved: None,
            skew: 0,
            paused_until: began,
            refuses: None,
            has_scripts: false,
            epoch: number as u64 + 1,
        };
        let counter = |(key, limit)| {
            let usage = Usage::read(&limit, &Reply::Nil).unwrap();
            let piece = Piece {
                number: 0,
                at: Duration::ZERO,
                server_time: base,
                usage,
                given: 0,
                change: 0,
            };
            (key, Counter { limit, pieces: vec![piece], is_cut: false })
        };
        Self(Arc::new(Mutex::new(State {
            rng: fastrand::Rng::with_seed(seed),
            delays,
            began,
            base,
            events: 0,
            servers: (0..servers).map(server).collect(),
            is_cluster,
            moved: BTreeMap::new(),
            moving: BTreeMap::new(),
            epoch: servers as u64,
            nodes: None,
            counters: counters.into_iter().map(counter).collect(),
            connections: Vec::new(),
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl State {
    /// The number of an event that happens now.
    pub(crate) fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    /// The time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// The time of clocks that were never set, in microseconds since the Unix epoch.
    pub(crate) fn time(&self) -> u64 {
        self.base + u64::try_from(self.elapsed().as_micros()).unwrap()
    }

    pub(crate) fn servers(&self) -> usize {
        self.servers.len()
    }

    pub(crate) fn address(server: usize) -> Address {
        Address { host: format!("redis-{server}"), port: 6379 }
    }

    pub(crate) fn server_at(address: &Address) -> Option<usize> {
        address.host.strip_prefix("redis-")?.parse().ok()
    }

    /// For how long a message is under way.
    pub(crate) fn delay(&mut self) -> Duration {
        let Delays { min, max, slow_one_in, slow_max } = self.delays;
        let slow = slow_one_in > 0 && self.rng.u64(0..slow_one_in) == 0;
        Duration::from_millis(self.rng.u64(min..=if slow { slow_max } else { max }))
    }

    pub(crate) fn connected(&mut self, process: usize, server: usize, cut: Arc<Notify>) {
        self.connections.push((process, server, cut));
    }

    /// Cuts connections between a process and a server.
    pub(crate) fn cut(&mut self, is_cut: impl Fn(usize, usize) -> bool) {
        self.connections.retain(|(process, server, cut)| {
            let cuts = is_cut(*process, *server);
            if cuts {
                cut.notify_one();
            }
            !cuts
        });
    }

    pub(crate) fn paused_until(&self, server: usize) -> Instant {
        self.servers[server].paused_until
    }

    pub(crate) fn pause(&mut self, server: usize, span: Duration) {
        self.servers[server].paused_until = Instant::now() + span;
    }

    pub(crate) fn refuse(&mut self, server: usize, span: Duration, why: &'static str) {
        self.servers[server].refuses = Some((Instant::now() + span, why));
    }

    pub(crate) fn flush_scripts(&mut self, server: usize) {
        self.servers[server].has_scripts = false;
    }

    /// Sets the clock of a server.
    pub(crate) fn skew(&mut self, server: usize, by: i64) {
        self.servers[server].skew += by;
        for key in self.keys_of(server) {
            self.note(server, &key, 0, 0);
        }
    }

    /// The counters that a server has.
    fn keys_of(&self, server: usize) -> Vec<Vec<u8>> {
        self.counters.keys().filter(|key| self.owner(key) == server).cloned().collect()
    }

    /// What a replica has copied by now.
    pub(crate) fn save(&mut self, server: usize) {
        self.servers[server].saved = Some(self.servers[server].data.clone());
    }

    /// A replica takes the place of the server, with what it had copied. What it had not is lost.
    pub(crate) fn fail_over(&mut self, server: usize) {
        let Some(saved) = self.servers[server].saved.take() else { return };
        let had = std::mem::replace(&mut self.servers[server].data, saved);
        self.epoch += 1;
        self.servers[server].epoch = self.epoch;
        self.nodes = None;
        self.cut(|_, it| it == server);
        // What has moved away meanwhile, it does not keep; what was moving to it is lost with it.
        let names: Vec<Vec<u8>> = self.servers[server].data.names().cloned().collect();
        for name in names {
            let is_coming = self.moving.get(&key_slot(&name)) == Some(&server);
            if self.owner(&name) != server && !is_coming {
                self.servers[server].data.remove(&name);
            }
        }
        let keys: Vec<Vec<u8>> = self.counters.keys().cloned().collect();
        for key in keys {
            if self.owner(&key) == server || had.contains(&key) {
                self.note(server, &key, 0, 0);
                self.counters.get_mut(&key).unwrap().is_cut = true;
            }
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
        let names: Vec<Vec<u8>> =
            self.servers[from].data.names().filter(|it| key_slot(it) == slot).cloned().collect();
        if let Some(name) = names.first() {
            let moved = self.servers[from].data.remove(name).unwrap();
            self.servers[to].data.insert(name.clone(), moved);
            return true;
        }
        self.moving.remove(&slot);
        self.moved.insert(slot, to);
        self.epoch += 1;
        self.servers[to].epoch = self.epoch;
        self.nodes = None;
        false
    }

    /// Which server has a key's slot.
    fn owner(&self, key: &[u8]) -> usize {
        if !self.is_cluster {
            return 0;
        }
        let slot = key_slot(key);
        let evenly = usize::from(slot) * self.servers.len() / usize::from(SLOTS);
        self.moved.get(&slot).copied().unwrap_or(evenly)
    }

    /// Runs a command. `asking` says whether the one before it was ASKING.
    pub(crate) fn run(&mut self, server: usize, asking: bool, command: &[Vec<u8>]) -> Reply {
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        let text = |at: usize| String::from_utf8_lossy(words[at]).into_owned();
        let now = self.server_time(server);
        self.servers[server].data.set_time(now);
        self.servers[server].data.expire();
        match (text(0).as_str(), words.len()) {
            ("PING" | "ASKING", 1) => Reply::Text(b"OK".to_vec()),
            ("CLUSTER", 2) if words[1] == b"NODES" => {
                let known = self.nodes.take().unwrap_or_else(|| self.list_nodes().into_bytes());
                Reply::Text(self.nodes.insert(known).clone())
            }
            ("CLUSTER", 2) if words[1] == b"INFO" => Reply::Text(b"cluster_state:ok\r\n".to_vec()),
            ("INFO", _) => Reply::Text(b"used_memory:1\r\nmaxmemory:0\r\n".to_vec()),
            ("SCRIPT", 3) if words[1] == b"LOAD" => {
                let script = Script::all().find(|it| it.text.as_bytes() == words[2]).unwrap();
                self.servers[server].has_scripts = true;
                Reply::Text(script.sha1.clone().into_bytes())
            }
            ("EVALSHA" | "EVAL", 3..) => {
                let count: usize = text(2).parse().unwrap();
                let (keys, args) = words[3..].split_at(count);
                self.run_script(server, asking, &words, keys, args)
            }
            ("SET", 5) => {
                let name = words[1].to_vec();
                if let Some(error) = self.refusal(server, asking, &words[1..2]) {
                    return error;
                }
                let data = &mut self.servers[server].data;
                data.put_foreign(&name, &Reply::Text(words[2].to_vec()), text(4).parse().ok());
                Reply::Text(b"OK".to_vec())
            }
            ("UNLINK" | "EXISTS", 2..) => {
                let keys = &words[1..];
                if let Some(error) = self.refusal(server, asking, keys) {
                    return error;
                }
                let found = keys.iter().filter(|it| self.servers[server].data.contains(it));
                let count = i64::try_from(found.count()).unwrap();
                if words[0] == b"UNLINK" {
                    for key in keys {
                        self.servers[server].data.remove(key);
                        self.note(server, key, 0, 0);
                        if let Some(counter) = self.counters.get_mut(*key) {
                            counter.is_cut = true;
                        }
                    }
                }
                Reply::Integer(count)
            }
            (name, _) => Reply::Error(format!("ERR unknown command {name}")),
        }
    }

    fn run_script(
        &mut self,
        server: usize,
        asking: bool,
        words: &[&[u8]],
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Reply {
        if let Some(error) = self.refusal(server, asking, keys) {
            return error;
        }
        let program = if words[0] == b"EVAL" {
            Program::Text(words[1])
        } else if self.servers[server].has_scripts {
            Program::Known(std::str::from_utf8(words[1]).unwrap())
        } else {
            return Reply::Error("NOSCRIPT No matching script.".to_owned());
        };
        let now = self.server_time(server);
        let before: Vec<i64> = keys.iter().map(|key| self.hits(server, key, now)).collect();
        let data = &mut self.servers[server].data;
        let reply = LUA.with(|lua| lua.run_on(data, program, keys, args));
        let reply = reply.unwrap_or_else(|error| Reply::Error(format!("ERR {error}")));
        for (position, (key, before)) in keys.iter().zip(before).enumerate() {
            let after = self.hits(server, key, now);
            if self.counters.contains_key(*key) {
                self.note(server, key, given_back(args, position + 1), after - before);
            }
        }
        reply
    }

    /// Why the server does not run what is asked about these keys, if it does not.
    fn refusal(&self, server: usize, asking: bool, keys: &[&[u8]]) -> Option<Reply> {
        let it = &self.servers[server];
        if let Some((until, why)) = it.refuses
            && Instant::now() < until
        {
            return Some(Reply::Error(why.to_owned()));
        }
        let first = keys.first()?;
        if !self.is_cluster {
            return None;
        }
        let (slot, owner) = (key_slot(first), self.owner(first));
        let to = self.moving.get(&slot).copied();
        let missing = keys.iter().filter(|key| !it.data.contains(key)).count();
        let named = |code: &str, server: usize| {
            Some(Reply::Error(format!("{code} {slot} {}", Self::address(server))))
        };
        let try_again = || Some(Reply::Error("TRYAGAIN Multiple keys request".to_owned()));
        if server == owner {
            return match to {
                Some(to) if missing == keys.len() => named("ASK", to),
                Some(_) if missing > 0 => try_again(),
                _ => None,
            };
        }
        if to == Some(server) && asking {
            return if keys.len() > 1 && missing > 0 { try_again() } else { None };
        }
        named("MOVED", owner)
    }

    /// The list of the cluster's nodes.
    fn list_nodes(&self) -> String {
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
            let Address { host, port } = Self::address(number);
            let epoch = self.servers[number].epoch;
            let ranges: String =
                ranges.iter().map(|(first, last)| format!(" {first}-{last}")).collect();
            format!("{number} {host}:{port}@1 master - 0 0 {epoch} connected{ranges}\n")
        };
        ranges.into_iter().enumerate().map(line).collect()
    }

    fn server_time(&self, server: usize) -> u64 {
        self.time().saturating_add_signed(self.servers[server].skew)
    }

    /// Hits of a counter that a server has, at a time.
    fn hits(&self, server: usize, key: &[u8], now: u64) -> i64 {
        let Some(counter) = self.counters.get(key) else { return 0 };
        let value = self.servers[server].data.value(key);
        let usage = Usage::read(&counter.limit, &value);
        usage.expect("what is stored is a state").nearest_hits(&counter.limit, now)
    }

    /// Writes down how a counter is.
    fn note(&mut self, server: usize, key: &[u8], given: u64, change: i64) {
        let (number, at, server_time) = (self.event(), self.elapsed(), self.server_time(server));
        let value = self.servers[server].data.value(key);
        if let Some(counter) = self.counters.get_mut(key) {
            let usage = Usage::read(&counter.limit, &value).expect("what is stored is a state");
            counter.pieces.push(Piece { number, at, server_time, usage, given, change });
        }
    }
}

/// Hits that a call gives back to the key at a position, from 1. The arguments are described in `lua/settle.lua`.
fn given_back(args: &[&[u8]], key: usize) -> u64 {
    let number = |at: usize| -> u64 { std::str::from_utf8(args[at]).unwrap().parse().unwrap() };
    let mut given = 0;
    let mut at = usize::try_from(number(1)).unwrap() - 1;
    while at < args.len() {
        let word = number(at);
        let of_key = usize::try_from(word >> 7 & 0xffff).unwrap() == key;
        at += match word & 7 {
            0 => 1,
            1 | 2 => 2,
            3 => 3,
            take @ (4 | 5) => {
                if of_key {
                    given += number(at + 1);
                }
                if take == 4 { 2 } else { 4 }
            }
            // A chain gives nothing back.
            _ => {
                let chain = usize::try_from(word >> 35).unwrap() - 1;
                let is_one = word >> 3 & 0xffff == 0;
                if is_one { usize::try_from(number(chain) >> 3).unwrap() } else { 1 }
            }
        };
    }
    given
}

/// The slot of a key: that of what stands between its first braces, if anything does.
fn key_slot(key: &[u8]) -> u16 {
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
