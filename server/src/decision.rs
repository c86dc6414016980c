//! The record of a decision, for responses, metrics, traces and the decision log.

use sluicegate_core::{Check, Decision, Plan, Verdict};

/// A decided request: the plan, the checks, their decisions, and the verdict.
pub(crate) struct DecisionRecord<'a, 'r> {
    /// The limits that apply to each descriptor.
    pub(crate) plan: &'a Plan<'r>,
    /// The checks.
    pub(crate) group: &'a [Check],
    /// The decisions, one for each check.
    pub(crate) decisions: &'a [Decision],
    /// The answer to the request.
    pub(crate) verdict: &'a Verdict<'r>,
}
