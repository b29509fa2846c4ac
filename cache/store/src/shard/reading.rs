//! Reads of a shard's records.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use forebay_error::{Error, ErrorKind};
use forebay_source::Rank;
use forebay_uring::{DiskFile, Engine, Frozen, Read, Span};

use super::{Body, Placed, Shard, ShardHandle};
use crate::device;
use crate::held::HeldBytes;
use crate::ledger::Payer;
use crate::parts::{self, Frame};
use crate::small_copies::{COPIED_BYTES, SmallCopy};

impl Shard {
    /// Implements [`ShardHandle::read`].
    pub(super) async fn read(
        &self,
        wanted: Vec<(Range<u64>, Span)>,
        lease: &ShardHandle,
    ) -> Vec<Placed> {
        let read_bytes =
            if lease.is_for_move { &self.traffic.move_bytes } else { &self.traffic.tier_bytes };
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut placed = Vec::with_capacity(wanted.len());
        let mut pending = Vec::new();
        for (range, span) in wanted {
            let Range { start, end } = Self::footprint(&range);
            if (span.len() as u64) < end - start {
                // The origin failed on it before, and kept the memory.
                let what = "the memory for a range was lost with its last read";
                let outcome = Err(Error::new(ErrorKind::Unavailable, what));
                placed.push(Some(Placed { span, start, from_tier: false, outcome, held: None }));
                continue;
            }
            let held = parts.as_ref().and_then(|parts| parts.held(&range));
            let here = match (held, &self.body) {
                (Some(frames), _) => Some((self.frames_of(&frames, &range), false)),
                (None, Body::Memory(blocks)) if self.lost.get().is_none() => {
                    read_bytes.fetch_add(range.end - range.start, Ordering::Relaxed);
                    blocks.held(&range).map(|held| (held, true))
                }
                (None, _) => None,
            };
            match here {
                Some((held, from_tier)) => {
                    let held = Some(held);
                    placed.push(Some(Placed { span, start, from_tier, outcome: Ok(()), held }));
                }
                None => {
                    placed.iter_mut().flatten().for_each(Placed::take_in);
                    if let Some(parts) = &parts {
                        // A record of several parts may reach into one that is still being written.
                        parts.wait_stored(&range).await;
                    }
                    pending.push(Pending { at: placed.len(), start, range, span });
                    placed.push(None);
                }
            }
        }
        if !pending.is_empty() {
            placed.iter_mut().flatten().for_each(Placed::take_in);
        }
        self.leave_silent_device();
        let through = match (&self.body, self.lost.get()) {
            (Body::Disk { engine, file, small }, None) if let Some(file) = file.get() => {
                let pending = match self.copy_of(engine, file, small, pending.len(), lease).await {
                    Some(copy) => Self::copy_ranges(&copy, pending, read_bytes, &mut placed),
                    None => pending,
                };
                self.read_disk(engine, file, pending, read_bytes, &mut placed).await
            }
            _ => pending,
        };
        for (at, read) in self.read_through(through, lease.payer.as_ref()).await {
            placed[at] = Some(read);
        }
        placed.into_iter().flatten().collect()
    }

    /// Returns the copy in memory of a small shard, after making it if so many more reads of the
    /// device make that worth it. An error is left to the reads that come instead.
    async fn copy_of(
        &self,
        engine: &Engine,
        file: &DiskFile,
        small: &SmallCopy,
        reads: usize,
        lease: &ShardHandle,
    ) -> Option<Frozen> {
        if reads == 0 || lease.is_for_move || self.len() > COPIED_BYTES {
            return None;
        }
        if let Some(copy) = small.bytes() {
            return Some(copy);
        }
        // A file that is still written is not read to its end.
        if !self.growth.settled.initialized() {
            return None;
        }
        let (loading, memory) = small.note_reads(reads, self.len())?;
        let done = device::answer(engine.read(file, 0, memory)).await.ok()?;
        let is_whole = done.result.is_ok_and(|read| read as u64 >= self.len());
        is_whole.then(|| loading.keep(done.span))
    }

    /// Copies ranges out of a shard in memory. Returns those that lie outside.
    fn copy_ranges(
        copy: &Frozen,
        pending: Vec<Pending>,
        read_bytes: &AtomicU64,
        placed: &mut [Option<Placed>],
    ) -> Vec<Pending> {
        let mut outside = Vec::new();
        for Pending { at, start, range, span } in pending {
            let place = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
            let place = place(range.start)..place(range.end);
            if copy.get(place.clone()).is_none() {
                outside.push(Pending { at, start, range, span });
                continue;
            }
            read_bytes.fetch_add(place.len() as u64, Ordering::Relaxed);
            let held = Some(HeldBytes::new(range, vec![(copy.clone(), place)]));
            placed[at] = Some(Placed { span, start, from_tier: true, outcome: Ok(()), held });
        }
        outside
    }

