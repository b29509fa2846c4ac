//! Future fetches over a link, in order of need.
//!
//! "Must the next fetch begin now?" looks at all future fetches and costs as little as an update,
//! O(log n). A shard needed at `at`, where all up to it take the link `work`, is in time if the
//! first of them begins at `at − work` at the latest. The minimum of all these times stands at the
//! root of a treap (Seidel and Aragon, Algorithmica 1996). Its priorities are hashes, so that the
//! same shards always make the same tree.

use super::{Moment, Shard, signed};

/// No node.
const NIL: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node {
    key: (Moment, Shard),
    /// Microseconds that it takes the link.
    work: u64,
    left: u32,
    right: u32,
    /// Subtree's total work, and the latest start of its first fetch if nothing came before it.
    sum: u64,
    latest: i64,
}

/// Shards by when they are needed.
#[derive(Debug)]
pub(super) struct Timeline {
    nodes: Vec<Node>,
    vacant: Vec<u32>,
    root: u32,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { nodes: Vec::new(), vacant: Vec::new(), root: NIL }
    }
}

impl Timeline {
    /// Adds a shard, which is not in, that is needed at `at` and takes the link `work`
    /// microseconds.
    pub(super) fn insert(&mut self, at: Moment, shard: Shard, work: u64) {
        let key = (at, shard);
        let node = Node { key, work, left: NIL, right: NIL, sum: 0, latest: 0 };
        let new = match self.vacant.pop() {
            Some(vacant) => {
                self.nodes[vacant as usize] = node;
                vacant
            }
            None => {
                self.nodes.push(node);
                // As many as there are shards.
                (self.nodes.len() - 1) as u32
            }
        };
        self.update(new);
        let (before, after) = self.split(self.root, key);
        let before = self.merge(before, new);
        self.root = self.merge(before, after);
    }

    /// Takes a shard out that is needed at `at`.
    pub(super) fn remove(&mut self, at: Moment, shard: Shard) {
        let (before, rest) = self.split(self.root, (at, shard));
        let (found, after) = self.split(rest, (at, shard + 1));
        debug_assert_ne!(found, NIL, "it was put in with this moment");
        if found != NIL {
            self.vacant.push(found);
        }
        self.root = self.merge(before, after);
    }

    /// The shard that is needed first, and when.
    pub(super) fn first(&self) -> Option<(Moment, Shard)> {
        let mut node = self.node(self.root)?;
        while let Some(left) = self.node(node.left) {
            node = left;
        }
        Some(node.key)
    }

    /// Returns the link's time for all fetches up to this one.
    pub(super) fn work_to(&self, at: Moment, shard: Shard) -> u64 {
        let (mut next, mut work) = (self.root, 0_u64);
        while let Some(node) = self.node(next) {
            if node.key > (at, shard) {
                next = node.left;
                continue;
            }
            let before = self.node(node.left).map_or(0, |left| left.sum);
            work = work.saturating_add(before).saturating_add(node.work);
            next = node.right;
        }
        work
    }

    /// Returns the latest start of the first fetch so that all are in time.
    pub(super) fn latest_start(&self) -> Option<i64> {
        self.node(self.root).map(|root| root.latest)
    }

    /// The first `most` shards, and when the first of all must begin at the latest for each of them
    /// to come in time.
    pub(super) fn starts(&self, most: usize) -> Vec<(Shard, i64)> {
        let (mut starts, mut above) = (Vec::new(), Vec::new());
        let (mut at, mut work) = (self.root, 0_u64);
        while starts.len() < most {
            while let Some(node) = self.node(at) {
                above.push(node);
                at = node.left;
            }
            let Some(node) = above.pop() else { break };
            work += node.work;
            starts.push((node.key.1, signed(node.key.0).saturating_sub_unsigned(work)));
            at = node.right;
        }
        starts
    }

    fn node(&self, at: u32) -> Option<&Node> {
        self.nodes.get(at as usize)
    }

    /// Those before `key`, and the others.
    fn split(&mut self, at: u32, key: (Moment, Shard)) -> (u32, u32) {
        let Some(&Node { key: own, left, right, .. }) = self.node(at) else { return (NIL, NIL) };
        if own < key {
            let (before, after) = self.split(right, key);
            self.nodes[at as usize].right = before;
            self.update(at);
            (at, after)
        } else {
            let (before, after) = self.split(left, key);
            self.nodes[at as usize].left = after;
            self.update(at);
            (before, at)
        }
    }

    /// Those of `left`, which are all before those of `right`, and these.
    fn merge(&mut self, left: u32, right: u32) -> u32 {
        let (Some(before), Some(after)) = (self.node(left), self.node(right)) else {
            return left.min(right);
        };
        if priority(before.key.1) > priority(after.key.1) {
            let merged = self.merge(before.right, right);
            self.nodes[left as usize].right = merged;
            self.update(left);
            left
        } else {
            let merged = self.merge(left, after.left);
            self.nodes[right as usize].left = merged;
            self.update(right);
            right
        }
    }

    fn update(&mut self, at: u32) {
        let node = self.nodes[at as usize];
        let (left, right) = (self.node(node.left), self.node(node.right));
        let before = left.map_or(0, |left| left.sum);
        let own = before + node.work;
        let starts = [
            left.map(|left| left.latest),
            Some(signed(node.key.0).saturating_sub_unsigned(own)),
            right.map(|right| right.latest.saturating_sub_unsigned(own)),
        ];
        let latest = starts.into_iter().flatten().min().unwrap_or(i64::MAX);
        let sum = own + right.map_or(0, |right| right.sum);
        let node = &mut self.nodes[at as usize];
        (node.sum, node.latest) = (sum, latest);
    }
}

/// The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014): as good as drawn.
fn priority(shard: Shard) -> u64 {
    let mut bits = u64::from(shard).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A timeline and a sorted list agree after any changes.
        #[test]
        fn timeline_agrees_with_a_sorted_list(
            changes in prop::collection::vec((0..40_u32, 0..1000_u64, 0..50_u64, any::<bool>()), 0..200),
        ) {
            let mut timeline = Timeline::default();
            let mut list: Vec<(Moment, Shard, u64)> = Vec::new();
            for (shard, at, work, comes) in changes {
                if let Some(place) = list.iter().position(|one| one.1 == shard) {
                    let (at, ..) = list.remove(place);
                    timeline.remove(at, shard);
                }
                if comes {
                    timeline.insert(at, shard, work);
                    list.push((at, shard, work));
                    list.sort_unstable();
                }
                prop_assert_eq!(timeline.first(), list.first().map(|one| (one.0, one.1)));
                let starts = list.iter().scan(0_u64, |sum, (at, _, work)| {
                    *sum += work;
                    Some(*at as i64 - *sum as i64)
                });
                let mut work = 0;
                for (at, shard, own) in &list {
                    work += own;
                    prop_assert_eq!(timeline.work_to(*at, *shard), work);
                }
                let starts: Vec<_> = starts.collect();
                let told: Vec<_> = timeline.starts(3).into_iter().map(|(_, start)| start).collect();
                prop_assert_eq!(told, starts.iter().copied().take(3).collect::<Vec<_>>());
                prop_assert_eq!(timeline.latest_start(), starts.into_iter().min());
                prop_assert!(timeline.nodes.len() <= 40);
            }
        }
    }
}
