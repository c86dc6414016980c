//! The record of a decision, from which responses, metrics, traces and the decision log are made.

use sluicegate_core::{Check, Decision, Plan, Verdict};

/// A decided request: the plan, what the store was asked, its answers, and the verdict.
pub(crate) struct DecisionRecord<'a, 'r> {
    /// What each descriptor matched.
    pub(crate) plan: &'a Plan<'r>,
    /// The checks that the store was asked.
    pub(crate) group: &'a [Check],
    /// The answers, one for each check.
    pub(crate) decisions: &'a [Decision],
    /// The result.
    pub(crate) verdict: &'a Verdict<'r>,
}
