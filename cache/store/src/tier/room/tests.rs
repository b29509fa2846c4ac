//! Room for new shards: evictions, limits that are short, and waits.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::pin::pin;

use forebay_policy::{Epoch, Epochs, Evict, Role, Use};
use forebay_source::Options;
use futures::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::dataset::Dataset;
use crate::forecast::{ReadContext, Scope};
use crate::tier::tests::{MemoryTier, PART, rule, wanted};
use crate::tier::{Class, ShardState};

impl MemoryTier {
    /// Makes room for a shard of so many parts, without a wait.
    fn try_room(&self, url: &str, parts: u64, urgency: Urgency) -> Result<ReservedRoom> {
        let wanted = wanted(url, None, parts * PART);
        let made = self.tier.make_room(&wanted, urgency, false).now_or_never();
        made.expect("an impatient caller never waits")
    }

    fn ahead(&self, url: &str, parts: u64) -> Result<ReservedRoom> {
        self.try_room(url, parts, Urgency::Ahead)
    }

    fn needed(&self, url: &str, parts: u64) -> Result<ReservedRoom> {
        self.try_room(url, parts, Urgency::Needed)
    }

    fn set_rules(&self, datasets: Vec<Dataset>) {
        let capacity = self.tier.budget().capacity();
        let before = self.shared().shares.current();
        let after = before.ruled(datasets, Vec::new(), &[("memory", capacity)]).unwrap();
        let provenances = self.tier.provenances().into_iter();
        let charges = crate::tier::NewCharges::by(Arc::new(after), provenances);
        let size = self.tier.size();
        crate::tier::reconfigure(std::slice::from_ref(&self.tier), &charges, &[size]);
    }
}

fn refused(made: Result<ReservedRoom>) -> Error {
    made.err().expect("there is no room")
}

#[tokio::test]
async fn memory_is_reserved_in_whole_parts() {
    let of = MemoryTier::new(3).await;
    for (len, parts) in [(1, 1), (PART, 1), (PART + 1, 2), (0, 0)] {
        let wanted = wanted("/a/0", None, len);
        let room = of.tier.make_room(&wanted, Urgency::Ahead, false).await.unwrap();
        assert_eq!((room.space.bytes(), of.used()), (parts * PART, parts), "{len}");
        assert!(!room.unadmitted);
        drop(room);
        assert_eq!(of.used(), 0);
    }
}

#[tokio::test]
async fn oldest_shards_leave_until_a_newcomer_fits() {
    let of = MemoryTier::new(5).await;
    let names: Vec<_> = (0..5).map(|n| of.add(&format!("/a/{n}"), 1)).collect();
    of.tier.record_use(&names[0]);
    assert_eq!(of.tier.next_victim().as_ref(), Some(&names[1]));
    let _room = of.ahead("/a/new", 3).unwrap();
    assert_eq!(of.names(), [names[4].clone(), names[0].clone()]);
    assert_eq!((of.used(), of.evictions()), (5, 3));
}

#[tokio::test]
async fn shard_that_never_fits_evicts_nothing() {
    let of = MemoryTier::new(2).await;
    of.add("/a/0", 2);
    let error = refused(of.needed("/a/new", 3));
    let capacity = (2 * PART).to_string();
    let told = (error.kind(), error.place("capacity"), error.place("url"));
    assert_eq!(told, (ErrorKind::Full, Some(capacity.as_str()), Some("/a/new")));
    // Others fill the disk: the tier is not at fault, and may have room later.
    of.tier.budget().set_limit(PART);
    let error = refused(of.needed("/a/new", 2));
    let (limit, told) = (PART.to_string(), (error.kind(), error.place("tier")));
    assert_eq!(told, (ErrorKind::Unavailable, Some("memory")));
    assert_eq!(error.place("limit"), Some(limit.as_str()));
    of.set_rules(vec![Dataset { max_bytes: Some(PART), ..rule("a") }]);
    let error = refused(of.needed("/a/new", 2));
    assert_eq!((error.kind(), error.place("dataset")), (ErrorKind::Full, Some("a")));
    assert_eq!((of.used(), of.evictions()), (2, 0));
}

