//! Modes and conditions of a tier, removals, pins and limits that change.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::time::SystemTime;

use forebay_policy::Evict;
use forebay_shard::checksum::crc32c;
use forebay_shard::{Index, Member, Origin, Sample};
use forebay_source::{Binding, Rank, Stat};
use forebay_uring::{Arena, CHUNK, Region};

use super::leftover::above_quota;
use super::request::{ReservedRoom, Shortage};
use super::*;
use crate::blocks::Blocks;
use crate::budget::Space;
use crate::dataset::{Cache, Dataset};
use crate::directory::object_key;
use crate::identity::Head;
use crate::pins::{Pinned, Pins};
use crate::shard::{Body, CheckedUpTo, Growth, ShardHandle};
use crate::shares::{Provenance, Shares};
use crate::sizes::PART_BYTES;
use crate::tenant::Tenant;

pub(super) const PART: u64 = PART_BYTES as u64;

/// A memory tier, and shards put on it without a fill.
pub(super) struct MemoryTier {
    pub(super) tier: Tier,
}

impl MemoryTier {
    /// A tier of so many parts, with one data set `a` that is evicted by use.
    pub(super) async fn new(parts: u64) -> Self {
        Self::with(parts, vec![rule("a")], None).await
    }

    pub(super) async fn with(
        parts: u64,
        datasets: Vec<Dataset>,
        watermarks: Option<Watermarks>,
    ) -> Self {
        let capacity = parts * PART;
        let config = TierConfig {
            name: "memory".to_owned(),
            class: Class::Memory,
            capacity,
            watermarks,
            disk: None,
        };
        let shares = Shares::new(datasets, vec![tenant("red")], &[("memory", capacity)]).unwrap();
        let frames = Arena::new(Region::create("forebay-tier-test", PART_BYTES).unwrap());
        let shared = SharedState::new(frames, shares, Pins::default(), capacity);
        Self { tier: Tier::open(config, None, shared).await.unwrap() }
    }

    pub(super) fn shared(&self) -> &SharedState {
        &self.tier.0.shared
    }

    /// Adds a whole shard of no tenant that nobody reads.
    pub(super) fn add(&self, url: &str, parts: u64) -> ShardName {
        self.add_as(url, None, parts, ShardState::Whole)
    }

    pub(super) fn add_as(
        &self,
        url: &str,
        tenant: Option<&str>,
        parts: u64,
        state: ShardState,
    ) -> ShardName {
        let wanted = wanted(url, tenant, parts * PART);
        let shares = self.shared().shares.current();
        let budgets = shares.budgets(wanted.charge(&shares));
        let space = Space::enter(&self.tier.0.budget, budgets, parts * PART);
        let object = object_key(&wanted.origin);
        let found = (SystemTime::now(), state);
        let entrant = (wanted.name.clone(), object);
        self.tier.table().add_found(entrant, wanted.provenance(), space, found);
        wanted.name
    }

    /// Adds an open shard of one part, in this version.
    fn open(&self, url: &str, version: &str) -> Arc<Shard> {
        self.open_with((url, version), Index::default(), &[0])
    }

    /// The same with these samples and first bytes.
    fn open_with(&self, (url, version): (&str, &str), index: Index, bytes: &[u8]) -> Arc<Shard> {
        let wanted = version_of(url, version);
        let shares = self.shared().shares.current();
        let budgets = shares.budgets(wanted.charge(&shares));
        let space = Arc::new(Space::enter(&self.tier.0.budget, budgets, PART));
        let growth = Growth::whole(index, PART);
        let memory = Region::create("test", CHUNK).unwrap();
        let blocks = Blocks::new(&memory);
        let mut block = Arena::new(memory).try_lease(bytes.len()).unwrap();
        block[..bytes.len()].copy_from_slice(bytes);
        blocks.put(0, block.freeze());
        let body = Body::Memory(Arc::new(blocks));
        let shard = self.tier.assemble(&wanted, growth, body, None, space.clone());
        let of = wanted.provenance();
        let room = ReservedRoom { space: space.clone(), of, unadmitted: false };
        let mut table = self.tier.table();
        table.add_arriving((&shard, object_key(&wanted.origin)), space, &room, None);
        table.finish_fill(&shard, ShardState::Whole);
        drop(table);
        shard
    }

