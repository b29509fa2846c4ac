//! Intake of a shard: as parts of a plain tar, or as pieces that are unpacked into parts. Pieces
//! are used for compressed shards and for streams of unknown length.
//!
//! ```text
//!   origin ──pieces, several at once──▶ one frame ──in order──▶ unpacker ──▶ frame ──▶ as any part
//! ```
//! The first bytes decide whether a shard is unpacked. The name only decides how they are
//! requested.
//!
//! # Memory
//! All pieces of a fill share one frame, which it takes first and keeps. From then on it waits for
//! one frame at a time, while it holds that one and those retained behind the indexer: no more than
//! [`crate::sizes::LEAST`]. Frames beyond them come free without its help. So fills that have the
//! minimum go on, however many are unpacked.
//!
//! # Time
//! Unpacking blocks a thread for one piece at most and waits for nothing there. So an abandoned
//! fill or a stopping daemon waits some milliseconds for it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Binding, Comparison, RangeRead};
use forebay_uring::Span;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use super::landing::PartTasks;
use super::unpack::{UnpackError, Unpacker};
use super::{Fill, Running, Target};
use crate::compression::Compression;
use crate::parts::abandoned;
use crate::sizes::PART_BYTES;

/// Bytes of a compressed shard requested at once. Four pieces are in flight in the memory of one
/// part, which hides the wait for each.
const PIECE_BYTES: usize = PART_BYTES / 4;

/// Maximum ratio of a shard's unpacked size to its length. Text reaches about 20, sparse masks 100;
/// deflate cannot exceed 1,032, zstd has no bound.
const RATIO: u64 = 256;

/// Unpacked size allowed for any shard: a few hundred bytes of padding are no bomb.
const RATIO_FREE: u64 = 64 << 20;

/// Bytes of a compressed shard from its origin, in order.
struct Pieces<'a> {
    fill: &'a Arc<Fill>,
    /// All of it in one reply, if the origin has no ranges,
    whole: Option<Box<dyn RangeRead + 'a>>,
    /// and memory for the next pieces of it.
    rooms: Vec<Span>,
    /// Requests in flight, each with its offset.
    reads: JoinSet<Result<(u64, Span)>>,
    here: BTreeMap<u64, Span>,
    /// Offset of the next request,
    asked: u64,
    /// and of the next piece to hand out.
    given: u64,
    /// Offset of the end, once known.
    end: Option<u64>,
    /// Checksum that the origin gives.
    comparison: Option<Comparison>,
    _window: OwnedSemaphorePermit,
}

impl<'a> Pieces<'a> {
    /// Starts the first requests.
    async fn begin(fill: &'a Arc<Fill>) -> Result<Self> {
        let window = fill.parts.admit().await?;
        let mut frame = fill.destination.spare.lease(PART_BYTES).await?;
        let mut pieces = Self {
            fill,
            whole: None,
            rooms: Vec::new(),
            reads: JoinSet::new(),
            here: BTreeMap::new(),
            asked: 0,
            given: 0,
            end: (!fill.is_stream()).then_some(fill.request.stat.len),
            comparison: None,
            _window: window,
        };
        let head = fill.head().take();
        if matches!(fill.request.stat.binding, Binding::Sequential | Binding::Stream) {
            fill.pay(fill.request.stat.len).await;
            pieces.whole = Some(match head {
                Some(head) => head,
                None => {
                    let _asks = fill.asks();
                    fill.request
                        .source
                        .range_read(
                            fill.url(),
                            &fill.request.stat,
                            0..fill.request.stat.len,
                            &fill.request.rank,
                        )
                        .await?
                }
            });
        } else if let Some(mut head) = head {
            // The first bytes are already on their way.
            while pieces.asked < fill.request.stat.len && !frame.is_empty() {
                let (since, _asks) = (Instant::now(), fill.asks());
                let piece = head.fill(frame.split_to(PIECE_BYTES)).await?;
                let end = fill.request.stat.len.min(pieces.asked + PIECE_BYTES as u64);
                fill.announce_fetched(since, pieces.asked..end);
                pieces.here.insert(pieces.asked, piece);
                pieces.asked += PIECE_BYTES as u64;
            }
        }
        while !frame.is_empty() {
            pieces.ask(frame.split_to(PIECE_BYTES));
        }
        Ok(pieces)
    }

