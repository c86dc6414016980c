//! The limits in force: one immutable set, swapped whole when the files change.

use std::{path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use sluicegate_core::rules::{CompileError, CompileOptions, RuleSet};

use super::{Loaded, Sources, load};
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
    fn new(loaded: Loaded, before: Option<&Self>) -> Self {
        let counters = RuleSetCounters::new(&loaded.rules, before);
        let generation = before.map_or(0, |before| before.generation) + 1;
        Self { rules: loaded.rules, counters, generation, sources: loaded.sources }
    }
}

/// Loads limits files and keeps the newest good set.
pub(crate) struct Limits {
    paths: Vec<PathBuf>,
    options: CompileOptions,
    current: Arc<ArcSwap<Snapshot>>,
    /// What was last found in the files, where it was bad: the same mistakes are told once.
    rejected: Option<Vec<CompileError>>,
}

impl Limits {
    /// Loads the first set.
    pub(crate) fn load(
        paths: Vec<PathBuf>,
        options: CompileOptions,
    ) -> Result<Self, Vec<CompileError>> {
        let loaded = load(&paths, &options)?;
        warn(&loaded);
        let current = Arc::new(ArcSwap::from_pointee(Snapshot::new(loaded, None)));
        Ok(Self { paths, options, current, rejected: None })
    }

    /// The set in force, for as long as the process lives.
    pub(crate) fn current(&self) -> Arc<ArcSwap<Snapshot>> {
        Arc::clone(&self.current)
    }

    /// Loads the files anew and puts them in force if they have changed and have no mistake.
    pub(crate) fn reload(&mut self, telemetry: &Telemetry) {
        let before = self.current.load_full();
        match load(&self.paths, &self.options) {
            Ok(loaded) if loaded.sources == before.sources => {
                if self.rejected.take().is_some() {
                    tracing::info!("limits files are as in force again");
                }
            }
            Ok(loaded) => {
                self.rejected = None;
                warn(&loaded);
                let snapshot = Snapshot::new(loaded, Some(&before));
                telemetry.limits_loads.success.add(1);
                tracing::info!(
                    generation = snapshot.generation,
                    rules = snapshot.rules.rules().count(),
                    "limits taken up"
                );
                self.current.store(Arc::new(snapshot));
            }
            Err(mistakes) => {
                if self.rejected.as_ref() != Some(&mistakes) {
                    telemetry.limits_loads.failure.add(1);
                    tracing::error!(
                        mistakes = mistakes.len(),
                        "limits rejected, the old ones stay in force"
                    );
                    for mistake in &mistakes {
                        tracing::error!("{mistake}");
                    }
                    self.rejected = Some(mistakes);
                }
            }
        }
    }
}

fn warn(loaded: &Loaded) {
    for warning in loaded.rules.warnings() {
        tracing::warn!("{warning}");
    }
}
