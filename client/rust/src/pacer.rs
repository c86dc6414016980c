//! The pace of workers.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use thiserror::Error;
use tokio::{sync::oneshot, task::AbortHandle, time::sleep};

use crate::{AcquireError, Check, CheckError, Client, backoff};

/// Starts the jobs of workers at the rate that a limit allows, such as that of a provider's API.
///
/// Jobs of one priority start first in, first out. While jobs of several priorities wait, they start in proportion to
/// their weights. Clones share the queues.
///
/// ```no_run
/// # use sluicegate_client::{AcquireError, Check, Client, Pacer};
/// # async fn example(client: &Client) -> Result<(), Box<dyn std::error::Error>> {
/// # async fn send(mail: &str) {}
/// let check = Check::new("workers").descriptor([("provider", "mail")]);
/// let pacer = Pacer::builder(client, check).weights([3, 1]).build()?;
/// pacer.run(0, send("urgent")).await?;
/// pacer.run(1, send("newsletter")).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Pacer {
    shared: Arc<Shared>,
}

/// Settings of a [`Pacer`].
#[must_use]
pub struct PacerBuilder {
    client: Client,
    check: Check,
    weights: Vec<u32>,
    on_error: Option<OnError>,
}

type OnError = Box<dyn Fn(&CheckError) + Send + Sync>;

/// Why weights are not valid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a pacer needs at least one weight, and weights of at least 1")]
pub struct InvalidWeights;

struct Shared {
    client: Client,
    check: Check,
    on_error: Option<OnError>,
    queues: Mutex<Queues>,
}

#[derive(Debug)]
struct Queues {
    priorities: Vec<Priority>,
    waiting: usize,
    /// Number of the next job.
    number: u64,
    /// Starts the jobs, while there are some.
    dispatcher: Option<AbortHandle>,
    /// The virtual time: the pass of the job that started last.
    virtual_time: f64,
}

/// A queue of stride scheduling: the queue with the smallest pass starts next, and its pass advances by the inverse of
/// its weight.
#[derive(Debug)]
struct Priority {
    weight: u32,
    pass: f64,
    jobs: BTreeMap<u64, oneshot::Sender<Result<(), AcquireError>>>,
}

impl PacerBuilder {
    /// Sets the weight of each priority: with `[3, 1]`, three jobs of priority 0 start for one of priority 1. Default:
    /// one priority.
    pub fn weights(mut self, weights: impl IntoIterator<Item = u32>) -> Self {
        self.weights = weights.into_iter().collect();
        self
    }

    /// Sets a function that is called with each failed call that the pacer repeats after a wait. No job starts without
    /// a verdict.
    pub fn on_error(mut self, on_error: impl Fn(&CheckError) + Send + Sync + 'static) -> Self {
        self.on_error = Some(Box::new(on_error));
        self
    }

    /// Builds the pacer.
    ///
    /// # Errors
    /// There is no weight, or one is 0.
    pub fn build(self) -> Result<Pacer, InvalidWeights> {
        if self.weights.is_empty() || self.weights.contains(&0) {
            return Err(InvalidWeights);
        }
        let priority = |weight| Priority { weight, pass: 0.0, jobs: BTreeMap::new() };
        let queues = Queues {
            priorities: self.weights.into_iter().map(priority).collect(),
            waiting: 0,
            number: 0,
            dispatcher: None,
            virtual_time: 0.0,
        };
        let shared = Shared {
            client: self.client,
            check: self.check,
            on_error: self.on_error,
            queues: Mutex::new(queues),
        };
        Ok(Pacer { shared: Arc::new(shared) })
    }
}

impl Pacer {
    /// Settings for a pacer of jobs that each cost this check.
    pub fn builder(client: &Client, check: Check) -> PacerBuilder {
        PacerBuilder { client: client.clone(), check, weights: vec![1], on_error: None }
    }

    /// Waits until a job of this priority may start, runs it, and returns its output. The priority is an index into
    /// [`weights`](PacerBuilder::weights).
    ///
    /// The job runs within this future: a pacer limits how often jobs start, not how many run at once. Dropping the
    /// future cancels the job; if it has not started, nothing is charged.
    ///
    /// If the service cannot be reached, the job waits until it can be.
    ///
    /// # Errors
    /// The service rejects the check, the client was closed, or there is no such priority. The job did not run.
    pub async fn run<T>(
        &self,
        priority: usize,
        job: impl Future<Output = T>,
    ) -> Result<T, AcquireError> {
        let mut waiting = Shared::enter(&self.shared, priority)?;
        waiting.start().await?;
        drop(waiting);
        Ok(job.await)
    }
}

