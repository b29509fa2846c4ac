//! Placement of shards on members by highest random weight: every slot of every member draws a
//! number for a shard, and the member with the highest one owns it.
//!
//! A member that leaves changes no other member's numbers. So its shards go to the members that
//! were second for them, and nothing else moves.

use forebay_error::Result;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::key::ObjectKey;
use crate::member::{Member, check_list};

/// Members of a cluster, with the order in which they are asked for each shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ring {
    /// By name: nodes that read the list in another order agree.
    members: Vec<Member>,
    /// Seeds of each member's slots.
    seeds: Vec<Vec<u64>>,
}

impl Ring {
    /// Creates the ring of these members.
    ///
    /// # Errors
    /// `Invalid` for a malformed member, for two of one name, or for too many.
    pub fn new(mut members: Vec<Member>) -> Result<Self> {
        members.iter().try_for_each(Member::check)?;
        check_list(&members)?;
        members.sort_by(|a, b| a.name.cmp(&b.name));
        let seeds = members.iter().map(seeds).collect();
        Ok(Self { members, seeds })
    }

    /// Returns the members, by name.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the member of this name.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&Member> {
        let at = self.members.binary_search_by(|member| member.name.as_str().cmp(name)).ok()?;
        Some(&self.members[at])
    }

    /// Returns the owner of a shard; none if there are no members. Costs a hash for each slot.
    #[must_use]
    pub fn owner(&self, key: ObjectKey) -> Option<&Member> {
        let weights = self.weights(key);
        weights.max().map(|(_, at)| &self.members[at])
    }

    /// Returns the first `count` candidates for a shard, the owner first. The second one owns the
    /// shard if the owner leaves, and owned it before the owner joined.
    #[must_use]
    pub fn candidates(&self, key: ObjectKey, count: usize) -> Vec<&Member> {
        let mut weights: Vec<_> = self.weights(key).collect();
        weights.sort_unstable_by(|a, b| b.cmp(a));
        weights.into_iter().take(count).map(|(_, at)| &self.members[at]).collect()
    }

    /// Weights of all members for a shard. A tie, which one shard in 2^40 may have, goes to the
    /// last name.
    fn weights(&self, key: ObjectKey) -> impl Iterator<Item = (u64, usize)> {
        let bytes = key.bytes();
        let weight = move |seeds: &Vec<u64>| {
            seeds.iter().map(|seed| xxh3_64_with_seed(&bytes, *seed)).max().unwrap_or(0)
        };
        self.seeds.iter().enumerate().map(move |(at, seeds)| (weight(seeds), at))
    }
}

