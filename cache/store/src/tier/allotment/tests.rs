//! Arriving shards that grow: room ahead of need, evictions, and fills that wait for each other.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::pin::pin;

use forebay_error::{Error, ErrorKind};
use futures::FutureExt;

use super::*;
use crate::dataset::Dataset;
use crate::tier::ShardState;
use crate::tier::tests::{MemoryTier, PART, rule, wanted};

const AHEAD: u64 = AHEAD_BYTES / PART;

impl MemoryTier {
    /// A shard of so many parts whose fill runs.
    fn arriving(&self, url: &str, parts: u64) -> TierAllotment {
        let name = self.add_as(url, None, parts, ShardState::Arriving);
        let space = self.tier.table().get(&name).unwrap().space.clone();
        let (tier, of) = (self.tier.downgrade(), wanted(url, None, 1).provenance());
        let allotment = TierAllotment { tier, name, of, space };
        allotment.resume();
        allotment
    }
}

/// Grows without a wait.
fn grow(allotment: &TierAllotment, parts: u64, is_awaited: bool) -> Result<()> {
    let grown = allotment.grow(parts * PART, &move || is_awaited).now_or_never();
    grown.expect("nothing comes free by itself")
}

fn full(grown: Result<()>) -> Error {
    let error = grown.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    error
}

#[tokio::test]
async fn growing_shard_takes_room_ahead_of_need() {
    let of = MemoryTier::new(2 * AHEAD).await;
    let one = of.arriving("/a/0", 1);
    grow(&one, 2, false).unwrap();
    assert_eq!((one.bytes() / PART, of.used()), (2 + AHEAD, 2 + AHEAD));
    // Within what it has, nothing changes.
    grow(&one, 2 + AHEAD, false).unwrap();
    assert_eq!(of.used(), 2 + AHEAD);
    // Less than that is left: it takes no more than it needs.
    grow(&one, 3 + AHEAD, false).unwrap();
    assert_eq!(of.used(), 3 + AHEAD);
    one.settle(3 * PART - 1);
    assert_eq!((one.bytes() / PART, of.used()), (3, 3));
    assert_eq!(of.tier.report_copy(&one.name).unwrap().bytes, 3 * PART);
}

#[tokio::test]
async fn growing_shard_evicts_the_oldest() {
    let of = MemoryTier::new(4).await;
    let names = ["/a/0", "/a/1"].map(|url| of.add(url, 1));
    let one = of.arriving("/a/2", 1);
    grow(&one, 3, false).unwrap();
    assert_eq!((one.bytes(), of.names()), (3 * PART, vec![names[1].clone(), one.name.clone()]));
    // A claimed shard leaves only if somebody waits.
    of.tier.claim(&names[1]);
    full(grow(&one, 4, false));
    grow(&one, 4, true).unwrap();
    assert_eq!((of.used(), of.evictions()), (4, 2));
}

#[tokio::test]
async fn shard_that_outgrows_its_limits_is_rejected() {
    let limited = Dataset { max_bytes: Some(3 * PART), ..rule("b") };
    let of = MemoryTier::with(4, vec![rule("a"), limited], None).await;
    let kept = of.add("/a/0", 1);
    let one = of.arriving("/b/0", 1);
    assert_eq!(one.largest(), 3 * PART);
    let error = full(grow(&one, 4, true));
    assert_eq!(error.place("dataset"), Some("b"));
    let other = of.arriving("/a/1", 1);
    assert_eq!(other.largest(), 4 * PART);
    let error = full(grow(&other, 5, true));
    assert_eq!(error.place("capacity"), Some((4 * PART).to_string().as_str()));
    assert!(of.names().contains(&kept) && of.evictions() == 0);
}

#[tokio::test]
async fn second_fill_that_needs_room_fails_at_once() {
    let of = MemoryTier::new(4).await;
    let [one, two] = ["/a/0", "/a/1"].map(|url| of.arriving(url, 2));
    let awaited = || true;
    let mut grown = pin!(one.grow(3 * PART, &awaited));
    // The other fill may end, and its shard may then be evicted.
    assert!((&mut grown).now_or_never().is_none());
    full(grow(&two, 3, true));
    two.abandon();
    drop(two);
    grown.now_or_never().expect("the other gave up its room").unwrap();
    assert_eq!((one.bytes() / PART, of.names()), (3, vec![one.name.clone()]));
}

#[tokio::test]
async fn paused_fill_is_not_waited_for() {
    let of = MemoryTier::new(4).await;
    let [one, two] = ["/a/0", "/a/1"].map(|url| of.arriving(url, 2));
    two.pause();
    full(grow(&one, 3, true));
    two.resume();
    let awaited = || true;
    let mut grown = pin!(one.grow(3 * PART, &awaited));
    assert!((&mut grown).now_or_never().is_none());
    // Without a waiting reader there is no wait.
    full(grow(&one, 3, false));
    two.settle(PART);
    grown.now_or_never().expect("the other needs less").unwrap();
}

#[tokio::test]
async fn growth_of_a_drained_tier_ends_with_its_room() {
    let of = MemoryTier::new(3).await;
    of.add("/a/0", 1);
    let one = of.arriving("/a/1", 1);
    of.tier.drain().unwrap();
    grow(&one, 2, true).unwrap();
    let error = grow(&one, 3, true).unwrap_err();
    assert_eq!((error.kind(), error.place("tier")), (ErrorKind::Unavailable, Some("memory")));
    assert_eq!(of.evictions(), 0);
}

#[tokio::test]
async fn allotment_of_an_earlier_copy_changes_nothing() {
    let of = MemoryTier::new(6).await;
    let old = of.arriving("/a/0", 1);
    let new = of.arriving("/a/0", 2);
    assert_eq!(old.name, new.name);
    old.settle(0);
    assert_eq!(of.tier.report_copy(&new.name).unwrap().bytes, 2 * PART);
    old.abandon();
    assert_eq!(of.names(), std::slice::from_ref(&new.name));
    new.abandon();
    assert!(of.names().is_empty());
}

/// Bytes that are free on a disabled tier are on its disk.
#[tokio::test]
async fn disabled_tier_gives_no_room() {
    let of = MemoryTier::new(3).await;
    let one = of.arriving("/a/0", 1);
    of.tier.disable().await;
    let error = grow(&one, 2, true).unwrap_err();
    assert_eq!((error.kind(), one.bytes()), (ErrorKind::Unavailable, PART));
}

#[tokio::test]
async fn allotment_outlives_its_tier() {
    let of = MemoryTier::new(2).await;
    let one = of.arriving("/a/0", 1);
    drop(of);
    assert_eq!((one.largest(), one.bytes()), (0, PART));
    assert_eq!(grow(&one, 2, true).unwrap_err().kind(), ErrorKind::Closed);
    one.pause();
    one.settle(0);
    one.abandon();
}
