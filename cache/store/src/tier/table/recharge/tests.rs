//! Change of rules, compared with a table that had the new rules from the start.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_policy::Evict;
use forebay_shard::Origin;
use proptest::prelude::*;

use super::*;
use crate::budget::{Budget, Space};
use crate::dataset::Dataset;
use crate::directory::{ShardName, object_key};
use crate::forecast::Forecast;
use crate::shares::{NOBODY, Shares};
use crate::tenant::Tenant;
use crate::tier::request::{RoomRequest, Shortage};

/// Room for every possible shard.
const CAPACITY: u64 = 1 << 20;

/// Folders of shards, named by patterns.
const FOLDERS: [&str; 4] = ["a", "b", "c", "d"];
const TENANTS: [&str; 3] = ["red", "green", "blue"];

#[derive(Debug, Clone)]
struct Rules {
    datasets: Vec<Dataset>,
    tenants: Vec<Tenant>,
}

impl Rules {
    fn tiers() -> [(&'static str, u64); 1] {
        [("nvme", CAPACITY)]
    }

    fn shares(&self) -> Shares {
        Shares::new(self.datasets.clone(), self.tenants.clone(), &Self::tiers()).unwrap()
    }
}

fn dataset() -> impl Strategy<Value = Dataset> {
    let matches = prop_oneof![
        prop::sample::select(FOLDERS.to_vec()).prop_map(|folder| format!("/{folder}/**")),
        Just("/[ab]/**".to_owned()),
        Just("/*/[0-4].tar".to_owned()),
        Just("**".to_owned()),
    ];
    let evict = prop::sample::select(Evict::ALL.to_vec());
    let minimum = prop_oneof![Just(0_u64), 0_u64..200];
    let limits = (minimum, prop::option::of(200_u64..2_000), -1..2);
    (matches, evict, limits, any::<[bool; 3]>()).prop_map(
        |(matches, evict, (min_bytes, max_bytes, priority), [pin, scan_bypass, ages])| Dataset {
            min_bytes,
            max_bytes,
            priority,
            pin,
            scan_bypass,
            ttl: (ages && !pin).then_some(Duration::from_secs(50)),
            ..Dataset::new("", &matches, evict).unwrap()
        },
    )
}

fn rules() -> impl Strategy<Value = Rules> {
    // Names outlive their rules, and are reused.
    let names = Just(["one", "two", "three", "four"].map(str::to_owned).to_vec()).prop_shuffle();
    let datasets = prop::collection::vec(dataset(), 0..=4);
    let tenants = prop::sample::subsequence(TENANTS.to_vec(), 0..=3);
    let minimum = prop_oneof![Just(0_u64), 0_u64..200];
    let quotas = prop::collection::vec((minimum, prop::option::of(200_u64..2_000)), 3);
    (names, datasets, tenants, quotas).prop_map(|(names, mut datasets, tenants, quotas)| {
        datasets.iter_mut().zip(names).for_each(|(set, name)| set.name = name);
        let tenants = tenants.into_iter().zip(quotas).map(|(name, (min_bytes, max_bytes))| {
            Tenant { name: name.to_owned(), min_bytes, max_bytes }
        });
        Rules { datasets, tenants: tenants.collect() }
    })
}

#[derive(Debug, Clone)]
struct Resting {
    folder: &'static str,
    number: u32,
    tenant: Option<&'static str>,
    bytes: u64,
    uses: u32,
    state: ShardState,
}

fn resting() -> impl Strategy<Value = Resting> {
    let states = vec![ShardState::Whole, ShardState::Whole, ShardState::Partial];
    let tenant = prop::option::of(prop::sample::select(TENANTS.to_vec()));
    let folder = prop::sample::select(FOLDERS.to_vec());
    let uses = (0_u32..4, prop::sample::select(states));
    (folder, 0_u32..10, tenant, 1_u64..100, uses).prop_map(
        |(folder, number, tenant, bytes, (uses, state))| Resting {
            folder,
            number,
            tenant,
            bytes,
            uses,
            state,
        },
    )
}

struct Bench {
    table: ShardTable,
    tier: Arc<Budget>,
    shares: Arc<Shares>,
    tenants: Vec<Tenant>,
}

impl Bench {
    fn new(rules: &Rules) -> Self {
        let shares = Arc::new(rules.shares());
        shares.enforce(&shares);
        let (table, tenants) =
            (ShardTable::new(shares.clone(), Arc::new(Forecast::new())), rules.tenants.clone());
        Self { table, tier: Budget::new(CAPACITY), shares, tenants }
    }

