//! Compiles limits files into a rule set, or says everything that is wrong with them.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::Arc,
};

use thiserror::Error;

use super::{
    file::{DescriptorNode, LimitNode, LimitsFile, LimitsNode, Place, Placed},
    matcher::{Defaults, Domain, Level, Modes, Node, Pattern, RuleSet},
    stats_key::StatsKey,
};
use crate::{
    Algorithm, Counting, Limit, OnFailure, Rule, Window,
    limit::{LimitError, Unit},
    rule::{Limits, RuleLimit, Shown},
};

/// The deepest tree of rules.
pub(super) const LEVELS_MAX: usize = 64;

/// The most limits of one descriptor.
const LIMITS_MAX: usize = 16;

/// The most patterns of one key that a later one is compared with, to warn that they hide it: comparing all
/// would take the square of their number.
const HIDERS_MAX: usize = 1_000;

/// What applies to all files.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompileOptions {
    /// Who is charged, where neither rule nor domain says.
    pub default_counting: Counting,
    /// What answers where the store cannot, where neither rule nor domain says.
    pub default_on_failure: OnFailure,
    /// Whether several files may describe one domain.
    pub merge_domains: bool,
    /// What holds for all rules.
    pub modes: Modes,
}

/// One mistake in a limits file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    /// Where.
    pub place: Place,
    /// What.
    pub problem: Problem,
}

impl fmt::Display for CompileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.place, self.problem, self.problem.help())
    }
}

impl std::error::Error for CompileError {}

