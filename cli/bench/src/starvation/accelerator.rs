//! One emulated accelerator: it takes a batch, computes for a nominal time, and asks for the next.
//!
//! The first step of an epoch is in no rate and no wait, as pipelines fill then. What is told of a
//! whole epoch has it: the time to the first batch, bytes, and CPU a sample.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_client::{Batch, Loader, Stats};
use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::{Begin, Cause};
use indicatif::ProgressBar;

use super::raw::{Moment, Raw};
use super::saves::Saves;
use crate::durations::Durations;
use crate::interrupt::wait_until;
use crate::playing::next;

/// A wait that is longer than this share of a step is a stall: shorter ones vanish in the noise of
/// steps.
pub const STALL_SHARE: f64 = 0.10;

/// Counted steps of an epoch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Counted {
    /// Those behind so many first ones, at least one; fewer are left out if they take as long as
    /// what is counted.
    pub behind: u64,
    /// Up to so many of the epoch's, those left out included.
    pub steps: Option<u64>,
    /// For so many seconds.
    pub seconds: Option<f64>,
}

impl Counted {
    /// All but the first, which MLPerf Storage leaves out, of an epoch's first `steps`.
    #[must_use]
    pub const fn all_but_the_first(steps: Option<u64>) -> Self {
        Self { behind: 1, steps, seconds: None }
    }
}

/// State shared by the accelerators of a node in an epoch.
pub(super) struct Course<'a> {
    pub(super) epoch: u64,
    pub(super) step: Duration,
    pub(super) counted: Counted,
    pub(super) progress: &'a ProgressBar,
    saves: Option<&'a Saves>,
    line: Barrier,
    failed: AtomicBool,
}

/// Figures of one accelerator in an epoch.
pub(super) struct Played {
    /// From asking for the epoch to its first batch.
    pub(super) first_batch: Duration,
    /// Steps counted.
    pub(super) steps: u64,
    /// Their wall time.
    pub(super) wall: Duration,
    /// Computing time by the clock: sleepers oversleep.
    pub(super) computed: Duration,
    /// Time to take batches, by the trainer's clock.
    pub(super) waited: Duration,
    /// Each of these waits.
    pub(super) each: Durations,
    /// Waits longer than [`STALL_SHARE`] of a step.
    pub(super) stalls: u64,
    /// Time of all saves, which is part of the wall time.
    pub(super) saved: Duration,
    /// Each of them.
    pub(super) saves: Durations,
    /// Steps one by one.
    pub(super) raw: Raw,
    /// The loader's counters.
    pub(super) stats: Stats,
    /// Figures of the whole epoch, the first step included.
    pub(super) whole: Whole,
}

/// Figures that include the first step.
#[derive(Default)]
pub(super) struct Whole {
    /// From asking for the epoch to its first step's end.
    pub(super) first_step: Duration,
    /// From asking for the epoch to its last step's end.
    pub(super) wall: Duration,
    pub(super) samples: u64,
    /// Payload.
    pub(super) bytes: u64,
}

impl<'a> Course<'a> {
    pub(super) fn new(
        accelerators: usize,
        (epoch, step, counted): (u64, Duration, Counted),
        saves: Option<&'a Saves>,
        progress: &'a ProgressBar,
    ) -> Self {
        Self {
            epoch,
            step,
            counted,
            progress,
            saves,
            line: Barrier::new(accelerators),
            failed: AtomicBool::new(false),
        }
    }

    /// Plays the epoch on the loader of a rank; `None` if another accelerator failed.
    pub(super) fn play(&self, loader: &Loader, rank: usize) -> Result<Option<Played>> {
        self.line.wait();
        let played = self.steps(loader, rank);
        if played.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        played
    }

