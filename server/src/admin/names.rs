//! What counters and tenants are called where values of requests may not be seen.

use std::sync::Arc;

use sluicegate_core::CounterKey;
use sluicegate_proto::text::descriptor::printable_bytes;
use sluicegate_store::redis::KeyPrefix;

use crate::{settings::TopLabels, telemetry::KeyHash};

/// Names counters and tenants, by their text or by hashes.
#[derive(Clone)]
pub(crate) struct Names {
    prefix: KeyPrefix,
    hash: Arc<KeyHash>,
    labels: TopLabels,
}

impl Names {
    pub(crate) const fn new(prefix: KeyPrefix, hash: Arc<KeyHash>, labels: TopLabels) -> Self {
        Self { prefix, hash, labels }
    }

    /// Prefix of every key.
    pub(super) const fn prefix(&self) -> &KeyPrefix {
        &self.prefix
    }

    /// The name of a counter if keys are hashed.
    pub(super) fn hash(&self, key: &CounterKey) -> String {
        self.hash.of(key.as_bytes())
    }

    /// What is the same for two processes if and only if their hashes are; `None` where names are plain.
    pub(super) fn hash_id(&self) -> Option<String> {
        (self.labels == TopLabels::Hashed).then(|| self.hash.of(b""))
    }

    /// A counter.
    pub(super) fn counter(&self, key: &CounterKey) -> String {
        match self.labels {
            TopLabels::Plain => self.prefix.name(key),
            TopLabels::Hashed => self.hash(key),
        }
    }

    /// A tenant.
    pub(super) fn tenant(&self, value: &[u8]) -> String {
        match self.labels {
            TopLabels::Plain => printable_bytes(value),
            TopLabels::Hashed => self.hash.of(value),
        }
    }
}
