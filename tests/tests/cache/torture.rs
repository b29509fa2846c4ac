//! One cache directory through daemon after daemon, each of which ends badly, while trainers read.
//!
//! A round is a daemon's life. It dies in the middle of a fill, a commit, a record or an eviction,
//! at any other moment, while a mount that it reads from hangs, by a power cut, or in order while a
//! trainer that was stopped holds all it has. The trainers go on from one daemon to the next; each
//! byte they get is compared with the origin's.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_client::{Address, Next};
use forebay_error::{Error, ErrorKind};
use forebay_store::{FaultKind, fsck};
use forebay_testkit::{Random, UnsyncedFiles, for_seeds, say};
use forebay_tests::{
    CacheContents, Catalog, Daemon, Epoch, HangingFile, KillPoint, KillStage, KillTiming,
    NodeProcess, Origin, PATIENCE, Reader, Setup, alive, cached_file, descriptors, epoch,
    eventually, hangs, job, loader, readers_of,
};
use forebay_wire::message::Begin;
use tempfile::TempDir;

use crate::ACTOR;

/// Rounds of a normal run: one of [`SCHEDULE`].
const ROUNDS: u64 = 22;

/// Deaths of a daemon required in each of these for a run of [`ROUNDS`] or more to count.
const LEAST: u64 = 5;
const MUST: [&str; 3] = ["Fill", "Commit", "Eviction"];

/// Kinds of the [`ROUNDS`] rounds, in a random order.
const SCHEDULE: [(Kind, usize); 8] = [
    (Kind::KillingFiles(KillStage::Fill), 5),
    (Kind::KillingFiles(KillStage::Commit), 5),
    (Kind::KillingFiles(KillStage::Eviction), 5),
    (Kind::KillingFiles(KillStage::Record), 1),
    (Kind::Killed, 1),
    (Kind::HangingFile, 3),
    (Kind::PowerCut, 1),
    (Kind::Stopped, 1),
];

/// Samples of the shards; the last one's fill, of 26 parts, is recorded on its way: sixteen of them
/// are written before the last is asked for.
const SAMPLES: [u64; 9] = [40, 90, 110, 150, 230, 260, 40, 70, 2700];
const LARGE: u32 = 8;

/// Room beside the large shard, for three or four of the others.
const BESIDE: u64 = 20 << 20;

/// Trainers that read all the time.
const TRAINERS: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    KillingFiles(KillStage),
    Killed,
    HangingFile,
    PowerCut,
    Stopped,
}

/// Progress of the trainers.
#[derive(Default)]
struct Progress {
    batches: AtomicU64,
    over: AtomicBool,
}

/// Ends the trainers, also when the test fails.
struct End<'a>(&'a Progress);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::SeqCst);
    }
}

impl Progress {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    fn batches(&self) -> u64 {
        self.batches.load(Ordering::SeqCst)
    }
}

struct Bench {
    catalog: Catalog,
    disk: TempDir,
    progress: Progress,
}

impl Bench {
    fn new() -> Self {
        Self {
            catalog: Catalog::new(&SAMPLES),
            disk: Daemon::disk(),
            progress: Progress::default(),
        }
    }

    fn cache(&self) -> PathBuf {
        self.disk.path().join("cache")
    }

    fn socket(&self) -> PathBuf {
        self.disk.path().join("d.sock")
    }

    fn capacity(&self) -> u64 {
        self.catalog.lengths[LARGE as usize] + BESIDE
    }

    fn setup(&self, kill_point: Option<KillPoint>) -> Setup {
        Setup {
            cache: self.cache(),
            socket: self.socket(),
            capacity: self.capacity(),
            kill_point,
            file_timeout: None,
            saves: false,
        }
    }

    /// Plays epochs over random shards until all is over, whatever becomes of the daemons.
    fn train(&self, mut random: Random) {
        while !self.progress.is_over() {
            let mut shards: Vec<u32> = (0..LARGE).collect();
            for at in (1..shards.len()).rev() {
                shards.swap(at, random.below(at as u64 + 1) as usize);
            }
            shards.truncate(random.within(2..7) as usize);
            if random.percent(25) {
                shards.push(LARGE);
            }
            self.play(&shards, &self.progress);
        }
    }

    /// One epoch, across daemons; less of it once `part` is over.
    fn play(&self, shards: &[u32], part: &Progress) {
        let urls = shards.iter().map(|n| Origin::url(&format!("{n}.tar"))).collect();
        let mut open = job(&self.catalog.origin, urls);
        open.prefetch = 2;
        let mut opened = None;
        // Between two daemons there is none to open a job at.
        eventually("a daemon takes the job", || {
            opened = loader(Address::Unix(self.socket()), open.clone()).ok();
            opened.is_some() || part.is_over()
        });
        let Some(loader) = opened else { return };
        loader.start(Begin::at(0, 0)).unwrap();
        let mut epoch = Epoch::default();
        let over = || match part.is_over() {
            true => Err(Error::new(ErrorKind::Closed, "over")),
            false => Ok(()),
        };
        loop {
            match loader.next(over) {
                Ok(Next::Batch(batch)) => epoch.take(&batch),
                Ok(Next::End(end)) => {
                    epoch.errors.extend(end.errors);
                    break self.catalog.assert_whole(&epoch, shards);
                }
                Err(error) => {
                    break assert!(part.is_over(), "job over {shards:?}: {error}");
                }
            }
            part.batches.fetch_add(1, Ordering::SeqCst);
            if part.is_over() {
                break self.catalog.assert_right(&epoch, shards);
            }
        }
    }

