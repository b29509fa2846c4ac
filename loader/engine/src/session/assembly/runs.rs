//! Runs of a batch: neighbouring members of a shard, which are read together.

use std::ops::Range;

use forebay_store::Shard;

use super::{Record, Wanted};

/// Members this close on disk are read together: the gap (headers, padding, a small unneeded
/// member) costs less than another request.
pub(super) const MERGE_GAP: u64 = 16 << 10;

/// Longest run, so that one batch keeps several requests in flight.
const RUN_LIMIT: u64 = 4 << 20;

/// A requested member: its sample's place in the batch, and its own place in the sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) sample: usize,
    pub(super) member: usize,
}

/// Neighbouring members of one shard, read together.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) shard: u32,
    pub(super) range: Range<u64>,
    /// Bytes the read transfers: `range` widened to an alignment that every disk accepts.
    pub(super) footprint: usize,
    pub(super) parts: Vec<Part>,
}

/// Returns the parts to read of the batch's `sample`-th sample; empty members and borrowed ones
/// have none.
pub(super) fn parts(
    sample: usize,
    record: &Record,
) -> impl Iterator<Item = (u32, Range<u64>, Part)> {
    let members = record.wanted().iter().enumerate();
    let is_read = |wanted: &Wanted| wanted.member.len > 0 && wanted.borrowed.is_none();
    members.filter(move |(_, wanted)| is_read(wanted)).map(move |(at, wanted)| {
        let Wanted { shard, member, .. } = wanted;
        (*shard, member.offset..member.end(), Part { sample, member: at })
    })
}

/// Groups all parts into reads, in the order of shards and offsets. `gap` is the number of unneeded
/// bytes between two parts of a shard that cost less than another request.
pub(super) fn runs_of(
    mut parts: Vec<(u32, Range<u64>, Part)>,
    gap: impl Fn(u32) -> u64,
) -> Vec<Run> {
    parts.sort_by_key(|(shard, range, _)| (*shard, range.start));
    let mut runs: Vec<Run> = Vec::new();
    for (shard, range, part) in parts {
        match runs.last_mut() {
            Some(run)
                if run.shard == shard
                    && range.start <= run.range.end.saturating_add(gap(shard))
                    && range.end - run.range.start <= RUN_LIMIT =>
            {
                run.range.end = run.range.end.max(range.end);
                run.parts.push(part);
            }
            _ => runs.push(Run { shard, range, footprint: 0, parts: vec![part] }),
        }
    }
    for run in &mut runs {
        let transferred = Shard::footprint(&run.range);
        let bytes = transferred.end - transferred.start;
        run.footprint = usize::try_from(bytes).expect("a run lies in a shard");
    }
    runs
}

/// Returns the slab memory that runs need.
pub(super) fn footprint(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.footprint).sum()
}
