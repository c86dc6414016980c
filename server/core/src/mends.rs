//! Mends of single defects, which the simulation switches off one at a time to prove that it sees each defect. Without
//! the feature `simulation` all are on, and nothing of this is left in the program.

/// The mend of a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mend {
    /// A request on several slots is settled to its end when its caller leaves.
    SettlingOutlivesCaller,
    /// A take is undone in the units of its own limit.
    UndoInOwnUnits,
    /// A refusal of a counter that the request has twice is not remembered.
    RefusalsOfOneCheck,
    /// A refusal is not remembered if hits were given back since the question.
    ReturnsOutdateRefusals,
    /// A refusal is remembered from the question on, not from the answer.
    RefusalsAgeFromQuestion,
    /// The local fallback starts from what the store last reported.
    FallbackStartsWarm,
    /// What a late reply shows to be charged in vain is given back.
    LateChargesReturn,
}

#[cfg(feature = "simulation")]
mod switch {
    use std::cell::Cell;

    use super::Mend;

    thread_local! {
        static OFF: Cell<Option<Mend>> = const { Cell::new(None) };
    }

    impl Mend {
        /// Every mend, in the order of the defects.
        pub const ALL: [Self; 7] = [
            Self::SettlingOutlivesCaller,
            Self::UndoInOwnUnits,
            Self::RefusalsOfOneCheck,
            Self::ReturnsOutdateRefusals,
            Self::RefusalsAgeFromQuestion,
            Self::FallbackStartsWarm,
            Self::LateChargesReturn,
        ];

        /// The name in commands.
        #[must_use]
        pub const fn name(self) -> &'static str {
            match self {
                Self::SettlingOutlivesCaller => "settling-outlives-caller",
                Self::UndoInOwnUnits => "undo-in-own-units",
                Self::RefusalsOfOneCheck => "refusals-of-one-check",
                Self::ReturnsOutdateRefusals => "returns-outdate-refusals",
                Self::RefusalsAgeFromQuestion => "refusals-age-from-question",
                Self::FallbackStartsWarm => "fallback-starts-warm",
                Self::LateChargesReturn => "late-charges-return",
            }
        }

        /// Switches one mend off in this thread, and all others on.
        pub fn switch_off(mend: Option<Self>) {
            OFF.set(mend);
        }

        /// Whether the mend is at work in this thread.
        #[must_use]
        pub fn is_on(self) -> bool {
            OFF.get() != Some(self)
        }
    }
}

#[cfg(not(feature = "simulation"))]
impl Mend {
    /// Whether the mend is at work: always.
    #[inline(always)]
    #[must_use]
    pub const fn is_on(self) -> bool {
        true
    }
}
