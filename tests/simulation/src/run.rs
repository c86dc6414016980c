//! Runs a scenario on one thread, in virtual time, and writes down what was asked and answered.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_core::{
    Check, Decision, OnFailure, Take, Time,
    mends::Mend,
    store::{Group, Source, Veto},
};
use sluicegate_store::{
    Clock, Clocks, GIVE_BACK_TIMEOUT, MemorySettings, Reading, RedisStackSettings, Reset, Stack,
    redis::{Deployment, KeyPrefix, LATE_MAX, LinkSettings, Password, RedisSettings},
};
use tokio::{
    runtime::{Builder, Handle},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    network::Network,
    scenario::{Action, CheckPlan, Kind, Leaves, Scenario},
    world::{Counter, State, World},
};

/// The time of all clocks when a run starts: six hours after a midnight, in microseconds since the Unix epoch.
const START: u64 = (20_000 * 24 + 6) * 3_600 * 1_000_000;

/// More counters than any process is asked for.
const COUNTERS_MAX: usize = 1000;

/// How long everything may take to come to rest after the last action: late replies are awaited, servers asked whether they
/// still own their slots, and hits given back.
const REST: Duration =
    LATE_MAX.saturating_add(GIVE_BACK_TIMEOUT).saturating_add(Duration::from_secs(6));

/// How often it is looked whether it has.
const REST_INTERVAL: Duration = Duration::from_millis(500);

/// How long a process may take to end.
const END: Duration = Duration::from_secs(3);

/// What a request was answered.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Decided(Vec<Decision>),
    Deferred,
    /// Its caller had left.
    Left,
}

/// A request, and its answer.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Which of the scenario's actions it was.
    pub(crate) action: usize,
    pub(crate) process: usize,
    pub(crate) checks: Vec<CheckPlan>,
    pub(crate) deadline: Duration,
    /// Numbers and times of the events.
    pub(crate) began: (u64, Duration),
    pub(crate) ended: (u64, Duration),
    pub(crate) outcome: Outcome,
}

/// What makes a process forget refusals: it gave hits back, reset a counter or took up new limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Return {
    pub(crate) process: usize,
    /// Of all counters, if none.
    pub(crate) counter: Option<usize>,
    pub(crate) is_reset: bool,
    pub(crate) ended: (u64, Duration),
}

/// What was left when everything had come to rest.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rest {
    pub(crate) waiting: usize,
    pub(crate) split: usize,
    pub(crate) pending: usize,
    pub(crate) hits_unknown: u64,
    pub(crate) give_backs_failed: u64,
}

/// What happened in a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) asked: Vec<Asked>,
    pub(crate) returns: Vec<Return>,
    /// Of each process.
    pub(crate) rest: Vec<Rest>,
    /// Hits used of each counter at the end, in a run with memory: by the limit of its rule.
    pub(crate) used: Vec<Option<i64>>,
    pub(crate) counters: Vec<Counter>,
    pub(crate) tasks_left: usize,
    pub(crate) not_connected: bool,
}

/// The clock of a process.
#[derive(Debug)]
struct ProcessClock {
    began: Instant,
    skew: AtomicI64,
}

impl Clock for ProcessClock {
    fn read(&self) -> Reading {
        let steady = START + u64::try_from(self.began.elapsed().as_micros()).unwrap();
        let wall = steady.saturating_add_signed(self.skew.load(Ordering::Relaxed));
        Reading { wall: Time::from_micros(wall), steady: Time::from_micros(steady) }
    }
}

/// A future that is polled so often, and then dropped.
struct AtMost<F> {
    future: Pin<Box<F>>,
    polls: u32,
}

impl<F: Future> Future for AtMost<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.polls = self.polls.saturating_sub(1);
        match self.future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Runs a scenario. Runs of the same scenario are the same.
pub(crate) fn run(scenario: &Scenario) -> History {
    fastrand::seed(scenario.seed);
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async { Simulation::start(scenario).run().await })
}

/// A run that is under way.
struct Simulation<'s> {
    scenario: &'s Scenario,
    world: World,
    processes: Vec<(Arc<Stack>, Arc<ProcessClock>)>,
    history: Arc<Mutex<History>>,
    /// Hits of each counter that were charged and not given back, as far as callers know.
    charged: Arc<Mutex<Vec<u64>>>,
    began: Instant,
}