    /// Requests one more piece, if there is one, into memory that is no longer needed.
    fn ask(&mut self, room: Span) {
        if self.whole.is_some() {
            return self.rooms.push(room);
        }
        let (fill, offset, rank) =
            (self.fill.clone(), self.asked, self.fill.request.rank.at_once());
        if offset >= fill.request.stat.len {
            return;
        }
        self.asked += PIECE_BYTES as u64;
        self.reads.spawn(async move {
            fill.pay(PIECE_BYTES as u64).await;
            let (since, _asks) = (Instant::now(), fill.asks());
            let read = fill
                .request
                .source
                .read_part(fill.url(), &fill.request.stat, offset, room, &rank)
                .await?;
            fill.announce_fetched(
                since,
                offset..fill.request.stat.len.min(offset + PIECE_BYTES as u64),
            );
            Ok((offset, read))
        });
    }

    /// Asks for the origin's checksum, and compares the first piece, which was handed out.
    async fn compare(&mut self, first: Span, len: usize) -> Result<Span> {
        self.comparison = self.fill.origin_checksum().await;
        self.compared(first, len).await
    }

    async fn compared(&mut self, piece: Span, len: usize) -> Result<Span> {
        let Some(comparison) = self.comparison.take() else { return Ok(piece) };
        let (comparison, piece) = self.fill.compare_bytes(comparison, piece, len).await?;
        self.comparison = Some(comparison);
        Ok(piece)
    }

    /// Next piece, and the bytes of the shard in it; `None` after the last.
    async fn next(&mut self) -> Result<Option<(Span, usize)>> {
        loop {
            let left = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.given));
            if left == 0 {
                let compared = self.comparison.take().map_or(Ok(()), Comparison::finish);
                return compared.map(|()| None).map_err(|error| self.fill.mark_different(error));
            }
            if let Some(piece) = self.here.remove(&self.given) {
                let len = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES);
                self.given += len as u64;
                if self.fill.is_stream() {
                    self.fill.accounting.origin_len.store(self.given, Ordering::Relaxed);
                }
                let piece = self.compared(piece, len).await?;
                return Ok(Some((piece, len)));
            }
            if let (Some(whole), Some(room)) = (&mut self.whole, self.rooms.pop()) {
                if self.end.is_none() {
                    self.fill.pay(room.len() as u64).await;
                }
                let (since, _asks) = (Instant::now(), self.fill.asks());
                let len = room.len() as u64;
                self.here.insert(self.given, whole.fill(room).await?);
                self.end = self.end.or(whole.ends_at());
                let end = self.end.unwrap_or(u64::MAX).min(self.given + len);
                self.fill.announce_fetched(since, self.given..end);
                continue;
            }
            let read = self.reads.join_next().await.ok_or_else(Error::shutting_down)?;
            let (offset, piece) = read.map_err(|_| Error::shutting_down())??;
            self.here.insert(offset, piece);
        }
    }
}

/// State of the unpacker.
struct Unpacking {
    /// None if the bytes are not compressed.
    unpacker: Option<Unpacker>,
    /// A piece, and its unused bytes.
    piece: Option<(Span, Range<usize>)>,
}

/// A part as far as it is filled.
struct Filled {
    frame: Span,
    held: usize,
    /// End of the shard, good or bad, if this part has it.
    end: Option<Result<(), UnpackError>>,
}

