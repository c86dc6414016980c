//! Finds the time span whose hits exceed a linear bound by the most.

/// A segment tree over sorted start times. It maintains the maximum of `offset(start) + hits that begin at or after
/// start`, over all starts with hits.
#[derive(Debug)]
pub(super) struct Tree {
    /// A binary tree: the children of node n are 2n and 2n + 1, and node 1 is the root.
    nodes: Vec<Node>,
    leaves: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    hits: i128,
    /// The maximum in this subtree; `None` without hits.
    maximum: Option<i128>,
}

impl Tree {
    /// A tree for this number of start times.
    pub(super) fn new(starts: usize) -> Self {
        let leaves = starts.next_power_of_two();
        Self { nodes: vec![Node::default(); 2 * leaves], leaves }
    }

    /// Adds hits, or subtracts them, at the start with this index and offset.
    pub(super) fn add(&mut self, index: usize, hits: i128, offset: i128) {
        let mut at = self.leaves + index;
        if let Some(leaf) = self.nodes.get_mut(at) {
            leaf.hits += hits;
            leaf.maximum = Some(offset + leaf.hits);
        }
        while at > 1 {
            at /= 2;
            let (left, right) = (self.node(2 * at), self.node(2 * at + 1));
            let from_left = left.maximum.map(|maximum| maximum + right.hits);
            if let Some(node) = self.nodes.get_mut(at) {
                *node =
                    Node { hits: left.hits + right.hits, maximum: from_left.max(right.maximum) };
            }
        }
    }

    /// The maximum over all starts with hits.
    pub(super) fn maximum(&self) -> Option<i128> {
        self.node(1).maximum
    }

    /// Hits that begin at the start with this index, or later.
    pub(super) fn hits_from(&self, index: usize) -> i128 {
        let mut at = self.leaves + index;
        let mut hits = self.node(at).hits;
        while at > 1 {
            if at.is_multiple_of(2) {
                hits += self.node(at + 1).hits;
            }
            at /= 2;
        }
        hits
    }

    fn node(&self, at: usize) -> Node {
        self.nodes.get(at).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn matches_a_linear_search(
            added in vec((0..9_usize, 1..5_i128), 0..40),
            offsets in vec(-50..50_i128, 9),
        ) {
            let mut tree = Tree::new(9);
            let mut hits = [None; 9];
            for (index, more) in added {
                tree.add(index, more, offsets[index]);
                *hits[index].get_or_insert(0) += more;
                let from = |at: usize| hits[at..].iter().flatten().sum::<i128>();
                let used = (0..9).filter(|at| hits[*at].is_some());
                prop_assert_eq!(tree.maximum(), used.map(|at| offsets[at] + from(at)).max());
                for at in 0..9 {
                    prop_assert_eq!(tree.hits_from(at), from(at));
                }
            }
        }
    }
}
