//! From a batch's places to its captured samples and its slot.
//!
//! Waits happen here and in the producer, not in the reads: for a shard's first bytes, for an
//! arriving sample, for a slot. Each wait of a batch is recorded as a stage, and so is the work
//! between waits. Time outside all stages is time in which nobody here worked on the batch.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::members::Digest;
use forebay_store::{Progress, ShardHandle, Waited};
use forebay_wire::clock::now_ns;
use forebay_wire::message::{Cause, Stage};

use super::JobData;
use super::assembly::{Assembly, SamplePlace};
use super::awaited::{Awaited, GATHERED};
use super::excerpts::is_changed;
use super::joined::{Difference, Part};

/// Shortest wait that is recorded: shorter ones are look-ups, and a stage per look-up would
/// outweigh the batch's own message.
pub(super) const WORTH_NOTING_NS: u64 = 10_000;

/// Attempts at a shard that is replaced while it is read.
pub(super) const REPLACED: u32 = 3;

/// Samples that suggest the size of the first batch. The mean of so many whose sizes differ by half
/// is a tenth off, and a slab has room for a quarter more.
const SUGGESTING: usize = 16;

/// An open shard, and the samples that it has, or the reason no more will come.
type Opening = (ShardHandle, Result<Progress>);

/// Gatherer of the batches of one run.
pub(super) struct Gatherer {
    job: Arc<JobData>,
    run: u64,
    /// Shards this run has used: one run is one use of a shard, however many batches it reads of
    /// it.
    used: HashSet<u32>,
    /// Whole shards that were found to be those whose samples were chosen.
    compared: HashSet<u32>,
    /// Samples gathered of each joined shard, from its first.
    reached: HashMap<u32, u64>,
    /// Joined shards whose parts were found to have as many samples, or not.
    measured: HashSet<u32>,
    /// First differences of shards from those that they complete.
    differences: HashMap<u32, Difference>,
}

impl Gatherer {
    pub(super) fn new(job: Arc<JobData>, run: u64) -> Self {
        let (used, compared, reached, measured, differences) = Default::default();
        Self { job, run, used, compared, reached, measured, differences }
    }

    /// Gathers batch `index` of these places, captured and with a slot; `errors` travel with it.
    pub(super) async fn gather(
        &mut self,
        index: u64,
        places: &[SamplePlace],
        mut errors: Vec<Error>,
        mut stages: Stages,
    ) -> Result<Assembly> {
        let first = match self.job.slots.is_new() {
            true => self.make_memory(index, places, &mut stages).await?,
            false => None,
        };
        let mut assembly = Assembly::new(self.job.clone(), self.run, index, places);
        errors.extend(self.capture(&mut assembly, places, first, &mut stages).await?);
        assembly.plan_reads(errors, self.job.slots.largest());
        // From here on it waits for its trainer, which is no stage, or for memory of other jobs.
        let mut stages = stages.finish();
        let mut slot = self.job.slots.lease(assembly.bytes()).await?;
        stages.extend(slot.waited.take());
        assembly.take_slot(slot, stages);
        Ok(assembly)
    }

    /// Begins to make the slab of the first batch, if its samples are still to come: as large as
    /// those suggest that come first. Returns the opening of its first shard, if that has all that
    /// the batch wants of it.
    async fn make_memory(
        &mut self,
        index: u64,
        places: &[SamplePlace],
        stages: &mut Stages,
    ) -> Result<Option<Opening>> {
        let job = self.job.clone();
        let Some((number, wanted)) = samples_of(places).first().copied() else { return Ok(None) };
        let mut first: Vec<_> =
            places.iter().filter(|place| place.shard == number).copied().collect();
        // A joined sample is more than its part of this shard.
        if first.len() < SUGGESTING || job.joins.parts(number).next().is_some() {
            return Ok(None);
        }
        first.sort_by_key(|place| place.ordinal);
        first.truncate(SUGGESTING);
        let samples = first.last().map_or(0, |place| place.ordinal + 1);
        let (shard, progress) = self.open(number, samples, stages).await?;
        if progress.is_ok() && !shard.came_whole() {
            let mut suggested = Assembly::new(job.clone(), self.run, index, &first);
            suggested.capture(number, &shard, None);
            suggested.plan_reads(Vec::new(), job.slots.largest());
            job.slots.make_early(suggested.bytes() / first.len() * places.len());
        }
        let has_all = progress.as_ref().map_or(true, |progress| {
            progress.counted || progress.failed.is_some() || progress.samples >= wanted
        });
        Ok(has_all.then_some((shard, progress)))
    }