#[tokio::test]
async fn drained_tier_evicts_nothing() {
    let of = MemoryTier::new(2).await;
    of.add("/a/0", 1);
    of.tier.drain().unwrap();
    // The store asks no drained tier; a shard on its way keeps its room.
    let room = of.ahead("/a/1", 1).unwrap();
    let error = refused(of.needed("/a/2", 1));
    assert_eq!((error.kind(), error.place("tier")), (ErrorKind::Unavailable, Some("memory")));
    drop(room);
    assert_eq!((of.used(), of.evictions()), (1, 0));
}

#[tokio::test]
async fn pinned_shards_leave_for_nobody() {
    let of = MemoryTier::new(2).await;
    let names = ["/a/0", "/a/1"].map(|url| of.add(url, 1));
    names.iter().for_each(|name| of.tier.table().pin(name));
    let wanted = wanted("/a/new", None, PART);
    // Nobody waits for what rules keep.
    let made = of.tier.make_room(&wanted, Urgency::Needed, true).now_or_never();
    let error = refused(made.expect("no wait can help"));
    let bytes = PART.to_string();
    assert_eq!((error.kind(), error.place("tier")), (ErrorKind::Full, Some("memory")));
    assert_eq!(error.place("bytes"), Some(bytes.as_str()));
    of.tier.table().unpin(&names[1]);
    let _room = of.ahead("/a/new", 1).unwrap();
    assert_eq!(of.names(), std::slice::from_ref(&names[0]));
}

#[tokio::test]
async fn claimed_shard_leaves_only_for_a_waiting_trainer() {
    let of = MemoryTier::new(1).await;
    let name = of.add("/a/0", 1);
    of.tier.claim(&name);
    assert_eq!(refused(of.ahead("/a/new", 1)).kind(), ErrorKind::Full);
    assert!(of.needed("/a/new", 1).is_ok());
    assert!(of.names().is_empty());
}

#[tokio::test]
async fn shard_being_opened_is_waited_for() {
    let of = MemoryTier::new(1).await;
    let name = of.add("/a/0", 1);
    let opening = of.tier.mark_opening(&name);
    for made in [of.ahead("/a/new", 1), of.needed("/a/new", 1)] {
        assert_eq!(refused(made).kind(), ErrorKind::Full);
    }
    of.tier.evict(&name).await;
    assert_eq!((of.used(), of.evictions()), (1, 0));
    let wanted = wanted("/a/new", None, PART);
    let mut room = pin!(of.tier.make_room(&wanted, Urgency::Needed, true));
    assert!((&mut room).now_or_never().is_none());
    drop(opening);
    let _room = room.now_or_never().expect("it may leave now").unwrap();
    assert!(of.names().is_empty());
}

#[tokio::test]
async fn room_of_a_fill_that_ends_is_taken() {
    let of = MemoryTier::new(2).await;
    let arriving = of.add_as("/a/0", None, 2, ShardState::Arriving);
    let wanted = wanted("/a/new", None, PART);
    let mut room = pin!(of.tier.make_room(&wanted, Urgency::Needed, true));
    assert!((&mut room).now_or_never().is_none());
    drop(of.tier.table().remove(&arriving, false));
    assert!(room.now_or_never().expect("the fill gave up its room").is_ok());
}

#[tokio::test]
async fn waiting_newcomer_follows_new_rules() {
    let of = MemoryTier::new(2).await;
    let _arriving = of.add_as("/a/0", None, 2, ShardState::Arriving);
    let wanted = wanted("/a/new", None, 2 * PART);
    let mut room = pin!(of.tier.make_room(&wanted, Urgency::Needed, true));
    assert!((&mut room).now_or_never().is_none());
    of.set_rules(vec![Dataset { max_bytes: Some(PART), ..rule("a") }]);
    let error = refused(room.now_or_never().expect("it never fits now"));
    assert_eq!((error.kind(), error.place("dataset")), (ErrorKind::Full, Some("a")));
}

#[tokio::test]
async fn full_quota_evicts_shards_of_its_own() {
    let limited = Dataset { max_bytes: Some(2 * PART), ..rule("a") };
    let of = MemoryTier::with(4, vec![rule("b"), limited], None).await;
    let other = of.add("/b/0", 1);
    let [first, second] = ["/a/0", "/a/1"].map(|url| of.add(url, 1));
    let charge = of.shared().shares.current().charge("/a/new", None);
    assert_eq!(of.tier.victim_for_newcomer(charge, 1).as_ref(), Some(&first));
    let _room = of.ahead("/a/new", 1).unwrap();
    assert_eq!(of.names(), [other, second.clone()]);
    of.tier.table().pin(&second);
    let error = refused(of.needed("/a/newer", 1));
    let quota = (2 * PART).to_string();
    let told = (error.kind(), error.place("dataset"), error.place("quota"));
    assert_eq!(told, (ErrorKind::Full, Some("a"), Some(quota.as_str())));
}

