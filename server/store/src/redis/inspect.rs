//! Scanning and resetting counters at the servers that own their slots.
//!
//! A step of a scan is a `SCAN`, which examines a bounded number of keys of any tenant. A server that no longer owns
//! the slot answers `SCAN` without a redirection, so each step also queries an absent key of the slot, before and
//! after: a server that does not have the whole slot redirects that query.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sluicegate_core::{CounterKey, key::TenantKeys};

use super::{
    Address, Redis, Reply,
    call_error::CommandError,
    error_code::ErrorCode,
    slots::{hash_slot, key_slot},
};
use crate::{Inspect, InspectError, RESET_MAX, ResetMode, SCAN_STEP_MAX, ScanStep, clock};

/// Deadline of a step or a reset, in which a slot may be moving or without an owner.
const STEP_TIMEOUT: Duration = Duration::from_secs(3);

/// Wait before the owner of a slot is tried again.
const RETRY_WAIT: Duration = Duration::from_millis(50);

/// Where a scan continues. Valid at one server only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    address: Address,
    /// The cursor that `SCAN` returned.
    position: String,
}

impl Inspect for Redis {
    type Cursor = Cursor;

    async fn reset(&self, keys: &[CounterKey], mode: ResetMode) -> Result<u64, InspectError> {
        let mut keys: Vec<(u16, &CounterKey)> =
            keys.iter().map(|key| (self.topology.slot_map().slot(key), key)).collect();
        keys.sort_by_key(|(slot, _)| *slot);
        keys.dedup_by(|a, b| a.1 == b.1);
        let mut count = 0;
        let mut ran = false;
        for of_slot in keys.chunk_by(|a, b| a.0 == b.0) {
            let Some((_, first)) = of_slot.first() else { continue };
            for some in of_slot.chunks(RESET_MAX) {
                let names = some.iter().map(|(_, key)| self.prefixed(key.as_bytes())).collect();
                let command = Self::command_for(mode);
                let deadline = clock::now() + STEP_TIMEOUT;
                let outcome =
                    self.run_at_owner(|| self.slot_of(first), command, names, deadline).await;
                let (_, reply) = outcome.map_err(|error| match error {
                    InspectError::NotRun(why) if ran => InspectError::Unknown(why),
                    InspectError::NotAllowed { .. } if ran => {
                        InspectError::Unknown(error.to_string())
                    }
                    error => error,
                })?;
                let reset = reply.as_integer().and_then(|it| u64::try_from(it).ok());
                count += reset.unwrap_or_default();
                ran = true;
            }
        }
        Ok(count)
    }

    async fn scan(
        &self,
        tenant: &TenantKeys,
        mut from: Option<Cursor>,
    ) -> Result<ScanStep<Cursor>, InspectError> {
        let probe = [b"s1:".as_slice(), &tenant.tag()].concat();
        let slot = || {
            let of_cluster = key_slot(&probe);
            if self.topology.slot_map().is_single() { 0 } else { of_cluster }
        };
        let pattern = self.scan_pattern(tenant);
        let deadline = clock::now() + STEP_TIMEOUT;
        loop {
            // The server that replies owns the slot. A cursor of another server is not valid there.
            let exists = Self::command_for(ResetMode::DryRun);
            let probed = || vec![self.prefixed(&probe)];
            let (address, _) = self.run_at_owner(slot, exists, probed(), deadline).await?;
            let position = from.take_if(|from| from.address == address).map(|from| from.position);
            let args = vec![
                position.as_deref().unwrap_or("0").into(),
                b"MATCH".to_vec(),
                pattern.clone(),
                b"COUNT".to_vec(),
                SCAN_STEP_MAX.to_string().into(),
            ];
            let (scanned, reply) = self.run_at_owner(slot, "SCAN", args, deadline).await?;
            let (still, _) = self.run_at_owner(slot, exists, probed(), deadline).await?;
            if scanned == address && still == address {
                return self.parse_scan_step(tenant, address, &reply);
            }
            if clock::now() >= deadline {
                return Err(InspectError::NotRun("the slot changes its server".to_owned()));
            }
        }
    }
}

