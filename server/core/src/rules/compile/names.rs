//! Names of limits, and the references to them in `replaces`.

use std::collections::BTreeMap;

use crate::rules::{
    Findings, LocatedWarning, Warning,
    file::{Located, SourceLocation},
    findings::truncated,
};

/// The names of limits in one domain, and the names in `replaces`.
#[derive(Default)]
pub(super) struct LimitNames<'f> {
    /// By name, the locations of the limits with that name.
    defined: BTreeMap<&'f str, Vec<&'f SourceLocation>>,
    replaced: Vec<&'f Located<String>>,
}

impl<'f> LimitNames<'f> {
    /// Adds the name of a limit.
    pub(super) fn define(&mut self, name: &'f Located<String>) {
        self.defined.entry(&name.value).or_default().push(&name.location);
    }

    /// Adds a reference to a limit: a name in `replaces`.
    pub(super) fn add_reference(&mut self, name: &'f Located<String>) {
        self.replaced.push(name);
    }

    /// Adds the warnings about names. Called when all names are known.
    pub(super) fn warn(mut self, warnings: &mut Findings<LocatedWarning>) {
        // A limit that is repeated by YAML aliases counts once.
        for locations in self.defined.values_mut() {
            locations.sort_by_key(|location| location.position());
            locations.dedup_by_key(|location| location.position());
        }
        let unclear = |replaced: &&Located<String>| {
            let name = &replaced.value;
            let warning = match self.defined.get(name.as_str()).map(Vec::as_slice) {
                None => Warning::NameUnknown(truncated(name)),
                Some([first, second, ..]) => Warning::ReplacesSeveral {
                    name: truncated(name),
                    count: self.defined.get(name.as_str()).map_or(0, Vec::len),
                    first: first.relative_to(&replaced.location.file),
                    second: second.relative_to(&replaced.location.file),
                },
                Some(_) => return None,
            };
            Some(LocatedWarning { location: replaced.location.clone(), warning })
        };
        let duplicate = self.defined.iter().filter_map(|(name, locations)| {
            let [first, second, ..] = locations.as_slice() else { return None };
            let first = first.relative_to(&second.file);
            let warning =
                Warning::DuplicateName { name: truncated(name), count: locations.len(), first };
            Some(LocatedWarning { location: (*second).clone(), warning })
        });
        self.replaced.iter().filter_map(unclear).chain(duplicate).for_each(|it| warnings.push(it));
    }
}
