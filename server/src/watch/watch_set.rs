//! The links and folders to watch in order to detect changes behind a set of paths.

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

/// The most links in one path, as in Linux.
const LINKS_MAX: usize = 40;

/// The most watched folders. The poll detects changes in others.
pub(super) const FOLDERS_MAX: usize = 1000;

/// The most entries of folders and components of paths that are visited. The poll detects changes in others.
pub(super) const STEPS_MAX: usize = 20_000;

/// The links and folders that paths lead through.
#[derive(Debug, Default, PartialEq)]
pub(super) struct WatchSet {
    /// All links in the paths, and the targets of the paths, even if they do not exist yet. The paths of their folders
    /// contain no links.
    pub(super) entries: HashSet<PathBuf>,
    /// Folders of which all visible entries are watched.
    pub(super) listed: HashSet<PathBuf>,
}

impl WatchSet {
    /// Resolves absolute paths.
    pub(super) fn resolve(paths: &[PathBuf]) -> Self {
        let mut set = Self::default();
        let mut pending: VecDeque<PathBuf> = paths.iter().cloned().collect();
        let mut steps_left = STEPS_MAX;
        while steps_left > 0
            && let Some(path) = pending.pop_front()
        {
            if let Some(target) = set.resolve_path(&path, &mut steps_left) {
                set.add_target(target, &mut pending, &mut steps_left);
            }
        }
        set
    }

    /// The folders to watch.
    pub(super) fn folders(&self) -> HashSet<PathBuf> {
        let parents = self.entries.iter().filter_map(|entry| entry.parent());
        let all: HashSet<&Path> = parents.chain(self.listed.iter().map(PathBuf::as_path)).collect();
        all.into_iter().take(FOLDERS_MAX).map(Path::to_owned).collect()
    }

    /// Resolves an absolute path, as the system does when it opens it, and adds its links. Returns the target; `None`
    /// if it does not exist.
    fn resolve_path(&mut self, path: &Path, steps_left: &mut usize) -> Option<PathBuf> {
        let mut resolved = PathBuf::new();
        let mut pending: VecDeque<PathBuf> = components(path).collect();
        let mut links = 0;
        while let Some(component) = pending.pop_front() {
            match component.components().next() {
                None | Some(Component::CurDir) => continue,
                Some(Component::ParentDir) => {
                    resolved.pop();
                    continue;
                }
                Some(Component::Prefix(_) | Component::RootDir | Component::Normal(_)) => {}
            }
            *steps_left = steps_left.checked_sub(1)?;
            // Joining the root replaces the path.
            let entry = resolved.join(component);
            match fs::read_link(&entry) {
                Ok(target) => {
                    links += 1;
                    self.entries.insert(entry);
                    if links > LINKS_MAX {
                        return None;
                    }
                    for component in components(&target).rev() {
                        pending.push_front(component);
                    }
                }
                // The entry is not a link.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => resolved = entry,
                Err(_) => {
                    self.entries.insert(entry);
                    return None;
                }
            }
        }
        Some(resolved)
    }

    /// Adds the target of a path. If it is a folder, adds its entries that are folders or links to `pending`.
    fn add_target(
        &mut self,
        target: PathBuf,
        pending: &mut VecDeque<PathBuf>,
        steps_left: &mut usize,
    ) {
        self.entries.insert(target.clone());
        if self.listed.len() >= FOLDERS_MAX || self.listed.contains(&target) {
            return;
        }
        // Fails for files.
        let Ok(listing) = fs::read_dir(&target) else { return };
        self.listed.insert(target);
        for entry in listing.flatten() {
            let Some(left) = steps_left.checked_sub(1) else { return };
            *steps_left = left;
            let leads_on = || entry.file_type().is_ok_and(|it| it.is_dir() || it.is_symlink());
            if !is_hidden(&entry.file_name()) && leads_on() {
                pending.push_back(entry.path());
            }
        }
    }

    /// Whether an event may have changed what the paths lead to.
    pub(super) fn matches(&self, event: &Event) -> bool {
        match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
            // Reading changes nothing. Callers read the files after each report.
            EventKind::Access(_) => return false,
            _ => {}
        }
        event.need_rescan()
            || event.paths.is_empty()
            || event.paths.iter().any(|path| self.contains(path))
    }

    fn contains(&self, path: &Path) -> bool {
        let is_listed = || {
            let folder = path.parent().is_some_and(|folder| self.listed.contains(folder));
            folder && !path.file_name().is_some_and(is_hidden)
        };
        // The removal of a watched folder is reported with the folder's own path.
        let is_folder = || self.entries.iter().any(|entry| entry.parent() == Some(path));
        self.entries.contains(path) || is_listed() || is_folder()
    }
}

fn components(path: &Path) -> impl DoubleEndedIterator<Item = PathBuf> {
    path.components().map(|component| component.as_os_str().into())
}

/// Hidden files are not read as limits files, except through a link. Editors and Kubernetes store their own files in
/// them.
fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}
