//! Known defects, each of which the simulation must detect: disabled fixes, and errors in simulated servers, processes
//! and answers.

use std::cell::Cell;

use sluicegate_core::defect_fixes::DefectFix;

/// A known defect that can be planted into a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A fix is disabled.
    Without(DefectFix),
    /// A server evicts counters.
    EvictedCounters,
    /// Keys expire after half of the lifetime that the scripts set.
    EarlyExpiry,
    /// Answers report one remaining hit too many.
    WrongRemaining,
    /// A server acknowledges a debit without charging it.
    LostDebits,
    /// Unknown hits are not counted.
    UncountedUnknownHits,
    /// A task panics.
    PanickingTask,
    /// A server fails to run a script.
    FailingScript,
    /// A request is never answered.
    LostAnswer,
    /// A server that was paused never answers again.
    EndlessPause,
    /// The local fallback allows requests that it should refuse.
    LenientFallback,
    /// A failure policy decides although the store has answered.
    NeedlessPolicy,
    /// A failure policy allows requests that it should refuse.
    LenientPolicy,
    /// A process that drains ends without waiting for its tasks.
    DrainWithoutWaiting,
    /// A task never ends.
    EndlessTask,
}

thread_local! {
    static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
}

impl Mutant {
    /// Every mutant, the disabled fixes first.
    pub fn all() -> impl Iterator<Item = Self> {
        DefectFix::ALL.into_iter().map(Self::Without).chain([
            Self::EvictedCounters,
            Self::EarlyExpiry,
            Self::WrongRemaining,
            Self::LostDebits,
            Self::UncountedUnknownHits,
            Self::PanickingTask,
            Self::FailingScript,
            Self::LostAnswer,
            Self::EndlessPause,
            Self::LenientFallback,
            Self::NeedlessPolicy,
            Self::LenientPolicy,
            Self::DrainWithoutWaiting,
            Self::EndlessTask,
        ])
    }

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Without(fix) => fix.name(),
            Self::EvictedCounters => "evicted-counters",
            Self::EarlyExpiry => "early-expiry",
            Self::WrongRemaining => "wrong-remaining",
            Self::LostDebits => "lost-debits",
            Self::UncountedUnknownHits => "uncounted-unknown-hits",
            Self::PanickingTask => "panicking-task",
            Self::FailingScript => "failing-script",
            Self::LostAnswer => "lost-answer",
            Self::EndlessPause => "endless-pause",
            Self::LenientFallback => "lenient-fallback",
            Self::NeedlessPolicy => "needless-policy",
            Self::LenientPolicy => "lenient-policy",
            Self::DrainWithoutWaiting => "drain-without-waiting",
            Self::EndlessTask => "endless-task",
        }
    }

    /// The mutant with this name; `None` for an unknown name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|it| it.name() == name)
    }

    /// Plants a defect into the runs of this thread, in place of any other; `None` for no defect.
    pub fn plant(mutant: Option<Self>) {
        PLANTED.set(mutant);
        DefectFix::disable(match mutant {
            Some(Self::Without(fix)) => Some(fix),
            _ => None,
        });
    }

    /// Whether the defect is planted in this thread.
    pub(crate) fn is_planted(self) -> bool {
        PLANTED.get() == Some(self)
    }
}
