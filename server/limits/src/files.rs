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
    CompileError, CompileOptions, Findings, LimitsFile, Mistake, NodePath, RuleSet, SourceLocation,
    compile,
};

use crate::yaml;

/// The deepest folder below a given one.
const FOLDERS_MAX: usize = 16;

/// The most entries of all folders together.
const ENTRIES_MAX: usize = 100_000;

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

/// Contents of limits files. Equal sources compile to equal rules.
#[derive(Debug, PartialEq, Eq)]
pub struct Sources(Vec<SourceFile>);

/// A path, with its text or the error.
type SourceFile = (PathBuf, Result<String, String>);

impl Sources {
    /// Reads limits files. A folder stands for every `.yaml` and `.yml` file in it, at any depth, in the
    /// order of their names. Names that begin with a dot are skipped, so the inner files of a mounted
    /// `ConfigMap` are not read twice. A folder with several links to it is read once.
    #[must_use]
    pub fn read(paths: &[PathBuf], bounds: ReadBounds) -> Self {
        let mut reading = Collector {
            left: bounds,
            bounds,
            entries: 0,
            visited: HashSet::new(),
            sources: Vec::new(),
        };
        for path in paths {
            reading.visited.clear();
            let before = reading.sources.len();
            if reading.collect(path, FOLDERS_MAX).is_break() {
                break;
            }
            if reading.sources.len() == before {
                reading.failed(path, "no .yaml or .yml file in this folder");
            }
        }
        Self(reading.sources)
    }

    /// A hash below 2^53, which a double holds exactly, of the texts in their order and of the options. Paths do
    /// not matter.
    #[must_use]
    pub fn hash(&self, options: &CompileOptions) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{options:?}").as_bytes());
        for text in self.0.iter().filter_map(|(_, text)| text.as_ref().ok()) {
            // With its length, so that other divisions of the same bytes have other hashes.
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
    /// The mistakes in all files, in the order of files and lines. The search stops at the first that is not
    /// listed.
    pub fn compile(&self, options: &CompileOptions) -> Result<RuleSet, Findings<CompileError>> {
        let names: Vec<_> = self.0.iter().map(|(path, _)| path.to_string_lossy()).collect();
        let mut shared = yaml::ReadState::default();
        let mut files = Vec::new();
        for (name, (_, text)) in names.iter().zip(&self.0) {
            if shared.report.mistakes.unlisted() > 0 {
                break;
            }
            match text {
                Ok(text) => files.extend(yaml::read(name, text, &mut shared)),
                Err(why) => shared.report.mistakes.push(unreadable(name, why)),
            }
        }
        finish(&files, options, shared, names.iter().map(|name| &**name))
    }
}

/// Compiles one file from its text; mistakes show `name`.
///
/// # Errors
/// Every mistake in it.
pub fn parse(name: &str, text: &str) -> Result<RuleSet, Findings<CompileError>> {
    let mut shared = yaml::ReadState::default();
    let file = yaml::read(name, text, &mut shared);
    finish(file.as_slice(), &CompileOptions::default(), shared, [name].into_iter())
}

/// Compiles what could be read, so that the mistakes of reading and of compiling are listed together.
fn finish<'n>(
    files: &[LimitsFile],
    options: &CompileOptions,
    shared: yaml::ReadState,
    names: impl Iterator<Item = &'n str>,
) -> Result<RuleSet, Findings<CompileError>> {
    compile(files, options, shared.report).map_err(|mut mistakes| {
        mistakes.sort(names);
        mistakes
    })
}

/// State of reading limits files.
struct Collector {
    bounds: ReadBounds,
    /// Remaining bounds.
    left: ReadBounds,
    /// Entries of folders seen so far.
    entries: usize,
    /// Device and inode of folders read below the given path.
    visited: HashSet<(u64, u64)>,
    sources: Vec<SourceFile>,
}