/// Seeds of a member's slots: those of the first slots stay when there are more.
fn seeds(member: &Member) -> Vec<u64> {
    let name = xxh3_64(member.name.as_bytes());
    (0..u64::from(member.slots)).map(|slot| xxh3_64_with_seed(&slot.to_le_bytes(), name)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn member(number: usize, slots: u16) -> Member {
        Member { name: format!("node{number}"), address: format!("10.0.0.1:{}", number + 1), slots }
    }

    fn key(shard: usize) -> ObjectKey {
        ObjectKey::new("http://127.0.0.1:9000", &format!("s3://bucket/{shard:06}.tar"))
    }

    fn ring(slots: &[u16]) -> Ring {
        Ring::new(slots.iter().enumerate().map(|(at, slots)| member(at, *slots)).collect()).unwrap()
    }

    fn owned(ring: &Ring, shards: usize) -> HashMap<&str, usize> {
        let mut owned = HashMap::new();
        for shard in 0..shards {
            *owned.entry(ring.owner(key(shard)).unwrap().name.as_str()).or_default() += 1;
        }
        owned
    }

    /// Nodes of different releases must agree: these values may never change.
    #[test]
    fn placement_never_changes_between_releases() {
        let ring = ring(&[1, 1, 2, 1]);
        let owners: Vec<_> =
            (0..8).map(|shard| ring.owner(key(shard)).unwrap().name.as_str()).collect();
        assert_eq!(owners, OWNERS);
    }

    const OWNERS: [&str; 8] =
        ["node2", "node0", "node0", "node2", "node3", "node0", "node2", "node0"];

    #[test]
    fn ring_without_members_owns_nothing() {
        let ring = Ring::new(Vec::new()).unwrap();
        assert_eq!((ring.owner(key(0)), ring.candidates(key(0), 3)), (None, Vec::new()));
    }

    /// By the multinomial distribution, the most loaded of four equal nodes has 1.03 times the mean
    /// of 1,200 shards on average; 1.12 lies beyond four standard deviations.
    #[test]
    fn equal_members_own_about_as_much() {
        let ring = ring(&[4; 4]);
        let most = owned(&ring, 1200).into_values().max().unwrap();
        assert!((most as f64) < 1.12 * 300.0, "{most} of 1200");
    }

    #[test]
    fn members_own_in_proportion_to_their_slots() {
        let ring = ring(&[8, 16, 24]);
        let owned = owned(&ring, 12_000);
        for (name, share) in [("node0", 2000.0), ("node1", 4000.0), ("node2", 6000.0)] {
            let off = (owned[name] as f64 - share).abs() / share;
            assert!(off < 0.1, "{name} owns {}", owned[name]);
        }
    }

    proptest! {
        /// The order of the list does not matter.
        #[test]
        fn order_of_the_list_does_not_matter(slots in prop::collection::vec(1..9_u16, 1..12)) {
            let mut members: Vec<_> =
                slots.iter().enumerate().map(|(at, slots)| member(at, *slots)).collect();
            let ring = Ring::new(members.clone()).unwrap();
            members.reverse();
            prop_assert_eq!(Ring::new(members).unwrap(), ring);
        }

        /// A member that leaves takes only its own shards along: each goes to its second candidate.
        #[test]
        fn leaving_member_moves_only_its_shards(
            slots in prop::collection::vec(1..9_u16, 2..12), leaver in any::<prop::sample::Index>()
        ) {
            let before = ring(&slots);
            let leaver = format!("node{}", leaver.index(slots.len()));
            let stay = before.members().iter().filter(|member| member.name != leaver);
            let after = Ring::new(stay.cloned().collect()).unwrap();
            for shard in 0..200 {
                let candidates = before.candidates(key(shard), slots.len());
                let left: Vec<_> =
                    candidates.into_iter().filter(|member| member.name != leaver).collect();
                prop_assert_eq!(after.candidates(key(shard), slots.len()), left);
            }
        }

        /// A member that gets more slots takes shards over, and gives none away.
        #[test]
        fn growing_member_only_gains(slots in prop::collection::vec(1..9_u16, 2..8), more in 1..9_u16) {
            let before = ring(&slots);
            let mut grown = slots.clone();
            grown[0] += more;
            let after = ring(&grown);
            for shard in 0..200 {
                let (was, is) = (before.owner(key(shard)).unwrap(), after.owner(key(shard)).unwrap());
                prop_assert!(is.name == was.name || is.name == "node0");
            }
        }

        /// The owner is the first candidate, and candidates are distinct.
        #[test]
        fn owner_is_the_first_candidate(slots in prop::collection::vec(1..9_u16, 1..12), shard in 0..10_000_usize) {
            let ring = ring(&slots);
            let candidates = ring.candidates(key(shard), slots.len());
            prop_assert_eq!(candidates.first().copied(), ring.owner(key(shard)));
            let mut names: Vec<_> = candidates.iter().map(|member| &member.name).collect();
            names.sort();
            names.dedup();
            prop_assert_eq!(names.len(), slots.len());
        }

        #[test]
        fn member_of_a_name_is_found(slots in prop::collection::vec(1..9_u16, 1..12)) {
            let ring = ring(&slots);
            for member in ring.members() {
                prop_assert_eq!(ring.member(&member.name), Some(member));
            }
            prop_assert_eq!(ring.member("nobody"), None);
        }
    }
}
