//! Entries of a tier's shards: uses, labels, parts that stay, and claims.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use forebay_policy::Evict;
use forebay_shard::Origin;
use proptest::prelude::*;

use super::*;
use crate::dataset::Dataset;
use crate::tier::table::fixture::Fixture;

const HOUR: Duration = Duration::from_secs(3600);

fn whole(since: SystemTime) -> (SystemTime, ShardState) {
    (since, ShardState::Whole)
}

fn rule() -> Dataset {
    Dataset::new("a", "/a/**", Evict::Lru).unwrap()
}

#[test]
fn versions_of_a_shard_share_its_label() {
    let mut of = Fixture::new(vec![rule()]);
    let now = SystemTime::now();
    let one = of.add_version("/a/0.tar", "1", 10, whole(now));
    let two = of.add_version("/a/0.tar", "2", 10, whole(now));
    let other = of.add_version("/a/1.tar", "1", 10, whole(now));
    let labelled = |of: &Fixture, name| {
        let mut names: Vec<_> =
            of.table.with_same_label(name).into_iter().map(|(name, _)| name).collect();
        names.sort_by_key(|name| name.as_str().to_owned());
        names
    };
    let mut both = vec![one.clone(), two.clone()];
    both.sort_by_key(|name| name.as_str().to_owned());
    assert_eq!(labelled(&of, &one), both);
    assert_eq!(labelled(&of, &other), std::slice::from_ref(&other));
    drop(of.table.remove(&one, false));
    assert!(of.table.has_label(&one), "the other version is still here");
    drop(of.table.remove(&two, false));
    assert!(!of.table.has_label(&one) && of.table.with_same_label(&one).is_empty());
}

#[test]
fn second_copy_of_a_name_replaces_the_first() {
    let mut of = Fixture::new(vec![rule()]);
    let now = SystemTime::now();
    let name = of.add_version("/a/0.tar", "1", 10, whole(now));
    of.table.pin(&name);
    assert_eq!(of.add_version("/a/0.tar", "1", 30, whole(now)), name);
    assert_eq!((of.table.len(), of.tier.used()), (1, 30));
    assert!(!of.table.pinned.contains(&name), "pins are set anew by the fill");
    drop(of.table.remove(&name, false));
    assert!(of.table.remove(&name, false).is_none());
    assert_eq!((of.table.len(), of.tier.used()), (0, 0));
}

#[test]
fn partial_shard_lends_its_room_to_the_next_fill() {
    let mut of = Fixture::new(vec![rule()]);
    let since = (SystemTime::now(), ShardState::Partial);
    let partial = of.add_version("/a/0.tar", "1", 40, since);
    let kept = of.add_version("/a/1.tar", "1", 10, whole(SystemTime::now()));
    assert!(of.table.is_unadmitted(&partial));
    assert!(of.table.take_partial(&kept).is_none());
    let room = of.table.take_partial(&partial).unwrap();
    assert_eq!((room.space.bytes(), of.tier.used()), (40, 50), "the bytes stay reserved");
    assert!(!room.unadmitted && of.table.get(&partial).is_none());
    drop(room);
    assert_eq!(of.tier.used(), 10);
}

#[test]
fn stale_copy_in_use_is_served_to_its_end() {
    let mut of = Fixture::new(vec![Dataset { ttl: Some(HOUR), ..rule() }]);
    let now = SystemTime::now();
    let stale = of.add_version("/a/0.tar", "1", 10, whole(now - 2 * HOUR));
    let fresh = of.add_version("/a/1.tar", "1", 10, whole(now));
    assert!(of.table.is_stale(&stale) && !of.table.is_stale(&fresh));
    of.table.claim(&stale);
    assert!(!of.table.is_stale(&stale), "a job needs it soon");
    of.table.unclaim(&stale);
    assert!(of.table.is_stale(&stale));
}

