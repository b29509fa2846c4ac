//! From a batch's number to its located samples and its slot, strictly in batch order.
//!
//! Waits happen here, not in the reads: for a shard's first bytes, for a count, for a sample still
//! on its way, for a slot. Each wait on the way of a batch is noted as a stage of it.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use forebay_error::{Error, ErrorKind, Result};
use forebay_store::{Shard, Urgency};
use forebay_wire::clock::now_ns;
use forebay_wire::message::{Cause, Stage};

use super::Job;
use super::ahead::Ahead;
use super::assembly::{Assembly, Located};
use crate::plan::{self, Known, Sequence, Share};

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
    next: u64,
    sequence: Sequence,
    share: Share,
    total: Option<u64>,
    known: HashMap<u32, Known>,
    /// Shards that ended early and were not told of yet.
    errors: Vec<Error>,
    ahead: Ahead,
    outcome: Arc<OnceLock<Outcome>>,
}

impl Producer {
    pub(super) fn new(job: Arc<Job>, run: u64, epoch: u64, batch: u64) -> Self {
        let spec = &job.spec;
        let sequence =
            Sequence::new(&spec.order, job.shards(), spec.counts.clone(), job.lanes, epoch);
        Self {
            run,
            next: batch,
            share: Share::new(&spec.order, job.lanes),
            total: sequence.total(),
            sequence,
            known: HashMap::new(),
            errors: Vec::new(),
            ahead: Ahead::new(job.clone()),
            outcome: Arc::default(),
            job,
        }
    }

    /// Where the outcome will be once [`Producer::next`] has said `None`.
    pub(super) fn outcome(&self) -> Arc<OnceLock<Outcome>> {
        self.outcome.clone()
    }

    /// The next batch, located, waited for and with a slot; `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Assembly>> {
        let index = self.next;
        let mut stages = Stages::default();
        let mut shards = HashMap::new();
        let Some(samples) = self.locate_batch(index, &mut shards, &mut stages).await? else {
            return Ok(None);
        };
        self.next += 1;
        let errors = std::mem::take(&mut self.errors);
        let batch = (self.run, index);
        let mut assembly = Assembly::new(self.job.clone(), batch, samples, shards, errors)?;
        assembly.take_slot(self.job.slots.lease(assembly.bytes()).await?, stages.0);
        Ok(Some(assembly))
    }

    async fn locate_batch(
        &mut self,
        index: u64,
        shards: &mut HashMap<u32, Arc<Shard>>,
        stages: &mut Stages,
    ) -> Result<Option<Vec<Located>>> {
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
            let positions = self.share.positions(index, self.total);
            if let Some((first, _)) = positions.first() {
                self.look_ahead(*first);
            }
            let mut samples = Vec::with_capacity(positions.len());
            for (position, valid) in positions {
                match self.locate(position, shards, stages).await? {
                    Ok((shard, ordinal)) => {
                        let broken = self.wait_for(shard, ordinal, shards, stages).await?;
                        samples.push(Located { position, valid, shard, ordinal, broken });
                    }
                    Err(total) => {
                        self.total = Some(total);
                        continue 'again;
                    }
                }
            }
            return Ok(Some(samples));
        }
    }

    /// The sample at `position`, or the epoch's length if it is past the end.
    async fn locate(
        &mut self,
        position: u64,
        shards: &mut HashMap<u32, Arc<Shard>>,
        stages: &mut Stages,
    ) -> Result<Result<(u32, u64), u64>> {
        loop {
            let counts = self.job.spec.counts.as_deref();
            let known = |shard: u32| match counts {
                Some(counts) => Known::Exactly(counts[shard as usize]),
                None => self.known.get(&shard).copied().unwrap_or(Known::AtLeast(0)),
            };
            match self.sequence.locate(position, &known) {
                plan::Located::Sample { shard, ordinal } => {
                    return Ok(Ok((shard, ordinal)));
                }
                plan::Located::End { total } => return Ok(Err(total)),
                plan::Located::Need { shard, at_least } => {
                    self.look_ahead(position);
                    let now = match self.progress(shard, at_least, shards, stages).await {
                        Ok(progress) if progress.counted => Known::Exactly(progress.samples),
                        Ok(progress) => Known::AtLeast(progress.samples),
                        Err(error) => self.cut_short(shard, error, shards)?,
                    };
                    self.known.insert(shard, now);
                }
            }
        }
    }

    /// A shard whose tar is broken ends at its last good sample; the fault is told with the next
    /// batch. Any other error ends the run: the samples may well be there.
    fn cut_short(
        &mut self,
        shard: u32,
        error: Error,
        shards: &HashMap<u32, Arc<Shard>>,
    ) -> Result<Known> {
        match shards.get(&shard) {
            Some(open) if error.kind() == ErrorKind::Corrupt => {
                self.errors.push(error);
                Ok(Known::Exactly(open.progress().samples))
            }
            _ => Err(error),
        }
    }

    /// Waits until a sample's bytes and index are there, or its shard turns out to be broken.
    async fn wait_for(
        &mut self,
        shard: u32,
        ordinal: u64,
        shards: &mut HashMap<u32, Arc<Shard>>,
        stages: &mut Stages,
    ) -> Result<Option<Error>> {
        let progress = match self.progress(shard, ordinal + 1, shards, stages).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(Some(error)),
            progress => progress?,
        };
        let listed = self.job.spec.counts.as_ref().map(|counts| counts[shard as usize]);
        match listed {
            Some(listed) if progress.counted && progress.samples != listed => {
                Err(Error::new(ErrorKind::Invalid, "the manifest is out of date")
                    .at("url", self.job.url(shard))
                    .at("listed", listed)
                    .at("found", progress.samples)
                    .advise("index the shards again with `forebay index`"))
            }
            _ => Ok(None),
        }
    }

    async fn progress(
        &mut self,
        shard: u32,
        samples: u64,
        shards: &mut HashMap<u32, Arc<Shard>>,
        stages: &mut Stages,
    ) -> Result<forebay_store::Progress> {
        if let Some(open) = shards.get(&shard) {
            let progress = open.progress();
            if progress.counted || progress.samples >= samples {
                return Ok(progress);
            }
        }
        let start_ns = now_ns();
        let open = match shards.get(&shard) {
            Some(open) => open.clone(),
            None => {
                let url = self.job.url(shard);
                let open = self.job.store.shard(url, &self.job.origin, Urgency::Needed).await?;
                shards.insert(shard, open.clone());
                open
            }
        };
        // A shard that is whole by now cost only its index; else bytes were on their way.
        let cause = if open.progress().counted { Cause::Index } else { Cause::Origin };
        let progress = open.wait(samples).await;
        stages.add(cause, start_ns);
        progress
    }

    fn look_ahead(&mut self, position: u64) {
        let upcoming =
            self.sequence.upcoming(position, self.ahead.limit(), |lane| self.share.owns(lane));
        self.ahead.look(upcoming);
    }
}

/// The stages of one batch; waits for the same cause that touch become one.
#[derive(Default)]
struct Stages(Vec<Stage>);

impl Stages {
    fn add(&mut self, cause: Cause, start_ns: u64) {
        let end_ns = now_ns();
        match self.0.last_mut() {
            Some(last) if last.cause == cause => last.end_ns = end_ns,
            _ => self.0.push(Stage { cause, start_ns, end_ns }),
        }
    }
}