#[tokio::test]
async fn minimum_of_a_data_set_is_kept() {
    let kept = Dataset { min_bytes: 2 * PART, ..rule("b") };
    let of = MemoryTier::with(3, vec![kept, rule("a")], None).await;
    let names = ["/b/0", "/b/1", "/a/0"].map(|url| of.add(url, 1));
    // The newest shard is the only one above a minimum.
    let _room = of.needed("/a/new", 1).unwrap();
    assert_eq!(of.names(), names[..2]);
    let error = refused(of.needed("/a/newer", 1));
    assert_eq!((error.kind(), error.place("dataset")), (ErrorKind::Full, None));
    assert!(of.ahead("/b/2", 1).is_ok(), "a shard of the same data set may replace one");
}

#[tokio::test]
async fn share_makes_room_on_a_tier_that_does_not_take_the_shard() {
    let limited = Dataset { max_bytes: Some(3 * PART), ..rule("a") };
    let of = MemoryTier::with(4, vec![limited], None).await;
    let names = ["/a/0", "/a/1", "/a/2"].map(|url| of.add(url, 1));
    let newcomer = wanted("/a/new", None, 2 * PART);
    assert!(!of.tier.evict_for_share(&wanted("/b/0", None, PART), PART).await);
    assert!(of.tier.evict_for_share(&newcomer, 2 * PART).await);
    assert_eq!(of.names(), names[2..]);
    assert!(!of.tier.evict_for_share(&newcomer, 2 * PART).await, "it has room already");
}

#[tokio::test]
async fn watermarks_start_and_stop_the_relief() {
    let marks = Watermarks { low: 0.5, high: 0.75 };
    let of = MemoryTier::with(8, vec![rule("a")], Some(marks)).await;
    let mut names: Vec<_> = (0..6).map(|n| of.add(&format!("/a/{n}"), 1)).collect();
    assert_eq!(of.tier.excess(), 0, "the high mark is not passed");
    names.push(of.add("/a/6", 1));
    assert_eq!(of.tier.excess(), 3 * PART);
    for left in [2, 1, 0] {
        of.tier.evict(&names.pop().unwrap()).await;
        assert_eq!(of.tier.excess(), left * PART, "the low mark ends it");
    }
    for n in 10..12 {
        of.add(&format!("/a/{n}"), 1);
        assert_eq!(of.tier.excess(), 0);
    }
}

#[tokio::test]
async fn bytes_above_the_limit_are_in_excess() {
    let of = MemoryTier::new(4).await;
    of.add("/a/0", 3);
    assert_eq!(of.tier.excess(), 0);
    of.tier.budget().set_limit(PART);
    assert_eq!(of.tier.excess(), 2 * PART);
    assert_eq!(of.tier.class(), Class::Memory);
}

#[tokio::test]
async fn scanned_shard_is_admitted_once_it_was_seen() {
    let scan = Dataset { scan_bypass: true, ..rule("a") };
    let of = MemoryTier::with(2, vec![scan], None).await;
    let charge = of.shared().shares.current().charge("/a/0", None);
    let name = wanted("/a/0", None, 1).name;
    assert_eq!(of.tier.room_and_admission(charge, Some(&name), PART), (true, false));
    assert_eq!(of.tier.room_and_admission(charge, None, PART), (true, true));
    assert!(of.ahead("/a/0", 1).unwrap().unadmitted);
    of.add("/a/0", 2);
    assert_eq!(of.tier.room_and_admission(charge, Some(&name), PART), (false, true));
    // An unadmitted newcomer evicts no admitted shard, unless a trainer waits for it.
    assert_eq!(refused(of.ahead("/a/1", 1)).kind(), ErrorKind::Full);
    assert!(of.needed("/a/1", 1).unwrap().unadmitted);
}

