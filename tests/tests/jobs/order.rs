//! The order of samples: a function of the job, through the whole stack.

use forebay_client::Next;
use forebay_error::ErrorKind;
use forebay_tests::{
    Daemon, Epoch, Origin, Received, epoch, eventually, job, loader, next, play, rest,
};
use forebay_wire::message::{Begin, Open, Picked, Shuffle, Tail};

const SIZES: std::ops::Range<usize> = 500..3000;
const SHARDS: u64 = 12;
const SAMPLES: u64 = 17;
const TOTAL: u64 = SHARDS * SAMPLES;

struct Bench {
    origin: Origin,
    daemon: Daemon,
    _disk: tempfile::TempDir,
}

fn bench() -> Bench {
    let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    Bench { origin, daemon, _disk: disk }
}

impl Bench {
    /// A window-shuffled job of one of `world` ranks with 24 samples per global batch.
    fn job(&self, rank: u32, world: u32) -> Open {
        let mut open = job(&self.origin, Origin::urls(SHARDS));
        open.counts = Some(vec![SAMPLES; SHARDS as usize]);
        open.order.shuffle = Shuffle::Window;
        open.order.window = 4;
        (open.order.rank, open.order.world_size) = (rank, world);
        open.order.batch_size = 24 / world;
        open
    }

    fn epoch(&self, open: Open) -> Epoch {
        let epoch = epoch(self.daemon.address(), open).unwrap();
        assert_eq!(epoch.errors, []);
        epoch.assert_bytes(&SIZES);
        epoch
    }
}

/// Bears promise 5 (order is a function): with equal global batches, worlds of 1, 2 and 4 read the
/// same samples at the same positions in the same batches; and promise 6: each once.
#[test]
fn global_order_does_not_depend_on_world_size() {
    let bench = bench();
    let mut of_one: Option<Vec<_>> = None;
    for world in [1, 2, 4] {
        let mut all = Vec::new();
        for rank in 0..world {
            let epoch = bench.epoch(bench.job(rank, world));
            assert_eq!(epoch.announced, (TOTAL.div_ceil(24), TOTAL));
            all.extend(epoch.samples.into_iter().filter(|sample| sample.valid));
        }
        all.sort_by_key(|sample| sample.position);
        let positions: Vec<u64> = all.iter().map(|sample| sample.position).collect();
        assert_eq!(positions, (0..TOTAL).collect::<Vec<_>>());
        let listed: Vec<_> = all.into_iter().map(|s| (s.batch, s.shard, s.key)).collect();
        match &of_one {
            None => {
                let mut once: Vec<_> = listed.iter().map(|(_, shard, key)| (shard, key)).collect();
                assert!(!once.is_sorted(), "nothing was mixed");
                once.sort();
                once.dedup();
                assert_eq!(once.len() as u64, TOTAL);
                of_one = Some(listed);
            }
            Some(of_one) => assert_eq!(*of_one, listed, "world {world}"),
        }
    }
}

/// Bears promise 6 (exactly once) over a resume: started at batch k, a job gives exactly what a
/// full run gives from there, with and without a manifest, whatever the order.
#[test]
fn run_from_batch_k_is_the_tail_of_the_full_run() {
    let bench = bench();
    for (counts, shuffle) in [
        (true, Shuffle::Window),
        (false, Shuffle::Window),
        (false, Shuffle::None),
        (true, Shuffle::Global),
    ] {
        let mut open = bench.job(0, 1);
        open.order.shuffle = shuffle;
        if !counts {
            open.counts = None;
        }
        let loader = loader(bench.daemon.address(), open).unwrap();
        let full = play(&loader, 3, 0).unwrap();
        assert_eq!(full.samples.len() as u64, TOTAL);
        for from in [0, 1, 5, 8, 9] {
            let rest = play(&loader, 3, from).unwrap();
            let tail: Vec<_> = full.samples.iter().filter(|s| s.batch >= from).cloned().collect();
            assert_eq!(rest.samples, tail, "{shuffle:?} from {from}");
            assert_eq!(rest.announced, full.announced);
        }
        let other = play(&loader, 4, 0).unwrap();
        assert_eq!(other.sequence() == full.sequence(), shuffle == Shuffle::None);
    }
}

