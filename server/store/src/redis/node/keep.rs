//! Keeps a server's connections open: connects, checks, and reconnects after a wait.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use tokio::task::JoinSet;

use super::{Node, NodeEvents};
use crate::{
    backoff, clock,
    redis::{
        connection::{ConnectError, Connection, ConnectionSettings},
        error_code::is_cluster_down,
        failure::LATE_MAX,
        pipeline::ConnectionEnd,
        pooled::PooledConnection,
        script::Script,
        sockets::NO_DESCRIPTORS,
    },
};

/// Interval at which a server that reported `CLUSTERDOWN` is checked again.
const RECHECK: Duration = Duration::from_secs(1);

/// The shortest and the longest wait before reconnecting.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// After a connection that lasted this long, the next wait is the shortest again.
const STABLE_AFTER: Duration = Duration::from_secs(10);

impl Node {
    /// Keeps the connection of this number open while it is allowed.
    pub(super) async fn keep<E: NodeEvents>(
        self: Arc<Self>,
        number: usize,
        settings: Arc<ConnectionSettings>,
        events: Arc<E>,
    ) {
        let Some(place) = self.pool.get(number) else { return };
        let mut waits = backoff::waits(RETRY_MIN, RETRY_MAX);
        let mut was_open = false;
        // Reads the late replies of the connection that was abandoned last.
        let mut abandoned: Option<JoinSet<()>> = None;
        loop {
            self.until_allowed(number, true).await;
            // Boxed, because there may be thousands of tasks that wait to be allowed, and they must be small.
            let connection = Box::pin(self.connect(place, &mut was_open, &settings, &*events));
            let lasted = tokio::select! {
                biased;
                (lasted, finishing) = connection => {
                    abandoned = finishing.or(abandoned);
                    lasted
                }
                () = self.until_allowed(number, false) => {
                    place.store(None);
                    self.connection_lost(NO_DESCRIPTORS, &*events);
                    continue;
                }
            };
            if lasted >= STABLE_AFTER {
                waits = backoff::waits(RETRY_MIN, RETRY_MAX);
            }
            tokio::time::sleep(waits.next().unwrap_or(RETRY_MAX)).await;
        }
    }

    /// Connects once and waits until the connection ends. Returns how long it lasted and, if it was abandoned, the task
    /// that reads its late replies.
    async fn connect<E: NodeEvents>(
        &self,
        place: &ArcSwapOption<PooledConnection>,
        was_open: &mut bool,
        settings: &ConnectionSettings,
        events: &E,
    ) -> (Duration, Option<JoinSet<()>>) {
        let _permit = self.sockets.acquire().await;
        let connection = match self.open(settings, events).await {
            Ok(connection) => connection,
            Err(error) => {
                self.mark_unhealthy(&error.to_string(), events);
                return (Duration::ZERO, None);
            }
        };
        let began = clock::now();
        let pooled = Arc::new(PooledConnection::new(connection.commands.clone()));
        place.store(Some(Arc::clone(&pooled)));
        if std::mem::replace(was_open, true) {
            self.stats.reconnects.add(1);
        }
        self.connection_opened(events);
        if !self.was_connected.set(true) {
            // The topology uses a new server from its first connection on.
            events.request_refresh();
        }
        let (why, is_abandoned) = tokio::select! {
            biased;
            end = connection.ended() => {
                let is_rejected = matches!(end, Some(ConnectionEnd::Reply(_)));
                let why =
                    end.map_or_else(|| "the connection broke".to_owned(), ConnectionEnd::to_string);
                if is_rejected {
                    self.reply_rejected(&why);
                }
                (why, false)
            }
            () = pooled.abandoned.notified() => ("no answer in time".to_owned(), true),
            never = self.recheck(&connection, events) => match never {},
        };
        place.store(None);
        self.connection_lost(&why, events);
        events.request_refresh();
        // Only with a spare socket, so that the new connection does not have to wait for one.
        let spare = is_abandoned.then(|| self.sockets.try_acquire()).flatten();
        let finishing = spare.map(|spare| {
            let mut task = JoinSet::new();
            task.spawn(async move {
                connection.finish(LATE_MAX).await;
                drop(spare);
            });
            task
        });
        (clock::now() - began, finishing)
    }

    /// Opens and checks a connection, and loads the scripts.
    async fn open<E: NodeEvents>(
        &self,
        settings: &ConnectionSettings,
        events: &E,
    ) -> Result<Connection, ConnectError> {
        let connection = Connection::open(&self.address, settings).await?;
        events.check(&self.address, &connection).await?;
        for script in Script::all() {
            connection.query(self.timeout, &["SCRIPT", "LOAD", &script.text]).await?;
        }
        Ok(connection)
    }

    /// While the server reports `CLUSTERDOWN`, checks at intervals whether its cluster is available again.
    async fn recheck<E: NodeEvents>(&self, connection: &Connection, events: &E) -> Infallible {
        loop {
            tokio::time::sleep(RECHECK).await;
            let is_down =
                self.is_unhealthy.load(Ordering::Relaxed) && is_cluster_down(&self.error.lock());
            if is_down && events.check(&self.address, connection).await.is_ok() {
                self.mark_healthy(events);
            }
        }
    }

    /// Updates the state of the server after a connection was opened.
    fn connection_opened<E: NodeEvents>(&self, events: &E) {
        self.stats.connections.add(1);
        if !self.up.swap(true, Ordering::Relaxed) {
            self.is_unhealthy.store(false, Ordering::Relaxed);
            self.error.lock().clear();
            events.changed();
            tracing::info!(redis = %self.address, "Redis available");
        }
    }

    /// Counts a connection that was dropped because of a rejected reply. Logged for each new reason, otherwise at
    /// intervals, because other connections may be open.
    fn reply_rejected(&self, why: &str) {
        self.stats.replies_rejected.add(1);
        let is_new = self.reply_rejected.lock().replace(why.to_owned()).as_deref() != Some(why);
        if is_new || self.logged.try_acquire() {
            tracing::warn!(redis = %self.address, why, "reply of Redis rejected, connection dropped");
        }
    }

    /// Updates the state of the server after a connection was closed.
    fn connection_lost<E: NodeEvents>(&self, why: &str, events: &E) {
        let none_left = self.pool.iter().all(|connection| connection.load().is_none());
        if none_left && self.up.swap(false, Ordering::Relaxed) {
            self.lost_at.set();
            *self.error.lock() = why.to_owned();
            events.changed();
            tracing::warn!(redis = %self.address, why, "Redis unavailable, applying on_failure");
        }
    }
}
