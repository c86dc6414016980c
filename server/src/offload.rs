//! Work that takes long, done on threads that decide nothing, a few pieces at once.

use std::sync::Arc;

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinError,
};

/// Bounds how many pieces of work run at once, and how many run or wait.
#[derive(Debug)]
pub(crate) struct Offload {
    admitted: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

/// A place among those that run or wait.
#[derive(Debug)]
pub(crate) struct OffloadTicket {
    admitted: OwnedSemaphorePermit,
    running: Arc<Semaphore>,
}

/// A place among those that run.
#[derive(Debug)]
pub(crate) struct OffloadPermit {
    _admitted: OwnedSemaphorePermit,
    _running: Option<OwnedSemaphorePermit>,
}

impl Offload {
    pub(crate) fn new(running_max: usize, admitted_max: usize) -> Self {
        Self {
            admitted: Arc::new(Semaphore::new(admitted_max)),
            running: Arc::new(Semaphore::new(running_max)),
        }
    }

    /// A place in the queue; `None` if too many have one.
    pub(crate) fn admit(&self) -> Option<OffloadTicket> {
        let admitted = Arc::clone(&self.admitted).try_acquire_owned().ok()?;
        Some(OffloadTicket { admitted, running: Arc::clone(&self.running) })
    }

    /// Places that are free to wait and to run.
    #[cfg(test)]
    pub(crate) fn free(&self) -> (usize, usize) {
        (self.admitted.available_permits(), self.running.available_permits())
    }
}

impl OffloadTicket {
    /// Waits for its turn.
    pub(crate) async fn turn(self) -> OffloadPermit {
        // Never closed, so never an error.
        OffloadPermit {
            _admitted: self.admitted,
            _running: self.running.acquire_owned().await.ok(),
        }
    }
}

impl OffloadPermit {
    /// Does the work on a thread of its own. A caller that leaves does not stop it, and its place stays taken until then.
    ///
    /// # Errors
    /// It has panicked.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        tokio::task::spawn_blocking(move || {
            let _place = self;
            work()
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn work_is_done_on_a_thread_that_decides_nothing() {
        let here = thread::current().id();
        let permit = Offload::new(1, 1).admit().unwrap().turn().await;
        assert!(permit.run(move || thread::current().id() != here).await.unwrap());
    }

    #[tokio::test]
    async fn a_place_is_free_when_the_work_is_done_or_has_panicked() {
        let offload = Offload::new(1, 1);
        let permit = offload.admit().unwrap().turn().await;
        assert!(permit.run(|| panic!("work")).await.is_err());
        assert_eq!(offload.free(), (1, 1));
    }

    #[tokio::test]
    async fn so_much_work_runs_at_once_so_much_waits_and_more_is_refused() {
        let offload = Offload::new(1, 2);
        let first = offload.admit().unwrap().turn().await;
        let second = offload.admit().unwrap();
        assert!(offload.admit().is_none());
        let (finish, wait) = mpsc::channel::<()>();
        let running = tokio::spawn(first.run(move || _ = wait.recv()));
        assert!(timeout(Duration::from_millis(20), second.turn()).await.is_err(), "it waits");
        assert_eq!(offload.free(), (1, 0), "who has left does not wait any more");
        let second = offload.admit().unwrap();
        drop(finish);
        running.await.unwrap().unwrap();
        assert_eq!(second.turn().await.run(|| 7).await.unwrap(), 7);
        assert_eq!(offload.free(), (2, 1));
    }
}
