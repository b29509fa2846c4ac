//! Announced reads decide fetches and evictions: on a node, by the bytes that came over its
//! network.

use std::process::Command;
use std::thread;
use std::time::Duration;

use forebay_client::{Deadline, Loader, Next};
use forebay_error::ErrorKind;
use forebay_source::Rules;
use forebay_store::{Dataset, Evict, KeepFree, StoreRules, TierLimits};
use forebay_tests::{
    Daemon, Epoch, Origin, PATIENCE, admin, config, epoch, eventually, job, next, play,
    reported_error,
};
use forebay_wire::message::{Begin, Extent, Open, Shuffle};
use serde_json::Value;

use crate::ACTOR;

const SHARDS: u64 = 120;
const SAMPLES: u64 = 4;
const SIZES: std::ops::Range<usize> = 30_000..30_001;

/// Shards that a job mixes.
const WINDOW: u32 = 2;

/// Samples of a batch, and batches that are read before they are asked for: together a shard's
/// worth.
const BATCH: u32 = 2;
const PREFETCH: u32 = 2;

/// Time for which the trainer computes on a batch. Half of its shards come in less time over the
/// link; a faster trainer would have to wait for it.
const STEP: Duration = Duration::from_millis(4);

/// Shards that an epoch fetches where half of the data fits and what is needed next is kept: the
/// other half. Some more come anew, for those that are fetched at once, mixed, or lie in batches
/// take their room from the cache, which is small here.
const FEWEST: f64 = SHARDS as f64 / 2.0;
const MORE: f64 = 1.15;

struct Bench {
    origin: Origin,
    daemon: Daemon,
    shard_bytes: u64,
    _disk: tempfile::TempDir,
}

impl Bench {
    /// A node with room for so many of the shards, whose data sets are kept by these rules.
    fn new(room: u64, datasets: Vec<Dataset>) -> Self {
        let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
        let shard_bytes = (0..SHARDS).map(|n| origin.bytes(&format!("{n}.tar")).len() as u64);
        let shard_bytes = shard_bytes.max().unwrap();
        let disk = Daemon::disk();
        let config = forebay_config::settings::NodeConfig {
            datasets,
            ..Daemon::config(disk.path(), room * shard_bytes)
        };
        let daemon = Daemon::try_start(config).unwrap();
        Self { origin, daemon, shard_bytes, _disk: disk }
    }

    /// A job that mixes two shards at a time, and knows beforehand what it will read.
    fn open(&self, seed: u64) -> Open {
        let mut open = job(&self.origin, Origin::urls(SHARDS));
        open.counts = Some(vec![SAMPLES; SHARDS as usize]);
        open.order.shuffle = Shuffle::Window;
        (open.order.window, open.order.lanes, open.order.seed) = (WINDOW, Some(1), seed);
        (open.order.batch_size, open.prefetch) = (BATCH, PREFETCH);
        open
    }

    fn loader(&self, open: Open) -> Loader {
        let bytes = vec![self.shard_bytes; SHARDS as usize];
        let mut config = config(self.daemon.address(), open);
        config.session.extent = Some(Extent { bytes, ranks: (0, 1) });
        Loader::open(config).unwrap()
    }

