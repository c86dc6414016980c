//! Switches that disable the fixes of known defects. The simulation disables one fix at a time, to prove that it
//! detects the defect. Without the feature `simulation` every fix is active, and the switches are not compiled.

/// The fix of a defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DefectFix {
    /// A multi-slot request is settled completely after its caller has disconnected.
    SettleAfterDisconnect,
    /// A charge is undone in the units of its own limit, if another limit has since rescaled the counter.
    UndoInOwnUnits,
    /// The same in the Lua scripts: the lines that end with `-- fix: undo-in-own-units-in-lua`.
    UndoInOwnUnitsInLua,
    /// The deny cache does not store a refusal of a counter that its request checks more than once.
    RepeatedCountersNotCached,
    /// The deny cache does not store a refusal if hits of the counter were refunded since the request was sent.
    RefundsInvalidateRefusals,
    /// The deny cache does not store a refusal if a charge of a refused request was undone on the counter meanwhile.
    UndoneChargesInvalidateRefusals,
    /// The lifetime of a refusal in the deny cache begins when the request is sent, not when it is answered.
    RefusalsExpireFromRequest,
    /// The local fallback starts from the usage that the store last reported, not from zero.
    FallbackStartsWarm,
    /// A charge that a late reply reports for a request that was not allowed is refunded.
    RefundLateCharges,
}

#[cfg(feature = "simulation")]
mod switch {
    use std::cell::Cell;

    use super::DefectFix;

    thread_local! {
        static DISABLED: Cell<Option<DefectFix>> = const { Cell::new(None) };
    }

    impl DefectFix {
        /// Every fix, in the order of the table in `docs/simulation.md`.
        pub const ALL: [Self; 9] = [
            Self::SettleAfterDisconnect,
            Self::UndoInOwnUnits,
            Self::UndoInOwnUnitsInLua,
            Self::RepeatedCountersNotCached,
            Self::RefundsInvalidateRefusals,
            Self::UndoneChargesInvalidateRefusals,
            Self::RefusalsExpireFromRequest,
            Self::FallbackStartsWarm,
            Self::RefundLateCharges,
        ];

        /// The name on the command line of the simulation, and in the Lua scripts.
        #[must_use]
        pub const fn name(self) -> &'static str {
            match self {
                Self::SettleAfterDisconnect => "settle-after-disconnect",
                Self::UndoInOwnUnits => "undo-in-own-units",
                Self::UndoInOwnUnitsInLua => "undo-in-own-units-in-lua",
                Self::RepeatedCountersNotCached => "repeated-counters-not-cached",
                Self::RefundsInvalidateRefusals => "refunds-invalidate-refusals",
                Self::UndoneChargesInvalidateRefusals => "undone-charges-invalidate-refusals",
                Self::RefusalsExpireFromRequest => "refusals-expire-from-request",
                Self::FallbackStartsWarm => "fallback-starts-warm",
                Self::RefundLateCharges => "refund-late-charges",
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
impl DefectFix {
    /// Whether the fix is active: always.
    #[inline(always)]
    #[must_use]
    pub const fn is_active(self) -> bool {
        true
    }
}
