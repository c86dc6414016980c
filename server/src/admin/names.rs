//! Names of counters and tenants in output that may have to hide values of requests.

use std::sync::Arc;

use sluicegate_core::CounterKey;
use sluicegate_proto::text::descriptor::printable_bytes;
use sluicegate_store::redis::KeyPrefix;

use crate::{settings::TopLabels, telemetry::KeyHash};

/// Names counters and tenants by their keys or by hashes, according to `--top-labels`.
#[derive(Clone)]
pub(crate) struct CounterNames {
    prefix: KeyPrefix,
    hash: Arc<KeyHash>,
    labels: TopLabels,
}

impl CounterNames {
    pub(crate) const fn new(prefix: KeyPrefix, hash: Arc<KeyHash>, labels: TopLabels) -> Self {
        Self { prefix, hash, labels }
    }

    /// The prefix of all keys.
    pub(super) const fn prefix(&self) -> &KeyPrefix {
        &self.prefix
    }

    /// The hash of a counter's key.
    pub(super) fn hash(&self, key: &CounterKey) -> String {
        self.hash.of(key.as_bytes())
    }

    /// An id of the salt: two processes have the same id if and only if they have the same salt. `None` if names are
    /// plain.
    pub(super) fn hash_id(&self) -> Option<String> {
        (self.labels == TopLabels::Hashed).then(|| self.hash.of(b""))
    }

    /// The name of a counter.
    pub(super) fn counter(&self, key: &CounterKey) -> String {
        match self.labels {
            TopLabels::Plain => self.prefix.name(key),
            TopLabels::Hashed => self.hash(key),
        }
    }

    /// The name of a tenant.
    pub(super) fn tenant(&self, value: &[u8]) -> String {
        match self.labels {
            TopLabels::Plain => printable_bytes(value),
            TopLabels::Hashed => self.hash.of(value),
        }
    }
}
