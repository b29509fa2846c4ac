//! How a shard comes in: as parts of a plain tar, or as pieces of one that is compressed, or whose length
//! only its end tells; those are unpacked into such parts.
//!
//! ```text
//!   origin ──pieces, several at once──▶ one frame ──in order──▶ unpacker ──▶ frame ──▶ as any part
//! ```
//! One rule: what decides whether something is unpacked is what the first bytes are; a name only says how they
//! are asked for first.
//!
//! # Memory
//! All pieces of a fill share one frame, which it takes before any other and keeps. From then on it
//! waits for one frame at a time, while it holds that one and those retained behind the indexer, so for
//! no more than [`super::LEAST`]; what it holds beyond them comes free without it. So fills that have
//! their least go on, however many are unpacked.
//!
//! # Time
//! Unpacking takes a thread that may block for a piece's worth, and waits for nothing there: a fill that
//! is given up, or a daemon that ends, waits for some milliseconds of it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Binding, Comparison, Stretch};
use forebay_uring::Span;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use super::unpack::{Fault, Format, Unpacker};
use super::{Job, PART_BYTES, Running, Target, UnderWay, given_up};
use crate::tier::shutting_down;

/// Bytes of a compressed shard asked for at once: four of them are under way in the memory of one part, so
/// that the wait for one is hidden behind the others.
const PIECE_BYTES: usize = PART_BYTES / 4;

/// How many times its own length a shard may come to. Text comes to some 20 times, sparse masks to 100;
/// deflate cannot exceed 1,032, and zstd not be trusted at all.
const RATIO: u64 = 256;

/// What any shard may come to, whatever its length: a few hundred bytes of padding or of zeros are no bomb.
const RATIO_FREE: u64 = 64 << 20;

/// What the origin sends of a compressed shard, in order.
struct Pieces<'a> {
    job: &'a Arc<Job>,
    /// All of it in one reply, where it cannot be asked for in pieces,
    whole: Option<Box<dyn Stretch + 'a>>,
    /// and memory for what comes of that next.
    rooms: Vec<Span>,
    /// Each with where it begins.
    reads: JoinSet<Result<(u64, Span)>>,
    here: BTreeMap<u64, Span>,
    /// Where the next begins to be asked for …
    asked: u64,
    /// … and to be handed out.
    given: u64,
    /// Where they end, once that is known.
    end: Option<u64>,
    /// What the origin says of them.
    comparison: Option<Comparison>,
    _window: OwnedSemaphorePermit,
}

impl<'a> Pieces<'a> {
    /// Begins to ask for them.
    async fn begin(job: &'a Arc<Job>) -> Result<Self> {
        let window = job.parts.admit().await?;
        let mut frame = job.spare.lease(PART_BYTES).await?;
        let mut pieces = Self {
            job,
            whole: None,
            rooms: Vec::new(),
            reads: JoinSet::new(),
            here: BTreeMap::new(),
            asked: 0,
            given: 0,
            end: (!job.is_stream()).then_some(job.stat.len),
            comparison: None,
            _window: window,
        };
        let head = job.head().take();
        if matches!(job.stat.binding, Binding::Sequential | Binding::Stream) {
            job.pay(job.stat.len).await;
            pieces.whole = Some(match head {
                Some(head) => head,
                None => job.source.stretch(&job.url, &job.stat, 0..job.stat.len, &job.rank).await?,
            });
        } else if let Some(mut head) = head {
            // Its first bytes are on their way already.
            while pieces.asked < job.stat.len && !frame.is_empty() {
                let since = Instant::now();
                let piece = head.fill(frame.split_to(PIECE_BYTES)).await?;
                let end = job.stat.len.min(pieces.asked + PIECE_BYTES as u64);
                job.fetched(since, pieces.asked..end);
                pieces.here.insert(pieces.asked, piece);
                pieces.asked += PIECE_BYTES as u64;
            }
        }
        while !frame.is_empty() {
            pieces.ask(frame.split_to(PIECE_BYTES));
        }
        Ok(pieces)
    }