    /// Names of the present shards, least recently used first.
    pub(super) fn names(&self) -> Vec<ShardName> {
        self.tier.table().names_by_use()
    }

    pub(super) fn used(&self) -> u64 {
        self.tier.budget().used() / PART
    }

    pub(super) fn evictions(&self) -> u64 {
        self.tier.counters().evictions
    }
}

/// Rule for the URLs below `/<name>/`.
pub(super) fn rule(name: &str) -> Dataset {
    Dataset::new(name, &format!("/{name}/**"), Evict::Lru).unwrap()
}

fn tenant(name: &str) -> Tenant {
    Tenant { name: name.to_owned(), min_bytes: 0, max_bytes: None }
}

pub(super) fn wanted(url: &str, tenant: Option<&str>, len: u64) -> Wanted {
    Wanted { tenant: tenant.map(Arc::from), len, ..version_of(url, "1") }
}

fn version_of(url: &str, version: &str) -> Wanted {
    let (endpoint, url, version) = (String::new(), url.to_owned(), version.to_owned());
    let stat = Stat::new(PART, version.clone(), Binding::Strong);
    let origin = Origin { endpoint, url, version };
    Wanted {
        name: ShardName::new(&origin),
        origin,
        tenant: None,
        source: Arc::new(Absent),
        lasting: Arc::new(Absent),
        stat,
        len: PART,
        rank: Rank::ahead(0),
        head: Head::default(),
        guest: None,
    }
}

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, "the device fails")
}

#[tokio::test]
async fn third_device_error_takes_the_tier_out_of_use() {
    let of = MemoryTier::new(1).await;
    let uses = || (of.tier.is_readable(), of.tier.is_normal(), of.tier.is_writable());
    // These concern a request or a copy, not the device.
    for kind in [ErrorKind::Full, ErrorKind::Corrupt, ErrorKind::NotFound, ErrorKind::Closed] {
        of.tier.note_failure(&error(kind));
    }
    of.tier.note_failure(&error(ErrorKind::Unavailable));
    of.tier.note_failure(&error(ErrorKind::Unavailable));
    assert_eq!(uses(), (true, true, true));
    of.tier.note_failure(&error(ErrorKind::Unavailable));
    assert_eq!(uses(), (false, false, false));
    let report = of.tier.report();
    assert_eq!((report.condition, report.counters.io_errors), (Condition::Unstable, 7));
    assert!(report.why.is_some());
}

#[tokio::test]
async fn refused_write_leaves_the_tier_readable() {
    let of = MemoryTier::new(1).await;
    of.tier.note_failure(&error(ErrorKind::PermissionDenied));
    assert_eq!(of.tier.report().condition, Condition::ReadOnly);
    assert!(of.tier.is_readable() && !of.tier.is_normal() && !of.tier.is_writable());
}

#[tokio::test]
async fn mode_decides_what_a_tier_is_used_for() {
    let of = MemoryTier::new(2).await;
    of.add("/a/0", 1);
    of.tier.drain().unwrap();
    assert_eq!(of.tier.mode(), Mode::Draining);
    assert!(of.tier.is_readable() && of.tier.is_normal() && !of.tier.is_writable());
    assert_eq!(of.used(), 1, "its shards stay until they move");
    of.tier.disable().await;
    assert!(!of.tier.is_readable() && !of.tier.is_normal() && !of.tier.is_writable());
    assert_eq!((of.used(), of.tier.counters().shards), (0, 0));
    let error = of.tier.drain().unwrap_err();
    assert_eq!((error.kind(), error.place("tier")), (ErrorKind::Invalid, Some("memory")));
    of.tier.enable().await.unwrap();
    assert_eq!(of.tier.mode(), Mode::Enabled);
    assert!(of.tier.is_readable() && of.tier.is_writable());
}

#[tokio::test]
async fn unreadable_tier_keeps_a_forgotten_url() {
    let of = MemoryTier::new(2).await;
    let _shard = of.open("/a/0", "1");
    for _ in 0..3 {
        of.tier.note_failure(&error(ErrorKind::Unavailable));
    }
    let error = of.tier.forget_url("/a/0", false).await.unwrap_err();
    assert_eq!((error.kind(), error.place("url")), (ErrorKind::Unavailable, Some("/a/0")));
    assert_eq!(of.used(), 1);
}

