//! The policies against models of themselves, against each other's rules, and against the hit
//! ratios that a simulation of shuffled epochs gives.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

/// A cache of equal shards under a policy, as a tier uses it.
struct Cache {
    policy: Box<dyn Policy>,
    capacity: usize,
    slots: HashMap<u64, Slot>,
    names: HashMap<Slot, u64>,
    free: Vec<Slot>,
}

impl Cache {
    fn new(evict: Evict, capacity: usize) -> Self {
        let free = (0..=Slot::try_from(capacity).unwrap()).rev().collect();
        Self {
            policy: evict.policy(),
            capacity,
            slots: HashMap::new(),
            names: HashMap::new(),
            free,
        }
    }

    fn access_all(&mut self, identities: std::ops::Range<u64>) {
        for identity in identities {
            self.access(identity);
        }
    }

    /// Returns true on a hit; afterwards the shard is present or passes.
    fn access(&mut self, identity: u64) -> bool {
        if let Some(slot) = self.slots.get(&identity) {
            self.policy.hit(*slot);
            return true;
        }
        let room = self.slots.len() < self.capacity;
        if !self.policy.admits(room) {
            return false;
        }
        if !room {
            let victim = self.policy.victim(&mut |_| true).expect("somebody may go");
            self.policy.remove(victim, true);
            let name = self.names.remove(&victim).expect("a victim is a resident");
            self.slots.remove(&name);
            self.free.push(victim);
        }
        let slot = self.free.pop().expect("as many slots as shards");
        self.policy.insert(Newcomer { slot, identity, bytes: 1 });
        self.slots.insert(identity, slot);
        self.names.insert(slot, identity);
        false
    }
}

/// xorshift64*: the tests need numbers, not good ones.
struct Random(u64);

impl Random {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        usize::try_from(high).unwrap() % below
    }

    fn shuffle(&mut self, items: &mut [u64]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.roll(last + 1));
        }
    }
}

/// Percent of hits of one job that reshuffles 1,000 shards each epoch, after a first epoch.
fn reshuffled(evict: Evict, share: f64) -> f64 {
    let mut random = Random(42);
    let mut order: Vec<u64> = (0..1000).collect();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
    let mut cache = Cache::new(evict, (share * 1000.0) as usize);
    // SIEVE takes some dozens to settle.
    let (mut hits, epochs) = (0, 60);
    for epoch in 0..=epochs {
        random.shuffle(&mut order);
        let hit = order.iter().filter(|shard| cache.access(**shard)).count();
        hits += if epoch == 0 { 0 } else { hit };
    }
    f64::from(u32::try_from(hits).unwrap()) / f64::from(epochs * 10)
}

/// Results of an independent simulation for one reshuffling job at a quarter, a half and nine
/// tenths of the data set.
#[test]
fn hit_ratios_match_an_independent_simulation() {
    for (evict, expected) in [
        (Evict::Lru, [3.5, 15.6, 67.0]),
        (Evict::Sieve, [19.0, 44.0, 89.0]),
        (Evict::Static, [25.0, 50.0, 90.0]),
        (Evict::None, [0.0, 0.0, 0.0]),
    ] {
        for (share, expected) in [0.25, 0.5, 0.9].into_iter().zip(expected) {
            let seen = reshuffled(evict, share);
            assert!((seen - expected).abs() < 3.0, "{} at {share}: {seen}", evict.name());
        }
    }
    // Details of these two differ between descriptions; they lie between LRU and the bound.
    for evict in [Evict::Lfu, Evict::S3fifo] {
        let seen = reshuffled(evict, 0.5);
        assert!((15.0..=50.0).contains(&seen), "{}: {seen}", evict.name());
    }
}

#[test]
fn scan_does_not_flush_used_shards() {
    for (evict, survivors) in
        [(Evict::Lru, 10), (Evict::Sieve, 40), (Evict::S3fifo, 40), (Evict::Lfu, 40)]
    {
        let mut cache = Cache::new(evict, 50);
        for _ in 0..5 {
            cache.access_all(0..40);
        }
        // Strangers, each seen once.
        cache.access_all(1000..1040);
        let left = (0..40).filter(|shard| cache.slots.contains_key(shard)).count();
        assert_eq!(left, survivors, "{}", evict.name());
    }
}

