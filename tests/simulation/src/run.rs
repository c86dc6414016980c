//! Runs a scenario on one thread, in virtual time, and records what was asked and answered.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_core::{
    Charge, Check, Decision, OnFailure,
    store::{Group, RefusalScope, Source},
};
use sluicegate_store::{GIVE_BACK_TIMEOUT, Reset, redis::LATE_MAX};
use tokio::{
    runtime::{Builder, Handle},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    history::{Drain, History, Invalidation, Outcome, RequestRecord, Rest},
    mutants::Mutant,
    panics,
    polls::{AtMost, Yielding},
    process::{InFlight, Process, START},
    scenario::{Action, CheckPlan, Kind, Leaves, Scenario},
    world::World,
};

/// The longest time within which the last request must be answered, or a counter be reset.
const ANSWERED: Duration = Duration::from_secs(30);

/// How long everything may take to come to rest after the last action: late replies are awaited, servers asked whether they
/// still own their slots, and hits refunded.
const REST: Duration =
    LATE_MAX.saturating_add(GIVE_BACK_TIMEOUT).saturating_add(Duration::from_secs(6));

/// How often the simulation looks whether everything has come to rest.
const REST_INTERVAL: Duration = Duration::from_millis(500);

/// How long a process may take to end.
const END: Duration = Duration::from_secs(3);

/// How long after the end of a failure a process may take to decide by the store again.
pub(crate) const RECOVERY: Duration = Duration::from_secs(4);

/// The deadline of requests after the recovery.
const RECOVERED_DEADLINE: Duration = Duration::from_secs(2);

/// A defect is planted into one request of so many.
const PLANTED_ONE_IN: usize = 7;

/// Runs a scenario. Runs of the same scenario are the same.
pub(crate) fn run(scenario: &Scenario) -> History {
    let (history, panics) = panics::catch(|| {
        fastrand::seed(scenario.seed);
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async { Simulation::start(scenario).run().await })
    });
    History { panics, ..history.unwrap_or_default() }
}