#[test]
fn report_tells_the_reasons_that_keep_a_copy() {
    let mut of = Fixture::new(vec![Dataset {
        dont_evict_time: Some(HOUR),
        ttl: Some(3 * HOUR),
        min_bytes: 15,
        ..rule()
    }]);
    let old = SystemTime::now() - 2 * HOUR;
    let name = of.add_version("/a/0.tar", "1", 10, whole(old));
    let young = of.add_version("/a/1.tar", "1", 10, whole(SystemTime::now()));
    of.table.claim(&name);
    of.table.pin(&name);
    for _ in 0..3 {
        of.table.record_use(&name);
    }
    let report = of.table.report_copy(&name, "nvme").unwrap();
    assert_eq!((report.tier.as_str(), report.bytes, report.uses), ("nvme", 10, 3));
    assert!(report.claimed && report.pinned && !report.in_use && !report.passes);
    // 20 bytes less 10 are below the minimum of 15.
    assert!(report.within_minimum);
    assert_eq!(report.kept_for_seconds, None);
    assert!(report.stale_in_seconds.is_some_and(|left| (3500..=3600).contains(&left)));
    let report = of.table.report_copy(&young, "nvme").unwrap();
    assert!(report.kept_for_seconds.is_some_and(|left| (3500..=3600).contains(&left)));
    assert!(!report.claimed && !report.pinned && report.uses == 0);
}

#[test]
fn clear_forgets_every_shard() {
    let mut of = Fixture::new(vec![rule()]);
    let now = SystemTime::now();
    let names: Vec<_> =
        (0..5).map(|n| of.add_version(&format!("/a/{n}.tar"), "1", 10, whole(now))).collect();
    of.table.clear();
    assert_eq!((of.table.len(), of.tier.used()), (0, 0));
    assert!(names.iter().all(|name| of.table.get(name).is_none()));
    assert!(of.table.names_by_use().is_empty() && of.table.any_idle().is_none());
}

#[derive(Debug, Clone)]
enum Step {
    Add(u8, u64),
    Remove(u8),
    Use(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u8..12, 1_u64..50).prop_map(|(shard, bytes)| Step::Add(shard, bytes)),
        (0_u8..12).prop_map(Step::Remove),
        (0_u8..12).prop_map(Step::Use),
    ]
}

proptest! {
    /// After any changes, the table equals a list of shards in the order of their last uses.
    #[test]
    fn table_equals_a_list_by_last_use(steps in prop::collection::vec(step(), 0..80)) {
        let mut of = Fixture::new(vec![rule()]);
        let mut model: Vec<(u8, u64, u32)> = Vec::new();
        let now = SystemTime::now();
        let url = |shard: u8| format!("/a/{shard}.tar");
        let name = |shard: u8| {
            let (endpoint, version) = (String::new(), "1".to_owned());
            ShardName::new(&Origin { endpoint, url: url(shard), version })
        };
        for step in steps {
            match step {
                Step::Add(shard, bytes) => {
                    of.add_version(&url(shard), "1", bytes, whole(now));
                    model.retain(|(other, ..)| *other != shard);
                    model.push((shard, bytes, 0));
                }
                Step::Remove(shard) => {
                    let is_here = model.iter().any(|(other, ..)| *other == shard);
                    prop_assert_eq!(of.table.remove(&name(shard), false).is_some(), is_here);
                    model.retain(|(other, ..)| *other != shard);
                }
                Step::Use(shard) => {
                    let at = model.iter().position(|(other, ..)| *other == shard);
                    let uses = at.map_or(0, |at| {
                        let (shard, bytes, uses) = model.remove(at);
                        model.push((shard, bytes, uses + 1));
                        uses + 1
                    });
                    let used = of.table.record_use(&name(shard));
                    prop_assert_eq!(used.map_or(0, |used| used.uses), uses);
                }
            }
            let names: Vec<_> = model.iter().map(|(shard, ..)| name(*shard)).collect();
            prop_assert_eq!(of.table.names_by_use(), names);
            let bytes: u64 = model.iter().map(|(_, bytes, _)| bytes).sum();
            prop_assert_eq!((of.table.len(), of.tier.used()), (model.len(), bytes));
            let held: u64 = of.table.partitions.iter().map(Partition::bytes).sum();
            prop_assert_eq!(held, bytes);
        }
    }
}
