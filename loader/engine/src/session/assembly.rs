//! One batch: neighbouring samples become runs, runs become O_DIRECT reads into the slot, and every
//! member is checked before the trainer is told where it lies.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::{Index, Member};
use forebay_store::{Placed, Shard, Urgency};
use forebay_wire::clock::now_ns;
use forebay_wire::message::{self, Batch, Bytes, Cause, Sample, Stage};

use super::Job;
use super::slots::{Hold, Slot};

/// Two samples this close on disk are read at once: what lies between (headers, padding, a small
/// member not asked for) costs less than another request.
const MERGE_GAP: u64 = 16 << 10;

/// A run stops growing here, so that one batch keeps several requests under way.
const RUN_LIMIT: u64 = 4 << 20;

/// A sample of the batch and where the plan found it.
#[derive(Debug, Clone)]
pub(super) struct Located {
    pub(super) position: u64,
    pub(super) valid: bool,
    pub(super) shard: u32,
    pub(super) ordinal: u64,
    /// Why its shard cannot give it.
    pub(super) broken: Option<Error>,
}

/// Neighbouring samples of one shard, read together.
struct Run {
    shard: u32,
    range: Range<u64>,
    /// Which samples of the batch lie in it.
    samples: Vec<usize>,
}

pub(super) struct Assembly {
    job: Arc<Job>,
    run: u64,
    index: u64,
    located: Vec<Located>,
    shards: HashMap<u32, Arc<Shard>>,
    runs: Vec<Run>,
    errors: Vec<Error>,
    slot: Option<Slot>,
    stages: Vec<Stage>,
}

impl Assembly {
    /// Batch `batch` (run, index) of these samples; `errors` are told with it.
    pub(super) fn new(
        job: Arc<Job>,
        batch: (u64, u64),
        located: Vec<Located>,
        shards: HashMap<u32, Arc<Shard>>,
        errors: Vec<Error>,
    ) -> Result<Self> {
        let runs = runs(&job, &located, &shards)?;
        let (run, index) = batch;
        let (slot, stages) = (None, Vec::new());
        Ok(Self { job, run, index, located, shards, runs, errors, slot, stages })
    }

    /// Slab memory the batch needs.
    pub(super) fn bytes(&self) -> usize {
        self.runs.iter().map(|run| self.footprint(run)).sum()
    }

    pub(super) fn take_slot(&mut self, slot: Slot, stages: Vec<Stage>) {
        self.slot = Some(slot);
        self.stages = stages;
    }

    /// Reads and checks everything; the slot's memory comes back beside the batch.
    pub(super) async fn read(mut self) -> Result<(Batch, Hold)> {
        let start_ns = now_ns();
        let slot = self.slot.take().expect("a batch is read after it got its slot");
        let mut fields = Fields::default();
        let mut samples: Vec<Sample> = self.located.iter().map(|at| self.blank(at)).collect();
        let mut bytes = Bytes::default();
        let mut spans = Vec::with_capacity(self.runs.len());
        for (run, placed) in self.read_runs(slot.span).await {
            let run = &self.runs[run];
            let (placed, members) = self.checked(run, placed).await;
            for (&at, members) in run.samples.iter().zip(members) {
                let members = members.map(|members| {
                    let len: u64 = members.iter().map(|(_, member)| member.len).sum();
                    *(if placed.from_tier() { &mut bytes.tier } else { &mut bytes.origin }) += len;
                    members.into_iter().map(|(name, member)| fields.place(name, member)).collect()
                });
                samples[at].members = members;
            }
            spans.push(placed.into_span());
        }
        self.stages.push(Stage { cause: Cause::TierRead, start_ns, end_ns: now_ns() });
        let batch = Batch {
            run: self.run,
            index: self.index,
            slab: slot.slab,
            slot: slot.slot,
            fields: fields.names,
            samples,
            errors: self.errors,
            stages: self.stages,
            bytes,
        };
        Ok((batch, Hold { _spans: spans, _right: slot.right }))
    }