impl Unpacking {
    /// Fills a frame from `held` on, until the piece is used up or an error occurs.
    fn advance(&mut self, frame: &mut Span, held: usize) -> (usize, Option<UnpackError>) {
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

    /// Takes a piece that is used up.
    fn used(&mut self) -> Option<Span> {
        self.piece.take_if(|(_, left)| left.start == left.end).map(|(piece, _)| piece)
    }

    /// Checks that the stream may end here.
    fn finish(&self) -> Result<(), UnpackError> {
        self.unpacker.as_ref().map_or(Ok(()), Unpacker::finish)
    }
}

impl Fill {
    /// Fetches the whole shard.
    pub(super) async fn fetch_all(
        self: &Arc<Self>,
        running: &mut Running<'_>,
        under_way: &mut PartTasks,
    ) -> Result<()> {
        let resumes =
            matches!(&self.destination.target, Target::Disk(disk) if !disk.here.is_empty());
        if self.request.since.is_some() || resumes {
            // A tier holds plain bytes only.
            let _new = self.form.set(None);
        } else if self.is_stream() || Compression::is_promised(self.url()) {
            let mut pieces = self.paced(running, Pieces::begin(self)).await?;
            let first = self.paced(running, self.unless_failed(pieces.next())).await?;
            let format = first.as_ref().and_then(|(piece, len)| Compression::of(&piece[..*len]));
            match first {
                Some(first) if format.is_some() || self.is_stream() => {
                    let unpacked = self.unpack(format, first, pieces, under_way);
                    return self.paced(running, unpacked).await;
                }
                None if self.is_stream() => return Err(self.empty_stream_error()),
                _ => {}
            }
            let _new = self.form.set(None);
        }
        let Some(format) = self.fetch_parts(running, under_way).await? else { return Ok(()) };
        // The name did not show the compression: parts in flight are requested again.
        under_way.shutdown().await;
        running.enlarge().await?;
        let mut pieces = self.paced(running, Pieces::begin(self)).await?;
        let first = self.paced(running, self.unless_failed(pieces.next())).await?;
        let unpacked = self.unpack(Some(format), first.ok_or_else(abandoned)?, pieces, under_way);
        self.paced(running, unpacked).await
    }

    /// Returns true if only the end of the stream shows its length.
    fn is_stream(&self) -> bool {
        self.request.stat.binding == Binding::Stream
    }

    fn empty_stream_error(&self) -> Error {
        let (what, advice) = match self.request.source.is_remote() {
            true => ("the shard is empty", "upload the shard again, or check the server's answer"),
            false => (
                "the shard's command wrote no bytes",
                "run it by hand as the same user, and check its output",
            ),
        };
        Error::new(ErrorKind::Corrupt, what).at("url", self.url()).advise(advice)
    }

    pub(super) async fn unless_failed<T>(
        &self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            done = work => done,
            () = self.parts.failed() => Err(abandoned()),
        }
    }

    async fn unpack(
        self: &Arc<Self>,
        format: Option<Compression>,
        (piece, len): (Span, usize),
        mut pieces: Pieces<'_>,
        under_way: &mut PartTasks,
    ) -> Result<()> {
        self.growth.mark_unpacked();
        self.parts.unpack(format.is_some());
        self.create_file().await;
        if matches!(self.destination.target, Target::Nowhere) {
            let what = "such a shard, compressed or what a command says, is read from a tier only, and none \
                takes it now";
            return Err(Error::new(ErrorKind::Unavailable, what)
                .at("url", self.url())
                .advise("see `forebay tier ls`, or store the shard as a plain tar"));
        }
        let piece = self.unless_failed(pieces.compare(piece, len)).await?;
        let unpacker = format.map(Unpacker::new).transpose()?;
        self.count_origin_bytes(len as u64);
        let work = Unpacking { unpacker, piece: Some((piece, 0..len)) };
        self.unless_failed(self.unpack_all(work, pieces, under_way)).await?;
        while let Some(kept) = under_way.join_next().await {
            kept.map_err(|_| Error::shutting_down())??;
        }
        Ok(())
    }

