//! Throughput: how much the loader brings if nobody computes.
//!
//! Whole epochs, from asking for the epoch to its last batch, and medians of several. Of several
//! jobs the time is that from their common start to the end of the last.

use std::fmt;

use forebay_client::{Address, Loader, LoaderConfig};
use forebay_error::{Error, ErrorKind, Result};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::fetches::Fetches;
use crate::machine::Machine;
use crate::playing::{self, Played};
use crate::spread::Spread;
use crate::starvation::Temperature;
use crate::tier_reads::TierReads;

/// Varied settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Case {
    /// True if images are decoded; otherwise bytes are delivered.
    pub decoded: bool,
    /// Decode threads of each job.
    pub threads: usize,
    /// Samples of a batch.
    pub batch_size: u32,
    /// Jobs that read the same shards at once.
    pub jobs: u32,
}

/// Rounds of each case.
#[derive(Debug, Clone, Copy)]
pub struct Rounds {
    /// Warm epochs that are timed.
    pub rounds: u32,
    /// True if each has a cold round before it, for which the cache evicts the shards.
    pub cold: bool,
    /// Batches of an epoch and job, at most.
    pub batches: Option<u64>,
}

/// All cases.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Machine of the measurement.
    pub machine: Machine,
    /// One entry per case.
    pub cases: Vec<CaseReport>,
}

/// One case.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// Varied settings.
    #[serde(flatten)]
    pub case: Case,
    /// Epochs that began after the shards were evicted, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold: Option<Figures>,
    /// Epochs of shards that were here.
    pub warm: Figures,
}

/// Figures of several epochs.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Samples a second, of all jobs together.
    pub samples_per_second: Spread,
    /// Payload bytes a second, of all jobs together.
    pub bytes_per_second: Spread,
    /// CPU of trainers and daemon together per sample, in milliseconds.
    pub cpu_ms_per_sample: Spread,
    /// Each epoch.
    pub rounds: Vec<Round>,
}

/// One epoch of all jobs.
#[derive(Debug, Clone, Serialize)]
pub struct Round {
    /// By what the daemon fetched for it and what one job was given, whatever was asked for.
    pub temperature: Temperature,
    /// From the jobs' common start to the end of the last.
    pub wall_seconds: f64,
    /// Until the job that waited longest had its first batch.
    pub first_batch_seconds: f64,
    /// Samples of all jobs.
    pub samples: u64,
    /// Samples a second.
    pub samples_per_second: f64,
    /// Payload bytes a second.
    pub bytes_per_second: f64,
    /// CPU of trainers and daemon together per sample, in milliseconds.
    pub cpu_ms_per_sample: f64,
    /// Bytes that the daemon fetched from origins meanwhile, for whatever job.
    pub fetched_bytes: u64,
    /// Payload read from tiers.
    pub tier_bytes: u64,
    /// Payload copied from shards that were still arriving.
    pub origin_bytes: u64,
    /// Bytes read from each of the daemon's tiers, as those transfer them, by its name.
    pub by_tier: TierReads,
}

impl Report {
    /// Plays every case; `config` makes the loader of one job of a case. Cases that were played
    /// before one failed stay.
    ///
    /// # Errors
    /// The loader's error; `Invalid` for an epoch without a sample.
    pub fn play(
        &mut self,
        cases: &[Case],
        how: Rounds,
        config: impl Fn(&Case) -> LoaderConfig,
        progress: &ProgressBar,
    ) -> Result<()> {
        cases.iter().try_for_each(|case| {
            progress.set_message(case.to_string());
            let configs = (0..case.jobs).map(|_| config(case)).collect();
            self.cases.push(Stage::open(configs, how, progress)?.case(*case)?);
            Ok(())
        })
    }
}

/// The loaders of a case.
struct Stage<'a> {
    loaders: Vec<Loader>,
    address: Address,
    urls: Vec<String>,
    how: Rounds,
    progress: &'a ProgressBar,
}

impl<'a> Stage<'a> {
    fn open(configs: Vec<LoaderConfig>, how: Rounds, progress: &'a ProgressBar) -> Result<Self> {
        let Some(first) = configs.first() else {
            return Err(Error::new(ErrorKind::Invalid, "a case has no job"));
        };
        let (address, urls) = (first.session.address.clone(), first.session.open.urls.clone());
        let loaders = configs.into_iter().map(Loader::open).collect::<Result<_>>()?;
        Ok(Self { loaders, address, urls, how, progress })
    }

