//! Foresight against what can be worked out of a whole trace.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use super::*;

/// Uses of one byte each, one after the other.
struct Listed(Vec<Shard>);

impl Future for Listed {
    fn at(&mut self, index: u64) -> Option<Use> {
        let shard = *self.0.get(index as usize)?;
        Some(Use { shard, start: index, end: index + 1 })
    }

    fn next(&mut self, shard: Shard, index: u64) -> Option<Use> {
        let after = self.0.iter().skip(index as usize).position(|other| *other == shard)?;
        self.at(index + after as u64)
    }

    fn second(&mut self, shard: Shard, index: u64) -> Option<Use> {
        let first = self.next(shard, index)?;
        self.next(shard, first.end)
    }
}

/// Fetches of a node that fetches only what is needed already.
fn fetches(uses: &[Shard], shards: u32, capacity: usize) -> usize {
    let mut foresight = Foresight::new(1.0);
    for _ in 0..shards {
        foresight.add(1);
    }
    foresight.join(1, Box::new(Listed(uses.to_vec())), 1.0, 0);
    let (mut here, mut fetched) = (0, 0);
    for (index, shard) in uses.iter().enumerate() {
        let now = index as u64 * 1_000_000;
        foresight.advance(1, index as u64, now, 0);
        assert_eq!(foresight.needed(*shard), NOW);
        if foresight.presence(*shard) == Presence::Here {
            continue;
        }
        assert_eq!(foresight.wanted(), Some((NOW, *shard)));
        if here == capacity {
            let went = foresight.victims(&[0], Some(NOW), 1, &mut |_| true).unwrap();
            went.iter().for_each(|gone| foresight.left(*gone, 0));
            here -= went.len();
        }
        foresight.began(*shard);
        foresight.arrived(*shard, 1_000_000, 0);
        (here, fetched) = (here + 1, fetched + 1);
    }
    fetched
}

/// A job's next missing shard arrives behind all shards that are needed earlier.
#[test]
fn missing_shard_arrives_after_all_shards_needed_before_it() {
    let mut foresight = Foresight::new(1.0);
    for _ in 0..5 {
        foresight.add(1);
    }
    foresight.join(1, Box::new(Listed(vec![0, 1, 2, 3])), 1.0, 0);
    // Twice as fast, and it begins with what the other needs later.
    foresight.join(2, Box::new(Listed(vec![4, 2, 3])), 2.0, 0);
    foresight.found(0, 0);
    foresight.found(4, 0);
    assert_eq!(foresight.lacks(1, 1), Some((1, 1, Some(2_000_000))), "shard 2 is needed before it");
    assert_eq!(foresight.lacks(2, 1), Some((2, 1, Some(1_000_000))));
    assert_eq!(foresight.lacks(1, 0), None, "it is not looked so far");
    foresight.began(2);
    assert_eq!(foresight.lacks(2, 1), Some((2, 1, Some(1_000_000))), "it is on its way");
    assert_eq!(foresight.lacks(1, 1), Some((1, 1, Some(2_000_000))), "behind what is on its way");
    foresight.refuse(1, true);
    assert_eq!(foresight.lacks(1, 1), Some((1, 1, None)));
    assert_eq!(foresight.lacks(3, 1), None);
}

/// The fewest fetches that any choice of what goes needs.
fn fewest(
    uses: &[Shard],
    here: &BTreeSet<Shard>,
    capacity: usize,
    known: &mut HashMap<(usize, BTreeSet<Shard>), usize>,
) -> usize {
    let Some((shard, rest)) = uses.split_first() else { return 0 };
    if here.contains(shard) {
        return fewest(rest, here, capacity, known);
    }
    let key = (uses.len(), here.clone());
    if let Some(found) = known.get(&key) {
        return *found;
    }
    let mut with = here.clone();
    with.insert(*shard);
    let best = if here.len() < capacity {
        fewest(rest, &with, capacity, known)
    } else {
        let without = |gone: &Shard| {
            let mut left = with.clone();
            left.remove(gone);
            left
        };
        let choices: Vec<_> = here.iter().map(without).collect();
        choices.iter().map(|left| fewest(rest, left, capacity, known)).min().unwrap_or(0)
    };
    known.insert(key, best + 1);
    best + 1
}

