//! Which files there are, and what they say.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use sluicegate_core::rules::{
    CompileError, CompileOptions, LimitsFile, Place, Problem, RuleSet, compile,
};

use super::yaml;

/// The largest limits file, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The deepest folder below one that is named.
const FOLDERS_MAX: usize = 16;

/// Limits files as they were found: equal sources make equal rules.
#[derive(Debug, PartialEq, Eq)]
pub struct Sources(Vec<(PathBuf, Result<String, String>)>);

impl Sources {
    /// Reads limits files. A folder stands for every `.yaml` and `.yml` file in it, at any depth, in the
    /// order of their names; what begins with a dot is left out, so the inner files of a mounted
    /// `ConfigMap` are not read twice.
    #[must_use]
    pub fn read(paths: &[PathBuf]) -> Self {
        let mut sources = Vec::new();
        for path in paths {
            let before = sources.len();
            collect(path, FOLDERS_MAX, &mut sources);
            if sources.len() == before {
                let none = "no .yaml or .yml file in this folder".to_owned();
                sources.push((path.clone(), Err(none)));
            }
        }
        Self(sources)
    }

    /// A number below 2^53, which a double holds exactly: the same for the same texts in the same order, and the
    /// same options. Where the files are does not matter.
    pub(crate) fn hash(&self, options: &CompileOptions) -> u64 {
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
    /// Every mistake in any of the files, in the order of the files and their lines.
    pub fn compile(&self, options: &CompileOptions) -> Result<RuleSet, Vec<CompileError>> {
        let names: Vec<_> = self.0.iter().map(|(path, _)| path.to_string_lossy()).collect();
        let mut errors = Vec::new();
        let mut files = Vec::new();
        for (name, (_, text)) in names.iter().zip(&self.0) {
            match text {
                Ok(text) => files.extend(yaml::read(name, text, &mut errors)),
                Err(why) => errors.push(unreadable(name, why)),
            }
        }
        finish(&files, options, errors)
            .map_err(|errors| in_order(names.iter().map(|name| &**name), errors))
    }
}

/// Compiles one file from its text; `name` is what mistakes call it.
///
/// # Errors
/// Every mistake in it.
pub fn parse(name: &str, text: &str) -> Result<RuleSet, Vec<CompileError>> {
    let mut errors = Vec::new();
    let file = yaml::read(name, text, &mut errors);
    finish(file.as_slice(), &CompileOptions::default(), errors)
        .map_err(|errors| in_order([name].into_iter(), errors))
}

/// Compiles what could be read, so that the mistakes of reading and of compiling are told together.
fn finish(
    files: &[LimitsFile],
    options: &CompileOptions,
    mut errors: Vec<CompileError>,
) -> Result<RuleSet, Vec<CompileError>> {
    match compile(files, options) {
        Ok(rules) if errors.is_empty() => return Ok(rules),
        Ok(_) => {}
        Err(more) => errors.extend(more),
    }
    Err(errors)
}

/// By file and position. What stands in one place and is used in
/// several, by aliases, is told once.
fn in_order<'n>(
    names: impl Iterator<Item = &'n str>,
    mut errors: Vec<CompileError>,
) -> Vec<CompileError> {
    let order: HashMap<&str, usize> =
        names.enumerate().map(|(index, name)| (name, index)).collect();
    let position = |place: &Place| (order.get(&*place.file).copied(), place.line, place.column);
    let mut told = HashSet::new();
    errors.retain(|CompileError { place, problem }| {
        told.insert((Arc::clone(&place.file), place.line, place.column, problem.to_string()))
    });
    errors.sort_by_key(|error| position(&error.place));
    errors
}

/// Adds the file, or the files of the folder.
fn collect(path: &Path, folders: usize, sources: &mut Vec<(PathBuf, Result<String, String>)>) {
    let entries = match fs::metadata(path) {
        Ok(metadata) if !metadata.is_dir() => {
            let text = read(path).map_err(|error| error.to_string());
            return sources.push((path.to_owned(), text));
        }
        Ok(_) if folders == 0 => Err(io::Error::other("too many folders within folders")),
        Ok(_) => list(path),
        Err(error) => Err(error),
    };
    let entries = match entries {
        Ok(entries) => entries,
        Err(error) => return sources.push((path.to_owned(), Err(error.to_string()))),
    };
    for entry in entries {
        let hidden = entry.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let yaml = entry.extension().is_some_and(|it| it == "yaml" || it == "yml");
        if !hidden && (yaml || entry.is_dir()) {
            collect(&entry, folders - 1, sources);
        }
    }
}

/// What is in a folder, by name.
fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut entries: Vec<PathBuf> = entries.collect::<io::Result<_>>()?;
    entries.sort();
    Ok(entries)
}

fn read(path: &Path) -> io::Result<String> {
    let size = fs::metadata(path)?.len();
    if size > FILE_BYTES_MAX {
        let text =
            format!("{size} bytes are more than the {FILE_BYTES_MAX} that a limits file may have");
        return Err(io::Error::other(text));
    }
    fs::read_to_string(path)
}

fn unreadable(name: &str, why: &str) -> CompileError {
    let place = Place { file: Arc::from(name), line: 0, column: 0, path: String::new() };
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
