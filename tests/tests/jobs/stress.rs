//! Stress that ends in invariants: many jobs that come and go on a cache far too small for them, on
//! a bad day of their origin's, under an admin who changes his mind.
//!
//! While it lasts no fill may wait beside an idle worker, and no budget be passed. Once the jobs
//! are gone, every reservation is back, what counts is what lies on the disks, and the process
//! never had more memory than it was given.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_client::{Address, Next};
use forebay_store::{Mode, PART_BYTES};
use forebay_testkit::{Random, for_seeds, say};
use forebay_tests::{
    CacheContents, Catalog, Daemon, Epoch, FRAMES, Installation, Installed, Origin, change_tier,
    eventually, forget, job, loader, next, status,
};
use forebay_wire::message::{Begin, Shuffle};
use serde_json::Value;

use crate::ACTOR;

/// Jobs at once.
const JOBS: usize = 8;

/// Epochs that each job begins in a normal run: some seconds on two cores.
const EPOCHS: u64 = 5;

/// Seeds of a normal run.
const SEEDS: u64 = 1;

/// Shards that most jobs want: used again and again, they move up.
const WANTED: u64 = 4;

/// Samples of the shards, of some 40 KB each: one to three parts.
const SAMPLES: [u64; 14] = [25, 40, 60, 90, 110, 30, 70, 150, 50, 200, 35, 80, 45, 120];

/// The tiers, and what they hold together: a third of the data.
const TIERS: [(&str, &str, u64); 3] =
    [("ram", "memory", 4 * PART), ("a", "nvme", 12 << 20), ("b", "nvme", 9 << 20)];
const PART: u64 = PART_BYTES as u64;

/// Batches a job has ready, at most.
const PREFETCH: u64 = 3;

/// Quota of the bound data set: all of its shards, in memory's parts, and one part more. With less,
/// a shard that finds all the others in use is rejected, as it should be.
const BOUND: u64 = 6 * PART;

/// Memory for slabs: a batch takes a huge page, and a job that left gives its own back while the
/// next one comes. With less, a job that finds no room for one batch is refused, as it should be.
const SLABS: u64 = 2 * JOBS as u64 * PREFETCH * (2 << 20);

/// Memory limit of the daemon.
const MEMORY: u64 = FRAMES as u64 + TIERS[0].2 + SLABS;

/// Memory of a process beside its limit: the program's own pages, the stacks of some twenty
/// threads, connections' buffers, indexes of open shards. 17 to 21 MiB were seen; this is under
/// three times that.
const BESIDE: u64 = 56 << 20;

/// Looks in a row that may find a fill waiting beside an idle worker. A turn that was given back is
/// the next one's only when the runtime has come to it, behind whatever else is due; the answers to
/// looks come by the same queues, one after the other, so that a turn that is lost is seen by all
/// of them, and one that is on its way by one or two. Many more than that: other processes may have
/// the processors between any two steps.
const IDLE_LOOKS: u32 = 50;

/// Looks for which a stalled origin is left alone, where nobody makes progress: some 200 ms.
const STALL_LOOKS: u32 = 40;

/// Progress of all jobs together.
#[derive(Default)]
struct Progress {
    batches: AtomicU64,
    epochs: AtomicU64,
    over: AtomicBool,
}

impl Progress {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn batches(&self) -> u64 {
        self.batches.load(Ordering::SeqCst)
    }
}

/// Results of looks at the status.
#[derive(Default)]
struct Seen {
    looks: u64,
    /// Looks that found a fill waiting for its turn.
    waits: u64,
    /// The most.
    slab_bytes: u64,
}

/// Says that it is over, also when a thread fails.
struct Over<'a>(&'a Progress);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
    }
}

struct Bench {
    catalog: Catalog,
    disk: tempfile::TempDir,
    socket: PathBuf,
    progress: Progress,
}

fn number(of: &Value, pointer: &str) -> u64 {
    of.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{pointer} in {of}"))
}

fn epochs() -> u64 {
    let text = std::env::var("FOREBAY_STRESS_EPOCHS").unwrap_or_default();
    if text.is_empty() { EPOCHS } else { text.parse().unwrap() }
}

