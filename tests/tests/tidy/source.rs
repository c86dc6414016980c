//! Reads Rust sources: code without comments, strings and tests, and the imports of modules.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use sluicegate_tests::tools::workspace;

/// A source file.
pub(super) struct Source {
    /// Path relative to the root of the workspace.
    pub(super) path: String,
    /// The code. Comments, strings and tests are blank.
    pub(super) code: String,
    /// The lines outside of tests, comments included.
    pub(super) production_lines: usize,
}

/// The Rust files below a folder of the workspace, without files that have only tests.
pub(super) fn sources(folder: &str) -> Vec<Source> {
    let mut files = Vec::new();
    collect(&workspace().join(folder), &mut files);
    files.sort();
    let is_test = |file: &Path| file.iter().any(|part| part == "tests" || part == "tests.rs");
    let files = files.into_iter().filter(|file| !is_test(&relative(file)));
    files.map(|file| Source::read(&file)).collect()
}

/// The files of a folder, tests included, and what each `#[path]` in them names.
pub(super) fn path_attributes(folder: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    collect(&workspace().join(folder), &mut files);
    let attributes = files.iter().flat_map(|file| {
        let text = fs::read_to_string(file).unwrap();
        let named = text.lines().filter_map(|line| line.trim().strip_prefix("#[path = \""));
        let named = named.filter_map(|it| it.strip_suffix("\"]")).map(str::to_owned);
        named.map(|named| (file.clone(), named)).collect::<Vec<_>>()
    });
    attributes.collect()
}

fn relative(file: &Path) -> PathBuf {
    file.strip_prefix(workspace()).unwrap().to_owned()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let hidden = path.file_name().unwrap().as_encoded_bytes().starts_with(b".");
        if path.is_dir() && !hidden {
            collect(&path, files);
        } else if path.extension().is_some_and(|it| it == "rs") {
            files.push(path);
        }
    }
}

impl Source {
    fn read(file: &Path) -> Self {
        let text = fs::read_to_string(file).unwrap();
        Self::of(relative(file).to_str().unwrap(), &text)
    }

    pub(super) fn of(path: &str, text: &str) -> Self {
        let (code, lines_of_tests) = blank_tests(&blank_texts(text));
        let production_lines = text.lines().count() - lines_of_tests;
        Self { path: path.to_owned(), code, production_lines }
    }

    /// The lines of code that contain a word, counted from 1.
    pub(super) fn lines_with(&self, word: &str) -> Vec<usize> {
        let lines = self.code.lines().enumerate();
        lines.filter(|(_, line)| has_word(line, word)).map(|(at, _)| at + 1).collect()
    }
}

/// Whether a text has a word or path that is not part of a longer one.
pub(super) fn has_word(text: &str, word: &str) -> bool {
    let part = |char: char| char.is_alphanumeric() || char == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_some_and(part);
        let after = text[at + word.len()..].chars().next().is_some_and(part);
        !before && !after
    })
}

