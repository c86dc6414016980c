//! The simulated Redis servers: their keys, slots and faults, and the history of each counter.

mod cluster;
mod counter;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use sluicegate_core::Limit;
use sluicegate_store::redis::{Reply, Script};
use tokio::{sync::Notify, time::Instant};

use crate::{
    embedded::{Data, EmbeddedRedis, Program},
    mutants::Mutant,
    usage::Usage,
};

use cluster::key_slot;
use counter::effects;
pub(crate) use counter::{CounterHistory, Effect, Snapshot, UndoneCharge};

/// A time that is longer than any run.
const LONGER_THAN_A_RUN: Duration = Duration::from_secs(86_400);

/// One in this many commands, at random, has the planted defect.
const DEFECT_ONE_IN: u32 = 20;

thread_local! {
    /// The interpreter of all runs in this thread.
    static LUA: EmbeddedRedis = EmbeddedRedis::new();
}

/// The simulated servers, shared by all tasks of a run.
#[derive(Clone, Debug)]
pub(crate) struct World(Arc<Mutex<SimulatedServers>>);

/// Delays of messages, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    pub(crate) min: u64,
    pub(crate) max: u64,
    /// One in this many messages, at random, has a delay of up to `slow_max`; 0 for none.
    pub(crate) slow_one_in: u64,
    pub(crate) slow_max: u64,
}

/// A server at one of its addresses. In a cluster, a promoted replica has another address than the primary before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) server: usize,
    /// Number of promotions before it.
    promotions: u32,
}

/// The simulated servers: their keys, slots and faults, and the history of each counter.
#[derive(Debug)]
pub(crate) struct SimulatedServers {
    pub(crate) rng: fastrand::Rng,
    pub(crate) delays: Delays,
    began: Instant,
    /// The time of all clocks at the start, in microseconds since the Unix epoch.
    base: u64,
    events: u64,
    servers: Vec<Server>,
    /// Whether the servers are a cluster. Its slots are divided among them evenly, except those in `moved`.
    is_cluster: bool,
    /// Slots that have moved, with their servers.
    moved: BTreeMap<u16, usize>,
    /// Slots that are moving, with the servers that they move to.
    moving: BTreeMap<u16, usize>,
    epoch: u64,
    /// The reply to `CLUSTER NODES`, cached until it changes.
    nodes: Option<Vec<u8>>,
    pub(crate) counters: BTreeMap<Vec<u8>, CounterHistory>,
    /// Process and server of each connection, and what cuts it.
    connections: Vec<(usize, usize, Arc<Notify>)>,
    pub(crate) undone: Vec<UndoneCharge>,
    /// Start and end of each fault.
    pub(crate) faults: Vec<(Duration, Duration)>,
    /// Errors that the simulated servers noticed, such as unknown commands, lost counters and failed scripts.
    pub(crate) problems: Vec<String>,
}