#[test]
fn s3fifo_keeps_a_shard_readmitted_from_its_ghosts() {
    let mut cache = Cache::new(Evict::S3fifo, 10);
    cache.access_all(0..11);
    assert!(!cache.slots.contains_key(&0), "the oldest newcomer went");
    cache.access(0);
    cache.access_all(100..109);
    assert!(cache.slots.contains_key(&0), "its ghost was remembered");
}

#[test]
fn lfu_evicts_shards_used_long_ago() {
    let mut cache = Cache::new(Evict::Lfu, 4);
    for _ in 0..20 {
        cache.access(0);
    }
    // Each newcomer is used three times; the count at which they go rises until it passes 20.
    for shard in 1..60 {
        for _ in 0..3 {
            cache.access(shard);
        }
    }
    assert!(!cache.slots.contains_key(&0), "twenty uses long ago do not last for ever");
}

#[test]
fn policy_names_parse_and_an_error_lists_them() {
    for evict in Evict::ALL {
        assert_eq!(evict.name().parse::<Evict>().unwrap(), evict);
    }
    let error = "lifo".parse::<Evict>().unwrap_err();
    assert!(error.to_string().contains("lifo") && error.to_string().contains("s3fifo"), "{error}");
}

#[derive(Debug, Clone)]
enum Step {
    Insert,
    Hit(usize),
    Remove(usize),
    Lease(usize),
    Evict,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Insert),
        4 => any::<usize>().prop_map(Step::Hit),
        1 => any::<usize>().prop_map(Step::Remove),
        1 => any::<usize>().prop_map(Step::Lease),
        3 => Just(Step::Evict),
    ];
    prop::collection::vec(step, 0..300)
}

proptest! {
    /// Any sequence: a victim is found whenever a shard is evictable. LRU agrees with a list of
    /// uses.
    #[test]
    fn victims_are_present_and_evictable(steps in steps(), which in 0..Evict::ALL.len()) {
        let evict = Evict::ALL[which];
        let mut policy = evict.policy();
        let mut by_use: Vec<Slot> = Vec::new();
        let mut leased: HashSet<Slot> = HashSet::new();
        let mut free: Vec<Slot> = (0..300).rev().collect();
        let mut identity = 0;
        for step in steps {
            let pick = |at: usize| by_use.get(at % by_use.len().max(1)).copied();
            match step {
                Step::Insert => {
                    let slot = free.pop().unwrap();
                    // Few names, so that ghosts come back.
                    identity = (identity * 7 + 3) % 101;
                    policy.insert(Newcomer { slot, identity, bytes: 1 + identity });
                    by_use.push(slot);
                }
                Step::Hit(at) => if let Some(slot) = pick(at) {
                    policy.hit(slot);
                    by_use.retain(|other| *other != slot);
                    by_use.push(slot);
                },
                Step::Remove(at) => if let Some(slot) = pick(at) {
                    policy.remove(slot, false);
                    by_use.retain(|other| *other != slot);
                    leased.remove(&slot);
                    free.push(slot);
                },
                Step::Lease(at) => if let Some(slot) = pick(at)
                    && !leased.insert(slot)
                {
                    leased.remove(&slot);
                },
                Step::Evict => {
                    let victim = policy.victim(&mut |slot| !leased.contains(&slot));
                    let first = by_use.iter().find(|slot| !leased.contains(*slot)).copied();
                    prop_assert_eq!(victim.is_some(), first.is_some());
                    if evict == Evict::Lru {
                        prop_assert_eq!(victim, first);
                    }
                    if let Some(victim) = victim {
                        prop_assert!(by_use.contains(&victim) && !leased.contains(&victim));
                        policy.remove(victim, true);
                        by_use.retain(|other| *other != victim);
                        free.push(victim);
                    }
                }
            }
        }
    }
}
