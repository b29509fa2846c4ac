//! From a batch's number to its located samples and its slot, strictly in batch order.
//!
//! A batch is located after earlier ones are gathered, so no batch waits for memory held by a
//! later one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::Begin;

use super::JobData;
use super::ahead::Ahead;
use super::assembly::{Assembly, SamplePlace};
use super::gather::{Gatherer, Stages};
use crate::plan::{self, Bins, Epoch, Known, Share, Taken, Taker};

/// Outcome of an epoch.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// Batches of this rank.
    pub(super) batches: u64,
    /// Samples over all ranks.
    pub(super) samples: u64,
    /// Shards that broke off after the last batch.
    pub(super) errors: Vec<Error>,
    /// Samples of each shard, if a whole pass learnt them and none was broken.
    pub(super) counts: Option<Vec<u64>>,
}

pub(super) struct Producer {
    job: Arc<JobData>,
    /// Number of the next batch.
    next: u64,
    step: u64,
    sequence: Epoch,
    share: Share,
    /// Bins, if batches are cut by tokens, and the position of the run's first.
    bins: Option<(Bins, u64)>,
    /// For each located bin, the first position that later ones may still need.
    behind: Arc<Mutex<HashMap<u64, u64>>>,
    total: Option<u64>,
    known: HashMap<u32, Known>,
    gatherer: Gatherer,
    /// Shards that broke off and are not reported yet.
    errors: Vec<Error>,
    /// True if a shard broke off, so that its count is wrong.
    broken: bool,
    ahead: Ahead,
    outcome: Arc<OnceLock<Outcome>>,
}

impl Producer {
    pub(super) fn new(job: Arc<JobData>, run: u64, begin: Begin) -> Result<Self> {
        let spec = &job.spec;
        let sequence = job.epoch(begin.epoch)?;
        let share = job.share(sequence.lanes(), begin.base);
        let bins = job.bins(begin.epoch)?;
        let mut open = sequence.open(&share);
        if let Some(bins) = &bins {
            // Samples of a bin lie anywhere in its window.
            open += bins.lookahead().div_ceil((bins.total() / spec.urls.len() as u64).max(1));
        }
        Ok(Self {
            next: begin.batch,
            step: begin.step,
            share,
            bins: bins.map(|bins| (bins, begin.base)),
            behind: Arc::default(),
            total: sequence.total(),
            sequence,
            known: HashMap::new(),
            gatherer: Gatherer::new(job.clone(), run),
            errors: Vec::new(),
            broken: false,
            ahead: Ahead::new(job.clone(), open, Some(begin.epoch)),
            outcome: Arc::default(),
            job,
        })
    }

    /// Returns the cell that holds the outcome once [`Producer::next`] has returned `None`.
    pub(super) fn outcome(&self) -> Arc<OnceLock<Outcome>> {
        self.outcome.clone()
    }

    /// Returns a function from batch numbers to the positions after them.
    pub(super) fn after(&self) -> impl Fn(u64) -> u64 + Send + use<> {
        let (share, behind) = (self.share.clone(), self.behind.clone());
        move |index| {
            let bin = behind.lock().unwrap_or_else(PoisonError::into_inner).remove(&index);
            bin.unwrap_or_else(|| share.after(index))
        }
    }