    /// A sample as it is before its members are known to be right.
    fn blank(&self, at: &Located) -> Sample {
        let index = self.shards[&at.shard].index();
        let sample = usize::try_from(at.ordinal).ok().and_then(|at| index.samples.get(at));
        let Some(sample) = sample.filter(|_| at.broken.is_none()) else {
            let gone = || Error::new(ErrorKind::Corrupt, "the shard ends before this sample");
            let error = at.broken.clone().unwrap_or_else(gone).at("sample", at.ordinal);
            return Sample {
                position: at.position,
                url: at.shard,
                key: String::new(),
                valid: at.valid,
                members: Err(error),
            };
        };
        let members = match &sample.bad {
            None => Ok(Vec::new()),
            Some(why) => {
                Err(Error::new(ErrorKind::BadSample, format!("the sample cannot be used: {why}"))
                    .at("url", self.job.url(at.shard))
                    .at("key", &sample.key)
                    .at("offset", sample.offset))
            }
        };
        Sample {
            position: at.position,
            url: at.shard,
            key: sample.key.clone(),
            valid: at.valid,
            members,
        }
    }

    /// Cuts the slot into a span per run and reads all of them, shard by shard at once.
    async fn read_runs(&self, span: Option<forebay_uring::Span>) -> Vec<(usize, Placed)> {
        let Some(mut span) = span else { return Vec::new() };
        let mut wanted: HashMap<u32, Vec<(usize, Range<u64>, forebay_uring::Span)>> =
            HashMap::new();
        for (at, run) in self.runs.iter().enumerate() {
            let piece = span.split_to(self.footprint(run));
            wanted.entry(run.shard).or_default().push((at, run.range.clone(), piece));
        }
        let reads = wanted.into_iter().map(|(shard, wanted)| async move {
            let runs: Vec<usize> = wanted.iter().map(|(at, ..)| *at).collect();
            let wanted = wanted.into_iter().map(|(_, range, span)| (range, span)).collect();
            let placed = self.shards[&shard].read(wanted).await;
            runs.into_iter().zip(placed).collect::<Vec<_>>()
        });
        futures::future::join_all(reads).await.into_iter().flatten().collect()
    }

    /// The members of a run's samples with their place in the slab, each compared with its
    /// checksum. A copy that fails is dropped, fetched anew and read once more.
    async fn checked<'a>(
        &'a self,
        run: &'a Run,
        placed: Placed,
    ) -> (Placed, Vec<Result<Vec<(String, message::Member)>>>) {
        let shard = &self.shards[&run.shard];
        let first = self.check(run, shard, &placed);
        let Some(Err(error)) = first.iter().find(|members| members.is_err()) else {
            return (placed, first);
        };
        self.job.store.condemn(shard, error).await;
        match self.reread(run, placed).await {
            Ok((fresh, placed)) => {
                let second = self.check(run, &fresh, &placed);
                (placed, second)
            }
            Err((error, placed)) => {
                (placed, run.samples.iter().map(|_| Err(error.clone())).collect())
            }
        }
    }

    async fn reread(
        &self,
        run: &Run,
        placed: Placed,
    ) -> Result<(Arc<Shard>, Placed), (Error, Placed)> {
        let url = self.job.url(run.shard);
        let last = run.samples.iter().map(|at| self.located[*at].ordinal).max().unwrap_or(0);
        let shard = match self.job.store.shard(url, &self.job.origin, Urgency::Needed).await {
            Ok(shard) => shard,
            Err(error) => return Err((error, placed)),
        };
        if let Err(error) = shard.wait(last + 1).await {
            return Err((error, placed));
        }
        let mut again = shard.read(vec![(run.range.clone(), placed.into_span())]).await;
        Ok((shard, again.remove(0)))
    }

    fn check(
        &self,
        run: &Run,
        shard: &Shard,
        placed: &Placed,
    ) -> Vec<Result<Vec<(String, message::Member)>>> {
        let index = shard.index();
        let check = |at: &usize| {
            let ordinal = usize::try_from(self.located[*at].ordinal).unwrap_or(usize::MAX);
            let sample = index.samples.get(ordinal).ok_or_else(|| {
                Error::new(ErrorKind::Corrupt, "the shard lost samples when it was fetched again")
            })?;
            wanted_members(&index, sample, self.job.spec.fields.as_deref())
                .into_iter()
                .map(|(name, member)| {
                    let offset = placed.check(member).map_err(|error| {
                        error.at("url", shard.url()).at("key", &sample.key).at("field", name)
                    })?;
                    let place =
                        message::Member { field: 0, offset: offset as u64, len: member.len };
                    Ok((name.to_owned(), place))
                })
                .collect()
        };
        run.samples.iter().map(check).collect()
    }

    fn footprint(&self, run: &Run) -> usize {
        let range = self.shards[&run.shard].footprint(&run.range);
        usize::try_from(range.end - range.start).expect("a run is bounded")
    }
}

