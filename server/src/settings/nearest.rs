//! "Did you mean" suggestions for unknown names.

/// Names are near if at most one in this many letters differs. One letter may always differ.
const LETTERS_PER_MISTAKE: usize = 3;

/// The known name that is nearest to an unknown one; `None` if no name is near.
pub(super) fn nearest<'n>(unknown: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let max = (unknown.len() / LETTERS_PER_MISTAKE).max(1);
    let distances = names.map(|name| (strsim::damerau_levenshtein(unknown, name), name));
    distances.filter(|(distance, _)| *distance <= max).min().map(|(_, name)| name)
}
