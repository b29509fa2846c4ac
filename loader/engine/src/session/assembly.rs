//! One batch: neighbouring members become runs, runs become O_DIRECT reads into the slot, and every
//! member is checked before the trainer learns its place.
//!
//! A shard is held only while it is read, or while the batch borrows it. The facts that the batch
//! needs about a sample are copied when its bytes have arrived.

mod borrowing;
mod joining;
mod runs;

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_policy::access::REQUEST_BYTES;
use forebay_shard::{Member, wanted_members};
use forebay_store::{Placed, Shard, ShardHandle, Verdict};
use forebay_uring::Span;
use forebay_wire::clock::now_ns;
use forebay_wire::message::{self, Batch, Bytes, Cause, IN_SLOT, REREADS_MAX, Sample, Stage};

use super::JobData;
use super::awaited::Awaited;
use super::gather::{REPLACED, WORTH_NOTING_NS, arrival, opening};
use super::joined::Gathered;
use super::slots::{Hold, Slot};
use borrowing::{Borrowed, BorrowedPlace};
use runs::{MERGE_GAP, Part, Run, footprint, parts, runs_of};

/// Field names shown when one is missing: a sample has a handful, a hostile one any number.
const NAMES_SHOWN: usize = 16;

/// Prefix of names reserved for the batch itself.
const RESERVED: &str = "__";

/// Copies of a shard read for one batch before its error is reported.
const WRONG_COPIES: u32 = 2;

/// A sample of the batch, located by the plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct SamplePlace {
    pub(super) position: u64,
    pub(super) valid: bool,
    pub(super) shard: u32,
    pub(super) ordinal: u64,
}

/// Facts about one sample of the batch.
#[derive(Debug)]
struct Record {
    place: SamplePlace,
    key: String,
    /// Byte offset in its shard.
    offset: u64,
    /// Requested members, or the reason for their absence.
    members: Result<Vec<Wanted>>,
    /// Names of the sample's fields, if a requested one is missing or the sample is bad.
    has: Vec<String>,
    /// Parts captured so far, of a sample in joined shards.
    gathered: Gathered,
}

/// A requested member.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    /// Number of its field in the batch.
    field: u32,
    /// Number of its shard.
    shard: u32,
    member: Member,
    /// Place in memory that the batch borrows, if it lies there.
    borrowed: Option<BorrowedPlace>,
}

impl Record {
    /// Returns the requested members; none of a bad sample.
    fn wanted(&self) -> &[Wanted] {
        self.members.as_deref().unwrap_or_default()
    }

    /// The same, to be changed.
    fn wanted_mut(&mut self) -> &mut [Wanted] {
        self.members.as_deref_mut().unwrap_or_default()
    }

    /// Returns the trainer's view of each member before reading, which is final for empty
    /// and borrowed ones.
    fn unread(&self) -> Vec<Result<message::Member>> {
        self.wanted()
            .iter()
            .map(|Wanted { field, member, borrowed, .. }| {
                let BorrowedPlace { memory, offset } = borrowed.unwrap_or_default();
                Ok(message::Member { field: *field, offset, len: member.len, memory })
            })
            .collect()
    }
}

/// A run in its slot: the place of each of its parts in the slab, or an error.
struct Checked {
    run: usize,
    placed: Placed,
    members: Vec<Result<message::Member>>,
    /// True if another node or the job said where the members are, and may have been wrong.
    is_hearsay: bool,
}

/// Continuation after reads by ranges.
enum Again {
    /// All is read.
    No,
    /// The same ranges are read again, into the same memory.
    Now,
    /// The shard is opened again, as a whole if its ranges cannot be read.
    Relocated,
}

/// Source of the places of a shard's members.
struct Facts {
    shard: u32,
    verdict: Verdict,
    /// True if another node's index has the places.
    is_hearsay: bool,
    /// True if members are read from the origin, by ranges.
    is_by_ranges: bool,
}

pub(super) struct Assembly {
    job: Arc<JobData>,
    run: u64,
    index: u64,
    fields: Vec<String>,
    records: Vec<Record>,
    runs: Vec<Run>,
    /// Sources of the places of members, by shard; the last one of a shard counts.
    facts: Vec<Facts>,
    errors: Vec<Error>,
    slot: Option<Slot>,
    /// Shards in memory that it borrows.
    borrowed: Borrowed,
    stages: Vec<Stage>,
    /// Time at which it got its slot and could be read.
    since_ns: u64,
}

