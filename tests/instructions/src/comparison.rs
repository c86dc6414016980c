//! Compares instruction counts with the recorded ones.

use std::{collections::BTreeMap, fmt};

use serde_json::{Value, json};

/// The greatest accepted increase, in percent.
const WORSE_MAX: u64 = 10;

/// Instruction counts by operation, with the versions of the tools.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Instructions {
    /// Version and host of the compiler.
    pub(crate) compiler: String,
    /// The version of valgrind.
    pub(crate) valgrind: String,
    /// Instructions of one operation, by its name.
    pub(crate) counts: BTreeMap<String, u64>,
}

impl Instructions {
    /// Parses the output of [`json`](Self::json). Does not use serde's macros, because the server is built without
    /// them.
    pub(crate) fn parse(json: &str) -> serde_json::Result<Self> {
        let mut json: Value = serde_json::from_str(json)?;
        let mut text = |name: &str| serde_json::from_value(json[name].take());
        let (compiler, valgrind) = (text("compiler")?, text("valgrind")?);
        Ok(Self { compiler, valgrind, counts: serde_json::from_value(json["counts"].take())? })
    }

    pub(crate) fn json(&self) -> Value {
        let Self { compiler, valgrind, counts } = self;
        json!({"compiler": compiler, "valgrind": valgrind, "counts": counts})
    }

    /// Compares measured counts with these, which are the recorded ones.
    #[must_use]
    pub(crate) fn compare<'i>(&'i self, measured: &'i Self) -> Comparison<'i> {
        Comparison { committed: self, measured }
    }
}

/// Recorded and measured counts.
#[derive(Debug)]
pub(crate) struct Comparison<'i> {
    committed: &'i Instructions,
    measured: &'i Instructions,
}

impl Comparison<'_> {
    /// Whether both were measured with the same compiler and valgrind. Otherwise their difference is meaningless.
    fn is_fair(&self) -> bool {
        let Self { committed, measured } = self;
        committed.compiler == measured.compiler && committed.valgrind == measured.valgrind
    }

    /// Whether an operation needs too many more instructions, has no recorded count, or is no longer measured.
    #[must_use]
    pub(crate) fn has_failed(&self) -> bool {
        self.is_fair() && self.rows().any(|(_, committed, measured)| is_wrong(committed, measured))
    }

    /// Every operation with its recorded and its measured count.
    fn rows(&self) -> impl Iterator<Item = (&str, Option<u64>, Option<u64>)> {
        let (committed, measured) = (&self.committed.counts, &self.measured.counts);
        let new = measured.keys().filter(|&name| !committed.contains_key(name));
        let row = |name| (name, committed.get(name).copied(), measured.get(name).copied());
        committed.keys().chain(new).map(String::as_str).map(row)
    }
}

fn is_wrong(committed: Option<u64>, measured: Option<u64>) -> bool {
    match (committed, measured) {
        (Some(committed), Some(measured)) => has_worsened(committed, measured),
        _ => true,
    }
}

const fn has_worsened(before: u64, after: u64) -> bool {
    after * 100 > before * (100 + WORSE_MAX)
}

impl fmt::Display for Comparison<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { committed, measured } = self;
        let figure =
            |it: Option<u64>| it.map_or_else(|| "none".to_owned(), |count| count.to_string());
        writeln!(f, "| instructions | committed | measured | |\n|---|---|---|---|")?;
        for (name, committed, measured) in self.rows() {
            let remark = match (committed, measured) {
                _ if !self.is_fair() => "",
                _ if is_wrong(committed, measured) => "wrong",
                (Some(committed), Some(measured)) if has_worsened(measured, committed) => "better",
                _ => "",
            };
            let (committed, measured) = (figure(committed), figure(measured));
            writeln!(f, "| {name} | {committed} | {measured} | {remark} |")?;
        }
        if !self.is_fair() {
            let Instructions { compiler, valgrind, .. } = committed;
            writeln!(f, "the committed figures are of {compiler}, {valgrind}: not compared")?;
            let Instructions { compiler, valgrind, .. } = measured;
            writeln!(f, "with the measured ones, of {compiler}, {valgrind}")?;
        } else if self.has_failed() {
            writeln!(
                f,
                "more than {WORSE_MAX} % dearer than committed, or not known: find out why, or say that it must be so \
                 with tests/bench/instructions --update"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Instructions;

    fn counted<const N: usize>(compiler: &str, counts: [(&str, u64); N]) -> Instructions {
        Instructions {
            compiler: compiler.to_owned(),
            valgrind: "valgrind-3".to_owned(),
            counts: counts.map(|(name, count)| (name.to_owned(), count)).into(),
        }
    }

    fn fails(committed: &Instructions, measured: &Instructions) -> bool {
        committed.compare(measured).has_failed()
    }

    #[test]
    fn figures_are_read_as_they_are_written() {
        let counts = counted("rustc 1", [("key", 1000), ("plan", 50)]);
        let json = counts.json().to_string();
        assert_eq!(Instructions::parse(&json).unwrap(), counts);
        assert!(Instructions::parse("{}").is_err());
    }

    #[test]
    fn more_than_a_tenth_is_too_much() {
        let committed = counted("rustc 1", [("key", 1000), ("plan", 50)]);
        assert!(!fails(&committed, &committed));
        let better = counted("rustc 1", [("key", 1100), ("plan", 40)]);
        assert!(!fails(&committed, &better));
        let shown = committed.compare(&better).to_string();
        assert!(shown.contains("| plan | 50 | 40 | better |"), "{shown}");
        let worse = counted("rustc 1", [("key", 1101), ("plan", 50)]);
        assert!(fails(&committed, &worse));
        let shown = committed.compare(&worse).to_string();
        assert!(shown.contains("| key | 1000 | 1101 | wrong |"), "{shown}");
        assert!(shown.contains("| plan | 50 | 50 |  |"), "{shown}");
    }

    #[test]
    fn what_only_one_side_knows_is_not_passed_over() {
        let (one, both) =
            (counted("rustc 1", [("key", 9)]), counted("rustc 1", [("key", 9), ("plan", 9)]));
        assert!(fails(&one, &both));
        assert!(fails(&both, &one));
    }

    #[test]
    fn figures_of_other_tools_are_shown_and_not_held_against_these() {
        let committed = counted("rustc 1", [("key", 1000)]);
        let measured = counted("rustc 2", [("key", 5000)]);
        assert!(!fails(&committed, &measured));
        let shown = committed.compare(&measured).to_string();
        assert!(shown.contains("| key | 1000 | 5000 |  |"), "{shown}");
        assert!(shown.contains("not compared"), "{shown}");
        let measured = Instructions { valgrind: "valgrind-4".to_owned(), ..committed.clone() };
        assert!(!committed.compare(&measured).is_fair());
    }
}
