//! Charges of shards, and limits that change while shards are here.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use super::*;
use crate::budget::Space;

const TIERS: [(&str, u64); 2] = [("nvme", 1000), ("hdd", 5000)];

fn dataset(name: &str, matches: &str) -> Dataset {
    Dataset::new(name, matches, Evict::Lru).unwrap()
}

fn tenant(name: &str, max_bytes: Option<u64>) -> Tenant {
    Tenant { name: name.to_owned(), min_bytes: 0, max_bytes }
}

fn shares(datasets: Vec<Dataset>, tenants: Vec<Tenant>) -> Shares {
    Shares::new(datasets, tenants, &TIERS).unwrap()
}

fn rejected(datasets: Vec<Dataset>, tenants: Vec<Tenant>) -> Error {
    let error = Shares::new(datasets, tenants, &TIERS).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    error
}

#[test]
fn first_matching_data_set_is_charged() {
    let shares = shares(
        vec![dataset("tars", "/d/*.tar"), dataset("all", "/d/**")],
        vec![tenant("red", None)],
    );
    for (url, name) in
        [("/d/0.tar", "tars"), ("/d/e/0.tar", "all"), ("/d/0.zip", "all"), ("/e/0.tar", REST)]
    {
        assert_eq!(shares.name_of(url), name, "{url}");
        assert_eq!(shares.dataset(shares.charge(url, None)).rule.name, name);
    }
    let of = |tenant| &shares.tenant(shares.charge("/d/0.tar", tenant)).name;
    assert_eq!([of(Some("red")), of(Some("blue")), of(None)], ["red", REST, REST]);
    assert_eq!(shares.charge("/e/0.tar", None), NOBODY);
}

#[test]
fn renamed_rule_loses_its_share_and_kept_rule_keeps_it() {
    let before = shares(vec![dataset("a", "/a/**"), dataset("b", "/b/**")], vec![]);
    let (a, b) = (before.charge("/a/0", None), before.charge("/b/0", None));
    let tier = Budget::new(1000);
    let held = Space::reserve(&tier, before.budgets(a), 300).unwrap();
    let rules = vec![dataset("b", "/b/**"), dataset("a", "/x/**")];
    let after = before.ruled(rules, Vec::new(), &TIERS).unwrap();
    // The name decides, not the place or the pattern.
    assert_eq!((after.charge("/b/0", None), after.charge("/x/0", None)), (b, a));
    assert_eq!(after.charge("/a/0", None), NOBODY);
    assert_eq!(after.dataset(a).share.budget.used(), 300);
    let renamed = after.ruled(vec![dataset("c", "/b/**")], Vec::new(), &TIERS).unwrap();
    // Charges under the old names mean the rest; no later name takes their indexes over.
    assert_eq!(renamed.dataset(a).rule.name, REST);
    assert_eq!(renamed.dataset(b).rule.name, REST);
    assert!(![a, b].contains(&renamed.charge("/b/0", None)));
    drop(held);
    assert_eq!(before.dataset(a).share.budget.used(), 0);
}

#[test]
fn lower_maximum_keeps_bytes_and_admits_no_more() {
    let rule = |max_bytes| Dataset { max_bytes, ..dataset("a", "/a/**") };
    let before = shares(vec![rule(None)], vec![]);
    let charge = before.charge("/a/0", None);
    let tier = Budget::new(1000);
    let space = Space::reserve(&tier, before.budgets(charge), 300).unwrap();
    let after = before.ruled(vec![rule(Some(200))], Vec::new(), &TIERS).unwrap();
    assert!(before.have(charge, 100), "the new rules are not in force yet");
    after.enforce(&before);
    assert!(!after.have(charge, 0));
    assert!(Space::reserve(&tier, after.budgets(charge), 1).is_none());
    let error = after.of(charge)[0].check(201).unwrap_err();
    let found = (error.kind(), error.place("dataset"), error.place("quota"));
    assert_eq!(found, (ErrorKind::Full, Some("a"), Some("200")));
    assert!(after.of(charge)[0].check(200).is_ok());
    space.shrink(150);
    assert!(after.have(charge, 50) && !after.have(charge, 51));
    assert_eq!(tier.used(), 150);
}

#[test]
fn either_share_can_lack_room() {
    let rule = Dataset { max_bytes: Some(100), ..dataset("a", "/a/**") };
    let shares = shares(vec![rule], vec![tenant("red", Some(60))]);
    let charge = shares.charge("/a/0", Some("red"));
    for (bytes, room) in [(60, true), (61, false), (101, false)] {
        assert_eq!(shares.have(charge, bytes), room, "{bytes}");
    }
    let tier = Budget::new(1000);
    let space = Space::reserve(&tier, shares.budgets(charge), 50).unwrap();
    // A reservation that fails in one share takes nothing from the others.
    assert!(Space::reserve(&tier, shares.budgets(charge), 20).is_none());
    let used = shares.of(charge).map(|share| share.budget.used());
    assert_eq!((tier.used(), used), (50, [50, 50]));
    assert!(space.grow(10) && !space.grow(1));
    assert_eq!(shares.of(charge).map(|share| share.budget.used()), [60, 60]);
}

