//! Fixes of single defects. The simulation disables them one at a time to prove that it detects each defect. Without the
//! feature `simulation` every fix is active, and the switches are not compiled.

/// The fix of a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fix {
    /// A request on several slots is settled to its end when its caller leaves.
    SettlingOutlivesCaller,
    /// A charge is undone in the units of its own limit.
    UndoInOwnUnits,
    /// The same in the Lua scripts: their lines that end with `-- fix: undo-in-own-units-in-lua`.
    UndoInOwnUnitsInLua,
    /// A refusal of a counter that the request has twice is not remembered.
    RefusalsOfOneCheck,
    /// A refusal is not remembered if hits of its counter were refunded since the question.
    RefundsOutdateRefusals,
    /// The same if what a refused request had charged was refunded.
    UndoneChargesOutdateRefusals,
    /// A refusal is remembered from the question on, not from the answer.
    RefusalsAgeFromQuestion,
    /// The local fallback starts from what the store last reported.
    FallbackStartsWarm,
    /// A charge that a late reply reports for a refused request is refunded.
    LateChargesReturn,
}

#[cfg(feature = "simulation")]
mod switch {
    use std::cell::Cell;

    use super::Fix;

    thread_local! {
        static DISABLED: Cell<Option<Fix>> = const { Cell::new(None) };
    }

    impl Fix {
        /// Every fix.
        pub const ALL: [Self; 9] = [
            Self::SettlingOutlivesCaller,
            Self::UndoInOwnUnits,
            Self::UndoInOwnUnitsInLua,
            Self::RefusalsOfOneCheck,
            Self::RefundsOutdateRefusals,
            Self::UndoneChargesOutdateRefusals,
            Self::RefusalsAgeFromQuestion,
            Self::FallbackStartsWarm,
            Self::LateChargesReturn,
        ];

        /// The name in commands and in the scripts.
        #[must_use]
        pub const fn name(self) -> &'static str {
            match self {
                Self::SettlingOutlivesCaller => "settling-outlives-caller",
                Self::UndoInOwnUnits => "undo-in-own-units",
                Self::UndoInOwnUnitsInLua => "undo-in-own-units-in-lua",
                Self::RefusalsOfOneCheck => "refusals-of-one-check",
                Self::RefundsOutdateRefusals => "refunds-outdate-refusals",
                Self::UndoneChargesOutdateRefusals => "undone-charges-outdate-refusals",
                Self::RefusalsAgeFromQuestion => "refusals-age-from-question",
                Self::FallbackStartsWarm => "fallback-starts-warm",
                Self::LateChargesReturn => "late-charges-return",
            }
        }

        /// Disables one fix in this thread, and activates all others.
        pub fn disable(fix: Option<Self>) {
            DISABLED.set(fix);
        }

        /// The fix that is disabled in this thread.
        #[must_use]
        pub fn disabled() -> Option<Self> {
            DISABLED.get()
        }

        /// Whether the fix is active in this thread.
        #[must_use]
        pub fn is_active(self) -> bool {
            DISABLED.get() != Some(self)
        }
    }
}

#[cfg(not(feature = "simulation"))]
impl Fix {
    /// Whether the fix is active: always.
    #[inline(always)]
    #[must_use]
    pub const fn is_active(self) -> bool {
        true
    }
}
