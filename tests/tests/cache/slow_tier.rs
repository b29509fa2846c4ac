//! A tier that writes slowly delays nobody: samples are indexed, checked and served from the frames
//! while their write is under way.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_error::ErrorKind;
use forebay_source::Options;
use forebay_store::{PART_BYTES, Shard, ShardHandle, Urgency};
use forebay_testkit::{Fault, FaultProxy, When, image, shard};
use forebay_tests::{BareStore, BareStoreConfig, Daemon, Origin, alone, eventually};
use forebay_uring::{Attempt, AttemptKind, Fate, Faults};
use futures::{FutureExt, poll};
use hyper::header::{ETAG, LAST_MODIFIED};
use tokio::sync::watch;

const PART: u64 = PART_BYTES as u64;

/// Holds every write that touches `range` until told to let go.
struct Held {
    range: Range<u64>,
    gate: watch::Sender<bool>,
    held: AtomicU64,
    landed: AtomicU64,
}

impl Held {
    fn on(range: Range<u64>) -> Arc<Self> {
        let (held, landed) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { range, gate: watch::Sender::new(false), held, landed })
    }

    fn let_go(&self) {
        self.gate.send_replace(true);
    }
}

impl Faults for Held {
    fn fate(&self, attempt: &Attempt<'_>) -> Fate {
        let touches = attempt.offset < self.range.end
            && self.range.start < attempt.offset + attempt.len as u64;
        if attempt.kind != AttemptKind::Write || !touches {
            return Fate::Pass;
        }
        self.held.fetch_add(1, Ordering::SeqCst);
        let mut gate = self.gate.subscribe();
        Fate::Wait(Box::pin(async move {
            // A gate that is gone lets everything through.
            let _open = gate.wait_for(|open| *open).await;
        }))
    }

    fn landed(&self, attempt: &Attempt<'_>, _is_ok: bool) {
        if attempt.kind == AttemptKind::Write {
            self.landed.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A shard's file, and a store that writes it as `held` lets it.
fn begin(
    samples: u64,
    sizes: &Range<usize>,
    held: &Arc<Held>,
) -> (BareStore, String, [tempfile::TempDir; 2]) {
    let (origin, cache) = (Daemon::disk(), Daemon::disk());
    let path = origin.path().join("0.tar");
    std::fs::write(&path, shard(samples, 0, sizes)).unwrap();
    let mut config = BareStoreConfig::new(cache.path().to_owned(), 1 << 30);
    config.faults = Some(held.clone());
    (config.open(), format!("file://{}", path.display()), [origin, cache])
}

/// One member's bytes, checked.
async fn member(bare: &BareStore, shard: &ShardHandle, number: usize) -> Vec<u8> {
    let member = shard.index().index().members[number];
    let range = member.offset..member.end();
    let footprint = Shard::footprint(&range);
    let len = usize::try_from(footprint.end - footprint.start).unwrap();
    let span = bare.frames.lease(len).await.unwrap();
    let mut placed = shard.read(vec![(range, span)]).await.pop().unwrap();
    let from = placed.check(&member).unwrap();
    let span = placed.into_span();
    let from = from - span.offset();
    span[from..from + usize::try_from(member.len).unwrap()].to_vec()
}

#[test]
fn samples_are_served_while_the_tier_writes_them() {
    const SIZES: Range<usize> = 100_000..110_000;
    const SAMPLES: u64 = 200;
    let held = Held::on(0..u64::MAX);
    let (bare, url, _directories) = begin(SAMPLES, &SIZES, &held);
    bare.runtime.block_on(async {
        let lease = bare.store.shard(&url, &Options::default(), Urgency::Needed).await.unwrap();
        assert_eq!(lease.wait(u64::MAX).await.unwrap().samples, SAMPLES);
        // A sample has an image and a label.
        for sample in 0..SAMPLES {
            let bytes = member(&bare, &lease, usize::try_from(sample * 2).unwrap()).await;
            assert!(bytes == image(0, sample, &SIZES), "sample {sample}");
        }
        eventually("the tier is written to", || held.held.load(Ordering::SeqCst) > 0);
        assert_eq!(held.landed.load(Ordering::SeqCst), 0, "and nothing was done");
        assert_eq!(bare.store.counters().fills, 0);
        held.let_go();
    });
    eventually("the shard is whole", || bare.store.counters().fills == 1);
    assert_eq!(bare.read_all(&url).unwrap().len() as u64, SAMPLES * 2);
    assert_eq!(bare.store.counters().corruptions, 0);
}

/// A record's first frames may be given back while its last is still being written: then the read
/// waits for that, rather than reading what is not there.
#[test]
fn record_reaching_an_unwritten_part_waits_for_it() {
    let _alone = alone();
    // Two parts and a half each.
    const SIZES: Range<usize> = 10 << 20..(10 << 20) + 1;
    const SAMPLES: u64 = 3;
    let held = Held::on(2 * PART..2 * PART + 1);
    let (bare, url, _directories) = begin(SAMPLES, &SIZES, &held);
    bare.runtime.block_on(async {
        let lease = bare.store.shard(&url, &Options::default(), Urgency::Needed).await.unwrap();
        lease.wait(u64::MAX).await.unwrap();
        eventually("the frames are given back", || bare.frames.in_use() == PART_BYTES);
        let mut first = std::pin::pin!(member(&bare, &lease, 0));
        // Its first part is on the tier, its third is not.
        assert!(poll!(first.as_mut()).is_pending());
        held.let_go();
        assert!(first.await == image(0, 0, &SIZES));
    });
    eventually("the shard is whole", || bare.store.counters().fills == 1);
    assert_eq!(bare.store.counters().corruptions, 0);
}

/// Those who located a sample before its fill failed read it: from the frames while those are held,
/// and then from the file, once it is written.
#[test]
fn served_parts_of_a_failed_fill_are_written() {
    let _alone = alone();
    const SIZES: Range<usize> = 100_000..110_000;
    const SAMPLES: u64 = 200;
    let held = Held::on(0..PART);
    let (bare, _, _directories) = begin(1, &SIZES, &held);
    let origin = Origin::with_shards(1, SAMPLES, &SIZES);
    // Without a version all parts come in one answer.
    let proxy = FaultProxy::start(origin.server.address()).unwrap();
    proxy.set([ETAG, LAST_MODIFIED].map(|name| (When::any(), Fault::no_header(name))).to_vec());
    let (key, url) = (Origin::key("0.tar"), format!("{}/bucket/0.tar", proxy.endpoint()));
    origin.server.stall(&key, PART * 3 / 2);
    bare.runtime.block_on(async {
        let lease = bare.store.shard(&url, &Options::default(), Urgency::Needed).await.unwrap();
        lease.wait(1).await.unwrap();
        eventually("the next part is coming", || bare.frames.in_use() == 2 * PART_BYTES);
        origin.server.deny(&key, true);
        origin.server.break_off(&key, true);
        // But for the one that is being written.
        eventually("the frames are given back", || bare.frames.in_use() == PART_BYTES);
        let mut waiting = None;
        eventually("a read finds no frame", || {
            let mut first = Box::pin(member(&bare, &lease, 0));
            match (&mut first).now_or_never() {
                Some(from_the_frame) => assert!(from_the_frame == image(0, 0, &SIZES)),
                None => waiting = Some(first),
            }
            waiting.is_some()
        });
        held.let_go();
        assert!(waiting.unwrap().await == image(0, 0, &SIZES));
        let why = lease.wait(u64::MAX).await.unwrap_err();
        assert_eq!(why.kind(), ErrorKind::Unavailable, "{why}");
    });
}
