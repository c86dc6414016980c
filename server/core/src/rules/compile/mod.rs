//! Compiles limits files into a rule set, or says everything that is wrong with them.

mod limits;
mod names;
mod tree;

use std::{
    collections::{HashMap, hash_map::Entry},
    mem,
};

use super::{
    CompileError, CompileWarning, Findings, Oddity, Problem,
    file::{DescriptorNode, LimitsFile, Place, Placed},
    findings::quoted,
    matcher::{Defaults, Domain, Modes, RuleSet},
};
use crate::{Counting, OnFailure, Rule};
use names::Names;

/// What applies to all files.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompileOptions {
    /// Who is charged, where neither rule nor domain says.
    pub default_counting: Counting,
    /// What answers where the store cannot, where neither rule nor domain says.
    pub default_on_failure: OnFailure,
    /// Whether several files may describe one domain. Their trees stand at one level, in the order of the
    /// files; what only one of them says about the domain holds for all.
    pub merge_domains: bool,
    /// What holds for all rules.
    pub modes: Modes,
}

/// What was found in limits files.
#[derive(Debug, Default)]
pub struct Report {
    /// Mistakes: with one of them no file is served.
    pub mistakes: Findings<CompileError>,
    /// Warnings.
    pub warnings: Findings<CompileWarning>,
}

/// Compiles all files into one rule set. `report` has what was found when the files were read.
///
/// # Errors
/// The mistakes in all files, those of the report first. Compiling ends with the first that is not listed.
pub fn compile(
    files: &[LimitsFile],
    options: &CompileOptions,
    mut report: Report,
) -> Result<RuleSet, Findings<CompileError>> {
    let mut set = RuleSet { modes: options.modes, ..RuleSet::default() };
    let domains = domains(files, options.merge_domains, &mut report.mistakes);
    let (mut next_id, mut path_bytes) = (0, 0);
    for (index, files) in domains.iter().enumerate() {
        let Some(first) = files.first() else { continue };
        if report.mistakes.more() > 0 {
            break;
        }
        let (domain, compiled) = Compiler::new(next_id, options, report, path_bytes).domain(files);
        (report, path_bytes) = (compiled.report, compiled.path_bytes);
        next_id += domain.rules.len();
        set.searches_max = set.searches_max.max(compiled.searches_max);
        set.by_name.entry(first.domain.value.as_str().into()).or_insert(index);
        set.domains.push(domain);
    }
    if !report.mistakes.is_empty() {
        return Err(report.mistakes);
    }
    report.warnings.sort(files.iter().map(|file| &*file.place.file));
    Ok(RuleSet { warnings: report.warnings, ..set })
}

/// The files of each domain, in the order of the files.
fn domains<'f>(
    files: &'f [LimitsFile],
    merge: bool,
    errors: &mut Findings<CompileError>,
) -> Vec<Vec<&'f LimitsFile>> {
    let mut domains: Vec<Vec<&LimitsFile>> = Vec::new();
    let mut by_name = HashMap::new();
    for file in files {
        let name = &file.domain.value;
        let mut wrong = |problem| {
            errors.push(CompileError { place: file.domain.place.clone(), problem });
        };
        if name.is_empty() {
            wrong(Problem::Missing("domain"));
        } else {
            match by_name.entry(name.as_str()) {
                Entry::Vacant(entry) => _ = entry.insert(domains.len()),
                Entry::Occupied(entry) => {
                    let Some(others) = domains.get_mut(*entry.get()) else { continue };
                    if merge {
                        others.push(file);
                        continue;
                    }
                    if let Some(first) = others.first() {
                        let other = first.place.file.clone();
                        wrong(Problem::DuplicateDomain { name: quoted(name), other });
                    }
                }
            }
        }
        domains.push(vec![file]);
    }
    domains
}

/// What compiling a domain gives beside its rules.
struct Compiled {
    report: Report,
    path_bytes: usize,
    searches_max: usize,
}