    /// Asks for one more, if there is one, into memory whose bytes are not needed any more.
    fn ask(&mut self, room: Span) {
        if self.whole.is_some() {
            return self.rooms.push(room);
        }
        let (job, offset, rank) = (self.job.clone(), self.asked, self.job.rank.at_once());
        if offset >= job.stat.len {
            return;
        }
        self.asked += PIECE_BYTES as u64;
        self.reads.spawn(async move {
            job.pay(PIECE_BYTES as u64).await;
            let since = Instant::now();
            let read = job.source.read_part(&job.url, &job.stat, offset, room, &rank).await?;
            job.fetched(since, offset..job.stat.len.min(offset + PIECE_BYTES as u64));
            Ok((offset, read))
        });
    }

    /// Asks what the origin says of them, and compares the first, which was handed out.
    async fn compare(&mut self, first: Span, len: usize) -> Result<Span> {
        self.comparison = self.job.vouched().await;
        self.compared(first, len).await
    }

    async fn compared(&mut self, piece: Span, len: usize) -> Result<Span> {
        let Some(comparison) = self.comparison.take() else { return Ok(piece) };
        let (comparison, piece) = self.job.take_in(comparison, piece, len).await?;
        self.comparison = Some(comparison);
        Ok(piece)
    }

    /// The next one, and how many of its bytes are the shard's; `None` after the last.
    async fn next(&mut self) -> Result<Option<(Span, usize)>> {
        loop {
            let left = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.given));
            if left == 0 {
                let compared = self.comparison.take().map_or(Ok(()), Comparison::finish);
                return compared.map(|()| None).map_err(|error| self.job.differs(error));
            }
            if let Some(piece) = self.here.remove(&self.given) {
                let len = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
                self.given += len as u64;
                if self.job.is_stream() {
                    self.job.origin_len.store(self.given, Ordering::Relaxed);
                }
                let piece = self.compared(piece, len).await?;
                return Ok(Some((piece, len)));
            }
            if let (Some(whole), Some(room)) = (&mut self.whole, self.rooms.pop()) {
                if self.end.is_none() {
                    self.job.pay(room.len() as u64).await;
                }
                let since = Instant::now();
                let len = room.len() as u64;
                self.here.insert(self.given, whole.fill(room).await?);
                self.end = self.end.or(whole.ends_at());
                let end = self.end.unwrap_or(u64::MAX).min(self.given + len);
                self.job.fetched(since, self.given..end);
                continue;
            }
            let read = self.reads.join_next().await.ok_or_else(shutting_down)?;
            let (offset, piece) = read.map_err(|_| shutting_down())??;
            self.here.insert(offset, piece);
        }
    }
}

/// The unpacker and what it has before it.
struct Work {
    /// None where nothing is packed.
    unpacker: Option<Unpacker>,
    /// A piece, and its bytes that are not used up.
    piece: Option<(Span, Range<usize>)>,
}

/// A part as far as it was filled.
struct Filled {
    frame: Span,
    held: usize,
    /// The shard ends with it, well or badly.
    end: Option<Result<(), Fault>>,
}

impl Work {
    /// Fills a frame from `held` on as far as the piece goes, or up to a fault.
    fn advance(&mut self, frame: &mut Span, held: usize) -> (usize, Option<Fault>) {
        let input = self.piece.as_ref().map(|(piece, left)| &piece[left.clone()]);
        let input = input.unwrap_or_default();
        let room = &mut frame[held..];
        let (taken, made, fault) = match &mut self.unpacker {
            Some(unpacker) => unpacker.advance(input, room),
            None => {
                let len = input.len().min(room.len());
                room[..len].copy_from_slice(&input[..len]);
                (len, len, None)
            }
        };
        if let Some((_, left)) = &mut self.piece {
            left.start += taken;
        }
        (made, fault)
    }

    /// A piece that is used up.
    fn used(&mut self) -> Option<Span> {
        self.piece.take_if(|(_, left)| left.start == left.end).map(|(piece, _)| piece)
    }

