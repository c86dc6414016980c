//! Which files there are, and what they say.

use std::{
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

/// What was loaded.
#[derive(Debug)]
pub struct Loaded {
    /// The rules.
    pub rules: RuleSet,
    /// What they were made from.
    pub sources: Sources,
}

/// The files of one load, with what they held: equal sources make equal rules.
#[derive(Debug, PartialEq, Eq)]
pub struct Sources(Vec<(PathBuf, String)>);

/// Loads limits files. A folder stands for every `.yaml` and `.yml` file in it, at any depth, in the order
/// of their names; what begins with a dot is left out, so the inner files of a mounted `ConfigMap` are not
/// read twice.
///
/// # Errors
/// Every mistake in any of the files, in the order of the files and their lines.
pub fn load(paths: &[PathBuf], options: &CompileOptions) -> Result<Loaded, Vec<CompileError>> {
    let mut errors = Vec::new();
    let mut sources = Vec::new();
    for path in paths {
        let before = sources.len();
        match collect(path, FOLDERS_MAX, &mut sources) {
            Ok(()) if sources.len() == before && errors.is_empty() => {
                errors.push(unreadable(path, "no .yaml or .yml file in this folder"));
            }
            Ok(()) => {}
            Err((path, error)) => errors.push(unreadable(&path, &error.to_string())),
        }
    }
    let mut files = Vec::new();
    for (path, text) in &sources {
        files.extend(yaml::read(&path.to_string_lossy(), text, &mut errors));
    }
    let rules = finish(&files, options, errors)?;
    Ok(Loaded { rules, sources: Sources(sources) })
}

/// Compiles one file from its text; `name` is what mistakes call it.
///
/// # Errors
/// Every mistake in it.
pub fn parse(name: &str, text: &str) -> Result<RuleSet, Vec<CompileError>> {
    let mut errors = Vec::new();
    let file = yaml::read(name, text, &mut errors);
    finish(file.as_slice(), &CompileOptions::default(), errors)
}

/// Compiles what could be read, so that the mistakes of reading and of compiling are told together.
fn finish(
    files: &[LimitsFile],
    options: &CompileOptions,
    mut errors: Vec<CompileError>,
) -> Result<RuleSet, Vec<CompileError>> {
    let order = |error: &CompileError| {
        let file = files.iter().position(|file| file.place.file == error.place.file);
        (file, error.place.line)
    };
    match compile(files, options) {
        Ok(rules) if errors.is_empty() => return Ok(rules),
        Ok(_) => {}
        Err(more) => errors.extend(more),
    }
    errors.sort_by_key(order);
    Err(errors)
}

/// Adds the file, or the files of the folder.
fn collect(
    path: &Path,
    folders: usize,
    sources: &mut Vec<(PathBuf, String)>,
) -> Result<(), (PathBuf, io::Error)> {
    let at = |error| (path.to_owned(), error);
    if !fs::metadata(path).map_err(at)?.is_dir() {
        sources.push((path.to_owned(), read(path).map_err(at)?));
        return Ok(());
    }
    if folders == 0 {
        return Err(at(io::Error::other("too many folders within folders")));
    }
    let entries = fs::read_dir(path).map_err(at)?;
    let mut entries: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>().map_err(at)?;
    entries.sort();
    for entry in entries {
        let hidden = entry.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        let yaml = entry.extension().is_some_and(|it| it == "yaml" || it == "yml");
        if !hidden && (yaml || entry.is_dir()) {
            collect(&entry, folders - 1, sources)?;
        }
    }
    Ok(())
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

fn unreadable(path: &Path, why: &str) -> CompileError {
    let file = Arc::from(&*path.to_string_lossy());
    let place = Place { file, line: 0, path: String::new() };
    CompileError { place, problem: Problem::Unreadable(why.to_owned()) }
}