/// Compiles one domain.
struct Compiler<'f> {
    defaults: Defaults,
    /// Whether the domain names the key that tells tenants apart.
    has_tenant: bool,
    /// Id of the domain's first rule.
    next_id: usize,
    rules: Vec<Rule>,
    /// The nodes that lead to the one being compiled, and it.
    trail: Vec<&'f DescriptorNode>,
    /// The path to the node being compiled, for people.
    path: String,
    /// Bytes of the domain's name.
    domain_bytes: usize,
    names: Names<'f>,
    /// Whether the key of a tenant was suggested: a domain can have one.
    suggested: bool,
    report: Report,
    /// How many of [`PATH_BYTES_MAX`] rules have, with those of earlier domains.
    path_bytes: usize,
    /// As in [`RuleSet::searches_max`].
    searches_max: usize,
}

impl<'f> Compiler<'f> {
    fn new(next_id: usize, options: &CompileOptions, report: Report, path_bytes: usize) -> Self {
        Self {
            defaults: Defaults {
                counting: options.default_counting,
                on_failure: options.default_on_failure,
                ..Defaults::default()
            },
            has_tenant: false,
            next_id,
            rules: Vec::new(),
            trail: Vec::new(),
            path: String::new(),
            domain_bytes: 0,
            names: Names::default(),
            suggested: false,
            report,
            path_bytes,
            searches_max: 0,
        }
    }

    /// Compiles the files of one domain.
    fn domain(mut self, files: &[&'f LimitsFile]) -> (Domain, Compiled) {
        let name = files.first().map(|file| file.domain.value.as_str()).unwrap_or_default();
        self.domain_bytes = name.len();
        let tenant = self.agreed(files, "tenant", |it| it.tenant.as_ref());
        self.has_tenant = tenant.is_some();
        let algorithm = self.agreed(files, "default algorithm", |it| it.algorithm.as_ref());
        let counting = self.agreed(files, "counting", |it| it.counting.as_ref());
        let on_failure = self.agreed(files, "on_failure", |it| it.on_failure.as_ref());
        self.defaults = Defaults {
            algorithm: algorithm.copied().unwrap_or(self.defaults.algorithm),
            counting: counting.copied().unwrap_or(self.defaults.counting),
            on_failure: on_failure.copied().unwrap_or(self.defaults.on_failure),
        };
        let root = self.root(files);
        mem::take(&mut self.names).warn(&mut self.report.warnings);
        let domain = Domain {
            name: name.into(),
            tenant: tenant.map(|tenant| tenant.as_bytes().into()),
            defaults: self.defaults,
            replaces: self.rules.iter().any(|rule| rule.limits.replace()),
            rules: mem::take(&mut self.rules),
            root,
        };
        let Self { report, path_bytes, searches_max, .. } = self;
        (domain, Compiled { report, path_bytes, searches_max })
    }

    /// What the files of a domain say of all of it; who says nothing agrees.
    fn agreed<T: PartialEq>(
        &mut self,
        files: &[&'f LimitsFile],
        key: &'static str,
        get: impl Fn(&'f LimitsFile) -> Option<&'f Placed<T>>,
    ) -> Option<&'f T> {
        let mut said = files.iter().filter_map(|file| get(file));
        let first = said.next()?;
        for other in said.filter(|other| other.value != first.value) {
            let first = first.place.seen_from(&other.place.file);
            self.wrong(&other.place, Problem::Disagreement { key, other: first });
        }
        Some(&first.value)
    }

    fn wrong(&mut self, place: &Place, problem: impl Into<Problem>) {
        self.report.mistakes.push(CompileError { place: place.clone(), problem: problem.into() });
    }

    fn odd(&mut self, place: &Place, oddity: Oddity) {
        self.report.warnings.push(CompileWarning { place: place.clone(), oddity });
    }
}