    fn insert(&mut self, shard: &Resting) -> ShardName {
        let url = format!("/{}/{}.tar", shard.folder, shard.number);
        let of = Provenance { url: url.as_str().into(), tenant: shard.tenant.map(Arc::from) };
        let version = String::new();
        let origin = Origin { endpoint: String::new(), url, version };
        let (name, object) = (ShardName::new(&origin), object_key(&origin));
        let budgets = self.shares.budgets(self.shares.charge_of(&of));
        let space = Space::enter(&self.tier, budgets, shard.bytes);
        let found = (name.clone(), object);
        self.table.add_found(found, of, space, (SystemTime::UNIX_EPOCH, shard.state));
        for _ in 0..shard.uses {
            self.table.record_use(&name);
        }
        name
    }

    fn reconfigure(&mut self, rules: &Rules) {
        let Rules { datasets, tenants } = rules.clone();
        let shares = self.shares.ruled(datasets, tenants, &Rules::tiers()).unwrap();
        let judged = NewCharges::by(Arc::new(shares), self.table.provenances().into_iter());
        judged.shares.enforce(&self.shares);
        self.table.recharge(&judged);
        (self.shares, self.tenants) = (judged.shares, rules.tenants.clone());
    }

    /// Names of the data set and tenant of every shard, and true if it was not admitted.
    fn standing(&self) -> HashMap<ShardName, (String, String, bool)> {
        let entries = self.table.entries.iter().flatten();
        let told = entries.map(|entry| {
            let charge = self.table.partitions[entry.partition].charge;
            let [dataset, tenant] = self.shares.of(charge).map(|share| share.name.clone());
            (entry.name.clone(), (dataset, tenant, entry.at.unadmitted))
        });
        told.collect()
    }

    /// The holdings of all shares equal the sums over the shards.
    fn check_sums(&self) {
        let mut held = HashMap::<(bool, usize), u64>::new();
        for entry in self.table.entries.iter().flatten() {
            let charge = self.shares.charge_of(&entry.of);
            assert_eq!(charge, self.table.partitions[entry.partition].charge);
            *held.entry((false, charge.dataset)).or_default() += entry.space.bytes();
            *held.entry((true, charge.tenant)).or_default() += entry.space.bytes();
        }
        let of = |key| held.get(&key).copied().unwrap_or(0);
        for (at, kept) in self.shares.datasets() {
            let told = (kept.share.held(), kept.share.budget.used());
            assert_eq!(told, (of((false, at)), of((false, at))), "{}", kept.rule.name);
        }
        for (at, share) in self.shares.tenants() {
            let told = (share.held(), share.budget.used());
            assert_eq!(told, (of((true, at)), of((true, at))), "{}", share.name);
        }
        let all: u64 = self.shares.datasets().map(|(_, kept)| kept.share.held()).sum();
        assert_eq!(all, self.tier.used());
    }

    /// Evicts while a share is above its maximum: only its own shards, no pinned ones, and none
    /// within another's minimum.
    fn trim(&mut self) {
        while let Some((short, victim)) = self.above() {
            let entry = self.table.get(&victim).unwrap();
            let (charge, unadmitted) =
                (self.table.partitions[entry.partition].charge, entry.at.unadmitted);
            let [dataset, tenant] = self.shares.of(charge);
            let other = if short == Shortage::Dataset { tenant } else { dataset };
            let before = other.held();
            drop(self.table.remove(&victim, true).unwrap());
            assert!(!self.shares.rule(charge).pin || unadmitted, "what is pinned stays");
            let least = before.min(self.minimum(charge, short));
            let [dataset, tenant] = self.shares.of(charge);
            let other = if short == Shortage::Dataset { tenant } else { dataset };
            assert!(other.held() >= least, "{} keeps its minimum", other.name);
        }
    }

    /// Minimum of the share that is not above its maximum.
    fn minimum(&self, charge: Charge, short: Shortage) -> u64 {
        match short {
            Shortage::Dataset => {
                let name = &self.shares.tenant(charge).name;
                let named = self.tenants.iter().find(|tenant| tenant.name == *name);
                named.map_or(0, |tenant| tenant.min_bytes)
            }
            _ => self.shares.rule(charge).min_bytes,
        }
    }

