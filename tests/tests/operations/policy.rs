//! Admins' rules for data sets, and their effect on shards.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use forebay_config::settings::NodeConfig;
use forebay_error::{Error, ErrorKind};
use forebay_store::{Dataset, Evict, ShardName};
use forebay_tests::{Daemon, Origin, cached_file, epoch, eventually, flip, job, loader, play};

const SIZES: std::ops::Range<usize> = 30_000..30_001;
const SAMPLES: u64 = 20;
const HOUR: Duration = Duration::from_secs(3600);

/// A daemon with room for so many shards, and an origin with ten.
struct Bench {
    origin: Origin,
    daemon: Daemon,
    config: NodeConfig,
    shard_bytes: u64,
    _disk: tempfile::TempDir,
}

impl Bench {
    fn new(shards: u64, datasets: impl FnOnce(u64) -> Vec<Dataset>) -> Self {
        let origin = Origin::with_shards(10, SAMPLES, &SIZES);
        // Labels differ in length, padding makes that equal.
        let shard_bytes = origin.bytes("0.tar").len() as u64;
        assert!((0..10).all(|n| origin.bytes(&format!("{n}.tar")).len() as u64 == shard_bytes));
        let disk = Daemon::disk();
        let mut config = Daemon::config(disk.path(), shards * shard_bytes);
        config.datasets = datasets(shard_bytes);
        let daemon = Daemon::try_start(config.clone()).unwrap();
        Self { origin, daemon, config, shard_bytes, _disk: disk }
    }

    /// The same after a restart, and what is done to its directory in between.
    fn restarted(self, between: impl FnOnce(&Path)) -> Self {
        self.daemon.stop();
        between(self.config.tiers[0].path.as_deref().unwrap());
        let daemon = Daemon::try_start(self.config.clone()).unwrap();
        Self { daemon, ..self }
    }

    /// Plays these shards one after the other, and waits until nothing is under way.
    fn play(&self, shards: impl IntoIterator<Item = u64>) -> Result<(), Error> {
        for n in shards {
            let open = job(&self.origin, vec![Origin::url(&format!("{n}.tar"))]);
            epoch(self.daemon.address(), open)?;
            self.settle();
        }
        Ok(())
    }

    fn settle(&self) {
        eventually("nothing is under way", || {
            let counters = self.daemon.node().store().counters();
            let jobs = self.daemon.status()["jobs"].as_array().unwrap().len();
            jobs == 0 && counters.misses == counters.ended()
        });
    }

    /// Returns the shards on the tier.
    fn resting(&self) -> Vec<u64> {
        let files = self.daemon.files();
        let rests = |n: &u64| {
            files.iter().any(|file| file.to_string_lossy().ends_with(&format!("-{n}.tar")))
        };
        (0..10).filter(rests).collect()
    }
}

/// Makes a cached shard look as old as that.
fn age(cache: &Path, n: u64, age: Duration) {
    date(cache, n, SystemTime::now() - age);
}

/// Makes a cached shard look written at a time.
fn date(cache: &Path, n: u64, written: SystemTime) {
    let sidecar = cached_file(&cache.join("shards"), &format!("-{n}.tar.idx")).unwrap();
    File::open(sidecar).unwrap().set_modified(written).unwrap();
}

fn rule(matches: &str, evict: Evict) -> Dataset {
    Dataset::new(matches, matches, evict).unwrap()
}

#[test]
fn pinned_data_set_stays_and_shards_without_room_fail() {
    let bench = Bench::new(2, |_| vec![Dataset { pin: true, ..rule("**/[01].tar", Evict::Lru) }]);
    bench.play([0, 2, 3, 4]).unwrap();
    assert_eq!(bench.resting(), [0, 4]);
    bench.play([1]).unwrap();
    assert_eq!(bench.resting(), [0, 1]);
    let error = bench.play([2]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.place("capacity").is_some(), "the whole tier is kept: {error}");
    bench.play([0, 1]).unwrap();
}