/// Field names of a batch, each once.
#[derive(Default)]
struct Fields {
    names: Vec<String>,
}

impl Fields {
    fn place(&mut self, name: String, mut member: message::Member) -> message::Member {
        let at = self.names.iter().position(|have| *have == name).unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        member.field = u32::try_from(at).expect("fields are counted in u32");
        member
    }
}

/// The members the job asked for: of each list of alternatives the first one present.
fn wanted_members<'a>(
    index: &'a Index,
    sample: &forebay_shard::Sample,
    fields: Option<&[Vec<String>]>,
) -> Vec<(&'a str, &'a Member)> {
    let named = |member: &'a Member| (index.fields[member.field as usize].as_str(), member);
    let members = index.members_of(sample);
    let Some(fields) = fields else { return members.iter().map(named).collect() };
    let mut wanted: Vec<(&str, &Member)> = fields
        .iter()
        .filter_map(|alternatives| {
            alternatives
                .iter()
                .find_map(|name| members.iter().map(named).find(|(have, _)| have == name))
        })
        .collect();
    wanted.sort_by_key(|(_, member)| (member.offset, member.field));
    wanted.dedup_by_key(|(_, member)| member.field);
    wanted
}

/// Groups what the batch needs into runs, in the order of shards and offsets.
fn runs(job: &Job, located: &[Located], shards: &HashMap<u32, Arc<Shard>>) -> Result<Vec<Run>> {
    let mut hulls = Vec::with_capacity(located.len());
    for (at, place) in located.iter().enumerate().filter(|(_, place)| place.broken.is_none()) {
        let index = shards[&place.shard].index();
        let sample =
            usize::try_from(place.ordinal).ok().and_then(|ordinal| index.samples.get(ordinal));
        let sample = sample.ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "the manifest lists more samples than the shard has")
                .at("url", job.url(place.shard))
                .at("found", index.samples.len())
                .advise("index the shards again with `forebay index`")
        })?;
        let members = wanted_members(&index, sample, job.spec.fields.as_deref());
        if let (None, Some((_, first))) = (&sample.bad, members.first()) {
            let end = members.iter().map(|(_, m)| m.offset + m.len).max().unwrap_or(first.offset);
            hulls.push((place.shard, first.offset..end, at));
        }
    }
    hulls.sort_by_key(|(shard, range, _)| (*shard, range.start));
    let mut runs: Vec<Run> = Vec::new();
    for (shard, range, at) in hulls {
        match runs.last_mut() {
            Some(run)
                if run.shard == shard
                    && range.start <= run.range.end + MERGE_GAP
                    && range.end - run.range.start <= RUN_LIMIT =>
            {
                run.range.end = run.range.end.max(range.end);
                run.samples.push(at);
            }
            _ => runs.push(Run { shard, range, samples: vec![at] }),
        }
    }
    Ok(runs)
}
