//! Starvation: an emulated accelerator takes batches from the loader; how much of its time is work?
//!
//! AU_ideal = N · t_nominal / wall, over all steps but the first (MLPerf Storage leaves it out, as
//! pipelines fill then). The nominal step time counts, not the measured one: a busy host oversleeps,
//! and DLIO's measured sleep would book that as compute (gpu-bound where the host is the limit).

mod report;

use std::time::{Duration, Instant};

use forebay_client::{Loader, LoaderConfig, Next};
use forebay_error::{Error, ErrorKind, Result};
use indicatif::ProgressBar;

use crate::cpu;
pub use report::{EpochReport, Report};

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
///
/// # Errors
/// `Invalid` listing the names.
pub fn profile(name: &str) -> Result<Profile> {
    PROFILES.into_iter().find(|profile| profile.name == name).ok_or_else(|| {
        let names: Vec<_> = PROFILES.iter().map(|profile| profile.name).collect();
        Error::new(ErrorKind::Invalid, "there is no such profile")
            .at("profile", name)
            .advise(format!("take one of {}, or give --batch-size and --step", names.join(", ")))
    })
}

/// Plays `epochs` epochs of at most `steps` steps of `step_seconds` each.
///
/// # Errors
/// What the loader failed with; bad samples end the run.
pub fn run(
    config: LoaderConfig,
    step_seconds: f64,
    epochs: u64,
    steps: Option<u64>,
    progress: &ProgressBar,
) -> Result<Vec<EpochReport>> {
    let loader = Loader::open(config)?;
    (0..epochs)
        .map(|epoch| play(&loader, epoch, step_seconds, steps.unwrap_or(u64::MAX), progress))
        .collect()
}

fn play(
    loader: &Loader,
    epoch: u64,
    step_seconds: f64,
    steps: u64,
    progress: &ProgressBar,
) -> Result<EpochReport> {
    loader.reset_stats();
    let step = Duration::from_secs_f64(step_seconds);
    let before = cpu_seconds(loader)?;
    let begin = Instant::now();
    loader.start(epoch, 0);
    let mut first_batch = None;
    let mut after_first = None;
    let mut done = 0;
    while done < steps {
        let batch = match loader.next::<Error>(|| Ok(()))? {
            Next::Batch(batch) => batch,
            Next::End { errors, .. } => {
                if let Some(error) = errors.into_iter().next() {
                    return Err(error);
                }
                break;
            }
        };
        if let Some(error) = batch.errors.first() {
            return Err(error.clone());
        }
        first_batch.get_or_insert_with(|| begin.elapsed());
        compute(Instant::now() + step);
        done += 1;
        progress.inc(batch.keys.len() as u64);
        // Waits of the first step belong to filling the pipeline; they are told as first batch.
        after_first.get_or_insert_with(|| {
            loader.reset_stats();
            (Instant::now(), batch.keys.len() as u64)
        });
    }
    let Some((steady, _)) = after_first else {
        return Err(Error::new(ErrorKind::Invalid, "the epoch has no batch to measure"));
    };
    let wall = steady.elapsed().as_secs_f64();
    let stats = loader.stats();
    let nominal = (done - 1) as f64 * step_seconds;
    let cpu = cpu_seconds(loader)? - before;
    Ok(EpochReport {
        epoch,
        steps: done - 1,
        samples: stats.samples,
        wall_seconds: wall,
        au_ideal: if wall > 0.0 { nominal / wall } else { 0.0 },
        first_batch_seconds: first_batch.unwrap_or_default().as_secs_f64(),
        samples_per_second: stats.samples as f64 / wall,
        bytes_per_second: (stats.tier_bytes + stats.origin_bytes) as f64 / wall,
        cpu_ms_per_sample: cpu * 1000.0 / stats.samples.max(1) as f64,
        tier_bytes: stats.tier_bytes,
        origin_bytes: stats.origin_bytes,
        wait: stats.wait,
    })
}

/// An accelerator at work is time passing: nothing else ends a step.
#[allow(clippy::disallowed_methods, reason = "emulated compute waits for no condition")]
fn compute(until: Instant) {
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
}

/// CPU of this process and its daemon.
fn cpu_seconds(loader: &Loader) -> Result<f64> {
    let daemon = loader.stats().daemon_pid.map_or(Ok(0.0), cpu::seconds)?;
    Ok(cpu::seconds(std::process::id())? + daemon)
}
