//! Waiting until a check is allowed.

use std::{
    collections::{BTreeMap, HashMap},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use thiserror::Error;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    time::{Instant, sleep_until, timeout_at},
};

use crate::{
    Check, CheckError, Client, Verdict,
    backoff::{with_jitter, without_retry_after},
    check::CheckKey,
};

/// Why a wait for a limit ended without permission.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireError {
    /// The limit did not allow the check within the maximum wait.
    #[error("not allowed within the maximum wait")]
    WaitExceeded,
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
    /// A check failed.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The pacer has no such priority.
    #[error("no priority {0}")]
    UnknownPriority(usize),
}

impl Client {
    /// Asks until the check is allowed, and returns its verdict. After a refusal it waits as long as the service
    /// reports, with jitter, so that the processes that share a limit do not return together.
    ///
    /// Callers of one client and its clones that check the same descriptors share one schedule: they are served first
    /// in, first out, and only the first of them asks, however many wait.
    ///
    /// A caller that gives up, by dropping the future, is not charged: a check in flight is awaited in the background,
    /// and refunded if it was allowed. [`close`](Self::close) awaits these.
    ///
    /// Sluicegate reports times in whole seconds, rounded up. For rates of more than one a second, start it with
    /// `--dynamic-metadata`, which has the exact time.
    ///
    /// # Errors
    /// [`WaitExceeded`](AcquireError::WaitExceeded) if `max_wait` has passed, or as soon as the next check would be
    /// later than that. A check that began in time is awaited. With a `max_wait` of zero it asks once, if no other caller
    /// waits; with [`Duration::MAX`] it waits without end. [`Check`](AcquireError::Check) if a check failed, and
    /// [`Closed`](AcquireError::Closed).
    pub async fn acquire(&self, check: Check, max_wait: Duration) -> Result<Verdict, AcquireError> {
        let deadline = Instant::now().checked_add(max_wait);
        let turn = self.schedules.enter(check.key())?;
        let mut closing = self.schedules.closing.subscribe();
        tokio::select! {
            biased;
            result = self.wait(check, turn, deadline) => result,
            _ = closing.wait_for(|is_closing| *is_closing) => Err(AcquireError::Closed),
        }
    }

    async fn wait(
        &self,
        check: Check,
        mut turn: Turn,
        deadline: Option<Instant>,
    ) -> Result<Verdict, AcquireError> {
        turn.wait_until_first(deadline).await?;
        loop {
            if let Some(next) = turn.next_check() {
                if deadline.is_some_and(|deadline| next > deadline) {
                    return Err(AcquireError::WaitExceeded);
                }
                sleep_until(next).await;
            }
            let (returned, result) = InFlight::new(self, &check, turn).await;
            turn = returned;
            let verdict = result?;
            if verdict.allowed {
                return Ok(verdict);
            }
            turn.delay_next_check(&verdict);
        }
    }

    /// Ends the waits of [`acquire`](Self::acquire) and of pacers with [`Closed`](AcquireError::Closed), and awaits the
    /// refunds of callers that gave up. The end of a program would otherwise interrupt them.
    ///
    /// Applies to all clones. Calls of [`check`](Self::check) stay possible.
    pub async fn close(&self) {
        self.schedules.closing.send_replace(true);
        let mut pending = self.schedules.pending.subscribe();
        // The sender lives as long as the client.
        let _ = pending.wait_for(|pending| *pending == 0).await;
    }

    /// Returns the hits of a check that was allowed. If that fails they stay charged.
    async fn refund(&self, check: &Check) {
        let _ = self.check(check.undo()).await;
    }

    /// Refunds in the background.
    pub(crate) fn spawn_refund(&self, check: &Check) {
        let pending = Pending::new(&self.schedules);
        let (client, check) = (self.clone(), check.clone());
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                client.refund(&check).await;
                drop(pending);
            });
        }
    }
}

type Call = Pin<Box<dyn Future<Output = Result<Verdict, CheckError>> + Send>>;

/// The call of a waiter. If this future is dropped, the call continues in the background, and is refunded if it was
/// allowed.
struct InFlight {
    parts: Option<(Call, Client, Check, Turn)>,
    runtime: Option<Handle>,
}

impl InFlight {
    fn new(client: &Client, check: &Check, turn: Turn) -> Self {
        let (caller, asked) = (client.clone(), check.clone());
        let call = Box::pin(async move { caller.check(asked).await });
        let parts = Some((call as Call, client.clone(), check.clone(), turn));
        Self { parts, runtime: Handle::try_current().ok() }
    }
}

