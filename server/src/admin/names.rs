//! Names of counters and tenants in output that may have to hide values of requests.

use std::sync::Arc;

use sluicegate_core::CounterKey;
use sluicegate_proto::text::descriptor::printable_bytes;
use sluicegate_store::redis::KeyPrefix;

use crate::{settings::CounterNameFormat, telemetry::KeyHasher};

/// Names counters and tenants by their keys or by hashes, according to `--top-labels`.
#[derive(Clone)]
pub(crate) struct CounterNames {
    prefix: KeyPrefix,
    hasher: Arc<KeyHasher>,
    format: CounterNameFormat,
}

impl CounterNames {
    pub(crate) const fn new(
        prefix: KeyPrefix,
        hasher: Arc<KeyHasher>,
        format: CounterNameFormat,
    ) -> Self {
        Self { prefix, hasher, format }
    }

    /// The prefix of all keys.
    pub(super) const fn prefix(&self) -> &KeyPrefix {
        &self.prefix
    }

    /// The hash of a counter's key.
    pub(super) fn hash(&self, key: &CounterKey) -> String {
        self.hasher.hash(key.as_bytes())
    }

    /// An id of the salt: two processes have the same id if and only if they have the same salt. `None` if names are
    /// plain.
    pub(super) fn salt_id(&self) -> Option<String> {
        (self.format == CounterNameFormat::Hashed).then(|| self.hasher.hash(b""))
    }

    /// The name of a counter.
    pub(super) fn counter(&self, key: &CounterKey) -> String {
        match self.format {
            CounterNameFormat::Plain => self.prefix.name(key),
            CounterNameFormat::Hashed => self.hash(key),
        }
    }

    /// The name of a tenant.
    pub(super) fn tenant(&self, value: &[u8]) -> String {
        match self.format {
            CounterNameFormat::Plain => printable_bytes(value),
            CounterNameFormat::Hashed => self.hasher.hash(value),
        }
    }
}