impl Assembly {
    /// Makes batch `index` of `run`, of which only the places are known yet.
    pub(super) fn new(job: Arc<JobData>, run: u64, index: u64, places: &[SamplePlace]) -> Self {
        let record = |place: &SamplePlace| Record {
            place: *place,
            key: String::new(),
            offset: 0,
            members: Err(missing(&job, place)),
            has: Vec::new(),
            gathered: Gathered::default(),
        };
        Self {
            run,
            index,
            fields: Vec::new(),
            records: places.iter().map(record).collect(),
            runs: Vec::new(),
            facts: Vec::new(),
            errors: Vec::new(),
            slot: None,
            borrowed: Borrowed::default(),
            stages: Vec::new(),
            since_ns: 0,
            job,
        }
    }

    /// Returns its number in the run.
    pub(super) fn index(&self) -> u64 {
        self.index
    }

    /// Records the places of the batch's samples of `shard`, or that it is `broken`.
    pub(super) fn capture(&mut self, number: u32, shard: &ShardHandle, broken: Option<&Error>) {
        self.may_borrow(number, shard);
        self.facts.push(Facts {
            shard: number,
            verdict: shard.verdict().clone(),
            is_hearsay: shard.is_at_owner(),
            is_by_ranges: shard.is_by_ranges(),
        });
        let index = shard.index();
        let wanted = self.job.spec.fields.as_deref();
        for record in self.records.iter_mut().filter(|record| record.place.shard == number) {
            let ordinal = usize::try_from(record.place.ordinal).unwrap_or(usize::MAX);
            match (index.sample(ordinal), broken) {
                (Some(sample), _) => {
                    record.key.clone_from(&sample.key);
                    record.offset = sample.offset;
                    record.members = match &sample.bad {
                        None => {
                            let (fields, all) = (index.fields(), index.members_of(&sample));
                            let (members, complete) = wanted_members(fields, &all, wanted);
                            if !complete {
                                record.has = names(fields, &all);
                            }
                            let of = |(name, member): (&str, &Member)| Wanted {
                                field: number_of(&mut self.fields, name),
                                shard: number,
                                member: *member,
                                borrowed: None,
                            };
                            Ok(members.into_iter().map(of).collect())
                        }
                        Some(why) => {
                            record.has = names(index.fields(), &index.members_of(&sample));
                            Err(unusable(&why, shard, &sample.key, sample.offset))
                        }
                    };
                }
                (None, Some(error)) => {
                    record.members = Err(error.clone().at("sample", record.place.ordinal));
                }
                (None, None) => {}
            }
        }
    }

    /// Groups the requested members into runs; `errors` travel with the batch. A sample that alone
    /// needs more than `limit` bytes of memory is bad, since no smaller batch would help.
    pub(super) fn plan_reads(&mut self, errors: Vec<Error>, limit: usize) {
        self.errors = errors;
        self.borrow();
        let by_ranges: Vec<u32> = {
            let facts = self.facts.iter().filter(|facts| facts.is_by_ranges);
            facts.map(|facts| facts.shard).collect()
        };
        let gap = |shard| if by_ranges.contains(&shard) { REQUEST_BYTES } else { MERGE_GAP };
        for (sample, record) in self.records.iter_mut().enumerate() {
            // Each member adds at most a gap, and its ends, which are smaller.
            let most = |wanted: &Wanted| wanted.member.len.saturating_add(2 * gap(wanted.shard));
            if record.wanted().iter().map(most).sum::<u64>() <= limit as u64 {
                continue;
            }
            let bytes = footprint(&runs_of(parts(sample, record).collect(), gap));
            if bytes > limit {
                record.members = Err(Error::new(
                    ErrorKind::BadSample,
                    "the sample alone needs more memory than all batches may use",
                )
                .at("bytes", bytes)
                .at("limit", limit)
                .at("url", self.job.url(record.place.shard))
                .at("key", &record.key)
                .at("offset", record.offset)
                .advise("raise the daemon's memory, or request fewer fields"));
            }
        }
        let records = self.records.iter().enumerate();
        let parts = records.flat_map(|(sample, record)| parts(sample, record));
        self.runs = runs_of(parts.collect(), gap);
        if self.job.spec.fields.is_none() && self.fields.is_empty() {
            // No sample is good: the batch gets the columns that these would have had.
            for name in self.records.iter().flat_map(|record| &record.has) {
                if !name.starts_with(RESERVED) {
                    number_of(&mut self.fields, name);
                }
            }
        }
    }