#[test]
fn quotas_bound_a_data_set_from_below_and_above() {
    let bench = Bench::new(4, |bytes| {
        let at_least = Dataset { min_bytes: bytes, ..rule("**/[01].tar", Evict::Lru) };
        let at_most = Dataset { max_bytes: Some(2 * bytes), ..rule("**/[23456].tar", Evict::Lru) };
        vec![at_least, at_most]
    });
    bench.play([0, 1, 2, 3, 4, 5]).unwrap();
    assert_eq!(bench.resting(), [0, 1, 4, 5], "its own oldest go above the maximum");
    let status = bench.daemon.status();
    let told = |at: usize, what: &str| status["cache"]["datasets"][at][what].clone();
    assert_eq!(told(1, "name"), "**/[23456].tar");
    assert_eq!(told(1, "max_bytes"), 2 * bench.shard_bytes);
    assert_eq!(told(1, "used_bytes"), 2 * bench.shard_bytes);
    assert_eq!(told(1, "shards"), 2);
    assert_eq!(told(2, "shards"), 0);
    assert_eq!(told(2, "evict"), "clairvoyant");
    bench.play([7, 8, 9, 7, 8, 9]).unwrap();
    assert!(bench.resting().contains(&1), "one shard is its minimum: {:?}", bench.resting());
    assert!(!bench.resting().contains(&0), "more than the minimum is anybody's");
    let used = bench.daemon.node().store().counters().used_bytes;
    assert_eq!(used, 4 * bench.shard_bytes);
}