    /// Nothing follows.
    fn finish(&self) -> Result<(), Fault> {
        self.unpacker.as_ref().map_or(Ok(()), Unpacker::finish)
    }
}

impl Job {
    /// Brings the whole shard in.
    pub(super) async fn bring(
        self: &Arc<Self>,
        running: &mut Running<'_>,
        under_way: &mut UnderWay,
    ) -> Result<()> {
        let resumes = matches!(&self.target, Target::Disk(disk) if !disk.here.is_empty());
        if self.since.is_some() || resumes {
            // What a tier has, or had a part of, is plain.
            let _new = self.form.set(None);
        } else if self.is_stream() || Format::is_promised(&self.url) {
            let mut pieces = Pieces::begin(self).await?;
            let first = self.unless_failed(pieces.next()).await?;
            let format = first.as_ref().and_then(|(piece, len)| Format::of(&piece[..*len]));
            match first {
                Some(first) if format.is_some() || self.is_stream() => {
                    return self.unpack(format, first, pieces, under_way).await;
                }
                None if self.is_stream() => return Err(self.says_nothing()),
                _ => {}
            }
            let _new = self.form.set(None);
        }
        let Some(format) = self.land_all(running, under_way).await? else { return Ok(()) };
        // Its name promised no such thing: what else is under way of it is asked for again.
        under_way.shutdown().await;
        let mut pieces = Pieces::begin(self).await?;
        let first = self.unless_failed(pieces.next()).await?.ok_or_else(given_up)?;
        self.unpack(Some(format), first, pieces, under_way).await
    }

    /// Whether only its end tells how long the shard is.
    fn is_stream(&self) -> bool {
        self.stat.binding == Binding::Stream
    }

    fn says_nothing(&self) -> Error {
        let error = Error::new(ErrorKind::Corrupt, "the shard's command says nothing");
        error.at("url", &self.url).advise("run it by hand, as the job's user, and see what it says")
    }

