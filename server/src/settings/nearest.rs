//! The nearest name to an unknown one.

/// How many letters of a name may be others in one that is near: one in three.
const LETTERS_PER_MISTAKE: usize = 3;

/// The name that was probably meant, if there is one that is near.
pub(super) fn nearest<'n>(unknown: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let max = (unknown.len() / LETTERS_PER_MISTAKE).max(1);
    let distances = names.map(|name| (strsim::damerau_levenshtein(unknown, name), name));
    distances.filter(|(distance, _)| *distance <= max).min().map(|(_, name)| name)
}
