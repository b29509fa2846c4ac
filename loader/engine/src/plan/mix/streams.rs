//! Several data sets as one sequence: the mixture gives the stream and sample number of a position,
//! and the stream's own sequence gives the sample.
//!
//! A stream's own order does not depend on its companions. It is shuffled alone, over its own
//! lanes and window, under its own key; the mixture decides only the positions.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::{Order, Proportion};

use super::phases::Phases;
use super::{Phase, repeats, weights};
use crate::plan::permute::Key;
use crate::plan::sequence::{Known, Located, Sequence, Span};
use crate::plan::{check_counts, lanes};

/// Separates the keys of streams from those of passes, whose numbers stay below it.
const STREAMS: u64 = u64::MAX;

/// One data set of a mixture.
#[derive(Debug, Clone)]
pub struct Stream {
    /// Number of its shards: the next ones of the job's list, after those of earlier streams.
    pub shards: u32,
    /// Sample counts of its shards, if known beforehand.
    pub counts: Option<Vec<u64>>,
    /// Share of the mixture.
    pub proportion: Proportion,
}

/// Sequence of one epoch over several streams; shards are numbered over all of them.
#[derive(Debug)]
pub struct Mixed {
    mix: Phases,
    total: u64,
    /// First shard of each stream, and its sequence.
    streams: Vec<(u32, Sequence)>,
}

impl Mixed {
    /// Makes the sequence of `epoch` over `streams`, for an order that passed
    /// [`crate::plan::check`]. Streams that are [`Proportion::Scheduled`] have their shares from
    /// `phases`.
    ///
    /// # Errors
    /// `Invalid` if streams have different kinds of proportion, weights without `epoch_samples`,
    /// repeats without counts, no samples, phases that are none, or impossible lanes; see also
    /// [`weights`] and [`repeats`].
    pub fn new(order: &Order, streams: &[Stream], phases: &[Phase], epoch: u64) -> Result<Self> {
        let (mut mix, total) = mixture(order, streams, phases, epoch)?;
        let key = Key::new(order.seed).with(epoch).with(STREAMS);
        let mut first = 0;
        let mut sequences = Vec::with_capacity(streams.len());
        for ((stream, samples), number) in streams.iter().zip(mix.before(total)).zip(0..) {
            let lanes = lanes(order, stream.shards, stream.counts.is_some())
                .map_err(|error| error.at("stream", number))?;
            // A stream is played for as long as the mixture needs its samples.
            let order = Order { epoch_samples: Some(samples), ..order.clone() };
            let (counts, key) = (stream.counts.clone(), key.with(number));
            let sequence = Sequence::with_key(&order, stream.shards, counts, lanes, key);
            sequences.push((first, sequence));
            first += stream.shards;
        }
        Ok(Self { mix, total, streams: sequences })
    }

    /// Returns the sample at `position`, as [`Sequence::locate`] does.
    ///
    /// A stream that turns out to be empty ends the epoch at its next position.
    pub fn locate(&mut self, position: u64, known: &dyn Fn(u32) -> Known) -> Located {
        if position >= self.total {
            return Located::End { total: self.total };
        }
        let (stream, index) = self.mix.at(position);
        let (first, sequence) = &mut self.streams[stream];
        let first = *first;
        match sequence.locate(index, &|shard| known(first + shard)) {
            Located::Sample { shard, ordinal } => Located::Sample { shard: first + shard, ordinal },
            Located::Need { shard, at_least } => Located::Need { shard: first + shard, at_least },
            Located::End { .. } => Located::End { total: position },
        }
    }

    /// Returns the samples in the epoch over all ranks.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the stream of a shard.
    #[must_use]
    pub fn stream(&self, shard: u32) -> usize {
        self.streams.partition_point(|(first, _)| *first <= shard) - 1
    }

    /// Returns the shards open at once, over all streams.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.streams.iter().map(|(_, sequence)| sequence.open(|_| true)).sum()
    }

    /// Returns the shards in the order of their first need from `position` on, without repeats, at
    /// most `limit`.
    #[must_use]
    pub fn upcoming(&self, position: u64, limit: usize) -> Vec<u32> {
        let before = self.mix.clone().before(position);
        let mut heads: Vec<_> = self
            .streams
            .iter()
            .zip(before)
            .enumerate()
            .map(|(stream, ((first, sequence), before))| {
                let mix = &self.mix;
                sequence.needs(before, limit, |_| true).map(move |(index, shard)| {
                    (mix.release(stream, index.max(before)), first + shard)
                })
            })
            .collect();
        let mut next: BinaryHeap<_> = heads
            .iter_mut()
            .enumerate()
            .filter_map(|(head, shards)| shards.next().map(|need| Reverse((need, head))))
            .collect();
        let (mut seen, mut found) = (HashSet::new(), Vec::new());
        while found.len() < limit
            && let Some(Reverse(((_, shard), head))) = next.pop()
        {
            next.extend(heads[head].next().map(|need| Reverse((need, head))));
            if seen.insert(shard) {
                found.push(shard);
            }
        }
        found
    }
}

