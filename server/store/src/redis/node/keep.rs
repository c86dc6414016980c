//! Keeps a server's connections: connects, checks, and connects again after a wait.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use arc_swap::ArcSwapOption;
use tokio::task::JoinSet;

use super::{Fitness, Node};
use crate::{
    backoff, clock,
    redis::{
        failure::{CLUSTERDOWN, LATE_MAX},
        link::{Link, LinkError, LinkSettings},
        pipeline::End,
        pooled::PooledConnection,
        script::Script,
        sockets::NO_DESCRIPTORS,
    },
};

/// How often a server that said that its cluster is down is asked whether it still is.
const RECHECK: Duration = Duration::from_secs(1);

/// The shortest and the longest wait before connecting again.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(1);

/// A connection that stood as long was a good one: the next wait is short again.
const STEADY: Duration = Duration::from_secs(10);

impl Node {
    /// Keeps one connection while it is allowed.
    pub(super) async fn keep<F: Fitness>(
        self: Arc<Self>,
        number: usize,
        settings: Arc<LinkSettings>,
        fitness: Arc<F>,
    ) {
        let Some(place) = self.lines.get(number) else { return };
        let mut waits = backoff::waits(RETRY_MIN, RETRY_MAX);
        let mut stood = false;
        // The connection that was given up last, while replies are read from it.
        let mut given_up: Option<JoinSet<()>> = None;
        loop {
            self.until_allowed(number, true).await;
            // In a box: a task that waits to be allowed is small, and there may be thousands.
            let connection = Box::pin(self.connect(place, &mut stood, &settings, &*fitness));
            let lasted = tokio::select! {
                biased;
                (lasted, finishing) = connection => {
                    given_up = finishing.or(given_up);
                    lasted
                }
                () = self.until_allowed(number, false) => {
                    place.store(None);
                    self.lost(NO_DESCRIPTORS, &*fitness);
                    continue;
                }
            };
            if lasted >= STEADY {
                waits = backoff::waits(RETRY_MIN, RETRY_MAX);
            }
            tokio::time::sleep(waits.next().unwrap_or(RETRY_MAX)).await;
        }
    }

    /// Connects once, and serves until the connection ends. Returns how long it lasted, and the task that still reads from
    /// it if it was given up.
    async fn connect<F: Fitness>(
        &self,
        place: &ArcSwapOption<PooledConnection>,
        stood: &mut bool,
        settings: &LinkSettings,
        fitness: &F,
    ) -> (Duration, Option<JoinSet<()>>) {
        let _permit = self.sockets.acquire().await;
        let link = match self.open(settings, fitness).await {
            Ok(link) => link,
            Err(error) => {
                self.complain(&error.to_string(), fitness);
                return (Duration::ZERO, None);
            }
        };
        let began = clock::now();
        let line = Arc::new(PooledConnection::new(link.commands.clone()));
        place.store(Some(Arc::clone(&line)));
        if std::mem::replace(stood, true) {
            self.stats.reconnects.add(1);
        }
        self.found(fitness);
        if !self.was_connected.set(true) {
            // It may be asked from now on.
            fitness.trouble();
        }
        let (why, is_given_up) = tokio::select! {
            biased;
            end = link.broken() => {
                let is_rejected = matches!(end, Some(End::Reply(_)));
                let why = end.map_or_else(|| "the connection broke".to_owned(), End::to_string);
                if is_rejected {
                    self.rejected(&why);
                }
                (why, false)
            }
            () = line.given_up.notified() => ("no answer in time".to_owned(), true),
            never = self.recheck(&link, fitness) => match never {},
        };
        place.store(None);
        self.lost(&why, fitness);
        fitness.trouble();
        // Not at the expense of the connection that takes its place.
        let spare = is_given_up.then(|| self.sockets.try_acquire()).flatten();
        let finishing = spare.map(|spare| {
            let mut task = JoinSet::new();
            task.spawn(async move {
                link.finish(LATE_MAX).await;
                drop(spare);
            });
            task
        });
        (clock::now() - began, finishing)
    }

    async fn open<F: Fitness>(
        &self,
        settings: &LinkSettings,
        fitness: &F,
    ) -> Result<Link, LinkError> {
        let link = Link::open(&self.address, settings).await?;
        fitness.check(&self.address, &link).await?;
        for script in Script::all() {
            link.ask(self.timeout, &["SCRIPT", "LOAD", &script.text]).await?;
        }
        Ok(link)
    }

    /// Asks a server whose cluster was down whether it still is.
    async fn recheck<F: Fitness>(&self, link: &Link, fitness: &F) -> Infallible {
        loop {
            tokio::time::sleep(RECHECK).await;
            let is_down = self.complains.load(Ordering::Relaxed)
                && self.complaint.lock().starts_with(CLUSTERDOWN);
            if is_down && fitness.check(&self.address, link).await.is_ok() {
                self.content(fitness);
            }
        }
    }

    /// A connection is open.
    fn found<F: Fitness>(&self, fitness: &F) {
        self.stats.connections.add(1);
        if !self.up.swap(true, Ordering::Relaxed) {
            self.complains.store(false, Ordering::Relaxed);
            self.complaint.lock().clear();
            fitness.changed();
            tracing::info!(redis = %self.address, "Redis available");
        }
    }

    /// A connection was dropped because of a reply. Logged for each new reason, and else at intervals:
    /// other connections may be open.
    fn rejected(&self, why: &str) {
        self.stats.replies_rejected.add(1);
        let is_new = self.rejected.lock().replace(why.to_owned()).as_deref() != Some(why);
        if is_new || self.logged.allows() {
            tracing::warn!(redis = %self.address, why, "a reply is rejected, its connection dropped");
        }
    }

    /// A connection is gone.
    fn lost<F: Fitness>(&self, why: &str, fitness: &F) {
        let none_left = self.lines.iter().all(|line| line.load().is_none());
        if none_left && self.up.swap(false, Ordering::Relaxed) {
            self.lost.set();
            *self.complaint.lock() = why.to_owned();
            fitness.changed();
            tracing::warn!(redis = %self.address, why, "Redis unavailable, applying on_failure");
        }
    }
}
