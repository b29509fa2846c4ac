//! From a batch's number to its located samples and its slot, strictly in batch order.
//!
//! Waits happen here, not in the reads: for a shard's first bytes, for a count, for a sample still
//! on its way, for a slot. Each wait on the way of a batch is noted as a stage of it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use forebay_error::{Error, ErrorKind, Result};
use forebay_store::{Lease, Progress, Urgency};
use forebay_wire::clock::now_ns;
use forebay_wire::message::{Begin, Cause, Stage};

use super::Job;
use super::ahead::Ahead;
use super::assembly::{Assembly, Place};
use crate::plan::{self, Epoch, Known, Share};

/// Shorter waits are look-ups: a stage per look-up would outweigh the batch's own message.
pub(super) const WORTH_NOTING_NS: u64 = 10_000;

/// How an epoch ended.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// Batches of this rank.
    pub(super) batches: u64,
    /// Samples over all ranks.
    pub(super) samples: u64,
    /// Shards that ended early after the last batch.
    pub(super) errors: Vec<Error>,
}

pub(super) struct Producer {
    job: Arc<Job>,
    run: u64,
    /// The next batch, and how many further on the one after it is.
    next: u64,
    step: u64,
    sequence: Epoch,
    share: Share,
    total: Option<u64>,
    known: HashMap<u32, Known>,
    /// Shards this run has used: one run is one use, however many batches it reads of a shard.
    used: HashSet<u32>,
    /// Shards that ended early and were not told of yet.
    errors: Vec<Error>,
    ahead: Ahead,
    outcome: Arc<OnceLock<Outcome>>,
}

impl Producer {
    pub(super) fn new(job: Arc<Job>, run: u64, begin: Begin) -> Result<Self> {
        let spec = &job.spec;
        let sequence = job.epoch(begin.epoch)?;
        let share = Share::new(&spec.order, sequence.lanes(), begin.base);
        let open = sequence.open(&share);
        Ok(Self {
            run,
            next: begin.batch,
            step: begin.step,
            share,
            total: sequence.total(),
            sequence,
            known: HashMap::new(),
            used: HashSet::new(),
            errors: Vec::new(),
            ahead: Ahead::new(job.clone(), open),
            outcome: Arc::default(),
            job,
        })
    }

    /// Where the outcome will be once [`Producer::next`] has said `None`.
    pub(super) fn outcome(&self) -> Arc<OnceLock<Outcome>> {
        self.outcome.clone()
    }

