//! Findings: lists of mistakes or warnings of all limits files, bounded in length.

use std::{
    collections::{HashMap, HashSet},
    fmt::{self, Write as _},
    ops::Deref,
    sync::Arc,
};

use super::{LocatedMistake, LocatedWarning, file::SourceLocation};

/// The most mistakes, and the most warnings, that are listed for all limits files together. Further ones are only
/// counted.
pub const FINDINGS_LISTED_MAX: usize = 1_000;

/// The most characters of a name that a mistake or a warning quotes.
pub const QUOTED_CHARS_MAX: usize = 256;

/// A mistake or a warning at a location of a limits file.
pub trait Finding {
    /// The location.
    fn location(&self) -> &SourceLocation;

    /// The text, without the location.
    fn message(&self) -> String;
}

impl Finding for LocatedMistake {
    fn location(&self) -> &SourceLocation {
        &self.location
    }

    fn message(&self) -> String {
        self.mistake.to_string()
    }
}

impl Finding for LocatedWarning {
    fn location(&self) -> &SourceLocation {
        &self.location
    }

    fn message(&self) -> String {
        self.warning.to_string()
    }
}

/// What identifies a finding: file, line, column and text.
type FindingKey = (Arc<str>, usize, usize, String);

/// A list of the first [`FINDINGS_LISTED_MAX`] findings, and the number of further ones. Equal findings at one
/// location, which repeated aliases cause, are listed once.
#[derive(Clone, Debug)]
pub struct Findings<T> {
    listed: Vec<T>,
    /// Identifies the listed findings.
    keys: HashSet<FindingKey>,
    unlisted: usize,
}

impl<T> Default for Findings<T> {
    fn default() -> Self {
        Self { listed: Vec::new(), keys: HashSet::new(), unlisted: 0 }
    }
}

impl<T> Deref for Findings<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.listed
    }
}

impl<T> IntoIterator for Findings<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.listed.into_iter()
    }
}

impl<T: Finding> Findings<T> {
    /// Adds a finding to the list, or only counts it if the list is full. Ignores a repetition of a listed finding.
    pub fn push(&mut self, finding: T) {
        let SourceLocation { file, line, column, .. } = finding.location();
        let key = (Arc::clone(file), *line, *column, finding.message());
        if self.is_full() {
            self.unlisted += usize::from(!self.keys.contains(&key));
        } else if self.keys.insert(key) {
            self.listed.push(finding);
        }
    }

    /// Sorts the list by file, in the order of `files`, then by line, column and text.
    pub fn sort<'n>(&mut self, files: impl Iterator<Item = &'n str>) {
        let mut order = HashMap::new();
        for (index, file) in files.enumerate() {
            order.entry(file).or_insert(index);
        }
        self.listed.sort_by_cached_key(|finding| {
            let location = finding.location();
            (order.get(&*location.file).copied(), location.line, location.column, finding.message())
        });
    }
}

impl<T> Findings<T> {
    /// The listed findings as text. If there are further ones, one more line says so.
    pub fn lines(&self) -> impl Iterator<Item = String>
    where
        T: fmt::Display,
    {
        let further =
            (self.unlisted > 0).then(|| format!("there are more than these {FINDINGS_LISTED_MAX}"));
        self.listed.iter().map(ToString::to_string).chain(further)
    }

    /// Whether the list is full, so that further findings are only counted.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.listed.len() >= FINDINGS_LISTED_MAX
    }

    /// Number of findings that were added after the list was full. Repetitions of listed findings are not counted,
    /// repetitions of unlisted ones are.
    #[must_use]
    pub const fn unlisted(&self) -> usize {
        self.unlisted
    }

    /// Number of all findings, listed or not.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.listed.len() + self.unlisted
    }
}

/// The text for a message, cut off after [`QUOTED_CHARS_MAX`] characters, because names in limits files may have
/// megabytes.
#[must_use]
pub fn truncated(text: impl fmt::Display) -> String {
    let mut truncated = TruncatedText { text: String::new(), left: QUOTED_CHARS_MAX };
    // An error stops the formatting of the rest.
    if write!(truncated, "{text}").is_err() {
        truncated.text.push('…');
    }
    truncated.text
}

/// A text that fails to grow beyond its bound.
struct TruncatedText {
    text: String,
    /// Number of characters that still fit.
    left: usize,
}

impl fmt::Write for TruncatedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for char in text.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(char);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Mistake, *};

    fn mistake(line: usize) -> LocatedMistake {
        let location =
            SourceLocation { file: Arc::from("a.yaml"), line, column: 1, path: Default::default() };
        LocatedMistake { location, mistake: Mistake::TooDeep }
    }

    #[test]
    fn findings_beyond_the_bound_are_only_counted() {
        let mut findings = Findings::default();
        for line in (1..=FINDINGS_LISTED_MAX + 7).rev() {
            findings.push(mistake(line));
        }
        assert_eq!((findings.len(), findings.unlisted()), (FINDINGS_LISTED_MAX, 7));
        assert_eq!(findings.total(), FINDINGS_LISTED_MAX + 7);
        findings.sort(["a.yaml"].into_iter());
        assert_eq!(
            (findings[0].location.line, findings[FINDINGS_LISTED_MAX - 1].location.line),
            (8, 1_007)
        );
    }

    #[test]
    fn a_repeated_finding_is_listed_once() {
        let mut findings = Findings::default();
        for _ in 0..FINDINGS_LISTED_MAX * 2 {
            findings.push(mistake(1));
        }
        findings.push(mistake(2));
        assert_eq!((findings.len(), findings.unlisted()), (2, 0));
    }

    #[test]
    fn a_repetition_of_a_listed_finding_is_not_counted_when_the_list_is_full() {
        let mut findings = Findings::default();
        for line in 1..=FINDINGS_LISTED_MAX {
            findings.push(mistake(line));
        }
        findings.push(mistake(1));
        assert_eq!(
            (findings.total(), findings.lines().count()),
            (FINDINGS_LISTED_MAX, FINDINGS_LISTED_MAX)
        );
        findings.push(mistake(FINDINGS_LISTED_MAX + 1));
        assert_eq!(
            (findings.total(), findings.lines().count()),
            (FINDINGS_LISTED_MAX + 1, FINDINGS_LISTED_MAX + 1)
        );
    }

    #[test]
    fn long_names_are_cut_off() {
        assert_eq!(truncated("kö"), "kö");
        let longest = "ö".repeat(QUOTED_CHARS_MAX);
        assert_eq!(truncated(&longest), longest);
        assert_eq!(truncated(longest.clone() + "k"), longest + "…");
    }
}