    /// Returns the next batch, located, arrived and with a slot; `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Assembly>> {
        let index = self.next;
        let mut stages = Stages::begin();
        let Some(places) = self.locate_batch(index, &mut stages).await? else {
            return Ok(None);
        };
        self.next = self.next.saturating_add(self.step);
        let errors = std::mem::take(&mut self.errors);
        self.gatherer.gather(index, &places, errors, stages).await.map(Some)
    }

    /// Locates the samples of batch `index`; `None` past the last.
    async fn locate_batch(
        &mut self,
        index: u64,
        stages: &mut Stages,
    ) -> Result<Option<Vec<SamplePlace>>> {
        if let Some((bins, base)) = self.bins.take() {
            return self.locate_bin(bins, base, index, stages).await;
        }
        'again: loop {
            if let Some(total) = self.total
                && index >= self.share.batches(total)
            {
                let errors = std::mem::take(&mut self.errors);
                let batches = self.share.batches(total);
                // Set once: no call follows `None`.
                let counts = self.learnt();
                let _ = self.outcome.set(Outcome { batches, samples: total, errors, counts });
                return Ok(None);
            }
            let share = self.share.clone();
            let mut positions = share.positions(index, self.total).peekable();
            if let Some((first, _)) = positions.peek()
                && self.ahead.has_begun()
            {
                self.look_ahead(*first);
            }
            // It grows with the samples present, not with the requested batch size.
            let mut places = Vec::new();
            for (position, valid) in positions {
                match self.locate(position, stages).await? {
                    Ok((shard, nth)) => {
                        let ordinal = self.job.place(shard, nth);
                        places.push(SamplePlace { position, valid, shard, ordinal });
                    }
                    Err(total) => {
                        self.total = Some(total);
                        continue 'again;
                    }
                }
            }
            self.ahead.expect(&places).await;
            return Ok(Some(places));
        }
    }

    /// Locates the samples of the bin of batch `index`; `None` past the last.
    async fn locate_bin(
        &mut self,
        mut bins: Bins,
        base: u64,
        index: u64,
        stages: &mut Stages,
    ) -> Result<Option<Vec<SamplePlace>>> {
        let taker = Taker::of(&self.job.spec.order);
        // Composing a window takes milliseconds, and a run that begins far from its base composes
        // all windows between.
        let composing = tokio::task::spawn_blocking(move || {
            let taken = bins.take(base, index, taker);
            let steps = if taken.is_none() { bins.steps(base, taker) } else { 0 };
            (bins, taken, steps)
        });
        let composed = composing.await;
        let ended = |_| Error::new(ErrorKind::Closed, "the daemon is stopping");
        let (bins, taken, batches) = composed.map_err(ended)?;
        let samples = bins.total();
        self.bins = Some((bins, base));
        let Some(Taken { samples: positions, behind }) = taken else {
            // Counts are known, and shards that break off are found by them.
            let outcome = Outcome { batches, samples, errors: Vec::new(), counts: None };
            // Set once: no call follows `None`.
            let _ = self.outcome.set(outcome);
            return Ok(None);
        };
        self.behind.lock().unwrap_or_else(PoisonError::into_inner).insert(index, behind);
        if self.ahead.has_begun() {
            self.look_ahead(behind);
        }
        let mut places = Vec::with_capacity(positions.len());
        for (position, valid) in positions {
            let Ok((shard, nth)) = self.locate(position, stages).await? else {
                let what = "a bin has samples that its epoch does not have";
                return Err(Error::new(ErrorKind::Invalid, what).at("position", position));
            };
            let ordinal = self.job.place(shard, nth);
            places.push(SamplePlace { position, valid, shard, ordinal });
        }
        self.ahead.expect(&places).await;
        Ok(Some(places))
    }

    /// Locates the sample at `position`, or returns the epoch's length past the end.
    async fn locate(
        &mut self,
        position: u64,
        stages: &mut Stages,
    ) -> Result<Result<(u32, u64), u64>> {
        loop {
            let counts = self.job.spec.counts.as_deref();
            let known = |shard: u32| match counts {
                Some(counts) => Known::Exactly(counts[shard as usize]),
                None => self.known.get(&shard).copied().unwrap_or(Known::AtLeast(0)),
            };
            match self.sequence.locate(position, &known) {
                plan::Located::Sample { shard, ordinal } => return Ok(Ok((shard, ordinal))),
                plan::Located::End { total } => return Ok(Err(total)),
                plan::Located::Need { shard, at_least } => {
                    self.look_ahead(position);
                    let (open, progress) = self.gatherer.open(shard, at_least, stages).await?;
                    let now = match progress {
                        Ok(progress) if progress.counted => {
                            drop(open);
                            let errors = self.gatherer.measure(shard, progress.samples, stages);
                            self.errors.extend(errors.await?);
                            Known::Exactly(progress.samples)
                        }
                        Ok(progress) => Known::AtLeast(progress.samples),
                        // A broken tar ends at its last good sample; the fault travels with the
                        // next batch.
                        Err(error) if error.kind() == ErrorKind::Corrupt => {
                            self.broken = true;
                            match open.verdict().is_wrong() {
                                // Reported once, as any shard that cannot be trusted.
                                true => self.job.verdicts.note(shard, &open, self.next),
                                false => self.errors.push(error),
                            }
                            Known::Exactly(open.progress().samples)
                        }
                        Err(error) => return Err(error),
                    };
                    self.known.insert(shard, now);
                }
            }
        }
    }

    /// Returns the samples of each shard, if this run learnt all of them.
    fn learnt(&self) -> Option<Vec<u64>> {
        let spec = &self.job.spec;
        if self.broken
            || spec.counts.is_some()
            || self.known.len() < self.job.joins.planned() as usize
        {
            return None;
        }
        let shards = self.job.joins.planned();
        let exactly = |shard: u32| match self.known.get(&shard)? {
            Known::Exactly(samples) => Some(*samples),
            Known::AtLeast(_) => None,
        };
        (0..shards).map(exactly).collect()
    }

    fn look_ahead(&mut self, position: u64) {
        let upcoming = self.sequence.upcoming(position, self.ahead.limit(), &self.share);
        self.ahead.look(upcoming);
    }
}
