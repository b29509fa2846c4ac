//! Checkpoints through daemon after daemon, and trainer after trainer, each of which ends badly.
//!
//! A round saves one checkpoint: at a new URL, or over an earlier one. Two ranks write, and one
//! commits. Meanwhile a daemon or a trainer is killed, or both, or the power goes. After each round
//! whatever is visible in the store is compared: it is one whole save, never a part of one or of
//! two. In the end, every save that a trainer was told is durable is visible, unless a later one
//! took its place.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay_checkpoint::Manifest;
use forebay_client::{
    Address, CheckpointPlace, CheckpointWriter, Commit, FileId, Level, SaveConfig, Watch,
};
use forebay_error::{Error, ErrorKind, Result};
use forebay_testkit::{Fault, FaultProxy, Random, S3Server, UnsyncedFiles, When, for_seeds, say};
use forebay_tests::{
    Daemon, NodeProcess, PATIENCE, Setup, eventually, patterned, saves_anywhere, to_store,
};
use tempfile::TempDir;

use crate::ACTOR;

/// Rounds of a normal run: two of each kind.
const ROUNDS: u64 = 12;

const KINDS: [Kind; 6] = [
    Kind::Undisturbed,
    Kind::DaemonKilled,
    Kind::RankKilled,
    Kind::BothKilled,
    Kind::PushKilled,
    Kind::PowerCut,
];

/// Longest time into a save, or into the upload after it, at which something is killed: a save
/// takes some 50 to 200 ms here, and its upload as long.
const LATEST_KILL_MS: u64 = 400;

/// Largest file: three parts of an upload.
const LARGEST: u64 = 40 << 20;

const CAPACITY: u64 = 4 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Undisturbed,
    DaemonKilled,
    RankKilled,
    BothKilled,
    PushKilled,
    PowerCut,
}

/// One save. All about it follows from its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Attempt(u64);

impl Attempt {
    fn random(self) -> Random {
        Random::new(self.0.wrapping_mul(7919).wrapping_add(17))
    }

    /// Lengths of its files.
    fn lengths(self) -> Vec<u64> {
        let mut random = self.random();
        let count = random.within(1..4);
        let small = |random: &mut Random| match random.percent(20) {
            true => random.below(LARGEST),
            false => random.below(1 << 20),
        };
        (0..count).map(|_| small(&mut random)).collect()
    }

    fn bytes(self, file: usize) -> Vec<u8> {
        let seed = self.0.wrapping_mul(1_000_003) + file as u64;
        patterned(usize::try_from(self.lengths()[file]).unwrap(), seed)
    }

    fn name(self, file: usize) -> String {
        format!("{}-{file}", self.0)
    }

    fn id(self, file: usize) -> FileId {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.0.to_le_bytes());
        id[8..].copy_from_slice(&(file as u64 + 1).to_le_bytes());
        id
    }

    fn metadata(self) -> String {
        format!("attempt {}", self.0)
    }
}

/// End of a save, as its trainer sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It was told that all is durable.
    Durable,
    /// It does not know.
    Unknown,
    /// It did not commit.
    Abandoned,
}

/// Saves of one URL that may be visible.
#[derive(Debug, Default)]
struct Allowed {
    /// Last durable one; it or a later one becomes visible.
    durable: Option<Attempt>,
    /// Others that may be.
    unknown: Vec<Attempt>,
}

struct Bench {
    store: TempDir,
    _server: S3Server,
    proxy: FaultProxy,
    disk: TempDir,
    environment: BTreeMap<String, String>,
    allowed: BTreeMap<String, Allowed>,
    next: u64,
}

impl Bench {
    fn new() -> Self {
        let store = Daemon::disk();
        fs::create_dir_all(store.path().join("bucket")).unwrap();
        let server = S3Server::start(store.path()).unwrap();
        let proxy = FaultProxy::start(server.address()).unwrap();
        let environment = to_store(&proxy.endpoint());
        Self {
            store,
            _server: server,
            proxy,
            disk: Daemon::disk(),
            environment,
            allowed: BTreeMap::new(),
            next: 1,
        }
    }

    fn cache(&self) -> PathBuf {
        self.disk.path().join("cache")
    }