    /// Returns the slab memory that the batch needs.
    pub(super) fn bytes(&self) -> usize {
        footprint(&self.runs)
    }

    pub(super) fn take_slot(&mut self, slot: Slot, stages: Vec<Stage>) {
        self.slot = Some(slot);
        self.stages = stages;
        self.since_ns = now_ns();
    }

    /// Reads and checks everything; returns the batch, each sample's byte offset in its shard, and
    /// the slot's memory.
    ///
    /// # Errors
    /// If a shard can no longer be read; the error of a sample is stored in its place.
    pub(super) async fn read(mut self) -> Result<(Batch, Vec<u64>, Hold)> {
        let mut slot = self.slot.take().expect("a batch is read after it got its slot");
        let mut spans = Vec::with_capacity(self.runs.len());
        let (mut checked_runs, mut waited) = self.read_runs(slot.span.take()).await?;
        for _ in 0..REREADS_MAX {
            let misled = self.misled(&checked_runs);
            let is_stranded = checked_runs.iter().any(|run| run.placed.is_stranded());
            if misled.is_empty() && !is_stranded {
                break;
            }
            if is_stranded {
                // Its spans return to the slab when the device answers.
                self.job.slots.retire(slot.slab);
            }
            drop(checked_runs);
            let earlier = self.relocate(misled).await?;
            slot = self.job.slots.replace(slot, self.bytes()).await?;
            (checked_runs, waited) = self.read_runs(slot.span.take()).await?;
            waited.extend(earlier);
        }
        let mut bytes = Bytes { tier: self.announce_borrowed().await?, origin: 0 };
        let mut members: Vec<Vec<Result<message::Member>>> =
            self.records.iter().map(Record::unread).collect();
        for Checked { run, placed, members: checked, .. } in checked_runs {
            let len: u64 = checked.iter().flatten().map(|member| member.len).sum();
            *(if placed.from_tier() { &mut bytes.tier } else { &mut bytes.origin }) += len;
            for (part, member) in self.runs[run].parts.iter().zip(checked) {
                members[part.sample][part.member] = member;
            }
            spans.push(placed.into_span());
        }
        self.stages.extend(cut(self.since_ns, now_ns(), waited));
        let offsets = self.records.iter().map(|record| record.offset).collect();
        let samples = self.records.into_iter().zip(members).map(|(record, members)| Sample {
            position: record.place.position,
            url: record.place.shard,
            key: record.key,
            valid: record.place.valid,
            members: record.members.and_then(|_| members.into_iter().collect()),
            has: record.has,
        });
        let batch = Batch {
            run: self.run,
            index: self.index,
            slab: slot.slab,
            slot: slot.slot,
            samples: samples.collect(),
            fields: self.fields,
            errors: self.errors,
            stages: self.stages,
            bytes,
        };
        let loans = self.borrowed.into_loans();
        Ok((batch, offsets, Hold { _spans: spans, _loans: loans, _right: slot.right }))
    }

    /// Returns the shards with members that are not where another node said.
    fn misled(&self, checked: &[Checked]) -> Vec<u32> {
        let hearsay = checked.iter().filter(|checked| checked.is_hearsay);
        let mut misled: Vec<_> = hearsay.map(|checked| self.runs[checked.run].shard).collect();
        misled.dedup();
        misled
    }

    /// Takes the places of members from indexes of this node, and plans all reads anew. Returns
    /// the waits.
    async fn relocate(&mut self, misled: Vec<u32>) -> Result<Vec<Stage>> {
        let mut stages = Vec::new();
        if misled.is_empty() {
            return Ok(stages);
        }
        let job = self.job.clone();
        let mut firsts: Vec<_> = misled.iter().map(|shard| job.joins.first_of(*shard)).collect();
        firsts.dedup();
        for first in firsts {
            // A copy that ends before a sample leaves it as it is.
            for record in self.records.iter_mut().filter(|record| record.place.shard == first) {
                record.members = Err(missing(&job, &record.place));
            }
            let mut parts = job.joins.parts(first).peekable();
            if parts.peek().is_none() {
                let shard = self.open(first, self.samples_of(first), &mut stages).await?;
                self.capture(first, &shard, None);
                continue;
            }
            for part in parts {
                let shard = self.open(part.shard, self.samples_of(first), &mut stages).await?;
                self.capture_part(part, &shard, None);
            }
            self.settle(first, &[])?;
        }
        let errors = std::mem::take(&mut self.errors);
        let limit = self.job.slots.largest();
        self.plan_reads(errors, limit);
        Ok(stages)
    }