impl Bench {
    fn path(&self, tier: &str) -> PathBuf {
        self.disk.path().join(tier)
    }

    fn status(&self) -> Value {
        status(&self.socket)
    }

    /// One job after the other, until it has begun so many epochs.
    fn train(&self, mut random: Random) {
        let mut begun = 0;
        while begun < epochs() && !self.progress.is_over() {
            let mut shards: Vec<u32> = (0..SAMPLES.len() as u32).collect();
            for at in (1..shards.len()).rev() {
                shards.swap(at, random.below(at as u64 + 1) as usize);
            }
            shards.truncate(random.within(1..8) as usize);
            let wanted = random.below(WANTED) as u32;
            if random.percent(80) && !shards.contains(&wanted) {
                shards[0] = wanted;
            }
            let urls = shards.iter().map(|n| Origin::url(&format!("{n}.tar"))).collect();
            let mut open = job(&self.catalog.origin, urls);
            open.prefetch = random.within(1..PREFETCH + 1) as u32;
            open.order.shuffle = *random.pick(&[Shuffle::None, Shuffle::Window]);
            let loader = loader(Address::Unix(self.socket.clone()), open).unwrap();
            // A job that goes on, and one that comes again as another.
            for number in 0..random.within(1..4) {
                begun += 1;
                self.play(&loader, &shards, number, &mut random);
            }
        }
    }

    /// An epoch, from its first batch or a later one, to its end or to where the job leaves.
    fn play(
        &self,
        loader: &forebay_client::Loader,
        shards: &[u32],
        number: u64,
        random: &mut Random,
    ) {
        let from = if random.percent(25) { random.below(6) } else { 0 };
        // What it takes before it leaves; most stay to the end.
        let mut left = if random.percent(35) { random.below(12) } else { u64::MAX };
        loader.start(Begin::at(number, from)).unwrap();
        let mut epoch = Epoch::default();
        let ended = loop {
            match next(loader).unwrap() {
                Next::Batch(batch) => epoch.take(&batch),
                Next::End(end) => {
                    epoch.errors.extend(end.errors);
                    break true;
                }
            }
            self.progress.batches.fetch_add(1, Ordering::SeqCst);
            if left == 0 {
                break false;
            }
            left -= 1;
        };
        assert_eq!(epoch.errors, [], "job over {shards:?}");
        match ended && from == 0 {
            true => self.catalog.assert_whole(&epoch, shards),
            false => self.catalog.assert_right(&epoch, shards),
        }
        self.progress.epochs.fetch_add(1, Ordering::SeqCst);
    }

    /// Bad days of the origin's, and what an admin does, until the jobs are gone.
    fn disturb(&self, installation: &Installation, mut random: Random) {
        let server = &self.catalog.origin.server;
        let mut disabled = [false; TIERS.len()];
        while !self.progress.is_over() {
            let shard = format!("{}.tar", random.below(SAMPLES.len() as u64));
            let key = Origin::key(&shard);
            let at = random.below(2 * PART);
            let tier = random.below(TIERS.len() as u64) as usize;
            let name = TIERS[tier].0;
            match random.below(12) {
                0 => server.cut(&key, at, 2),
                1 => server.fail_next(1, 503),
                2 => {
                    server.stall(&key, at);
                    self.go_on(random.within(1..10));
                    server.release(&key);
                }
                3 => {
                    // Nobody can say what lies on a tier that was let go of.
                    if let Err(error) = forget(&self.socket, &Origin::url(&shard), false) {
                        assert!(disabled.contains(&true), "{error}");
                    }
                }
                4 => {
                    let scrub = installation.forebay(&["scrub", "--json"]).output().unwrap();
                    let said = String::from_utf8_lossy(&scrub.stdout);
                    assert!(scrub.status.success(), "a scrub found something: {said}");
                }
                5 if !disabled[tier] => self.change(name, Mode::Draining).unwrap(),
                6 => {
                    self.change(name, Mode::Disabled).unwrap();
                    disabled[tier] = true;
                }
                // A directory that somebody still reads is not free yet.
                _ => disabled[tier] &= self.change(name, Mode::Enabled).is_err(),
            }
            self.go_on(random.within(5..40));
        }
        for (name, ..) in TIERS {
            eventually("the tier is used again", || self.change(name, Mode::Enabled).is_ok());
        }
    }