/// Announces that a job reads these shards, one after the other.
fn announce(of: &MemoryTier, urls: &[&str]) {
    let names: Arc<[String]> = urls.iter().map(|url| (*url).to_owned()).collect();
    let (tenant, job, client, options) = (None, None, None, Options::default());
    let scope = Scope::Node(1.0);
    let via = Arc::new(ReadContext { scope, tenant, owner: 1, job, client, options, urls: names });
    // Far apart, so that estimates of the job's rate keep the order.
    let bytes = 1 << 32;
    let objects: Vec<_> = urls.iter().map(|url| (ObjectKey::new("", url), bytes)).collect();
    of.shared().forecast.add_job(1, ("job", via), &objects, |shards| {
        Box::new(Epochs::new(shards.clone(), move |number| {
            let starts = (0..).step_by(1 << 32);
            let one = |(&shard, start)| Use { shard, start, end: start + bytes };
            let uses: Vec<_> = shards.iter().zip(starts).map(one).collect();
            let bytes = bytes * uses.len() as u64;
            (number == 0).then_some(Epoch { uses, bytes })
        }))
    });
    let decided: Vec<_> = objects.iter().map(|(object, _)| (*object, Role::Kept)).collect();
    of.shared().forecast.set_roles(&decided);
    of.tier.refresh_forecast();
}

#[tokio::test]
async fn announced_shard_leaves_only_for_an_earlier_need() {
    let foreseen = Dataset { evict: Evict::Clairvoyant, ..rule("a") };
    let of = MemoryTier::with(3, vec![foreseen], None).await;
    let names = ["/a/3", "/a/1", "/a/2"].map(|url| of.add(url, 1));
    announce(&of, &["/a/0", "/a/1", "/a/2", "/a/3", "/a/4"]);
    let charge = of.shared().shares.current().charge("/a/0", None);
    let has_victim = |url| of.tier.has_later_victim(charge, ObjectKey::new("", url), 1);
    assert!(has_victim("/a/0") && has_victim("/a/2"));
    assert!(!has_victim("/a/3") && !has_victim("/a/4"));
    assert_eq!(refused(of.ahead("/a/4", 1)).kind(), ErrorKind::Full);
    let _room = of.ahead("/a/0", 1).unwrap();
    assert_eq!(of.names(), names[1..], "the shard needed last has left");
    // A trainer that waits needs its shard now.
    let _second = of.needed("/a/4", 1).unwrap();
    assert_eq!(of.names(), names[1..2]);
}

/// Guests go before all kept shards, also those needed sooner, and take only the room of guests
/// needed later.
#[tokio::test]
async fn guests_go_before_all_kept_shards() {
    let foreseen = Dataset { evict: Evict::Clairvoyant, ..rule("a") };
    let of = MemoryTier::with(4, vec![foreseen], None).await;
    let names = ["/a/1", "/a/2", "/a/3", "/a/4"].map(|url| of.add(url, 1));
    announce(&of, &["/a/0", "/a/1", "/a/2", "/a/3", "/a/4"]);
    let roles = ["/a/1", "/a/2"].map(|url| (ObjectKey::new("", url), Role::Guest));
    of.shared().forecast.set_roles(&roles);
    of.tier.refresh_forecast();
    let last = of.shared().forecast.next_use(ObjectKey::new("", "/a/2")).unwrap();
    let guest = |due| Wanted { guest: Some(due), ..wanted("/a/9", None, PART) };
    let room = async |due| of.tier.make_room(&guest(due), Urgency::Ahead, false).await;
    assert_eq!(refused(room(last).await).kind(), ErrorKind::Full);
    let _room = room(last - 1).await.unwrap();
    assert_eq!(of.names(), [&names[0], &names[2], &names[3]].map(Clone::clone));
    let charge = of.shared().shares.current().charge("/a/0", None);
    assert!(of.tier.has_guest_to_go(charge, PART));
    let _second = of.ahead("/a/0", 1).unwrap();
    assert_eq!(of.names(), names[2..]);
    assert!(!of.tier.has_guest_to_go(charge, PART));
}

