//! Counters by key, at the server that has their slot.
//!
//! SCAN reads a bounded number of keys at a time, of any owner. With each step the server gets a query for an absent key of
//! the slot: a server that no longer has the slot, or only a part of it, redirects that query, which SCAN does not.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sluicegate_core::{CounterKey, key::TenantKeys};

use super::{
    Address, Redis, Reply,
    failure::NoAnswer,
    slots::{hash_slot, key_slot},
};
use crate::{Inspect, RESET_MAX, Reset, STEP_MAX, Step, Unavailable, clock};

/// How long a slot may be on its way, or without a server, before that is an error: for each step.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long to wait before asking again.
const PAUSE: Duration = Duration::from_millis(50);

/// Where a search continues: valid at one server only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    address: Address,
    /// As the server says it.
    at: String,
}

impl Inspect for Redis {
    type Cursor = Cursor;

    async fn reset(&self, keys: &[CounterKey], reset: Reset) -> Result<u64, Unavailable> {
        let mut keys: Vec<(u16, &CounterKey)> =
            keys.iter().map(|key| (self.topology.map().slot(key), key)).collect();
        keys.sort_by_key(|(slot, _)| *slot);
        keys.dedup_by(|a, b| a.1 == b.1);
        let mut count = 0;
        let mut ran = false;
        for of_slot in keys.chunk_by(|a, b| a.0 == b.0) {
            let Some((_, first)) = of_slot.first() else { continue };
            for some in of_slot.chunks(RESET_MAX) {
                let names = some.iter().map(|(_, key)| self.name(key.as_bytes())).collect();
                let command = Self::command_of(reset);
                let deadline = clock::now() + PATIENCE;
                let asked = self.ask_owner(|| self.slot_of(first), command, names, deadline).await;
                let (_, reply) = asked.map_err(|error| match error {
                    Unavailable::NotRun(why) if ran => Unavailable::Unknown(why),
                    Unavailable::NotAllowed { .. } if ran => {
                        Unavailable::Unknown(error.to_string())
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

    async fn step(
        &self,
        owner: &TenantKeys,
        mut from: Option<Cursor>,
    ) -> Result<Step<Cursor>, Unavailable> {
        let probe = [b"s1:".as_slice(), &owner.tag()].concat();
        let slot = || {
            let of_cluster = key_slot(&probe);
            if self.topology.map().is_single() { 0 } else { of_cluster }
        };
        let pattern = self.pattern(owner);
        let deadline = clock::now() + PATIENCE;
        loop {
            // The server that answers has the slot; a cursor of another server is not valid there.
            let exists = Self::command_of(Reset::DryRun);
            let probed = || vec![self.name(&probe)];
            let (address, _) = self.ask_owner(slot, exists, probed(), deadline).await?;
            let at = from.take_if(|from| from.address == address).map(|from| from.at);
            let args = vec![
                at.as_deref().unwrap_or("0").into(),
                b"MATCH".to_vec(),
                pattern.clone(),
                b"COUNT".to_vec(),
                STEP_MAX.to_string().into(),
            ];
            let (asked, reply) = self.ask_owner(slot, "SCAN", args, deadline).await?;
            let (still, _) = self.ask_owner(slot, exists, probed(), deadline).await?;
            if asked == address && still == address {
                return self.found(owner, address, &reply);
            }
            if clock::now() >= deadline {
                return Err(Unavailable::NotRun("the slot changes its server".to_owned()));
            }
        }
    }
}

impl Redis {
    /// What the store is called in `--store`.
    pub fn scheme(&self) -> &'static str {
        self.topology.scheme()
    }

    const fn command_of(reset: Reset) -> &'static str {
        match reset {
            Reset::Now => "UNLINK",
            Reset::DryRun => "EXISTS",
        }
    }

    fn slot_of(&self, key: &CounterKey) -> u16 {
        if self.topology.map().is_single() { 0 } else { hash_slot(key) }
    }

    /// The name of a key in Redis.
    fn name(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, key].concat()
    }

    /// What SCAN is to match: every key that has the owner's tag behind the prefix. Tags may have what patterns give a
    /// meaning to.
    fn pattern(&self, owner: &TenantKeys) -> Vec<u8> {
        let escaped = |text: &[u8]| {
            let special =
                |byte: &u8| matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\' | b'^' | b'-');
            let escape = |&byte: &u8| special(&byte).then_some(b'\\').into_iter().chain([byte]);
            text.iter().flat_map(escape).collect::<Vec<u8>>()
        };
        [escaped(&self.prefix), b"s1:*:".to_vec(), escaped(&owner.tag()), b":*".to_vec()].concat()
    }

    fn found(
        &self,
        owner: &TenantKeys,
        address: Address,
        reply: &Reply,
    ) -> Result<Step<Cursor>, Unavailable> {
        let unreadable = || Unavailable::NotRun("the reply to SCAN cannot be read".to_owned());
        let [at, Reply::Array(names)] = reply.elements() else { return Err(unreadable()) };
        let at = at.as_str().ok_or_else(unreadable)?.to_owned();
        let key = |name: &Reply| {
            let Reply::Text(name) = name else { return None };
            let key = name.strip_prefix(&*self.prefix)?;
            owner.contains(key).then(|| CounterKey::from_text(key))?
        };
        let found = names.iter().filter_map(key).collect();
        let is_end = at == "0";
        let next = (!is_end).then_some(Cursor { address, at });
        Ok(Step { found, next })
    }

    /// Asks the server that has a slot; which one that was, and what it says. Waits while the slot is on its way, until the
    /// deadline.
    async fn ask_owner(
        &self,
        slot: impl Fn() -> u16,
        command: &'static str,
        args: Vec<Vec<u8>>,
        deadline: Instant,
    ) -> Result<(Address, Reply), Unavailable> {
        let topology = Arc::downgrade(&self.topology);
        loop {
            let owner = self.topology.map().owner(slot()).cloned();
            let why = match &owner {
                None => "no server has the slot".to_owned(),
                Some(node) => match node.command(command, &args, &topology).await {
                    Ok(reply) => return Ok((node.address.clone(), reply)),
                    Err(NoAnswer::Elsewhere(why)) => format!("{}: {why}", node.address),
                    Err(NoAnswer::Because(why)) if why.starts_with("NOPERM") => {
                        let why = format!("{}: {why}", node.address);
                        return Err(Unavailable::NotAllowed { command, why });
                    }
                    Err(NoAnswer::Because(why)) => {
                        return Err(Unavailable::NotRun(format!("{}: {why}", node.address)));
                    }
                    Err(NoAnswer::Unknown(why)) => {
                        let why = format!("{}: {why}", node.address);
                        // Looking changes nothing.
                        let changes = command == Self::command_of(Reset::Now);
                        let error =
                            if changes { Unavailable::Unknown } else { Unavailable::NotRun };
                        return Err(error(why));
                    }
                },
            };
            self.topology.trouble();
            if clock::now() >= deadline {
                return Err(Unavailable::NotRun(why));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