    fn above(&mut self) -> Option<(Shortage, ShardName)> {
        let shares = self.shares.clone();
        crate::tier::above_quota(&shares).into_iter().find_map(|(charge, short)| {
            let need = RoomRequest { short, ..RoomRequest::ahead(Some(charge)) };
            let (name, _) = self.table.victim(need)?;
            Some((short, name))
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// After any changes of rules, each shard is charged as after a start with the new rules.
    #[test]
    fn charges_equal_those_after_a_start(
        before in rules(),
        between in rules(),
        after in rules(),
        shards in prop::collection::vec(resting(), 0..60),
    ) {
        let (mut changed, mut fresh) = (Bench::new(&before), Bench::new(&after));
        let (early, late) = shards.split_at(shards.len() / 2);
        for shard in early {
            changed.insert(shard);
        }
        changed.reconfigure(&between);
        changed.check_sums();
        for shard in late {
            changed.insert(shard);
        }
        changed.reconfigure(&after);
        changed.check_sums();
        for shard in &shards {
            fresh.insert(shard);
        }
        let charged = |bench: &Bench| {
            let told = bench.standing().into_iter();
            told.map(|(name, (dataset, tenant, _))| (name, (dataset, tenant))).collect::<HashMap<_, _>>()
        };
        prop_assert_eq!(charged(&changed), charged(&fresh));
        // A share above its maximum takes nothing more.
        for (_, kept) in changed.shares.datasets() {
            let over = kept.rule.max_bytes.is_some_and(|max| kept.share.held() > max);
            prop_assert!(!over || !kept.share.budget.has(0));
        }
        changed.trim();
        changed.check_sums();
        // Minimums of others, and pins, may be in the way.
        let has_minima = after.tenants.iter().any(|tenant| tenant.min_bytes > 0)
            || after.datasets.iter().any(|set| set.min_bytes > 0);
        let has_pins = after.datasets.iter().any(|set| set.pin);
        for (_, kept) in changed.shares.datasets() {
            let over = kept.rule.max_bytes.is_some_and(|max| kept.share.held() > max);
            prop_assert!(!over || kept.rule.pin || has_minima, "{}", kept.rule.name);
        }
        for (_, share) in changed.shares.tenants() {
            let over = share.max_bytes().is_some_and(|max| share.held() > max);
            prop_assert!(!over || has_pins || has_minima, "{}", share.name);
        }
        // The table still works: every shard can be removed exactly once.
        let names = changed.table.names_by_use();
        prop_assert_eq!(names.len(), changed.table.len());
        for name in names {
            drop(changed.table.remove(&name, false).unwrap());
        }
        prop_assert_eq!(changed.tier.used(), 0);
        changed.check_sums();
    }

    /// A new policy evicts as if it had seen every use.
    #[test]
    fn new_policy_knows_past_uses(
        evict in prop::sample::select(vec![Evict::Lru, Evict::Lfu]),
        shards in prop::collection::vec(resting(), 1..30),
    ) {
        let by = |evict| {
            let all = Dataset::new("all", "**", evict).unwrap();
            Rules { datasets: vec![all], tenants: Vec::new() }
        };
        let (mut changed, mut always) = (Bench::new(&by(Evict::Static)), Bench::new(&by(evict)));
        for shard in &shards {
            let shard = Resting { state: ShardState::Whole, tenant: None, ..shard.clone() };
            changed.insert(&shard);
            always.insert(&shard);
        }
        changed.reconfigure(&by(evict));
        let order = |bench: &mut Bench| {
            let need = RoomRequest::ahead(Some(NOBODY));
            let next = || bench.table.victim(need).map(|(name, _)| {
                drop(bench.table.remove(&name, false));
                name
            });
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        let (by_change, by_use) = (order(&mut changed), order(&mut always));
        prop_assert_eq!(by_change.len(), by_use.len());
        prop_assert_eq!(by_change, by_use);
    }
}

/// An unchanged partition keeps all its policy knows.
#[test]
fn unchanged_partition_keeps_its_policy() {
    let sieve = Dataset::new("a", "/a/**", Evict::Sieve).unwrap();
    let other = |max| Dataset { max_bytes: max, ..Dataset::new("b", "/b/**", Evict::Lru).unwrap() };
    let rules = |max| Rules { datasets: vec![sieve.clone(), other(max)], tenants: Vec::new() };
    let mut bench = Bench::new(&rules(None));
    let shard = |folder, number, uses| Resting {
        folder,
        number,
        tenant: None,
        bytes: 10,
        uses,
        state: ShardState::Whole,
    };
    let first = bench.insert(&shard("a", 0, 1));
    let second = bench.insert(&shard("a", 1, 0));
    let third = bench.insert(&shard("b", 2, 0));
    let need = RoomRequest::ahead(Some(NOBODY));
    // The hand passed the first shard and cleared its bit.
    assert_eq!(bench.table.victim(need).map(|(name, _)| name), Some(second.clone()));
    bench.reconfigure(&rules(Some(5)));
    assert_eq!(bench.above().map(|(_, name)| name), Some(third));
    assert_eq!(bench.table.victim(need).map(|(name, _)| name), Some(second.clone()));
    drop(bench.table.remove(&second, true));
    assert_eq!(bench.table.victim(need).map(|(name, _)| name), Some(first));
}