    /// Cuts the slot into a span per run and reads all of them, the runs of a shard together.
    async fn read_runs(&self, span: Option<Span>) -> Result<(Vec<Checked>, Vec<Stage>)> {
        let Some(mut span) = span else { return Ok(Default::default()) };
        let mut first = 0;
        let reads = self.runs.chunk_by(|a, b| a.shard == b.shard).map(|runs| {
            let wanted: Vec<_> = (first..)
                .zip(runs)
                .map(|(at, run)| (at, run.range.clone(), span.split_to(run.footprint)))
                .collect();
            first += runs.len();
            self.read_shard(runs[0].shard, wanted)
        });
        let read = futures::future::try_join_all(reads.collect::<Vec<_>>()).await?;
        let (checked, waited): (Vec<_>, Vec<_>) = read.into_iter().unzip();
        Ok((checked.into_iter().flatten().collect(), waited.into_iter().flatten().collect()))
    }

    /// Reads and checks runs of one shard. A copy that fails is dropped, and its failed runs are
    /// read again from a fresh one.
    async fn read_shard(
        &self,
        number: u32,
        mut wanted: Vec<(usize, Range<u64>, Span)>,
    ) -> Result<(Vec<Checked>, Vec<Stage>)> {
        let (mut all, mut stages) = (Vec::with_capacity(wanted.len()), Vec::new());
        for tries in 1.. {
            let runs: Vec<usize> = wanted.iter().map(|(run, ..)| *run).collect();
            let shard = self.open(number, self.samples_in(&runs), &mut stages).await?;
            let spans = wanted.into_iter().map(|(_, range, span)| (range, span)).collect();
            let (start_ns, start, is_through) = (now_ns(), Instant::now(), shard.is_read_through());
            let awaited = if is_through { Awaited::Shard(number) } else { Awaited::Tier(number) };
            let listed = self.job.waits.begin(self.index, awaited);
            let read = runs.into_iter().zip(shard.read(spans).await);
            drop(listed);
            if is_through {
                stages.extend(arrival(start_ns, shard.waited_since(start)));
            }
            let (good, bad): (Vec<Checked>, Vec<Checked>) = read
                .map(|(run, placed)| self.check(run, placed))
                .partition(|checked| checked.members.iter().all(Result::is_ok));
            all.extend(good);
            if shard.is_by_ranges() {
                let ranges = all.iter().chain(&bad).map(|checked| &self.runs[checked.run].range);
                let bytes = ranges.map(|range| range.end - range.start).sum();
                self.job.note_parts(number, (bytes, (all.len() + bad.len()) as u64));
                match self.again_by_ranges(number, tries, &bad).await? {
                    Again::No => break,
                    Again::Now => wanted = bad.into_iter().map(|bad| self.wanted(bad)).collect(),
                    Again::Relocated => {
                        all.extend(bad.into_iter().map(|bad| Checked { is_hearsay: true, ..bad }));
                        break;
                    }
                }
                continue;
            }
            if bad.iter().any(|bad| bad.placed.is_stranded()) {
                all.extend(bad);
                break;
            }
            let failed = bad.iter().flat_map(|bad| &bad.members).find_map(|m| m.as_ref().err());
            let limit = if shard.is_lost() { REREADS_MAX } else { WRONG_COPIES };
            let is_hearsay = failed.is_some_and(|error| self.is_hearsay(number, error));
            // Facts of another node that this node's own copy contradicts are the ones to doubt.
            let is_refuted = is_hearsay && !shard.is_at_owner();
            let is_in_vain =
                |error: &Error| tries >= limit || is_refuted || self.is_misled(number, error);
            let Some(error) = failed.filter(|error| !is_in_vain(error)) else {
                all.extend(bad.into_iter().map(|bad| Checked { is_hearsay, ..bad }));
                break;
            };
            // The object was replaced meanwhile, and this is a copy of the new version. Another
            // node's index proves nothing: the next attempt has a copy of this node.
            let is_known = |bad: &Checked| self.is_known_to(&shard, bad.run);
            if !shard.is_at_owner() && !bad.iter().all(is_known) {
                let what = "the shard was replaced while a batch was read";
                return Err(Error::new(ErrorKind::Unavailable, what)
                    .at("url", self.job.url(number))
                    .at("reason", "changed")
                    .advise("run again; shards must not change while jobs read them"));
            }
            self.job.store.drop_bad_copy(&shard, error).await;
            wanted = bad.into_iter().map(|bad| self.wanted(bad)).collect();
        }
        Ok((all, stages))
    }

