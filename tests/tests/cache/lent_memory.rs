//! Shards in memory that trainers read where they lie.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use forebay_client::{Batch, Loader, LoaderConfig, Next, Rows};
use forebay_config::settings::NodeTier;
use forebay_decode::{FieldKind, FieldSpec};
use forebay_store::Class;
use forebay_testkit::image;
use forebay_tests::{Daemon, FRAMES, Origin, config, eventually, job, next, play};
use forebay_wire::message::{Begin, Open, Order};

const SIZES: Range<usize> = 30_000..40_000;
const SAMPLES: u64 = 40;
/// Memory takes shards in parts of this size.
const PART: u64 = forebay_store::PART_BYTES as u64;

/// A node with memory for so many shards of one part, and an origin of shards.
struct Bench {
    origin: Origin,
    daemon: Daemon,
    _disk: tempfile::TempDir,
}

impl Bench {
    fn new(parts: u64, shards: u64) -> Self {
        Self::of(parts, Origin::with_shards(shards, SAMPLES, &SIZES))
    }

    fn of(parts: u64, origin: Origin) -> Self {
        let disk = Daemon::disk();
        let mut config = Daemon::config(disk.path(), 1);
        let memory = NodeTier::at("ram", Class::Memory, "/".into(), parts * PART);
        config.tiers = vec![NodeTier { path: None, ..memory }];
        config.memory = usize::try_from(parts * PART).unwrap() + 2 * FRAMES;
        Self { origin, daemon: Daemon::try_start(config).unwrap(), _disk: disk }
    }

    /// A job over these shards whose trainer gets views of images.
    fn loader(&self, shards: Range<u64>, borrows: bool) -> Loader {
        let urls = shards.map(|n| Origin::url(&format!("{n}.tar"))).collect();
        self.open(job(&self.origin, urls), borrows)
    }

    /// The same for this job.
    fn open(&self, mut open: Open, borrows: bool) -> Loader {
        let fields = vec![FieldSpec::new("image", "jpg", FieldKind::Bytes)];
        open.fields = Some(FieldSpec::wanted(&fields));
        let (fields, views) = (Some(fields), vec!["image".to_owned()]);
        let mut config = LoaderConfig { fields, views, ..config(self.daemon.address(), open) };
        config.session.borrows = borrows;
        Loader::open(config).unwrap()
    }

    /// Plays an epoch over these shards, all of whose samples are right.
    fn play(&self, shards: Range<u64>, borrows: bool) {
        let others = self.jobs();
        let (first, count) = (shards.start, shards.end - shards.start);
        let loader = self.loader(shards, borrows);
        loader.start(Begin::at(0, 0)).unwrap();
        let mut samples = 0;
        while let Next::Batch(batch) = next(&loader).unwrap() {
            assert_right(&batch, first, &SIZES);
            samples += batch.keys.len() as u64;
        }
        assert_eq!(samples, count * SAMPLES);
        drop(loader);
        self.daemon.settle();
        eventually("the job has left", || self.jobs() <= others);
    }

    /// Number of jobs.
    fn jobs(&self) -> usize {
        self.daemon.status()["jobs"].as_array().unwrap().len()
    }

    /// Waits until nothing is fetched and no job is there.
    fn settle(&self) {
        self.daemon.settle();
        eventually("all jobs have left", || self.jobs() == 0);
    }

    /// Opens a job over these shards that are in memory; with its first batch, which it borrows.
    /// A shard is lent shortly after its fetch is counted.
    fn borrow(&self, shards: Range<u64>) -> (Loader, Box<Batch>) {
        let mut borrowed = None;
        eventually("the shards are lent", || {
            let loader = self.loader(shards.clone(), true);
            loader.start(Begin::at(0, 0)).unwrap();
            let batch = take(&loader);
            let is_lent = self.lent() > 0;
            borrowed = is_lent.then_some((loader, batch));
            is_lent
        });
        borrowed.unwrap()
    }

    /// Bytes that are lent.
    fn lent(&self) -> u64 {
        self.daemon.tier("ram").lent_bytes.unwrap()
    }

    /// Returns true if the samples of the job's batches lie in its slots.
    fn has_slots(&self) -> bool {
        self.daemon.number("/jobs/0/leased_bytes") > 0
    }
}

/// Asserts that the batch, of shards from number `first` on, has its generated images.
fn assert_right(batch: &Batch, first: u64, sizes: &Range<usize>) {
    let Some((_, Rows::Views(views))) = batch.columns.first() else { panic!("no views") };
    assert!(batch.errors.is_empty(), "{:?}", batch.errors);
    for (row, view) in views.iter().enumerate() {
        let i = batch.keys[row].parse().unwrap();
        let right = image(first + u64::from(batch.urls[row]), i, sizes);
        assert!(view.as_ref().unwrap()[..] == right[..], "sample {}", batch.keys[row]);
    }
}

