//! Which links and folders must be watched, so that a change of what paths lead to is noticed.

use std::{
    collections::{HashSet, VecDeque},
    ffi::OsStr,
    fs, io,
    path::{Component, Path, PathBuf},
};

use notify::{
    Event, EventKind,
    event::{AccessKind, AccessMode},
};

/// The most links on the way to one file, as in Linux.
const LINKS_MAX: usize = 40;

/// The most folders watched. What is in others is noticed by the poll.
pub(super) const FOLDERS_MAX: usize = 1000;

/// The most entries of folders and parts of paths that are looked at. What is beyond is noticed by the poll.
pub(super) const STEPS_MAX: usize = 20_000;

/// The links and folders that paths lead through.
#[derive(Debug, Default, PartialEq)]
pub(super) struct WatchSet {
    /// Each link on the way and what is at the end of it, even if it is not there yet. Their
    /// folders' paths are free of links.
    pub(super) entries: HashSet<PathBuf>,
    /// Folders of which all that is visible counts.
    pub(super) whole: HashSet<PathBuf>,
}

impl WatchSet {
    pub(super) fn of(paths: &[PathBuf]) -> Self {
        let mut set = Self::default();
        let mut ahead: VecDeque<PathBuf> = paths.iter().cloned().collect();
        let mut steps_left = STEPS_MAX;
        while steps_left > 0
            && let Some(path) = ahead.pop_front()
        {
            if let Some(end) = set.follow(&path, &mut steps_left) {
                set.arrive(end, &mut ahead, &mut steps_left);
            }
        }
        set
    }

    /// The folders to watch.
    pub(super) fn folders(&self) -> HashSet<PathBuf> {
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

    pub(super) fn is_touched_by(&self, event: &Event) -> bool {
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