    /// Returns a failed read as one that is wanted again.
    fn wanted(&self, bad: Checked) -> (usize, Range<u64>, Span) {
        (bad.run, self.runs[bad.run].range.clone(), bad.placed.into_span())
    }

    /// Says how failed reads by ranges of a shard go on. Bytes that differ once were perhaps
    /// damaged on their way.
    async fn again_by_ranges(&self, number: u32, tries: u32, bad: &[Checked]) -> Result<Again> {
        let failed = bad.iter().flat_map(|bad| &bad.members).find_map(|m| m.as_ref().err());
        let Some(error) = failed else { return Ok(Again::No) };
        if error.kind() == ErrorKind::Corrupt && tries < WRONG_COPIES {
            return Ok(Again::Now);
        }
        if let Err(error) = self.job.judge_parts(number, error.clone()).await {
            let listed = self.job.waits.begin(self.index, Awaited::Shard(number));
            self.job.patience.waiting(listed).after(error).await?;
        }
        Ok(Again::Relocated)
    }

    /// True if this copy has the members of a run where the batch expects them.
    fn is_known_to(&self, shard: &ShardHandle, run: usize) -> bool {
        let index = shard.index();
        self.runs[run].parts.iter().all(|part| {
            let record = &self.records[part.sample];
            let Ok(members) = &record.members else { return true };
            let Wanted { member, .. } = &members[part.member];
            let ordinal = usize::try_from(record.place.ordinal).unwrap_or(usize::MAX);
            let sample = index.sample(ordinal);
            sample.is_some_and(|sample| index.members_of(&sample).contains(member))
        })
    }

    /// True if bytes differ because the batch's own facts about the shard are wrong: then the copy
    /// is good.
    fn is_misled(&self, number: u32, error: &Error) -> bool {
        let mut of = self.facts.iter().filter(|facts| facts.shard == number);
        error.kind() == ErrorKind::Corrupt && of.any(|facts| facts.verdict.is_wrong())
    }

    /// True if bytes differ from facts that another node told.
    fn is_hearsay(&self, number: u32, error: &Error) -> bool {
        let last = self.facts.iter().rfind(|facts| facts.shard == number);
        error.kind() == ErrorKind::Corrupt && last.is_some_and(|facts| facts.is_hearsay)
    }

    /// Returns the number of a shard's samples, from its first, that these runs need.
    fn samples_in(&self, runs: &[usize]) -> u64 {
        let parts = runs.iter().flat_map(|run| &self.runs[*run].parts);
        let last = parts.map(|part| self.records[part.sample].place.ordinal).max();
        last.unwrap_or(0) + 1
    }

    /// Returns the number of samples of a planned shard, from its first, that the batch needs.
    fn samples_of(&self, shard: u32) -> u64 {
        let of = self.records.iter().filter(|record| record.place.shard == shard);
        of.map(|record| record.place.ordinal).max().unwrap_or(0) + 1
    }

    /// Opens the shard with its first `samples` samples present, and adds its waits to `stages`. A
    /// copy evicted meanwhile is fetched again.
    async fn open(&self, shard: u32, samples: u64, stages: &mut Vec<Stage>) -> Result<ShardHandle> {
        let url = self.job.url(shard);
        let listed = self.job.waits.begin(self.index, Awaited::Shard(shard));
        let waiting = self.job.patience.waiting(listed);
        let (mut others, mut replaced) = (0, 0);
        loop {
            let start_ns = now_ns();
            let run_start = self.job.store.run_start();
            let open = self.job.open_shard(shard).await;
            stages.extend(opening(start_ns, &open));
            let (start_ns, start) = (now_ns(), Instant::now());
            let error = match open {
                Ok(open) => match open.wait(samples).await {
                    Ok(_) => {
                        stages.extend(arrival(start_ns, open.waited_since(start)));
                        if !self.job.store.check_version(&open, url, run_start)? {
                            continue;
                        }
                        // This may be another copy than the one the batch's facts are from.
                        self.job.verdicts.note(shard, &open, self.index);
                        return Ok(self.job.store.by_own_files(open));
                    }
                    Err(error) if self.job.is_anothers_fault(&open, &error, &mut others) => {
                        stages.extend(arrival(start_ns, open.waited_since(start)));
                        continue;
                    }
                    Err(error) => error,
                },
                Err(error) => error,
            };
            let error = match self.job.changed_excerpt(shard, error).await? {
                Some(error) => error,
                None => continue,
            };
            if replaced < REPLACED && self.job.store.was_replaced(url, &self.job.origin, &error) {
                replaced += 1;
                continue;
            }
            waiting.after(error).await?;
            stages.push(origin_since(start_ns));
        }
    }