/// A simulated Redis server.
#[derive(Debug)]
struct Server {
    data: Data,
    /// The keys that a replica has copied.
    replicated: Option<Data>,
    /// Microseconds by which its clock is ahead.
    skew: i64,
    paused_until: Instant,
    /// The time until which it rejects all commands that access keys, and the error.
    rejects: Option<(Instant, &'static str)>,
    has_scripts: bool,
    epoch: u64,
    /// Number of replicas that were promoted in its place.
    promotions: u32,
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
            replicated: None,
            skew: 0,
            paused_until: began,
            rejects: None,
            has_scripts: false,
            epoch: number as u64 + 1,
            promotions: 0,
        };
        let counter = |(key, limit)| {
            let usage = Usage::read(&limit, &Reply::Nil).unwrap();
            let snapshot = Snapshot {
                number: 0,
                at: Duration::ZERO,
                server_time: base,
                usage,
                effect: Effect::default(),
            };
            let snapshots = vec![snapshot];
            (key, CounterHistory { limit, snapshots, value: Reply::Nil, moved: None, at_end: 0 })
        };
        Self(Arc::new(Mutex::new(SimulatedServers {
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
            undone: Vec::new(),
            faults: Vec::new(),
            problems: Vec::new(),
        })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, SimulatedServers> {
        self.0.lock()
    }
}

impl SimulatedServers {
    /// The number of a new event.
    pub(crate) fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    /// The time since the start of the run.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// The time by a clock that was never set, in microseconds since the Unix epoch.
    pub(crate) fn time(&self) -> u64 {
        self.base + micros(self.elapsed())
    }

    /// Records a fault that lasts for a time span.
    fn record_fault(&mut self, span: Duration) {
        let now = self.elapsed();
        self.faults.push((now, now + span));
    }

    /// Records that a request was not answered in time.
    pub(crate) fn record_timeout(&mut self) {
        self.record_fault(Duration::ZERO);
    }

    /// The instant at this time since the start.
    pub(crate) fn instant(&self, at: Duration) -> Instant {
        self.began + at
    }

    /// The end of the last fault.
    pub(crate) fn faults_end(&self) -> Duration {
        self.faults.iter().map(|it| it.1).max().unwrap_or_default()
    }

    /// A random delay of a message.
    pub(crate) fn delay(&mut self) -> Duration {
        let Delays { min, max, slow_one_in, slow_max } = self.delays;
        let slow = slow_one_in > 0 && self.rng.u64(0..slow_one_in) == 0;
        Duration::from_millis(self.rng.u64(min..=if slow { slow_max } else { max }))
    }

    pub(crate) fn add_connection(&mut self, process: usize, server: usize, cut: Arc<Notify>) {
        self.connections.push((process, server, cut));
    }

    /// Cuts connections between a process and a server.
    pub(crate) fn cut(&mut self, is_cut: impl Fn(usize, usize) -> bool) {
        self.record_fault(Duration::ZERO);
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
        self.record_fault(span);
        let span = if Mutant::EndlessPause.is_planted() { LONGER_THAN_A_RUN } else { span };
        self.servers[server].paused_until = Instant::now() + span;
    }

    pub(crate) fn reject_commands(&mut self, server: usize, span: Duration, error: &'static str) {
        self.record_fault(span);
        self.servers[server].rejects = Some((Instant::now() + span, error));
    }

    pub(crate) fn flush_scripts(&mut self, server: usize) {
        self.servers[server].has_scripts = false;
    }

    /// Advances the clock of a server to the present, and removes expired keys.
    fn advance_clock(&mut self, server: usize) {
        let now = self.server_time(server);
        self.servers[server].data.set_time(now);
        self.servers[server].data.expire();
    }

    /// Sets the clock of a server `by` microseconds forward or back.
    pub(crate) fn set_clock(&mut self, server: usize, by: i64) {
        self.advance_clock(server);
        let keys = self.keys_of(server);
        keys.iter().for_each(|key| self.verify(server, key));
        self.servers[server].skew += by;
        self.advance_clock(server);
        for key in keys {
            self.record_snapshot(server, &key, Effect::default());
            let moved = self.counters.get_mut(&key).and_then(|it| it.moved.as_mut());
            moved.into_iter().for_each(|(_, time)| *time = time.saturating_add_signed(by));
        }
    }

    /// The keys of the counters that a server has.
    fn keys_of(&self, server: usize) -> Vec<Vec<u8>> {
        self.counters.keys().filter(|key| self.holder(key) == server).cloned().collect()
    }

    /// Runs a command. `asking`: whether the previous command was `ASKING`.
    pub(crate) fn run(
        &mut self,
        endpoint: Endpoint,
        asking: bool,
        command: &[Vec<u8>],
    ) -> CommandResult {
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        let undone = self.undone.len();
        let reply = self.reply(endpoint, asking, &words);
        // An undone charge is recorded when its reply has reached the process.
        let undone = self.undone.drain(undone..).map(|it| it.counter).collect();
        CommandResult { reply, undone }
    }

    /// Records that a process has received the reply to a command that has undone charges on these counters.
    pub(crate) fn record_undone_charges(&mut self, process: usize, undone: Vec<Vec<u8>>) {
        let replied = (self.event(), self.elapsed());
        self.undone.extend(undone.into_iter().map(|counter| UndoneCharge {
            process,
            counter,
            replied,
        }));
    }

    /// The reply to a command.
    fn reply(&mut self, endpoint: Endpoint, asking: bool, words: &[&[u8]]) -> Reply {
        let text = |at: usize| String::from_utf8_lossy(words[at]).into_owned();
        let server = endpoint.server;
        self.advance_clock(server);
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
                self.run_script(endpoint, asking, words, keys, args)
            }
            ("SET", 5) => {
                let name = words[1].to_vec();
                if let Some(error) = self.rejection(endpoint, asking, &words[1..2]) {
                    return error;
                }
                let data = &mut self.servers[server].data;
                data.insert_foreign(&name, &Reply::Text(words[2].to_vec()), text(4).parse().ok());
                Reply::Text(b"OK".to_vec())
            }
            ("UNLINK" | "EXISTS", 2..) => {
                let keys = &words[1..];
                if let Some(error) = self.rejection(endpoint, asking, keys) {
                    return error;
                }
                let found = keys.iter().filter(|it| self.servers[server].data.contains(it));
                let count = i64::try_from(found.count()).unwrap();
                if words[0] == b"UNLINK" {
                    for key in keys {
                        self.verify(server, key);
                        let removed = self.hits(server, key, self.server_time(server));
                        self.servers[server].data.remove(key);
                        self.record_snapshot(server, key, Effect { removed, ..Effect::default() });
                    }
                }
                Reply::Integer(count)
            }
            (name, _) => {
                self.problems.push(format!("unknown command {name}"));
                Reply::Error(format!("ERR unknown command {name}"))
            }
        }
    }

