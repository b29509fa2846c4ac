//! Admission, minimums and order of one partition.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use super::*;
use crate::tenant::Tenant;

const HOUR: Duration = Duration::from_secs(3600);

fn rule() -> Dataset {
    Dataset::new("a", "/a/**", Evict::Lru).unwrap()
}

fn partition(rule: Dataset) -> Partition {
    partition_of(rule, 0)
}

/// Partition of a data set and of a tenant with a minimum.
fn partition_of(rule: Dataset, tenant_min: u64) -> Partition {
    let red = Tenant { name: "red".to_owned(), min_bytes: tenant_min, max_bytes: None };
    let shares = Shares::new(vec![rule], vec![red], &[("nvme", 10_000)]).unwrap();
    let charge = shares.charge("/a/0.tar", Some("red"));
    Partition::new(&shares, charge, None)
}

fn entry(slot: Slot, bytes: u64) -> PartitionEntry {
    let since = SystemTime::now();
    PartitionEntry { slot, bytes, since, unadmitted: false, foreseen: false }
}

fn drain(partition: &mut Partition) -> Vec<Slot> {
    let mut gone = Vec::new();
    while let Some(slot) = partition.victim(&mut |slot| !gone.contains(&slot)) {
        gone.push(slot);
    }
    gone
}

#[test]
fn scanned_shard_is_admitted_at_its_second_use() {
    let mut of = partition(Dataset { scan_bypass: true, ..rule() });
    assert!(of.denies_admission(7, 10, true), "it was never seen");
    let mut at = PartitionEntry { unadmitted: true, ..entry(0, 10) };
    of.insert(at, 7);
    assert_eq!(of.victim(&mut |_| true), None, "the policy does not know it");
    assert_eq!(of.spare_shard(SystemTime::now(), &mut |_| true), Some(0));
    of.hit(&mut at, 7);
    assert!(!at.unadmitted);
    assert_eq!(of.spare_shard(SystemTime::now(), &mut |_| true), None);
    assert_eq!(of.victim(&mut |_| true), Some(0));
    of.remove(at, true);
    // It was seen before: a second fetch is no scan.
    assert!(!of.denies_admission(7, 10, true));
    assert!(of.denies_admission(8, 10, true));
}

#[test]
fn minimum_and_pin_admit_a_scanned_shard() {
    let scan = || Dataset { scan_bypass: true, ..rule() };
    let mut of = partition(Dataset { min_bytes: 15, ..scan() });
    assert!(!of.denies_admission(1, 10, true));
    of.insert(entry(0, 10), 1);
    assert!(of.denies_admission(2, 10, true), "20 bytes are above the minimum");
    assert!(!of.denies_admission(2, 5, true));
    assert!(!partition(Dataset { pin: true, ..scan() }).denies_admission(1, 10, true));
    assert!(!partition_of(scan(), 10).denies_admission(1, 10, true), "the tenant's minimum");
}

#[test]
fn eviction_terms_keep_the_largest_minimum() {
    let mut of = partition_of(Dataset { min_bytes: 50, ..rule() }, 80);
    (0..10).for_each(|slot| of.insert(entry(slot, 10), u64::from(slot)));
    assert_eq!((of.bytes(), of.shards()), (100, 10));
    // The tenant keeps 80 bytes, the data set 50.
    assert_eq!(of.above_minimum(), 20);
    assert_eq!(of.terms(None).may_lose, 20);
    let other = Charge { dataset: 0, tenant: 0 };
    let same_tenant = Charge { dataset: 0, ..of.charge };
    let same_dataset = Charge { tenant: 0, ..of.charge };
    assert_eq!(of.terms(Some(other)).may_lose, 20);
    assert_eq!(of.terms(Some(same_tenant)).may_lose, 50);
    assert_eq!(of.terms(Some(same_dataset)).may_lose, 20);
    assert_eq!(of.terms(Some(of.charge)).may_lose, 100);
}

#[test]
fn terms_allow_nothing_if_every_shard_is_too_large() {
    let mut of = partition(Dataset { min_bytes: 50, ..rule() });
    of.insert(entry(0, 30), 0);
    of.insert(entry(1, 30), 1);
    assert_eq!((of.above_minimum(), of.terms(None).may_lose), (10, 0));
    let mut at = entry(1, 30);
    of.resize(&mut at, 5);
    assert_eq!((at.bytes, of.bytes()), (5, 35));
    assert_eq!(of.terms(None).may_lose, 0, "35 bytes are below the minimum");
}

#[test]
fn age_decides_with_dont_evict_time() {
    let of = partition(Dataset { dont_evict_time: Some(HOUR), ..rule() });
    let terms = EvictionTerms { may_lose: 10, ..of.terms(None) };
    let (at, since) = (entry(0, 10), entry(0, 10).since);
    assert!(!terms.allow(at, since + HOUR / 2));
    assert!(terms.allow(at, since + HOUR));
    assert!(!terms.allow(at, since - HOUR), "the clock was set back");
    assert!(!terms.allow(PartitionEntry { bytes: 11, ..at }, since + HOUR));
}

#[test]
fn forecast_takes_shards_out_of_the_order() {
    let mut of = partition(rule());
    let mut entries: Vec<_> = (0..4).map(|slot| entry(slot, 10)).collect();
    for at in &entries {
        of.insert(*at, u64::from(at.slot));
    }
    of.set_foreseen(&mut entries[1], 1);
    assert_eq!(drain(&mut of), [0, 2, 3]);
    of.hit(&mut entries[1], 1);
    of.set_unforeseen(&mut entries[1], 1, false);
    // It comes back as the newest: its uses meanwhile are in the forecast.
    assert_eq!(drain(&mut of), [0, 2, 3, 1]);
    of.remove(entries[1], false);
    assert_eq!((of.shards(), of.bytes()), (3, 30));
}

#[test]
fn stale_shards_are_spare_from_their_time_on() {
    let mut of = partition(Dataset { ttl: Some(HOUR), ..rule() });
    let (one, two) =
        (entry(0, 10), PartitionEntry { since: SystemTime::now() + HOUR, ..entry(1, 10) });
    of.insert(one, 0);
    of.insert(two, 1);
    let spare = |of: &Partition, after| of.spare_shard(one.since + after, &mut |_| true);
    assert_eq!(spare(&of, HOUR / 2), None);
    assert_eq!(spare(&of, HOUR), Some(0));
    assert_eq!(of.spare_shard(one.since + 3 * HOUR, &mut |slot| slot != 0), Some(1));
    of.remove(one, false);
    assert_eq!(spare(&of, HOUR + HOUR / 2), None);
    assert_eq!(spare(&of, 3 * HOUR), Some(1));
}
