//! From a batch's places to its captured samples and its slot.
//!
//! Waits happen here and in the producer, not in the reads: for a shard's first bytes, for a sample still
//! on its way, for a slot. Each wait on the way of a batch is noted as a stage of it.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_store::{Lease, Progress, Urgency};
use forebay_wire::clock::now_ns;
use forebay_wire::message::{Cause, Stage};

use super::Job;
use super::assembly::{Assembly, Place};

/// Shorter waits are look-ups: a stage per look-up would outweigh the batch's own message.
pub(super) const WORTH_NOTING_NS: u64 = 10_000;

/// Gathers the batches of one run.
pub(super) struct Gatherer {
    job: Arc<Job>,
    run: u64,
    /// Shards this run has used: one run is one use, however many batches it reads of a shard.
    used: HashSet<u32>,
}

impl Gatherer {
    pub(super) fn new(job: Arc<Job>, run: u64) -> Self {
        Self { job, run, used: HashSet::new() }
    }

    /// Batch `index` of these places, captured and with a slot; `errors` are told with it.
    pub(super) async fn gather(
        &mut self,
        index: u64,
        places: &[Place],
        errors: Vec<Error>,
        mut stages: Stages,
    ) -> Result<Assembly> {
        let mut assembly = Assembly::new(self.job.clone(), self.run, index, places);
        self.capture(&mut assembly, places, &mut stages).await?;
        assembly.plan_reads(errors, self.job.slots.largest());
        assembly.take_slot(self.job.slots.lease(assembly.bytes()).await?, stages.0);
        Ok(assembly)
    }

    /// Waits for the samples' bytes, shard by shard, and notes where in the shard they lie. No
    /// shard is held longer than that: a batch may touch more shards than the tier has room for.
    async fn capture(
        &mut self,
        assembly: &mut Assembly,
        places: &[Place],
        stages: &mut Stages,
    ) -> Result<()> {
        for (number, samples) in samples_of(places) {
            let (shard, progress) = self.open(number, samples, stages).await?;
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
    pub(super) async fn open(
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
}

/// The shards of these places, in the order in which they are met, and how many samples of each must be
/// there.
pub(super) fn samples_of(places: &[Place]) -> Vec<(u32, u64)> {
    let mut samples_of: Vec<(u32, u64)> = Vec::new();
    for place in places {
        let samples = place.ordinal + 1;
        match samples_of.iter_mut().find(|(shard, _)| *shard == place.shard) {
            Some((_, most)) => *most = samples.max(*most),
            None => samples_of.push((place.shard, samples)),
        }
    }
    samples_of
}

/// The stages of one batch; waits for the same cause that touch become one.
#[derive(Default)]
pub(super) struct Stages(Vec<Stage>);

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