    fn case(&self, case: Case) -> Result<CaseReport> {
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        if !self.how.cold {
            // Missing shards are fetched first; that is not measured.
            self.round(0)?;
        }
        for round in 1..=u64::from(self.how.rounds) {
            if self.how.cold {
                playing::evict(&self.address, &self.urls)?;
                cold.push(self.round(2 * round)?);
            }
            warm.push(self.round(2 * round + 1)?);
        }
        let cold = self.how.cold.then(|| Figures::of(cold));
        Ok(CaseReport { case, cold, warm: Figures::of(warm) })
    }

    /// One epoch of all jobs at once.
    fn round(&self, epoch: u64) -> Result<Round> {
        let before = Fetches::settled(&self.address)?;
        let tiers = TierReads::of(&self.address)?;
        let cpu = playing::cpu_seconds(before.daemon_pid)?;
        let (played, wall) =
            playing::play_together(&self.loaders, epoch, self.how.batches, self.progress)?;
        let cpu = playing::cpu_seconds(before.daemon_pid)? - cpu;
        let by_tier = TierReads::of(&self.address)?.since(&tiers);
        let fetched_bytes = Fetches::settled(&self.address)?.since(before)?;
        let sum = |of: fn(&Played) -> u64| played.iter().map(of).sum::<u64>();
        let (samples, tier_bytes) = (sum(|job| job.samples), sum(|job| job.tier_bytes));
        let origin_bytes = sum(|job| job.origin_bytes);
        if samples == 0 {
            let what = "an epoch has no full batch";
            return Err(Error::new(ErrorKind::Invalid, what)
                .advise("lower --batch-size, or name more shards"));
        }
        let first = played.iter().map(|job| job.first_batch).max().unwrap_or_default();
        Ok(Round {
            // A shard that all cases read is fetched once.
            temperature: Temperature::of(
                fetched_bytes,
                (tier_bytes + origin_bytes) / self.loaders.len() as u64,
            ),
            wall_seconds: wall,
            first_batch_seconds: first.as_secs_f64(),
            samples,
            samples_per_second: samples as f64 / wall,
            bytes_per_second: (tier_bytes + origin_bytes) as f64 / wall,
            cpu_ms_per_sample: cpu * 1e3 / samples as f64,
            fetched_bytes,
            tier_bytes,
            origin_bytes,
            by_tier,
        })
    }
}

impl Figures {
    fn of(rounds: Vec<Round>) -> Self {
        let spread = |of: fn(&Round) -> f64| Spread::of(rounds.iter().map(of));
        Self {
            samples_per_second: spread(|round| round.samples_per_second),
            bytes_per_second: spread(|round| round.bytes_per_second),
            cpu_ms_per_sample: spread(|round| round.cpu_ms_per_sample),
            rounds,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { decoded, threads, batch_size, jobs } = self;
        let what = if *decoded { "decoded" } else { "raw" };
        write!(f, "{what}, batch {batch_size}, {threads} threads, {jobs} jobs")
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.machine)?;
        let head = ("samples/s", "range", "GB/s", "CPU ms/sample");
        writeln!(
            f,
            "{:<42} {:<6} {:>12} {:>8} {:>8} {:>14}",
            "", "", head.0, head.1, head.2, head.3
        )?;
        for CaseReport { case, cold, warm } in &self.cases {
            let cold = cold.as_ref().map(|cold| ("cold", cold));
            for (how, figures) in cold.into_iter().chain([("warm", warm)]) {
                writeln!(
                    f,
                    "{:<42} {how:<6} {:>12.0} {:>6.0} % {:>8.3} {:>14.3}",
                    case.to_string(),
                    figures.samples_per_second.median,
                    figures.samples_per_second.share() * 100.0,
                    figures.bytes_per_second.median / 1e9,
                    figures.cpu_ms_per_sample.median,
                )?;
                if let Some(Round { temperature, by_tier, .. }) = figures.rounds.last() {
                    writeln!(f, "{:>6} the last was {temperature}; read from {by_tier}", "")?;
                }
            }
        }
        Ok(())
    }
}