    /// Runs a script, and records its effects.
    fn run_script(
        &mut self,
        endpoint: Endpoint,
        asking: bool,
        words: &[&[u8]],
        keys: &[&[u8]],
        args: &[&[u8]],
    ) -> Reply {
        if let Some(error) = self.rejection(endpoint, asking, keys) {
            return error;
        }
        let server = endpoint.server;
        // Only the script of the heartbeat is sent with `EVAL`.
        let is_heartbeat = words[0] == b"EVAL";
        let program = if is_heartbeat {
            Program::Text(words[1])
        } else if self.servers[server].has_scripts {
            Program::Known(std::str::from_utf8(words[1]).unwrap())
        } else {
            return Reply::Error("NOSCRIPT No matching script.".to_owned());
        };
        let now = self.server_time(server);
        if Mutant::EvictedCounters.is_planted() && self.rng.u32(0..DEFECT_ONE_IN) == 0 {
            self.servers[server].data.remove(keys[0]);
        }
        for key in keys {
            self.verify(server, key);
            if !is_heartbeat && !self.counters.contains_key(*key) {
                let key = String::from_utf8_lossy(key);
                self.problems.push(format!("a script accesses {key}, which is not a counter"));
            }
        }
        let before: Vec<i64> = keys.iter().map(|key| self.hits(server, key, now)).collect();
        let effects =
            if is_heartbeat { vec![Effect::default()] } else { effects(args, keys.len()) };
        let is_lost = Mutant::LostDebits.is_planted() && effects.iter().any(|it| it.debited > 0);
        let data_before = is_lost.then(|| self.servers[server].data.clone());
        let data = &mut self.servers[server].data;
        let reply = if Mutant::FailingScript.is_planted() && self.rng.u32(0..DEFECT_ONE_IN) == 0 {
            Err("planted".to_owned())
        } else {
            LUA.with(|lua| lua.run_on(data, program, keys, args)).map_err(|it| it.to_string())
        };
        if Mutant::EarlyExpiry.is_planted() {
            keys.iter().for_each(|key| data.expire_early(key));
        }
        if let Some(data_before) = data_before {
            *data = data_before;
        }
        let reply = reply.unwrap_or_else(|error| {
            self.problems.push(format!("a script fails: {error}"));
            Reply::Error(format!("ERR {error}"))
        });
        for ((key, before), effect) in keys.iter().zip(before).zip(effects) {
            let charged = self.hits(server, key, now) - before;
            if effect.is_undo {
                let (process, replied) = (0, (0, Duration::ZERO));
                self.undone.push(UndoneCharge { process, counter: key.to_vec(), replied });
            }
            let debited = if is_lost { 0 } else { effect.debited };
            self.record_snapshot(server, key, Effect { charged, debited, ..effect });
        }
        reply
    }

