//! Compilation of limits files into a rule set, or a report of all mistakes.

mod limits;
mod names;
mod tree;

use std::{
    collections::{HashMap, hash_map::Entry},
    mem,
    sync::Arc,
};

use super::{
    Findings, LocatedMistake, LocatedWarning, Mistake, Warning,
    file::{DescriptorNode, LimitsFile, Located, SourceLocation},
    findings::truncated,
    matcher::{Defaults, Domain, Modes, RuleSet},
};
use crate::{Counting, OnFailure, ResponseBody, Rule};
use names::LimitNames;

/// Options of compilation, for all files.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompileOptions {
    /// `counting` of rules that have none, in domains that have none.
    pub default_counting: Counting,
    /// `on_failure` of rules that have none, in domains that have none.
    pub default_on_failure: OnFailure,
    /// Whether several files may describe one domain. Their trees are then merged at the first level, in the order of
    /// the files, and a setting of the domain in one file applies to all.
    pub merge_domains: bool,
    /// Modes of all rules.
    pub modes: Modes,
}

/// Mistakes and warnings that were found in limits files.
#[derive(Debug, Default)]
pub struct Report {
    /// Mistakes. With any mistake there is no rule set.
    pub mistakes: Findings<LocatedMistake>,
    /// Warnings.
    pub warnings: Findings<LocatedWarning>,
}

/// Compiles all files into one rule set. `report` has the mistakes and warnings that were found when the files were
/// read.
///
/// # Errors
/// The mistakes of the report, followed by those of compilation. Compilation stops after
/// [`FINDINGS_LISTED_MAX`](super::FINDINGS_LISTED_MAX) mistakes.
pub fn compile(
    files: &[LimitsFile],
    options: &CompileOptions,
    mut report: Report,
) -> Result<RuleSet, Findings<LocatedMistake>> {
    let mut set = RuleSet { modes: options.modes, ..RuleSet::default() };
    let domains = files_by_domain(files, options.merge_domains, &mut report.mistakes);
    let (mut first_id, mut path_bytes) = (0, 0);
    for (index, files) in domains.iter().enumerate() {
        let Some(first) = files.first() else { continue };
        if report.mistakes.unlisted() > 0 {
            break;
        }
        let (domain, compiled) =
            Compiler::new(first_id, options, report, path_bytes).compile_domain(files);
        (report, path_bytes) = (compiled.report, compiled.path_bytes);
        first_id += domain.rules.len();
        set.substring_patterns_max =
            set.substring_patterns_max.max(compiled.substring_patterns_max);
        set.by_name.entry(first.domain.value.as_str().into()).or_insert(index);
        set.domains.push(domain);
    }
    if !report.mistakes.is_empty() {
        return Err(report.mistakes);
    }
    report.warnings.sort(files.iter().map(|file| &*file.location.file));
    Ok(RuleSet { warnings: report.warnings, ..set })
}

/// Groups the files by domain, in the order of the files. Reports missing and duplicate domains.
fn files_by_domain<'f>(
    files: &'f [LimitsFile],
    merge: bool,
    errors: &mut Findings<LocatedMistake>,
) -> Vec<Vec<&'f LimitsFile>> {
    let mut domains: Vec<Vec<&LimitsFile>> = Vec::new();
    let mut by_name = HashMap::new();
    for file in files {
        let name = &file.domain.value;
        let mut mistake = |mistake| {
            errors.push(LocatedMistake { location: file.domain.location.clone(), mistake });
        };
        if name.is_empty() {
            mistake(Mistake::Missing("domain"));
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
                        let other = first.location.file.clone();
                        mistake(Mistake::DuplicateDomain { name: truncated(name), other });
                    }
                }
            }
        }
        domains.push(vec![file]);
    }
    domains
}

/// What the compilation of a domain returns beside the domain.
struct CompileOutput {
    report: Report,
    path_bytes: usize,
    substring_patterns_max: usize,
}

