//! Order of evictions, and the shards that no request may evict.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use forebay_policy::Evict;
use proptest::prelude::*;

use super::*;
use crate::dataset::Dataset;
use crate::shares::Charge;
use crate::tier::table::fixture::Fixture;

const HOUR: Duration = Duration::from_secs(3600);

impl Fixture {
    fn charge(&self, url: &str, tenant: Option<&str>) -> Charge {
        self.shares.charge(url, tenant)
    }

    fn victim(&mut self, need: RoomRequest) -> Option<ShardName> {
        self.table.victim(need).map(|(name, _)| name)
    }

    /// Evicts as long as the request finds victims. Returns them in order.
    fn drain(&mut self, need: RoomRequest) -> Vec<ShardName> {
        std::iter::from_fn(|| {
            let (name, named) = self.table.victim(need)?;
            drop(self.table.remove(&name, named).expect("a victim is in the table"));
            Some(name)
        })
        .collect()
    }
}

fn dataset(name: &str, evict: Evict) -> Dataset {
    Dataset::new(name, &format!("/{name}/**"), evict).unwrap()
}

fn ahead() -> RoomRequest {
    RoomRequest::ahead(None)
}

fn needed() -> RoomRequest {
    RoomRequest { urgency: Urgency::Needed, ..ahead() }
}

#[test]
fn partial_shards_are_evicted_before_whole_ones() {
    let mut of = Fixture::new(vec![dataset("a", Evict::Lru)]);
    let whole = of.add("/a/0.tar", 10);
    let since = SystemTime::now();
    let partial = of.add_found("/a/1.tar", None, 10, (since, ShardState::Partial));
    // The policy did not choose it, and must not learn from its eviction.
    assert_eq!(of.table.victim(ahead()), Some((partial.clone(), false)));
    assert_eq!(of.drain(ahead()), [partial, whole]);
}

#[test]
fn pinned_claimed_and_opening_shards_stay() {
    let mut of = Fixture::new(vec![dataset("a", Evict::Lru)]);
    let [pinned, opening, claimed, free] =
        ["0", "1", "2", "3"].map(|name| of.add(&format!("/a/{name}.tar"), 10));
    of.table.pin(&pinned);
    of.table.begin_opening(&opening);
    of.table.claim(&claimed);
    assert_eq!(of.drain(ahead()), [free]);
    // A claim yields to a waiting trainer, a pin and a reader do not.
    assert_eq!(of.drain(needed()), [claimed]);
    of.table.unpin(&pinned);
    assert_eq!(of.drain(ahead()), [pinned]);
    of.table.end_opening(&opening);
    assert_eq!(of.drain(ahead()), [opening]);
    assert_eq!((of.table.len(), of.tier.used()), (0, 0));
}

#[test]
fn claims_are_counted() {
    let mut of = Fixture::new(vec![dataset("a", Evict::Lru)]);
    let name = of.add("/a/0.tar", 10);
    (0..2).for_each(|_| of.table.claim(&name));
    of.table.unclaim(&name);
    assert_eq!(of.victim(ahead()), None);
    of.table.unclaim(&name);
    assert_eq!(of.victim(ahead()), Some(name));
}

#[test]
fn lower_priority_is_evicted_first() {
    let rule = |name, priority| Dataset { priority, ..dataset(name, Evict::Lru) };
    let mut of = Fixture::new(vec![rule("high", 1), rule("low", -1)]);
    let high = of.add("/high/0.tar", 10);
    let low = of.add("/low/0.tar", 10);
    assert_eq!(of.victim(ahead()), Some(low.clone()));
    let by_low = |request: RoomRequest, of: &Fixture| RoomRequest {
        charge: Some(of.charge("/low/1.tar", None)),
        ..request
    };
    let (calm, urgent) = (by_low(ahead(), &of), by_low(needed(), &of));
    assert_eq!(of.drain(calm), [low]);
    // A shard of a higher priority is evicted only as the last resort.
    assert_eq!(of.victim(calm), None);
    assert_eq!(of.victim(urgent), Some(high));
}

