//! Requests that were decided without some of the store's answers, when these come late.

use std::sync::Arc;

use sluicegate_core::{
    Check, Store, StoreError,
    store::{Group, PendingAnswers},
};

use super::{
    conclusion::{Positions, is_refund},
    leftovers::undo,
    shared::Shared,
};

impl<S: Store> Shared<S> {
    /// Refunds charges in vain that late answers show, and repeats refunds that were not run, of the checks at these positions.
    pub(super) fn give_back_late(&self, group: &Group, positions: Positions, late: PendingAnswers) {
        if positions.is_empty() {
            return;
        }
        let give_backs = Arc::clone(&self.give_backs);
        let Some(permit) = give_backs.late() else {
            return give_backs.note_failed(positions.iter().filter_map(|&at| group.get(at)));
        };
        let (inner, group) = (Arc::clone(&self.inner), Arc::clone(group));
        tokio::spawn(async move {
            let answers = late.await;
            let takes = positions.iter().filter_map(|&at| {
                let (check, answer) = group.get(at).zip(answers.get(at))?;
                match answer {
                    Ok(decision) => undo(check, decision),
                    Err(error) if is_refund(check) && *error != StoreError::Unknown => {
                        Some(check.clone())
                    }
                    Err(_) => None,
                }
            });
            let takes: Vec<Check> = takes.collect();
            if !takes.is_empty() {
                give_backs.start(inner, takes);
            }
            drop(permit);
        });
    }
}