fn take(loader: &Loader) -> Box<Batch> {
    match next(loader).unwrap() {
        Next::Batch(batch) => batch,
        Next::End(end) => panic!("no batch: {end:?}"),
    }
}

/// Samples of memory take no slot.
#[test]
fn warm_samples_are_read_where_they_lie() {
    let bench = Bench::new(8, 1);
    bench.play(0..1, true);
    let before = bench.daemon.tier("ram").counters.tier_read_bytes;
    let (loader, batch) = bench.borrow(0..1);
    assert_eq!(bench.lent(), PART);
    eventually("it takes no slot", || !bench.has_slots());
    let read = bench.daemon.tier("ram").counters.tier_read_bytes - before;
    assert!(batch.tier_bytes > 0 && read >= batch.tier_bytes, "{read} of {}", batch.tier_bytes);
    assert_eq!(loader.stats().private_copies, 0);
    assert_right(&batch, 0, &SIZES);
}

/// Views stay right when their loader is gone, whatever the tier's memory is used for meanwhile,
/// and when the daemon is gone.
#[test]
fn kept_views_outlive_loader_and_daemon() {
    let bench = Bench::new(8, 20);
    bench.play(0..1, true);
    let (loader, kept) = bench.borrow(0..1);
    let other = take(&loader);
    drop(loader);
    bench.settle();
    for _ in 0..2 {
        bench.play(1..20, true);
        assert!(bench.lent() >= PART, "the shard is kept");
        assert_right(&kept, 0, &SIZES);
        assert_right(&other, 0, &SIZES);
    }
    drop(other);
    bench.play(1..20, true);
    assert_right(&kept, 0, &SIZES);
    let Bench { daemon, .. } = bench;
    daemon.stop();
    assert_right(&kept, 0, &SIZES);
}

/// Loans end with the last view that a trainer keeps, after its loader is closed.
#[test]
fn memory_comes_back_with_the_last_view() {
    let bench = Bench::new(8, 1);
    bench.play(0..1, true);
    let (loader, kept) = bench.borrow(0..1);
    drop(loader);
    assert_eq!(bench.lent(), PART);
    drop(kept);
    eventually("nothing is lent", || bench.lent() == 0);
}

/// A trainer that asks for it has every sample checked.
#[test]
fn samples_are_copied_unless_the_trainer_borrows() {
    let bench = Bench::new(8, 1);
    bench.play(0..1, false);
    let loader = bench.loader(0..1, false);
    loader.start(Begin::at(0, 0)).unwrap();
    let batch = take(&loader);
    assert_right(&batch, 0, &SIZES);
    assert!(bench.has_slots());
    assert_eq!(bench.lent(), 0);
}

/// Others come and go while a trainer keeps a batch; its shard leaves once the batch is back.
#[test]
fn lent_shard_is_not_evicted() {
    let bench = Bench::new(8, 20);
    bench.play(0..1, true);
    let (loader, kept) = bench.borrow(0..1);
    while let Next::Batch(batch) = next(&loader).unwrap() {
        assert_right(&batch, 0, &SIZES);
    }
    eventually("only the kept batch holds it", || bench.daemon.number("/jobs/0/lent_slots") == 1);
    let served = bench.origin.served("0.tar");
    bench.play(1..20, true);
    eventually("only its shard is lent", || bench.lent() == PART);
    assert_right(&kept, 0, &SIZES);
    assert!(bench.daemon.tier("ram").counters.evictions >= 12, "twelve of 19 had to go");
    bench.play(0..1, true);
    assert_eq!(bench.origin.served("0.tar"), served, "it stayed");
    drop(kept);
    eventually("nothing is lent", || bench.lent() == 0);
    bench.play(1..20, true);
    bench.play(0..1, true);
    assert!(bench.origin.served("0.tar") > served, "it left when it could");
}

/// Half of the memory is lent at most: a batch of samples of more shards has some in its slot.
#[test]
fn shards_beyond_half_of_the_memory_are_copied() {
    let bench = Bench::new(8, 8);
    bench.play(0..8, true);
    drop(bench.borrow(7..8));
    bench.settle();
    let urls = (0..8).map(|n| Origin::url(&format!("{n}.tar"))).collect();
    let mut open = job(&bench.origin, urls);
    open.order = Order { lanes: Some(8), ..Order::shuffled(8, 3, 64) };
    open.counts = Some(vec![SAMPLES; 8]);
    let loader = bench.open(open, true);
    loader.start(Begin::at(0, 0)).unwrap();
    let mut batches = 0;
    while let Next::Batch(batch) = next(&loader).unwrap() {
        let shards: BTreeSet<u32> = batch.urls.iter().copied().collect();
        assert_eq!(shards.len(), 8, "every shard has samples in each batch");
        assert_eq!(bench.lent(), 4 * PART);
        assert!(bench.has_slots());
        assert_right(&batch, 0, &SIZES);
        batches += 1;
    }
    assert_eq!(batches, 8 * SAMPLES / 64);
}

