//! Names of rules, made once for each set of limits, so that counting copies none.

use std::{collections::HashMap, sync::Arc};

use sluicegate_core::{Plan, Status, rules::RuleSet};

use crate::telemetry::OVERRIDE;

/// Which rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RuleLabel {
    /// Its domain.
    pub(crate) domain: Arc<str>,
    /// Its path, as metrics show it.
    pub(crate) rule: Box<str>,
}

/// The rules of one set of limits.
#[derive(Debug, Default)]
pub(crate) struct RuleLabels {
    /// By rule id.
    rules: Vec<Arc<RuleLabel>>,
    /// By domain, where an override applies and no rule.
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
            let label = RuleLabel { domain: Arc::from(&*domain.name), rule: OVERRIDE.into() };
            labels.overrides.insert(domain.name.clone(), Arc::new(label));
        }
        labels
    }

    /// The label of what decides about a descriptor.
    pub(crate) fn of(&self, plan: &Plan<'_>, status: &Status<'_>) -> Option<&Arc<RuleLabel>> {
        match status.rule {
            Some(rule) => self.rules.get(rule.id),
            None => self.overrides.get(&plan.domain?.name),
        }
    }
}