    /// Waits for the samples' bytes, shard by shard, and records their places in the shard. No
    /// shard is held longer than that: a batch may touch more shards than the tier has room for.
    /// `first`: the opening of the first one. Returns the errors of joined shards of different
    /// length.
    async fn capture(
        &mut self,
        assembly: &mut Assembly,
        places: &[SamplePlace],
        mut first: Option<Opening>,
        stages: &mut Stages,
    ) -> Result<Vec<Error>> {
        let mut errors = Vec::new();
        for (number, samples) in samples_of(places) {
            let (shard, progress) = match first.take() {
                Some(opening) => opening,
                None => self.open(number, samples, stages).await?,
            };
            let (mut counted, mut broken) = (None, None);
            match progress {
                Ok(progress) => {
                    self.check_manifest(number, &progress)?;
                    self.check_choice(number, &shard, &progress)?;
                    self.job.check_excerpt(number, &shard, places)?;
                    counted = progress.counted.then_some(progress.samples);
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => broken = Some(error),
                Err(error) => return Err(error),
            }
            self.job.verdicts.note(number, &shard, assembly.index());
            let job = self.job.clone();
            let mut parts = job.joins.parts(number);
            let Some(first) = parts.next() else {
                assembly.capture(number, &shard, broken.as_ref());
                continue;
            };
            assembly.capture_part(first, &shard, broken.as_ref());
            drop(shard);
            let mut differences = Vec::new();
            for part in parts {
                let (shard, progress) = self.open(part.shard, samples, stages).await?;
                let broken = match progress {
                    Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
                    progress => progress.err(),
                };
                job.verdicts.note(part.shard, &shard, assembly.index());
                let differs = assembly.capture_part(part, &shard, broken.as_ref());
                drop(shard);
                if differs && let Some(found) = self.difference(part, samples, stages).await? {
                    let error = found.error(job.url(part.first), job.url(part.shard));
                    differences.push((part.shard, error));
                }
            }
            assembly.settle(number, &differences)?;
            errors.extend(self.reach(number, samples, counted, stages).await?);
        }
        Ok(errors)
    }

    /// Notes that a joined shard was read up to its sample number `samples`. Once that is the last
    /// one, its parts are compared: returns the errors of those that have more samples.
    async fn reach(
        &mut self,
        shard: u32,
        samples: u64,
        counted: Option<u64>,
        stages: &mut Stages,
    ) -> Result<Vec<Error>> {
        let reached = self.reached.entry(shard).or_default();
        *reached = samples.max(*reached);
        match counted {
            Some(counted) => self.measure(shard, counted, stages).await,
            None => Ok(Vec::new()),
        }
    }

    /// Compares the parts of a shard of `counted` samples, once all samples that the job reads of
    /// it were gathered. Shorter parts are found by the samples that they lack.
    pub(super) async fn measure(
        &mut self,
        shard: u32,
        counted: u64,
        stages: &mut Stages,
    ) -> Result<Vec<Error>> {
        let job = self.job.clone();
        let last = match job.choice(shard) {
            Some(choice) => choice.count().checked_sub(1).and_then(|nth| choice.place(nth)),
            None => counted.checked_sub(1),
        };
        let reached = self.reached.get(&shard).copied().unwrap_or(0);
        let mut errors = Vec::new();
        if reached < last.map_or(0, |last| last + 1) || !self.measured.insert(shard) {
            return Ok(errors);
        }
        for part in job.joins.parts(shard).skip(1) {
            let (open, _) = self.open(part.shard, counted.saturating_add(1), stages).await?;
            let more = open.progress().samples > counted;
            drop(open);
            if more && let Some(found) = self.difference(part, counted + 1, stages).await? {
                errors.push(found.error(job.url(shard), job.url(part.shard)));
            }
        }
        Ok(errors)
    }

    /// Returns the first difference of a part's shard from that of the first part, within their
    /// first `samples` samples.
    async fn difference(
        &mut self,
        part: Part<'_>,
        samples: u64,
        stages: &mut Stages,
    ) -> Result<Option<Difference>> {
        if let Some(known) = self.differences.get(&part.shard) {
            return Ok(Some(known.clone()));
        }
        let (first, _) = self.open(part.first, samples, stages).await?;
        let expected: Vec<_> = keys(&first, samples).collect();
        drop(first);
        let (other, _) = self.open(part.shard, samples, stages).await?;
        let found = Difference::of(expected.into_iter(), keys(&other, samples));
        if let Some(found) = &found {
            self.differences.insert(part.shard, found.clone());
        }
        Ok(found)
    }

    fn check_manifest(&self, shard: u32, progress: &Progress) -> Result<()> {
        let listed = match self.job.choice(shard) {
            Some(choice) => Some(choice.samples),
            None => self.job.spec.counts.as_ref().map(|counts| counts[shard as usize]),
        };
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

    /// Rejects a shard that is not the one whose samples were chosen: by its version at once, and
    /// by its samples as soon as all are known.
    fn check_choice(
        &mut self,
        number: u32,
        shard: &ShardHandle,
        progress: &Progress,
    ) -> Result<()> {
        let job = self.job.clone();
        let Some(choice) = job.choice(number).filter(|_| !self.compared.contains(&number)) else {
            return Ok(());
        };
        let other = |listed: &dyn Display, found: &dyn Display| {
            let what = "the member index is of another version of the shard";
            Err(Error::new(ErrorKind::Invalid, what)
                .at("url", job.url(number))
                .at("listed", listed)
                .at("found", found)
                .advise("index the shards again with `forebay index --members`"))
        };
        match &choice.version {
            Some(listed) if listed != shard.object_version() => {
                return other(listed, &shard.object_version());
            }
            _ => {}
        }
        // Of ranges and excerpts each member is compared instead.
        if !progress.counted || shard.is_by_ranges() || shard.is_excerpt() {
            return Ok(());
        }
        if let Some(listed) = choice.digest {
            let found = Digest::of(&shard.index());
            if found != listed {
                return other(&format!("{listed:08x}"), &format!("{found:08x}"));
            }
        }
        self.compared.insert(number);
        Ok(())
    }

    /// Opens a shard with at least `samples` samples present, or all there are, or the reason no
    /// more will come.
    pub(super) async fn open(
        &mut self,
        shard: u32,
        samples: u64,
        stages: &mut Stages,
    ) -> Result<Opening> {
        let job = self.job.clone();
        let listed = job.waits.begin(GATHERED, Awaited::Shard(shard));
        let waiting = job.patience.waiting(listed);
        let mut replaced = 0;
        loop {
            let start = job.store.run_start();
            let attempt = self.try_open(shard, samples, stages);
            match waiting.within(job.url(shard), &job.origin, attempt).await {
                Err(error) if is_changed(&error) && job.reads_excerpts() => {
                    if let Some(error) = job.changed_excerpt(shard, error).await? {
                        return Err(error);
                    }
                }
                Err(error)
                    if replaced < REPLACED
                        && job.store.was_replaced(job.url(shard), &job.origin, &error) =>
                {
                    replaced += 1;
                }
                Err(error) => {
                    let start_ns = now_ns();
                    waiting.after(error).await?;
                    stages.add(Cause::Origin, start_ns..now_ns());
                }
                Ok((open, progress)) => {
                    if job.store.check_version(&open, job.url(shard), start)? {
                        return Ok((open, progress));
                    }
                }
            }
        }
    }

    async fn try_open(&mut self, shard: u32, samples: u64, stages: &mut Stages) -> Result<Opening> {
        let mut others = 0;
        loop {
            let start_ns = now_ns();
            let open = self.job.open_shard(shard).await;
            for Stage { cause, start_ns, end_ns } in opening(start_ns, &open) {
                stages.add(cause, start_ns..end_ns);
            }
            let open = open?;
            if self.used.insert(shard) {
                self.job.store.record_use(&open);
            }
            let (start_ns, start) = (now_ns(), Instant::now());
            let progress = open.wait(samples).await;
            for Stage { cause, start_ns, end_ns } in arrival(start_ns, open.waited_since(start)) {
                stages.add(cause, start_ns..end_ns);
            }
            match progress {
                Err(error) if self.job.is_anothers_fault(&open, &error, &mut others) => {}
                // The next attempt starts it again.
                Err(error) if error.kind() == ErrorKind::Unavailable => return Err(error),
                progress => return Ok((open, progress)),
            }
        }
    }
}

/// Returns the shards of these places in order of first use, and the number of samples needed of
/// each.
pub(super) fn samples_of(places: &[SamplePlace]) -> Vec<(u32, u64)> {
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

/// Returns the keys of the first `samples` samples of a shard, or of those there are.
fn keys(shard: &ShardHandle, samples: u64) -> impl Iterator<Item = String> {
    let present = shard.progress().samples.min(samples);
    let count = usize::try_from(present).unwrap_or(usize::MAX);
    (0..count).map_while(|at| shard.index().sample(at).map(|sample| sample.key))
}

/// Divides the time from `start_ns` until now, in which a shard was opened: first its origin or
/// another node reports its version, then its index is read from its tier, or its fill starts.
pub(super) fn opening(start_ns: u64, open: &Result<ShardHandle>) -> Vec<Stage> {
    let end_ns = now_ns();
    let Ok(shard) = open else { return vec![Stage { cause: Cause::Origin, start_ns, end_ns }] };
    let asked = shard.asked();
    let told_ns = start_ns.saturating_add(ns(asked.time)).min(end_ns);
    let mut stages = arrival_until(start_ns, told_ns, asked.at_peer).to_vec();
    match shard.came_whole() {
        true => stages.push(Stage { cause: Cause::Index, start_ns: told_ns, end_ns }),
        false => stages.extend(arrival_until(told_ns, end_ns, shard.opened().at_peer)),
    }
    stages
}

/// Divides a wait for bytes of a shard that began at `start_ns` and ends now.
pub(super) fn arrival(start_ns: u64, waited: Waited) -> [Stage; 2] {
    arrival_until(start_ns, now_ns(), waited.at_peer)
}

/// Divides a wait for bytes of a shard: other nodes are asked first, then the origin.
fn arrival_until(start_ns: u64, end_ns: u64, at_peer: Duration) -> [Stage; 2] {
    let mut until_ns = start_ns.saturating_add(ns(at_peer)).min(end_ns);
    // What is too short for a stage of its own belongs to its neighbour.
    if until_ns - start_ns < WORTH_NOTING_NS {
        until_ns = start_ns;
    } else if end_ns - until_ns < WORTH_NOTING_NS {
        until_ns = end_ns;
    }
    [
        Stage { cause: Cause::Peer, start_ns, end_ns: until_ns },
        Stage { cause: Cause::Origin, start_ns: until_ns, end_ns },
    ]
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Stages of one batch until it has a slot, without a gap: between waits its samples are looked up
/// in the plan and in their shards' indexes. Adjacent stages of one cause are merged.
pub(super) struct Stages {
    all: Vec<Stage>,
    /// End of the recorded time.
    told_ns: u64,
}

impl Stages {
    /// Starts the stages of a batch now.
    pub(super) fn begin() -> Self {
        Self { all: Vec::new(), told_ns: now_ns() }
    }

    /// Leaves the time since the last stage unrecorded: it was spent waiting for others.
    pub(super) fn resume(&mut self) {
        self.told_ns = now_ns();
    }

    fn add(&mut self, cause: Cause, during: Range<u64>) {
        // Bytes already present cause no wait, and would make the list as long as the batch.
        if during.end.saturating_sub(during.start) < WORTH_NOTING_NS {
            return;
        }
        let mut start_ns = self.told_ns;
        if during.start.saturating_sub(start_ns) >= WORTH_NOTING_NS {
            self.push(Stage { cause: Cause::Index, start_ns, end_ns: during.start });
            start_ns = during.start;
        }
        self.push(Stage { cause, start_ns, end_ns: during.end });
        self.told_ns = during.end;
    }

    fn push(&mut self, stage: Stage) {
        match self.all.last_mut() {
            Some(last) if last.cause == stage.cause && last.end_ns == stage.start_ns => {
                last.end_ns = stage.end_ns;
            }
            _ => self.all.push(stage),
        }
    }

    /// Returns all of them, until now.
    fn finish(mut self) -> Vec<Stage> {
        let (start_ns, end_ns) = (self.told_ns, now_ns());
        if end_ns.saturating_sub(start_ns) >= WORTH_NOTING_NS {
            self.push(Stage { cause: Cause::Index, start_ns, end_ns });
        }
        self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn lookups_between_waits_include_short_waits() {
        let mut stages = Stages { all: Vec::new(), told_ns: 10 * MS };
        stages.add(Cause::Origin, 20 * MS..50 * MS);
        stages.add(Cause::Origin, 50 * MS + 1..60 * MS);
        stages.add(Cause::Index, 70 * MS..80 * MS);
        stages.add(Cause::Origin, 85 * MS..85 * MS + WORTH_NOTING_NS - 1);
        stages.add(Cause::Origin, 90 * MS..95 * MS);
        let told: Vec<_> =
            stages.all.iter().map(|s| (s.cause, s.start_ns / MS, s.end_ns / MS)).collect();
        let expected = [
            (Cause::Index, 10, 20),
            (Cause::Origin, 20, 60),
            (Cause::Index, 60, 90),
            (Cause::Origin, 90, 95),
        ];
        assert_eq!(told, expected);
        let last = stages.finish().pop().unwrap();
        assert_eq!((last.cause, last.start_ns), (Cause::Index, 95 * MS));
    }

    /// A wait is another node's as long as one was asked, and the origin's from then on.
    #[test]
    fn waits_are_divided_between_nodes_and_the_origin() {
        let cut = |start: u64, end: u64, at_peer: u64| {
            let parts = arrival_until(start, end, Duration::from_nanos(at_peer));
            let [peer, origin] = parts.map(|part| (part.cause, part.start_ns..part.end_ns));
            assert_eq!([peer.0, origin.0], [Cause::Peer, Cause::Origin]);
            [peer.1, origin.1]
        };
        assert_eq!(cut(MS, 10 * MS, 4 * MS), [MS..5 * MS, 5 * MS..10 * MS]);
        assert_eq!(cut(MS, 10 * MS, 0), [MS..MS, MS..10 * MS]);
        assert_eq!(cut(MS, 10 * MS, 20 * MS), [MS..10 * MS, 10 * MS..10 * MS]);
        assert_eq!(cut(MS, 10 * MS, 9 * MS - 1), [MS..10 * MS, 10 * MS..10 * MS]);
        assert_eq!(cut(MS, 10 * MS, 1), [MS..MS, MS..10 * MS]);
    }

    /// The wait for a turn in a queue does not count as work.
    #[test]
    fn wait_for_a_queue_turn_is_no_stage() {
        let mut stages = Stages { all: Vec::new(), told_ns: 0 };
        stages.resume();
        assert!(stages.told_ns > 0);
        let since = stages.told_ns;
        stages.add(Cause::Origin, since..since + MS);
        assert_eq!(
            stages.all,
            [Stage { cause: Cause::Origin, start_ns: since, end_ns: since + MS }]
        );
    }
}
