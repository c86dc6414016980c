//! Finds and reads limits files.

use std::{
    collections::HashSet,
    fmt, fs, io,
    ops::ControlFlow,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use sluicegate_core::rules::{
    CompileOptions, Findings, LimitsFile, LocatedMistake, Mistake, NodePath, RuleSet,
    SourceLocation, compile,
};

use crate::yaml;

/// The most levels of folders that are read: the given one, and those below it.
const FOLDER_LEVELS_MAX: usize = 16;

/// The most entries of all folders together, files or not.
const FOLDER_ENTRIES_MAX: usize = 100_000;

/// Bounds of all limits files together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBounds {
    /// The most files.
    pub files: usize,
    /// The most bytes.
    pub bytes: u64,
}

impl Default for ReadBounds {
    fn default() -> Self {
        Self { files: 10_000, bytes: 64 << 20 }
    }
}

/// Contents of limits files, or the errors of reading them. Equal contents compile to equal rules.
#[derive(Debug, PartialEq, Eq)]
pub struct FileContents(Vec<FileContent>);

/// A path, with the text of the file or the error of reading it.
type FileContent = (PathBuf, Result<String, String>);

impl FileContents {
    /// Reads limits files. A path of a folder means all `.yaml` and `.yml` files in it and in the folders below it, in
    /// the order of their names. Names that begin with a dot are skipped, so that the files of a mounted `ConfigMap`
    /// are not read twice. A folder that several links lead to is read once.
    #[must_use]
    pub fn read(paths: &[PathBuf], bounds: ReadBounds) -> Self {
        let mut collector = Collector {
            remaining: bounds,
            bounds,
            entries: 0,
            visited: HashSet::new(),
            contents: Vec::new(),
        };
        for path in paths {
            collector.visited.clear();
            let before = collector.contents.len();
            if collector.collect(path, FOLDER_LEVELS_MAX).is_break() {
                break;
            }
            if collector.contents.len() == before {
                collector.add_error(path, "no .yaml or .yml file in this folder");
            }
        }
        Self(collector.contents)
    }

    /// A hash of the texts, in their order, and of the options. Paths do not matter. Below 2^53, so that a double holds
    /// it exactly.
    #[must_use]
    pub fn hash(&self, options: &CompileOptions) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{options:?}").as_bytes());
        for text in self.0.iter().filter_map(|(_, text)| text.as_ref().ok()) {
            // The length is hashed, so that the same bytes divided differently among files have another hash.
            hasher.update(&text.len().to_le_bytes());
            hasher.update(text.as_bytes());
        }
        let mut first = [0; 8];
        hasher.finalize_xof().fill(&mut first);
        u64::from_le_bytes(first) >> (u64::BITS - f64::MANTISSA_DIGITS)
    }

    /// Compiles the files.
    ///
    /// # Errors
    /// The mistakes in all files, in the order of files and lines. Reading stops when there are more mistakes than are
    /// listed.
    pub fn compile(&self, options: &CompileOptions) -> Result<RuleSet, Findings<LocatedMistake>> {
        let names: Vec<_> = self.0.iter().map(|(path, _)| path.to_string_lossy()).collect();
        let mut state = yaml::ReadState::default();
        let mut files = Vec::new();
        for (name, (_, text)) in names.iter().zip(&self.0) {
            if state.report.mistakes.unlisted() > 0 {
                break;
            }
            match text {
                Ok(text) => files.extend(yaml::read(name, text, &mut state)),
                Err(why) => state.report.mistakes.push(unreadable(name, why)),
            }
        }
        compile_and_sort(&files, options, state, names.iter().map(|name| &**name))
    }
}

/// Compiles the text of one limits file, which mistakes and warnings call `name`.
///
/// # Errors
/// The mistakes in the file.
pub fn compile_text(name: &str, text: &str) -> Result<RuleSet, Findings<LocatedMistake>> {
    let mut state = yaml::ReadState::default();
    let file = yaml::read(name, text, &mut state);
    compile_and_sort(file.as_slice(), &CompileOptions::default(), state, [name].into_iter())
}

/// Compiles the files that could be read, so that mistakes of reading and of compilation are listed together.
fn compile_and_sort<'n>(
    files: &[LimitsFile],
    options: &CompileOptions,
    state: yaml::ReadState,
    names: impl Iterator<Item = &'n str>,
) -> Result<RuleSet, Findings<LocatedMistake>> {
    compile(files, options, state.report).map_err(|mut mistakes| {
        mistakes.sort(names);
        mistakes
    })
}

