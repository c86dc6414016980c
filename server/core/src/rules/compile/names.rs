//! Names of limits, and what `replaces` says of them.

use std::collections::BTreeMap;

use crate::rules::{
    CompileWarning, Findings, Oddity,
    file::{Place, Placed},
    findings::quoted,
};

/// The names of one domain.
#[derive(Default)]
pub(super) struct Names<'f> {
    /// Where each is given to a limit. A limit that aliases repeat counts once.
    defined: BTreeMap<&'f str, Vec<&'f Place>>,
    replaced: Vec<&'f Placed<String>>,
}

impl<'f> Names<'f> {
    /// A limit has this name.
    pub(super) fn define(&mut self, name: &'f Placed<String>) {
        self.defined.entry(&name.value).or_default().push(&name.place);
    }

    /// A limit replaces those of this name.
    pub(super) fn replace(&mut self, name: &'f Placed<String>) {
        self.replaced.push(name);
    }

    /// Warns of what is odd about them, when all are known.
    pub(super) fn warn(mut self, warnings: &mut Findings<CompileWarning>) {
        for places in self.defined.values_mut() {
            places.sort_by_key(|place| place.spot());
            places.dedup_by_key(|place| place.spot());
        }
        let odd = |replaced: &&Placed<String>| {
            let name = &replaced.value;
            let oddity = match self.defined.get(name.as_str()).map(Vec::as_slice) {
                None => Oddity::NameUnknown(quoted(name)),
                Some([first, second, ..]) => Oddity::NameTwice {
                    name: quoted(name),
                    count: self.defined.get(name.as_str()).map_or(0, Vec::len),
                    first: first.seen_from(&replaced.place.file),
                    second: second.seen_from(&replaced.place.file),
                },
                Some(_) => return None,
            };
            Some(CompileWarning { place: replaced.place.clone(), oddity })
        };
        let same = self.defined.iter().filter_map(|(name, places)| {
            let [first, second, ..] = places.as_slice() else { return None };
            let first = first.seen_from(&second.file);
            let oddity = Oddity::SameName { name: quoted(name), count: places.len(), first };
            Some(CompileWarning { place: (*second).clone(), oddity })
        });
        self.replaced.iter().filter_map(odd).chain(same).for_each(|it| warnings.push(it));
    }
}