impl<'s> Simulation<'s> {
    fn start(scenario: &'s Scenario) -> Self {
        let (servers, is_cluster) = match scenario.kind {
            Kind::Memory => (0, false),
            Kind::Single => (1, false),
            Kind::Cluster(primaries) => (primaries, true),
        };
        let counters =
            scenario.counters.iter().map(|it| (it.key.as_bytes().to_vec(), it.limits[0]));
        let world =
            World::new(scenario.seed, servers, is_cluster, START, scenario.delays, counters);
        let process = |process| {
            let clock = Arc::new(ProcessClock { began: Instant::now(), skew: AtomicI64::new(0) });
            let clocks = Clocks { memory: Arc::<ProcessClock>::clone(&clock), redis: None };
            let local = MemorySettings { counters_max: COUNTERS_MAX };
            if scenario.kind == Kind::Memory {
                return (Arc::new(Stack::memory(local, clocks)), clock);
            }
            let addresses = (0..servers).map(State::address);
            let deployment = if is_cluster {
                Deployment::Cluster(addresses.collect())
            } else {
                Deployment::Single(State::address(0))
            };
            let link = LinkSettings {
                username: None,
                password: Password::None,
                tls: None,
                database: 0,
                connect_timeout: Duration::from_secs(2),
                connector: Some(Arc::new(Network { world: world.clone(), process })),
            };
            let redis = RedisSettings {
                deployment,
                link,
                connections: NonZeroUsize::new(scenario.connections).unwrap(),
                connections_max: 100,
                key_prefix: KeyPrefix::default(),
            };
            let settings = RedisStackSettings {
                redis,
                deny_cache_entries: scenario.deny_cache_entries,
                local,
                fallback_counters: if Mend::FallbackStartsWarm.is_on() { COUNTERS_MAX } else { 0 },
                replicas: NonZeroU32::new(u32::try_from(scenario.processes).unwrap()),
            };
            (Arc::new(Stack::redis(settings, clocks).unwrap()), clock)
        };
        Self {
            scenario,
            processes: (0..scenario.processes).map(process).collect(),
            world,
            history: Arc::default(),
            charged: Arc::new(Mutex::new(vec![0; scenario.counters.len()])),
            began: Instant::now(),
        }
    }