/// Compiles one domain: its state while it walks the tree.
struct Compiler<'f> {
    defaults: Defaults,
    /// Response body of rules without one.
    response_body: Option<Arc<ResponseBody>>,
    /// Whether the domain has `tenant`.
    has_tenant: bool,
    /// Id of the domain's first rule.
    first_id: usize,
    rules: Vec<Rule>,
    /// The nodes from the first level to the one that is being compiled.
    path_nodes: Vec<&'f DescriptorNode>,
    /// The path of the node that is being compiled, as messages and metrics show it.
    path: String,
    /// Length of the domain's name in bytes.
    domain_bytes: usize,
    names: LimitNames<'f>,
    /// Whether a warning has suggested to set `tenant`. It is given once, because a domain has one tenant key.
    tenant_suggested: bool,
    report: Report,
    /// Bytes of the paths of all rules so far, also of earlier domains. At most [`PATH_BYTES_MAX`].
    path_bytes: usize,
    /// As in [`RuleSet::substring_patterns_max`].
    substring_patterns_max: usize,
}

impl<'f> Compiler<'f> {
    fn new(first_id: usize, options: &CompileOptions, report: Report, path_bytes: usize) -> Self {
        Self {
            defaults: Defaults {
                counting: options.default_counting,
                on_failure: options.default_on_failure,
                ..Defaults::default()
            },
            response_body: None,
            has_tenant: false,
            first_id,
            rules: Vec::new(),
            path_nodes: Vec::new(),
            path: String::new(),
            domain_bytes: 0,
            names: LimitNames::default(),
            tenant_suggested: false,
            report,
            path_bytes,
            substring_patterns_max: 0,
        }
    }

    /// Compiles the files of one domain.
    fn compile_domain(mut self, files: &[&'f LimitsFile]) -> (Domain, CompileOutput) {
        let name = files.first().map(|file| file.domain.value.as_str()).unwrap_or_default();
        self.domain_bytes = name.len();
        let tenant = self.common_setting(files, "tenant", |it| it.tenant.as_ref());
        self.has_tenant = tenant.is_some();
        let algorithm = self.common_setting(files, "default algorithm", |it| it.algorithm.as_ref());
        let counting = self.common_setting(files, "counting", |it| it.counting.as_ref());
        let on_failure = self.common_setting(files, "on_failure", |it| it.on_failure.as_ref());
        self.defaults = Defaults {
            algorithm: algorithm.copied().unwrap_or(self.defaults.algorithm),
            counting: counting.copied().unwrap_or(self.defaults.counting),
            on_failure: on_failure.copied().unwrap_or(self.defaults.on_failure),
        };
        self.response_body = self
            .common_setting(files, "response_body", |it| it.response_body.as_ref())
            .cloned()
            .flatten();
        let root = self.compile_root(files);
        mem::take(&mut self.names).warn(&mut self.report.warnings);
        let domain = Domain {
            name: name.into(),
            tenant: tenant.map(|tenant| tenant.as_bytes().into()),
            defaults: self.defaults,
            has_response_bodies: self.response_body.is_some()
                || self.rules.iter().any(|rule| rule.response_body.is_some()),
            response_body: self.response_body.take(),
            has_replacing_limits: self.rules.iter().any(|rule| rule.limits.replaces_others()),
            rules: mem::take(&mut self.rules),
            root,
        };
        let Self { report, path_bytes, substring_patterns_max, .. } = self;
        (domain, CompileOutput { report, path_bytes, substring_patterns_max })
    }

    /// A setting of the domain, which must be the same in all files that have it.
    fn common_setting<T: PartialEq>(
        &mut self,
        files: &[&'f LimitsFile],
        key: &'static str,
        get: impl Fn(&'f LimitsFile) -> Option<&'f Located<T>>,
    ) -> Option<&'f T> {
        let mut settings = files.iter().filter_map(|file| get(file));
        let first = settings.next()?;
        for other in settings.filter(|other| other.value != first.value) {
            let first = first.location.relative_to(&other.location.file);
            self.mistake(&other.location, Mistake::ConflictingSettings { key, other: first });
        }
        Some(&first.value)
    }

    fn mistake(&mut self, location: &SourceLocation, mistake: impl Into<Mistake>) {
        self.report
            .mistakes
            .push(LocatedMistake { location: location.clone(), mistake: mistake.into() });
    }

    fn warn(&mut self, location: &SourceLocation, warning: Warning) {
        self.report.warnings.push(LocatedWarning { location: location.clone(), warning });
    }
}