#[test]
fn promises_beyond_the_capacity_are_rejected() {
    let minimum = |name, min_bytes| Dataset { min_bytes, ..dataset(name, "/a/**") };
    let on = |tier: &str, set: Dataset| Dataset { tiers: vec![tier.to_owned()], ..set };
    let pinned = |max| Dataset { pin: true, max_bytes: Some(max), ..dataset("p", "/p/**") };
    assert!(Shares::new(vec![minimum("a", 6000)], vec![], &TIERS).is_ok());
    let error = rejected(vec![minimum("a", 3000), minimum("b", 3001)], vec![]);
    assert_eq!((error.place("promised"), error.place("capacity")), (Some("6001"), Some("6000")));
    // Together they fit all tiers, but not the one that both are bound to.
    let bound = vec![on("nvme", minimum("a", 600)), on("nvme", minimum("b", 600))];
    let error = rejected(bound, vec![]);
    assert_eq!((error.place("tiers"), error.place("promised")), (Some("nvme"), Some("1200")));
    let error = rejected(vec![pinned(5000), minimum("a", 1001)], vec![]);
    assert_eq!(error.place("promised"), Some("6001"));
    let error = rejected(vec![on("tape", minimum("a", 1))], vec![]);
    assert_eq!((error.place("dataset"), error.place("tier")), (Some("a"), Some("tape")));
    let min = |name: &str, min_bytes| Tenant { min_bytes, ..tenant(name, None) };
    let error = rejected(vec![], vec![min("red", 6000), min("blue", 1)]);
    assert_eq!(error.place("promised"), Some("6001"));
}

#[test]
fn reserves_beyond_the_capacity_are_rejected() {
    let reserve = |tiers: &[&str], reserve_bytes| CheckpointRule {
        reserve_bytes,
        tiers: tiers.iter().copied().map(str::to_owned).collect(),
        ..CheckpointRule::new("s3://runs/**").unwrap()
    };
    let with = |sets: Vec<Dataset>, rules: Vec<CheckpointRule>| {
        shares(sets, Vec::new()).with_checkpoints(rules, &TIERS)
    };
    let minimum = |min_bytes| vec![Dataset { min_bytes, ..dataset("a", "/a/**") }];
    let both = ["nvme", "hdd"];
    assert!(with(minimum(1000), vec![reserve(&both, 5000)]).is_ok());
    assert!(with(minimum(5000), vec![reserve(&["nvme"], 1000)]).is_ok());
    for (sets, rules, promised) in [
        (vec![], vec![reserve(&both, 3000), reserve(&both, 3001)], "6001"),
        (vec![], vec![reserve(&["nvme"], 600), reserve(&["nvme"], 401)], "1001"),
        (minimum(1001), vec![reserve(&both, 5000)], "6001"),
        (minimum(0), vec![reserve(&both, u64::MAX), reserve(&both, 1)], "18446744073709551615"),
    ] {
        let error = with(sets, rules).unwrap_err();
        assert_eq!((error.kind(), error.place("promised")), (ErrorKind::Invalid, Some(promised)));
    }
    let error = with(vec![], vec![reserve(&["tape"], 0)]).unwrap_err();
    assert_eq!((error.place("match"), error.place("tier")), (Some("s3://runs/**"), Some("tape")));
}

#[test]
fn contradicting_rules_are_rejected() {
    let day = std::time::Duration::from_secs(86_400);
    let a = || dataset("a", "/a/**");
    let never = || Dataset { cache: crate::dataset::Cache::Never, ..a() };
    for set in [
        Dataset { min_bytes: 2, max_bytes: Some(1), ..a() },
        Dataset { pin: true, ttl: Some(day), ..a() },
        Dataset { ttl: Some(day), dont_evict_time: Some(2 * day), ..a() },
        Dataset { pin: true, ..never() },
        Dataset { max_bytes: Some(1), ..never() },
        Dataset { tiers: vec!["nvme".to_owned()], ..never() },
        Dataset { cache: crate::dataset::Cache::Never, ..dataset("a", "s3://a/**") },
    ] {
        let error = rejected(vec![set.clone()], vec![]);
        assert_eq!(error.place("dataset"), Some("a"), "{set:?}");
    }
    for set in [never(), Dataset { ttl: Some(day), dont_evict_time: Some(day), ..a() }] {
        assert!(Shares::new(vec![set], vec![], &TIERS).is_ok());
    }
    for bad in [tenant("", None), tenant(&"x".repeat(129), None)] {
        rejected(vec![], vec![bad]);
    }
    rejected(vec![], vec![Tenant { min_bytes: 2, ..tenant("red", Some(1)) }]);
}

#[test]
fn scan_is_remembered_after_the_first_use() {
    let rule = Dataset { scan_bypass: true, ..dataset("a", "/a/**") };
    let before = shares(vec![rule.clone()], vec![]);
    let charge = before.charge("/a/0", None);
    before.dataset(charge).see(7);
    let after = before.ruled(vec![rule], Vec::new(), &TIERS).unwrap();
    // Rules that keep the name keep the memory.
    assert!(after.dataset(charge).saw(7) && !after.dataset(charge).saw(8));
    for identity in 0..SEEN.get() as u64 {
        after.dataset(charge).see(1_000 + identity);
    }
    assert!(!after.dataset(charge).saw(7), "the memory is bounded");
}