    /// The error with which the server rejects a command on these keys, if it does: a fault or a redirection.
    fn rejection(&self, endpoint: Endpoint, asking: bool, keys: &[&[u8]]) -> Option<Reply> {
        let server = endpoint.server;
        let it = &self.servers[server];
        if let Some((until, error)) = it.rejects
            && Instant::now() < until
        {
            return Some(Reply::Error(error.to_owned()));
        }
        let first = keys.first()?;
        if !self.is_cluster {
            return None;
        }
        let (slot, owner) = (key_slot(first), self.owner(first));
        let to = self.moving.get(&slot).copied();
        let missing = keys.iter().filter(|key| !it.data.contains(key)).count();
        let redirection = |code: &str, server: usize| {
            let address = Self::address_of(self.current_endpoint(server));
            Some(Reply::Error(format!("{code} {slot} {address}")))
        };
        if endpoint != self.current_endpoint(server) {
            // The old primary is a replica now.
            return redirection("MOVED", owner);
        }
        let try_again = || Some(Reply::Error("TRYAGAIN Multiple keys request".to_owned()));
        if server == owner {
            return match to {
                Some(to) if missing == keys.len() => redirection("ASK", to),
                Some(_) if missing > 0 => try_again(),
                _ => None,
            };
        }
        if to == Some(server) && asking {
            return if keys.len() > 1 && missing > 0 { try_again() } else { None };
        }
        redirection("MOVED", owner)
    }

    /// The time by the clock of a server, in microseconds since the Unix epoch.
    fn server_time(&self, server: usize) -> u64 {
        self.time().saturating_add_signed(self.servers[server].skew)
    }

    /// Hits used of a counter on a server, at a time by its clock; 0 for a key that is not a counter.
    fn hits(&self, server: usize, key: &[u8], now: u64) -> i64 {
        let Some(counter) = self.counters.get(key) else { return 0 };
        let value = self.servers[server].data.value(key);
        let usage = Usage::read(&counter.limit, &value);
        usage.expect("the value is valid").nearest_hits(&counter.limit, now)
    }

    /// Records the value of a counter on a server, and the effect that has changed it.
    fn record_snapshot(&mut self, server: usize, key: &[u8], effect: Effect) {
        let (number, at, server_time) = (self.event(), self.elapsed(), self.server_time(server));
        let value = self.servers[server].data.value(key);
        if let Some(counter) = self.counters.get_mut(key) {
            let usage = Usage::read(&counter.limit, &value).expect("the value is valid");
            counter.snapshots.push(Snapshot { number, at, server_time, usage, effect });
            if counter.value != value {
                counter.moved = None;
            }
            counter.value = value;
        }
    }

    /// Checks that a server still has the last value of a counter, unless all of its hits have expired.
    fn verify(&mut self, server: usize, key: &[u8]) {
        let now = self.server_time(server);
        let value = self.servers[server].data.value(key);
        let Some(counter) = self.counters.get(key) else { return };
        let Some(last) = counter.snapshots.last() else { return };
        let by_first_clock = counter.moved.map(|(at, time)| time + micros(self.elapsed() - at));
        let mut times = [now].into_iter().chain(by_first_clock);
        let may_expire = times.any(|now| last.usage.hits(&counter.limit, now) == 0);
        if value != counter.value && !(value == Reply::Nil && may_expire) {
            let (key, last) = (String::from_utf8_lossy(key), &counter.value);
            let problem =
                format!("server {server} has {value:?} for {key}, whose last value is {last:?}");
            self.problems.push(problem);
        }
    }

    /// Verifies and records the value of every counter at the end.
    pub(crate) fn finish(&mut self) {
        let keys: Vec<Vec<u8>> = self.counters.keys().cloned().collect();
        for server in 0..self.servers.len() {
            self.advance_clock(server);
        }
        for key in keys {
            let holder = self.holder(&key);
            if self.servers.is_empty() {
                continue;
            }
            self.verify(holder, &key);
            let at_end = self.hits(holder, &key, self.server_time(holder));
            self.counters.get_mut(&key).unwrap().at_end = at_end;
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap()
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct CommandResult {
    pub(crate) reply: Reply,
    /// The counters on which it has undone charges of refused requests.
    pub(crate) undone: Vec<Vec<u8>>,
}
