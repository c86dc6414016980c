//! The servers and the slots that they own, as known.

use std::{collections::HashMap, sync::Arc};

use sluicegate_core::CounterKey;

use crate::redis::{node::Node, slots::hash_slot};

/// The servers, as known. Immutable, swapped whole.
pub(in crate::redis) struct Map {
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) owners: Owners,
}

pub(super) enum Owners {
    /// One server has everything; the epoch is what sentinels go by.
    One { epoch: u64 },
    /// Position of each slot's owner, and the epoch of its claim.
    Slots(Box<[(u16, u64)]>),
}

/// The owner of a slot that no server claims.
pub(super) const NO_OWNER: u16 = u16::MAX;

impl Map {
    /// Whether one server has everything.
    pub(in crate::redis) const fn is_single(&self) -> bool {
        matches!(self.owners, Owners::One { .. })
    }

    /// The slot of a counter; all are on one where one server has everything.
    pub(in crate::redis) fn slot(&self, key: &CounterKey) -> u16 {
        if self.is_single() { 0 } else { hash_slot(key) }
    }

    /// Who is to be asked about a slot.
    pub(in crate::redis) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        self.nodes.get(usize::from(self.position(slot)))
    }

    /// Position of a slot's owner among the servers. Of slots without one it is no server's.
    pub(in crate::redis) fn position(&self, slot: u16) -> u16 {
        match &self.owners {
            Owners::One { .. } => 0,
            Owners::Slots(owners) => {
                owners.get(usize::from(slot)).map_or(NO_OWNER, |owner| owner.0)
            }
        }
    }

    /// Whether every counter has a server to be asked.
    pub(in crate::redis) fn is_whole(&self) -> bool {
        match &self.owners {
            Owners::One { .. } => !self.nodes.is_empty(),
            Owners::Slots(owners) => owners.iter().all(|(owner, _)| *owner != NO_OWNER),
        }
    }

    /// The servers in use.
    pub(in crate::redis) fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }
}

/// Servers, each once, and their positions.
#[derive(Default)]
pub(super) struct Numbered {
    pub(super) nodes: Vec<Arc<Node>>,
    positions: HashMap<*const Node, u16>,
}

impl Numbered {
    pub(super) fn of(nodes: &[Arc<Node>]) -> Self {
        let mut numbered = Self::default();
        nodes.iter().for_each(|node| _ = numbered.position(node));
        numbered
    }

    /// The position of a server; one that is new is put last.
    pub(super) fn position(&mut self, node: &Arc<Node>) -> u16 {
        *self.positions.entry(Arc::as_ptr(node)).or_insert_with(|| {
            self.nodes.push(Arc::clone(node));
            u16::try_from(self.nodes.len() - 1).unwrap_or(NO_OWNER)
        })
    }
}

/// The same owners without the nodes that own nothing.
pub(super) fn compacted(nodes: &[Arc<Node>], owners: &[(u16, u64)]) -> Map {
    let mut kept = Numbered::default();
    // Of thousands of slots there are few owners.
    let mut positions: Vec<Option<u16>> = vec![None; nodes.len()];
    let owners = owners.iter().map(|&(owner, epoch)| {
        let at = usize::from(owner);
        let position = positions.get_mut(at).zip(nodes.get(at));
        let position = position.map(|(it, node)| *it.get_or_insert_with(|| kept.position(node)));
        (position.unwrap_or(NO_OWNER), epoch)
    });
    let owners = Owners::Slots(owners.collect());
    Map { nodes: kept.nodes, owners }
}