    /// The next batch, located, waited for and with a slot; `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Assembly>> {
        let index = self.next;
        let mut stages = Stages::default();
        let Some(places) = self.locate_batch(index, &mut stages).await? else {
            return Ok(None);
        };
        self.next = self.next.saturating_add(self.step);
        let mut assembly = Assembly::new(self.job.clone(), self.run, index, &places);
        self.capture(&mut assembly, &places, &mut stages).await?;
        assembly.plan_reads(std::mem::take(&mut self.errors));
        assembly.take_slot(self.job.slots.lease(assembly.bytes()).await?, stages.0);
        Ok(Some(assembly))
    }

    /// Which samples make up batch `index`; `None` past the last.
    async fn locate_batch(
        &mut self,
        index: u64,
        stages: &mut Stages,
    ) -> Result<Option<Vec<Place>>> {
        'again: loop {
            if let Some(total) = self.total
                && index >= self.share.batches(total)
            {
                let errors = std::mem::take(&mut self.errors);
                let batches = self.share.batches(total);
                // Set once: nobody asks a producer again after its `None`.
                let _ = self.outcome.set(Outcome { batches, samples: total, errors });
                return Ok(None);
            }
            let share = self.share.clone();
            let mut positions = share.positions(index, self.total).peekable();
            if let Some((first, _)) = positions.peek() {
                self.look_ahead(*first);
            }
            // It grows with the samples that are there, not with the batch that was asked for.
            let mut places = Vec::new();
            for (position, valid) in positions {
                match self.locate(position, stages).await? {
                    Ok((shard, ordinal)) => places.push(Place { position, valid, shard, ordinal }),
                    Err(total) => {
                        self.total = Some(total);
                        continue 'again;
                    }
                }
            }
            return Ok(Some(places));
        }
    }

    /// The sample at `position`, or the epoch's length if it is past the end.
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
                    let (open, progress) = self.open(shard, at_least, stages).await?;
                    let now = match progress {
                        Ok(progress) if progress.counted => Known::Exactly(progress.samples),
                        Ok(progress) => Known::AtLeast(progress.samples),
                        // A broken tar ends at its last good sample; the fault is told with the
                        // next batch.
                        Err(error) if error.kind() == ErrorKind::Corrupt => {
                            match open.verdict().is_wrong() {
                                // Told as any shard of which nothing can be trusted: once.
                                true => self.job.verdicts.note(shard, &open),
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

    /// Waits for the samples' bytes, shard by shard, and notes where in the shard they lie. No
    /// shard is held longer than that: a batch may touch more shards than the tier has room for.
    async fn capture(
        &mut self,
        assembly: &mut Assembly,
        places: &[Place],
        stages: &mut Stages,
    ) -> Result<()> {
        let mut last_of: Vec<(u32, u64)> = Vec::new();
        for place in places {
            match last_of.iter_mut().find(|(shard, _)| *shard == place.shard) {
                Some((_, last)) => *last = place.ordinal.max(*last),
                None => last_of.push((place.shard, place.ordinal)),
            }
        }
        for (number, last) in last_of {
            let (shard, progress) = self.open(number, last + 1, stages).await?;
            let broken = match progress {
                Ok(progress) => self.check_manifest(number, &progress).map(|()| None)?,
                Err(error) if error.kind() == ErrorKind::Corrupt => Some(error),
                Err(error) => return Err(error),
            };
            self.job.verdicts.note(number, &shard);
            assembly.capture(number, &shard, broken.as_ref());
        }
        Ok(())
    }

    fn check_manifest(&self, shard: u32, progress: &Progress) -> Result<()> {
        let listed = self.job.spec.counts.as_ref().map(|counts| counts[shard as usize]);
        match listed {
            Some(listed) if progress.counted && progress.samples != listed => {
                Err(Error::new(ErrorKind::Invalid, "the manifest is out of date")
                    .at("url", self.job.url(shard))
                    .at("listed", listed)
                    .at("found", progress.samples)
                    .advise("index the shards again with `forebay index`"))
            }
            _ => Ok(()),
        }
    }

    /// A shard of which `samples` samples are there, or all there are, or why no more will come.
    async fn open(
        &mut self,
        shard: u32,
        samples: u64,
        stages: &mut Stages,
    ) -> Result<(Lease, Result<Progress>)> {
        let job = self.job.clone();
        let waiting = job.patience.waiting();
        loop {
            match self.try_open(shard, samples, stages).await {
                Err(error) => waiting.after(error).await?,
                opened => return opened,
            }
        }
    }

    async fn try_open(
        &mut self,
        shard: u32,
        samples: u64,
        stages: &mut Stages,
    ) -> Result<(Lease, Result<Progress>)> {
        let mut others = 0;
        loop {
            let start_ns = now_ns();
            let url = self.job.url(shard);
            let open = self.job.store.shard(url, &self.job.origin, Urgency::Needed).await;
            let here = open.as_ref().is_ok_and(|shard| shard.progress().counted);
            stages.add(if here { Cause::Index } else { Cause::Origin }, start_ns);
            let open = open?;
            if self.used.insert(shard) {
                self.job.store.used(&open);
            }
            let start_ns = now_ns();
            let progress = open.wait(samples).await;
            stages.add(Cause::Origin, start_ns);
            match progress {
                Err(error) if self.job.is_anothers_fault(&open, &error, &mut others) => {}
                // It begins anew with the next attempt.
                Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
                progress => return Ok((open, progress)),
            }
        }
    }

    fn look_ahead(&mut self, position: u64) {
        let upcoming = self.sequence.upcoming(position, self.ahead.limit(), &self.share);
        self.ahead.look(upcoming);
    }
}

/// The stages of one batch; waits for the same cause that touch become one.
#[derive(Default)]
struct Stages(Vec<Stage>);

impl Stages {
    fn add(&mut self, cause: Cause, start_ns: u64) {
        let end_ns = now_ns();
        // What was there at once is no wait, and would make the list as long as the batch.
        if end_ns - start_ns < WORTH_NOTING_NS {
            return;
        }
        match self.0.last_mut() {
            Some(last) if last.cause == cause => last.end_ns = end_ns,
            _ => self.0.push(Stage { cause, start_ns, end_ns }),
        }
    }
}