/// A shard that is more than an eighth of the memory is copied.
#[test]
fn large_shards_are_copied() {
    let bench = Bench::new(7, 1);
    bench.play(0..1, true);
    let loader = bench.loader(0..1, true);
    loader.start(Begin::at(0, 0)).unwrap();
    assert_right(&take(&loader), 0, &SIZES);
    assert!(bench.has_slots());
    assert_eq!(bench.lent(), 0);
}

/// A sample that lies across two parts is lent where these follow each other in memory, and copied
/// elsewhere: two shards that arrive together have parts in turns.
#[test]
fn samples_across_parts_are_right() {
    let sizes = 700_000..900_000;
    let bench = Bench::of(160, Origin::with_shards(2, SAMPLES, &sizes));
    let mut open = job(&bench.origin, Origin::urls(2));
    open.order = Order { lanes: Some(2), ..Order::shuffled(2, 3, 8) };
    open.counts = Some(vec![SAMPLES; 2]);
    let (mut lent, mut copied) = (false, false);
    for epoch in 0..3 {
        let loader = bench.open(open.clone(), true);
        loader.start(Begin::at(epoch, 0)).unwrap();
        let mut batches = 0;
        while let Next::Batch(batch) = next(&loader).unwrap() {
            assert_right(&batch, 0, &sizes);
            lent |= bench.lent() > 0;
            copied |= bench.has_slots();
            batches += 1;
        }
        assert_eq!(batches, 2 * SAMPLES / 8);
        drop(loader);
        bench.settle();
    }
    assert!(lent && copied, "{lent} {copied}");
}

/// Samples that need decoding, or are copied out, come from there as well.
#[test]
fn all_fields_of_lent_shards_are_right() {
    let bench = Bench::new(8, 2);
    for _ in 0..2 {
        let mut config = config(bench.daemon.address(), job(&bench.origin, Origin::urls(2)));
        config.session.borrows = true;
        let loader = Loader::open(config).unwrap();
        play(&loader, 0, 0).unwrap().assert_whole(2, SAMPLES, &SIZES);
        bench.daemon.settle();
    }
    drop(bench.borrow(0..2));
}

/// Flips the first byte of `bytes` in memory of a tier of this process.
fn flip(bytes: &[u8]) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem").unwrap();
    let mut flipped = 0;
    // Trainers of this process map it, too, to read it.
    let tiers = maps.lines().filter(|map| map.contains("forebay-memory-tier"));
    for map in tiers.filter(|map| map.contains(" rw-s ")) {
        let (start, end) = map.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [start, end] = [start, end].map(|at| u64::from_str_radix(at, 16).unwrap());
        let mut held = vec![0; (end - start) as usize];
        // A daemon of another test may end now.
        if memory.read_exact_at(&mut held, start).is_err() {
            continue;
        }
        if let Some(at) = held.windows(bytes.len()).position(|window| window == bytes) {
            memory.write_all_at(&[!bytes[0]], start + at as u64).unwrap();
            flipped += 1;
        }
    }
    assert_eq!(flipped, 1);
}

/// A bit that flips in memory is found by the daemon, without a reader, and the copy is dropped.
#[test]
fn flipped_byte_in_memory_is_found() {
    // Bytes that no other test has.
    let sizes = 50_000..60_000;
    let bench = Bench::of(8, Origin::with_shards(1, SAMPLES, &sizes));
    let urls = Origin::urls(1);
    let play_all = || {
        let mut config = config(bench.daemon.address(), job(&bench.origin, urls.clone()));
        config.session.borrows = true;
        play(&Loader::open(config).unwrap(), 0, 0).unwrap().assert_whole(1, SAMPLES, &sizes);
        bench.daemon.settle();
    };
    play_all();
    assert_eq!(bench.daemon.tier("ram").counters.shards, 1);
    flip(&image(0, SAMPLES - 1, &sizes));
    eventually("it is found", || bench.daemon.tier("ram").counters.corruptions == 1);
    assert_eq!(bench.daemon.tier("ram").counters.shards, 0, "the copy is gone");
    play_all();
}

/// A trainer that has every sample checked never gets a flipped one.
#[test]
fn flipped_byte_is_found_by_a_checked_read() {
    let sizes = 60_000..70_000;
    let bench = Bench::of(8, Origin::with_shards(1, SAMPLES, &sizes));
    let play_all = || {
        let config = config(bench.daemon.address(), job(&bench.origin, Origin::urls(1)));
        play(&Loader::open(config).unwrap(), 0, 0).unwrap().assert_whole(1, SAMPLES, &sizes);
        bench.daemon.settle();
    };
    play_all();
    flip(&image(0, 3, &sizes));
    play_all();
    assert_eq!(bench.daemon.tier("ram").counters.corruptions, 1);
}
