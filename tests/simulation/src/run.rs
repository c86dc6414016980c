//! Runs a scenario on one thread, in virtual time, and records its history.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_core::{
    Charge, Check, Decision, OnFailure,
    store::{DecisionSource, Group, RefusalScope},
};
use sluicegate_store::{REFUND_TIMEOUT, ResetMode, redis::LATE_REPLY_TIMEOUT};
use tokio::{
    runtime::{Builder, Handle},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    history::{Drain, EndState, History, Invalidation, Outcome, RequestRecord},
    mutants::Mutant,
    panics,
    polls::{DroppedAfterPolls, Yielding},
    process::{InFlight, Process, START},
    scenario::{Action, Disconnect, PlannedCheck, Scenario, StoreKind},
    world::World,
};

/// The longest time after the last action in which requests, resets and drains must end.
const ACTIONS_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest time after the last answer in which the processes must come to rest: they await late replies, refresh
/// the slot map, and refund and debit hits.
const REST_TIMEOUT: Duration =
    LATE_REPLY_TIMEOUT.saturating_add(REFUND_TIMEOUT).saturating_add(Duration::from_secs(6));

/// How often the run checks whether the processes have come to rest.
const REST_INTERVAL: Duration = Duration::from_millis(500);

/// Time for servers to run the commands that they have received, and for tasks to end.
const GRACE: Duration = Duration::from_secs(3);

/// The longest time after the end of a fault in which every process must decide by the store again.
pub(crate) const RECOVERY: Duration = Duration::from_secs(4);

/// Time to the deadline of the requests after the recovery.
const RECOVERED_DEADLINE: Duration = Duration::from_secs(2);

/// One in this many actions has the planted defect.
const DEFECT_ONE_IN: usize = 7;

/// Runs a scenario. All runs of one scenario have the same history.
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
    /// By counter, the hits that answers have reported as charged, less those that were refunded.
    charged: Arc<Mutex<Vec<u64>>>,
    began: Instant,
}

impl<'s> Simulation<'s> {
    fn start(scenario: &'s Scenario) -> Self {
        let (servers, is_cluster) = match scenario.kind {
            StoreKind::Memory => (0, false),
            StoreKind::Single => (1, false),
            StoreKind::Cluster(primaries) => (primaries, true),
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
            stack.wait_until_available(Duration::from_secs(20)).await;
            self.history.lock().not_connected |= stack.is_degraded();
        }
        self.began = Instant::now();
        let mut tasks = JoinSet::new();
        let mut moves = JoinSet::new();
        for (number, (at, action)) in self.scenario.actions.iter().enumerate() {
            sleep_until(self.began + Duration::from_millis(*at)).await;
            self.act(number, action, &mut tasks, &mut moves);
        }
        // A task that has panicked is recorded by the panic hook.
        let ended = timeout(ACTIONS_TIMEOUT, async {
            while tasks.join_next().await.is_some() {}
            while moves.join_next().await.is_some() {}
        });
        if ended.await.is_err() {
            self.history.lock().unfinished = tasks.len();
            tasks.shutdown().await;
            moves.shutdown().await;
        }
        let until = Instant::now() + REST_TIMEOUT;
        while !self.is_at_rest() && Instant::now() < until {
            sleep(REST_INTERVAL).await;
        }
        // Servers may still run commands of requests whose callers have disconnected.
        sleep(GRACE).await;
        let recovered = {
            let state = self.world.lock();
            state.instant(state.faults_end() + RECOVERY)
        };
        sleep_until(recovered).await;
        for process in 0..self.processes.len() {
            self.check_after_recovery(process).await;
        }
        self.end().await
    }

    /// Whether no process has waiting requests, pending refunds, calls with late replies, or hits to be debited.
    fn is_at_rest(&self) -> bool {
        let mut stacks = self.processes.iter().map(|it| &it.stack);
        stacks.all(|it| {
            it.groups_waiting() + it.multi_slot_in_progress() + it.refunds_and_late_calls() == 0
                && it.fallback_stats().undebited == 0
        })
    }