/// Every trace of seven uses of four shards fetches as little as an exhaustive search.
#[test]
fn eviction_is_optimal_on_every_short_trace() {
    const SHARDS: u32 = 4;
    const USES: u32 = 7;
    for number in 0..SHARDS.pow(USES) {
        let uses: Vec<Shard> = (0..USES).map(|at| number / SHARDS.pow(at) % SHARDS).collect();
        for capacity in 1..SHARDS as usize {
            let mut known = HashMap::new();
            let least = fewest(&uses, &BTreeSet::new(), capacity, &mut known);
            assert_eq!(fetches(&uses, SHARDS, capacity), least, "{uses:?} in {capacity}");
        }
    }
}

/// A job comes to shard 1 after 100 seconds; each shard takes a link of the speed that it is taken
/// for a second.
fn in_a_while() -> Foresight {
    let mut foresight = Foresight::new(1e6);
    (0..2).map(|_| foresight.add(1_000_000)).for_each(drop);
    let only = |number| {
        let one = Use { shard: 1, start: 100_000_000, end: 101_000_000 };
        (number == 0).then(|| Epoch { uses: vec![one], bytes: 101_000_000 })
    };
    foresight.join(1, Box::new(Epochs::new([1], only)), 1e6, 0);
    foresight
}

#[test]
fn fetch_starts_early_by_slack_and_fetches_in_flight() {
    let mut foresight = in_a_while();
    assert_eq!(foresight.wanted(), Some((100_000_000, 1)));
    // One second for itself, and four of slack.
    assert_eq!(foresight.due(), Some(95_000_000));
    foresight.began(0);
    assert_eq!(foresight.due(), Some(94_000_000));
    foresight.began(1);
    assert_eq!((foresight.due(), foresight.wanted()), (None, None));
}

#[test]
fn rejected_shard_is_not_wanted_until_a_fetch_begins() {
    let mut foresight = in_a_while();
    foresight.refuse(1, true);
    assert_eq!((foresight.wanted(), foresight.due()), (None, None));
    foresight.refuse(1, false);
    assert_eq!(foresight.wanted(), Some((100_000_000, 1)));
    foresight.refuse(1, true);
    foresight.began(1);
    foresight.failed(1);
    assert_eq!(foresight.wanted(), Some((100_000_000, 1)));
}

#[test]
fn forgotten_shard_no_longer_affects_the_typical_size() {
    let mut foresight = in_a_while();
    let large = foresight.add(1_000_000_000);
    assert_eq!(foresight.due(), Some(NOW), "four of the usual ones take that long");
    foresight.forget(large);
    assert_eq!(foresight.due(), Some(95_000_000));
    assert_eq!(foresight.add(1_000_000), large, "its number is taken");
    assert_eq!(foresight.due(), Some(95_000_000));
}

#[test]
fn link_rate_is_learnt_from_fetches() {
    let mut foresight = in_a_while();
    for _ in 0..1000 {
        foresight.began(0);
        foresight.arrived(0, 2_000_000, 0);
        foresight.left(0, 0);
    }
    // The state of shard 1 is recomputed in its turn.
    (0..4).for_each(|_| foresight.advance(1, 0, 0, 0));
    let due = foresight.due().unwrap();
    assert!((89_000_000..=90_010_000).contains(&due), "{due}");
}

