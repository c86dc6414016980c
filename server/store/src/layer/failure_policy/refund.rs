//! Charges of refused or failed requests, which are refunded.

use sluicegate_core::{
    Charge, Check, Decision,
    store::{DecisionSource, RefusalScope},
};

/// A charge to be refunded.
pub(super) struct Refund {
    /// Position of the charged check in its group.
    pub(super) position: usize,
    /// The check that undoes the charge.
    pub(super) check: Check,
    /// The source of the decision that charged it.
    pub(super) source: DecisionSource,
}

/// The check that undoes a charge; `None` if no hits were charged.
pub(super) fn undo(check: &Check, decision: &Decision) -> Option<Check> {
    let receipt = Some(decision.receipt?);
    let charge = Charge::Refund { hits: decision.charged, receipt };
    Some(Check { charge, refusal_scope: RefusalScope::None, ..check.clone() })
}

/// The conditional charges whose descriptors are over their limits, or all of them if the request is refused or
/// deferred (`failed`). Such charges exist if another slot refused, or if the local fallback refused after the store
/// had charged. Changes their decisions to charge no hits.
pub(super) fn take_refunds(
    group: &[Check],
    decisions: &mut [Decision],
    failed: bool,
) -> Vec<Refund> {
    let mut refunds = Vec::new();
    let (mut rest, mut first) = (decisions, 0);
    for checks in group.chunk_by(|a, b| a.descriptor == b.descriptor) {
        let (of_descriptor, others) = rest.split_at_mut(checks.len().min(rest.len()));
        rest = others;
        let positions = first..;
        first += checks.len();
        if !failed && of_descriptor.iter().all(|decision| decision.allowed) {
            continue;
        }
        for (position, (check, decision)) in positions.zip(checks.iter().zip(of_descriptor)) {
            let undo = undo(check, decision).filter(|_| check.charge.is_conditional());
            let Some(undo) = undo else { continue };
            refunds.push(Refund { position, check: undo, source: decision.source });
            decision.receipt = None;
            decision.remaining += decision.charged;
            decision.charged = 0;
        }
    }
    refunds
}