/// What can be wrong with limits files.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Problem {
    /// The file cannot be read, or there is none.
    #[error("{0}")]
    Unreadable(String),
    /// Not YAML.
    #[error("not YAML: {0}")]
    Yaml(String),
    /// A key that nothing reads.
    #[error("key {key:?} is not known here")]
    UnknownKey {
        /// The key.
        key: String,
        /// What may have been meant.
        instead: String,
    },
    /// A value of another type than is asked for.
    #[error("{found} cannot stand here")]
    WrongType {
        /// What is there.
        found: String,
        /// What should be.
        wanted: &'static str,
    },
    /// A required key is missing or empty.
    #[error("{0} is missing or empty")]
    Missing(&'static str),
    /// A key of one map.
    #[error("key {key:?} stands twice in one map, first in line {line}")]
    DuplicateKey {
        /// The key.
        key: String,
        /// Line of the first.
        line: usize,
    },
    /// Lists and maps within each other, beyond any tree of rules.
    #[error("lists and maps are nested more than {max} deep")]
    TooNested {
        /// The deepest.
        max: usize,
    },
    /// Aliases that blow the file up.
    #[error("aliases stand for more than {max} nodes in all")]
    TooManyAliases {
        /// The most.
        max: usize,
    },
    /// Deeper than the most levels of a tree.
    #[error("the tree has more than {LEVELS_MAX} levels")]
    TooDeep,
    /// A domain is spread over files.
    #[error("domain {name:?} is also defined in {other}")]
    DuplicateDomain {
        /// The domain.
        name: String,
        /// The other file.
        other: Arc<str>,
    },
    /// Two nodes of one level match the same.
    #[error("{what} stands twice at this level, first in line {line}")]
    DuplicateDescriptor {
        /// Key and value.
        what: String,
        /// Line of the first.
        line: usize,
    },
    /// No such unit.
    #[error("unit {0:?} is not known")]
    UnknownUnit(String),
    /// `unit` and `window` together, or neither.
    #[error("{0}")]
    Window(&'static str),
    /// Windows count whole seconds.
    #[error("the window is no whole number of seconds")]
    WindowNotWhole,
    /// `rate_limit` and `limits` in one descriptor.
    #[error("rate_limit and limits stand together")]
    LimitsTwice,
    /// `unlimited` beside what would limit.
    #[error("unlimited excludes {0}")]
    UnlimitedExcludes(&'static str),
    /// `unlimited` in a list of limits.
    #[error("unlimited makes no sense in a list of limits")]
    UnlimitedInList,
    /// An empty list of limits.
    #[error("limits is empty")]
    NoLimits,
    /// A list of limits that one request could not carry.
    #[error("{0} limits are more than the {LIMITS_MAX} that one descriptor may have")]
    TooManyLimits(usize),
    /// Two limits of one descriptor that would keep one counter.
    #[error("two limits with the same algorithm and window would share one counter")]
    SameCounter,
    /// A limit replaces itself.
    #[error("{0:?} replaces itself")]
    ReplacesItself(String),
    /// Sharing without a pattern.
    #[error("share_threshold needs a value with a *")]
    ShareWithoutPattern,
    /// The log keeps every hit that it admitted, and nothing else.
    #[error("sliding_window_log goes with counting: free only")]
    LogNeedsFree,
    /// The numbers of a limit do not go together.
    #[error(transparent)]
    Limit(#[from] LimitError),
}

impl Problem {
    /// What to do about it.
    #[must_use]
    pub fn help(&self) -> String {
        match self {
            Self::Unreadable(_) => {
                "name a readable limits file, or a folder that has one".to_owned()
            }
            Self::Yaml(_) => "correct the syntax".to_owned(),
            Self::UnknownKey { instead, .. } => instead.clone(),
            Self::WrongType { wanted, .. } => format!("write {wanted}"),
            Self::DuplicateKey { .. } => "remove one of them".to_owned(),
            Self::TooNested { .. } => "nest less deeply".to_owned(),
            Self::TooManyAliases { .. } => "use fewer aliases".to_owned(),
            Self::Missing(key) => format!("give {key} a value"),
            Self::TooDeep => "make it flatter".to_owned(),
            Self::DuplicateDomain { .. } => "keep a domain in one file".to_owned(),
            Self::DuplicateDescriptor { .. } => {
                "remove one of them, or put both limits into a list under limits".to_owned()
            }
            Self::UnknownUnit(_) => "use second, minute, hour, day, week, month or year".to_owned(),
            Self::Window(_) => "give either unit (with unit_multiplier) or window".to_owned(),
            Self::WindowNotWhole => "round it to seconds".to_owned(),
            Self::LimitsTwice => "move all limits into limits, or remove limits".to_owned(),
            Self::UnlimitedExcludes(key) => format!("remove {key} or unlimited"),
            Self::UnlimitedInList => "use rate_limit with unlimited in place of limits".to_owned(),
            Self::NoLimits => "add a limit, or remove limits".to_owned(),
            Self::TooManyLimits(_) => "remove some".to_owned(),
            Self::SameCounter => "change the algorithm or the window of one".to_owned(),
            Self::ReplacesItself(_) => "remove it from replaces".to_owned(),
            Self::ShareWithoutPattern => {
                "add a * to the value, or remove share_threshold".to_owned()
            }
            // Not "remove it": the domain or the server may have set it.
            Self::LogNeedsFree => {
                "use sliding_window_counter, or give the descriptor counting: free".to_owned()
            }
            Self::Limit(error) => error.help(),
        }
    }
}

/// Something that can be served but is probably not what was meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileWarning {
    /// Where.
    pub place: Place,
    /// What.
    pub oddity: Oddity,
}

impl fmt::Display for CompileWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.oddity)
    }
}

/// What can be odd about limits files.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Oddity {
    /// Counts as zero.
    #[error(
        "requests_per_unit is missing, so the rule refuses everything; write 0 if that is meant"
    )]
    NoRequests,
    /// An earlier pattern matches all that this one does.
    #[error(
        "never reached, because the pattern {earlier:?} above it matches the same values; put it first"
    )]
    Hidden {
        /// The earlier pattern.
        earlier: String,
    },
    /// Envoy does not escape names in headers.
    #[error("the name has a double quote, which breaks Envoy's x-ratelimit-limit header")]
    QuoteInName,
}