    fn change(&self, name: &str, mode: Mode) -> forebay_error::Result<()> {
        change_tier(&self.socket, name, mode)
    }

    /// Waits until the jobs got so many batches more, or none for a while, or are gone.
    fn go_on(&self, batches: u64) {
        let until = self.progress.batches() + batches;
        let mut looks = 0;
        eventually("jobs go on", || {
            looks += 1;
            self.progress.batches() >= until || looks > STALL_LOOKS || self.progress.is_over()
        });
    }

    /// Looks at the status until the jobs are gone.
    fn watch(&self, seen: &mut Seen) {
        let mut idle = 0;
        // A look costs less than the pause between two.
        eventually("the jobs end", || {
            let status = self.status();
            let fills = |what: &str| number(&status, &format!("/fills/{what}"));
            let waiting = fills("waiting") > 0;
            idle = if waiting && fills("running") < fills("limit") { idle + 1 } else { 0 };
            assert!(idle < IDLE_LOOKS, "fills wait beside an idle worker: {status}");
            for tier in status["tiers"].as_array().unwrap() {
                let (used, all) = (number(tier, "/used_bytes"), number(tier, "/capacity_bytes"));
                assert!(used <= all, "{tier}");
            }
            assert!(number(&status, "/slab_bytes") <= number(&status, "/slab_limit_bytes"));
            seen.looks += 1;
            seen.waits += u64::from(waiting);
            seen.slab_bytes = seen.slab_bytes.max(number(&status, "/slab_bytes"));
            // Longer runs than patience lasts are watched in parts.
            self.progress.is_over() || seen.looks.is_multiple_of(1000)
        });
    }

    /// Everything is back, and what counts is what is there.
    fn settle(&self) {
        let mut last = Value::Null;
        let settled = std::panic::AssertUnwindSafe(|| {
            eventually("every reservation is back", || {
                last = self.status();
                let cache = |what: &str| number(&last, &format!("/cache/{what}"));
                let fills = |what: &str| number(&last, &format!("/fills/{what}"));
                last["jobs"].as_array().unwrap().is_empty()
                    && number(&last, "/frames/in_use_bytes") == 0
                    && number(&last, "/slab_bytes") == 0
                    && ["running", "waiting", "paused"].map(fills) == [0; 3]
                    && cache("misses") == cache("fills") + cache("failed_fills") + cache("through")
                    && self.counts_are_right(&last)
            });
        });
        if let Err(panic) = std::panic::catch_unwind(settled) {
            say(&format!("{}", self.status()));
            for (name, ..) in &TIERS[1..] {
                say(&format!("{name}: {:?}", CacheContents::of(&self.path(name))));
            }
            std::panic::resume_unwind(panic);
        }
    }

    fn counts_are_right(&self, status: &Value) -> bool {
        let tiers = status["tiers"].as_array().unwrap();
        let rests = tiers.iter().all(|tier| {
            let used = number(tier, "/used_bytes");
            match tier["class"] == "memory" {
                true => used == PART * (used / PART),
                false => {
                    let rest = CacheContents::of(&self.path(tier["name"].as_str().unwrap()));
                    used == rest.bytes() && rest.others.is_empty()
                }
            }
        });
        let sum = |of: &Value| -> u64 {
            of.as_array().unwrap().iter().map(|of| number(of, "/used_bytes")).sum()
        };
        let all = sum(&status["tiers"]);
        rests && sum(&status["cache"]["datasets"]) == all && sum(&status["cache"]["tenants"]) == all
    }

    /// Every URL forgotten, nothing is used, and nothing there.
    fn forget_all(&self) {
        for url in self.catalog.urls() {
            forget(&self.socket, &url, false).unwrap();
        }
        self.settle();
        let status = self.status();
        assert_eq!(number(&status, "/frames/copies_bytes"), 0, "no shard is open");
        for holders in [&status["tiers"], &status["cache"]["datasets"], &status["cache"]["tenants"]]
        {
            for holder in holders.as_array().unwrap() {
                assert_eq!(number(holder, "/used_bytes"), 0, "{holder}");
                assert_eq!(number(holder, "/shards"), 0, "{holder}");
            }
        }
        for (name, ..) in &TIERS[1..] {
            assert_eq!(
                CacheContents::of(&self.path(name)),
                CacheContents::default(),
                "{name} is not empty"
            );
        }
    }
}

