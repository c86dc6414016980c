//! The limits in force: an immutable snapshot, which is replaced as a whole when the files change.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use axum::body::Bytes;
use sluicegate_core::rules::{
    Change, ChangeCounts, CompileOptions, FINDINGS_LISTED_MAX, Findings, LocatedMistake, RuleSet,
    diff,
};
use sluicegate_limits::{FileContents, ReadBounds};

use crate::{
    reloaded::{ReloadOutcome, Reloaded},
    telemetry::{HIT_METRICS, Metrics, Observe, RuleSetMetrics, catalogue},
};

/// The most warnings that a load logs; `sluicegate validate` prints more.
const WARNINGS_LOGGED: usize = 100;

/// The most mistakes that a load logs; `sluicegate validate` prints more.
const MISTAKES_LOGGED: usize = 100;

/// The most changes that a reload logs one by one; `sluicegate diff` prints all.
const CHANGES_LOGGED: usize = 20;

/// A rule set with its metrics.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) rules: RuleSet,
    pub(crate) rule_set_metrics: RuleSetMetrics,
    /// 1 for the first snapshot, one more for each that replaces it.
    pub(crate) generation: usize,
    /// Hash of the limits files and of the settings for all limits: equal for processes with the same files and
    /// settings.
    pub(crate) hash: u64,
    /// The time at which the rule set was put in force.
    pub(crate) loaded_at: SystemTime,
    /// The text of `/rlconfig`, rendered at the first request for it.
    pub(crate) rlconfig: OnceLock<Bytes>,
}

/// The limits files that were read last and rejected.
#[derive(Debug)]
pub(crate) struct RejectedFiles {
    /// The time at which they were read.
    pub(crate) at: SystemTime,
    /// Their first mistakes.
    pub(crate) mistakes: Vec<String>,
    /// The number of further mistakes.
    pub(crate) left_out: usize,
}

/// The most mistakes that are stored for the admin service; `sluicegate validate` prints more.
const MISTAKES_KEPT: usize = 20;

impl RejectedFiles {
    fn new(mistakes: &Findings<LocatedMistake>) -> Arc<Self> {
        let kept = mistakes.iter().take(MISTAKES_KEPT).map(ToString::to_string).collect();
        let left_out = mistakes.total().saturating_sub(MISTAKES_KEPT);
        Arc::new(Self { at: SystemTime::now(), mistakes: kept, left_out })
    }
}

impl Snapshot {
    fn new(rules: RuleSet, hash: u64, before: Option<&Self>, metrics: &Metrics) -> Self {
        let before_metrics = before.map(|it| (&it.rules, &it.rule_set_metrics));
        let rule_set_metrics = metrics.rule_set_metrics(&rules, before_metrics);
        let generation = before.map_or(0, |before| before.generation) + 1;
        Self {
            rules,
            rule_set_metrics,
            generation,
            hash,
            loaded_at: SystemTime::now(),
            rlconfig: OnceLock::new(),
        }
    }
}

/// Registers the metrics of the rules in force.
pub(crate) fn register_metrics(metrics: &Metrics, snapshot: &Arc<ArcSwap<Snapshot>>) {
    let counts = |metric, read: fn(&Snapshot, Observe<'_, u64>)| {
        let current = Arc::clone(snapshot);
        metrics.register_labelled_counter(metric, move |observe| read(&current.load(), observe));
    };
    counts(catalogue::REQUESTS, |it, observe| it.rule_set_metrics.counts.observe_requests(observe));
    counts(catalogue::DECISIONS, |it, observe| {
        it.rule_set_metrics.counts.observe_decisions(&it.rules, observe);
    });
    counts(catalogue::DESCRIPTORS_UNMATCHED, |it, observe| {
        it.rule_set_metrics.counts.observe_unmatched(observe);
    });
    for (metric, count) in HIT_METRICS {
        let current = Arc::clone(snapshot);
        metrics.register_labelled_counter(metric, move |observe| {
            let current = current.load();
            current.rule_set_metrics.counts.observe_hits(&current.rules, count, observe);
        });
    }
    let current = Arc::clone(snapshot);
    metrics.register_gauge(catalogue::CONFIG_GENERATION, move || current.load().generation);
    let current = Arc::clone(snapshot);
    metrics.register_labelled_gauge(catalogue::CONFIG_HASH, move |observe| {
        observe(current.load().hash, &[]);
    });
    let current = Arc::clone(snapshot);
    metrics.register_gauge(catalogue::RULES, move || current.load().rule_set_metrics.counts.len());
}

/// Limits files without mistakes, which are not in force yet.
pub(crate) struct CompiledLimits {
    files: LimitsFiles,
    contents: FileContents,
    rules: RuleSet,
}

/// The limits files to read, and how.
struct LimitsFiles {
    paths: Vec<PathBuf>,
    bounds: ReadBounds,
    options: CompileOptions,
}

impl CompiledLimits {
    /// Reads and compiles limits files.
    ///
    /// # Errors
    /// All mistakes in the files.
    pub(crate) fn read(
        paths: Vec<PathBuf>,
        bounds: ReadBounds,
        options: CompileOptions,
    ) -> Result<Self, Findings<LocatedMistake>> {
        let contents = FileContents::read(&paths, bounds);
        let rules = contents.compile(&options)?;
        Ok(Self { files: LimitsFiles { paths, bounds, options }, contents, rules })
    }
}