/// Compiles all files into one rule set. Either all of them are good, or every mistake is reported.
///
/// # Errors
/// Every mistake in any of the files, in the order of the files.
pub fn compile(
    files: &[LimitsFile],
    options: &CompileOptions,
) -> Result<RuleSet, Vec<CompileError>> {
    let mut set = RuleSet { modes: options.modes, ..RuleSet::default() };
    let mut errors = Vec::new();
    let mut next_id = 0;
    for (index, file) in files.iter().enumerate() {
        let name = &file.domain.value;
        let mut compiler = Compiler {
            defaults: Defaults {
                algorithm: file.algorithm.unwrap_or_default(),
                counting: file.counting.unwrap_or(options.default_counting),
                on_failure: file.on_failure.unwrap_or(options.default_on_failure),
            },
            next_id,
            rules: Vec::new(),
            trail: Vec::new(),
            errors: Vec::new(),
            warnings: Vec::new(),
        };
        if name.is_empty() {
            compiler.wrong(&file.domain.place, Problem::Missing("domain"));
        } else if let Some(other) = set.by_name.get(name.as_str()).and_then(|it| files.get(*it)) {
            let other = Arc::clone(&other.place.file);
            let problem = Problem::DuplicateDomain { name: name.clone(), other };
            compiler.wrong(&file.domain.place, problem);
        }
        let root = compiler.level(&file.descriptors, "", 0);
        next_id += compiler.rules.len();
        errors.append(&mut compiler.errors);
        set.warnings.append(&mut compiler.warnings);
        set.by_name.entry(name.as_str().into()).or_insert(index);
        set.domains.push(Domain {
            name: name.as_str().into(),
            tenant: file.tenant.as_ref().map(|tenant| tenant.value.as_bytes().into()),
            defaults: compiler.defaults,
            rules: compiler.rules,
            root,
        });
    }
    if errors.is_empty() { Ok(set) } else { Err(errors) }
}

/// Compiles one domain.
struct Compiler<'f> {
    defaults: Defaults,
    /// Id of the domain's first rule.
    next_id: usize,
    rules: Vec<Rule>,
    /// The nodes that lead to the one being compiled, and it.
    trail: Vec<&'f DescriptorNode>,
    errors: Vec<CompileError>,
    warnings: Vec<CompileWarning>,
}

impl<'f> Compiler<'f> {
    fn wrong(&mut self, place: &Place, problem: impl Into<Problem>) {
        self.errors.push(CompileError { place: place.clone(), problem: problem.into() });
    }

    fn odd(&mut self, place: &Place, oddity: Oddity) {
        self.warnings.push(CompileWarning { place: place.clone(), oddity });
    }

    /// One level of the tree; `path` leads to it, for people.
    fn level(&mut self, nodes: &'f [DescriptorNode], path: &str, depth: usize) -> Level {
        let mut level = Level::default();
        // The line of the first.
        let mut seen: HashMap<(&str, Option<&str>), usize> = HashMap::new();
        for node in nodes {
            if depth >= LEVELS_MAX {
                self.wrong(&node.place, Problem::TooDeep);
                break;
            }
            // As in Go, where nobody can tell an empty value from none.
            let value = node.value.as_ref().map(|it| it.value.as_str()).filter(|it| !it.is_empty());
            let name =
                value.map_or_else(|| node.key.clone(), |value| format!("{}={value}", node.key));
            if node.key.is_empty() {
                self.wrong(&node.place, Problem::Missing("key"));
            } else {
                match seen.entry((&node.key, value)) {
                    Entry::Occupied(first) => {
                        let what = name.clone();
                        let problem = Problem::DuplicateDescriptor { what, line: *first.get() };
                        self.wrong(&node.place, problem);
                    }
                    Entry::Vacant(entry) => _ = entry.insert(node.place.line),
                }
            }
            let path = if path.is_empty() { name } else { format!("{path}.{name}") };
            self.trail.push(node);
            let compiled = self.node(node, value, &path, depth);
            self.trail.pop();
            self.insert(&mut level, node, value, compiled);
        }
        level
    }