    fn check(&self, run: usize, mut placed: Placed) -> Checked {
        let mut check = |part: &Part| {
            let record = &self.records[part.sample];
            let members = record.members.as_ref().map_err(Clone::clone)?;
            let Wanted { field, shard, member, .. } = members[part.member];
            let offset = placed.check(&member).map_err(|error| {
                error
                    .at("url", self.job.url(shard))
                    .at("key", &record.key)
                    .at("field", &self.fields[field as usize])
            })?;
            Ok(message::Member { field, offset: offset as u64, len: member.len, memory: IN_SLOT })
        };
        let members = self.runs[run].parts.iter().map(&mut check).collect();
        placed.end_checks();
        Checked { run, placed, members, is_hearsay: false }
    }
}

/// Returns the error of a sample that its shard does not have.
fn missing(job: &JobData, place: &SamplePlace) -> Error {
    Error::new(ErrorKind::Corrupt, "the shard ends before this sample")
        .at("url", job.url(place.shard))
        .at("sample", place.ordinal)
}

/// Makes the stage of a wait for an origin that ends now.
fn origin_since(start_ns: u64) -> Stage {
    Stage { cause: Cause::Origin, start_ns, end_ns: now_ns() }
}

/// Divides the time from `start_ns` to `end_ns`: the `waited` intervals keep their causes, the rest
/// goes to the tier. Where intervals overlap, the earlier one has the time until its end.
fn cut(start_ns: u64, end_ns: u64, mut waited: Vec<Stage>) -> Vec<Stage> {
    waited.retain(|stage| stage.end_ns.saturating_sub(stage.start_ns) >= WORTH_NOTING_NS);
    waited.sort_by_key(|stage| stage.start_ns);
    let mut stages = Vec::with_capacity(2 * waited.len() + 1);
    let mut at = start_ns;
    for Stage { cause, start_ns, end_ns } in waited {
        if start_ns > at {
            stages.push(Stage { cause: Cause::TierRead, start_ns: at, end_ns: start_ns });
        }
        if end_ns > at {
            stages.push(Stage { cause, start_ns: start_ns.max(at), end_ns });
            at = end_ns;
        }
    }
    if end_ns > at {
        stages.push(Stage { cause: Cause::TierRead, start_ns: at, end_ns });
    }
    stages
}

/// Returns the error of a sample that its shard's index calls bad.
fn unusable(why: &dyn std::fmt::Display, shard: &Shard, key: &str, offset: u64) -> Error {
    Error::new(ErrorKind::BadSample, format!("the sample cannot be used: {why}"))
        .at("url", shard.url())
        .at("key", key)
        .at("offset", offset)
}

/// Returns the number of a field in the batch; a new name gets the next one.
fn number_of(fields: &mut Vec<String>, name: &str) -> u32 {
    let at = fields.iter().position(|have| have == name).unwrap_or_else(|| {
        fields.push(name.to_owned());
        fields.len() - 1
    });
    u32::try_from(at).expect("a shard counts its fields in u32")
}

/// Returns the names of a sample's fields, as many as a message shows.
fn names(fields: &[String], members: &[Member]) -> Vec<String> {
    let members = members.iter().take(NAMES_SHOWN);
    members.map(|member| fields[member.field as usize].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_cut_without_gap_or_overlap() {
        let ms = 1_000_000;
        let waited = |cause, start_ns, end_ns| Stage { cause, start_ns, end_ns };
        let stages = vec![
            waited(Cause::Origin, 30 * ms, 50 * ms),
            waited(Cause::Index, 10 * ms, 40 * ms),
            waited(Cause::Origin, 60 * ms, 60 * ms + 1),
        ];
        let stages = cut(10 * ms, 100 * ms, stages);
        let told: Vec<_> =
            stages.iter().map(|s| (s.cause, s.start_ns / ms, s.end_ns / ms)).collect();
        let expected =
            [(Cause::Index, 10, 40), (Cause::Origin, 40, 50), (Cause::TierRead, 50, 100)];
        assert_eq!(told, expected);
        assert_eq!(cut(5, 9, Vec::new()).len(), 1);
    }
}