    fn steps(&self, loader: &Loader, rank: usize) -> Result<Option<Played>> {
        let begin = Instant::now();
        loader.start(Begin::at(self.epoch, 0))?;
        let Some(first) = next(loader)? else { return Err(too_short(0)) };
        let mut tally = Tally::new(begin.elapsed(), self.step, &first);
        self.compute(&first)?;
        tally.whole.first_step = begin.elapsed();
        drop(first);
        let filling = Instant::now();
        for _ in 1..self.counted.behind {
            let is_long = |seconds| filling.elapsed().as_secs_f64() >= seconds;
            if self.counted.seconds.is_some_and(is_long) {
                break;
            }
            let Some(batch) = next(loader)? else { break };
            tally.whole.count(&batch);
            self.compute(&batch)?;
        }
        // Waits and computation of the first steps belong to filling the pipeline.
        loader.reset_stats();
        let since = Instant::now();
        let mut last = since;
        while self.goes_on(tally.steps + 1, since) {
            let ready = loader.ready();
            let Some(batch) = next(loader)? else { break };
            let taken = Instant::now();
            tally.take(&batch, (taken - last, taken - since), ready, loader.waited_ns());
            self.compute(&batch)?;
            tally.computed += taken.elapsed();
            // Giving memory back is neither work nor a wait.
            drop(batch);
            if let Some(saves) = self.saves {
                tally.note_save(saves.after(tally.steps, rank)?);
            }
            last = Instant::now();
        }
        if self.failed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match tally.steps {
            0 => Err(too_short(1)),
            _ => Ok(Some(tally.end((begin, since, last), loader.stats()))),
        }
    }

    fn goes_on(&self, done: u64, since: Instant) -> bool {
        let Counted { steps, seconds, .. } = self.counted;
        // However short the time, there is a step that counts.
        let in_time = |seconds| done < 2 || since.elapsed().as_secs_f64() < seconds;
        steps.is_none_or(|steps| done < steps)
            && seconds.is_none_or(in_time)
            && !self.failed.load(Ordering::Relaxed)
    }

    fn compute(&self, batch: &Batch) -> Result<()> {
        // An accelerator at work is time passing.
        wait_until(Instant::now() + self.step)?;
        self.progress.inc(batch.keys.len() as u64);
        Ok(())
    }
}

/// An epoch's figures as they come.
struct Tally {
    step: Duration,
    first_batch: Duration,
    steps: u64,
    computed: Duration,
    waited: Duration,
    each: Durations,
    stalls: u64,
    saved: Duration,
    saves: Durations,
    raw: Raw,
    by_cause: [u64; Cause::ALL.len()],
    whole: Whole,
}

impl Tally {
    fn new(first_batch: Duration, step: Duration, first: &Batch) -> Self {
        let mut tally = Self {
            step,
            first_batch,
            steps: 0,
            computed: Duration::ZERO,
            waited: Duration::ZERO,
            each: Durations::default(),
            stalls: 0,
            saved: Duration::ZERO,
            saves: Durations::default(),
            raw: Raw::default(),
            by_cause: [0; Cause::ALL.len()],
            whole: Whole::default(),
        };
        tally.whole.count(first);
        tally
    }

    fn take(
        &mut self,
        batch: &Batch,
        (wait, at): (Duration, Duration),
        ready: usize,
        by_cause: [u64; Cause::ALL.len()],
    ) {
        self.steps += 1;
        self.waited += wait;
        self.whole.count(batch);
        self.each.record(wait);
        self.stalls += u64::from(wait > self.step.mul_f64(STALL_SHARE));
        let before = std::mem::replace(&mut self.by_cause, by_cause);
        let waited_ns = std::array::from_fn(|cause| by_cause[cause].saturating_sub(before[cause]));
        self.raw.push(&Moment { at, wait, ready, waited_ns });
    }

    fn note_save(&mut self, took: Option<Duration>) {
        if let Some(took) = took {
            self.saved += took;
            self.saves.record(took);
        }
    }

    fn end(self, (begin, since, last): (Instant, Instant, Instant), stats: Stats) -> Played {
        let Self { first_batch, steps, computed, waited, each, stalls, .. } = self;
        let Self { saved, saves, raw, mut whole, .. } = self;
        whole.wall = last - begin;
        let wall = last - since;
        Played {
            first_batch,
            steps,
            wall,
            computed,
            waited,
            each,
            stalls,
            saved,
            saves,
            raw,
            stats,
            whole,
        }
    }
}

impl Whole {
    fn count(&mut self, batch: &Batch) {
        self.samples += batch.keys.len() as u64;
        self.bytes += batch.tier_bytes + batch.origin_bytes;
    }
}

/// `steps` steps on one batch that is there from the beginning: what no storage can be better than.
pub(super) fn synthetic(steps: u64, step: Duration) -> Result<Duration> {
    let begin = Instant::now();
    (0..steps).try_for_each(|_| wait_until(Instant::now() + step))?;
    Ok(begin.elapsed())
}

fn too_short(done: u64) -> Error {
    Error::new(ErrorKind::Invalid, "the epoch has too few full batches: the first is not counted")
        .at("batches", done)
        .advise("lower --batch-size or --accelerators, or name more shards")
}