#[tokio::test]
async fn every_version_of_a_url_is_forgotten() {
    let of = MemoryTier::new(4).await;
    let shards = [("/a/0", "1"), ("/a/0", "2"), ("/b/0", "1")].map(|(url, of_it)| {
        let shard = of.open(url, of_it);
        shard.name().clone()
    });
    let arriving = of.add_as("/a/1", None, 1, ShardState::Arriving);
    assert_eq!(of.tier.forget_url("/a/0", true).await.unwrap(), 2);
    assert_eq!(of.used(), 4, "a dry run removes nothing");
    assert_eq!(of.tier.forget_url("/a/0", false).await.unwrap(), 2);
    // The other URL ends in the same name.
    assert_eq!(of.names(), [shards[2].clone(), arriving]);
    assert_eq!(of.tier.forget_url("/a/0", false).await.unwrap(), 0);
    assert_eq!(of.evictions(), 0);
}

#[tokio::test]
async fn corrupt_copy_is_dropped_and_counted_once() {
    let of = MemoryTier::new(2).await;
    let (name, why) = (of.add("/a/0", 1), error(ErrorKind::Corrupt).at("url", "/a/0"));
    let space = Arc::downgrade(&of.tier.table().get(&name).unwrap().space);
    assert!(of.tier.drop_corrupt(&name, &space, &why).await);
    assert!(!of.tier.drop_corrupt(&name, &space, &why).await, "it is gone");
    // A reader of the old copy must not remove the new one.
    assert_eq!(of.add("/a/0", 1), name);
    assert!(!of.tier.drop_corrupt(&name, &space, &why).await);
    assert_eq!((of.names(), of.tier.counters().corruptions), (vec![name], 1));
}

#[tokio::test]
async fn lost_copy_is_read_through_from_then_on() {
    let of = MemoryTier::new(2).await;
    let shard = of.open("/a/0", "1");
    let name = shard.name().clone();
    let other = of.open("/a/0", "2");
    of.tier.drop_lost(&shard, &error(ErrorKind::Unavailable));
    assert_eq!(of.names(), std::slice::from_ref(other.name()));
    let through = of.shared().through().get(&name).unwrap();
    assert!(through.is_read_through() && through.home.is_none());
    assert_eq!(of.tier.counters().io_errors, 1);
    // A compressed shard has no ranges at its origin.
    other.growth.mark_unpacked();
    of.tier.drop_lost(&other, &error(ErrorKind::Unavailable));
    assert!(of.names().is_empty() && !of.shared().through().contains(other.name()));
}

#[tokio::test]
async fn lost_copy_spares_its_successor() {
    let of = MemoryTier::new(2).await;
    let old = of.open("/a/0", "1");
    let new = of.open("/a/0", "1");
    of.tier.drop_lost(&old, &error(ErrorKind::Unavailable));
    assert_eq!(of.names(), std::slice::from_ref(new.name()));
}

#[tokio::test]
async fn changed_pins_reach_present_shards() {
    let of = MemoryTier::new(3).await;
    let names = ["/a/0", "/a/1", "/b/0"].map(|url| of.add(url, 1));
    let pinned = || names.each_ref().map(|name| of.tier.report_copy(name).unwrap().pinned);
    let set = async |pinned: Pinned, changed: &str| {
        of.shared().pins.set(pinned.clone());
        of.tier.pins_changed(changed).await.unwrap();
        pinned
    };
    let one = set(Pinned::default().with("/a/1").unwrap(), "/a/1").await;
    assert_eq!(pinned(), [false, true, false]);
    let both = set(one.with("/a/*").unwrap(), "/a/*").await;
    assert_eq!(pinned(), [true, true, false]);
    // Another pin still holds one of them.
    let left = set(both.without("/a/*").unwrap(), "/a/*").await;
    assert_eq!(pinned(), [false, true, false]);
    set(left.without("/a/1").unwrap(), "/a/1").await;
    assert_eq!(pinned(), [false; 3]);
}

