//! The slot map: the servers in use and the slots that they own.

use std::{collections::HashMap, sync::Arc};

use sluicegate_core::CounterKey;

use crate::redis::{node::Node, slots::hash_slot};

/// The last known servers and owners of slots. Immutable, replaced as a whole.
pub(in crate::redis) struct SlotMap {
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) owners: Owners,
}

pub(super) enum Owners {
    /// One server owns all slots. Sentinels report the epoch.
    One { epoch: u64 },
    /// For each slot, position of its owner, and epoch of the owner's claim.
    Slots(Box<[(u16, u64)]>),
}

/// The owner of a slot that no server claims.
pub(super) const NO_OWNER: u16 = u16::MAX;

impl SlotMap {
    /// Whether one server owns all slots.
    pub(in crate::redis) const fn is_single(&self) -> bool {
        matches!(self.owners, Owners::One { .. })
    }

    /// The slot of a counter; 0 if one server owns all slots.
    pub(in crate::redis) fn slot(&self, key: &CounterKey) -> u16 {
        if self.is_single() { 0 } else { hash_slot(key) }
    }

    /// The owner of a slot.
    pub(in crate::redis) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        self.nodes.get(usize::from(self.owner_position(slot)))
    }

    /// Position of a slot's owner among the servers; [`NO_OWNER`] without one.
    pub(in crate::redis) fn owner_position(&self, slot: u16) -> u16 {
        match &self.owners {
            Owners::One { .. } => 0,
            Owners::Slots(owners) => {
                owners.get(usize::from(slot)).map_or(NO_OWNER, |owner| owner.0)
            }
        }
    }

    /// Whether every slot has an owner.
    pub(in crate::redis) fn covers_all_slots(&self) -> bool {
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

/// A list of servers without duplicates, and the position of each.
#[derive(Default)]
pub(super) struct NodeList {
    pub(super) nodes: Vec<Arc<Node>>,
    positions: HashMap<*const Node, u16>,
}

impl NodeList {
    pub(super) fn of(nodes: &[Arc<Node>]) -> Self {
        let mut list = Self::default();
        nodes.iter().for_each(|node| _ = list.position_or_insert(node));
        list
    }

    /// The position of a server. Appends a server that is not in the list.
    pub(super) fn position_or_insert(&mut self, node: &Arc<Node>) -> u16 {
        *self.positions.entry(Arc::as_ptr(node)).or_insert_with(|| {
            self.nodes.push(Arc::clone(node));
            u16::try_from(self.nodes.len() - 1).unwrap_or(NO_OWNER)
        })
    }
}

/// A slot map of these owners, without the nodes that own no slot.
pub(super) fn compact(nodes: &[Arc<Node>], owners: &[(u16, u64)]) -> SlotMap {
    let mut kept = NodeList::default();
    // By position in `nodes`, because a lookup for each of thousands of slots is slow and owners are few.
    let mut positions: Vec<Option<u16>> = vec![None; nodes.len()];
    let owners = owners.iter().map(|&(owner, epoch)| {
        let at = usize::from(owner);
        let position = positions.get_mut(at).zip(nodes.get(at));
        let position =
            position.map(|(it, node)| *it.get_or_insert_with(|| kept.position_or_insert(node)));
        (position.unwrap_or(NO_OWNER), epoch)
    });
    let owners = Owners::Slots(owners.collect());
    SlotMap { nodes: kept.nodes, owners }
}
