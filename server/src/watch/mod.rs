//! Reports that files may have changed: limits, certificates.
//!
//! inotify (or its equivalent) reports immediately. A slow poll covers changes that it does not
//! report: network mounts, replaced grandparents of a path, a lack of watches.
//! Callers compare contents: a report only means that files should be read.
//!
//! It watches the folders of files and of links to them, not the files themselves. A
//! rename replaces a file by a new one, which a watch on the old one does not report. Kubernetes
//! updates a ConfigMap by replacing a link (of `limits.yaml -> ..data/limits.yaml` and
//! `..data -> ..2026_x` the second), so every link of the path counts, and the path is resolved again
//! after each event.
//!
//! Paths are resolved on threads that decide nothing, because a file system may be slow or hang.

mod watch_set;

#[cfg(test)]
mod tests;

use std::{
    collections::HashSet,
    io,
    path::{self, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use notify::{ErrorKind, Event, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{self, Instant},
};

use self::watch_set::WatchSet;

/// A change is reported once nothing has happened for this long: most come in several steps.
const QUIET: Duration = Duration::from_millis(100);

/// … or after this long, if it never gets quiet.
const UNQUIET_MAX: Duration = Duration::from_secs(1);

/// The shortest time between two polls, whatever is asked for.
const POLL_MIN: Duration = Duration::from_millis(50);

/// The longest: times far beyond cannot be added up.
const POLL_MAX: Duration = Duration::from_secs(24 * 3600);

/// How often the way is walked again because it changed in the meantime.
const WALKS_MAX: usize = 4;

/// How much longer than a walk the pause after it is, so that files that change all the time cause few walks.
const PAUSE_PER_WALK: u32 = 20;

/// The longest pause after a walk.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Watches paths for changes.
#[derive(Debug)]
pub(crate) struct Watch {
    poll: Duration,
    next_poll: Instant,
    /// The next walk begins no earlier.
    next_walk: Instant,
    /// Something happened that is not reported yet. Outlives a cancelled [`Watch::changed`].
    unreported: bool,
    /// None while a walk is in progress.
    walker: Option<Walker>,
    /// Outlives a cancelled [`Watch::changed`].
    walk: Option<JoinHandle<(Walker, Duration)>>,
    events: Arc<Notify>,
}

/// Walks the paths and watches the folders on the way.
#[derive(Debug)]
struct Walker {
    paths: Vec<PathBuf>,
    poll: Duration,
    /// None if the system has none to give: then there is only the poll.
    watcher: Option<RecommendedWatcher>,
    /// Folders that `watcher` has.
    watched: HashSet<PathBuf>,
    warned: bool,
    watch_set: Arc<ArcSwap<WatchSet>>,
    events: Arc<Notify>,
}

impl Watch {
    /// Watches files, and folders with all that is in them. Paths need not exist (yet).
    pub(crate) fn new(paths: &[PathBuf], poll: Duration) -> Self {
        Self::with(paths, poll, notify::recommended_watcher)
    }

    fn with(
        paths: &[PathBuf],
        poll: Duration,
        watcher: impl FnOnce(Handler) -> notify::Result<RecommendedWatcher>,
    ) -> Self {
        let watch_set = Arc::new(ArcSwap::from_pointee(WatchSet::default()));
        let events = Arc::new(Notify::new());
        let handler = Handler { watch_set: Arc::clone(&watch_set), events: Arc::clone(&events) };
        let poll = poll.clamp(POLL_MIN, POLL_MAX);
        let mut walker = Walker {
            paths: paths.iter().filter_map(|path| path::absolute(path).ok()).collect(),
            poll,
            watcher: None,
            watched: HashSet::new(),
            warned: false,
            watch_set,
            events: Arc::clone(&events),
        };
        match watcher(handler) {
            Ok(watcher) => walker.watcher = Some(watcher),
            Err(error) => walker.warn(&error),
        }
        let now = Instant::now();
        Self {
            poll,
            next_poll: now,
            next_walk: now,
            unreported: false,
            walker: Some(walker),
            walk: None,
            events,
        }
    }

    /// Waits until something may have changed since the last time. The first time, that is at once:
    /// files may have changed between being read and being watched. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        // Of a cancelled call: the walk may have passed what has changed since.
        self.end_walk().await;
        if !self.unreported {
            tokio::select! {
                () = self.events.notified() => {}
                () = time::sleep_until(self.next_poll) => {}
            }
            self.unreported = true;
        }
        self.settle().await;
        // Before the report: what happens after the caller has looked is seen by the new watches.
        self.walk().await;
        self.next_poll = Instant::now() + self.poll;
        self.unreported = false;
    }

    /// Waits for quiet.
    async fn settle(&self) {
        let quiet = async { while time::timeout(QUIET, self.events.notified()).await.is_ok() {} };
        let _unquiet = time::timeout(UNQUIET_MAX, quiet).await;
    }

    /// Watches the folders that the paths lead through now. Cancel safe.
    async fn walk(&mut self) {
        time::sleep_until(self.next_walk).await;
        if let Some(walker) = self.walker.take() {
            self.walk = Some(tokio::task::spawn_blocking(|| walker.timed()));
        }
        self.end_walk().await;
    }

    /// Waits for the walk in progress, if there is any.
    async fn end_walk(&mut self) {
        let Some(walk) = &mut self.walk else { return };
        let walked = walk.await;
        self.walk = None;
        match walked {
            Ok((walker, taken)) => {
                self.walker = Some(walker);
                self.next_walk = Instant::now() + pause_after(taken);
            }
            Err(error) => tracing::error!(%error, "files are no longer watched, polling them"),
        }
    }
}

impl Walker {
    /// Walks, and says how long it took.
    fn timed(mut self) -> (Self, Duration) {
        let begin = Instant::now();
        self.follow();
        (self, begin.elapsed())
    }

    /// Watches the folders that the paths lead through now.
    fn follow(&mut self) {
        for _ in 0..WALKS_MAX {
            let watch_set = WatchSet::of(&self.paths);
            let folders = watch_set.folders();
            self.watch_set.store(Arc::new(watch_set));
            self.watch(folders);
            // A link that swung between being walked over and being watched reported nothing.
            if WatchSet::of(&self.paths) == **self.watch_set.load() {
                return;
            }
        }
        self.events.notify_one();
    }

    fn watch(&mut self, folders: HashSet<PathBuf>) {
        let Some(watcher) = &mut self.watcher else { return };
        for folder in self.watched.drain() {
            // Fails for removed folders. Existing ones are watched again too: a path does not
            // show whether another folder has replaced the first.
            let _gone = watcher.unwatch(&folder);
        }
        let mut refused = None;
        for folder in folders {
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => _ = self.watched.insert(folder),
                Err(error) if is_missing(&error) => {}
                Err(error) => refused = Some(error),
            }
        }
        if let Some(error) = refused {
            self.warn(&error);
        }
    }

    fn warn(&mut self, error: &notify::Error) {
        if !self.warned {
            tracing::warn!(%error, poll = ?self.poll, "cannot watch files, polling them");
        }
        self.warned = true;
    }
}

/// The pause after a walk.
fn pause_after(walk: Duration) -> Duration {
    walk.saturating_mul(PAUSE_PER_WALK).min(PAUSE_MAX)
}

fn is_missing(error: &notify::Error) -> bool {
    match &error.kind {
        ErrorKind::PathNotFound => true,
        ErrorKind::Io(error) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// Runs in the watcher's thread.
struct Handler {
    watch_set: Arc<ArcSwap<WatchSet>>,
    events: Arc<Notify>,
}

impl notify::EventHandler for Handler {
    fn handle_event(&mut self, event: notify::Result<Event>) {
        // An error may mean that events were lost.
        if event.is_ok_and(|event| !self.watch_set.load().is_touched_by(&event)) {
            return;
        }
        self.events.notify_one();
    }
}
