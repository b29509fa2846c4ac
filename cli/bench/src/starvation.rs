//! Starvation: emulated accelerators take batches from the loader; how much of their time is work?
//!
//! AU_ideal = N · t_nominal / wall, over all steps but the first (MLPerf Storage leaves it out, as
//! pipelines fill then). The nominal step time counts, not the measured one: a busy host
//! oversleeps, and what is measured, which is told beside it, books that as compute (gpu-bound
//! where the host is the limit). DLIO's own formula counts the nominal time, too.

mod accelerator;
pub mod compare;
mod differential;
pub mod page;
mod profile;
mod raw;
mod report;
mod saves;
mod search;

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use forebay_client::{Address, Loader, LoaderConfig};
use forebay_error::{Error, ErrorKind, Result};
use indicatif::ProgressBar;

use crate::fetches::Fetches;
use crate::playing;
use crate::tier_reads::TierReads;
pub use accelerator::{Counted, STALL_SHARE};
use accelerator::{Course, Played};
pub use differential::Differential;
pub use profile::{CUSTOM, PROFILES, Profile};
pub use raw::{RAW_STEPS_MAX, Raw};
use report::Cost;
pub use report::{
    AcceleratorReport, Configuration, Contested, EpochReport, EpochWaits, Report, Search,
    Temperature,
};
use saves::EpochSaves;
pub use saves::{Saves, SavesAsked};
pub use search::{Held, TARGET, Trial};

/// Accelerators of one node at most: no server has more.
pub const ACCELERATORS_MAX: u32 = 64;

/// Trials play the shards so often within an epoch, or until it has so many samples: at its end
/// pipelines empty, and what is made while they fill again would be counted as given away.
const REPEATS: (u64, u64) = (64, 1_000_000);

/// A node's emulated accelerators, each with a loader of its own, as the ranks of one job.
pub struct Node<'a> {
    configs: Vec<LoaderConfig>,
    loaders: Vec<Loader>,
    address: Address,
    batch_size: u32,
    step: Duration,
    progress: &'a ProgressBar,
    saves: Option<Saves>,
    /// The next epoch.
    epoch: u64,
}

impl<'a> Node<'a> {
    /// Opens one loader for each of `configs`, which differ in their rank.
    ///
    /// # Errors
    /// The loader's error; `Invalid` without any.
    pub fn open(
        configs: Vec<LoaderConfig>,
        step: Duration,
        progress: &'a ProgressBar,
    ) -> Result<Self> {
        let Some(first) = configs.first() else {
            return Err(Error::new(ErrorKind::Invalid, "a node without accelerators"));
        };
        let address = first.session.address.clone();
        let batch_size = first.session.open.order.batch_size;
        let loaders = configs.iter().cloned().map(Loader::open).collect::<Result<_>>()?;
        let saves = None;
        Ok(Self { configs, loaders, address, batch_size, step, progress, saves, epoch: 0 })
    }

    /// Has all accelerators save between their steps from now on.
    #[must_use]
    pub fn saving(self, saves: Option<Saves>) -> Self {
        Self { saves, ..self }
    }

    /// Plays the next epoch.
    ///
    /// # Errors
    /// The loader's error; `Invalid` if an accelerator has fewer than two batches. Bad
    /// samples end the run.
    pub fn epoch(&mut self, counted: Counted) -> Result<EpochReport> {
        self.epoch_at(self.step, counted)
    }

    /// Finds how many accelerators' worth of batches this node sustains ([`search::search`]), each
    /// trial `seconds` long. It ends the node's epochs.
    ///
    /// The results, complete or not, and the reason for an early end.
    ///
    /// # Errors
    /// As [`Node::epoch`]; `Invalid` if nobody knows how many samples the shards have.
    pub fn search(mut self, target: f64, seconds: f64) -> (Option<Held>, Result<()>) {
        if let Err(error) = self.repeat() {
            return (None, Err(error));
        }
        let ranks = self.loaders.len() as f64;
        // Rate of one accelerator at nominal speed.
        let nominal = f64::from(self.batch_size) / self.step.as_secs_f64();
        search::search(nominal, target, |speed, factor| {
            // All ranks together ask for `speed` accelerators' worth.
            let step = match speed {
                Some(speed) => self.step.mul_f64(ranks / speed),
                None => Duration::ZERO,
            };
            self.trial(speed, step, seconds * factor)
        })
    }

