//! Which files there are, and what they say.

use std::{
    collections::HashSet,
    fmt, fs, io,
    ops::ControlFlow,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use sluicegate_core::rules::{
    CompileError, CompileOptions, Findings, LimitsFile, NodePath, Place, Problem, RuleSet, compile,
};

use crate::yaml;

/// The deepest folder below one that is named.
const FOLDERS_MAX: usize = 16;

/// The most entries that are looked at in all folders.
const ENTRIES_MAX: usize = 100_000;

/// How much is read of limits files, all of them together.
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

/// Limits files as they were found: equal sources make equal rules.
#[derive(Debug, PartialEq, Eq)]
pub struct Sources(Vec<Source>);

/// A path, and the text there or why there is none.
type Source = (PathBuf, Result<String, String>);

impl Sources {
    /// Reads limits files. A folder stands for every `.yaml` and `.yml` file in it, at any depth, in the
    /// order of their names; what begins with a dot is left out, so the inner files of a mounted
    /// `ConfigMap` are not read twice. A folder that links lead to again is read once.
    #[must_use]
    pub fn read(paths: &[PathBuf], bounds: ReadBounds) -> Self {
        let mut reading = Reading {
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

    /// A number below 2^53, which a double holds exactly: the same for the same texts in the same order, and the
    /// same options. Where the files are does not matter.
    #[must_use]
    pub fn hash(&self, options: &CompileOptions) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{options:?}").as_bytes());
        for text in self.0.iter().filter_map(|(_, text)| text.as_ref().ok()) {
            // Its length, so that the same bytes cut otherwise are others.
            hasher.update(&text.len().to_le_bytes());
            hasher.update(text.as_bytes());
        }
        let mut first = [0; 8];
        hasher.finalize_xof().fill(&mut first);
        u64::from_le_bytes(first) >> (u64::BITS - f64::MANTISSA_DIGITS)
    }

    /// Compiles them.
    ///
    /// # Errors
    /// The mistakes in all of the files, in the order of the files and their lines. With the first that is not listed
    /// the search for mistakes ends.
    pub fn compile(&self, options: &CompileOptions) -> Result<RuleSet, Findings<CompileError>> {
        let names: Vec<_> = self.0.iter().map(|(path, _)| path.to_string_lossy()).collect();
        let mut shared = yaml::Shared::default();
        let mut files = Vec::new();
        for (name, (_, text)) in names.iter().zip(&self.0) {
            if shared.report.mistakes.more() > 0 {
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

/// Compiles one file from its text; `name` is what mistakes call it.
///
/// # Errors
/// Every mistake in it.
pub fn parse(name: &str, text: &str) -> Result<RuleSet, Findings<CompileError>> {
    let mut shared = yaml::Shared::default();
    let file = yaml::read(name, text, &mut shared);
    finish(file.as_slice(), &CompileOptions::default(), shared, [name].into_iter())
}

/// Compiles what could be read, so that the mistakes of reading and of compiling are listed together.
fn finish<'n>(
    files: &[LimitsFile],
    options: &CompileOptions,
    shared: yaml::Shared,
    names: impl Iterator<Item = &'n str>,
) -> Result<RuleSet, Findings<CompileError>> {
    compile(files, options, shared.report).map_err(|mut mistakes| {
        mistakes.sort(names);
        mistakes
    })
}

/// Limits files that are being read.
struct Reading {
    bounds: ReadBounds,
    /// What may still be read.
    left: ReadBounds,
    /// Entries of folders that were looked at.
    entries: usize,
    /// Device and inode of folders that were read below the path that was named.
    visited: HashSet<(u64, u64)>,
    sources: Vec<Source>,
}

impl Reading {
    /// Adds the file, or the files of the folder. Breaks off where a bound of all files is met.
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

    /// What is in a folder, by name, as far as it may be looked at.
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
    let place = Place { file: Arc::from(name), line: 0, column: 0, path: NodePath::default() };
    CompileError { place, problem: Problem::Unreadable(why.to_owned()) }
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