    fn node(
        &mut self,
        node: &'f DescriptorNode,
        value: Option<&str>,
        path: &str,
        depth: usize,
    ) -> Node {
        let pattern = value.filter(|value| value.contains('*'));
        if node.share_threshold && pattern.is_none() {
            self.wrong(&node.place, Problem::ShareWithoutPattern);
        }
        let rule = self.rule(node, path);
        Node {
            rule,
            shared: pattern.filter(|_| node.share_threshold).map(|it| it.as_bytes().into()),
            below: self.level(&node.descriptors, path, depth + 1),
        }
    }

    /// Puts a node where requests find it.
    fn insert(
        &mut self,
        level: &mut Level,
        node: &DescriptorNode,
        value: Option<&str>,
        compiled: Node,
    ) {
        let values = level.keys.entry(node.key.as_bytes().into()).or_default();
        let index = values.nodes.len();
        values.nodes.push(compiled);
        let Some(value) = value else {
            values.any = Some(index);
            return;
        };
        values.exact.insert(value.as_bytes().into(), index);
        if let Some(pattern) = Pattern::new(value.as_bytes()) {
            // A pattern that matches this one's text with its stars taken as letters matches all of its values.
            let mut earlier = values.patterns.iter().take(HIDERS_MAX);
            let hides = earlier.find(|(earlier, _)| earlier.fits(value.as_bytes()));
            let earlier = hides.map(|(earlier, _)| earlier.to_string());
            values.patterns.push((pattern, index));
            if let Some(earlier) = earlier {
                self.odd(&node.place, Oddity::Hidden { earlier });
            }
        }
    }

    /// The rule of a node that has limits. Returns its position among the domain's rules.
    fn rule(&mut self, node: &DescriptorNode, path: &str) -> Option<usize> {
        let counting = node.counting.as_ref().map_or(self.defaults.counting, |it| it.value);
        let limits = match node.limits.as_ref()? {
            LimitsNode::One(limit) if limit.unlimited => self.unlimited(limit),
            LimitsNode::One(limit) => Limits::Each([self.limit(limit, counting)?].into()),
            LimitsNode::Several(place, limits) => self.several(place, limits, counting)?,
        };
        let index = self.rules.len();
        self.rules.push(Rule {
            path: path.into(),
            place: node.place.clone(),
            id: self.next_id + index,
            limits,
            counting,
            on_failure: node.on_failure.unwrap_or(self.defaults.on_failure),
            shadow_mode: node.shadow_mode,
            quota_mode: node.quota_mode,
            detailed_metric: node.detailed_metric,
            value_to_metric: node.value_to_metric,
            stats_key: StatsKey::new(&self.trail),
            metadata: node.metadata.clone(),
        });
        Some(index)
    }

    fn unlimited(&mut self, limit: &LimitNode) -> Limits {
        // An unknown word for the unit is accepted beside unlimited, as upstream does.
        let known = |unit: &&Placed<String>| Unit::from_name(&unit.value).is_some();
        if let Some(unit) = limit.unit.as_ref().filter(known) {
            self.wrong(&unit.place, Problem::UnlimitedExcludes("unit"));
        }
        if let Some(window) = &limit.window {
            self.wrong(&window.place, Problem::UnlimitedExcludes("window"));
        }
        for (key, number) in [("unit_multiplier", &limit.unit_multiplier), ("burst", &limit.burst)]
        {
            if let Some(number) = number {
                self.wrong(&number.place, Problem::UnlimitedExcludes(key));
            }
        }
        let replaces = self.replaces(limit);
        Limits::Unlimited { name: self.name(limit), replaces }
    }

    fn several(
        &mut self,
        place: &Place,
        limits: &[LimitNode],
        counting: Counting,
    ) -> Option<Limits> {
        match limits.len() {
            0 => self.wrong(place, Problem::NoLimits),
            1..=LIMITS_MAX => {}
            count => {
                self.wrong(place, Problem::TooManyLimits(count));
                return None;
            }
        }
        let mut compiled: Vec<RuleLimit> = Vec::with_capacity(limits.len());
        for limit in limits {
            if limit.unlimited {
                self.wrong(&limit.place, Problem::UnlimitedInList);
                continue;
            }
            let Some(one) = self.limit(limit, counting) else { continue };
            let counter = |it: &RuleLimit| (it.limit.algorithm(), it.limit.window());
            if compiled.iter().any(|other| counter(other) == counter(&one)) {
                self.wrong(&limit.place, Problem::SameCounter);
            }
            compiled.push(one);
        }
        (!compiled.is_empty()).then(|| Limits::Each(compiled.into()))
    }