    fn socket(&self) -> PathBuf {
        self.disk.path().join("d.sock")
    }

    fn start(&self) -> NodeProcess {
        let setup = Setup {
            cache: self.cache(),
            socket: self.socket(),
            capacity: CAPACITY,
            kill_point: None,
            file_timeout: None,
            saves: true,
        };
        let (daemon, died) = NodeProcess::start(ACTOR, &setup);
        assert_eq!(died, None);
        daemon
    }

    fn place(&self, url: &str, name: &str) -> CheckpointPlace {
        CheckpointPlace {
            address: Address::Unix(self.socket()),
            url: url.to_owned(),
            name: name.to_owned(),
            origin: self.environment.clone(),
            timeout: PATIENCE,
            watch: Watch::default(),
        }
    }

    fn round(&mut self, kind: Kind, random: &mut Random) {
        let attempt = Attempt(self.next);
        self.next += 1;
        let known: Vec<_> = self.allowed.keys().filter(|url| url.contains("/run/")).collect();
        let url = match kind {
            // A pushed folder keeps its names, so it has a URL of its own.
            Kind::PushKilled => format!("s3://bucket/pushed/step-{}", attempt.0),
            _ if !known.is_empty() && random.percent(40) => (*random.pick(&known)).clone(),
            _ => format!("s3://bucket/run/step-{}", attempt.0),
        };
        let at = Duration::from_millis(random.below(LATEST_KILL_MS));
        let outcome = match kind {
            Kind::PowerCut => self.power_cut(attempt, &url, random),
            Kind::PushKilled => self.push_killed(attempt, &url, at),
            _ => self.killed(kind, attempt, &url, (at, random.percent(50))),
        };
        let allowed = self.allowed.entry(url).or_default();
        match outcome {
            Outcome::Durable => *allowed = Allowed { durable: Some(attempt), unknown: Vec::new() },
            Outcome::Unknown => allowed.unknown.push(attempt),
            Outcome::Abandoned => {}
        }
        say(&format!("round {}: {kind:?} at {} ms: {outcome:?}", attempt.0, at.as_millis()));
    }