#[tokio::test]
async fn only_this_name_is_looked_up() {
    let of = MemoryTier::new(3).await;
    let whole = of.add("/a/0", 1);
    let partial = of.add_as("/a/1", None, 1, ShardState::Partial);
    assert_eq!(of.tier.look_up(&whole).await, Some((whole.clone(), ShardState::Whole)));
    assert_eq!(of.tier.look_up(&partial).await, Some((partial, ShardState::Partial)));
    let absent = version_of("/a/0", "2").name;
    assert_eq!(of.tier.look_up(&absent).await, None);
    assert!(!of.tier.certainly_lacks(&absent), "it may be a version of the present one");
    assert!(of.tier.certainly_lacks(&wanted("/a/9", None, 1).name));
    of.tier.set_mode(Mode::Disabled);
    assert_eq!(of.tier.look_up(&whole).await, None);
}

#[tokio::test]
async fn selected_urls_include_arriving_shards() {
    let of = MemoryTier::new(3).await;
    of.add("/a/0", 1);
    of.add_as("/a/1", None, 1, ShardState::Arriving);
    of.add("/b/0", 1);
    let selector: crate::selector::Selector = Arc::new(|url| url.starts_with("/a/"));
    let mut urls = of.tier.urls(&selector).await.unwrap();
    urls.sort();
    assert_eq!(urls, ["/a/0", "/a/1"]);
}

#[tokio::test]
async fn memory_tier_keeps_its_capacity() {
    let of = MemoryTier::new(2).await;
    let limits = |capacity, watermarks| TierLimits {
        name: "memory".to_owned(),
        capacity,
        keep_free: KeepFree::Bytes(7),
        watermarks,
    };
    let marks = Some(Watermarks { low: 0.5, high: 0.75 });
    // Incomplete parts are unusable.
    let size = of.tier.size_by(&limits(3 * PART - 1, marks)).await.unwrap();
    assert_eq!((size.capacity, size.watermarks), (2 * PART, marks));
    for capacity in [PART, 3 * PART] {
        let error = of.tier.size_by(&limits(capacity, None)).await.unwrap_err();
        let told = (error.kind(), error.place("capacity"));
        assert_eq!(told, (ErrorKind::Invalid, Some((2 * PART).to_string().as_str())));
    }
    let error = of.tier.size_by(&limits(0, None)).await.unwrap_err();
    assert_eq!(error.place("key"), Some("capacity"));
}

#[tokio::test]
async fn new_rules_find_unwanted_and_excessive_shards() {
    let of = MemoryTier::with(6, vec![rule("a"), rule("b")], None).await;
    for url in ["/a/0", "/a/1", "/a/2", "/b/0"] {
        of.add(url, 1);
    }
    assert!(!of.tier.has_unwanted() && of.tier.unwanted().is_none());
    let limited = Dataset { max_bytes: Some(2 * PART), ..rule("a") };
    let never = Dataset { cache: Cache::Never, ..rule("b") };
    let (before, tiers) = (of.shared().shares.current(), [("memory", 6 * PART)]);
    let after = before.ruled(vec![limited, never], vec![tenant("red")], &tiers).unwrap();
    let charges = NewCharges::by(Arc::new(after), of.tier.provenances().into_iter());
    let size = of.tier.size();
    reconfigure(std::slice::from_ref(&of.tier), &charges, &[size]);
    let (name, is_nowhere) = of.tier.unwanted().unwrap();
    assert_eq!((name, is_nowhere), (wanted("/b/0", None, 1).name, true));
    let shares = of.shared().shares.current();
    let charge = Charge { tenant: 0, ..shares.charge("/a/0", None) };
    assert_eq!(above_quota(&shares), [(charge, Shortage::Dataset)]);
    let victim = of.tier.victim_above_quota(charge, Shortage::Dataset).unwrap();
    assert_eq!(victim, wanted("/a/0", None, 1).name);
    of.tier.evict(&victim).await;
    assert!(above_quota(&shares).is_empty());
}

