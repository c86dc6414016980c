//! Labels of rules. They are created once for each rule set, so that counting a descriptor copies no text.

use std::{collections::HashMap, sync::Arc};

use sluicegate_core::{DescriptorStatus, Plan, rules::RuleSet};

use crate::telemetry::OVERRIDE_LABEL;

/// The label of a rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RuleLabel {
    /// The domain.
    pub(crate) domain: Arc<str>,
    /// The path, as in metrics.
    pub(crate) rule: Box<str>,
}

/// The labels of a rule set.
#[derive(Debug, Default)]
pub(crate) struct RuleLabels {
    /// By rule id.
    rules: Vec<Arc<RuleLabel>>,
    /// By domain, for overrides without a rule.
    overrides: HashMap<Box<str>, Arc<RuleLabel>>,
}

impl RuleLabels {
    pub(crate) fn new(rules: &RuleSet) -> Self {
        let mut labels = Self::default();
        let mut last: Option<Arc<str>> = None;
        for (domain, rule) in rules.rules() {
            let name = last.take().filter(|name| **name == *domain.name);
            let name = name.unwrap_or_else(|| Arc::from(&*domain.name));
            let label = RuleLabel { domain: Arc::clone(&name), rule: rule.path.clone() };
            labels.rules.push(Arc::new(label));
            last = Some(name);
        }
        for domain in rules.domains() {
            let label = RuleLabel { domain: Arc::from(&*domain.name), rule: OVERRIDE_LABEL.into() };
            labels.overrides.insert(domain.name.clone(), Arc::new(label));
        }
        labels
    }

    /// The label of the rule or the override that decides a descriptor.
    pub(crate) fn of(
        &self,
        plan: &Plan<'_>,
        status: &DescriptorStatus<'_>,
    ) -> Option<&Arc<RuleLabel>> {
        match status.rule {
            Some(rule) => self.rules.get(rule.id),
            None => self.overrides.get(&plan.domain?.name),
        }
    }
}