#[test]
fn shard_above_its_data_sets_quota_is_rejected() {
    let bench = Bench::new(4, |bytes| {
        vec![Dataset { max_bytes: Some(bytes - 1), ..rule("**/0.tar", Evict::Lru) }]
    });
    let error = bench.play([0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(error.place("dataset"), Some("**/0.tar"));
    assert_eq!(error.place("quota"), Some((bench.shard_bytes - 1).to_string().as_str()));
}

#[test]
fn expired_copy_is_refetched_and_evicted_first() {
    let bench = Bench::new(3, |_| {
        let brief = Dataset { ttl: Some(HOUR), ..rule("**/[01].tar", Evict::Lru) };
        let priority = Dataset { priority: -1, ..rule("**/2.tar", Evict::Lru) };
        vec![brief, priority]
    });
    bench.play([2, 3, 0]).unwrap();
    let bench = bench.restarted(|cache| age(cache, 0, 2 * HOUR));
    bench.play([0, 0]).unwrap();
    assert_eq!(bench.origin.served("0.tar"), 2 * bench.shard_bytes);
    let bench = bench.restarted(|cache| age(cache, 0, 2 * HOUR));
    bench.play([4]).unwrap();
    assert_eq!(bench.resting(), [2, 3, 4], "the stale one went before one of lower priority");
}

/// A copy that was written under a clock far ahead ages from the restart on: it goes stale.
#[test]
fn copy_from_the_future_ages_from_now() {
    let brief = Duration::from_millis(1);
    let bench = Bench::new(3, |_| vec![Dataset { ttl: Some(brief), ..rule("**", Evict::Lru) }]);
    bench.play([0]).unwrap();
    // A copy this brief may go stale within one job already.
    let before = bench.origin.served("0.tar");
    let year = 365 * 24 * HOUR;
    let bench = bench.restarted(|cache| date(cache, 0, SystemTime::now() + year));
    bench.play([0]).unwrap();
    assert!(bench.origin.served("0.tar") >= before + bench.shard_bytes);
}

#[test]
fn young_copy_is_not_evicted() {
    let keep = Some(HOUR);
    let bench = Bench::new(2, |_| {
        vec![Dataset { dont_evict_time: keep, ..rule("**/[01].tar", Evict::Lru) }]
    });
    bench.play([0, 2, 3, 1]).unwrap();
    assert_eq!(bench.resting(), [0, 1]);
    assert_eq!(bench.play([2]).unwrap_err().kind(), ErrorKind::Full);
    let bench = bench.restarted(|cache| age(cache, 1, 2 * HOUR));
    bench.play([2]).unwrap();
    assert_eq!(bench.resting(), [0, 2]);
}

#[test]
fn lower_priorities_are_evicted_first() {
    let bench = Bench::new(3, |_| {
        let high = Dataset { priority: 10, ..rule("**/[0123].tar", Evict::Lru) };
        vec![high, rule("**/[456].tar", Evict::Lru)]
    });
    bench.play([0, 1, 4]).unwrap();
    bench.play([2]).unwrap();
    assert_eq!(bench.resting(), [0, 1, 2], "4 was used last and is less important");
    bench.play([5]).unwrap();
    assert!(bench.resting().contains(&5), "a trainer that waits gets what it needs");
}

/// A data set larger than the tier in one order: LRU never hits, `static` hits what it kept.
#[test]
fn static_keeps_the_first_shards_and_passes_the_rest() {
    for (evict, fetched_again) in [(Evict::Static, 5), (Evict::Lru, 8)] {
        let bench = Bench::new(4, |_| vec![rule("**", evict)]);
        bench.play(0..8).unwrap();
        let first = bench.daemon.node().store().counters().fills;
        assert_eq!(first, 8);
        bench.play(0..8).unwrap();
        let again = bench.daemon.node().store().counters().fills - first;
        assert_eq!(again, fetched_again, "{evict:?}, {:?}", bench.resting());
    }
}

#[test]
fn none_keeps_shards_only_while_there_is_room() {
    let bench = Bench::new(3, |_| vec![rule("**/[01234].tar", Evict::None)]);
    bench.play([5, 0, 1]).unwrap();
    assert_eq!(bench.resting(), [0, 1, 5]);
    bench.play([2, 3]).unwrap();
    assert_eq!(
        bench.resting(),
        [2, 3, 5],
        "what was to stay stays, though it was used longest ago"
    );
}

/// However many batches are read of a shard, an epoch is one use of it.
#[test]
fn epoch_counts_as_one_use() {
    let bench = Bench::new(3, |_| vec![rule("**", Evict::Lfu)]);
    let open = job(&bench.origin, vec![Origin::url("0.tar")]);
    {
        let loader = loader(bench.daemon.address(), open).unwrap();
        for number in 0..3 {
            play(&loader, number, 0).unwrap();
        }
    }
    bench.settle();
    bench.play([1, 2, 1, 3]).unwrap();
    assert_eq!(bench.resting(), [0, 1, 3], "0 was used three times, 1 twice, 2 once");
}

#[test]
fn rules_beyond_the_tier_are_rejected() {
    let disk = Daemon::disk();
    let mut config = Daemon::config(disk.path(), 1 << 20);
    let half = |name| Dataset { min_bytes: (1 << 19) + 1, ..rule(name, Evict::Lru) };
    config.datasets = vec![half("a"), half("b")];
    let error = Daemon::try_start(config).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let promised = (1_u64 << 20) + 2;
    assert_eq!(error.place("promised"), Some(&*promised.to_string()), "{error}");
    assert!(error.place("tiers").is_some(), "by data sets, not by tenants: {error}");
}

/// Bears promise 4's basis: a restart forgets nothing of who was used last, and a copy that is
/// wanted before the directory is listed counts as used after all others.
#[test]
fn restart_keeps_the_order_of_use() {
    let bench = Bench::new(3, |_| Vec::new());
    bench.play([0, 1, 2, 0]).unwrap();
    let bench = bench.restarted(|_| ());
    bench.play([3]).unwrap();
    assert_eq!(bench.resting(), [0, 2, 3], "1 was used longest ago, 0 written longest ago");
    let bench = bench.restarted(|cache| fs::write(cache.join("RECENCY"), "nonsense").unwrap());
    bench.play([4]).unwrap();
    assert_eq!(bench.resting().len(), 3, "damaged, it costs order and nothing else");
}

/// Refused at once, not after a wait, whatever else could be evicted for others.
#[test]
fn quota_full_of_young_shards_rejects_at_once() {
    let bench = Bench::new(5, |bytes| {
        let max_bytes = Some(2 * bytes);
        let dont_evict_time = Some(HOUR);
        vec![Dataset { max_bytes, dont_evict_time, ..rule("**/[012].tar", Evict::Lru) }]
    });
    bench.play([5, 6, 0, 1]).unwrap();
    let error = bench.play([2]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(bench.resting(), [0, 1, 5, 6]);
}

/// On a tier that others filled, a policy that admits only into free room still gets its minimum.
#[test]
fn minimum_is_filled_even_by_static() {
    let bench = Bench::new(4, |bytes| {
        vec![Dataset { min_bytes: 2 * bytes, ..rule("**/[0123].tar", Evict::Static) }]
    });
    bench.play([6, 7, 8, 9, 0, 1, 2, 3, 5, 6]).unwrap();
    let own: Vec<_> = bench.resting().into_iter().filter(|n| *n < 4).collect();
    assert_eq!(own, [0, 1]);
}

/// Cached shards of nothing but zeros, as many as that.
fn crowd(cache: &Path, shards: u32) {
    for number in 0..shards {
        let name = format!("s3://crowd/{number}.tar");
        let origin = forebay_shard::Origin {
            endpoint: "https://crowd".to_owned(),
            url: name,
            version: "1".to_owned(),
        };
        let file = ShardName::new(&origin).as_str().to_owned();
        let data = cache.join("shards").join(&file);
        File::create(&data).unwrap().set_len(CROWD_BYTES).unwrap();
        let index = forebay_shard::Index::default();
        let (len, blocks, tenant, compressed_len) = (CROWD_BYTES, vec![0], None, None);
        let sidecar = forebay_shard::Sidecar { origin, tenant, len, compressed_len, blocks, index };
        fs::write(data.with_file_name(format!("{file}.idx")), sidecar.encode().unwrap()).unwrap();
    }
}

const CROWD: u32 = 5000;
const CROWD_BYTES: u64 = 10_240;

/// Bears promise 3 while a directory is still being listed: copies that leave meanwhile, because
/// they are stale or damaged, are not found again by the listing, so nothing is counted or evicted
/// twice.
#[test]
fn shards_leaving_during_the_listing_are_counted_once() {
    // Room for the crowd, too: it is older, and goes first.
    let bench =
        Bench::new(8 + 80, |_| vec![Dataset { ttl: Some(HOUR), ..rule("**/0.tar", Evict::Lru) }]);
    bench.play([0, 1]).unwrap();
    let bench = bench.restarted(|cache| {
        age(cache, 0, 2 * HOUR);
        let sidecar = cached_file(&cache.join("shards"), "-1.tar.idx").unwrap();
        flip(&sidecar, fs::metadata(&sidecar).unwrap().len() - 1);
        crowd(cache, CROWD);
    });
    // At once, while most of the crowd is unknown.
    bench.play([0, 1]).unwrap();
    let counters = bench.daemon.node().store().counters();
    assert_eq!(counters.shards, CROWD as usize + 2);
    assert_eq!((counters.fills, counters.corruptions), (2, 1), "{counters:?}");
    let data_bytes = |bench: &Bench| {
        let files = bench.daemon.files().into_iter();
        let data = files.filter(|file| !file.to_str().unwrap().ends_with(".idx"));
        data.map(|file| fs::metadata(file).unwrap().len()).sum::<u64>()
    };
    assert_eq!(counters.used_bytes, data_bytes(&bench));
    bench.play(2..10).unwrap();
    let counters = bench.daemon.node().store().counters();
    assert_eq!(counters.used_bytes, data_bytes(&bench));
    assert_eq!(counters.shards, bench.daemon.files().len() / 2);
}