/// Collects the contents of limits files, within the bounds.
struct Collector {
    bounds: ReadBounds,
    /// Files and bytes that may still be read.
    remaining: ReadBounds,
    /// Entries of folders seen so far.
    entries: usize,
    /// Device and inode of the folders that were read below the given path.
    visited: HashSet<(u64, u64)>,
    contents: Vec<FileContent>,
}

impl Collector {
    /// Adds the file, or the files in the folder and at most `folders` levels of folders. Breaks if a bound is
    /// exceeded.
    fn collect(&mut self, path: &Path, folders: usize) -> ControlFlow<()> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) => {
                self.add_error(path, error);
                return ControlFlow::Continue(());
            }
        };
        if !metadata.is_dir() {
            return self.add_file(path);
        }
        if !self.visited.insert((metadata.dev(), metadata.ino())) {
            return ControlFlow::Continue(());
        }
        if folders == 0 {
            self.add_error(path, "too many folders within folders");
            return ControlFlow::Continue(());
        }
        let entries = match self.list_folder(path) {
            Ok(entries) => entries,
            Err(error) => {
                self.add_error(path, error);
                return ControlFlow::Continue(());
            }
        };
        if self.entries > FOLDER_ENTRIES_MAX {
            self.add_error(
                path,
                format_args!("more than {FOLDER_ENTRIES_MAX} entries in all folders"),
            );
            return ControlFlow::Break(());
        }
        for entry in entries {
            let is_hidden =
                entry.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
            let is_yaml = entry.extension().is_some_and(|it| it == "yaml" || it == "yml");
            if !is_hidden && (is_yaml || entry.is_dir()) {
                self.collect(&entry, folders - 1)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// The entries of a folder, sorted by name. Incomplete if the bound on entries is exceeded.
    fn list_folder(&mut self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder)? {
            self.entries += 1;
            if self.entries > FOLDER_ENTRIES_MAX {
                break;
            }
            entries.push(entry?.path());
        }
        entries.sort();
        Ok(entries)
    }

    /// Adds a file. Breaks if a bound is exceeded.
    fn add_file(&mut self, path: &Path) -> ControlFlow<()> {
        let ReadBounds { files, bytes } = self.bounds;
        if self.remaining.files == 0 {
            self.add_error(
                path,
                format_args!("more than {files} files in all (--limits-max-files)"),
            );
            return ControlFlow::Break(());
        }
        self.remaining.files -= 1;
        let text = match sluicegate_files::read(path, self.remaining.bytes) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let why = format_args!("more than {bytes} bytes in all files (--limits-max-bytes)");
                self.add_error(path, why);
                return ControlFlow::Break(());
            }
            Err(error) => {
                self.add_error(path, error);
                return ControlFlow::Continue(());
            }
        };
        self.remaining.bytes -= text.len() as u64;
        let text = String::from_utf8(text).map_err(|_| "not UTF-8".to_owned());
        self.contents.push((path.to_owned(), text));
        ControlFlow::Continue(())
    }

    fn add_error(&mut self, path: &Path, why: impl fmt::Display) {
        self.contents.push((path.to_owned(), Err(why.to_string())));
    }
}

fn unreadable(name: &str, why: &str) -> LocatedMistake {
    let location =
        SourceLocation { file: Arc::from(name), line: 0, column: 0, path: NodePath::default() };
    LocatedMistake { location, mistake: Mistake::Unreadable(why.to_owned()) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use sluicegate_core::rules::{CompileOptions, Modes};

    use super::FileContents;

    fn hash(texts: &[&str], folder: &str, options: &CompileOptions) -> u64 {
        let files = texts.iter().enumerate();
        let file = |(at, text): (usize, &&str)| {
            (PathBuf::from(format!("{folder}/{at}.yaml")), Ok((*text).to_owned()))
        };
        FileContents(files.map(file).collect()).hash(options)
    }

    #[test]
    fn hash_depends_on_texts_and_options_but_not_on_paths() {
        let default = CompileOptions::default();
        let of = |texts: &[&str]| hash(texts, "/etc/limits", &default);
        assert_eq!(
            of(&["domain: a", "domain: b"]),
            hash(&["domain: a", "domain: b"], "x", &default)
        );
        let modes = Modes { shadow_mode: true, ..Modes::default() };
        let shadow = CompileOptions { modes, ..default };
        let all = [
            of(&["domain: a", "domain: b"]),
            of(&["domain: a", "domain: c"]),
            of(&["domain: b", "domain: a"]),
            of(&["domain: a"]),
            of(&["domain: adomain: b"]),
            hash(&["domain: a"], "/etc/limits", &shadow),
        ];
        let distinct: std::collections::BTreeSet<_> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len(), "{all:?}");
        assert!(all.iter().all(|it| *it < 1 << 53) && all.iter().any(|it| *it > 1 << 32));
    }
}