    pub(super) async fn unless_failed<T>(
        &self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            done = work => done,
            () = self.parts.failed() => Err(given_up()),
        }
    }

    async fn unpack(
        self: &Arc<Self>,
        format: Option<Format>,
        (piece, len): (Span, usize),
        mut pieces: Pieces<'_>,
        under_way: &mut UnderWay,
    ) -> Result<()> {
        self.growth.unpack();
        self.parts.unpack(format.is_some());
        if matches!(self.target, Target::Nowhere) {
            let what = "such a shard, compressed or what a command says, is read from a tier only, and none \
                takes it now";
            return Err(Error::new(ErrorKind::Unavailable, what)
                .at("url", &self.url)
                .advise("see `forebay tier ls`, or store the shard as a plain tar"));
        }
        let piece = self.unless_failed(pieces.compare(piece, len)).await?;
        let unpacker = format.map(Unpacker::new).transpose()?;
        self.took(len as u64);
        let work = Work { unpacker, piece: Some((piece, 0..len)) };
        self.unless_failed(self.unpack_all(work, pieces, under_way)).await?;
        while let Some(kept) = under_way.join_next().await {
            kept.map_err(|_| shutting_down())??;
        }
        Ok(())
    }

    async fn unpack_all(
        self: &Arc<Self>,
        mut work: Work,
        mut pieces: Pieces<'_>,
        under_way: &mut UnderWay,
    ) -> Result<()> {
        for part in 0.. {
            let offset = part * PART_BYTES as u64;
            if self.stays_in_memory() {
                self.grow(offset + PART_BYTES as u64).await;
            }
            let window = self.parts.admit().await?;
            let arena = if self.fault.get().is_none() { &self.frames } else { &self.spare };
            let frame = arena.lease(PART_BYTES).await?;
            let filled;
            (work, filled) = self.fill_frame(work, &mut pieces, frame).await?;
            let Filled { frame, mut held, end } = filled;
            let mut broken = None;
            if let Some(Err(fault)) = &end {
                if fault.error.kind() != ErrorKind::Corrupt {
                    return Err(fault.error.clone().at("url", &self.url));
                }
                broken = Some(fault.error.clone().at("url", &self.url));
                if fault.spoils {
                    // What came out last may be wrong already.
                    held = 0;
                    self.spoil(&fault.error.clone().at("url", &self.url));
                }
            }
            let len = offset + held as u64;
            self.unpacked.store(len, Ordering::Relaxed);
            self.check_size(len)?;
            if !self.stays_in_memory() {
                self.grow(len).await;
            }
            if end.is_some() {
                self.parts.end_at(len, broken);
            }
            if held > 0 {
                let job = self.clone();
                under_way
                    .spawn(async move { job.keep(part, frame, held, window).await.map(|()| None) });
            }
            while let Some(kept) = under_way.try_join_next() {
                kept.map_err(|_| shutting_down())??;
            }
            if end.is_some() {
                // Of a fault whoever reads up to it hears: what comes before it is good.
                return Ok(());
            }
        }
        Ok(())
    }

    /// Fills a frame, unless the shard ends before.
    async fn fill_frame(
        &self,
        mut work: Work,
        pieces: &mut Pieces<'_>,
        mut frame: Span,
    ) -> Result<(Work, Filled)> {
        let mut held = 0;
        loop {
            let (made, fault);
            (work, frame, (made, fault)) = tokio::task::spawn_blocking(move || {
                let advanced = work.advance(&mut frame, held);
                (work, frame, advanced)
            })
            .await
            .map_err(|_| shutting_down())?;
            held += made;
            if let Some(fault) = fault {
                return Ok((work, Filled { frame, held, end: Some(Err(fault)) }));
            }
            if let Some(room) = work.used() {
                pieces.ask(room);
            }
            if held == PART_BYTES {
                return Ok((work, Filled { frame, held, end: None }));
            }
            match pieces.next().await? {
                Some((piece, len)) => {
                    self.took(len as u64);
                    work.piece = Some((piece, 0..len));
                }
                None => {
                    let end = Some(work.finish());
                    return Ok((work, Filled { frame, held, end }));
                }
            }
        }
    }

    fn stays_in_memory(&self) -> bool {
        matches!(self.target, Target::Memory(_)) && self.fault.get().is_none()
    }

    /// Takes room for the first `bytes` of the shard before they are written; without it, the fill goes
    /// on for those who wait.
    async fn grow(&self, bytes: u64) {
        let (Some(allotment), None) = (&self.allotment, self.fault.get()) else { return };
        let before = allotment.bytes();
        let grown = async {
            allotment.grow(bytes, || self.growth.is_awaited()).await?;
            match &self.target {
                Target::Disk(disk) => disk.extend(before, allotment.bytes()).await,
                Target::Memory(_) | Target::Nowhere => Ok(()),
            }
        };
        if let Err(error) = grown.await {
            self.give_up_target(error);
        }
    }

    /// Refuses a shard that comes to more than it should.
    fn check_size(&self, bytes: u64) -> Result<()> {
        let largest = self.allotment.as_ref().map_or(u64::MAX, |allotment| allotment.largest());
        let origin_len = self.origin_len.load(Ordering::Relaxed);
        let plausible = RATIO.saturating_mul(origin_len).saturating_add(RATIO_FREE);
        let refuse = |kind, what: &str, limit: u64, advice: &str| {
            Err(Error::new(kind, what)
                .at("url", &self.url)
                .at("origin_bytes", origin_len)
                .at("limit", limit)
                .advise(advice))
        };
        if bytes > plausible {
            let what = "the shard unpacks to far more than its length: it may be a bomb";
            let advice = "if it is meant to be so, store it as a plain tar, or as smaller shards";
            return refuse(ErrorKind::Invalid, what, plausible, advice);
        }
        if bytes > largest {
            let what = "the shard comes to more than any tier, or a quota, can hold";
            let advice = "raise the tiers' capacity, or the quota.max, or make smaller shards";
            return refuse(ErrorKind::Full, what, largest, advice);
        }
        Ok(())
    }
}