    /// Returns the shares of an epoch's time for computing, making tensors and fetching, from
    /// epochs that lack one or the other ([`Differential`]).
    pub fn differential(&self, cold: &EpochReport, cached: &EpochReport) -> Result<Differential> {
        let steps = cold.steps / self.loaders.len() as u64;
        let slowest = thread::scope(|scope| {
            let play = |_: &Loader| scope.spawn(|| accelerator::synthetic(steps, self.step));
            let running: Vec<_> = self.loaders.iter().map(play).collect();
            let walls = running.into_iter().map(|one| one.join().map_err(|_| died())?);
            walls.collect::<Result<Vec<_>>>()
        })?;
        let synthetic = slowest.iter().sum::<Duration>().as_secs_f64();
        Differential::of(synthetic / (steps * slowest.len() as u64).max(1) as f64, cached, cold)
    }

    /// Opens the loaders anew, for epochs that play the shards many times ([`REPEATS`]).
    fn repeat(&mut self) -> Result<()> {
        let known = self.configs.first().and_then(|config| config.session.open.counts.clone());
        let learnt = || self.loaders.first()?.learnt().map(<[u64]>::to_vec);
        let counts = known.or_else(learnt).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "a search needs the shards' sample counts")
                .advise("name a manifest, which `forebay index` writes, or run a whole epoch first")
        })?;
        let (times, samples) = REPEATS;
        let times = samples.div_ceil(counts.iter().sum::<u64>().max(1)).min(times);
        // Their slabs and decode threads first.
        self.loaders.clear();
        for config in &mut self.configs {
            playing::repeat(config, counts.clone(), times as f64);
        }
        self.loaders = self.configs.iter().cloned().map(Loader::open).collect::<Result<_>>()?;
        Ok(())
    }

    /// Plays until `seconds` are over, but for steps in which pipelines fill.
    fn trial(&mut self, speed: Option<f64>, step: Duration, seconds: f64) -> Result<Trial> {
        let mut trial = Trial { speed, ..Trial::default() };
        let mut nominal = 0.0;
        // As many batches as are ready, as are in the slab behind them, and are being made of
        // either.
        let prefetch = self.configs.first().map_or(1, |config| config.session.open.prefetch);
        let behind = 2 * (u64::from(prefetch) + 1);
        while trial.seconds < seconds {
            let rest = Some(seconds - trial.seconds);
            let counted = Counted { behind, steps: None, seconds: rest };
            let epoch = self.epoch_at(step, counted)?;
            nominal += epoch.steps as f64 * step.as_secs_f64();
            trial.seconds += epoch.wall_seconds;
            trial.samples += epoch.samples;
            trial.fetched_bytes += epoch.fetched_bytes;
        }
        // Each of the accelerators had all of the time.
        trial.au_ideal = nominal / (trial.seconds * self.loaders.len() as f64);
        trial.samples_per_second = trial.samples as f64 / trial.seconds;
        Ok(trial)
    }

    fn epoch_at(&mut self, step: Duration, counted: Counted) -> Result<EpochReport> {
        let (number, before) = (self.epoch, Fetches::settled(&self.address)?);
        self.epoch += 1;
        let tiers = TierReads::of(&self.address)?;
        let cpu_seconds = || playing::cpu_seconds(before.daemon_pid);
        let cpu = cpu_seconds()?;
        let work = (number, step, counted);
        let course = Course::new(self.loaders.len(), work, self.saves.as_ref(), self.progress);
        let played = self.play(&course)?;
        let cost = Cost {
            cpu_seconds: cpu_seconds()? - cpu,
            by_tier: TierReads::of(&self.address)?.since(&tiers),
            fetched_bytes: Fetches::settled(&self.address)?.since(before)?,
        };
        let saves = EpochSaves::of(self.saves.as_ref(), step, &played);
        Ok(EpochReport { saves, ..EpochReport::of(number, step, &played, cost) })
    }

    /// All accelerators at once.
    fn play(&self, course: &Course<'_>) -> Result<Vec<Played>> {
        let error = Mutex::new(None);
        let played = thread::scope(|scope| {
            let play = |(rank, loader)| scope.spawn(move || course.play(loader, rank));
            let running: Vec<_> = self.loaders.iter().enumerate().map(play).collect();
            let played = running.into_iter().filter_map(|one| {
                let played = one.join().map_err(|_| died()).and_then(|played| played);
                // The first that failed says why; the others left off because of it.
                played.map_err(|why| first(&error, why)).ok().flatten()
            });
            played.collect::<Vec<_>>()
        });
        match error.into_inner() {
            Ok(None) => Ok(played),
            Ok(Some(error)) => Err(error),
            Err(_) => Err(died()),
        }
    }
}

fn first(error: &Mutex<Option<Error>>, why: Error) {
    if let Ok(mut error) = error.lock() {
        error.get_or_insert(why);
    }
}

fn died() -> Error {
    Error::new(ErrorKind::Closed, "a thread of the benchmark died")
        .advise("this is a bug in Forebay: report it with the panic on standard error")
}
