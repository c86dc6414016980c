//! Long work on blocking threads, so that it does not delay decisions. The number of concurrent and of queued jobs is
//! bounded.

use std::sync::Arc;

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinError,
};

/// Bounds the number of jobs that run, and of those that run or wait.
#[derive(Debug)]
pub(crate) struct Offload {
    admitted: Arc<Semaphore>,
    running: Arc<Semaphore>,
}

/// The permission of a job to wait until it may run.
#[derive(Debug)]
pub(crate) struct OffloadTicket {
    admitted: OwnedSemaphorePermit,
    running: Arc<Semaphore>,
}

/// The permission of a job to run.
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

    /// Lets a job wait; `None` if too many jobs run or wait.
    pub(crate) fn admit(&self) -> Option<OffloadTicket> {
        let admitted = Arc::clone(&self.admitted).try_acquire_owned().ok()?;
        Some(OffloadTicket { admitted, running: Arc::clone(&self.running) })
    }

    /// The free tickets and the free permits.
    #[cfg(test)]
    pub(crate) fn free(&self) -> (usize, usize) {
        (self.admitted.available_permits(), self.running.available_permits())
    }
}

impl OffloadTicket {
    /// Waits until the job may run.
    pub(crate) async fn wait(self) -> OffloadPermit {
        // The semaphore is never closed, so this is never an error.
        OffloadPermit {
            _admitted: self.admitted,
            _running: self.running.acquire_owned().await.ok(),
        }
    }
}

impl OffloadPermit {
    /// Runs a job on a blocking thread. If the future is dropped, the job continues, and holds the permit until its
    /// end.
    ///
    /// # Errors
    /// The job panicked.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        tokio::task::spawn_blocking(move || {
            let _permit = self;
            job()
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
    async fn a_job_runs_on_another_thread() {
        let here = thread::current().id();
        let permit = Offload::new(1, 1).admit().unwrap().wait().await;
        assert!(permit.run(move || thread::current().id() != here).await.unwrap());
    }

    #[tokio::test]
    async fn a_permit_is_released_when_the_job_panics() {
        let offload = Offload::new(1, 1);
        let permit = offload.admit().unwrap().wait().await;
        assert!(permit.run(|| panic!("job")).await.is_err());
        assert_eq!(offload.free(), (1, 1));
    }

    #[tokio::test]
    async fn running_and_waiting_jobs_are_bounded() {
        let offload = Offload::new(1, 2);
        let first = offload.admit().unwrap().wait().await;
        let second = offload.admit().unwrap();
        assert!(offload.admit().is_none());
        let (finish, wait) = mpsc::channel::<()>();
        let running = tokio::spawn(first.run(move || _ = wait.recv()));
        assert!(timeout(Duration::from_millis(20), second.wait()).await.is_err(), "it waits");
        assert_eq!(offload.free(), (1, 0), "a dropped job does not wait any more");
        let second = offload.admit().unwrap();
        drop(finish);
        running.await.unwrap().unwrap();
        assert_eq!(second.wait().await.run(|| 7).await.unwrap(), 7);
        assert_eq!(offload.free(), (2, 1));
    }
}