    /// Waits until the trainers got so many batches more.
    fn go_on(&self, batches: u64) {
        let until = self.progress.batches() + batches;
        eventually("trainers get batches", || self.progress.batches() >= until);
    }

    /// A round; with what it is counted as.
    fn round(&self, kind: Kind, random: &mut Random) -> String {
        match kind {
            Kind::KillingFiles(stage) => self.killing(stage, random),
            Kind::Killed => self.killed(random),
            Kind::HangingFile => self.hanging(random),
            Kind::PowerCut => self.power_cut(random),
            Kind::Stopped => self.stopped(),
        }
    }

    /// A daemon that dies at any moment.
    fn killed(&self, random: &mut Random) -> String {
        let (daemon, _) = NodeProcess::start(ACTOR, &self.setup(None));
        self.go_on(random.within(1..60));
        daemon.kill();
        assert_eq!(daemon.end(), None);
        "killed from outside".to_owned()
    }

    /// A daemon that is killed while a foreign mount hangs under it, and the next, which starts and
    /// serves all the same.
    fn hanging(&self, random: &mut Random) -> String {
        let name = format!("{}.tar", random.below(u64::from(LARGE)));
        let Some(hanging) = HangingFile::new(&name, &self.catalog.origin.bytes(&name)) else {
            // What can be done without.
            return self.killed(random);
        };
        hanging.freeze();
        let (daemon, _) = NodeProcess::start(ACTOR, &self.setup(None));
        let part = Progress::default();
        std::thread::scope(|scope| {
            let _end = End(&part);
            scope.spawn(|| self.play_file(&hanging.path(), &part));
            let mut hung = Vec::new();
            eventually("a reader hangs in the kernel", || {
                hung = readers_of(daemon.pid());
                hung.retain(|pid| hangs(*pid));
                !hung.is_empty()
            });
            self.go_on(random.within(1..20));
            daemon.kill();
            assert_eq!(daemon.end(), None);
            let (next, died) = NodeProcess::start(ACTOR, &self.setup(None));
            assert_eq!(died, None);
            self.go_on(random.within(1..60));
            assert!(hung.iter().all(|pid| hangs(*pid)), "the mount did not hang");
            next.kill();
            assert_eq!(next.end(), None);
            hanging.thaw();
            eventually("the readers are gone", || hung.iter().all(|pid| !alive(*pid)));
        });
        "foreign mount hangs".to_owned()
    }

    /// A job on a file, given up when `part` is over.
    fn play_file(&self, path: &Path, part: &Progress) {
        let open = job(&self.catalog.origin, vec![path.display().to_string()]);
        let Ok(loader) = loader(Address::Unix(self.socket()), open) else { return };
        loader.start(Begin::at(0, 0)).unwrap();
        let over = || match part.is_over() {
            true => Err(Error::new(ErrorKind::Closed, "over")),
            false => Ok(()),
        };
        // Nothing comes of it: the file hangs for as long as there is a daemon.
        let _ = loader.next(over);
    }

    /// A daemon that dies in a call of its own.
    fn killing(&self, stage: KillStage, random: &mut Random) -> String {
        let calls = match stage {
            KillStage::Fill | KillStage::Commit => 1..15,
            KillStage::Eviction => 1..10,
            KillStage::Record => 1..3,
        };
        let how = *random.pick(&[KillTiming::Before, KillTiming::Half, KillTiming::After]);
        let kill_point = KillPoint { stage, nth: random.within(calls), how };
        if stage == KillStage::Record {
            // It has to be fetched once more, from its beginning.
            for ending in [".idx", ".part"] {
                let left =
                    cached_file(&self.cache().join("shards"), &format!("-{LARGE}.tar{ending}"));
                left.into_iter().for_each(|left| fs::remove_file(left).unwrap());
            }
        }
        let (daemon, died) = NodeProcess::start(ACTOR, &self.setup(Some(kill_point)));
        let part = Progress::default();
        let died = died.or_else(|| {
            std::thread::scope(|scope| {
                // This round's reader ends with its daemon: there is no other until the next round.
                let _end = End(&part);
                if stage == KillStage::Record {
                    scope.spawn(|| self.play(&[LARGE], &part));
                }
                daemon.end()
            })
        });
        let died = died.unwrap_or_else(|| panic!("a daemon ended, and not by {kill_point:?}"));
        assert!(died.starts_with(&format!("died {stage:?} ")), "{died:?} by {kill_point:?}");
        died.trim_start_matches("died ").to_owned()
    }