/// The limits in force, and the files that they are reloaded from.
pub(crate) struct Limits {
    files: LimitsFiles,
    snapshot: Reloaded<FileContents, Snapshot>,
    /// The files that were read last, if they were rejected.
    rejected: Arc<ArcSwapOption<RejectedFiles>>,
}

impl Limits {
    /// Puts the first rule set in force.
    pub(crate) fn new(compiled: CompiledLimits, metrics: &Metrics) -> Self {
        let CompiledLimits { files, contents, rules } = compiled;
        log_warnings(&rules);
        metrics.limits_loads.succeeded();
        let hash = contents.hash(&files.options);
        let first = Snapshot::new(rules, hash, None, metrics);
        Self { files, snapshot: Reloaded::new(contents, first), rejected: Arc::default() }
    }

    /// The snapshot in force. It stays up to date while the process runs.
    pub(crate) fn current(&self) -> Arc<ArcSwap<Snapshot>> {
        self.snapshot.current()
    }

    /// The rejected files, if those that were read last were rejected. It stays up to date while the process runs.
    pub(crate) fn rejected(&self) -> Arc<ArcSwapOption<RejectedFiles>> {
        Arc::clone(&self.rejected)
    }

    /// The files and folders, to be watched for changes.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.files.paths
    }

    /// Reads the files again, and puts them in force if they have changed and have no mistakes. Returns whether the
    /// limits in force have changed. If an operator `requested` the reload, unchanged files are logged, and the
    /// mistakes of rejected files are logged again. Blocks, for seconds if the files are large.
    pub(crate) fn reload(&self, metrics: &Metrics, requested: bool) -> bool {
        let contents = FileContents::read(&self.files.paths, self.files.bounds);
        let options = &self.files.options;
        let mut changes = Vec::new();
        let reload = self.snapshot.reload(contents, requested, |contents, before| {
            let rules = contents.compile(options)?;
            log_warnings(&rules);
            changes = diff(&before.rules, &rules);
            Ok(Snapshot::new(rules, contents.hash(options), Some(before), metrics))
        });
        match reload {
            Ok(ReloadOutcome::Unchanged) => {
                if requested {
                    tracing::info!("limits files unchanged");
                }
                false
            }
            Ok(ReloadOutcome::Restored) => {
                metrics.limits_loads.restored();
                self.rejected.store(None);
                tracing::info!("limits files restored, equal to those in force");
                false
            }
            Ok(ReloadOutcome::Replaced) => {
                metrics.limits_loads.succeeded();
                self.rejected.store(None);
                log_changes(&self.snapshot.load(), &changes);
                true
            }
            Err(mistakes) => {
                metrics.limits_loads.failed();
                log_mistakes(&mistakes);
                self.rejected.store(Some(RejectedFiles::new(&mistakes)));
                false
            }
        }
    }
}

fn log_changes(snapshot: &Snapshot, changes: &[Change]) {
    let counts = ChangeCounts::of(changes);
    tracing::info!(
        generation = snapshot.generation,
        rules = snapshot.rules.rules().count(),
        added = counts.added,
        removed = counts.removed,
        changed = counts.changed,
        "limits reloaded"
    );
    log_new_counters(changes, counts);
}

fn log_mistakes(mistakes: &Findings<LocatedMistake>) {
    tracing::error!(
        mistakes = mistakes.total(),
        "limits rejected, the previous ones stay in force"
    );
    for mistake in mistakes.iter().take(MISTAKES_LOGGED) {
        tracing::error!("{mistake}");
    }
    if let more @ 1.. = mistakes.total().saturating_sub(MISTAKES_LOGGED) {
        tracing::error!(
            more,
            "mistakes not logged, `sluicegate validate` prints the first {FINDINGS_LISTED_MAX}"
        );
    }
}

/// Logs the rules whose counters restart from zero.
fn log_new_counters(changes: &[Change], counts: ChangeCounts) {
    for change in changes.iter().filter(|change| change.resets_counters()).take(CHANGES_LOGGED) {
        let edits = change.edits().iter().filter(|edit| edit.resets_counters);
        let edits: Vec<_> =
            edits.map(|edit| format!("{} {} -> {}", edit.key, edit.from, edit.to)).collect();
        let edits = edits.join(", ");
        tracing::warn!(domain = %change.domain, rule = %change.path, %edits, "counters restart");
    }
    if let more @ 1.. = counts.resetting.saturating_sub(CHANGES_LOGGED) {
        tracing::warn!(more, "counters restart");
    }
}

fn log_warnings(rules: &RuleSet) {
    for warning in rules.warnings().iter().take(WARNINGS_LOGGED) {
        tracing::warn!("{warning}");
    }
    if let more @ 1.. = rules.warnings().total().saturating_sub(WARNINGS_LOGGED) {
        tracing::warn!(
            more,
            "warnings not logged, `sluicegate validate` prints the first {FINDINGS_LISTED_MAX}"
        );
    }
}