/// Replaces comments and string literals by blanks.
fn blank_texts(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let is = |at: usize, wanted: &str| {
        wanted.chars().enumerate().all(|(offset, char)| chars.get(at + offset) == Some(&char))
    };
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = if is(at, "//") {
            (at..chars.len()).find(|it| chars[*it] == '\n').unwrap_or(chars.len())
        } else if is(at, "/*") {
            (at + 2..chars.len()).find(|it| is(*it, "*/")).map_or(chars.len(), |it| it + 2)
        } else if chars[at] == '"' {
            quoted(&chars, at)
        } else if let Some(hashes) = raw(&chars, at) {
            let close = format!("\"{}", "#".repeat(hashes));
            let begin = at + 1 + hashes + 1;
            let end = (begin..chars.len()).find(|it| is(*it, &close));
            end.map_or(chars.len(), |it| it + close.len())
        } else if chars[at] == '\'' && chars.get(at + 1) == Some(&'\\') {
            (at + 3..chars.len()).find(|it| chars[*it] == '\'').map_or(chars.len(), |it| it + 1)
        } else if chars[at] == '\'' && chars.get(at + 2) == Some(&'\'') {
            at + 3
        } else {
            code.push(chars[at]);
            at += 1;
            continue;
        };
        code.extend(chars[at..end].iter().map(|char| if *char == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    code
}

/// The end of the string literal that begins here.
fn quoted(chars: &[char], begin: usize) -> usize {
    let mut at = begin + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// Number of hashes of the raw string literal that begins here; `None` if none begins.
fn raw(chars: &[char], at: usize) -> Option<usize> {
    let before = at.checked_sub(1).and_then(|it| chars.get(it));
    if chars[at] != 'r' || before.is_some_and(|it| it.is_alphanumeric() && *it != 'b') {
        return None;
    }
    let hashes = chars[at + 1..].iter().take_while(|it| **it == '#').count();
    (chars.get(at + 1 + hashes) == Some(&'"')).then_some(hashes)
}

/// The code without `#[cfg(test)]` items, and the number of their lines.
fn blank_tests(code: &str) -> (String, usize) {
    const TEST: &str = "#[cfg(test)]";
    let mut rest = code;
    let (mut kept, mut lines) = (String::with_capacity(code.len()), 0);
    while let Some(at) = rest.find(TEST) {
        kept.push_str(&rest[..at]);
        let end = at + TEST.len() + item_end(&rest[at + TEST.len()..]);
        kept.extend(rest[at..end].chars().map(|char| if char == '\n' { '\n' } else { ' ' }));
        lines += rest[at..end].lines().count();
        rest = &rest[end..];
    }
    kept.push_str(rest);
    (kept, lines)
}

/// The end of the first item of this code.
fn item_end(code: &str) -> usize {
    let mut depth = 0;
    for (at, char) in code.char_indices() {
        match char {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            ';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

/// A module: its path from the crate's root.
pub(super) type Module = Vec<String>;

/// An import of one file from another.
pub(super) struct Import {
    pub(super) from: Module,
    pub(super) to: Module,
    /// Location and path of the import.
    pub(super) place: String,
}

/// The modules of a crate, by path, with their sources.
pub(super) struct Modules {
    by_path: BTreeMap<Module, Source>,
}

/// A name that a `use` item imports.
struct Name {
    alias: String,
    path: Vec<String>,
    is_public: bool,
    line: usize,
}

impl Modules {
    /// The modules below a crate's source folder.
    pub(super) fn read(folder: &str) -> Self {
        Self::of(folder, sources(folder))
    }

    pub(super) fn of(folder: &str, sources: Vec<Source>) -> Self {
        let with_path = sources.into_iter().filter_map(|source| {
            let inside = source.path.strip_prefix(folder)?.trim_start_matches('/');
            let mut path: Module =
                inside.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
            match path.last()?.as_str() {
                "main" if path.len() == 1 => return None,
                "mod" | "lib" => _ = path.pop(),
                _ => {}
            }
            Some((path, source))
        });
        Self { by_path: with_path.collect() }
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &Module> {
        self.by_path.keys()
    }

    /// Imports between files. A re-exported name counts as imported from the module that defines it.
    pub(super) fn imports(&self) -> Vec<Import> {
        let mut imports = Vec::new();
        for (module, source) in &self.by_path {
            let (names, rest) = names(&source.code);
            let used = names.iter().filter(|it| !it.is_public).map(|it| (&it.path, it.line));
            let inline = inline_paths(&rest);
            let used = used.chain(inline.iter().map(|(path, line)| (path, *line)));
            for (path, line) in used {
                let to = self.target(module, path, &names, 0);
                if let Some(to) = to.filter(|to| to != module) {
                    let place = format!("{}:{line}: {}", source.path, path.join("::"));
                    imports.push(Import { from: module.clone(), to, place });
                }
            }
        }
        imports
    }

    /// The module that defines the item at a path; `None` if it belongs to another crate.
    fn target(&self, at: &Module, path: &[String], names: &[Name], depth: u8) -> Option<Module> {
        let mut module = at.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => {
                module.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|it| it == "super") {
                    module.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                let child: Module = at.iter().cloned().chain([first.to_owned()]).collect();
                if !self.by_path.contains_key(&child) {
                    let local = |name: &&Name| {
                        let is_own = ["crate", "self", "super"].contains(&&*name.path[0]);
                        name.alias == first && name.path[0] != first && is_own
                    };
                    let known = names.iter().find(local)?;
                    let full: Vec<String> = known.path.iter().chain(&path[1..]).cloned().collect();
                    return self.target(at, &full, names, depth);
                }
            }
        }
        while let Some((first, others)) = rest.split_first() {
            module.push(first.clone());
            if !self.by_path.contains_key(&module) {
                module.pop();
                break;
            }
            rest = others;
        }
        // Whether the module re-exports the name.
        if let (Some(first), Some(source), true) =
            (rest.first(), self.by_path.get(&module), depth < 8)
        {
            let (passed_on, _) = self::names(&source.code);
            if let Some(name) = passed_on.iter().find(|it| it.is_public && it.alias == *first) {
                let full: Vec<String> = name.path.iter().chain(&rest[1..]).cloned().collect();
                return self.target(&module, &full, &passed_on, depth + 1);
            }
        }
        Some(module)
    }
}

/// The names that a file's `use` items import, and its code without these items.
fn names(code: &str) -> (Vec<Name>, String) {
    let (mut names, mut kept, mut rest, mut line) = (Vec::new(), String::new(), code, 1);
    while let Some(at) = find_use(rest) {
        line += rest[..at].matches('\n').count();
        let end = at + rest[at..].find(';').unwrap_or(rest.len() - at);
        let before = rest[..at].trim_end();
        let is_public = before.ends_with("pub")
            || before.ends_with(')') && {
                before.rfind('(').is_some_and(|open| before[..open].ends_with("pub"))
            };
        for (path, alias) in expand(rest[at + "use ".len()..end].trim()) {
            names.push(Name { alias, path, is_public, line });
        }
        kept.push_str(&rest[..at]);
        kept.extend(rest[at..end].chars().filter(|char| *char == '\n'));
        line += rest[at..end].matches('\n').count();
        rest = &rest[end..];
    }
    kept.push_str(rest);
    (names, kept)
}

fn find_use(code: &str) -> Option<usize> {
    code.match_indices("use ").map(|(at, _)| at).find(|at| {
        let before = code[..*at].chars().next_back();
        before.is_none_or(char::is_whitespace)
    })
}

/// The paths of a `use` tree, each with the name that it imports.
fn expand(tree: &str) -> Vec<(Vec<String>, String)> {
    let Some((head, inside)) = tree.split_once('{') else {
        let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(a, b)| (a, Some(b)));
        let path: Vec<String> = path.split("::").map(|it| it.trim().to_owned()).collect();
        let last = path.last().cloned().unwrap_or_default();
        let path = if last == "self" { path[..path.len() - 1].to_vec() } else { path };
        let alias = alias.map_or_else(|| path.last().cloned().unwrap_or_default(), str::to_owned);
        return if path.is_empty() { Vec::new() } else { vec![(path, alias.trim().to_owned())] };
    };
    let inside = &inside[..inside.rfind('}').unwrap_or(inside.len())];
    let (mut depth, mut begin, mut parts) = (0, 0, Vec::new());
    for (at, char) in inside.char_indices() {
        match char {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inside[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inside[begin..]);
    let whole = |part: &str| format!("{}{}", head.trim(), part.trim());
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(|part| expand(&whole(part))).collect()
}

/// The paths of two and more parts in code, with their lines.
fn inline_paths(code: &str) -> Vec<(Vec<String>, usize)> {
    let is_part = |char: char| char.is_alphanumeric() || char == '_' || char == ':';
    let mut paths = Vec::new();
    for (at, line) in code.lines().enumerate() {
        // The path of a visibility is not an import.
        let line =
            line.replace("pub(in ", "pub(").replace("pub(crate", "").replace("pub(super", "");
        for word in line.split(|char| !is_part(char)) {
            let path: Vec<String> = word.split("::").map(str::to_owned).collect();
            let is_path =
                path.len() > 1 && path.iter().all(|it| !it.is_empty() && !it.contains(':'));
            if is_path && path[0].starts_with(char::is_lowercase) {
                paths.push((path, at + 1));
            }
        }
    }
    paths
}

/// The imports that are part of a circle of modules.
pub(super) fn circles(imports: &[Import]) -> Vec<&Import> {
    let mut below: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
    for import in imports {
        below.entry(&import.from).or_default().insert(&import.to);
    }
    let reaches = |from: &Module, to: &Module| {
        let mut reached = BTreeSet::from([from]);
        let mut next = vec![from];
        while let Some(module) = next.pop() {
            let new = below.get(module).into_iter().flatten().filter(|it| reached.insert(it));
            next.extend(new.copied().collect::<Vec<_>>());
        }
        reached.contains(to)
    };
    imports.iter().filter(|import| reaches(&import.to, &import.from)).collect()
}
