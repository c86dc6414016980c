//! Known defects, each of which the oracle must detect: fixes that are disabled, and errors that are planted into what is
//! simulated or answered.

use std::cell::Cell;

use sluicegate_core::fixes::Fix;

/// A defect that is planted into a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A fix is disabled.
    Without(Fix),
    /// A server evicts counters.
    EvictedCounters,
    /// Keys expire in half of the time that the scripts set.
    EarlyExpiry,
    /// Answers report one hit too many as left.
    WrongRemaining,
    /// A debit is acknowledged and not charged.
    LostDebits,
    /// Unknown hits are not counted.
    UncountedUnknownHits,
    /// A task panics.
    PanickingTask,
    /// A server fails to run a script.
    FailingScript,
    /// A request is never answered.
    LostAnswer,
    /// A server never answers again once it was paused.
    EndlessPause,
    /// The local fallback permits what it has refused.
    LenientFallback,
    /// A failure policy answers though the store has answered.
    NeedlessPolicy,
    /// A failure policy permits what it denies.
    LenientPolicy,
    /// A process does not wait for its tasks when it ends.
    DrainWithoutWaiting,
    /// A task never ends.
    EndlessTask,
}

thread_local! {
    static PLANTED: Cell<Option<Mutant>> = const { Cell::new(None) };
}

impl Mutant {
    /// Every mutant: first the fixes.
    pub fn all() -> impl Iterator<Item = Self> {
        Fix::ALL.into_iter().map(Self::Without).chain([
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

    /// The name in commands.
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

    /// The mutant of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|it| it.name() == name)
    }

    /// Plants one defect into the runs of this thread, and removes any other.
    pub fn plant(mutant: Option<Self>) {
        PLANTED.set(mutant);
        Fix::disable(match mutant {
            Some(Self::Without(fix)) => Some(fix),
            _ => None,
        });
    }

    /// Whether the defect is planted in this thread.
    pub(crate) fn is_planted(self) -> bool {
        PLANTED.get() == Some(self)
    }
}