#[test]
fn others_cannot_evict_the_minimum() {
    let minimum = Dataset { min_bytes: 100, ..dataset("a", Evict::Lru) };
    let mut of = Fixture::new(vec![minimum, dataset("b", Evict::Lru)]);
    let names: Vec<_> = (0..4).map(|n| of.add(&format!("/a/{n}.tar"), 40)).collect();
    let by_b = RoomRequest { charge: Some(of.charge("/b/0.tar", None)), ..needed() };
    // 160 bytes less 40 leave the minimum whole, less 80 do not.
    assert_eq!(of.drain(by_b), names[..1]);
    let by_a = RoomRequest { charge: Some(of.charge("/a/9.tar", None)), ..ahead() };
    assert_eq!(of.drain(by_a), names[1..]);
}

#[test]
fn short_share_evicts_only_its_own_shards() {
    let mut of = Fixture::new(vec![dataset("a", Evict::Lru), dataset("b", Evict::Lru)]);
    let whole = (SystemTime::UNIX_EPOCH, ShardState::Whole);
    let [_, a_blue, b_red, b_blue] =
        [("/a/0.tar", "red"), ("/a/1.tar", "blue"), ("/b/0.tar", "red"), ("/b/1.tar", "blue")]
            .map(|(url, tenant)| of.add_found(url, Some(tenant), 10, whole));
    let request = |short| RoomRequest {
        charge: Some(of.shares.charge("/b/9.tar", Some("blue"))),
        short,
        ..ahead()
    };
    let (dataset, tenant, both) =
        (request(Shortage::Dataset), request(Shortage::Tenant), request(Shortage::Both));
    assert_eq!(of.victim(dataset), Some(b_red.clone()));
    assert_eq!(of.victim(tenant), Some(a_blue.clone()));
    assert_eq!(of.victim(both), Some(b_blue.clone()));
    drop(of.table.remove(&b_blue, true));
    // Without a shard of both, one of the tenant is evicted first.
    assert_eq!(of.victim(both), Some(a_blue));
    assert_eq!(of.drain(dataset), [b_red]);
}

#[test]
fn young_shards_are_kept() {
    let rule = Dataset { dont_evict_time: Some(HOUR), ..dataset("a", Evict::Lru) };
    let mut of = Fixture::new(vec![rule]);
    let now = SystemTime::now();
    let young = of.add_found("/a/0.tar", None, 10, (now, ShardState::Whole));
    let old = of.add_found("/a/1.tar", None, 10, (now - 2 * HOUR, ShardState::Whole));
    // A clock that was set back makes no shard old.
    let future = of.add_found("/a/2.tar", None, 10, (now + HOUR, ShardState::Whole));
    assert_eq!(of.drain(needed()), [old]);
    assert!(of.table.get(&young).is_some() && of.table.get(&future).is_some());
}

#[test]
fn stale_shards_are_evicted_first() {
    let rule = Dataset { ttl: Some(HOUR), ..dataset("a", Evict::Lru) };
    let mut of = Fixture::new(vec![rule]);
    let now = SystemTime::now();
    let fresh = of.add_found("/a/0.tar", None, 10, (now, ShardState::Whole));
    let stale = of.add_found("/a/1.tar", None, 10, (now - 2 * HOUR, ShardState::Whole));
    for _ in 0..3 {
        of.table.record_use(&stale);
    }
    assert_eq!(of.table.victim(ahead()), Some((stale.clone(), false)));
    assert_eq!(of.drain(ahead()), [stale, fresh]);
}

#[test]
fn unadmitted_newcomer_evicts_no_admitted_shard() {
    let mut of = Fixture::new(vec![dataset("a", Evict::Lru)]);
    let admitted = of.add("/a/0.tar", 10);
    let since = SystemTime::UNIX_EPOCH;
    let partial = of.add_found("/a/1.tar", None, 10, (since, ShardState::Partial));
    let newcomer = |request| RoomRequest { unadmitted: true, ..request };
    assert_eq!(of.drain(newcomer(ahead())), [partial]);
    assert_eq!(of.victim(newcomer(needed())), Some(admitted));
}

