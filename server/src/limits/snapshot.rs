//! The limits in force: one immutable set, swapped whole when the files change.

use std::{path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use sluicegate_core::rules::{CompileError, CompileOptions, RuleSet};

use super::Sources;
use crate::telemetry::{RuleSetCounters, Telemetry};

/// One set of limits and what is counted about it.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) rules: RuleSet,
    pub(crate) counters: RuleSetCounters,
    /// 1 for the first set, one more with each that takes its place.
    pub(crate) generation: usize,
    sources: Sources,
}

impl Snapshot {
    fn new(rules: RuleSet, sources: Sources, before: Option<&Self>, telemetry: &Telemetry) -> Self {
        let counters = RuleSetCounters::new(&rules, before, telemetry);
        let generation = before.map_or(0, |before| before.generation) + 1;
        Self { rules, counters, generation, sources }
    }
}

/// Loads limits files and keeps the newest good set.
pub(crate) struct Limits {
    paths: Vec<PathBuf>,
    options: CompileOptions,
    current: Arc<ArcSwap<Snapshot>>,
    /// Files that were found bad: their mistakes are told once.
    rejected: Option<Sources>,
}

impl Limits {
    /// Loads the first set.
    pub(crate) fn load(
        paths: Vec<PathBuf>,
        options: CompileOptions,
        telemetry: &Telemetry,
    ) -> Result<Self, Vec<CompileError>> {
        let sources = Sources::read(&paths);
        let rules = sources.compile(&options)?;
        warn(&rules);
        telemetry.limits_loads.success.add(1);
        let current =
            Arc::new(ArcSwap::from_pointee(Snapshot::new(rules, sources, None, telemetry)));
        Ok(Self { paths, options, current, rejected: None })
    }

    /// The set in force, for as long as the process lives.
    pub(crate) fn current(&self) -> Arc<ArcSwap<Snapshot>> {
        Arc::clone(&self.current)
    }

    /// Reads the files anew and puts them in force if they have changed and have no mistake. Large files
    /// take a while.
    pub(crate) fn reload(&mut self, telemetry: &Telemetry) {
        let before = self.current.load_full();
        let sources = Sources::read(&self.paths);
        if sources == before.sources {
            if self.rejected.take().is_some() {
                tracing::info!("limits files are as in force again");
            }
            return;
        }
        if self.rejected.as_ref() == Some(&sources) {
            return;
        }
        match sources.compile(&self.options) {
            Ok(rules) => {
                warn(&rules);
                let snapshot = Snapshot::new(rules, sources, Some(&before), telemetry);
                telemetry.limits_loads.success.add(1);
                tracing::info!(
                    generation = snapshot.generation,
                    rules = snapshot.rules.rules().count(),
                    "limits taken up"
                );
                self.rejected = None;
                self.current.store(Arc::new(snapshot));
            }
            Err(mistakes) => {
                telemetry.limits_loads.failure.add(1);
                tracing::error!(
                    mistakes = mistakes.len(),
                    "limits rejected, the old ones stay in force"
                );
                for mistake in &mistakes {
                    tracing::error!("{mistake}");
                }
                self.rejected = Some(sources);
            }
        }
    }
}

fn warn(rules: &RuleSet) {
    for warning in rules.warnings() {
        tracing::warn!("{warning}");
    }
}
