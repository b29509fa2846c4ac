//! Starvation: emulated accelerators take batches from the loader; how much of their time is work?
//!
//! AU_ideal = N · t_nominal / wall, over all steps but the first (MLPerf Storage leaves it out, as
//! pipelines fill then). The nominal step time counts, not the measured one: a busy host oversleeps, and what
//! is measured, which is told beside it, books that as compute (gpu-bound where the host is the limit). DLIO's
//! own formula counts the nominal time, too.

mod accelerator;
pub mod compare;
mod differential;
pub mod page;
mod profile;
mod raw;
mod report;
mod search;

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use forebay_client::{Address, Loader, LoaderConfig};
use forebay_error::{Error, ErrorKind, Result};
use indicatif::ProgressBar;

use accelerator::{Course, Played};
pub use accelerator::{STALL_SHARE, Until};
pub use differential::Differential;
pub use profile::{CUSTOM, PROFILES, Profile};
pub use raw::{RAW_STEPS_MAX, Raw};
use report::Cost;
pub use report::{AcceleratorReport, Configuration, EpochReport, Report, Temperature, WaitsReport};
pub use search::{Held, TARGET, Trial};

use crate::fetches::Fetches;
use crate::playing;
use crate::tier_reads::TierReads;

/// Accelerators of one node at most: no server has more.
pub const ACCELERATORS_MAX: u32 = 64;

/// A node's emulated accelerators, each with a loader of its own, as the ranks of one job.
pub struct Node<'a> {
    loaders: Vec<Loader>,
    address: Address,
    batch_size: u32,
    step: Duration,
    progress: &'a ProgressBar,
    /// The next epoch.
    epoch: u64,
}

impl<'a> Node<'a> {
    /// Opens one loader for each of `configs`, which differ in their rank.
    ///
    /// # Errors
    /// What a loader failed with; `Invalid` without any.
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
        let loaders = configs.into_iter().map(Loader::open).collect::<Result<_>>()?;
        Ok(Self { loaders, address, batch_size, step, progress, epoch: 0 })
    }

    /// Plays the next epoch.
    ///
    /// # Errors
    /// What a loader failed with; `Invalid` if an accelerator has fewer than two batches. Bad samples end
    /// the run.
    pub fn epoch(&mut self, until: Until) -> Result<EpochReport> {
        self.epoch_at(self.step, until)
    }

    /// Finds how many accelerators' worth of batches this node sustains ([`search::search`]), each trial
    /// `seconds` long.
    ///
    /// # Errors
    /// As [`Node::epoch`].
    pub fn search(&mut self, target: f64, seconds: f64) -> Result<Held> {
        let ranks = self.loaders.len() as f64;
        // What one accelerator of nominal speed takes.
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

    /// How much of an epoch's time is computing, making tensors and fetching, by the difference between
    /// epochs that lack the one or the other ([`Differential`]).
    ///
    /// # Errors
    /// `Invalid` unless `cold` was cold and `cached` was warm, over as many steps.
    pub fn differential(&self, cold: &EpochReport, cached: &EpochReport) -> Result<Differential> {
        let steps = cold.steps / self.loaders.len() as u64;
        let slowest = thread::scope(|scope| {
            let play = |_: &Loader| scope.spawn(|| accelerator::synthetic(steps, self.step));
            let running: Vec<_> = self.loaders.iter().map(play).collect();
            let walls = running.into_iter().map(|one| one.join().map_err(|_| died()));
            walls.collect::<Result<Vec<_>>>()
        })?;
        let synthetic = slowest.iter().sum::<Duration>().as_secs_f64();
        Differential::of(synthetic / (steps * slowest.len() as u64).max(1) as f64, cached, cold)
    }

    /// Plays epochs until `seconds` are over, first steps not counted.
    fn trial(&mut self, speed: Option<f64>, step: Duration, seconds: f64) -> Result<Trial> {
        let mut trial = Trial { speed, ..Trial::default() };
        let mut nominal = 0.0;
        while trial.seconds < seconds {
            let rest = Some(seconds - trial.seconds);
            let epoch = self.epoch_at(step, Until { steps: None, seconds: rest })?;
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

    fn epoch_at(&mut self, step: Duration, until: Until) -> Result<EpochReport> {
        let (number, before) = (self.epoch, Fetches::settled(&self.address)?);
        self.epoch += 1;
        let tiers = TierReads::of(&self.address)?;
        let cpu_seconds = || playing::cpu_seconds(Some(before.daemon_pid));
        let cpu = cpu_seconds()?;
        let course = Course::new(self.loaders.len(), (number, step, until), self.progress);
        let played = self.play(&course)?;
        let cost = Cost {
            cpu_seconds: cpu_seconds()? - cpu,
            by_tier: TierReads::of(&self.address)?.since(&tiers),
            fetched_bytes: Fetches::settled(&self.address)?.since(before)?,
        };
        Ok(EpochReport::of(number, step, &played, cost))
    }

    /// All accelerators at once.
    fn play(&self, course: &Course<'_>) -> Result<Vec<Played>> {
        let error = Mutex::new(None);
        let played = thread::scope(|scope| {
            let play = |loader| scope.spawn(move || course.play(loader));
            let running: Vec<_> = self.loaders.iter().map(play).collect();
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