    /// Reads every counter through a process, unless it has ended.
    async fn check_after_recovery(&self, process: usize) {
        let Process { stack, is_draining, .. } = &self.processes[process];
        if is_draining.load(Ordering::Relaxed) {
            return;
        }
        let check = |counter| PlannedCheck {
            counter,
            limit: 0,
            // Answered by the store even if the deny cache has a refusal of the counter.
            charge: Charge::Always { hits: 0, needs: 0 },
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
            Err(_) => Outcome::Disconnected,
        };
        self.history.lock().recovered.push((process, outcome));
    }

    /// Records the end state of the processes, and ends them.
    async fn end(self) -> History {
        for Process { stack, .. } in &self.processes {
            let is_counted = !Mutant::UncountedUnknownHits.is_planted();
            self.history.lock().end_states.push(EndState {
                waiting: stack.groups_waiting(),
                multi_slot: stack.multi_slot_in_progress(),
                refunds_and_late_calls: stack.refunds_and_late_calls(),
                late_answers_uncollected: stack.late_answers_uncollected(),
                is_debit_list_empty: stack.is_debit_list_empty(),
                hits_unknown: if is_counted { stack.hits_unknown() } else { 0 },
                refunds_failed: stack.refunds_failed(),
                fallback: stack.fallback_stats(),
            });
        }
        if self.scenario.kind == StoreKind::Memory {
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
        sleep(GRACE).await;
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

    /// Hits used of a counter, by the store of the first process.
    async fn used(&self, counter: usize) -> Option<i64> {
        let plan = PlannedCheck {
            counter,
            limit: 0,
            charge: Charge::IfAllowed(0),
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

    /// Performs an action, or starts the task that does.
    fn act(
        &self,
        number: usize,
        action: &Action,
        tasks: &mut JoinSet<()>,
        moves: &mut JoinSet<()>,
    ) {
        let millis = Duration::from_millis;
        let is_draining =
            |process: usize| self.processes[process].is_draining.load(Ordering::Relaxed);
        match *action {
            Action::Request { process, .. }
            | Action::Refund { process, .. }
            | Action::Reset { process, .. }
            | Action::Reload { process }
            | Action::Drain { process }
                if is_draining(process) => {}
            Action::Request { process, ref checks, deadline, disconnect } => {
                tasks.spawn(self.request(number, process, checks, false, deadline, disconnect));
            }
            Action::Refund { process, counter, limit, hits, deadline } => {
                let mut charged = self.charged.lock();
                let hits = hits.min(charged[counter]);
                if hits > 0 {
                    charged[counter] -= hits;
                    let check = PlannedCheck {
                        counter,
                        limit,
                        charge: Charge::Refund { hits, receipt: None },
                        descriptor: 0,
                        scope: RefusalScope::Request,
                        on_failure: OnFailure::Allow,
                    };
                    drop(charged);
                    let never = Disconnect::Never;
                    tasks.spawn(self.request(number, process, &[check], true, deadline, never));
                }
            }
            Action::Reset { process, counter } => {
                tasks.spawn(self.reset(process, counter));
            }
            Action::Reload { process } => {
                self.processes[process].stack.clear_deny_cache();
                let ended = event(&self.world);
                let it =
                    Invalidation { process, counter: None, is_reset: false, ended, is_undo: false };
                self.history.lock().invalidations.push(it);
            }
            Action::Drain { process } => {
                self.processes[process].is_draining.store(true, Ordering::Relaxed);
                tasks.spawn(self.drain(process));
            }
            Action::Cut { process, server } => {
                self.world.lock().cut(|of, to| of == process && to == server);
            }
            Action::Pause { server, millis: span } => self.world.lock().pause(server, millis(span)),
            Action::RejectCommands { server, millis: span, error } => {
                self.world.lock().reject_commands(server, millis(span), error);
            }
            Action::FlushScripts { server } => self.world.lock().flush_scripts(server),
            Action::Replicate { server } => self.world.lock().replicate(server),
            Action::FailOver { server } => self.world.lock().fail_over(server),
            Action::ServerClock { server, micros } => self.world.lock().set_clock(server, micros),
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
            let reset = stack.reset(&[key], ResetMode::Delete).await;
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

    /// Drains a process: ends it when its requests are answered.
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
            let pending = (
                stack.multi_slot_in_progress(),
                stack.refunds_and_late_calls(),
                stack.fallback_stats().undebited,
            );
            history.lock().drains.push(Drain { process, duration: began.elapsed(), pending });
        }
    }

    /// Sends a request, and records how it ends.
    fn request(
        &self,
        action: usize,
        process: usize,
        checks: &[PlannedCheck],
        is_refund: bool,
        deadline: u64,
        disconnect: Disconnect,
    ) -> impl Future<Output = ()> + Send + use<> {
        let stack = Arc::clone(&self.processes[process].stack);
        let in_flight = InFlight::new(&self.processes[process].in_flight);
        let (world, history) = (self.world.clone(), Arc::clone(&self.history));
        let charged = Arc::clone(&self.charged);
        let group = group(self.scenario, checks);
        let checks = checks.to_vec();
        let is_fault_free = self.scenario.is_fault_free;
        let rng = self.scenario.is_jittery.then(|| {
            let mut state = self.world.lock();
            fastrand::Rng::with_seed(state.rng.u64(..))
        });
        async move {
            let began = event(&world);
            let had_no_refunds_or_late_calls = stack.refunds_and_late_calls() == 0;
            if Mutant::PanickingTask.is_planted() && action.is_multiple_of(DEFECT_ONE_IN) {
                let none: Vec<()> = Vec::new();
                tokio::spawn(async move { none[0] });
            }
            let span = Duration::from_millis(deadline);
            let decide = stack.decide(group, Some((Instant::now() + span).into_std()));
            let decide = Yielding { future: Box::pin(decide), rng };
            let answer = match disconnect {
                Disconnect::Never => Some(decide.await),
                Disconnect::After(millis) => {
                    timeout(Duration::from_millis(millis), decide).await.ok()
                }
                Disconnect::Polls(polls) => DroppedAfterPolls { future: decide, polls }.await,
            };
            drop(in_flight);
            if Mutant::LostAnswer.is_planted() && action.is_multiple_of(DEFECT_ONE_IN) {
                std::future::pending::<()>().await;
            }
            let ended = event(&world);
            let mut outcome = match answer {
                Some(Ok(decisions)) => Outcome::Decided(decisions.to_vec()),
                Some(Err(_)) => Outcome::Deferred,
                None => Outcome::Disconnected,
            };
            if let Outcome::Decided(decisions) = &mut outcome {
                let mut charged = charged.lock();
                for (check, decision) in checks.iter().zip(decisions) {
                    if decision.source == DecisionSource::Store {
                        charged[check.counter] += decision.charged;
                    }
                    plant_in_answer(check, decision, is_fault_free);
                }
            }
            let deadline = began.1 + span;
            if ended.1 >= deadline {
                world.lock().record_timeout();
            }
            let mut history = history.lock();
            if is_refund && !matches!(outcome, Outcome::Disconnected) {
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
                had_no_refunds_or_late_calls,
            });
        }
    }
}

/// Plants a defect into a decision.
fn plant_in_answer(check: &PlannedCheck, decision: &mut Decision, is_fault_free: bool) {
    let allow = |decision: &mut Decision| {
        decision.allowed = true;
        decision.charged = check.charge.hits();
    };
    match decision.source {
        DecisionSource::Store if Mutant::WrongRemaining.is_planted() => decision.remaining += 1,
        DecisionSource::Store
            if Mutant::NeedlessPolicy.is_planted()
                && !is_fault_free
                && decision.allowed
                && check.on_failure == OnFailure::Allow =>
        {
            decision.source = DecisionSource::FailurePolicy;
        }
        DecisionSource::LocalFallback
            if Mutant::LenientFallback.is_planted() && !decision.allowed =>
        {
            allow(decision);
        }
        DecisionSource::FailurePolicy
            if Mutant::LenientPolicy.is_planted() && !decision.allowed =>
        {
            allow(decision);
        }
        _ => {}
    }
}

/// Number and time of a new event.
fn event(world: &World) -> (u64, Duration) {
    let mut state = world.lock();
    (state.event(), state.elapsed())
}

/// The group of planned checks.
fn group(scenario: &Scenario, checks: &[PlannedCheck]) -> Group {
    let check = |it: &PlannedCheck| {
        let counter = &scenario.counters[it.counter];
        Check {
            key: counter.key.clone(),
            limit: counter.limits[it.limit],
            charge: it.charge,
            descriptor: it.descriptor,
            refusal_scope: it.scope,
            on_failure: it.on_failure,
        }
    };
    checks.iter().map(check).collect()
}