/// Returns the configuration beside the memory: the tiers and two data sets.
fn configuration(place: &Path) -> String {
    let mut text = String::new();
    for (name, class, capacity) in TIERS {
        text +=
            &format!("[[tier]]\nname = '{name}'\nclass = '{class}'\ncapacity = '{capacity}B'\n");
        if class != "memory" {
            text += &format!("path = {:?}\n", place.join(name));
        }
    }
    text += "[[dataset]]\nname = 'small'\nmatch = '**/[0-4].tar'\nevict = 'sieve'\n";
    text += &format!(
        "[[dataset]]\nname = 'bound'\nmatch = '**/[5-8].tar'\nquota = {{ max = '{}B' }}\n",
        BOUND
    );
    text
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let disk = Daemon::disk();
    let catalog = Catalog::new(&SAMPLES);
    let configuration = configuration(disk.path()) + &catalog.origin.rule();
    let installation = Installation::new(ACTOR, disk.path(), MEMORY, &configuration);
    let daemon: Installed = installation.start();
    let (socket, progress) = (installation.socket(), Progress::default());
    let bench = Bench { catalog, disk, socket, progress };
    let capacity: u64 = TIERS.iter().map(|(.., capacity)| capacity).sum();
    assert!(bench.catalog.bytes() > capacity, "the cache would hold it all");
    let began = std::time::Instant::now();
    let seen = std::thread::scope(|scope| {
        // Whichever thread fails ends the others.
        let over = Over(&bench.progress);
        let jobs: Vec<_> = (0..JOBS)
            .map(|_| {
                let (bench, random) = (&bench, random.split());
                scope.spawn(move || {
                    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        bench.train(random);
                    }));
                    if let Err(panic) = failed {
                        drop(Over(&bench.progress));
                        std::panic::resume_unwind(panic);
                    }
                })
            })
            .collect();
        let (bench, installation, random) = (&bench, &installation, random.split());
        let disturbing = scope.spawn(move || {
            let _over = Over(&bench.progress);
            bench.disturb(installation, random);
        });
        let watching = scope.spawn(move || {
            let _over = Over(&bench.progress);
            let mut seen = Seen::default();
            while !bench.progress.is_over() {
                bench.watch(&mut seen);
            }
            seen
        });
        jobs.into_iter().for_each(|job| job.join().unwrap());
        drop(over);
        disturbing.join().unwrap();
        watching.join().unwrap()
    });
    let server = &bench.catalog.origin.server;
    server.fail_next(0, 503);
    bench.settle();
    let status = bench.status();
    bench.forget_all();
    let peak = daemon.peak_memory();
    let Seen { looks, waits, slab_bytes } = seen;
    let pinned = FRAMES as u64 + TIERS[0].2 + slab_bytes;
    say(&format!(
        "seed {seed}: {} epochs, {} batches in {:.1} s; {looks} looks, {waits} with fills waiting",
        bench.progress.epochs.load(Ordering::SeqCst),
        bench.progress.batches(),
        began.elapsed().as_secs_f64(),
    ));
    say(&format!(
        "peak {} MiB, of which {} were seen given away, of {}",
        peak >> 20,
        pinned >> 20,
        MEMORY >> 20
    ));
    say(&format!("all tiers: {}", status["cache"]));
    assert!(peak <= MEMORY + BESIDE, "{peak} bytes of memory, where {MEMORY} were given");
    assert!(number(&status, "/cache/evictions") > 0, "the cache was too large: {status}");
    assert_eq!(number(&status, "/cache/corruptions"), 0, "{status}");
    daemon.stop();
}

/// Bears promises 1 (origin bytes or nothing), 3 (budgets), 6 (exactly once) and 8 (a job hurts
/// only itself).
#[test]
fn stress_leaves_nothing_behind() {
    for_seeds("FOREBAY_STRESS_SEED", "FOREBAY_STRESS_ROUNDS", SEEDS, run);
}
