//! Time of an epoch by the number of concurrent jobs of one daemon.
//!
//! The daemon and its cache are the benchmark's own, so that no other data is evicted and no other
//! job is measured.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_client::{Address, Launch, Loader, LoaderConfig, RuntimeDirectory, SessionConfig};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_wire::message::{Open, Order};
use indicatif::ProgressBar;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::Deserialize;

use super::{Setup, doubles, grown, median};
use crate::fetches::{self, Fetches};
use crate::growth::Growth;
use crate::playing;

/// Shards that all jobs read, samples of each and their bytes: an epoch of 8 MiB, so that 64 jobs
/// read half a gigabyte.
const SHARDS: usize = 4;
const SAMPLES: usize = 128;
const BYTES: usize = 16 << 10;

/// Samples of a batch.
const BATCH: u32 = 16;

/// Room for the shards, and for as much again.
const CAPACITY: &str = "64MiB";

/// Seconds after which the daemon ends by itself, should nobody be left to end it.
const IDLE: &str = "60";

/// A daemon ends within some seconds; one that does not is not waited for.
const END_TIMEOUT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// A job waits no longer for a batch.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn growth(
    most: u64,
    setup: Setup<'_>,
    growths: &mut Vec<Growth>,
    progress: &ProgressBar,
) -> Result<()> {
    let folder = tempfile::Builder::new().prefix("forebay-scale-").tempdir_in(setup.directory);
    let folder = folder.doing("make a folder for shards")?;
    let root = folder.path().canonicalize().doing("find a folder")?;
    let urls = (0..SHARDS).map(|number| {
        let path = root.join(format!("{number}.tar"));
        make(&path)?;
        Ok(format!("file://{}", path.display()))
    });
    let urls: Vec<String> = urls.collect::<Result<_>>()?;
    let temporary = TemporaryDaemon::new(setup, &root);
    let address = temporary.address();
    let first = Loader::open(config(&address, &urls))?;
    let daemon: Daemon = fetches::status(&address)?;
    // All that is read is here from now on.
    playing::play(&first, 0, None, &ProgressBar::hidden())?;
    drop(first);
    Fetches::settled(&address)?;
    let name = "jobs: an epoch of each, all at once".to_owned();
    let ended = grown(growths, (name, "jobs"), doubles(most), |jobs| {
        progress.set_message(format!("jobs: {jobs}"));
        progress.inc(1);
        let opened = (0..jobs).map(|_| Loader::open(config(&address, &urls)));
        let loaders: Vec<Loader> = opened.collect::<Result<_>>()?;
        let mut epochs = 0..;
        median(|| epochs_seconds(&loaders, epochs.next().unwrap_or_default()))
    });
    drop(daemon);
    ended
}

/// Seconds from the jobs' common start to the end of the last.
fn epochs_seconds(loaders: &[Loader], epoch: u64) -> Result<f64> {
    let (played, wall) = playing::play_together(loaders, epoch, None, &ProgressBar::hidden())?;
    let all = (SHARDS * SAMPLES) as u64;
    match played.iter().find(|played| played.samples != all) {
        None => Ok(wall),
        Some(other) => {
            let what = "an epoch does not have the generated samples";
            let error = Error::new(ErrorKind::Invalid, what).at("made", all);
            Err(error.at("found", other.samples))
        }
    }
}

fn make(path: &Path) -> Result<()> {
    let file = File::create(path).doing("make a shard")?;
    let mut archive = tar::Builder::new(file);
    for sample in 0..SAMPLES {
        let mut header = tar::Header::new_gnu();
        header.set_size(BYTES as u64);
        let data = vec![sample as u8; BYTES];
        let name = format!("{sample:06}.bin");
        archive.append_data(&mut header, name, &data[..]).doing("make a shard")?;
    }
    archive.finish().doing("make a shard")
}

fn config(address: &Address, urls: &[String]) -> LoaderConfig {
    let counts = Some(vec![SAMPLES as u64; SHARDS]);
    let open = Open::new("bench scale", urls.to_vec(), Order::of_list(BATCH));
    let open = Open { counts, ..open };
    LoaderConfig::new(SessionConfig::new(address.clone(), open, TIMEOUT))
}

/// Folders of the daemon.
struct TemporaryDaemon {
    launch: Launch,
}

impl TemporaryDaemon {
    fn new(setup: Setup<'_>, root: &Path) -> Self {
        let cache = root.join("cache");
        let directory = Ok(RuntimeDirectory::of(&cache));
        let set = |name: &str, path: PathBuf| {
            let mut set = std::ffi::OsString::from(format!("{name}="));
            set.push(path);
            set
        };
        let mut command = vec!["env".into(), set("FOREBAY_CACHE", cache)];
        command.extend_from_slice(setup.launcher);
        let daemon = ["daemon", "--embedded", "--capacity", CAPACITY, "--idle", IDLE];
        command.extend(daemon.map(std::ffi::OsString::from));
        Self { launch: Launch { command, directory } }
    }

    fn address(&self) -> Address {
        Address::Embedded(self.launch.clone())
    }
}

/// A daemon that was started here, ended when dropped; of its status nothing else is read.
#[derive(Deserialize)]
struct Daemon {
    pid: u32,
}

impl Daemon {
    /// Ends it, and waits until it is gone: its cache is about to be removed.
    fn end(&self) -> Result<()> {
        let gone = || Error::new(ErrorKind::Closed, "the benchmark's daemon has ended");
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).doing("find the benchmark's daemon")?;
        kill_process(pid, Signal::TERM).doing("end the benchmark's daemon")?;
        // It removes what it began to remove, and has some seconds for that.
        if poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&END_TIMEOUT))
            .doing("wait for a daemon's end")?
            == 0
        {
            kill_process(pid, Signal::KILL).doing("end the benchmark's daemon")?;
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // One that cannot be ended ends by itself, when it has idled for long enough.
        let _ = self.end();
    }
}