    fn limit(&mut self, node: &LimitNode, counting: Counting) -> Option<RuleLimit> {
        let algorithm = node.algorithm.unwrap_or(self.defaults.algorithm);
        if algorithm == Algorithm::SlidingWindowLog && counting != Counting::Free {
            self.wrong(&node.place, Problem::LogNeedsFree);
        }
        if node.requests_per_unit.is_none() {
            self.odd(&node.place, Oddity::NoRequests);
        }
        let requests = node.requests_per_unit.as_ref().map_or(0, |it| it.value);
        let (name, replaces) = (self.name(node), self.replaces(node));
        let (window, shown) = self.window(node, requests)?;
        match Limit::new(algorithm, requests, window, node.burst.as_ref().map(|it| it.value)) {
            Ok(limit) => Some(RuleLimit { limit, shown, name, replaces }),
            Err(error) => {
                let number = match error {
                    LimitError::LogTooLong { .. } | LimitError::GcraTooFast { .. } => None,
                    _ => node.burst.as_ref(),
                };
                let number = number.or(node.requests_per_unit.as_ref());
                self.wrong(number.map_or(&node.place, |number| &number.place), error);
                None
            }
        }
    }

    /// The window, and how it is shown.
    fn window(&mut self, node: &LimitNode, requests: u32) -> Option<(Window, Shown)> {
        let both = "unit and window stand together";
        match (&node.unit, &node.window) {
            (Some(_), Some(window)) => {
                self.wrong(&window.place, Problem::Window(both));
                None
            }
            (None, None) => {
                self.wrong(&node.place, Problem::Window("neither unit nor window is given"));
                None
            }
            (None, Some(window)) => {
                if let Some(multiplier) = &node.unit_multiplier {
                    let alone = "unit_multiplier stands without unit";
                    self.wrong(&multiplier.place, Problem::Window(alone));
                }
                let seconds = window.value.as_secs();
                if window.value.subsec_nanos() > 0 {
                    self.wrong(&window.place, Problem::WindowNotWhole);
                    return None;
                }
                let length = self.checked(&window.place, Window::from_seconds(seconds))?;
                Some((length, Shown::in_units(requests, length)))
            }
            (Some(unit), None) => {
                let Some(known) = Unit::from_name(&unit.value) else {
                    self.wrong(&unit.place, Problem::UnknownUnit(unit.value.clone()));
                    return None;
                };
                let unit_multiplier = node.unit_multiplier.as_ref().map_or(1, |it| it.value);
                let length = Window::from_unit(known, unit_multiplier);
                let place = node.unit_multiplier.as_ref().map_or(&unit.place, |it| &it.place);
                let length = self.checked(place, length)?;
                Some((length, Shown { requests_per_unit: requests, unit: known, unit_multiplier }))
            }
        }
    }

    fn checked<T>(&mut self, place: &Place, result: Result<T, LimitError>) -> Option<T> {
        result.map_err(|error| self.wrong(place, error)).ok()
    }

    fn name(&mut self, node: &LimitNode) -> Option<Box<str>> {
        let name = node.name.as_ref().filter(|name| !name.value.is_empty())?;
        if name.value.contains('"') {
            self.odd(&name.place, Oddity::QuoteInName);
        }
        Some(name.value.as_str().into())
    }

    fn replaces(&mut self, node: &LimitNode) -> Box<[Box<str>]> {
        for replaced in &node.replaces {
            if replaced.value.is_empty() {
                self.wrong(&replaced.place, Problem::Missing("name"));
            } else if node.name.as_ref().is_some_and(|name| name.value == replaced.value) {
                self.wrong(&replaced.place, Problem::ReplacesItself(replaced.value.clone()));
            }
        }
        node.replaces.iter().map(|replaced| replaced.value.as_str().into()).collect()
    }
}