impl Collector {
    /// Adds the file, or the files of the folder. Breaks if a bound is exceeded.
    fn collect(&mut self, path: &Path, folders: usize) -> ControlFlow<()> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) => {
                self.failed(path, error);
                return ControlFlow::Continue(());
            }
        };
        if !metadata.is_dir() {
            return self.file(path);
        }
        if !self.visited.insert((metadata.dev(), metadata.ino())) {
            return ControlFlow::Continue(());
        }
        if folders == 0 {
            self.failed(path, "too many folders within folders");
            return ControlFlow::Continue(());
        }
        let entries = match self.list(path) {
            Ok(entries) => entries,
            Err(error) => {
                self.failed(path, error);
                return ControlFlow::Continue(());
            }
        };
        if self.entries > ENTRIES_MAX {
            self.failed(path, format_args!("more than {ENTRIES_MAX} entries in all folders"));
            return ControlFlow::Break(());
        }
        for entry in entries {
            let hidden =
                entry.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
            let yaml = entry.extension().is_some_and(|it| it == "yaml" || it == "yml");
            if !hidden && (yaml || entry.is_dir()) {
                self.collect(&entry, folders - 1)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Entries of a folder by name, within the bounds.
    fn list(&mut self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder)? {
            self.entries += 1;
            if self.entries > ENTRIES_MAX {
                break;
            }
            entries.push(entry?.path());
        }
        entries.sort();
        Ok(entries)
    }

    fn file(&mut self, path: &Path) -> ControlFlow<()> {
        let ReadBounds { files, bytes } = self.bounds;
        if self.left.files == 0 {
            self.failed(path, format_args!("more than {files} files in all (--limits-max-files)"));
            return ControlFlow::Break(());
        }
        self.left.files -= 1;
        let text = match sluicegate_files::read(path, self.left.bytes) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                let why = format_args!("more than {bytes} bytes in all files (--limits-max-bytes)");
                self.failed(path, why);
                return ControlFlow::Break(());
            }
            Err(error) => {
                self.failed(path, error);
                return ControlFlow::Continue(());
            }
        };
        self.left.bytes -= text.len() as u64;
        let text = String::from_utf8(text).map_err(|_| "not UTF-8".to_owned());
        self.sources.push((path.to_owned(), text));
        ControlFlow::Continue(())
    }

    fn failed(&mut self, path: &Path, why: impl fmt::Display) {
        self.sources.push((path.to_owned(), Err(why.to_string())));
    }
}

fn unreadable(name: &str, why: &str) -> CompileError {
    let location =
        SourceLocation { file: Arc::from(name), line: 0, column: 0, path: NodePath::default() };
    CompileError { location, mistake: Mistake::Unreadable(why.to_owned()) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use sluicegate_core::rules::{CompileOptions, Modes};

    use super::Sources;

    fn hash(texts: &[&str], folder: &str, options: &CompileOptions) -> u64 {
        let files = texts.iter().enumerate();
        let file = |(at, text): (usize, &&str)| {
            (PathBuf::from(format!("{folder}/{at}.yaml")), Ok((*text).to_owned()))
        };
        Sources(files.map(file).collect()).hash(options)
    }

    #[test]
    fn hashes_tell_texts_and_options_apart_and_not_folders() {
        let usual = CompileOptions::default();
        let of = |texts: &[&str]| hash(texts, "/etc/limits", &usual);
        assert_eq!(of(&["domain: a", "domain: b"]), hash(&["domain: a", "domain: b"], "x", &usual));
        let modes = Modes { shadow_mode: true, ..Modes::default() };
        let shadow = CompileOptions { modes, ..usual };
        let all = [
            of(&["domain: a", "domain: b"]),
            of(&["domain: a", "domain: c"]),
            of(&["domain: b", "domain: a"]),
            of(&["domain: a"]),
            of(&["domain: adomain: b"]),
            hash(&["domain: a"], "/etc/limits", &shadow),
        ];
        let apart: std::collections::BTreeSet<_> = all.into_iter().collect();
        assert_eq!(apart.len(), all.len(), "{all:?}");
        assert!(all.iter().all(|it| *it < 1 << 53) && all.iter().any(|it| *it > 1 << 32));
    }
}