impl Mixed {
    /// Returns the spans in which each stream's shards are needed; none if counts are learnt.
    pub(in crate::plan) fn spans(&self) -> Option<Vec<Span>> {
        let mut all = Vec::new();
        for (stream, (first, sequence)) in self.streams.iter().enumerate() {
            all.extend(sequence.spans(|_| true)?.into_iter().map(|Span { shard, start, end }| {
                Span {
                    shard: first + shard,
                    // Each stream has its share of any number of positions to within one sample.
                    start: self.mix.release(stream, start).min(self.total),
                    end: self.mix.release(stream, end).saturating_add(1).min(self.total),
                }
            }));
        }
        all.sort_unstable_by_key(|span| (span.start, span.end, span.shard));
        Some(all)
    }
}

/// Returns the mixture of an epoch, and the number of its samples.
fn mixture(
    order: &Order,
    streams: &[Stream],
    phases: &[Phase],
    epoch: u64,
) -> Result<(Phases, u64)> {
    check(streams)?;
    let by_weight = streams.iter().map(|stream| match stream.proportion {
        Proportion::Weight(weight) => Some(weight),
        Proportion::Repeat(_) | Proportion::Scheduled => None,
    });
    if let Some(by_weight) = by_weight.collect::<Option<Vec<_>>>() {
        let total = end(order)?;
        return Ok((Phases::constant(&weights(&by_weight)?)?, total));
    }
    if streams.iter().all(|stream| stream.proportion == Proportion::Scheduled) {
        let total = end(order)?;
        let Some(start) = epoch.checked_mul(total) else {
            let what = "more than 2^64 samples of the job come before the epoch";
            let error = Error::new(ErrorKind::Invalid, what).at("epoch", epoch);
            return Err(error.advise("give a lower epoch"));
        };
        return Ok((Phases::new(phases, streams.len(), start, total)?, total));
    }
    let parts = by_repeat(streams)?;
    let total = order.epoch_samples.unwrap_or(parts.iter().sum());
    Ok((Phases::constant(&parts)?, total))
}

/// Returns the samples of an epoch by weights.
fn end(order: &Order) -> Result<u64> {
    order.epoch_samples.ok_or_else(|| {
        Error::new(ErrorKind::Invalid, "a mixture by weights has no end of its own")
            .advise("give epoch_samples=")
    })
}

/// Rejects streams without shards, and counts of other shards.
fn check(streams: &[Stream]) -> Result<()> {
    let invalid =
        |message: &str, advice: &str| Err(Error::new(ErrorKind::Invalid, message).advise(advice));
    if streams.is_empty() {
        return invalid("a mixture has no streams", "give at least one");
    }
    let shards = streams.iter().try_fold(0_u32, |sum, stream| sum.checked_add(stream.shards));
    if shards.is_none() || streams.iter().any(|stream| stream.shards == 0) {
        return invalid(
            "a stream has no shards, or the streams have too many",
            "check the URL lists",
        );
    }
    for (stream, number) in streams.iter().zip(0_u64..) {
        if let Some(counts) = &stream.counts {
            check_counts(counts, stream.shards as usize)
                .map_err(|error| error.at("stream", number))?;
        }
    }
    Ok(())
}

/// Returns the samples of each stream per epoch, from their repeats.
fn by_repeat(streams: &[Stream]) -> Result<Vec<u64>> {
    let invalid =
        |message: &str, advice: &str| Err(Error::new(ErrorKind::Invalid, message).advise(advice));
    let mut by_repeat = Vec::with_capacity(streams.len());
    for stream in streams {
        let Proportion::Repeat(repeat) = stream.proportion else {
            return invalid(
                "some streams have a weight, others a repeat or a schedule",
                "give all of them the same",
            );
        };
        let Some(counts) = &stream.counts else {
            return invalid(
                "a stream with repeat= needs its sample counts",
                "give manifest= (make one with `forebay index`), or weight= and epoch_samples=",
            );
        };
        by_repeat.push((counts.iter().sum(), repeat));
    }
    repeats(&by_repeat)
}