/// A job that waits. If it is dropped before [`start`](Self::start) has returned, the job charges nothing.
struct Waiting {
    shared: Arc<Shared>,
    priority: usize,
    number: u64,
    started: oneshot::Receiver<Result<(), AcquireError>>,
    has_ended: bool,
}

impl Waiting {
    async fn start(&mut self) -> Result<(), AcquireError> {
        let started = (&mut self.started).await;
        self.has_ended = true;
        // The dispatcher ends without an answer only with its runtime.
        started.unwrap_or(Err(AcquireError::Closed))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.has_ended || self.shared.leave(self.priority, self.number) {
            return;
        }
        // The job was allowed to start, and was dropped first.
        if matches!(self.started.try_recv(), Ok(Ok(()))) {
            self.shared.client.spawn_refund(&self.shared.check);
        }
    }
}

impl Shared {
    /// Adds a job, and starts a dispatcher for the first one.
    fn enter(shared: &Arc<Self>, priority: usize) -> Result<Waiting, AcquireError> {
        let (start, started) = oneshot::channel();
        let mut queues = shared.lock();
        let (now, number) = (queues.virtual_time, queues.number);
        let queue =
            queues.priorities.get_mut(priority).ok_or(AcquireError::UnknownPriority(priority))?;
        if queue.jobs.is_empty() {
            // A priority without jobs saves nothing up.
            queue.pass = queue.pass.max(now);
        }
        queue.jobs.insert(number, start);
        queues.number += 1;
        queues.waiting += 1;
        if queues.dispatcher.as_ref().is_none_or(AbortHandle::is_finished) {
            let dispatcher = tokio::spawn(Self::dispatch(Arc::clone(shared)));
            queues.dispatcher = Some(dispatcher.abort_handle());
        }
        let shared = Arc::clone(shared);
        Ok(Waiting { shared, priority, number, started, has_ended: false })
    }

    /// Removes a job. Returns whether it was still waiting.
    fn leave(&self, priority: usize, number: u64) -> bool {
        let mut queues = self.lock();
        let queue = queues.priorities.get_mut(priority);
        let was_waiting = queue.is_some_and(|queue| queue.jobs.remove(&number).is_some());
        if was_waiting {
            queues.left();
        }
        was_waiting
    }

    /// Starts the waiting jobs, until it is aborted because there are none.
    async fn dispatch(shared: Arc<Self>) {
        let mut failures = 0;
        loop {
            let result = shared.client.acquire(shared.check.clone(), Duration::MAX).await;
            if let Err(AcquireError::Check(
                error @ (CheckError::Unavailable { .. } | CheckError::DeadlineExceeded { .. }),
            )) = &result
            {
                if let Some(on_error) = &shared.on_error {
                    on_error(error);
                }
                sleep(backoff(None, failures)).await;
                failures = failures.saturating_add(1);
                continue;
            }
            failures = 0;
            let is_allowed = result.is_ok();
            let is_started = shared.start(&result.map(drop));
            if is_allowed && !is_started {
                // The last job left during the call.
                shared.client.spawn_refund(&shared.check);
            }
            // A closed client fails at once: without a pause, abort would have no effect.
            tokio::task::yield_now().await;
        }
    }

    /// Starts or fails the next job. Returns whether there was one that received it.
    fn start(&self, result: &Result<(), AcquireError>) -> bool {
        let mut queues = self.lock();
        loop {
            let waiting = queues.priorities.iter_mut().filter(|queue| !queue.jobs.is_empty());
            let Some(next) = waiting.min_by(|a, b| a.pass.total_cmp(&b.pass)) else {
                return false;
            };
            let Some((_, job)) = next.jobs.pop_first() else { return false };
            let pass = next.pass;
            next.pass += 1.0 / f64::from(next.weight);
            queues.virtual_time = pass;
            queues.left();
            if job.send(result.clone()).is_ok() {
                return true;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queues {
    /// Counts a job that does not wait any more. The last one ends the dispatcher.
    fn left(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
        if self.waiting == 0
            && let Some(dispatcher) = self.dispatcher.take()
        {
            dispatcher.abort();
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, check, on_error: _, queues } = self;
        f.debug_struct("Pacer")
            .field("client", client)
            .field("check", check)
            .field("queues", queues)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PacerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, check, weights, on_error: _ } = self;
        f.debug_struct("PacerBuilder")
            .field("client", client)
            .field("check", check)
            .field("weights", weights)
            .finish_non_exhaustive()
    }
}