/// Guests of a job that is gone are spare: their owners keep the copies that stay.
#[tokio::test]
async fn guests_of_a_gone_job_are_spare() {
    let foreseen = Dataset { evict: Evict::Clairvoyant, ..rule("a") };
    let of = MemoryTier::with(2, vec![foreseen], None).await;
    let names = ["/a/1", "/a/2"].map(|url| of.add(url, 1));
    announce(&of, &["/a/1", "/a/2"]);
    of.shared().forecast.set_roles(&[(ObjectKey::new("", "/a/2"), Role::Guest)]);
    of.tier.refresh_forecast();
    let orphans = of.shared().forecast.remove_job(1);
    of.tier.refresh_forecast();
    of.shared().forecast.release_ids(orphans);
    let spare: Vec<_> = names.iter().map(|name| of.tier.table().is_unadmitted(name)).collect();
    assert_eq!(spare, [false, true]);
    let _room = of.ahead("/a/9", 1).unwrap();
    assert_eq!(of.names(), names[..1]);
}

#[tokio::test]
async fn unannounced_prefetch_evicts_no_announced_shard() {
    let foreseen = Dataset { evict: Evict::Clairvoyant, ..rule("a") };
    let of = MemoryTier::with(1, vec![foreseen], None).await;
    of.add("/a/1", 1);
    announce(&of, &["/a/0", "/a/1"]);
    let prefetch = Wanted { rank: forebay_source::Rank::behind(0), ..wanted("/a/9", None, PART) };
    let made = of.tier.make_room(&prefetch, Urgency::Ahead, false).await;
    assert_eq!(refused(made).kind(), ErrorKind::Full);
    // Without an announcement, a job that asks needs its shard now.
    assert!(of.ahead("/a/9", 1).is_ok());
}

#[derive(Debug, Clone)]
enum Step {
    Want(u8, u64),
    Use(u8),
    Pin(u8, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u8..10, 1_u64..5).prop_map(|(shard, parts)| Step::Want(shard, parts)),
        1 => (0_u8..10).prop_map(Step::Use),
        1 => (0_u8..10, any::<bool>()).prop_map(|(shard, yes)| Step::Pin(shard, yes)),
    ]
}

const PARTS: u64 = 8;

/// Shards with their parts, least recently used first; true for pinned ones.
type Model = Vec<(u8, u64, bool)>;

/// Evicts the oldest shards that are not pinned until `parts` fit. Returns false if they never do.
fn make_room(model: &mut Model, parts: u64) -> bool {
    let used = |model: &Model| model.iter().map(|(_, parts, _)| parts).sum::<u64>();
    while used(model) + parts > PARTS {
        let Some(at) = model.iter().position(|(.., pinned)| !pinned) else { return false };
        model.remove(at);
    }
    true
}

/// Applies a step to a tier and to its model.
fn apply(of: &MemoryTier, model: &mut Model, step: &Step) {
    let url = |shard: u8| format!("/a/{shard}");
    let name = |shard: u8| wanted(&url(shard), None, 1).name;
    let place = |model: &Model, shard: u8| model.iter().position(|(other, ..)| *other == shard);
    match *step {
        Step::Want(shard, _) if place(model, shard).is_some() => {}
        Step::Want(shard, parts) => match of.ahead(&url(shard), parts) {
            Ok(room) => {
                assert!(make_room(model, parts), "{shard} fits");
                drop(room);
                of.add(&url(shard), parts);
                model.push((shard, parts, false));
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Full);
                assert!(!make_room(model, parts), "{shard} does not fit");
            }
        },
        Step::Use(shard) => {
            of.tier.record_use(&name(shard));
            if let Some(at) = place(model, shard) {
                let used = model.remove(at);
                model.push(used);
            }
        }
        Step::Pin(shard, yes) => {
            let mut table = of.tier.table();
            if yes {
                table.pin(&name(shard));
            } else {
                table.unpin(&name(shard));
            }
            if let Some(at) = place(model, shard) {
                model[at].2 = yes;
            }
        }
    }
    let names: Vec<_> = model.iter().map(|(shard, ..)| name(*shard)).collect();
    assert_eq!(of.names(), names);
    assert_eq!(of.used(), model.iter().map(|(_, parts, _)| parts).sum::<u64>());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Evictions equal those of a list by last use, whatever is pinned meanwhile.
    #[test]
    fn evictions_equal_those_of_a_list(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let of = MemoryTier::new(PARTS).await;
            let mut model = Model::new();
            steps.iter().for_each(|step| apply(&of, &mut model, step));
        });
    }
}