    /// Reads from the tier's file. Returns the ranges on which the device failed.
    async fn read_disk(
        &self,
        engine: &Engine,
        file: &DiskFile,
        pending: Vec<Pending>,
        read_bytes: &AtomicU64,
        placed: &mut [Option<Placed>],
    ) -> Vec<Pending> {
        let mut reads = Vec::with_capacity(pending.len());
        let mut places = Vec::with_capacity(pending.len());
        for Pending { at, start, range, mut span } in pending {
            let stub = span.split_to(0);
            reads.push(Read { file: file.clone(), offset: start, into: span });
            places.push((at, start, range, stub));
        }
        let deadline = tokio::time::Instant::now() + device::ANSWER_TIMEOUT;
        let mut failed = Vec::new();
        for (operation, (at, start, range, stub)) in engine.read_many(reads).into_iter().zip(places)
        {
            let Ok(done) = tokio::time::timeout_at(deadline, operation).await else {
                // The kernel keeps the memory: the caller reads the range again into another.
                let error = device::silent().at("url", &self.url);
                self.lose(&error);
                let outcome = Err(error);
                let stub = Placed { span: stub, start, from_tier: false, outcome, held: None };
                placed[at] = Some(stub);
                continue;
            };
            let outcome = match done.result {
                // These two errors concern the request or the end of the daemon, not the device.
                Err(error) if !matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Closed) => {
                    self.lose(&error);
                    failed.push(Pending { at, start, range, span: done.span });
                    continue;
                }
                Err(error) => Err(error),
                Ok(transferred) => {
                    read_bytes.fetch_add(transferred as u64, Ordering::Relaxed);
                    let reached = start + transferred as u64;
                    let cut =
                        || Error::new(ErrorKind::Corrupt, "the copy on the tier is truncated");
                    if reached < range.end { Err(cut().at("offset", reached)) } else { Ok(()) }
                }
            };
            let span = done.span;
            placed[at] = Some(Placed { span, start, from_tier: true, outcome, held: None });
        }
        failed
    }

    /// Reads ranges from the origin, or from the node that owns the shard. An origin that keeps the
    /// shard compressed, or sends it only as a whole, has no ranges: the shard is fetched anew on
    /// its next request.
    async fn read_through(
        &self,
        pending: Vec<Pending>,
        payer: Option<&Payer>,
    ) -> Vec<(usize, Placed)> {
        if pending.is_empty() {
            return Vec::new();
        }
        // Not billed to the job that opened the shard: these reads are for one reader alone.
        let rank = Rank::now(0);
        if let Some(payer) = payer {
            rank.bill_to(|| payer.bill(&self.url));
        }
        let (mut places, mut wanted) = (Vec::new(), Vec::new());
        for Pending { at, start, range, mut span } in pending {
            // An origin needs no alignment: it sends the wanted bytes alone.
            let before = span.split_to(usize::try_from(range.start - start).expect("in a granule"));
            let exact =
                span.split_to(usize::try_from(range.end - range.start).expect("in its footprint"));
            wanted.push((range.start, exact));
            places.push((at, start, range, before, span));
        }
        let is_unpacked = self.growth.is_unpacked();
        let read = self.source.read_records(&self.url, &self.stat, is_unpacked, wanted, &rank);
        let read = places.into_iter().zip(read.await);
        let read = read.map(|((at, start, range, before, behind), (exact, outcome))| {
            let len = range.end - range.start;
            if outcome.is_ok() {
                self.traffic.through_bytes.fetch_add(len, Ordering::Relaxed);
            }
            // The origin kept the memory of a read that failed there.
            let span = match exact.len() as u64 == len {
                true => before.join(exact).join(behind),
                false => exact,
            };
            (at, Placed { span, start, from_tier: false, outcome, held: None })
        });
        read.collect()
    }

    /// Returns the bytes of a range in the frames of its fill, out of which they are copied.
    fn frames_of(&self, frames: &[Arc<Frame>], range: &Range<u64>) -> HeldBytes {
        assert!(
            !self.traffic.no_copies.load(Ordering::Relaxed),
            "a payload byte was copied where a test forbids it"
        );
        self.traffic.copied_bytes.fetch_add(range.end - range.start, Ordering::Relaxed);
        parts::bytes_of(frames, range)
    }
}

/// A range to be read into its span.
struct Pending {
    /// Index in the answer.
    at: usize,
    /// Offset in the shard of the span's first byte.
    start: u64,
    /// The wanted bytes.
    range: Range<u64>,
    span: Span,
}