#[derive(Debug, Clone)]
enum Step {
    Join(u64, Vec<Shard>),
    Leave(u64),
    Advance(u64, u64),
    Come(Shard, PartitionNumber),
    Go(Shard, PartitionNumber),
    Apart(Shard, bool),
    Room(BTreeSet<PartitionNumber>, u64, BTreeSet<Shard>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let shard = 0..12_u32;
    let uses = prop::collection::vec(shard.clone(), 0..30);
    let places = prop::collection::btree_set(0..3_u16, 1..3);
    let step = prop_oneof![
        1 => (0..3_u64, uses).prop_map(|(id, uses)| Step::Join(id, uses)),
        1 => (0..3_u64).prop_map(Step::Leave),
        6 => (0..3_u64, 1..4_u64).prop_map(|(id, by)| Step::Advance(id, by)),
        4 => (shard.clone(), 0..3_u16).prop_map(|(shard, place)| Step::Come(shard, place)),
        2 => (shard.clone(), 0..3_u16).prop_map(|(shard, place)| Step::Go(shard, place)),
        1 => (shard.clone(), any::<bool>()).prop_map(|(shard, is_apart)| Step::Apart(shard, is_apart)),
        2 => (places, 1..9_u64, prop::collection::btree_set(shard, 0..5)).prop_map(|(places, bytes, leased)| Step::Room(places, bytes, leased)),
    ];
    prop::collection::vec(step, 0..120)
}

proptest! {
    /// Any sequence: a victim is evictable, on a tier that needs room, and needed later than the
    /// fetched shard and all that stay. The victims make enough room.
    #[test]
    fn victims_are_evictable_and_needed_last(steps in steps()) {
        let mut foresight = Foresight::new(2.0);
        let bytes = |shard: Shard| 1 + u64::from(shard) % 3;
        for shard in 0..12 {
            foresight.add(bytes(shard));
        }
        let (mut now, mut jobs, mut lies, mut apart) = (0, HashMap::new(), BTreeSet::new(), BTreeSet::new());
        for step in steps {
            now += 1_000_000;
            match step {
                Step::Join(id, uses) => {
                    foresight.leave(id);
                    jobs.insert(id, (uses.clone(), 0));
                    foresight.join(id, Box::new(Listed(uses)), 1.0, now);
                }
                Step::Leave(id) => {
                    jobs.remove(&id);
                    foresight.leave(id);
                }
                Step::Advance(id, by) => {
                    if let Some((_, read)) = jobs.get_mut(&id) {
                        *read += by;
                        foresight.advance(id, *read, now, 0);
                    }
                }
                // From the origin, or from another place: that takes the link no time.
                Step::Come(shard, place) => if lies.insert((shard, place)) {
                    if lies.iter().any(|(other, at)| *other == shard && *at != place) {
                        foresight.found(shard, place);
                        continue;
                    }
                    foresight.began(shard);
                    foresight.arrived(shard, 500_000, place);
                },
                Step::Go(shard, place) => if lies.remove(&(shard, place)) {
                    foresight.left(shard, place);
                },
                Step::Apart(shard, is_apart) => {
                    if is_apart { apart.insert(shard) } else { apart.remove(&shard) };
                    foresight.set_role(shard, if is_apart { Role::Apart } else { Role::Kept });
                }
                Step::Room(places, needs, leased) => {
                    let places: Vec<PartitionNumber> = places.into_iter().collect();
                    let than = foresight.wanted().map_or(NOW, |(needed, _)| needed);
                    let is_there = |shard: &Shard| !apart.contains(shard) && places.iter().any(|place| lies.contains(&(*shard, *place)));
                    let here: Vec<Shard> = (0..12).filter(is_there).collect();
                    let may_go = |shard: &Shard| !leased.contains(shard) && foresight.needed(*shard) > than;
                    let room: u64 = here.iter().filter(|shard| may_go(shard)).map(|shard| bytes(*shard)).sum();
                    let went = foresight.victims(&places, Some(than), needs, &mut |shard| !leased.contains(&shard));
                    prop_assert_eq!(went.is_some(), room >= needs);
                    let went = went.unwrap_or_default();
                    prop_assert!(went.iter().all(may_go));
                    let first = went.iter().map(|gone| foresight.needed(*gone)).min().unwrap_or(NEVER);
                    prop_assert!(here.iter().filter(|stays| may_go(stays) && !went.contains(stays)).all(|stays| foresight.needed(*stays) <= first));
                    let sum = |went: &[Shard]| went.iter().map(|gone| bytes(*gone)).sum::<u64>();
                    prop_assert!(went.split_last().is_none_or(|(_, others)| sum(others) < needs));
                }
            }
            // A job's open shards are needed now; a shard without a future read never.
            for shard in 0..12 {
                let open = jobs.values().any(|(uses, read)| uses.get(*read as usize) == Some(&shard));
                prop_assert_eq!(foresight.needed(shard) == NOW, open);
                let later = jobs.values().any(|(uses, read)| uses.iter().skip(*read as usize).any(|other| *other == shard));
                prop_assert_eq!(foresight.needed(shard) == NEVER, !later);
            }
            let is_missing = |shard: &Shard| !apart.contains(shard) && lies.iter().all(|(other, _)| other != shard);
            let wanted = (0..12).filter(is_missing).map(|shard| foresight.needed(shard)).min();
            prop_assert_eq!(foresight.wanted().map(|(needed, _)| needed), wanted.filter(|needed| *needed < NEVER));
        }
    }
}

/// A copy of a shard that another node keeps stays if it is needed again before it would have to
/// go, goes before all shards that are kept, and is never fetched ahead.
#[test]
fn guests_stay_for_a_later_use_and_go_first() {
    let mut foresight = Foresight::new(1.0);
    for _ in 0..5 {
        foresight.add(1);
    }
    foresight.join(1, Box::new(Listed(vec![0, 1, 2, 3, 1, 0, 4, 3])), 1.0, 0);
    for guest in [0, 1, 2] {
        foresight.set_role(guest, Role::Guest);
        assert_eq!(foresight.presence(guest), Presence::Apart);
    }
    assert_eq!(foresight.missing_bytes(), 2);
    assert_eq!(foresight.wanted().map(|(_, shard)| shard), Some(3), "guests are not fetched");
    // Shard 0 is being read: it is needed again after five bytes, shard 1 after four.
    let second = 1_000_000;
    assert_eq!(foresight.guest_due(0, 1), Some(5 * second));
    assert_eq!(foresight.guest_due(0, 0), None, "there is no room");
    assert_eq!(foresight.guest_due(1, 1), Some(4 * second));
    assert_eq!(foresight.guest_due(2, 5), None, "it is read once");
    foresight.found(0, 7);
    foresight.found(3, 7);
    assert_eq!(foresight.guest_bytes(), 1);
    // Shard 0 is needed now, and no more before shard 1 is read again.
    assert_eq!(foresight.guest_due(1, 1), None);
    assert_eq!(foresight.guest_due(1, 2), Some(4 * second));
    foresight.advance(1, 1, second, 0);
    assert_eq!(foresight.needed(0), 5 * second);
    assert_eq!(foresight.guest_due(1, 1), Some(4 * second), "shard 0 is needed later");
    assert_eq!(foresight.last_guest(&[7], None, &mut |_| true), Some(0));
    assert_eq!(foresight.last_guest(&[7], Some(5 * second), &mut |_| true), None);
    assert_eq!(foresight.last_guest(&[6], None, &mut |_| true), None);
    assert_eq!(foresight.victims(&[7], None, 1, &mut |_| true), Some(vec![3]));
    // Its owner left: this node keeps it now.
    foresight.set_role(0, Role::Kept);
    assert_eq!(foresight.last_guest(&[7], None, &mut |_| true), None);
    assert_eq!(foresight.victims(&[7], None, 1, &mut |_| true), Some(vec![0]));
}

/// The reads of other nodes count for the shards that this node keeps for them, and for no others.
#[test]
fn reads_of_other_nodes_count_for_kept_shards() {
    let mut foresight = Foresight::new(1.0);
    for _ in 0..3 {
        foresight.add(1);
    }
    foresight.set_role(2, Role::Guest);
    foresight.join(1, Box::new(Listed(vec![2, 0, 0, 2])), 1.0, 0);
    assert_eq!((foresight.needed(0), foresight.needed(1)), (1_000_000, NEVER));
    foresight.join_elsewhere(2, Box::new(Listed(vec![1, 2, 2, 0])), 1.0, 0);
    assert_eq!((foresight.needed(0), foresight.needed(1)), (1_000_000, NOW));
    foresight.advance(1, 2, 2_000_000, 0);
    foresight.advance(2, 2, 2_000_000, 0);
    assert_eq!((foresight.needed(1), foresight.needed(2)), (NEVER, 3_000_000));
    assert_eq!(foresight.guest_due(2, 9), None, "another node's use is no reason for a copy");
    foresight.set_role(2, Role::Kept);
    assert_eq!(foresight.needed(2), NOW);
    foresight.leave(2);
    assert_eq!((foresight.needed(1), foresight.needed(2)), (NEVER, 3_000_000));
}