impl Redis {
    /// The URL scheme of the deployment, without TLS.
    pub fn scheme(&self) -> &'static str {
        self.topology.scheme()
    }

    /// The command that deletes keys, or only counts those that exist.
    const fn command_for(mode: ResetMode) -> &'static str {
        match mode {
            ResetMode::Delete => "UNLINK",
            ResetMode::DryRun => "EXISTS",
        }
    }

    fn slot_of(&self, key: &CounterKey) -> u16 {
        if self.topology.slot_map().is_single() { 0 } else { hash_slot(key) }
    }

    /// A key with the prefix.
    fn prefixed(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, key].concat()
    }

    /// The pattern of `SCAN` that matches every key of the tenant. Special characters of prefix and tag are escaped.
    fn scan_pattern(&self, tenant: &TenantKeys) -> Vec<u8> {
        let escaped = |text: &[u8]| {
            let special =
                |byte: &u8| matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\' | b'^' | b'-');
            let escape = |&byte: &u8| special(&byte).then_some(b'\\').into_iter().chain([byte]);
            text.iter().flat_map(escape).collect::<Vec<u8>>()
        };
        [escaped(&self.prefix), b"s1:*:".to_vec(), escaped(&tenant.tag()), b":*".to_vec()].concat()
    }

    /// Parses the reply to `SCAN`.
    fn parse_scan_step(
        &self,
        tenant: &TenantKeys,
        address: Address,
        reply: &Reply,
    ) -> Result<ScanStep<Cursor>, InspectError> {
        let unreadable = || InspectError::NotRun("the reply to SCAN cannot be read".to_owned());
        let [position, Reply::Array(names)] = reply.elements() else { return Err(unreadable()) };
        let position = position.as_str().ok_or_else(unreadable)?.to_owned();
        let key = |name: &Reply| {
            let Reply::Text(name) = name else { return None };
            let key = name.strip_prefix(&*self.prefix)?;
            tenant.contains(key).then(|| CounterKey::from_text(key))?
        };
        let found = names.iter().filter_map(key).collect();
        let is_end = position == "0";
        let next = (!is_end).then_some(Cursor { address, position });
        Ok(ScanStep { found, next })
    }

    /// Runs a command at the owner of a slot. Returns the owner's address and its reply. Retries until the deadline
    /// while the slot is moving or has no owner.
    async fn run_at_owner(
        &self,
        slot: impl Fn() -> u16,
        command: &'static str,
        args: Vec<Vec<u8>>,
        deadline: Instant,
    ) -> Result<(Address, Reply), InspectError> {
        let topology = Arc::downgrade(&self.topology);
        loop {
            let owner = self.topology.slot_map().owner(slot()).cloned();
            let why = match &owner {
                None => "no server has the slot".to_owned(),
                Some(node) => match node.run_command(command, &args, &topology).await {
                    Ok(reply) => return Ok((node.address.clone(), reply)),
                    Err(CommandError::SlotMoved(why)) => format!("{}: {why}", node.address),
                    Err(CommandError::NotRun(why)) if ErrorCode::of(&why) == ErrorCode::NoPerm => {
                        let why = format!("{}: {why}", node.address);
                        return Err(InspectError::NotAllowed { command, why });
                    }
                    Err(CommandError::NotRun(why)) => {
                        return Err(InspectError::NotRun(format!("{}: {why}", node.address)));
                    }
                    Err(CommandError::Unknown(why)) => {
                        let why = format!("{}: {why}", node.address);
                        // A query that may have run has changed nothing.
                        let changes = command == Self::command_for(ResetMode::Delete);
                        let error =
                            if changes { InspectError::Unknown } else { InspectError::NotRun };
                        return Err(error(why));
                    }
                },
            };
            self.topology.request_refresh();
            if clock::now() >= deadline {
                return Err(InspectError::NotRun(why));
            }
            tokio::time::sleep(RETRY_WAIT).await;
        }
    }
}
