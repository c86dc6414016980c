//! Noticing that files may have changed: limits, certificates.
//!
//! inotify (or what the system has instead) reports within a moment. A slow poll is there for what
//! it does not report: network mounts, a path's grandparents being replaced, no watches to be had.
//! Callers compare content: a report means "look", no more.
//!
//! Not the files themselves are watched but the folders that they and the links to them stand in. A
//! file that is replaced by a rename is a new one, of which a watch on the old one never hears. A
//! Kubernetes ConfigMap is replaced by swinging a link (of `limits.yaml -> ..data/limits.yaml` and
//! `..data -> ..2026_x` the second), so every link on the way counts, and the way is walked anew
//! after each event.
//!
//! Walks are made on threads that decide nothing, because a file system may be slow, or hang.

use std::{
    collections::{HashSet, VecDeque},
    ffi::OsStr,
    fs, io,
    path::{self, Component, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use notify::{
    ErrorKind, Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode},
};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{self, Instant},
};

/// A change is reported once nothing has happened for this long: most come in several steps.
const QUIET: Duration = Duration::from_millis(100);

/// … or after this long, if it never gets quiet.
const UNQUIET_MAX: Duration = Duration::from_secs(1);

/// The shortest time between two polls, whatever is asked for.
const POLL_MIN: Duration = Duration::from_millis(50);

/// The longest: times far beyond cannot be added up.
const POLL_MAX: Duration = Duration::from_secs(24 * 3600);

/// The most links on the way to one file, as in Linux.
const LINKS_MAX: usize = 40;

/// The most folders watched. What is in others is noticed by the poll.
const FOLDERS_MAX: usize = 1000;

