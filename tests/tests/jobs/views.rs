//! Back-pressure and views: what a consumer keeps stays right, and never stops the loader.

use std::ops::Range;

use forebay_client::{Batch, Loader, LoaderConfig, Next, Rows};
use forebay_decode::{FieldKind, FieldSpec};
use forebay_error::ErrorKind;
use forebay_testkit::image;
use forebay_tests::{Daemon, FRAMES, Origin, config, epoch, eventually, job, loader, next};
use forebay_wire::message::Begin;

const SIZES: Range<usize> = 60_000..80_000;
const SHARDS: u64 = 2;
const SAMPLES: u64 = 80;

fn views(daemon: &Daemon, origin: &Origin, shards: u64) -> Loader {
    let mut open = job(origin, Origin::urls(shards));
    let fields = vec![FieldSpec::new("image", "jpg", FieldKind::Bytes)];
    open.fields = Some(FieldSpec::wanted(&fields));
    let (fields, views) = (Some(fields), vec!["image".to_owned()]);
    Loader::open(LoaderConfig { fields, views, ..config(daemon.address(), open) }).unwrap()
}

fn assert_right(batch: &Batch, sizes: &Range<usize>) {
    let Some((_, Rows::Views(views))) = batch.columns.first() else { panic!("no views") };
    for (row, view) in views.iter().enumerate() {
        let i = batch.keys[row].parse().unwrap();
        assert!(view.as_ref().unwrap()[..] == image(u64::from(batch.urls[row]), i, sizes)[..]);
    }
}

/// Bears the rule of DESIGN §5 that a consumer who keeps every batch never waits for itself and
/// never sees recycled bytes, nor after the loader or the daemon is gone.
#[test]
fn consumer_may_keep_every_batch() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let loader = views(&daemon, &origin, SHARDS);
    loader.start(Begin::at(0, 0)).unwrap();
    let mut kept = Vec::new();
    while let Next::Batch(batch) = next(&loader).unwrap() {
        kept.push(batch);
    }
    assert_eq!(kept.len() as u64, SHARDS * SAMPLES / 8);
    let copies = loader.stats().private_copies;
    assert_eq!(copies, kept.len() as u64 - 2, "half of the four slots may be kept");
    kept.iter().for_each(|batch| assert_right(batch, &SIZES));
    drop(loader);
    kept.iter().for_each(|batch| assert_right(batch, &SIZES));
    daemon.stop();
    kept.iter().for_each(|batch| assert_right(batch, &SIZES));
}

/// Bears promise 3 (budgets): the slots with a trainer that takes nothing never exceed `prefetch`.
#[test]
fn slow_consumer_holds_at_most_its_prefetch() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let loader = views(&daemon, &origin, SHARDS);
    loader.start(Begin::at(0, 0)).unwrap();
    let Next::Batch(first) = next(&loader).unwrap() else { panic!("no batch") };
    eventually("the daemon is as far ahead as it may", || daemon.number("/jobs/0/lent_slots") == 4);
    let read = daemon.node().store().counters();
    let taken = read.tier_read_bytes + read.copied_bytes;
    for _ in 0..20 {
        assert!(daemon.number("/jobs/0/lent_slots") <= 4);
    }
    let read = daemon.node().store().counters();
    assert_eq!(read.tier_read_bytes + read.copied_bytes, taken, "nothing is read beyond that");
    assert_right(&first, &SIZES);
    drop(first);
    let mut batches = 1;
    while let Next::Batch(batch) = next(&loader).unwrap() {
        assert_right(&batch, &SIZES);
        assert!(daemon.number("/jobs/0/lent_slots") <= 4);
        batches += 1;
    }
    assert_eq!(batches, SHARDS * SAMPLES / 8);
    eventually("all slots are back", || daemon.number("/jobs/0/lent_slots") == 0);
}

