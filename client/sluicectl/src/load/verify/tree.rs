//! Finds the span of time whose hits are furthest above a bound that grows evenly with the span.

/// For hits that begin at known places, in order: the largest of `line(place) + hits that begin there or later` over all
/// places where hits have been added.
#[derive(Debug)]
pub(super) struct Tree {
    /// A binary tree: the children of node n are 2n and 2n + 1, and node 1 is the root.
    nodes: Vec<Node>,
    leaves: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    hits: i128,
    /// `None` where nothing has been added.
    largest: Option<i128>,
}

impl Tree {
    /// One for so many places.
    pub(super) fn new(places: usize) -> Self {
        let leaves = places.next_power_of_two();
        Self { nodes: vec![Node::default(); 2 * leaves], leaves }
    }

    /// Adds hits, or takes some away, at a place with this line.
    pub(super) fn add(&mut self, place: usize, hits: i128, line: i128) {
        let mut at = self.leaves + place;
        if let Some(leaf) = self.nodes.get_mut(at) {
            leaf.hits += hits;
            leaf.largest = Some(line + leaf.hits);
        }
        while at > 1 {
            at /= 2;
            let (left, right) = (self.node(2 * at), self.node(2 * at + 1));
            let from_left = left.largest.map(|largest| largest + right.hits);
            if let Some(node) = self.nodes.get_mut(at) {
                *node =
                    Node { hits: left.hits + right.hits, largest: from_left.max(right.largest) };
            }
        }
    }

    /// The largest.
    pub(super) fn largest(&self) -> Option<i128> {
        self.node(1).largest
    }

    /// Hits that begin at this place or later.
    pub(super) fn hits_from(&self, place: usize) -> i128 {
        let mut at = self.leaves + place;
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
        fn finds_what_looking_everywhere_finds(
            added in vec((0..9_usize, 1..5_i128), 0..40),
            lines in vec(-50..50_i128, 9),
        ) {
            let mut tree = Tree::new(9);
            let mut hits = [None; 9];
            for (place, more) in added {
                tree.add(place, more, lines[place]);
                *hits[place].get_or_insert(0) += more;
                let from = |at: usize| hits[at..].iter().flatten().sum::<i128>();
                let used = (0..9).filter(|at| hits[*at].is_some());
                prop_assert_eq!(tree.largest(), used.map(|at| lines[at] + from(at)).max());
                for at in 0..9 {
                    prop_assert_eq!(tree.hits_from(at), from(at));
                }
            }
        }
    }
}