    fn told(&self, path: &str) -> u64 {
        let status = self.daemon.status();
        status.pointer(path).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Shards that came over the network so far.
    fn fetched(&self) -> u64 {
        let counters = self.daemon.node().store().counters();
        counters.misses
    }

    /// Other rules of the same node.
    fn rule(&self, datasets: Vec<Dataset>) {
        let tier = TierLimits {
            name: "nvme".to_owned(),
            capacity: SHARDS * self.shard_bytes,
            keep_free: KeepFree::Bytes(0),
            watermarks: None,
        };
        let (tenants, tiers) = (Vec::new(), vec![tier]);
        let rules = StoreRules {
            datasets,
            tenants,
            checkpoints: Vec::new(),
            tiers,
            sources: Rules::default(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.daemon.node().store().reconfigure(rules, false)).unwrap();
    }

    /// Shards of jobs of which foresight decides, and what it had fetched.
    fn decided(&self) -> (usize, u64) {
        let forecast = self.daemon.node().store().forecast();
        (forecast.jobs.iter().map(|job| job.shards).sum(), forecast.fetches)
    }

    /// Nothing is under way.
    fn settle(&self) {
        eventually("nothing is under way", || {
            let counters = self.daemon.node().store().counters();
            counters.misses == counters.ended()
        });
    }

    fn foreseen(&self) -> usize {
        self.daemon.node().store().forecast().jobs.len()
    }

    /// Shards that an epoch fetches, on average over epochs after the first two.
    fn per_epoch(&self, loader: &Loader, epochs: u64) -> f64 {
        let mut before = 0;
        for number in 0..epochs + 2 {
            if number == 2 {
                before = self.fetched();
            }
            loader.start(Begin::at(number, 0)).unwrap();
            finish(loader, Epoch::default());
        }
        (self.fetched() - before) as f64 / epochs as f64
    }
}

/// An operator sees what a job's open shards take of the cache.
#[test]
fn explanation_names_the_cache_that_open_shards_take() {
    let bench = Bench::new(SHARDS / 2, Vec::new());
    let explained = || {
        let path = format!("/api/v1/shards?url={}", Origin::url("0.tar").replace('/', "%2F"));
        let admin = admin(bench.daemon.socket()).unwrap();
        let told: Value = admin.get(&path, &Deadline::after(PATIENCE)).unwrap();
        told["why"].to_string()
    };
    assert!(!explained().contains("window="));
    let job = bench.loader(bench.open(1));
    let why = explained();
    let share = format!("{:.0} %", 100.0 * f64::from(WINDOW) / (SHARDS / 2) as f64);
    for word in ["job test", "lanes=1", "window=2", &share] {
        assert!(why.contains(word), "{word}: {why}");
    }
    drop(job);
    eventually("the job is gone", || !explained().contains("window="));
}

/// Half of the data fits: no more than the other half comes over the network in an epoch, but for
/// what is under way at once; of what was used last, LRU would fetch 84 of 100 anew.
#[test]
fn shards_needed_next_are_kept() {
    let bench = Bench::new(SHARDS / 2, Vec::new());
    let loader = bench.loader(bench.open(1));
    let fetched = bench.per_epoch(&loader, 4);
    assert_eq!(bench.foreseen(), 1);
    assert!((0.9 * FEWEST..MORE * FEWEST).contains(&fetched), "{fetched} an epoch");
    assert!(bench.told("/foresight/fetches") > 0 && bench.told("/foresight/evictions") > 0);

    // By use, as its data set's rule says, the same job fetches more.
    let rule = Dataset::new("all", "**", Evict::Lru).unwrap();
    let by_use = Bench::new(SHARDS / 2, vec![rule]);
    let more = by_use.per_epoch(&by_use.loader(by_use.open(1)), 4);
    assert!(more > 1.4 * FEWEST, "{more} by LRU, {fetched} by foresight");
}

/// A job that goes takes what it told with it; what it left is given up before what others need.
#[test]
fn forecast_of_a_closed_job_is_dropped() {
    let bench = Bench::new(SHARDS, Vec::new());
    let loader = bench.loader(bench.open(1));
    play(&loader, 0, 0).unwrap();
    eventually("it is foreseen", || bench.foreseen() == 1);
    drop(loader);
    eventually("nobody is foreseen", || bench.foreseen() == 0);
    // Another's shards are the same ones: they are here.
    let before = bench.fetched();
    let loader = bench.loader(bench.open(2));
    play(&loader, 0, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    assert_eq!(bench.fetched(), before);
}

/// A trainer may start any epoch next; the node does not iterate over the epochs between.
#[test]
fn jump_to_a_distant_epoch_does_not_iterate() {
    const FAR: u64 = 1 << 40;
    let bench = Bench::new(SHARDS, Vec::new());
    let loader = bench.loader(bench.open(1));
    loader.start(Begin::at(0, 0)).unwrap();
    for number in [FAR, FAR + 1, 3 * FAR, 7, u64::MAX] {
        play(&loader, number, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
        eventually("it is foreseen", || bench.foreseen() == 1);
    }
}

/// A restart knows by the directory what is here, and fetches only the rest.
#[test]
fn forecast_covers_shards_found_at_a_restart() {
    let bench = Bench::new(SHARDS / 2, Vec::new());
    let loader = bench.loader(bench.open(3));
    play(&loader, 0, 0).unwrap();
    drop(loader);
    eventually("nobody is foreseen", || bench.foreseen() == 0);
    // A new job that begins with the same epoch finds about half of what it needs, wherever in it
    // that is; by use, an epoch that is read again in its order finds nothing.
    let before = bench.fetched();
    let loader = bench.loader(bench.open(3));
    play(&loader, 0, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    let fetched = bench.fetched() - before;
    assert!((fetched as f64) < 1.5 * FEWEST, "{fetched}");
}

/// Two jobs over the same data: what one of them needs soon stays for it, though the other is done
/// with it.
#[test]
fn jobs_with_the_same_data_share_the_cache() {
    let bench = Bench::new(SHARDS / 2, Vec::new());
    let loaders = [bench.loader(bench.open(1)), bench.loader(bench.open(2))];
    let mut before = 0;
    const EPOCHS: u64 = 4;
    for number in 0..EPOCHS + 2 {
        if number == 2 {
            before = bench.fetched();
        }
        // In lockstep, batch by batch.
        for loader in &loaders {
            loader.start(Begin::at(number, 0)).unwrap();
        }
        let mut over = [false; 2];
        while over != [true; 2] {
            for (loader, over) in loaders.iter().zip(&mut over) {
                if !*over && matches!(next(loader).unwrap(), Next::End(_)) {
                    *over = true;
                }
            }
        }
    }
    assert_eq!(bench.foreseen(), 2);
    let fetched = (bench.fetched() - before) as f64 / (EPOCHS * 2 * SHARDS) as f64;
    // 72 of 100 hits are Belady's for two jobs at half of the data; by LRU it would be 32.
    assert!(fetched < 0.4, "{fetched} of what they read came over the network");
}

/// Unannounced shards are evicted before announced ones.
#[test]
fn unannounced_shards_are_evicted_first() {
    let bench = Bench::new(SHARDS / 2 + 4, Vec::new());
    // A tool reads all shards, without saying so beforehand.
    epoch(bench.daemon.address(), job(&bench.origin, Origin::urls(SHARDS))).unwrap();
    let loader = bench.loader(bench.open(1));
    let fetched = bench.per_epoch(&loader, 3);
    assert!(fetched < MORE * FEWEST, "{fetched} an epoch");
}

fn kept(by: Evict) -> Vec<Dataset> {
    vec![Dataset::new("all", "**", by).unwrap()]
}

/// Trains on the rest of an epoch of which some batches were taken.
#[allow(clippy::disallowed_methods, reason = "a step takes its time, whatever happens")]
fn finish(loader: &Loader, mut epoch: Epoch) {
    loop {
        match next(loader).unwrap() {
            Next::Batch(batch) => {
                epoch.take(&batch);
                thread::sleep(STEP);
            }
            Next::End(end) => break epoch.errors.extend(end.errors),
        }
    }
    epoch.assert_whole(SHARDS as u32, SAMPLES, &SIZES);
}

fn begin(loader: &Loader) -> Epoch {
    loader.start(Begin::at(0, 0)).unwrap();
    let mut epoch = Epoch::default();
    let Next::Batch(batch) = next(loader).unwrap() else { panic!("an epoch without batches") };
    epoch.take(&batch);
    epoch
}

/// Another rule in the middle of an epoch: from then on the node fetches for a job that does
/// nothing at all.
#[test]
fn running_job_is_forecast_once_its_data_set_is() {
    let bench = Bench::new(SHARDS, kept(Evict::Lru));
    let loader = bench.loader(bench.open(1));
    let epoch = begin(&loader);
    eventually("it told what it will read", || bench.foreseen() == 1);
    bench.settle();
    assert_eq!(bench.decided(), (0, 0));
    assert!(bench.fetched() < SHARDS / 2, "{} were fetched", bench.fetched());
    bench.rule(kept(Evict::Clairvoyant));
    assert_eq!(bench.decided().0, SHARDS as usize);
    eventually("the node fetched the others", || bench.fetched() == SHARDS);
    assert!(bench.decided().1 > SHARDS / 2);
    finish(&loader, epoch);
}

/// And the other way around: it looks ahead for itself again.
#[test]
fn running_job_prefetches_when_its_policy_is_by_use() {
    const ROOM: u64 = 4;
    /// Batches that make it assemble others: more than are read before they are asked for.
    const TAKEN: u32 = PREFETCH + 1;
    /// Shards it fetches for these, announced or not: two windows.
    const WAITED_FOR: u64 = 2 * WINDOW as u64;
    let mut scarce = kept(Evict::Clairvoyant);
    let bench = Bench::new(SHARDS, Vec::new());
    scarce[0].max_bytes = Some(ROOM * bench.shard_bytes);
    bench.rule(scarce);
    let loader = bench.loader(bench.open(1));
    let mut epoch = begin(&loader);
    eventually("the node decides for it", || bench.decided().0 == SHARDS as usize);
    bench.settle();
    let before = bench.fetched();
    assert!(before <= ROOM + WAITED_FOR, "{before} were fetched");
    bench.rule(kept(Evict::Lru));
    let (decided, fetches) = bench.decided();
    assert_eq!(decided, 0);
    for _ in 0..TAKEN {
        let Next::Batch(batch) = next(&loader).unwrap() else { panic!("the epoch ended early") };
        epoch.take(&batch);
    }
    eventually("it fetches what it needs later", || bench.fetched() > before + WAITED_FOR);
    finish(&loader, epoch);
    assert_eq!(bench.decided().1, fetches, "the node fetched nothing for it");
}

/// A node's announced reads are recorded, simulated, and compared with the node's later decisions.
#[test]
fn recorded_trace_is_simulated() {
    let bench = Bench::new(SHARDS / 2, Vec::new());
    let forebay = |arguments: &[&str]| {
        let output = Command::new(ACTOR).args(arguments).output().unwrap();
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), said(&output.stdout), said(&output.stderr))
    };
    let address = format!("unix:{}", bench.daemon.socket().display());
    let record = |file: &str| forebay(&["policy", "record", file, "--daemon", &address]);
    let (code, _, error) = record("-");
    let kind = |error: &str| reported_error(error).kind();
    assert_eq!((code, kind(&error)), (Some(1), ErrorKind::NotFound), "no job is known: {error}");

    let loader = bench.loader(bench.open(1));
    play(&loader, 0, 0).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (earlier, later) = (file("earlier.json"), file("later.json"));
    // The node goes on fetching for the next epoch; what it has by now is what is recorded.
    let keys: Vec<_> = (0..SHARDS).map(|shard| Origin::key(&format!("{shard}.tar"))).collect();
    keys.iter().for_each(|key| bench.origin.server.stall(key, 0));
    assert_eq!(record(&earlier).0, Some(0));
    keys.iter().for_each(|key| bench.origin.server.release(key));
    play(&loader, 1, 0).unwrap();
    keys.iter().for_each(|key| bench.origin.server.stall(key, 0));
    // A node that is faster than the simulation made its fetches before the simulated ones: those
    // fall between the recordings once the second is late enough.
    let mut simulated = Value::Null;
    eventually("both fetched the same shards", || {
        let (code, told, error) = record(&later);
        assert!(code == Some(0) && told.contains(&format!("{SHARDS} shards")), "{told} {error}");
        let (code, told, error) =
            forebay(&["policy", "simulate", &earlier, "--against", &later, "--json"]);
        assert_eq!(code, Some(0), "{error}");
        simulated = serde_json::from_str(&told).unwrap();
        simulated["agreement"]["common"].as_u64() > Some(0)
    });
    keys.iter().for_each(|key| bench.origin.server.release(key));
    let of = |name: &str| simulated["agreement"][name].as_u64().unwrap();
    assert!(of("node") > 0 && of("ordered") <= of("common"), "{simulated}");
    // Half of the data is there at the beginning, and of the epoch that was played half had to
    // come.
    assert!(of("node") >= SHARDS / 4 && of("node") <= SHARDS, "{simulated}");
    // The other way around it is nonsense.
    let (code, _, error) = forebay(&["policy", "simulate", &later, "--against", &earlier]);
    assert_eq!((code, kind(&error)), (Some(1), ErrorKind::Invalid), "{error}");
}

/// A missing shard is reported before the job needs it: its URL, the time of need, the time of
/// arrival.
#[test]
fn missing_shards_of_a_job_are_reported() {
    let bench = Bench::new(2 * SHARDS, Vec::new());
    let mut open = bench.open(1);
    open.order.shuffle = Shuffle::None;
    // It looks no further by itself than to the shard that it reads.
    open.prefetch = 1;
    let last = SHARDS - 1;
    let name = format!("{last}.tar");
    bench.origin.server.stall(&Origin::key(&name), 0);
    let loader = bench.loader(open);
    let lacks = || {
        let job = bench.daemon.status()["foresight"]["jobs"][0].clone();
        (job["lacks"]["url"].as_str() == Some(&Origin::url(&name))).then(|| job["lacks"].clone())
    };
    let shown = || {
        let number = bench.daemon.status()["jobs"][0]["session"].to_string();
        let mut forebay = Command::new(ACTOR);
        forebay.args(["job", "show", &number]);
        forebay.env("FOREBAY_DAEMON", format!("unix:{}", bench.daemon.socket().display()));
        String::from_utf8(forebay.output().unwrap().stdout).unwrap()
    };
    thread::scope(|scope| {
        let playing = scope.spawn(|| play(&loader, 0, 0).unwrap());
        eventually("it is known what will lack", || lacks().is_some());
        let told = lacks().unwrap();
        assert!(told["needed_in"].as_f64().is_some_and(|seconds| seconds >= 0.0), "{told}");
        assert!(told["arrives_in"].as_f64().is_some_and(|seconds| seconds > 0.0), "{told}");
        // Whoever looks at the job alone is told, too.
        let shown = shown();
        assert!(shown.contains(&Origin::url(&name)), "{shown}");
        bench.origin.server.release(&Origin::key(&name));
        playing.join().unwrap();
    });
    eventually("all is here", || bench.daemon.status()["foresight"]["jobs"][0]["lacks"].is_null());
    assert!(!shown().contains(&Origin::url(&name)), "{}", shown());
}

/// A data set that holds all that it may is no fault of its store's.
#[test]
fn lack_of_room_is_not_blamed_on_the_origin() {
    const ROOM: u64 = 4;
    let mut scarce = kept(Evict::Clairvoyant);
    let bench = Bench::new(SHARDS, Vec::new());
    scarce[0].max_bytes = Some(ROOM * bench.shard_bytes);
    bench.rule(scarce);
    let loader = bench.loader(bench.open(1));
    let epoch = begin(&loader);
    let lacks = || bench.daemon.status()["foresight"]["jobs"][0]["lacks"].clone();
    eventually("it is told why the next shard does not come", || {
        let lacks = lacks();
        lacks["refused"] == "room" && lacks["arrives_in"].is_null()
    });
    finish(&loader, epoch);
}