/// A run in progress.
struct Simulation<'s> {
    scenario: &'s Scenario,
    world: World,
    processes: Vec<Process>,
    history: Arc<Mutex<History>>,
    /// Hits of each counter that were charged and not refunded, as far as callers know.
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
        let process = |number| Process::start(scenario, &world, number);
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
        for Process { stack, .. } in &self.processes {
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
        // Whether a task has panicked is noted elsewhere.
        let ended = timeout(ANSWERED, async {
            while tasks.join_next().await.is_some() {}
            while moves.join_next().await.is_some() {}
        });
        if ended.await.is_err() {
            self.history.lock().unanswered = tasks.len();
            tasks.shutdown().await;
            moves.shutdown().await;
        }
        let until = Instant::now() + REST;
        while !self.is_at_rest() && Instant::now() < until {
            sleep(REST_INTERVAL).await;
        }
        // What a server has received from callers who left, it may still run.
        sleep(END).await;
        let recovered = {
            let state = self.world.lock();
            state.instant(state.faults_end() + RECOVERY)
        };
        sleep_until(recovered).await;
        for process in 0..self.processes.len() {
            self.ask_after_recovery(process).await;
        }
        self.end().await
    }

    /// Whether no process waits for anything, or has hits to debit.
    fn is_at_rest(&self) -> bool {
        let mut stacks = self.processes.iter().map(|it| &it.stack);
        stacks.all(|it| {
            it.waiting() + it.split() + it.settlements_pending() == 0 && it.fallback().owed == 0
        })
    }

    /// Asks a process what every counter has left, unless it has ended.
    async fn ask_after_recovery(&self, process: usize) {
        let Process { stack, drains, .. } = &self.processes[process];
        if drains.load(Ordering::Relaxed) {
            return;
        }
        let check = |counter| CheckPlan {
            counter,
            limit: 0,
            // Answered by the store even where the deny cache remembers a refusal.
            take: Charge::Always { hits: 0, needs: 0 },
            descriptor: counter,
            scope: RefusalScope::None,
            on_failure: self.scenario.counters[counter].on_failure,
        };
        let checks: Vec<_> = (0..self.scenario.counters.len()).map(check).collect();
        let deadline = (Instant::now() + RECOVERED_DEADLINE).into_std();
        let answer = stack.decide(group(self.scenario, &checks), Some(deadline));
        let outcome = match timeout(RECOVERED_DEADLINE * 2, answer).await {
            Ok(Ok(decisions)) => Outcome::Decided(decisions.to_vec()),
            Ok(Err(_)) => Outcome::Deferred,
            Err(_) => Outcome::Left,
        };
        self.history.lock().recovered.push((process, outcome));
    }

    /// Looks at what is left, and ends the processes.
    async fn end(self) -> History {
        for Process { stack, .. } in &self.processes {
            let is_counted = !Mutant::UncountedUnknownHits.is_planted();
            self.history.lock().rest.push(Rest {
                waiting: stack.waiting(),
                split: stack.split(),
                pending: stack.settlements_pending(),
                late_kept: stack.late_kept(),
                is_settled: stack.is_settled(),
                hits_unknown: if is_counted { stack.hits_unknown() } else { 0 },
                give_backs_failed: stack.give_backs_failed(),
                fallback: stack.fallback(),
            });
        }
        if self.scenario.kind == Kind::Memory {
            for counter in 0..self.scenario.counters.len() {
                let used = self.used(counter).await;
                self.history.lock().used.push(used);
            }
        }
        if Mutant::EndlessTask.is_planted() {
            tokio::spawn(std::future::pending::<()>());
        }
        for Process { stack, .. } in self.processes {
            stack.finish().await;
        }
        sleep(END).await;
        let mut history = std::mem::take(&mut *self.history.lock());
        history.tasks_left = Handle::current().metrics().num_alive_tasks();
        let mut state = self.world.lock();
        state.finish();
        history.faults = std::mem::take(&mut state.faults);
        history.problems = std::mem::take(&mut state.problems);
        let keys = || self.scenario.counters.iter().map(|it| it.key.as_bytes());
        let undone = std::mem::take(&mut state.undone);
        history.invalidations.extend(undone.into_iter().map(|it| Invalidation {
            process: it.process,
            counter: keys().position(|key| key == it.counter),
            is_reset: false,
            ended: it.replied,
            is_undo: true,
        }));
        let counters = &mut state.counters;
        history.counters = keys().map(|key| counters.remove(key).unwrap()).collect();
        history.requests.sort_by_key(|it| it.began.0);
        history
    }

    /// Hits used of a counter, as the first process's store says.
    async fn used(&self, counter: usize) -> Option<i64> {
        let plan = CheckPlan {
            counter,
            limit: 0,
            take: Charge::Exactly(0),
            descriptor: 0,
            scope: RefusalScope::Request,
            on_failure: OnFailure::Deny,
        };
        let answers = self.processes[0].stack.peek(group(self.scenario, &[plan]), None).await;
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
        let drains = |process: usize| self.processes[process].drains.load(Ordering::Relaxed);
        match *action {
            Action::Request { process, .. }
            | Action::Refund { process, .. }
            | Action::Reset { process, .. }
            | Action::Reload { process }
            | Action::Drain { process }
                if drains(process) => {}
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
                        take: Charge::Refund { hits, receipt: None },
                        descriptor: 0,
                        scope: RefusalScope::Request,
                        on_failure: OnFailure::Allow,
                    };
                    drop(charged);
                    tasks.spawn(self.ask(number, process, &[check], true, deadline, Leaves::Never));
                }
            }
            Action::Reset { process, counter } => {
                tasks.spawn(self.reset(process, counter));
            }
            Action::Reload { process } => {
                self.processes[process].stack.limits_changed();
                let ended = event(&self.world);
                let it =
                    Invalidation { process, counter: None, is_reset: false, ended, is_undo: false };
                self.history.lock().invalidations.push(it);
            }
            Action::Drain { process } => {
                self.processes[process].drains.store(true, Ordering::Relaxed);
                tasks.spawn(self.drain(process));
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
                self.processes[process].clock.skew.fetch_add(micros, Ordering::Relaxed);
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

    /// Resets a counter.
    fn reset(&self, process: usize, counter: usize) -> impl Future<Output = ()> + Send + use<> {
        let stack = Arc::clone(&self.processes[process].stack);
        let in_flight = InFlight::new(&self.processes[process].in_flight);
        let key = self.scenario.counters[counter].key.clone();
        let (world, history) = (self.world.clone(), Arc::clone(&self.history));
        let charged = Arc::clone(&self.charged);
        async move {
            charged.lock()[counter] = 0;
            let reset = stack.reset(&[key], Reset::Now).await;
            let ended = event(&world);
            charged.lock()[counter] = 0;
            if reset.is_ok() {
                let counter = Some(counter);
                let it = Invalidation { process, counter, is_reset: true, ended, is_undo: false };
                history.lock().invalidations.push(it);
            }
            drop(in_flight);
        }
    }

    /// Ends a process once its requests are answered.
    fn drain(&self, process: usize) -> impl Future<Output = ()> + Send + use<> {
        let Process { stack, in_flight, .. } = &self.processes[process];
        let (stack, in_flight) = (Arc::clone(stack), Arc::clone(in_flight));
        let history = Arc::clone(&self.history);
        async move {
            while in_flight.load(Ordering::Relaxed) > 0 {
                sleep(Duration::from_millis(1)).await;
            }
            let began = Instant::now();
            if !Mutant::DrainWithoutWaiting.is_planted() {
                stack.finish().await;
            }
            let left = (stack.split(), stack.settlements_pending(), stack.fallback().owed);
            history.lock().drains.push(Drain { process, took: began.elapsed(), left });
        }
    }

    /// Asks, and records the answer.
    fn ask(
        &self,
        action: usize,
        process: usize,
        checks: &[CheckPlan],
        is_refund: bool,
        deadline: u64,
        leaves: Leaves,
    ) -> impl Future<Output = ()> + Send + use<> {
        let stack = Arc::clone(&self.processes[process].stack);
        let in_flight = InFlight::new(&self.processes[process].in_flight);
        let (world, history) = (self.world.clone(), Arc::clone(&self.history));
        let charged = Arc::clone(&self.charged);
        let group = group(self.scenario, checks);
        let checks = checks.to_vec();
        let is_calm = self.scenario.is_calm;
        let rng = self.scenario.unsteady.then(|| {
            let mut state = self.world.lock();
            fastrand::Rng::with_seed(state.rng.u64(..))
        });
        async move {
            let began = event(&world);
            let was_settled = stack.settlements_pending() == 0;
            if Mutant::PanickingTask.is_planted() && action.is_multiple_of(PLANTED_ONE_IN) {
                let none: Vec<()> = Vec::new();
                tokio::spawn(async move { none[0] });
            }
            let span = Duration::from_millis(deadline);
            let decide = stack.decide(group, Some((Instant::now() + span).into_std()));
            let decide = Yielding { future: Box::pin(decide), rng };
            let answer = match leaves {
                Leaves::Never => Some(decide.await),
                Leaves::After(millis) => timeout(Duration::from_millis(millis), decide).await.ok(),
                Leaves::Polls(polls) => AtMost { future: decide, polls }.await,
            };
            drop(in_flight);
            if Mutant::LostAnswer.is_planted() && action.is_multiple_of(PLANTED_ONE_IN) {
                std::future::pending::<()>().await;
            }
            let ended = event(&world);
            let mut outcome = match answer {
                Some(Ok(decisions)) => Outcome::Decided(decisions.to_vec()),
                Some(Err(_)) => Outcome::Deferred,
                None => Outcome::Left,
            };
            if let Outcome::Decided(decisions) = &mut outcome {
                let mut charged = charged.lock();
                for (check, decision) in checks.iter().zip(decisions) {
                    if decision.source == Source::Store {
                        charged[check.counter] += decision.charged;
                    }
                    falsify(check, decision, is_calm);
                }
            }
            let deadline = began.1 + span;
            if ended.1 >= deadline {
                world.lock().note_silence();
            }
            let mut history = history.lock();
            if is_refund && !matches!(outcome, Outcome::Left) {
                let counter = checks.first().map(|it| it.counter);
                let it = Invalidation { process, counter, is_reset: false, ended, is_undo: false };
                history.invalidations.push(it);
            }
            history.requests.push(RequestRecord {
                action,
                process,
                checks,
                deadline,
                began,
                ended,
                outcome,
                was_settled,
            });
        }
    }
}

/// Plants a defect into an answer.
fn falsify(check: &CheckPlan, decision: &mut Decision, is_calm: bool) {
    let permit = |decision: &mut Decision| {
        decision.allowed = true;
        decision.charged = check.take.hits();
    };
    match decision.source {
        Source::Store if Mutant::WrongRemaining.is_planted() => decision.remaining += 1,
        Source::Store
            if Mutant::NeedlessPolicy.is_planted()
                && !is_calm
                && decision.allowed
                && check.on_failure == OnFailure::Allow =>
        {
            decision.source = Source::Policy;
        }
        Source::Local if Mutant::LenientFallback.is_planted() && !decision.allowed => {
            permit(decision);
        }
        Source::Policy if Mutant::LenientPolicy.is_planted() && !decision.allowed => {
            permit(decision);
        }
        _ => {}
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
            charge: it.take,
            descriptor: it.descriptor,
            refusal_scope: it.scope,
            on_failure: it.on_failure,
        }
    };
    checks.iter().map(check).collect()
}