    async fn run(mut self) -> History {
        for (stack, _) in &self.processes {
            stack.connected(Duration::from_secs(20)).await;
            self.history.lock().not_connected |= stack.is_degraded();
        }
        self.began = Instant::now();
        let mut tasks = JoinSet::new();
        let mut moves = JoinSet::new();
        for (number, (at, action)) in self.scenario.actions.iter().enumerate() {
            sleep_until(self.began + Duration::from_millis(*at)).await;
            self.act(number, action, &mut tasks, &mut moves);
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        while let Some(ended) = moves.join_next().await {
            ended.unwrap();
        }
        let until = Instant::now() + REST;
        while !self.is_at_rest() && Instant::now() < until {
            sleep(REST_INTERVAL).await;
        }
        // What a server has received from callers who left, it may still run.
        sleep(END).await;
        self.end().await
    }

    /// Whether no process waits for anything, or owes anything.
    fn is_at_rest(&self) -> bool {
        let mut stacks = self.processes.iter().map(|(stack, _)| stack);
        stacks.all(|it| {
            it.waiting() + it.split() + it.settlements_pending() == 0 && it.fallback().owed == 0
        })
    }

    /// Looks at what is left, and ends the processes.
    async fn end(self) -> History {
        for (stack, _) in &self.processes {
            self.history.lock().rest.push(Rest {
                waiting: stack.waiting(),
                split: stack.split(),
                pending: stack.settlements_pending(),
                hits_unknown: stack.hits_unknown(),
                give_backs_failed: stack.give_backs_failed(),
            });
        }
        if self.scenario.kind == Kind::Memory {
            for counter in 0..self.scenario.counters.len() {
                let used = self.used(counter).await;
                self.history.lock().used.push(used);
            }
        }
        for (stack, _) in self.processes {
            stack.finish().await;
        }
        sleep(END).await;
        let mut history = std::mem::take(&mut *self.history.lock());
        history.tasks_left = Handle::current().metrics().num_alive_tasks();
        let counters = &mut self.world.lock().counters;
        let keys = self.scenario.counters.iter().map(|it| it.key.as_bytes());
        history.counters = keys.map(|key| counters.remove(key).unwrap()).collect();
        history.asked.sort_by_key(|it| it.began.0);
        history
    }

    /// Hits used of a counter, as the first process's store says.
    async fn used(&self, counter: usize) -> Option<i64> {
        let plan = CheckPlan {
            counter,
            limit: 0,
            take: Take::Exactly(0),
            descriptor: 0,
            veto: Veto::Alone,
            on_failure: OnFailure::Deny,
        };
        let answers = self.processes[0].0.peek(group(self.scenario, &[plan]), None).await;
        let decision = answers.first()?.ok()?;
        let capacity = i64::from(self.scenario.counters[counter].limits[0].capacity());
        let number = |it: u64| i64::try_from(it).unwrap();
        Some(capacity - number(decision.remaining) + number(decision.excess))
    }

    fn act(
        &self,
        number: usize,
        action: &Action,
        tasks: &mut JoinSet<()>,
        moves: &mut JoinSet<()>,
    ) {
        let millis = Duration::from_millis;
        match *action {
            Action::Request { process, ref checks, deadline, leaves } => {
                tasks.spawn(self.ask(number, process, checks, false, deadline, leaves));
            }
            Action::Refund { process, counter, limit, hits, deadline } => {
                let mut charged = self.charged.lock();
                let hits = hits.min(charged[counter]);
                if hits > 0 {
                    charged[counter] -= hits;
                    let check = CheckPlan {
                        counter,
                        limit,
                        take: Take::GiveBack { hits, receipt: None },
                        descriptor: 0,
                        veto: Veto::Alone,
                        on_failure: OnFailure::Allow,
                    };
                    drop(charged);
                    tasks.spawn(self.ask(number, process, &[check], true, deadline, Leaves::Never));
                }
            }
            Action::Reset { process, counter } => {
                let stack = Arc::clone(&self.processes[process].0);
                let key = self.scenario.counters[counter].key.clone();
                let (world, history) = (self.world.clone(), Arc::clone(&self.history));
                let charged = Arc::clone(&self.charged);
                tasks.spawn(async move {
                    charged.lock()[counter] = 0;
                    let reset = stack.reset(&[key], Reset::Now).await;
                    let ended = event(&world);
                    charged.lock()[counter] = 0;
                    if reset.is_ok() {
                        let it = Return { process, counter: Some(counter), is_reset: true, ended };
                        history.lock().returns.push(it);
                    }
                });
            }
            Action::Reload { process } => {
                self.processes[process].0.limits_changed();
                let ended = event(&self.world);
                let it = Return { process, counter: None, is_reset: false, ended };
                self.history.lock().returns.push(it);
            }
            Action::Cut { process, server } => {
                self.world.lock().cut(|of, to| of == process && to == server);
            }
            Action::Pause { server, millis: span } => self.world.lock().pause(server, millis(span)),
            Action::Refuse { server, millis: span, why } => {
                self.world.lock().refuse(server, millis(span), why);
            }
            Action::FlushScripts { server } => self.world.lock().flush_scripts(server),
            Action::Save { server } => self.world.lock().save(server),
            Action::FailOver { server } => self.world.lock().fail_over(server),
            Action::ServerClock { server, micros } => self.world.lock().skew(server, micros),
            Action::ProcessClock { process, micros } => {
                self.processes[process].1.skew.fetch_add(micros, Ordering::Relaxed);
            }
            Action::Move { counter, to, millis: each } => {
                let key = self.scenario.counters[counter].key.as_bytes().to_vec();
                let world = self.world.clone();
                if world.lock().begin_move(&key, to) {
                    moves.spawn(async move {
                        loop {
                            sleep(millis(each)).await;
                            if !world.lock().step_move(&key) {
                                return;
                            }
                        }
                    });
                }
            }
        }
    }

    /// Asks, and writes down the answer.
    fn ask(
        &self,
        action: usize,
        process: usize,
        checks: &[CheckPlan],
        is_refund: bool,
        deadline: u64,
        leaves: Leaves,
    ) -> impl Future<Output = ()> + Send + use<> {
        let stack = Arc::clone(&self.processes[process].0);
        let (world, history) = (self.world.clone(), Arc::clone(&self.history));
        let charged = Arc::clone(&self.charged);
        let group = group(self.scenario, checks);
        let checks = checks.to_vec();
        async move {
            let began = event(&world);
            let span = Duration::from_millis(deadline);
            let decide = stack.decide(group, Some((Instant::now() + span).into_std()));
            let answer = match leaves {
                Leaves::Never => Some(decide.await),
                Leaves::After(millis) => {
                    tokio::time::timeout(Duration::from_millis(millis), decide).await.ok()
                }
                Leaves::Polls(polls) => AtMost { future: Box::pin(decide), polls }.await,
            };
            let ended = event(&world);
            let outcome = match answer {
                Some(Ok(decisions)) => Outcome::Decided(decisions.to_vec()),
                Some(Err(_)) => Outcome::Deferred,
                None => Outcome::Left,
            };
            if let Outcome::Decided(decisions) = &outcome {
                let mut charged = charged.lock();
                for (check, decision) in checks.iter().zip(decisions) {
                    if decision.source == Source::Store {
                        charged[check.counter] += decision.granted;
                    }
                }
            }
            let deadline = began.1 + span;
            let mut history = history.lock();
            if is_refund && !matches!(outcome, Outcome::Left) {
                let counter = checks.first().map(|it| it.counter);
                history.returns.push(Return { process, counter, is_reset: false, ended });
            }
            let asked = Asked { action, process, checks, deadline, began, ended, outcome };
            history.asked.push(asked);
        }
    }
}

fn event(world: &World) -> (u64, Duration) {
    let mut state = world.lock();
    (state.event(), state.elapsed())
}

fn group(scenario: &Scenario, checks: &[CheckPlan]) -> Group {
    let check = |it: &CheckPlan| {
        let counter = &scenario.counters[it.counter];
        Check {
            key: counter.key.clone(),
            limit: counter.limits[it.limit],
            take: it.take,
            descriptor: it.descriptor,
            veto: it.veto,
            on_failure: it.on_failure,
        }
    };
    checks.iter().map(check).collect()
}