/// The most entries of folders and parts of paths that are looked at. What is beyond is noticed by the poll.
const STEPS_MAX: usize = 20_000;

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
    trail: Arc<ArcSwap<Trail>>,
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
        let trail = Arc::new(ArcSwap::from_pointee(Trail::default()));
        let events = Arc::new(Notify::new());
        let handler = Handler { trail: Arc::clone(&trail), events: Arc::clone(&events) };
        let poll = poll.clamp(POLL_MIN, POLL_MAX);
        let mut walker = Walker {
            paths: paths.iter().filter_map(|path| path::absolute(path).ok()).collect(),
            poll,
            watcher: None,
            watched: HashSet::new(),
            warned: false,
            trail,
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
            let trail = Trail::of(&self.paths);
            let folders = trail.folders();
            self.trail.store(Arc::new(trail));
            self.watch(folders);
            // A link that swung between being walked over and being watched reported nothing.
            if Trail::of(&self.paths) == **self.trail.load() {
                return;
            }
        }
        self.events.notify_one();
    }

    fn watch(&mut self, folders: HashSet<PathBuf>) {
        let Some(watcher) = &mut self.watcher else { return };
        for folder in self.watched.drain() {
            // Fails for folders that are gone. Those that stay are taken anew as well: by its path
            // a folder cannot be told from another that has taken its place.
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
    trail: Arc<ArcSwap<Trail>>,
    events: Arc<Notify>,
}

impl notify::EventHandler for Handler {
    fn handle_event(&mut self, event: notify::Result<Event>) {
        // An error may mean that events were lost.
        if event.is_ok_and(|event| !self.trail.load().is_touched_by(&event)) {
            return;
        }
        self.events.notify_one();
    }
}

/// Where paths lead.
#[derive(Debug, Default, PartialEq)]
struct Trail {
    /// Each link on the way and what is at the end of it, even if it is not there yet. Their
    /// folders' paths are free of links.
    entries: HashSet<PathBuf>,
    /// Folders of which all that is visible counts.
    whole: HashSet<PathBuf>,
}

impl Trail {
    fn of(paths: &[PathBuf]) -> Self {
        let mut trail = Self::default();
        let mut ahead: VecDeque<PathBuf> = paths.iter().cloned().collect();
        let mut steps_left = STEPS_MAX;
        while steps_left > 0
            && let Some(path) = ahead.pop_front()
        {
            if let Some(end) = trail.follow(&path, &mut steps_left) {
                trail.arrive(end, &mut ahead, &mut steps_left);
            }
        }
        trail
    }

    /// The folders to watch.
    fn folders(&self) -> HashSet<PathBuf> {
        let parents = self.entries.iter().filter_map(|entry| entry.parent());
        let all: HashSet<&Path> = parents.chain(self.whole.iter().map(PathBuf::as_path)).collect();
        all.into_iter().take(FOLDERS_MAX).map(Path::to_owned).collect()
    }

    /// Walks an absolute path, as the system does when it opens it. Returns where it ends.
    fn follow(&mut self, path: &Path, steps_left: &mut usize) -> Option<PathBuf> {
        let mut reached = PathBuf::new();
        let mut ahead: VecDeque<PathBuf> = steps(path).collect();
        let mut links = 0;
        while let Some(step) = ahead.pop_front() {
            match step.components().next() {
                None | Some(Component::CurDir) => continue,
                Some(Component::ParentDir) => {
                    reached.pop();
                    continue;
                }
                Some(Component::Prefix(_) | Component::RootDir | Component::Normal(_)) => {}
            }
            *steps_left = steps_left.checked_sub(1)?;
            // A root replaces what was reached.
            let entry = reached.join(step);
            match fs::read_link(&entry) {
                Ok(target) => {
                    links += 1;
                    self.entries.insert(entry);
                    if links > LINKS_MAX {
                        return None;
                    }
                    for step in steps(&target).rev() {
                        ahead.push_front(step);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => reached = entry,
                Err(_) => {
                    self.entries.insert(entry);
                    return None;
                }
            }
        }
        Some(reached)
    }

    /// Takes up the end of a path, and puts what is to be followed in a folder behind what is `ahead`.
    fn arrive(&mut self, end: PathBuf, ahead: &mut VecDeque<PathBuf>, steps_left: &mut usize) {
        self.entries.insert(end.clone());
        if self.whole.len() >= FOLDERS_MAX || self.whole.contains(&end) {
            return;
        }
        // Fails for what is not a folder.
        let Ok(inside) = fs::read_dir(&end) else { return };
        self.whole.insert(end);
        for entry in inside.flatten() {
            let Some(left) = steps_left.checked_sub(1) else { return };
            *steps_left = left;
            let leads_on = || entry.file_type().is_ok_and(|it| it.is_dir() || it.is_symlink());
            if !is_hidden(&entry.file_name()) && leads_on() {
                ahead.push_back(entry.path());
            }
        }
    }

    fn is_touched_by(&self, event: &Event) -> bool {
        match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
            // Callers read the files: that must not be news.
            EventKind::Access(_) => return false,
            _ => {}
        }
        event.need_rescan()
            || event.paths.is_empty()
            || event.paths.iter().any(|path| self.has(path))
    }

    fn has(&self, path: &Path) -> bool {
        let is_inside = || {
            let folder = path.parent().is_some_and(|folder| self.whole.contains(folder));
            folder && !path.file_name().is_some_and(is_hidden)
        };
        // A watched folder reports its own end under its own path.
        let is_folder = || self.entries.iter().any(|entry| entry.parent() == Some(path));
        self.entries.contains(path) || is_inside() || is_folder()
    }
}

fn steps(path: &Path) -> impl DoubleEndedIterator<Item = PathBuf> {
    path.components().map(|step| step.as_os_str().into())
}

/// Limits in hidden files are not read, except through a link, which is followed. Editors and
/// Kubernetes keep theirs there.
fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use notify::event::{AccessKind, AccessMode, DataChange, ModifyKind};
    use tempfile::TempDir;
    use tokio::sync::watch::{self, Receiver};

    use super::*;

    /// Far beyond what any step takes.
    const BOUND: Duration = Duration::from_secs(30);
    const NEVER: Duration = Duration::MAX;
    const OFTEN: Duration = POLL_MIN;

    fn folder() -> (TempDir, PathBuf) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().canonicalize().unwrap();
        (folder, path)
    }

    fn only_polling(path: &Path) -> Watch {
        let none = |_handler| Err(notify::Error::generic("none to be had"));
        Watch::with(&[path.to_owned()], OFTEN, none)
    }

    fn never_polling(path: &Path) -> Watch {
        Watch::new(&[path.to_owned()], NEVER)
    }

    /// What somebody sees who reads the file whenever a change is reported, and never else.
    struct Reader(Receiver<Option<String>>);

    impl Reader {
        fn of(file: PathBuf, mut watch: Watch) -> Self {
            let (sender, receiver) = watch::channel(None);
            tokio::spawn(async move {
                loop {
                    watch.changed().await;
                    sender.send_replace(fs::read_to_string(&file).ok());
                }
            });
            Self(receiver)
        }

        async fn sees(&mut self, wanted: impl Into<Option<&str>>) {
            let wanted = wanted.into();
            let seen = self.0.wait_for(|content| content.as_deref() == wanted);
            time::timeout(BOUND, seen).await.expect("change not reported").unwrap();
        }
    }

    /// A folder that is updated like a Kubernetes ConfigMap.
    struct ConfigMap {
        mount: PathBuf,
        version: usize,
    }

    impl ConfigMap {
        fn new(mount: PathBuf, content: &str) -> Self {
            let mut map = Self { mount, version: 0 };
            map.update(content);
            symlink("..data/limits.yaml", map.file()).unwrap();
            map
        }

        fn file(&self) -> PathBuf {
            self.mount.join("limits.yaml")
        }

        fn update(&mut self, content: &str) {
            self.version += 1;
            let name = format!("..2026_{}", self.version);
            let (real, link) = (self.mount.join(&name), self.mount.join("..data"));
            let old = fs::read_link(&link);
            fs::create_dir(&real).unwrap();
            fs::write(real.join("limits.yaml"), content).unwrap();
            symlink(&name, self.mount.join("..data_tmp")).unwrap();
            fs::rename(self.mount.join("..data_tmp"), &link).unwrap();
            if let Ok(old) = old {
                fs::remove_dir_all(self.mount.join(old)).unwrap();
            }
        }
    }

    async fn updates_are_noticed(watch: impl FnOnce(&Path) -> Watch, by_folder: bool) {
        let (_guard, mount) = folder();
        let mut map = ConfigMap::new(mount.clone(), "0");
        let path = if by_folder { mount } else { map.file() };
        let mut reader = Reader::of(map.file(), watch(&path));
        reader.sees("0").await;
        for content in ["1", "2", "3", "4"] {
            map.update(content);
            reader.sees(content).await;
        }
    }

    #[tokio::test]
    async fn each_update_of_a_config_map_is_noticed() {
        updates_are_noticed(never_polling, false).await;
        updates_are_noticed(never_polling, true).await;
    }

    #[tokio::test]
    async fn each_update_of_a_config_map_is_noticed_by_polling_alone() {
        updates_are_noticed(only_polling, false).await;
        updates_are_noticed(only_polling, true).await;
    }

    #[tokio::test]
    async fn every_link_on_the_way_counts() {
        let (_guard, base) = folder();
        for release in ["1", "2"] {
            fs::create_dir_all(base.join("releases").join(release)).unwrap();
            fs::write(base.join("releases").join(release).join("a.yaml"), release).unwrap();
        }
        symlink("releases/1", base.join("current")).unwrap();
        fs::create_dir(base.join("limits")).unwrap();
        let file = base.join("limits/a.yaml");
        symlink(base.join("limits/../current/a.yaml"), &file).unwrap();

        let mut reader = Reader::of(file, never_polling(&base.join("limits")));
        reader.sees("1").await;
        symlink("releases/2", base.join("new")).unwrap();
        fs::rename(base.join("new"), base.join("current")).unwrap();
        reader.sees("2").await;
        fs::write(base.join("releases/2/a.yaml"), "in place").unwrap();
        reader.sees("in place").await;
    }

    #[tokio::test]
    async fn a_file_may_be_rewritten_replaced_and_deleted() {
        let (_guard, base) = folder();
        let file = base.join("limits.yaml");
        fs::write(&file, "old").unwrap();
        let mut reader = Reader::of(file.clone(), never_polling(&file));
        reader.sees("old").await;
        for content in ["replaced", "and again"] {
            fs::write(base.join("new"), content).unwrap();
            fs::rename(base.join("new"), &file).unwrap();
            reader.sees(content).await;
        }
        fs::write(&file, "rewritten").unwrap();
        reader.sees("rewritten").await;
        fs::remove_file(&file).unwrap();
        reader.sees(None).await;
        fs::write(&file, "anew").unwrap();
        reader.sees("anew").await;
    }

    #[tokio::test]
    async fn folders_may_come_later_and_be_replaced() {
        let (_guard, base) = folder();
        let inner = base.join("limits/team/more");
        let file = inner.join("a.yaml");
        let mut reader = Reader::of(file.clone(), never_polling(&base.join("limits")));
        reader.sees(None).await;
        fs::create_dir_all(&inner).unwrap();
        fs::write(&file, "created").unwrap();
        reader.sees("created").await;
        fs::write(&file, "created, then changed").unwrap();
        reader.sees("created, then changed").await;
        fs::remove_dir_all(base.join("limits")).unwrap();
        reader.sees(None).await;
        fs::create_dir_all(&inner).unwrap();
        fs::write(&file, "created anew").unwrap();
        reader.sees("created anew").await;
        fs::write(&file, "created anew, then changed").unwrap();
        reader.sees("created anew, then changed").await;
        let moved = base.join("moved");
        fs::rename(base.join("limits"), &moved).unwrap();
        reader.sees(None).await;
        fs::write(moved.join("team/more/a.yaml"), "moved").unwrap();
        fs::rename(&moved, base.join("limits")).unwrap();
        reader.sees("moved").await;
        fs::write(&file, "moved, then changed").unwrap();
        reader.sees("moved, then changed").await;
    }

    #[tokio::test]
    async fn a_cancelled_wait_forgets_nothing() {
        let (_guard, base) = folder();
        let file = base.join("limits.yaml");
        let mut watch = never_polling(&file);
        watch.changed().await;
        fs::write(&file, "new").unwrap();
        let cancelled = async {
            while !watch.unreported {
                let wait = time::timeout(Duration::from_millis(5), watch.changed());
                assert!(wait.await.is_err(), "reported before it was quiet");
            }
        };
        time::timeout(BOUND, cancelled).await.unwrap();
        time::timeout(BOUND, watch.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn a_walk_does_not_block_the_thread_that_waits_for_it() {
        let (_guard, base) = folder();
        for number in 0..1_000 {
            symlink("nowhere", base.join(number.to_string())).unwrap();
        }
        let mut watch = never_polling(&base);
        while watch.walk.is_none() {
            let wait = time::timeout(Duration::ZERO, watch.walk());
            assert!(wait.await.is_err(), "the walk was over before the thread went on");
        }
        time::timeout(BOUND, watch.changed()).await.unwrap();
        assert!(watch.walk.is_none() && watch.walker.is_some());
        assert!(watch.next_walk > Instant::now(), "no pause after a walk");
    }

    #[test]
    fn the_pause_after_a_walk_grows_with_it() {
        let pauses = [0, 10, 1_000, 3_600_000].map(|it| pause_after(Duration::from_millis(it)));
        assert_eq!(pauses.map(|it| it.as_millis()), [0, 200, 20_000, 30_000]);
    }

    #[test]
    fn there_is_a_bound_to_the_folders_watched() {
        let (_guard, base) = folder();
        for number in 2..=FOLDERS_MAX {
            fs::create_dir(base.join(number.to_string())).unwrap();
        }
        let paths = [base.clone()];
        assert_eq!(Trail::of(&paths).whole.len(), FOLDERS_MAX);
        fs::create_dir(base.join("more")).unwrap();
        assert_eq!(Trail::of(&paths).whole.len(), FOLDERS_MAX);
        assert_eq!(Trail::of(&paths).folders().len(), FOLDERS_MAX);
    }

    #[test]
    fn there_is_a_bound_to_what_is_looked_at() {
        let (_guard, base) = folder();
        let depth = base.components().count();
        for number in 0..=STEPS_MAX / depth {
            symlink("nowhere", base.join(number.to_string())).unwrap();
        }
        let trail = Trail::of(std::slice::from_ref(&base));
        assert!(trail.entries.len() <= STEPS_MAX / depth, "{}", trail.entries.len());
        assert_eq!(trail.folders().len(), 2);
    }

    #[test]
    fn deep_folders_take_neither_stack_nor_descriptors() {
        let (_guard, base) = folder();
        let mut deepest = base.clone();
        for _ in 0..300 {
            deepest.push("f");
            fs::create_dir(&deepest).unwrap();
        }
        let open = || fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let trail = Trail::of(std::slice::from_ref(&base));
        // Steps grow with the square of the depth.
        assert!((100..FOLDERS_MAX).contains(&trail.whole.len()), "{}", trail.whole.len());
        assert!(open() <= before + 1);
    }

    #[test]
    fn links_that_lead_nowhere_end() {
        let (_guard, base) = folder();
        symlink("b", base.join("a")).unwrap();
        symlink("a", base.join("b")).unwrap();
        symlink(".", base.join("c")).unwrap();
        let trail = Trail::of(&[base.clone(), base.join("a")]);
        assert_eq!(trail.whole, HashSet::from([base.clone()]));
        let folders = [base.parent().unwrap(), &base].map(Path::to_owned);
        assert_eq!(trail.folders(), HashSet::from(folders));
    }

    #[test]
    fn what_does_not_matter_is_not_reported() {
        let (_guard, base) = folder();
        let (file, other) = (base.join("a.yaml"), base.join("b.yaml"));
        fs::write(&file, "").unwrap();
        let event = |kind, path: &Path| Event::new(kind).add_path(path.to_owned());
        let written = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        let read = EventKind::Access(AccessKind::Open(AccessMode::Any));

        let of_file = Trail::of(std::slice::from_ref(&file));
        assert!(of_file.is_touched_by(&event(written, &file)));
        assert!(of_file.is_touched_by(&event(written, &base)), "its folder");
        assert!(!of_file.is_touched_by(&event(written, &other)));
        assert!(!of_file.is_touched_by(&event(read, &file)));

        let of_folder = Trail::of(std::slice::from_ref(&base));
        assert!(of_folder.is_touched_by(&event(written, &other)));
        assert!(!of_folder.is_touched_by(&event(written, &base.join(".b.yaml.swp"))));
        assert!(!of_folder.is_touched_by(&event(read, &file)));
    }
}