impl Future for InFlight {
    type Output = (Turn, Result<Verdict, CheckError>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some((call, ..)) = &mut self.parts else { return Poll::Pending };
        let result = ready!(call.as_mut().poll(context));
        match self.parts.take() {
            Some((.., turn)) => Poll::Ready((turn, result)),
            None => Poll::Pending,
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let (Some((call, client, check, turn)), Some(runtime)) = (self.parts.take(), &self.runtime)
        else {
            return;
        };
        runtime.spawn(async move {
            if call.await.is_ok_and(|verdict| verdict.allowed) {
                client.refund(&check).await;
            }
            // The next waiter asks when nothing of this call is charged any more.
            drop(turn);
        });
    }
}

/// A schedule for each key that has waiters. The number of waiters bounds it.
#[derive(Debug, Default)]
pub(crate) struct Schedules {
    by_key: Mutex<HashMap<CheckKey, Schedule>>,
    closing: watch::Sender<bool>,
    /// Waiters and refunds, including calls of waiters that gave up.
    pending: watch::Sender<usize>,
}

/// The waiters of a key, in order of arrival. Only the first waiter uses the other fields.
#[derive(Debug, Default)]
struct Schedule {
    /// Notifies a waiter that it is the first one; `None` for the first one.
    turns: BTreeMap<u64, Option<oneshot::Sender<()>>>,
    /// Number of the next waiter.
    number: u64,
    /// The earliest time of the next check.
    next: Option<Instant>,
    /// Refusals in a row that reported no time.
    refusals: u32,
}

/// Something that [`Client::close`] awaits.
#[derive(Debug)]
struct Pending(Arc<Schedules>);

impl Pending {
    fn new(schedules: &Arc<Schedules>) -> Self {
        schedules.pending.send_modify(|pending| *pending = pending.saturating_add(1));
        Self(Arc::clone(schedules))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.send_modify(|pending| *pending = pending.saturating_sub(1));
    }
}

/// The place of a waiter in its schedule, which it leaves when this is dropped.
#[derive(Debug)]
struct Turn {
    key: CheckKey,
    number: u64,
    first: oneshot::Receiver<()>,
    pending: Pending,
}

impl Schedules {
    /// Adds a waiter at the end of the queue of a key.
    fn enter(self: &Arc<Self>, key: CheckKey) -> Result<Turn, AcquireError> {
        // Counted before the look at `closing`, so that a client that closes meanwhile waits for it.
        let pending = Pending::new(self);
        if *self.closing.borrow() {
            return Err(AcquireError::Closed);
        }
        let (notify, first) = oneshot::channel();
        let mut by_key = self.lock();
        let schedule = by_key.entry(key.clone()).or_default();
        let number = schedule.number;
        schedule.number += 1;
        let notify = if schedule.turns.is_empty() {
            let _ = notify.send(());
            None
        } else {
            Some(notify)
        };
        schedule.turns.insert(number, notify);
        Ok(Turn { key, number, first, pending })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CheckKey, Schedule>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Waits until this waiter is the first one.
    async fn wait_until_first(&mut self, deadline: Option<Instant>) -> Result<(), AcquireError> {
        let first = &mut self.first;
        match deadline {
            None => first.await.map_err(|_| AcquireError::Closed),
            Some(deadline) => match timeout_at(deadline, first).await {
                Ok(received) => received.map_err(|_| AcquireError::Closed),
                Err(_) => Err(AcquireError::WaitExceeded),
            },
        }
    }

    fn next_check(&self) -> Option<Instant> {
        self.pending.0.lock().get(&self.key)?.next
    }

    /// Sets the time of the next check.
    fn delay_next_check(&self, verdict: &Verdict) {
        let mut by_key = self.pending.0.lock();
        let Some(schedule) = by_key.get_mut(&self.key) else { return };
        let delay = if let Some(delay) = verdict.delay() {
            schedule.refusals = 0;
            with_jitter(delay)
        } else {
            schedule.refusals = schedule.refusals.saturating_add(1);
            without_retry_after(schedule.refusals - 1)
        };
        schedule.next = Some(instant_after(delay));
    }
}

/// The time after a delay, or if there is none, one that is later than any wait.
fn instant_after(delay: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(delay).unwrap_or_else(|| now + Duration::from_secs(365 * 24 * 60 * 60))
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut by_key = self.pending.0.lock();
        let Some(schedule) = by_key.get_mut(&self.key) else { return };
        let was_first = schedule.turns.first_key_value().is_some_and(|(it, _)| *it == self.number);
        schedule.turns.remove(&self.number);
        match schedule.turns.first_entry() {
            None => {
                by_key.remove(&self.key);
            }
            Some(mut next) if was_first => {
                // If that waiter is being dropped, its own drop notifies the next one.
                if let Some(notify) = next.get_mut().take() {
                    let _ = notify.send(());
                }
            }
            Some(_) => {}
        }
    }
}