    /// A save beside which a daemon or the ranks end: at a time after its beginning, or after its
    /// end.
    fn killed(
        &self,
        kind: Kind,
        attempt: Attempt,
        url: &str,
        (at, is_after_end): (Duration, bool),
    ) -> Outcome {
        let daemon = self.start();
        let is_over = AtomicBool::new(false);
        let (told, ended) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| told.send(self.save(attempt, url, &is_over)).unwrap());
            let early = match (kind, is_after_end) {
                (Kind::Undisturbed, _) => None,
                (_, false) => ended.recv_timeout(at).ok(),
                (_, true) => {
                    let outcome = ended.recv().ok();
                    // The upload goes on meanwhile.
                    let (_silent, never) = mpsc::channel::<()>();
                    let _ = never.recv_timeout(at);
                    outcome
                }
            };
            if matches!(kind, Kind::RankKilled | Kind::BothKilled) {
                is_over.store(true, Ordering::SeqCst);
            }
            if matches!(kind, Kind::DaemonKilled | Kind::BothKilled) {
                daemon.kill();
            }
            let outcome = early.unwrap_or_else(|| ended.recv().unwrap());
            if kind == Kind::Undisturbed && outcome == Outcome::Durable {
                self.place(url, "").wait(Level::Published).unwrap();
            }
            daemon.kill();
            assert_eq!(daemon.end(), None);
            outcome
        })
    }

    /// Saves by two ranks, and commits.
    fn save(&self, attempt: Attempt, url: &str, is_over: &AtomicBool) -> Outcome {
        let count = attempt.lengths().len();
        let ranks: Vec<Vec<usize>> =
            (0..2).map(|rank| (0..count).filter(|file| file % 2 == rank).collect()).collect();
        let save = |files: &[usize]| -> Result<()> {
            files.iter().try_for_each(|file| self.write(attempt, url, *file, is_over))
        };
        let saved = std::thread::scope(|scope| {
            let save = &save;
            let ranks: Vec<_> =
                ranks.iter().map(|files| scope.spawn(move || save(files))).collect();
            ranks.into_iter().try_for_each(|rank| rank.join().unwrap())
        });
        if saved.is_err() {
            return Outcome::Abandoned;
        }
        let text = attempt.metadata();
        let opened = self.writer(url, ".metadata", attempt.id(count), text.len() as u64);
        let Ok(mut writer) = opened else { return Outcome::Abandoned };
        if writer.write(text.as_bytes()).is_err() || is_over.load(Ordering::SeqCst) {
            return Outcome::Abandoned;
        }
        let files = (0..count).map(|file| attempt.id(file)).collect();
        match writer.finish(Some(Commit { files, step: Some(attempt.0), overwrite: true })) {
            Ok(_) => Outcome::Durable,
            Err(_) => Outcome::Unknown,
        }
    }

    fn write(&self, of: Attempt, url: &str, file: usize, is_over: &AtomicBool) -> Result<()> {
        let bytes = of.bytes(file);
        let mut writer = self.writer(url, &of.name(file), of.id(file), bytes.len() as u64)?;
        for piece in bytes.chunks(1 << 20) {
            if is_over.load(Ordering::SeqCst) {
                return Err(Error::new(ErrorKind::Closed, "the rank is killed"));
            }
            writer.write(piece)?;
        }
        writer.finish(None).map(drop)
    }

    fn writer(&self, url: &str, name: &str, id: FileId, expected: u64) -> Result<CheckpointWriter> {
        let (place, job) = (self.place(url, name), "torture".to_owned());
        CheckpointWriter::open(SaveConfig { place, id, expected, is_lone: false, job })
    }

    /// A process that pushes a folder, and is killed.
    fn push_killed(&self, attempt: Attempt, url: &str, at: Duration) -> Outcome {
        let folder = TempDir::new().unwrap();
        for file in 0..attempt.lengths().len() {
            fs::write(folder.path().join(attempt.name(file)), attempt.bytes(file)).unwrap();
        }
        let daemon = self.start();
        let mut push = Command::new(ACTOR);
        push.args(["checkpoint", "push"]).arg(folder.path()).arg(url);
        push.arg("--step").arg(attempt.0.to_string());
        push.arg("--daemon").arg(format!("unix:{}", self.socket().display()));
        push.envs(&self.environment).stdout(Stdio::piped()).stderr(Stdio::null());
        let ended = ended_within(push.spawn().unwrap(), at);
        daemon.kill();
        assert_eq!(daemon.end(), None);
        match ended {
            Some(true) => Outcome::Durable,
            Some(false) => panic!("a push failed by itself"),
            None => Outcome::Unknown,
        }
    }

    /// A save on a machine that loses its power.
    fn power_cut(&self, attempt: Attempt, url: &str, random: &mut Random) -> Outcome {
        let files = UnsyncedFiles::new(&self.cache(), &self.disk.path().join("aside"));
        let mut config = saves_anywhere(Daemon::config(&self.cache(), CAPACITY));
        config.files = files.clone();
        config.faults = Some(files.clone());
        let daemon = Daemon::try_start_at(config, &self.socket()).unwrap();
        files.power().goes_after(random.within(1..60));
        let outcome = self.save(attempt, url, &AtomicBool::new(false));
        files.power().off();
        daemon.stop();
        files.cut(random.number());
        outcome
    }

    /// Compares all that is visible with what may be.
    fn check(&self) {
        for (url, visible, folder) in self.visible() {
            let allowed = self.allowed.get(&url);
            let mut may =
                allowed.into_iter().flat_map(|all| all.durable.iter().chain(&all.unknown));
            // One that was durable before may still be the visible one.
            let is_earlier =
                allowed.and_then(|all| all.durable).is_some_and(|durable| visible.0 < durable.0);
            assert!(is_earlier || may.any(|one| *one == visible), "{url}: {visible:?}");
            assert_whole(&url, visible, &folder);
        }
    }

    /// Checkpoints with a `.metadata` in the store.
    fn visible(&self) -> Vec<(String, Attempt, PathBuf)> {
        let mut found = Vec::new();
        for run in ["run", "pushed"] {
            let listed = fs::read_dir(self.store.path().join("bucket").join(run));
            for entry in listed.into_iter().flatten().flatten() {
                let Ok(text) = fs::read_to_string(entry.path().join(".metadata")) else { continue };
                let name = entry.file_name().to_str().unwrap().to_owned();
                let number = text
                    .strip_prefix("attempt ")
                    .or_else(|| text.starts_with('{').then(|| name.strip_prefix("step-").unwrap()));
                let attempt = Attempt(number.unwrap().parse().unwrap());
                found.push((format!("s3://bucket/{run}/{name}"), attempt, entry.path()));
            }
        }
        found
    }

    /// Lets everything end well, and looks for what must be there.
    fn settle(&self) {
        self.proxy.clear();
        let daemon = self.start();
        for url in self.allowed.keys() {
            self.place(url, "").resume().unwrap();
        }
        for (url, allowed) in &self.allowed {
            let Some(durable) = allowed.durable else { continue };
            // A wait would be for the last save of the URL, which may never have been committed.
            self.place(url, "").resume().unwrap();
            eventually(&format!("{durable:?} or a later save of {url} is visible"), || {
                let visible = self.visible().into_iter().find(|(of, ..)| of == url);
                visible.is_some_and(|(_, found, _)| found.0 >= durable.0)
            });
        }
        self.check();
        assert!(daemon.stop().success());
    }
}