    /// A daemon whose machine loses its power.
    fn power_cut(&self, random: &mut Random) -> String {
        let files = UnsyncedFiles::new(&self.cache(), &self.disk.path().join("aside"));
        let mut config = Daemon::config(&self.cache(), self.capacity());
        let plain = config.clone();
        config.files = files.clone();
        config.faults = Some(files.clone());
        let daemon = Daemon::try_start_at(config, &self.socket()).unwrap();
        files.power().goes_after(random.within(1..120));
        assert!(files.power().wait(PATIENCE), "the power never went");
        daemon.stop();
        files.cut(random.number());
        // A removal that was lost may have put a sidecar beside other data. Nobody is served from
        // it, but the next rounds compare the files themselves.
        let daemon = Daemon::try_start(plain).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(daemon.node().store().scrub(false, |_| ())).unwrap();
        "power cut".to_owned()
    }

    /// A daemon that ends in order while a trainer does not move, and holds all it was given.
    fn stopped(&self) -> String {
        let (daemon, _) = NodeProcess::start(ACTOR, &self.setup(None));
        let open = job(&self.catalog.origin, Origin::urls(3));
        let reader = Reader::start(ACTOR, &self.socket(), &open);
        reader.pause();
        // More than its slots hold; and one that comes new is served as well.
        self.go_on(60);
        let got = epoch(Address::Unix(self.socket()), open).unwrap();
        self.catalog.assert_whole(&got, &[0, 1, 2]);
        assert!(daemon.stop().success(), "a daemon did not end in order");
        "stopped trainer".to_owned()
    }

    /// Checks the directory without a daemon: leftovers at most, and complete shards.
    fn assert_rest(&self, after: &str) {
        let checkup = fsck(&self.cache(), false, None, |_, _| {}).unwrap();
        let mut wrong = checkup.faults.iter().filter(|fault| fault.kind != FaultKind::Leftover);
        assert_eq!(wrong.next(), None, "after {after}");
        for (data, (url, _)) in CacheContents::of(&self.cache()).whole {
            self.catalog.assert_file(&self.cache().join("shards").join(data), &url);
        }
        let open = descriptors(std::process::id());
        let left = open.iter().find(|path| path.starts_with(self.cache()));
        assert_eq!(left, None, "after {after}");
    }
}

/// The kinds of `rounds` rounds.
fn schedule(rounds: u64, random: &mut Random) -> Vec<Kind> {
    let mut all = Vec::new();
    while (all.len() as u64) < rounds {
        let kinds = SCHEDULE.iter().flat_map(|(kind, times)| vec![*kind; *times]);
        let mut kinds: Vec<_> = kinds.collect();
        for at in (1..kinds.len()).rev() {
            kinds.swap(at, random.below(at as u64 + 1) as usize);
        }
        all.extend(kinds);
    }
    all.truncate(usize::try_from(rounds).unwrap());
    all
}

fn rounds() -> u64 {
    let text = std::env::var("FOREBAY_TORTURE_ROUNDS").unwrap_or_default();
    if text.is_empty() { ROUNDS } else { text.parse().unwrap() }
}

/// Bears promises 1 (origin bytes or nothing), 3 (budgets), 4 (crash at any instant), 6 (exactly
/// once) and 7 (a daemon that dies does not kill a job).
#[test]
fn killed_daemons_lose_neither_bytes_nor_jobs() {
    // One seed a run: the rounds are what is many.
    for_seeds("FOREBAY_TORTURE_SEED", "", 1, |seed| {
        let mut random = Random::new(seed);
        let bench = Bench::new();
        let mut counts = BTreeMap::<String, u64>::new();
        let began = Instant::now();
        let schedule = schedule(rounds(), &mut random);
        std::thread::scope(|scope| {
            let _end = End(&bench.progress);
            for _ in 0..TRAINERS {
                let random = random.split();
                let bench = &bench;
                scope.spawn(move || {
                    // A trainer that fails ends the others.
                    let _end = End(&bench.progress);
                    bench.train(random);
                });
            }
            for (number, kind) in schedule.iter().enumerate() {
                assert!(!bench.progress.is_over(), "a trainer failed before round {number}");
                let came = bench.round(*kind, &mut random);
                say(&format!("round {number}: {came}"));
                bench.assert_rest(&format!("round {number}, {came}"));
                *counts.entry(came).or_default() += 1;
            }
        });
        tell(&counts, schedule.len(), bench.progress.batches(), began.elapsed());
        if schedule.len() as u64 >= ROUNDS {
            for stage in MUST {
                let hit: u64 =
                    counts.iter().filter(|(came, _)| came.starts_with(stage)).map(|(_, n)| n).sum();
                assert!(hit >= LEAST, "only {hit} daemons died in {stage}");
            }
        }
        // The last one finds all in order, and ends in order.
        let (daemon, _) = NodeProcess::start(ACTOR, &bench.setup(None));
        assert!(daemon.stop().success());
        assert_eq!(fsck(&bench.cache(), false, None, |_, _| {}).unwrap().faults, []);
    });
}

fn tell(counts: &BTreeMap<String, u64>, rounds: usize, batches: u64, took: Duration) {
    say(&format!("{rounds} rounds in {:.0} s, {batches} batches", took.as_secs_f64()));
    for (came, times) in counts {
        say(&format!("{times:5}  {came}"));
    }
}
