//! The limits in force: one immutable set, swapped whole when the files change.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use axum::body::Bytes;
use sluicegate_core::rules::{
    Change, CompileError, CompileOptions, Counts, Findings, LISTED_MAX, RuleSet, diff,
};
use sluicegate_limits::{ReadBounds, Sources};

use crate::telemetry::{RuleSetCounters, Telemetry, top::Labels};

/// The most warnings that are logged at a load; `sluicegate validate` prints more.
const WARNINGS_LOGGED: usize = 100;

/// The most mistakes that are logged at a load; `sluicegate validate` prints more.
const MISTAKES_LOGGED: usize = 100;

/// The most changes that are logged one by one at a reload; `sluicegate diff` prints all.
const CHANGES_LOGGED: usize = 20;

/// One set of limits and what is counted about it.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) rules: RuleSet,
    pub(crate) counters: RuleSetCounters,
    /// 1 for the first set, one more with each that takes its place.
    pub(crate) generation: usize,
    /// Tells whether other processes have the same limits in force.
    pub(crate) hash: u64,
    /// When it was put in force.
    pub(crate) loaded_at: SystemTime,
    /// What lists of counters call its rules.
    pub(crate) labels: Labels,
    /// The page that lists its rules, once it was asked for.
    pub(crate) listing: OnceLock<Bytes>,
    sources: Sources,
}

/// Files that were found bad.
#[derive(Debug)]
pub(crate) struct Rejected {
    /// When.
    pub(crate) at: SystemTime,
    /// The first of their mistakes.
    pub(crate) mistakes: Vec<String>,
    /// How many more were found.
    pub(crate) left_out: usize,
}

/// The most mistakes that are kept to be told; `sluicegate validate` prints more.
const MISTAKES_KEPT: usize = 20;

impl Rejected {
    fn new(mistakes: &Findings<CompileError>) -> Arc<Self> {
        let kept = mistakes.iter().take(MISTAKES_KEPT).map(ToString::to_string).collect();
        let left_out = mistakes.total().saturating_sub(MISTAKES_KEPT);
        Arc::new(Self { at: SystemTime::now(), mistakes: kept, left_out })
    }
}

impl Snapshot {
    fn new(
        rules: RuleSet,
        sources: Sources,
        hash: u64,
        before: Option<&Self>,
        telemetry: &Telemetry,
    ) -> Self {
        let counters = RuleSetCounters::new(&rules, before, telemetry);
        let generation = before.map_or(0, |before| before.generation) + 1;
        let labels = Labels::new(&rules);
        Self {
            rules,
            counters,
            generation,
            hash,
            loaded_at: SystemTime::now(),
            labels,
            listing: OnceLock::new(),
            sources,
        }
    }
}

/// Loads limits files and keeps the newest good set.
pub(crate) struct Limits {
    paths: Vec<PathBuf>,
    bounds: ReadBounds,
    options: CompileOptions,
    current: Arc<ArcSwap<Snapshot>>,
    /// Files that were found bad: their mistakes are told once.
    rejected: Option<Sources>,
    /// The same files, for who asks.
    told: Arc<ArcSwapOption<Rejected>>,
}

impl Limits {
    /// Loads the first set.
    pub(crate) fn load(
        paths: Vec<PathBuf>,
        bounds: ReadBounds,
        options: CompileOptions,
        telemetry: &Telemetry,
    ) -> Result<Self, Findings<CompileError>> {
        let sources = Sources::read(&paths, bounds);
        let rules = sources.compile(&options)?;
        warn(&rules);
        telemetry.limits_loads.succeeded();
        let hash = sources.hash(&options);
        let first = Snapshot::new(rules, sources, hash, None, telemetry);
        let current = Arc::new(ArcSwap::from_pointee(first));
        Ok(Self { paths, bounds, options, current, rejected: None, told: Arc::default() })
    }

    /// The set in force, for as long as the process lives.
    pub(crate) fn current(&self) -> Arc<ArcSwap<Snapshot>> {
        Arc::clone(&self.current)
    }

    /// The files that are not in force because they are bad, for as long as the process lives.
    pub(crate) fn rejected(&self) -> Arc<ArcSwapOption<Rejected>> {
        Arc::clone(&self.told)
    }

    /// Reads the files anew and puts them in force if they have changed and have no mistake. Large files
    /// take a while. Returns whether other limits are in force now. Files that are as they were at the last look are
    /// logged only if an operator has `asked` for the reload.
    pub(crate) fn reload(&mut self, telemetry: &Telemetry, asked: bool) -> bool {
        let before = self.current.load_full();
        let sources = Sources::read(&self.paths, self.bounds);
        if sources == before.sources {
            if self.rejected.take().is_some() {
                telemetry.limits_loads.restored();
                self.told.store(None);
                tracing::info!("limits files are as in force again");
            } else if asked {
                tracing::info!("limits files unchanged");
            }
            return false;
        }
        if self.rejected.as_ref() == Some(&sources) && !asked {
            return false;
        }
        match sources.compile(&self.options) {
            Ok(rules) => {
                warn(&rules);
                let changes = diff(&before.rules, &rules);
                let hash = sources.hash(&self.options);
                let snapshot = Snapshot::new(rules, sources, hash, Some(&before), telemetry);
                telemetry.limits_loads.succeeded();
                let counts = Counts::of(&changes);
                tracing::info!(
                    generation = snapshot.generation,
                    rules = snapshot.rules.rules().count(),
                    added = counts.added,
                    removed = counts.removed,
                    changed = counts.changed,
                    "limits taken up"
                );
                log_new_counters(&changes, counts);
                self.rejected = None;
                self.told.store(None);
                self.current.store(Arc::new(snapshot));
                true
            }
            Err(mistakes) => {
                telemetry.limits_loads.failed();
                tracing::error!(
                    mistakes = mistakes.total(),
                    "limits rejected, the old ones stay in force"
                );
                for mistake in mistakes.iter().take(MISTAKES_LOGGED) {
                    tracing::error!("{mistake}");
                }
                if let more @ 1.. = mistakes.total().saturating_sub(MISTAKES_LOGGED) {
                    tracing::error!(
                        more,
                        "mistakes not logged, `sluicegate validate` prints the first {LISTED_MAX}"
                    );
                }
                self.told.store(Some(Rejected::new(&mistakes)));
                self.rejected = Some(sources);
                false
            }
        }
    }
}

/// Says where whoever had used up a limit has all of it again.
fn log_new_counters(changes: &[Change], counts: Counts) {
    for change in changes.iter().filter(|change| change.is_anew()).take(CHANGES_LOGGED) {
        let edits = change.edits().iter().filter(|edit| edit.anew);
        let edits: Vec<_> =
            edits.map(|edit| format!("{} {} -> {}", edit.key, edit.from, edit.to)).collect();
        let edits = edits.join(", ");
        tracing::warn!(domain = %change.domain, rule = %change.path, %edits, "counters start anew");
    }
    if let more @ 1.. = counts.anew.saturating_sub(CHANGES_LOGGED) {
        tracing::warn!(more, "counters start anew");
    }
}

fn warn(rules: &RuleSet) {
    for warning in rules.warnings().iter().take(WARNINGS_LOGGED) {
        tracing::warn!("{warning}");
    }
    if let more @ 1.. = rules.warnings().total().saturating_sub(WARNINGS_LOGGED) {
        tracing::warn!(
            more,
            "warnings not logged, `sluicegate validate` prints the first {LISTED_MAX}"
        );
    }
}