/// True or false for a process that ended in time, by its exit code; none for one that was killed.
fn ended_within(mut child: Child, limit: Duration) -> Option<bool> {
    let mut out = child.stdout.take().unwrap();
    let (told, ended) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        // Its end is the process's.
        let _ = std::io::copy(&mut out, &mut std::io::sink());
        let _ = told.send(());
    });
    let in_time = ended.recv_timeout(limit).is_ok();
    if !in_time {
        child.kill().unwrap();
    }
    let status = child.wait().unwrap();
    reader.join().unwrap();
    // It may have ended just before it was killed.
    (in_time || status.code().is_some()).then(|| status.success())
}

/// Compares a visible checkpoint with its save, and with its manifest.
fn assert_whole(url: &str, attempt: Attempt, folder: &Path) {
    let manifest = fs::read(folder.join(".forebay/manifest.json")).unwrap();
    // That of the `.metadata` that is there: another one's may wait for its own.
    let metadata = fs::read(folder.join(".metadata")).unwrap();
    let manifest = Manifest::decode(&manifest).unwrap().visible(&metadata);
    let count = attempt.lengths().len();
    assert_eq!(manifest.step, Some(attempt.0), "{url}");
    assert_eq!(manifest.files.len(), count, "{url}");
    for file in 0..count {
        let found = fs::read(folder.join(attempt.name(file)));
        assert!(
            found.is_ok_and(|found| found == attempt.bytes(file)),
            "{url}: file {file} differs"
        );
    }
}

fn rounds() -> u64 {
    let text = std::env::var("FOREBAY_TORTURE_ROUNDS").unwrap_or_default();
    if text.is_empty() { ROUNDS } else { text.parse().unwrap() }
}

/// Bears promise 12: a checkpoint is whole or absent.
#[test]
fn killed_saves_and_uploads_leave_whole_checkpoints() {
    for_seeds("FOREBAY_TORTURE_SEED", "", 1, |seed| {
        let mut random = Random::new(seed);
        let mut bench = Bench::new();
        let began = Instant::now();
        for number in 0..rounds() {
            // Some requests fail, so that uploads are under way at any moment.
            let busy = Fault::Refuse { status: 503, code: "SlowDown", retry_after: None };
            bench.proxy.set([(When::put().share(random.below(300), random.number()), busy)]);
            let kind = KINDS[usize::try_from(number).unwrap() % KINDS.len()];
            bench.round(kind, &mut random);
            bench.check();
            if random.percent(10) {
                bench.settle();
            }
        }
        bench.settle();
        let visible = bench.visible().len();
        say(&format!(
            "{} rounds in {:.0} s, {visible} checkpoints are visible",
            rounds(),
            began.elapsed().as_secs_f64()
        ));
        assert!(visible > 0);
    });
}
