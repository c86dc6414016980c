//! Reports that files may have changed: limits, TLS files, the admin token, the tenants of the usage listener.
//!
//! inotify (or its equivalent) reports most changes at once. A slow poll covers the others: on network mounts, if a
//! folder above the watched ones is replaced, or if the system has no more watches. A report only means that the files
//! should be read; callers compare the contents.
//!
//! The folders of files and of links to them are watched, not the files. The watch of a file would not report that a
//! rename has replaced it. Kubernetes updates a ConfigMap by replacing a link: `limits.yaml` links to
//! `..data/limits.yaml`, `..data` links to `..2026_x`, and only `..data` is replaced. So all links of a path are
//! watched, and the path is resolved again after each event.
//!
//! Paths are resolved on blocking threads, because a file system may be slow or hang.

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

/// A change is reported when no event has arrived for this long, because most changes cause several events.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// A change is reported after this long even if events continue to arrive.
const DEBOUNCE_MAX: Duration = Duration::from_secs(1);

/// The shortest poll interval.
const POLL_MIN: Duration = Duration::from_millis(50);

/// The longest poll interval: adding far longer ones to the clock would overflow.
const POLL_MAX: Duration = Duration::from_secs(24 * 3600);

/// The most times that paths are resolved in one scan, if links change during the scan.
const ATTEMPTS_MAX: usize = 4;

/// The pause after a scan, as a multiple of its duration. It bounds the work if files change all the time.
const PAUSE_PER_SCAN: u32 = 20;

/// The longest pause after a scan.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Watches paths for changes.
#[derive(Debug)]
pub(crate) struct Watch {
    poll: Duration,
    next_poll: Instant,
    /// The earliest time of the next scan.
    next_scan: Instant,
    /// Whether there was an event that is not reported yet. Kept if [`Watch::changed`] is cancelled.
    unreported: bool,
    /// `None` during a scan.
    scanner: Option<Scanner>,
    /// The scan in progress. It continues if [`Watch::changed`] is cancelled.
    scan: Option<JoinHandle<(Scanner, Duration)>>,
    events: Arc<Notify>,
}

/// Resolves the paths, and watches the folders that they lead through.
#[derive(Debug)]
struct Scanner {
    paths: Vec<PathBuf>,
    poll: Duration,
    /// `None` if the system does not provide a watcher. Then changes are only polled.
    watcher: Option<RecommendedWatcher>,
    /// The folders that `watcher` watches.
    watched: HashSet<PathBuf>,
    warned: bool,
    watch_set: Arc<ArcSwap<WatchSet>>,
    events: Arc<Notify>,
}

impl Watch {
    /// Watches files, and folders with their contents. The paths need not exist yet.
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
        let mut scanner = Scanner {
            paths: paths.iter().filter_map(|path| path::absolute(path).ok()).collect(),
            poll,
            watcher: None,
            watched: HashSet::new(),
            warned: false,
            watch_set,
            events: Arc::clone(&events),
        };
        match watcher(handler) {
            Ok(watcher) => scanner.watcher = Some(watcher),
            Err(error) => scanner.warn(&error),
        }
        let now = Instant::now();
        Self {
            poll,
            next_poll: now,
            next_scan: now,
            unreported: false,
            scanner: Some(scanner),
            scan: None,
            events,
        }
    }

    /// Waits until files may have changed since the last return. The first call returns soon, because files may have
    /// changed after they were read and before they were watched. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        // A cancelled call may have left a scan in progress. Changes since that scan resolved a path are found only by
        // a later scan, so it must end first.
        self.end_scan().await;
        if !self.unreported {
            tokio::select! {
                () = self.events.notified() => {}
                () = time::sleep_until(self.next_poll) => {}
            }
            self.unreported = true;
        }
        self.debounce().await;
        // Before the report, so that the new watches report changes after the caller has read the files.
        self.scan().await;
        self.next_poll = Instant::now() + self.poll;
        self.unreported = false;
    }

    /// Waits until no more events arrive.
    async fn debounce(&self) {
        let quiet =
            async { while time::timeout(DEBOUNCE, self.events.notified()).await.is_ok() {} };
        let _elapsed = time::timeout(DEBOUNCE_MAX, quiet).await;
    }

    /// Watches the folders that the paths lead through now. Cancel safe.
    async fn scan(&mut self) {
        time::sleep_until(self.next_scan).await;
        if let Some(scanner) = self.scanner.take() {
            self.scan = Some(tokio::task::spawn_blocking(|| scanner.timed_scan()));
        }
        self.end_scan().await;
    }

    /// Waits for the scan in progress, if there is one.
    async fn end_scan(&mut self) {
        let Some(scan) = &mut self.scan else { return };
        let result = scan.await;
        self.scan = None;
        match result {
            Ok((scanner, duration)) => {
                self.scanner = Some(scanner);
                self.next_scan = Instant::now() + pause_after(duration);
            }
            Err(error) => tracing::error!(%error, "files are no longer watched, polling them"),
        }
    }
}

impl Scanner {
    /// Scans, and measures the duration.
    fn timed_scan(mut self) -> (Self, Duration) {
        let begin = Instant::now();
        self.scan();
        (self, begin.elapsed())
    }

    /// Watches the folders that the paths lead through now.
    fn scan(&mut self) {
        for _ in 0..ATTEMPTS_MAX {
            let watch_set = WatchSet::resolve(&self.paths);
            let folders = watch_set.folders();
            self.watch_set.store(Arc::new(watch_set));
            self.watch(folders);
            // Detects links that were replaced after they were resolved and before they were watched.
            if WatchSet::resolve(&self.paths) == **self.watch_set.load() {
                return;
            }
        }
        self.events.notify_one();
    }

    fn watch(&mut self, folders: HashSet<PathBuf>) {
        let Some(watcher) = &mut self.watcher else { return };
        for folder in self.watched.drain() {
            // Fails for removed folders. Existing ones are watched again too, because another folder may have replaced
            // them at the same path.
            let _removed = watcher.unwatch(&folder);
        }
        let mut last_error = None;
        for folder in folders {
            match watcher.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => _ = self.watched.insert(folder),
                Err(error) if is_missing(&error) => {}
                Err(error) => last_error = Some(error),
            }
        }
        if let Some(error) = last_error {
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

/// The pause after a scan of this duration.
fn pause_after(scan: Duration) -> Duration {
    scan.saturating_mul(PAUSE_PER_SCAN).min(PAUSE_MAX)
}

fn is_missing(error: &notify::Error) -> bool {
    match &error.kind {
        ErrorKind::PathNotFound => true,
        ErrorKind::Io(error) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// Handles events, on the watcher's thread.
struct Handler {
    watch_set: Arc<ArcSwap<WatchSet>>,
    events: Arc<Notify>,
}

impl notify::EventHandler for Handler {
    fn handle_event(&mut self, event: notify::Result<Event>) {
        // An error counts as an event, because events may have been lost.
        if event.is_ok_and(|event| !self.watch_set.load().matches(&event)) {
            return;
        }
        self.events.notify_one();
    }
}
