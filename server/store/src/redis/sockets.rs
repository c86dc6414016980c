//! The division of sockets among the servers.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The error of a server without a connection because there are more servers than sockets.
pub(super) const NO_DESCRIPTORS: &str =
    "no file descriptors left for this server: raise the limit of open files";

/// The sockets for connections to all servers. Queries for the topology use further sockets, one at a time.
#[derive(Debug)]
pub(super) struct Sockets {
    permits: Arc<Semaphore>,
    total_max: usize,
    per_server_max: usize,
}

impl Sockets {
    pub(super) fn new(total_max: usize, per_server_max: usize) -> Self {
        let permits = Semaphore::new(total_max.min(Semaphore::MAX_PERMITS));
        Self { permits: Arc::new(permits), total_max, per_server_max }
    }

    /// The most sockets for all servers.
    pub(super) const fn total_max(&self) -> usize {
        self.total_max
    }

    /// The most sockets for one server.
    pub(super) const fn per_server_max(&self) -> usize {
        self.per_server_max
    }

    /// The number of sockets for the server at a position of a list of `servers` servers. No server has two sockets
    /// before every server has one.
    pub(super) fn sockets_for(&self, position: usize, servers: usize) -> usize {
        let (each, left) = match servers {
            0 => (self.total_max, 0),
            _ => (self.total_max / servers, self.total_max % servers),
        };
        (each + usize::from(position < left)).min(self.per_server_max)
    }

    /// Waits for a free socket: those of servers that are no longer used may not be closed yet.
    pub(super) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        // Nothing closes the semaphore.
        Arc::clone(&self.permits).acquire_owned().await.ok()
    }

    /// A socket, if one is free now.
    pub(super) fn try_acquire(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(total_max: usize, servers: usize) -> Vec<usize> {
        let sockets = Sockets::new(total_max, 3);
        (0..servers).map(|position| sockets.sockets_for(position, servers)).collect()
    }

    #[test]
    fn all_servers_have_a_socket_before_any_has_two() {
        assert_eq!(divided(100, 2), [3, 3]);
        assert_eq!(divided(5, 3), [2, 2, 1]);
        assert_eq!(divided(5, 1), [3]);
        assert_eq!(divided(2, 4), [1, 1, 0, 0]);
        assert_eq!(divided(0, 1), [0]);
        assert_eq!(divided(usize::MAX, 1), [3]);
    }

    #[tokio::test]
    async fn a_socket_is_free_again_when_its_permit_is_dropped() {
        let sockets = Sockets::new(1, 3);
        let taken = sockets.acquire().await;
        assert!(taken.is_some());
        assert_eq!(sockets.permits.available_permits(), 0);
        drop(taken);
        assert!(sockets.acquire().await.is_some());
    }
}