/// Bears promise 6 (exactly once) over a resume: started at any sample, in a world and with batches
/// of any size, all ranks together give what is left of the sequence; and every n-th batch is every
/// n-th.
#[test]
fn run_begins_at_any_sample() {
    let bench = bench();
    let whole = play(&loader(bench.daemon.address(), bench.job(0, 1)).unwrap(), 3, 0).unwrap();
    for (world, batch_size, base) in
        [(1, 5, 7), (2, 24, 1), (3, 4, 100), (4, 6, 203), (2, 6, TOTAL)]
    {
        let mut left = Vec::new();
        for rank in 0..world {
            let mut open = bench.job(rank, world);
            open.order.batch_size = batch_size;
            let loader = loader(bench.daemon.address(), open).unwrap();
            loader.start(Begin { base, ..Begin::at(3, 0) }).unwrap();
            let mine = rest(&loader).unwrap();
            let batches = (TOTAL - base).div_ceil(u64::from(world * batch_size));
            assert_eq!(mine.announced, (batches, TOTAL), "{world} {batch_size} {base}");
            for (first, step) in [(0, 2), (1, 2), (1, 3)] {
                loader.start(Begin { epoch: 3, base, batch: first, step }).unwrap();
                let some = rest(&loader).unwrap();
                let own = |batch: u64| batch >= first && (batch - first).is_multiple_of(step);
                let kept = mine.samples.iter().filter(|sample| own(sample.batch));
                assert!(some.samples.iter().eq(kept), "{first} {step}");
            }
            left.extend(mine.samples.into_iter().filter(|sample| sample.valid));
        }
        left.sort_by_key(|sample| sample.position);
        let keys = |samples: &[Received]| -> Vec<_> {
            samples
                .iter()
                .map(|sample| (sample.position, sample.shard, sample.key.clone()))
                .collect()
        };
        let at = usize::try_from(base).unwrap();
        assert_eq!(keys(&left), keys(&whole.samples[at..]), "{world} {batch_size} {base}");
    }
}

/// Samples of the trainer's choice come in its order, as often as it names them; what the job does
/// not have is refused, and the session goes on.
#[test]
fn samples_are_delivered_by_position() {
    let bench = bench();
    let loader = loader(bench.daemon.address(), bench.job(0, 1)).unwrap();
    let whole = play(&loader, 0, 0).unwrap();
    let picked =
        |shard, ordinal| Picked { position: u64::from(shard) * 1000 + ordinal, shard, ordinal };
    let wanted = [picked(7, 3), picked(0, 0), picked(7, 2), picked(7, 3), picked(11, 1)];
    loader.pick(wanted.to_vec()).unwrap();
    let got = rest(&loader).unwrap();
    assert_eq!(got.announced, (1, wanted.len() as u64));
    for (sample, wanted) in got.samples.iter().zip(&wanted) {
        let key = format!("{:06}", wanted.ordinal);
        assert_eq!(
            (sample.position, sample.shard, &sample.key),
            (wanted.position, wanted.shard, &key)
        );
        let same = |other: &&Received| (other.shard, &other.key) == (sample.shard, &sample.key);
        assert_eq!(
            Some(&sample.fields),
            whole.samples.iter().find(same).map(|other| &other.fields)
        );
    }
    assert_eq!(got.samples.len(), wanted.len());
    for wrong in [vec![], vec![picked(12, 0)], vec![picked(0, 0), picked(u32::MAX, 0)]] {
        loader.pick(wrong).unwrap();
        assert_eq!(next(&loader).unwrap_err().kind(), ErrorKind::Invalid);
    }
    // Past a shard's end there is no sample, and the others of the request are there.
    loader.pick(vec![picked(0, 0), picked(0, 1000)]).unwrap();
    let got = rest(&loader).unwrap();
    assert_eq!((got.samples.len(), got.errors.len()), (1, 1));
    assert_eq!(got.errors[0].place("sample"), Some("1000"));
    assert_eq!(play(&loader, 0, 0).unwrap().samples, whole.samples);
}

/// Bears promise 6 (exactly once) where a run is given up for the next: whatever is under way, the
/// new run begins with its first batch.
#[test]
fn restarted_run_begins_with_its_first_batch() {
    let bench = bench();
    let loader = loader(bench.daemon.address(), bench.job(0, 1)).unwrap();
    let full = play(&loader, 0, 0).unwrap();
    for taken in 0..60 {
        loader.start(Begin::at(0, 0)).unwrap();
        for _ in 0..taken % 4 {
            assert!(matches!(next(&loader).unwrap(), Next::Batch(_)));
        }
        // As a trainer that does something else first, so that batches wait.
        eventually("a batch is ready", || loader.is_ready());
        assert_eq!(play(&loader, 0, 0).unwrap().samples, full.samples);
    }
}

/// Bears promise 6's stated exceptions: what becomes of the last, incomplete global batch.
#[test]
fn epoch_tail_is_split_dropped_or_padded() {
    let bench = bench();
    // 204 samples: eight global batches of 24 and a rest of 12 for 4 ranks of 6.
    for tail in [Tail::Even, Tail::Drop, Tail::Pad] {
        let mut valid = 0;
        for rank in 0..4 {
            let mut open = bench.job(rank, 4);
            open.order.tail = tail;
            let epoch = bench.epoch(open);
            let batches = if tail == Tail::Drop { 8 } else { 9 };
            assert_eq!(epoch.announced.0, batches, "every rank makes the same number of steps");
            let last = epoch.samples.iter().filter(|sample| sample.batch == 8);
            let (good, padding): (Vec<_>, Vec<_>) = last.partition(|sample| sample.valid);
            let expected = match tail {
                Tail::Even => (3, 0),
                Tail::Drop => (0, 0),
                Tail::Pad => (3, 3),
            };
            assert_eq!((good.len(), padding.len()), expected, "{tail:?}");
            valid += epoch.samples.iter().filter(|sample| sample.valid).count() as u64;
        }
        assert_eq!(valid, if tail == Tail::Drop { 192 } else { TOTAL }, "{tail:?}");
    }
}
