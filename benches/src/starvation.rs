//! Starvation: an emulated accelerator takes batches from the loader; how much of its time is work?
//!
//! AU_ideal = N · t_nominal / wall, over all steps but the first (MLPerf Storage leaves it out, as
//! pipelines fill then). The nominal step time counts, not the measured one: a busy host oversleeps,
//! and DLIO's measured sleep would book that as compute (gpu-bound where the host is the limit).

mod report;

use std::time::{Duration, Instant};

use forebay_client::{Address, Batch, Loader, LoaderConfig, Next};
use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::Begin;
use indicatif::ProgressBar;

use crate::cpu;
use crate::fetches::Fetches;
pub use report::{EpochReport, Report, Temperature};

/// What an accelerator does with batches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// Samples per step.
    pub batch_size: u32,
    /// Seconds one step computes.
    pub step_seconds: f64,
    /// Whether samples are JPEG images to be decoded.
    pub images: bool,
}

/// MLPerf Storage v1 and v2's accelerators, by their published step times.
pub const PROFILES: [Profile; 6] = [
    Profile { name: "resnet50-h100", batch_size: 400, step_seconds: 0.224, images: true },
    Profile { name: "resnet50-a100", batch_size: 400, step_seconds: 0.435, images: true },
    Profile { name: "unet3d-h100", batch_size: 7, step_seconds: 0.323, images: false },
    Profile { name: "unet3d-a100", batch_size: 7, step_seconds: 0.636, images: false },
    Profile { name: "cosmoflow-h100", batch_size: 1, step_seconds: 0.0035, images: false },
    Profile { name: "cosmoflow-a100", batch_size: 1, step_seconds: 0.005_51, images: false },
];

/// Finds a profile by name.
#[must_use]
pub fn profile(name: &str) -> Option<Profile> {
    PROFILES.into_iter().find(|profile| profile.name == name)
}

/// What is played.
#[derive(Debug, Clone, Copy)]
pub struct Play {
    /// What one step computes.
    pub step: Duration,
    /// Epochs.
    pub epochs: u64,
    /// Steps per epoch, at most; the first of them is not counted.
    pub steps: Option<u64>,
}

/// Plays epochs with the loader of `config`.
///
/// # Errors
/// What the loader failed with; `Invalid` if an epoch has fewer than two batches. Bad samples end
/// the run.
pub fn run(config: LoaderConfig, play: Play, progress: &ProgressBar) -> Result<Vec<EpochReport>> {
    let address = config.session.address.clone();
    let batch_size = config.session.open.order.batch_size;
    let loader = Loader::open(config)?;
    let emulation = Emulation { loader, address, batch_size, play, progress };
    (0..play.epochs).map(|epoch| emulation.epoch(epoch)).collect()
}

struct Emulation<'a> {
    loader: Loader,
    address: Address,
    batch_size: u32,
    play: Play,
    progress: &'a ProgressBar,
}

/// From when on steps count, and what CPU had been used by then.
struct Steady {
    since: Instant,
    cpu_seconds: f64,
}

impl Emulation<'_> {
    fn epoch(&self, epoch: u64) -> Result<EpochReport> {
        let loader = &self.loader;
        let before = Fetches::settled(&self.address)?;
        let begin = Instant::now();
        loader.start(Begin::at(epoch, 0))?;
        let mut first_batch = None;
        let mut steady = None;
        let (mut done, mut payload) = (0, 0);
        while self.play.steps.is_none_or(|steps| done < steps) {
            let Some(batch) = self.next()? else { break };
            first_batch.get_or_insert_with(|| begin.elapsed());
            compute(Instant::now() + self.play.step);
            done += 1;
            payload += batch.tier_bytes + batch.origin_bytes;
            self.progress.inc(batch.keys.len() as u64);
            if steady.is_none() {
                // What the first step waited and computed belongs to filling the pipeline; it is
                // told as first batch.
                loader.reset_stats();
                steady = Some(Steady { since: Instant::now(), cpu_seconds: self.cpu_seconds()? });
            }
        }
        let (Some(steady), 2..) = (steady, done) else { return Err(self.too_short(done)) };
        let wall = steady.since.elapsed().as_secs_f64();
        let cpu = self.cpu_seconds()? - steady.cpu_seconds;
        let stats = loader.stats();
        let fetched_bytes = self.fetched(before)?;
        Ok(EpochReport {
            epoch,
            temperature: Temperature::of(fetched_bytes, payload),
            steps: done - 1,
            samples: stats.samples,
            wall_seconds: wall,
            au_ideal: (done - 1) as f64 * self.play.step.as_secs_f64() / wall,
            first_batch_seconds: first_batch.unwrap_or_default().as_secs_f64(),
            samples_per_second: stats.samples as f64 / wall,
            bytes_per_second: (stats.tier_bytes + stats.origin_bytes) as f64 / wall,
            cpu_ms_per_sample: cpu * 1000.0 / stats.samples.max(1) as f64,
            fetched_bytes,
            tier_bytes: stats.tier_bytes,
            origin_bytes: stats.origin_bytes,
            wait: stats.wait,
        })
    }

    /// The next batch; `None` at the epoch's end.
    fn next(&self) -> Result<Option<Box<Batch>>> {
        match self.loader.next::<Error>(|| Ok(()))? {
            Next::Batch(batch) => match batch.errors.first() {
                Some(error) => Err(error.clone()),
                None => Ok(Some(batch)),
            },
            Next::End { errors, .. } => match errors.into_iter().next() {
                Some(error) => Err(error),
                None => Ok(None),
            },
        }
    }

    /// Bytes fetched from origins since `before`.
    fn fetched(&self, before: Fetches) -> Result<u64> {
        let after = Fetches::settled(&self.address)?;
        if after.daemon_pid != before.daemon_pid {
            return Err(Error::new(ErrorKind::Closed, "the daemon was replaced during the epoch")
                .at("pid", before.daemon_pid)
                .advise("look at its log, and measure again"));
        }
        Ok(after.bytes - before.bytes)
    }

    fn too_short(&self, done: u64) -> Error {
        Error::new(
            ErrorKind::Invalid,
            "the epoch has too few full batches: the first is not counted",
        )
        .at("batches", done)
        .at("batch_size", self.batch_size)
        .advise("lower --batch-size, or name more shards")
    }

    /// CPU of this process and its daemon.
    fn cpu_seconds(&self) -> Result<f64> {
        let daemon = self.loader.stats().daemon_pid.map_or(Ok(0.0), cpu::seconds)?;
        Ok(cpu::seconds(std::process::id())? + daemon)
    }
}

/// An accelerator at work is time passing: nothing else ends a step.
#[allow(clippy::disallowed_methods, reason = "emulated compute waits for no condition")]
fn compute(until: Instant) {
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
}
