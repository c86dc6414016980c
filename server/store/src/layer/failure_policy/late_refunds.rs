//! Late answers to requests that were decided without them.

use std::sync::Arc;

use sluicegate_core::{
    Check, Store, StoreError,
    store::{Group, LateAnswersFuture},
};

use super::{
    partial_decisions::{Positions, is_refund},
    refund::undo,
    state::PolicyState,
};

impl<S: Store> PolicyState<S> {
    /// Awaits the late answers to the checks at these positions. Refunds the charges that they report, and retries
    /// refunds that they report as not run.
    pub(super) fn refund_late_charges(
        &self,
        group: &Group,
        positions: Positions,
        late: LateAnswersFuture,
    ) {
        if positions.is_empty() {
            return;
        }
        let refund_tasks = Arc::clone(&self.refund_tasks);
        let Some(permit) = refund_tasks.acquire_late_permit() else {
            return refund_tasks.note_failed(positions.iter().filter_map(|&at| group.get(at)));
        };
        let (inner, group) = (Arc::clone(&self.inner), Arc::clone(group));
        tokio::spawn(async move {
            let answers = late.await;
            let refunds = positions.iter().filter_map(|&at| {
                let (check, answer) = group.get(at).zip(answers.get(at))?;
                match answer {
                    Ok(decision) => undo(check, decision),
                    Err(error) if is_refund(check) && *error != StoreError::OutcomeUnknown => {
                        Some(check.clone())
                    }
                    Err(_) => None,
                }
            });
            let refunds: Vec<Check> = refunds.collect();
            if !refunds.is_empty() {
                refund_tasks.start(inner, refunds);
            }
            drop(permit);
        });
    }
}
