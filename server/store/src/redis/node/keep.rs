//! Keeps a server's connections open: connects, checks, and reconnects after a wait.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use tokio::task::JoinSet;

use super::{Node, TopologyHandle};
use crate::{
    backoff, clock,
    redis::{
        call_error::LATE_REPLY_TIMEOUT,
        connection::{ConnectError, Connection, RedisConnectionSettings},
        error_code::is_cluster_down,
        pipeline::ConnectionEnd,
        pooled::PooledConnection,
        script::Script,
        sockets::NO_DESCRIPTORS,
    },
};

/// Interval at which a server that reported `CLUSTERDOWN` is checked again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest and the longest wait before reconnecting.
const RECONNECT_WAIT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_WAIT_MAX: Duration = Duration::from_secs(1);

/// After a connection that lasted this long, the next wait is the shortest again.
const STABLE_AFTER: Duration = Duration::from_secs(10);

impl Node {
    /// Keeps the connection of this number open while it is allowed.
    pub(super) async fn keep_connected<E: TopologyHandle>(
        self: Arc<Self>,
        number: usize,
        settings: Arc<RedisConnectionSettings>,
        topology: Arc<E>,
    ) {
        let Some(pool_entry) = self.pool.get(number) else { return };
        let mut waits = backoff::waits(RECONNECT_WAIT_MIN, RECONNECT_WAIT_MAX);
        let mut was_open = false;
        // Reads the late replies of the connection that was abandoned last.
        let mut abandoned: Option<JoinSet<()>> = None;
        loop {
            self.wait_until_allowed(number, true).await;
            // Boxed, because there may be thousands of tasks that wait to be allowed, and they must be small.
            let connection =
                Box::pin(self.connect(pool_entry, &mut was_open, &settings, &*topology));
            let lasted = tokio::select! {
                biased;
                (lasted, finishing) = connection => {
                    abandoned = finishing.or(abandoned);
                    lasted
                }
                () = self.wait_until_allowed(number, false) => {
                    pool_entry.store(None);
                    self.connection_lost(NO_DESCRIPTORS, &*topology);
                    continue;
                }
            };
            if lasted >= STABLE_AFTER {
                waits = backoff::waits(RECONNECT_WAIT_MIN, RECONNECT_WAIT_MAX);
            }
            tokio::time::sleep(waits.next().unwrap_or(RECONNECT_WAIT_MAX)).await;
        }
    }

    /// Connects once and waits until the connection ends. Returns how long it lasted and, if it was abandoned, the task
    /// that reads its late replies.
    async fn connect<E: TopologyHandle>(
        &self,
        pool_entry: &ArcSwapOption<PooledConnection>,
        was_open: &mut bool,
        settings: &RedisConnectionSettings,
        topology: &E,
    ) -> (Duration, Option<JoinSet<()>>) {
        let _permit = self.sockets.acquire().await;
        let connection = match self.open(settings, topology).await {
            Ok(connection) => connection,
            Err(error) => {
                self.note_connect_error(&error, topology);
                return (Duration::ZERO, None);
            }
        };
        let began = clock::now();
        let pooled = Arc::new(PooledConnection::new(connection.commands.clone()));
        pool_entry.store(Some(Arc::clone(&pooled)));
        if std::mem::replace(was_open, true) {
            self.stats.reconnects.add(1);
        }
        self.connection_opened(topology);
        if !self.was_connected.set(true) {
            // The topology uses a new server from its first connection on.
            topology.request_refresh();
        }
        let (why, is_abandoned) = tokio::select! {
            biased;
            end = connection.ended() => {
                let is_rejected = matches!(end, Some(ConnectionEnd::Reply(_)));
                let why =
                    end.map_or_else(|| "the connection broke".to_owned(), ConnectionEnd::to_string);
                if is_rejected {
                    self.note_rejected_reply(&why);
                }
                (why, false)
            }
            () = pooled.abandoned.notified() => ("no answer in time".to_owned(), true),
            never = self.recheck(&connection, topology) => match never {},
        };
        pool_entry.store(None);
        self.connection_lost(&why, topology);
        topology.request_refresh();
        // Only with a spare socket, so that the new connection does not have to wait for one.
        let spare = is_abandoned.then(|| self.sockets.try_acquire()).flatten();
        let finishing = spare.map(|spare| {
            let mut task = JoinSet::new();
            task.spawn(async move {
                connection.finish(LATE_REPLY_TIMEOUT).await;
                drop(spare);
            });
            task
        });
        (clock::now() - began, finishing)
    }

    /// Opens and checks a connection, and loads the scripts.
    async fn open<E: TopologyHandle>(
        &self,
        settings: &RedisConnectionSettings,
        topology: &E,
    ) -> Result<Connection, ConnectError> {
        let connection = Connection::open(&self.address, settings).await?;
        topology.check_connection(&self.address, &connection).await?;
        for script in Script::all() {
            connection.query(self.timeout, &["SCRIPT", "LOAD", &script.text]).await?;
        }
        Ok(connection)
    }

    /// While the server reports `CLUSTERDOWN`, checks at intervals whether its cluster is available again.
    async fn recheck<E: TopologyHandle>(
        &self,
        connection: &Connection,
        topology: &E,
    ) -> Infallible {
        loop {
            tokio::time::sleep(RECHECK_INTERVAL).await;
            let is_down =
                self.is_unhealthy.load(Ordering::Relaxed) && is_cluster_down(&self.error.lock());
            if is_down && topology.check_connection(&self.address, connection).await.is_ok() {
                self.mark_healthy(topology);
            }
        }
    }

    /// Marks the server as unusable, because a connection could not be opened.
    fn note_connect_error<E: TopologyHandle>(&self, error: &ConnectError, topology: &E) {
        let what = error.to_string();
        if matches!(error, ConnectError::ErrorReply(_)) {
            self.mark_unhealthy(&what, topology);
        } else if self.set_unhealthy(&what, topology) {
            tracing::warn!(redis = %self.address, what, "cannot connect to Redis, applying on_failure");
        }
    }

    /// Updates the state of the server after a connection was opened.
    fn connection_opened<E: TopologyHandle>(&self, topology: &E) {
        self.stats.connections.add(1);
        if !self.is_connected.swap(true, Ordering::Relaxed) {
            self.is_unhealthy.store(false, Ordering::Relaxed);
            self.error.lock().clear();
            topology.report_health_change();
            tracing::info!(redis = %self.address, "Redis available");
        }
    }

    /// Counts a connection that was dropped because of a rejected reply. Logged for each new reason, otherwise at
    /// intervals, because other connections may be open.
    fn note_rejected_reply(&self, why: &str) {
        self.stats.replies_rejected.add(1);
        let is_new =
            self.last_rejected_reply.lock().replace(why.to_owned()).as_deref() != Some(why);
        if is_new || self.log_limit.try_acquire() {
            tracing::warn!(redis = %self.address, why, "reply of Redis rejected, connection dropped");
        }
    }

    /// Updates the state of the server after a connection was closed.
    fn connection_lost<E: TopologyHandle>(&self, why: &str, topology: &E) {
        let none_left = self.pool.iter().all(|connection| connection.load().is_none());
        if none_left && self.is_connected.swap(false, Ordering::Relaxed) {
            self.lost_at.set();
            *self.error.lock() = why.to_owned();
            topology.report_health_change();
            tracing::warn!(redis = %self.address, why, "Redis unavailable, applying on_failure");
        }
    }
}
