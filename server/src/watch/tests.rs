//! Tests with real files.

use std::{fs, os::unix::fs::symlink, path::Path};

use notify::{
    EventKind,
    event::{AccessKind, AccessMode, DataChange, ModifyKind},
};
use tempfile::TempDir;
use tokio::sync::watch::{self, Receiver};

use super::{
    watch_set::{FOLDERS_MAX, STEPS_MAX},
    *,
};

/// A timeout that no step reaches.
const BOUND: Duration = Duration::from_secs(30);
const NEVER: Duration = Duration::MAX;
const OFTEN: Duration = POLL_MIN;

fn folder() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

fn only_polling(path: &Path) -> Watch {
    let none = |_handler| Err(notify::Error::generic("no watcher"));
    Watch::with(&[path.to_owned()], OFTEN, none)
}

fn never_polling(path: &Path) -> Watch {
    Watch::new(&[path.to_owned()], NEVER)
}

/// Reads a file on each report, and stores its content.
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

async fn assert_updates_are_reported(watch: impl FnOnce(&Path) -> Watch, by_folder: bool) {
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
async fn updates_of_a_config_map_are_reported() {
    assert_updates_are_reported(never_polling, false).await;
    assert_updates_are_reported(never_polling, true).await;
}

#[tokio::test]
async fn updates_of_a_config_map_are_reported_by_polling() {
    assert_updates_are_reported(only_polling, false).await;
    assert_updates_are_reported(only_polling, true).await;
}

#[tokio::test]
async fn replaced_links_inside_a_path_are_reported() {
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
    fs::write(&file, "created again").unwrap();
    reader.sees("created again").await;
}

#[tokio::test]
async fn folders_may_be_created_later_and_replaced() {
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
    fs::write(&file, "created again").unwrap();
    reader.sees("created again").await;
    fs::write(&file, "created again, then changed").unwrap();
    reader.sees("created again, then changed").await;
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
async fn a_cancelled_wait_loses_no_change() {
    let (_guard, base) = folder();
    let file = base.join("limits.yaml");
    let mut watch = never_polling(&file);
    watch.changed().await;
    fs::write(&file, "new").unwrap();
    let cancelled = async {
        while !watch.unreported {
            let wait = time::timeout(Duration::from_millis(5), watch.changed());
            assert!(wait.await.is_err(), "reported while events arrived");
        }
    };
    time::timeout(BOUND, cancelled).await.unwrap();
    time::timeout(BOUND, watch.changed()).await.unwrap();
}

#[tokio::test]
async fn a_scan_does_not_block_the_waiting_thread() {
    let (_guard, base) = folder();
    for number in 0..1_000 {
        symlink("nowhere", base.join(number.to_string())).unwrap();
    }
    let mut watch = never_polling(&base);
    while watch.scan.is_none() {
        let wait = time::timeout(Duration::ZERO, watch.scan());
        assert!(wait.await.is_err(), "the scan ended before the thread continued");
    }
    time::timeout(BOUND, watch.changed()).await.unwrap();
    assert!(watch.scan.is_none() && watch.scanner.is_some());
    assert!(watch.next_scan > Instant::now(), "no pause after a scan");
}

#[test]
fn the_pause_after_a_scan_is_proportional_to_its_duration() {
    let pauses = [0, 10, 1_000, 3_600_000].map(|it| pause_after(Duration::from_millis(it)));
    assert_eq!(pauses.map(|it| it.as_millis()), [0, 200, 20_000, 30_000]);
}

#[test]
fn watched_folders_are_bounded() {
    let (_guard, base) = folder();
    for number in 2..=FOLDERS_MAX {
        fs::create_dir(base.join(number.to_string())).unwrap();
    }
    let paths = [base.clone()];
    assert_eq!(WatchSet::resolve(&paths).listed.len(), FOLDERS_MAX);
    fs::create_dir(base.join("more")).unwrap();
    assert_eq!(WatchSet::resolve(&paths).listed.len(), FOLDERS_MAX);
    assert_eq!(WatchSet::resolve(&paths).folders().len(), FOLDERS_MAX);
}

#[test]
fn visited_entries_are_bounded() {
    let (_guard, base) = folder();
    let depth = base.components().count();
    for number in 0..=STEPS_MAX / depth {
        symlink("nowhere", base.join(number.to_string())).unwrap();
    }
    let set = WatchSet::resolve(std::slice::from_ref(&base));
    assert!(set.entries.len() <= STEPS_MAX / depth, "{}", set.entries.len());
    assert_eq!(set.folders().len(), 2);
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
    let set = WatchSet::resolve(std::slice::from_ref(&base));
    // The number of steps is proportional to the square of the depth.
    assert!((100..FOLDERS_MAX).contains(&set.listed.len()), "{}", set.listed.len());
    assert!(open() <= before + 1);
}

#[test]
fn cyclic_links_end() {
    let (_guard, base) = folder();
    symlink("b", base.join("a")).unwrap();
    symlink("a", base.join("b")).unwrap();
    symlink(".", base.join("c")).unwrap();
    let set = WatchSet::resolve(&[base.clone(), base.join("a")]);
    assert_eq!(set.listed, HashSet::from([base.clone()]));
    let folders = [base.parent().unwrap(), &base].map(Path::to_owned);
    assert_eq!(set.folders(), HashSet::from(folders));
}

#[test]
fn irrelevant_events_are_ignored() {
    let (_guard, base) = folder();
    let (file, other) = (base.join("a.yaml"), base.join("b.yaml"));
    fs::write(&file, "").unwrap();
    let event = |kind, path: &Path| Event::new(kind).add_path(path.to_owned());
    let written = EventKind::Modify(ModifyKind::Data(DataChange::Any));
    let read = EventKind::Access(AccessKind::Open(AccessMode::Any));

    let of_file = WatchSet::resolve(std::slice::from_ref(&file));
    assert!(of_file.matches(&event(written, &file)));
    assert!(of_file.matches(&event(written, &base)), "its folder");
    assert!(!of_file.matches(&event(written, &other)));
    assert!(!of_file.matches(&event(read, &file)));

    let of_folder = WatchSet::resolve(std::slice::from_ref(&base));
    assert!(of_folder.matches(&event(written, &other)));
    assert!(!of_folder.matches(&event(written, &base.join(".b.yaml.swp"))));
    assert!(!of_folder.matches(&event(read, &file)));
}
