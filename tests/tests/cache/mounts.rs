//! File systems that hang: what waits for them waits alone, and ends with an error; daemons come
//! and go.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_client::Address;
use forebay_error::{Error, ErrorKind, Result};
use forebay_testkit::shard;
use forebay_tests::{
    Daemon, Epoch, HangingFile, NodeProcess, Origin, Setup, alive, descriptors, epoch, eventually,
    hangs, job, readers_of, status,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::ACTOR;

/// A shard of eight parts: more than a mount has readers.
const SIZES: std::ops::Range<usize> = 90_000..110_000;
const SAMPLES: u64 = 320;

/// Largest number of readers of a mount.
const READERS: usize = 4;

/// A limit that is soon over; nothing but what hangs is to meet it, on a machine that is busy, too.
const SOON: Duration = Duration::from_secs(5);

/// A shard on a mount that hangs, one on the disk, and one at a store.
struct Bench {
    origin: Origin,
    disk: tempfile::TempDir,
    hanging: HangingFile,
}

impl Bench {
    fn new() -> Option<Self> {
        let bytes = shard(SAMPLES, 0, &SIZES);
        let hanging = HangingFile::new("0.tar", &bytes)?;
        let (origin, disk) = (Origin::new(), Daemon::disk());
        origin.put("0.tar", &bytes);
        std::fs::write(disk.path().join("0.tar"), &bytes).unwrap();
        Some(Self { origin, disk, hanging })
    }

    fn play(&self, socket: &Path, url: String) -> Result<Epoch> {
        epoch(Address::Unix(socket.to_owned()), job(&self.origin, vec![url]))
    }

    /// A job on the mount that hangs.
    fn play_hanging(&self, socket: &Path) -> Result<Epoch> {
        self.play(socket, self.hanging.path().display().to_string())
    }

    /// Jobs on everything else.
    fn assert_others_go_on(&self, socket: &Path) {
        let local = format!("file://{}", self.disk.path().join("0.tar").display());
        for url in [local, Origin::url("0.tar")] {
            self.play(socket, url).unwrap().assert_whole(1, SAMPLES, &SIZES);
        }
    }

    fn setup(&self, file_timeout: Option<Duration>) -> Setup {
        let (cache, socket) = (self.disk.path().join("cache"), self.disk.path().join("d.sock"));
        Setup { cache, socket, capacity: 1 << 30, kill_point: None, file_timeout, saves: false }
    }

    /// The entry of the mount that hangs in a daemon's status document.
    fn report(&self, socket: &Path) -> serde_json::Value {
        let status = status(socket);
        let mounts = status["mounts"].as_array().unwrap();
        let here = self.hanging.mount();
        let mine =
            mounts.iter().find(|mount| mount["mount"].as_str().map(Path::new) == Some(&here));
        mine.cloned().unwrap_or_default()
    }
}

fn pids(list: &serde_json::Value) -> Vec<u32> {
    let list = list.as_array().into_iter().flatten();
    list.map(|pid| pid.as_u64().unwrap().try_into().unwrap()).collect()
}

/// The error that a job ended with, or that its only shard was given up for.
fn why(played: Result<Epoch>) -> Error {
    played.map_or_else(|error| error, |mut epoch| epoch.errors.pop().unwrap())
}

/// Waits until readers of a daemon are where no signal ends them. Others may still be on their way
/// there: the file system's server takes a few requests at once, and those it has not taken yet can
/// be killed.
fn hung_readers(daemon: u32) -> Vec<u32> {
    let mut hung = Vec::new();
    eventually("readers hang in the kernel", || {
        hung = readers_of(daemon);
        hung.retain(|pid| hangs(*pid));
        !hung.is_empty()
    });
    hung
}

/// Bears promise 7 for foreign mounts: the job on the one that hangs is told so in time; all others
/// go on; and however often it is tried, no more processes hang than the mount may have.
#[test]
fn hanging_mount_fails_only_its_own_job() {
    let Some(bench) = Bench::new() else { return };
    let mut config = Daemon::config(&bench.disk.path().join("cache"), 1 << 30);
    config.limits.file_timeout = SOON;
    let daemon = Daemon::try_start(config).unwrap();
    let socket = daemon.socket();
    bench.hanging.freeze();
    std::thread::scope(|scope| {
        let hung: Vec<_> = (0..4).map(|_| scope.spawn(|| bench.play_hanging(socket))).collect();
        hung_readers(std::process::id());
        bench.assert_others_go_on(socket);
        for job in hung {
            let error = why(job.join().unwrap());
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            let at = |path: PathBuf| Some(path.display().to_string());
            let places = ["url", "mount"].map(|name| error.place(name).map(str::to_owned));
            assert_eq!(places, [at(bench.hanging.path()), at(bench.hanging.mount())], "{error}");
        }
    });
    std::thread::scope(|scope| {
        for _ in 0..2 * READERS {
            scope.spawn(|| why(bench.play_hanging(socket)));
        }
    });
    let report = bench.report(socket);
    assert_eq!(report["hangs"], true, "{report}");
    let stuck = pids(&report["stuck"]);
    assert!(!stuck.is_empty() && pids(&report["readers"]).len() <= READERS, "{report}");
    // They were killed, and are still there.
    eventually("what could be killed is gone", || {
        pids(&bench.report(socket)["stuck"]).iter().all(|pid| hangs(*pid))
    });
    assert!(stuck.iter().any(|pid| hangs(*pid)), "{stuck:?}");
    bench.assert_others_go_on(socket);
    bench.hanging.thaw();
    eventually("what hung is gone and was waited for", || {
        stuck.iter().all(|pid| !Path::new(&format!("/proc/{pid}")).exists())
    });
    // A file system that was just thawed has what waited before it to answer first.
    let mut whole = None;
    eventually("the mount serves again", || {
        whole = bench.play_hanging(socket).ok();
        whole.is_some()
    });
    whole.unwrap().assert_whole(1, SAMPLES, &SIZES);
    assert_eq!(bench.report(socket)["hangs"], false);
}

/// Bears promises 4 and 7: a daemon that is killed while a mount hangs leaves neither its lock nor
/// its socket in use; neither does one that ends in order. The job goes on from daemon to daemon.
#[test]
fn daemons_end_and_start_while_a_mount_hangs() {
    let Some(bench) = Bench::new() else { return };
    // Longer than all of this takes.
    let setup = bench.setup(Some(Duration::from_secs(600)));
    let (first, died) = NodeProcess::start(ACTOR, &setup);
    assert_eq!(died, None);
    bench.hanging.freeze();
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let job = scope.spawn(|| bench.play_hanging(&setup.socket));
        let hung = hung_readers(first.pid());
        all.extend(readers_of(first.pid()));
        let ours: Vec<PathBuf> = all.iter().flat_map(|pid| descriptors(*pid)).collect();
        assert!(!ours.iter().any(|path| path.starts_with(bench.disk.path())), "{ours:?}");
        first.kill();
        assert_eq!(first.end(), None);
        let (second, died) = NodeProcess::start(ACTOR, &setup);
        assert_eq!(died, None);
        bench.assert_others_go_on(&setup.socket);
        assert!(hung.iter().all(|pid| hangs(*pid)), "nothing hung all along");
        // The file system's server is full by now: what comes hangs before it, and could be killed.
        eventually("the job asks again", || !readers_of(second.pid()).is_empty());
        all.extend(readers_of(second.pid()));
        assert!(second.stop().success(), "a daemon did not end in order");
        let (third, died) = NodeProcess::start(ACTOR, &setup);
        assert_eq!(died, None);
        assert!(hung.iter().all(|pid| hangs(*pid)), "nothing hung all along");
        bench.hanging.thaw();
        job.join().unwrap().unwrap().assert_whole(1, SAMPLES, &SIZES);
        eventually("no reader is left of daemons that are gone", || {
            all.iter().all(|pid| !alive(*pid))
        });
        all = readers_of(third.pid());
        assert!(third.stop().success());
    });
    eventually("no reader is left of a daemon that ended", || all.iter().all(|pid| !alive(*pid)));
}

/// A reader that is killed in the middle of a read costs its job nothing.
#[test]
fn reader_killed_in_mid_read_is_replaced() {
    let Some(bench) = Bench::new() else { return };
    let setup = bench.setup(None);
    let (daemon, _) = NodeProcess::start(ACTOR, &setup);
    bench.hanging.freeze();
    std::thread::scope(|scope| {
        let job = scope.spawn(|| bench.play_hanging(&setup.socket));
        let hung = hung_readers(daemon.pid());
        for pid in &hung {
            kill_process(Pid::from_raw(*pid as i32).unwrap(), Signal::KILL).unwrap();
        }
        bench.hanging.thaw();
        job.join().unwrap().unwrap().assert_whole(1, SAMPLES, &SIZES);
        assert!(hung.iter().all(|pid| !alive(*pid)), "a killed reader lives");
    });
    assert!(daemon.stop().success());
}