    async fn unpack_all(
        self: &Arc<Self>,
        mut work: Unpacking,
        mut pieces: Pieces<'_>,
        under_way: &mut PartTasks,
    ) -> Result<()> {
        for part in 0.. {
            let offset = part * PART_BYTES as u64;
            if self.stays_in_memory() {
                self.grow(offset + PART_BYTES as u64).await;
            }
            let window = self.parts.admit().await?;
            let arena = if self.destination.fault.get().is_none() {
                &self.destination.frames
            } else {
                &self.destination.spare
            };
            let frame = arena.lease(PART_BYTES).await?;
            let filled;
            (work, filled) = self.fill_frame(work, &mut pieces, frame).await?;
            let Filled { frame, mut held, end } = filled;
            let mut broken = None;
            if let Some(Err(fault)) = &end {
                if fault.error.kind() != ErrorKind::Corrupt {
                    return Err(fault.error.clone().at("url", self.url()));
                }
                broken = Some(fault.error.clone().at("url", self.url()));
                if fault.untrusted {
                    // The last bytes may be wrong already.
                    held = 0;
                    self.distrust(&fault.error.clone().at("url", self.url()));
                }
            }
            let len = offset + held as u64;
            self.accounting.unpacked.store(len, Ordering::Relaxed);
            self.check_size(len)?;
            if !self.stays_in_memory() {
                self.grow(len).await;
            }
            if end.is_some() {
                self.parts.end_at(len, broken);
            }
            if held > 0 {
                let fill = self.clone();
                under_way.spawn(async move {
                    fill.keep(part, frame, held, window).await.map(|()| None)
                });
            }
            while let Some(kept) = under_way.try_join_next() {
                kept.map_err(|_| Error::shutting_down())??;
            }
            if end.is_some() {
                // The reader that reaches the error gets it; samples before it are good.
                return Ok(());
            }
        }
        Ok(())
    }

    /// Fills a frame, or the rest of the shard if that is shorter.
    async fn fill_frame(
        &self,
        mut work: Unpacking,
        pieces: &mut Pieces<'_>,
        mut frame: Span,
    ) -> Result<(Unpacking, Filled)> {
        let mut held = 0;
        loop {
            let (made, fault);
            (work, frame, (made, fault)) = tokio::task::spawn_blocking(move || {
                let advanced = work.advance(&mut frame, held);
                (work, frame, advanced)
            })
            .await
            .map_err(|_| Error::shutting_down())?;
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
                    self.count_origin_bytes(len as u64);
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
        matches!(self.destination.target, Target::Memory(_))
            && self.destination.fault.get().is_none()
    }

    /// Reserves room for the first `bytes` of the shard before they are written. Without room, the
    /// fill goes on for its readers only.
    async fn grow(&self, bytes: u64) {
        let (Some(allotment), None) = (&self.destination.allotment, self.destination.fault.get())
        else {
            return;
        };
        let before = allotment.bytes();
        let grown = async {
            allotment.grow(bytes, &|| self.growth.is_awaited()).await?;
            match &self.destination.target {
                Target::Disk(disk) => disk.extend(before, allotment.bytes()).await,
                Target::Memory(_) | Target::Nowhere => Ok(()),
            }
        };
        if let Err(error) = grown.await {
            self.abandon_target(error);
        }
    }

    /// Rejects a shard that unpacks to more than it should.
    fn check_size(&self, bytes: u64) -> Result<()> {
        let largest =
            self.destination.allotment.as_ref().map_or(u64::MAX, |allotment| allotment.largest());
        let origin_len = self.accounting.origin_len.load(Ordering::Relaxed);
        let plausible = RATIO.saturating_mul(origin_len).saturating_add(RATIO_FREE);
        let refuse = |kind, what: &str, limit: u64, advice: &str| {
            Err(Error::new(kind, what)
                .at("url", self.url())
                .at("origin_bytes", origin_len)
                .at("limit", limit)
                .advise(advice))
        };
        if bytes > plausible {
            let what = "the shard unpacks to far more than its length: it may be a bomb";
            let advice = "if the size is right, store it as a plain tar or as smaller shards";
            return refuse(ErrorKind::Invalid, what, plausible, advice);
        }
        if bytes > largest {
            let what = "the shard is larger than any tier or quota can hold";
            let advice = "raise the tiers' capacity or quota.max, or make smaller shards";
            return refuse(ErrorKind::Full, what, largest, advice);
        }
        Ok(())
    }
}