/// Bears promise 3: a batch that no slab can hold is refused with the figures; where memory is
/// short but enough for one, fewer batches are kept ready.
#[test]
fn short_memory_cuts_prefetch_before_it_rejects_batches() {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let disk = Daemon::disk();
    let mut config = Daemon::config(disk.path(), 1 << 30);
    config.memory = FRAMES + (4 << 20);
    let daemon = Daemon::try_start(config).unwrap();
    let mut open = job(&origin, Origin::urls(SHARDS));
    open.order.batch_size = 80;
    let error = epoch(daemon.address(), open.clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(error.place("limit"), Some("4194304"));
    open.order.batch_size = 20;
    let loader = loader(daemon.address(), open).unwrap();
    forebay_tests::play(&loader, 0, 0).unwrap().assert_whole(2, SAMPLES, &SIZES);
    assert!(daemon.number("/jobs/0/slab_batches") < 4);
}

/// Plays an epoch as `for batch in loader` does: each batch is kept until the next one is there.
fn play_keeping_one(loader: &Loader, sizes: impl Fn(&Batch) -> Range<usize>) -> u64 {
    loader.start(Begin::at(0, 0)).unwrap();
    let mut batches = 0;
    let mut kept: Option<Box<Batch>> = None;
    while let Next::Batch(batch) = next(loader).unwrap() {
        if let Some(kept) = kept.replace(batch) {
            assert_right(&kept, &sizes(&kept));
        }
        batches += 1;
    }
    assert_right(kept.as_ref().unwrap(), &sizes(kept.as_ref().unwrap()));
    batches
}

/// Bears the rule of DESIGN §5 that a consumer never waits for itself, where memory is so short
/// that the slab holds one batch only: nothing is lent, whether it keeps one batch or all.
#[test]
fn slab_of_one_batch_lends_none() {
    // Eight of these are more than half of the memory there is.
    let sizes = 270_000..280_000;
    let origin = Origin::with_shards(SHARDS, SAMPLES, &sizes);
    let disk = Daemon::disk();
    let mut config = Daemon::config(disk.path(), 1 << 30);
    config.memory = FRAMES + (4 << 20);
    let daemon = Daemon::try_start(config).unwrap();
    let loader = views(&daemon, &origin, SHARDS);
    assert_eq!(play_keeping_one(&loader, |_| sizes.clone()), SHARDS * SAMPLES / 8);
    assert_eq!(daemon.number("/jobs/0/slab_batches"), 1);
    assert_eq!(loader.stats().private_copies, SHARDS * SAMPLES / 8);
    loader.start(Begin::at(1, 0)).unwrap();
    let mut kept = Vec::new();
    while let Next::Batch(batch) = next(&loader).unwrap() {
        kept.push(batch);
    }
    assert_eq!(kept.len() as u64, SHARDS * SAMPLES / 8);
    kept.iter().for_each(|batch| assert_right(batch, &sizes));
}

/// Bears the rule of DESIGN §5 that a consumer never waits for itself: what it keeps leaves room
/// for a batch several times larger than any before, which fits the slab, but not beside two that
/// the consumer keeps somewhere in its midst.
#[test]
fn views_of_small_batches_leave_room_for_larger_ones() {
    // Batches of 1.6, 3.2 and 6.2 MB: the first slab has room for four of 2 MiB each.
    let sizes = [190_000..200_000, 390_000..400_000, 770_000..780_000];
    let origin = Origin::new();
    for (n, sizes) in (0..).zip(&sizes) {
        origin.put(&format!("{n}.tar"), &forebay_testkit::shard(40, n, sizes));
    }
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    for _ in 0..2 {
        let loader = views(&daemon, &origin, 3);
        let batches = play_keeping_one(&loader, |batch| sizes[batch.urls[0] as usize].clone());
        assert_eq!((batches, loader.stats().reconnects), (15, 0));
        assert!(loader.stats().private_copies < batches, "memory is ample: some were lent");
        loader.start(Begin::at(1, 0)).unwrap();
        let mut kept = Vec::new();
        while let Next::Batch(batch) = next(&loader).unwrap() {
            kept.push(batch);
        }
        assert_eq!(kept.len(), 15);
        kept.iter().for_each(|batch| assert_right(batch, &sizes[batch.urls[0] as usize]));
    }
}

/// Bears the rule of DESIGN §5 that a consumer never waits for itself: a large first batch lies in
/// a slab of its own, which is lent whole, for ever if need be.
#[test]
fn large_first_batch_leaves_memory_to_later_ones() {
    let origin = Origin::new();
    let sizes = 1_100_000..1_200_000;
    origin.put("0.tar", &forebay_testkit::shard(80, 0, &sizes));
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let loader = views(&daemon, &origin, 1);
    loader.start(Begin::at(0, 0)).unwrap();
    let Next::Batch(first) = next(&loader).unwrap() else { panic!("no batch") };
    assert_eq!(loader.stats().private_copies, 0);
    let mut batches = 1;
    while let Next::Batch(batch) = next(&loader).unwrap() {
        assert_right(&batch, &sizes);
        batches += 1;
    }
    assert_eq!((batches, loader.stats().private_copies), (10, 0));
    assert!(
        daemon.number("/slab_bytes") > daemon.number("/jobs/0/slab_bytes"),
        "the first's is kept"
    );
    assert_right(&first, &sizes);
    drop(first);
    let own = || daemon.number("/slab_bytes") == daemon.number("/jobs/0/slab_bytes");
    eventually("the first batch's memory is back", own);
}

/// Bears the rule of DESIGN §5 that an oversized batch renegotiates the slab, without losing the
/// batches still on their way in the one before.
#[test]
fn oversized_batch_gets_a_larger_slab() {
    let origin = Origin::new();
    // The first slab has room for four batches of 2 MiB; these have more than all of it.
    let large = 1_100_000..1_200_000;
    origin.put("0.tar", &forebay_testkit::shard(40, 0, &(1000..2000)));
    origin.put("1.tar", &forebay_testkit::shard(40, 1, &large));
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    // Cold, then warm: there the large batches come while the small ones are still being read.
    for _ in 0..2 {
        let loader = loader(daemon.address(), job(&origin, Origin::urls(2))).unwrap();
        let got = forebay_tests::play(&loader, 0, 0).unwrap();
        assert_eq!((got.samples.len(), got.errors.len()), (80, 0));
        for sample in got.samples.iter().filter(|sample| sample.shard == 1) {
            assert!(sample.fields["jpg"] == image(1, sample.key.parse().unwrap(), &large));
        }
        assert_eq!(loader.stats().reconnects, 0);
        assert!(daemon.number("/jobs/0/slab_bytes") > 4 * 8 * large.start as u64, "a larger slab");
    }
    eventually("every slab is gone", || daemon.number("/slab_bytes") == 0);
}