#[test]
fn pinned_data_set_is_never_evicted() {
    let rule = Dataset { pin: true, ..dataset("a", Evict::Lru) };
    let mut of = Fixture::new(vec![rule]);
    of.add("/a/0.tar", 10);
    let since = SystemTime::now();
    let partial = of.add_found("/a/1.tar", None, 10, (since, ShardState::Partial));
    // Its unfinished fills are worth nothing to the data set.
    assert_eq!(of.drain(needed()), [partial]);
}

#[test]
fn room_may_come_free_from_shards_in_use() {
    let mut of = Fixture::new(vec![dataset("a", Evict::Lru)]);
    let name = of.add("/a/0.tar", 10);
    let may = |of: &Fixture| of.table.may_come_free(needed(), &of.tier);
    assert!(!may(&of), "an idle shard is evicted now, not later");
    of.table.begin_opening(&name);
    assert!(may(&of));
    of.table.pin(&name);
    assert!(!may(&of), "a pinned shard stays when its reader leaves");
    of.table.unpin(&name);
    // A removed shard holds its bytes as long as a reader has it.
    let space = of.table.remove(&name, true).unwrap().space;
    assert!(may(&of));
    drop(space);
    assert!(!may(&of));
}

#[derive(Debug, Clone)]
struct Held {
    number: u32,
    bytes: u64,
    pinned: bool,
    opening: bool,
    claimed: bool,
}

fn held() -> impl Strategy<Value = Held> {
    (0_u32..40, 1_u64..100, any::<[bool; 3]>()).prop_map(
        |(number, bytes, [pinned, opening, claimed])| Held {
            number,
            bytes,
            pinned,
            opening,
            claimed,
        },
    )
}

proptest! {
    /// Under every policy, a request evicts all shards but the protected ones.
    #[test]
    fn every_policy_evicts_all_unprotected_shards(
        evict in prop::sample::select(Evict::ALL.to_vec()),
        shards in prop::collection::vec(held(), 0..40),
        uses in prop::collection::vec(0_usize..40, 0..80),
    ) {
        let mut of = Fixture::new(vec![dataset("a", evict)]);
        let (mut stay, mut urgent) = (BTreeSet::new(), BTreeSet::new());
        let mut added = BTreeSet::new();
        for held in shards.iter().filter(|held| added.insert(held.number)) {
            let name = of.add(&format!("/a/{}.tar", held.number), held.bytes);
            if held.pinned {
                of.table.pin(&name);
            }
            if held.opening {
                of.table.begin_opening(&name);
            }
            if held.claimed {
                of.table.claim(&name);
            }
            if held.pinned || held.opening {
                urgent.insert(name.as_str().to_owned());
            }
            if held.pinned || held.opening || held.claimed {
                stay.insert(name.as_str().to_owned());
            }
        }
        let names = of.table.names_by_use();
        for at in uses.into_iter().filter(|at| *at < names.len()) {
            of.table.record_use(&names[at]);
        }
        let left = |of: &Fixture| -> BTreeSet<String> {
            of.table.names_by_use().iter().map(|name| name.as_str().to_owned()).collect()
        };
        let total: u64 = of.table.whole_shards().iter().map(|(_, _, bytes)| bytes).sum();
        prop_assert_eq!(of.tier.used(), total);
        of.drain(ahead());
        prop_assert_eq!(left(&of), stay);
        of.drain(needed());
        prop_assert_eq!(left(&of), urgent);
        let total: u64 = of.table.whole_shards().iter().map(|(_, _, bytes)| bytes).sum();
        prop_assert_eq!(of.tier.used(), total);
    }

    /// A data set with `lru` evicts in the order of last uses.
    #[test]
    fn lru_evicts_in_order_of_last_use(uses in prop::collection::vec(0_usize..12, 0..60)) {
        let mut of = Fixture::new(vec![dataset("a", Evict::Lru)]);
        let mut order: Vec<_> = (0..12).map(|n| of.add(&format!("/a/{n}.tar"), 1)).collect();
        let names = order.clone();
        for at in uses {
            of.table.record_use(&names[at]);
            order.retain(|name| *name != names[at]);
            order.push(names[at].clone());
        }
        prop_assert_eq!(of.table.names_by_use(), order.clone());
        prop_assert_eq!(of.drain(ahead()), order);
    }
}