#[tokio::test]
async fn tenant_above_its_quota_is_found() {
    let of = MemoryTier::new(6).await;
    of.add_as("/a/0", Some("red"), 2, ShardState::Whole);
    of.add("/a/1", 2);
    let (before, tiers) = (of.shared().shares.current(), [("memory", 6 * PART)]);
    let red = Tenant { max_bytes: Some(PART), ..tenant("red") };
    let after = Arc::new(before.ruled(vec![rule("a")], vec![red], &tiers).unwrap());
    after.enforce(&before);
    let above = above_quota(&after);
    let [(charge, Shortage::Tenant)] = above[..] else { panic!("{above:?}") };
    assert_eq!(charge.tenant, after.tenant_of(Some("red")));
    of.shared().shares.replace(after.clone());
    let victim = of.tier.victim_above_quota(charge, Shortage::Tenant).unwrap();
    assert_eq!(victim, wanted("/a/0", Some("red"), 1).name);
}

#[test]
fn provenance_names_the_tenant_that_asks() {
    let of = wanted("/a/0", Some("red"), 1).provenance();
    assert_eq!(of, Provenance { url: "/a/0".into(), tenant: Some("red".into()) });
    assert_eq!(wanted("/a/0", None, 1).provenance().tenant, None);
}

/// An index of one sample of `members` members of 100 bytes each, the first of which all others
/// link to but the last.
fn linked(members: u32, bytes: &[u8]) -> Index {
    let member = |number: u32| {
        let start = if number + 1 < members { 0 } else { 100 };
        let crc32c = crc32c(&bytes[start..start + 100]);
        Member { field: number, offset: start as u64, len: 100, crc32c }
    };
    let key = "linked".to_owned();
    let sample = Sample { key, offset: 0, end: 200, members: 0..members, bad: None };
    Index {
        fields: (0..members).map(|number| number.to_string()).collect(),
        members: (0..members).map(member).collect(),
        samples: vec![sample],
    }
}

/// The check of a shard in memory goes on where it stopped, however little it does at once, and
/// reaches each byte.
#[tokio::test]
async fn checks_of_memory_go_on_where_they_stopped() {
    let of = MemoryTier::new(4).await;
    let bytes: Vec<u8> = (0..200).collect();
    let good = of.open_with(("a/good", "1"), linked(5, &bytes), &bytes);
    let (mut from, mut rounds, mut work) = (CheckedUpTo::default(), 0, 0);
    while let (Some(next), done) = good.check_in_memory(from, 0).unwrap() {
        assert_ne!(next, from, "it goes on");
        (from, rounds, work) = (next, rounds + 1, work + done);
    }
    assert_eq!(rounds, 4, "a member at a time");
    let whole = good.check_in_memory(CheckedUpTo::default(), u64::MAX).unwrap();
    assert_eq!(whole.0, None);
    assert!(whole.1 > work && whole.1 >= 200);

    let mut wrong = bytes.clone();
    wrong[150] ^= 1;
    let wrong = of.open_with(("a/wrong", "1"), linked(5, &bytes), &wrong);
    let error = wrong.check_in_memory(CheckedUpTo::default(), u64::MAX).unwrap_err();
    assert_eq!((error.kind(), error.place("offset")), (ErrorKind::Corrupt, Some("100")));

    // A link to earlier bytes that no member before it has.
    let mut late = linked(2, &bytes);
    late.members.reverse();
    let mut wrong = bytes.clone();
    wrong[50] ^= 1;
    let wrong = of.open_with(("a/late", "1"), late, &wrong);
    let error = wrong.check_in_memory(CheckedUpTo::default(), u64::MAX).unwrap_err();
    assert_eq!((error.kind(), error.place("offset")), (ErrorKind::Corrupt, Some("0")));
}

/// A shard that left is not lent, though its reader still has it.
#[tokio::test]
async fn evicted_shards_are_not_lent() {
    let of = MemoryTier::new(16).await;
    let shard = of.open("a/0", "1");
    let lendable = ShardHandle::new(shard.clone()).lendable().unwrap();
    let loan = lendable.lend().unwrap();
    assert_eq!(of.tier.budget().lent(), PART);
    drop(loan);
    assert_eq!(of.tier.budget().lent(), 0);
    drop(of.tier.remove(&mut of.tier.table(), shard.name(), true));
    assert!(lendable.lend().is_none());
    assert_eq!(of.tier.budget().lent(), 0);
}
