//! One shard on its way from its origin to the tier.
//!
//! ```text
//!   origin ──parts, several at once──▶ frame ──O_DIRECT──▶ data file
//!                                        │
//!                                        ├── in order ──▶ indexer (headers, CRC32C per member)
//!                                        └── in order ──▶ comparison (`compare.rs`)
//! ```
//! A frame is frozen once its bytes are there: it is indexed, served and written at the same time.
//! What is compressed at its origin becomes parts in between (`intake.rs`, `unpack.rs`); from there on
//! it is a shard like any other, whose length is known at its end.
//!
//! One rule: frames are bounded by the [`WINDOW`]. A part is asked for only while its frame fits
//! the window, and the window moves when the indexer and the comparison have passed a part whose write is
//! done. So a slow disk, a slow checksum or a stalled part slows the origin down instead of growing memory.

mod bytes;
mod compare;
mod flights;
mod intake;
mod parts;
mod starts;
mod target;
mod unpack;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime};

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::checksum::crc32c;
use forebay_shard::{BLOCK_BYTES, Indexer, Origin, Partial, Sidecar};
use forebay_source::{Binding, Rank, Source, Stat, Stretch};
use forebay_uring::{Arena, Frozen, Span};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SetOnce};
use tokio::task::JoinSet;

use crate::journal::{Journal, Work};
use crate::shard::Growth;
use crate::shares::InForce;
use crate::tier::{Allotment, Tally, shutting_down};
use bytes::FillBytes;
pub use flights::Fills;
pub(crate) use flights::{Flights, Running};
pub(crate) use parts::{Frame, Parts, copy};
pub use starts::Start;
pub(crate) use target::{Blocks, DiskTarget, Target};
pub(crate) use unpack::Format;

/// Bytes asked for at once: large enough that a ranged GET's round trip (some 20–50 ms on S3) is
/// small beside its transfer, small enough that several are under way within one shard.
///
/// A part is a block of the sidecar, so its checksum is taken once.
pub const PART_BYTES: usize = BLOCK_BYTES as usize;

/// Parts of one shard under way at the origin, over as few or as many requests as suit it
/// ([`Source::at_once`]). One S3 connection carries about 50–90 MB/s; eight of them on each of [`FILLS`]
/// shards fill more than a 10 Gbit/s link.
const PARTS_AT_ONCE: usize = 8;

/// Frames kept behind the indexer, so that samples just indexed are served from memory.
pub(crate) const RETAINED: usize = 2;

/// Parts of one shard being written while others arrive. Drives complete large writes in bursts; what
/// waits behind a burst keeps them busy while the next parts come and are checked.
const WRITTEN_AT_ONCE: usize = 12;

/// Frames one fill holds at most.
pub(crate) const WINDOW: usize = PARTS_AT_ONCE + WRITTEN_AT_ONCE + RETAINED;

/// Frames without which a fill cannot go on: those behind the indexer, its own, and the next; or, of a
/// compressed shard, whose next part needs no indexer to be made, the one with what its origin sends.
const LEAST: usize = RETAINED + 2;

/// Parts after which what is here is synced and recorded: a crash costs 64 MiB of what was written, about
/// a second's worth, beside what is under way; a shard below that size is never recorded.
const RECORD_PARTS: usize = 16;

/// Shards filled at once, of as many as may have begun. More would not add bandwidth, only delay the first
/// to be whole.
pub const FILLS: usize = 4;

/// Frame memory of all fills together: two whose disks hang with all that they may hold leave the
/// others what they need. One that lets others go first holds none.
pub const FRAME_BYTES: usize = (2 * WINDOW + (FILLS - 2) * LEAST) * PART_BYTES;

/// What a fill works with.
pub(crate) struct Job {
    pub(crate) url: String,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) stat: Stat,
    /// Memory for parts: the daemon's frames, or the memory they stay in.
    pub(crate) frames: Arena,
    /// The daemon's frames, for what stays nowhere.
    pub(crate) spare: Arena,
    /// What it holds of its tier, if it has one.
    pub(crate) allotment: Option<Allotment>,
    pub(crate) target: Target,
    /// What that tier is called.
    pub(crate) tier: Option<Arc<str>>,
    pub(crate) parts: Arc<Parts>,
    pub(crate) growth: Growth,
    pub(crate) origin: Origin,
    /// The length of the origin's object; of a stream, what has come of it.
    pub(crate) origin_len: AtomicU64,
    /// How the origin's bytes are compressed, once that is known.
    pub(crate) form: SetOnce<Option<Format>>,
    /// Bytes that came out of a compressed shard.
    pub(crate) unpacked: AtomicU64,
    /// A checksum of the whole did not fit, the stream's own or the origin's: nothing of it can be trusted.
    pub(crate) spoilt: OnceLock<Error>,
    /// The tenant whose job brought it in.
    pub(crate) tenant: Option<String>,
    /// Bytes that an earlier fill left here.
    pub(crate) resumed: AtomicU64,
    /// Bytes that this one brought to where they stay.
    pub(crate) written: Arc<AtomicU64>,
    /// Where its tier counts what comes, as it comes.
    pub(crate) tally: Option<Arc<Tally>>,
    /// Whether that tier lies on a disk, which writing wears.
    pub(crate) wears: bool,
    /// Since when the shard is on this node, if it comes from another tier.
    pub(crate) since: Option<SystemTime>,
    /// Why the target took no more. The fill goes on without it: whoever waits for samples gets
    /// them, only nothing is kept.
    pub(crate) fault: Arc<OnceLock<Error>>,
    /// How urgently it is wanted, and for whom.
    pub(crate) rank: Rank,
    /// Who says how fast its data set may come; none of what moves.
    pub(crate) rates: Option<Arc<InForce>>,
    /// The first bytes, if they are on their way already.
    pub(crate) head: Mutex<Option<Box<dyn Stretch>>>,
    /// Where what comes is told of.
    pub(crate) journal: Journal,
}

/// Gives the parts up when it is dropped, however the fill ends: a thread that waits for a part
/// hears of it though nobody runs the fill any more.
struct GiveUp(Option<Arc<Parts>>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        if let Some(parts) = self.0.take() {
            parts.fail(&given_up());
        }
    }
}

/// Says that nothing is being written any more, however that came.
struct End(Arc<Parts>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Parts on their way; whichever turns out to be of a compressed shard says so.
type UnderWay = JoinSet<Result<Option<Format>>>;

/// The right to ask for a part, and its place.
struct Admitted {
    part: u64,
    window: OwnedSemaphorePermit,
    frame: Span,
    asking: OwnedSemaphorePermit,
}

/// Parts that are asked for together.
struct Run {
    /// Those whose turn has come.
    admitted: VecDeque<Admitted>,
    /// Where it ends; parts before that which are not admitted are, one by one, as their turn comes.
    end: u64,
}

impl Job {
    /// Streams the shard in: at the end it is indexed, and what its target keeps is there for good,
    /// unless that failed ([`Job::fault`]).
    pub(crate) async fn run(self: &Arc<Self>, running: &mut Running<'_>) -> Result<()> {
        let bytes = FillBytes::new(self.parts.clone());
        let (growth, url) = (self.growth.clone(), self.url.clone());
        let _give_up = GiveUp(Some(self.parts.clone()));
        let parts = self.parts.clone();
        let indexing = tokio::task::spawn_blocking(move || {
            // A panic in here must not leave the transfer waiting for the window.
            let mut unfinished = GiveUp(Some(parts.clone()));
            let indexed = index(bytes, &parts, &growth).map_err(|error| error.at("url", url));
            match &indexed {
                // The indexer needs no more bytes: whatever still arrives only has to be written.
                Ok(()) => {
                    parts.pass(u64::MAX);
                    unfinished.0 = None;
                }
                Err(error) => drop(parts.fail(error)),
            }
            indexed
        });
        let (transferred, compared) = tokio::join!(self.transfer(running), self.compare());
        let indexed = indexing.await.map_err(|_| {
            Error::new(ErrorKind::Corrupt, "the indexer stopped on this shard").at("url", &self.url)
        })?;
        // A tar that breaks the format fails both; the indexer knows why.
        match (indexed, transferred) {
            (Err(error), _) if error.kind() == ErrorKind::Corrupt => return Err(error),
            (_, Err(error)) | (Err(error), _) => return Err(error),
            (Ok(()), Ok(())) => compared?,
        }
        // Nobody who has all samples waits for the disk.
        self.growth.acquit();
        let since = Instant::now();
        if let (Target::Disk(disk), None) = (&self.target, self.fault.get())
            && let Err(error) = self.commit(disk).await
        {
            self.give_up_target(error);
        }
        if let (Some(tier), None, None) = (&self.tier, self.fault.get(), self.since) {
            self.journal.tell(&self.url, since, || Work::Kept(tier.clone()));
        }
        Ok(())
    }

    /// Makes the shard visible on its tier.
    async fn commit(&self, disk: &DiskTarget) -> Result<()> {
        let len = self.parts.len();
        disk.on_disk(move |directory, name| directory.trim(name, len)).await?;
        disk.engine.sync_data(&disk.file).await?;
        let (origin, tenant) = (self.origin.clone(), self.tenant.clone());
        let index = self.growth.index().index();
        // Every part is written by then.
        let blocks = self.parts.sums().into_iter().flatten().collect();
        let origin_len = self.origin_len.load(Ordering::Relaxed);
        let compressed_len = self.growth.is_unpacked().then_some(origin_len);
        let sidecar = Sidecar { origin, tenant, len, compressed_len, blocks, index };
        let since = self.since;
        disk.on_disk(move |directory, name| directory.commit(name, &sidecar, since)).await
    }

    /// Tells whoever waits for more of it why none comes, and whoever took some whether that was wrong.
    pub(crate) fn fail(&self, error: &Error) {
        self.growth.fail(error, self.spoilt.get());
    }

    /// Nothing of it can be trusted, for this reason; told when nobody finds it here any more.
    fn spoil(&self, why: &Error) {
        // The first reason is the one to tell.
        let _: Result<(), _> = self.spoilt.set(why.clone());
    }

    /// The target takes no more: from here on the fill only passes samples on.
    fn give_up_target(&self, error: Error) {
        // The first reason is the one to tell.
        let is_first = self.fault.set(error.at("url", &self.url)).is_ok();
        // Readers have no origin to turn to for what passed: they are to begin anew.
        if let Some(allotment) = &self.allotment
            && is_first
            && self.growth.is_unpacked()
        {
            allotment.leave();
        }
    }

    async fn transfer(self: &Arc<Self>, running: &mut Running<'_>) -> Result<()> {
        if self.is_here(0) {
            // Its first bytes are needed by nobody.
            self.head().take();
        }
        // Tasks of their own: the checksum of one part must not keep others from being written.
        let mut under_way = JoinSet::new();
        let _end = End(self.parts.clone());
        let transferred = self.bring(running, &mut under_way).await;
        // Whoever hears of a failure before it returns says only that it was given up.
        let transferred = transferred.map_err(|error| self.parts.fail(&error));
        // What was served is written to its end: it may be read again.
        while under_way.join_next().await.is_some() {}
        transferred
    }

    /// Brings every part, or says how the origin's bytes are compressed; then none has arrived.
    async fn land_all(
        self: &Arc<Self>,
        running: &mut Running<'_>,
        under_way: &mut UnderWay,
    ) -> Result<Option<Format>> {
        let parts = self.stat.len.div_ceil(PART_BYTES as u64);
        let asking = Arc::new(Semaphore::new(PARTS_AT_ONCE));
        let mut recording = FuturesUnordered::new();
        let (mut wants, mut starts) = (self.growth.watch_wants(), running.watch_starts());
        // The next to be asked for, those that are recorded, and the first of this turn.
        let (mut next, mut recorded, mut first) = (0, 0, 0);
        loop {
            wants.mark_unchanged();
            starts.mark_unchanged();
            let seen = self.parts.seen();
            let arrived = next - (PARTS_AT_ONCE - asking.available_permits()) as u64;
            let upto = self.asked_upto(first, arrived, running).min(parts);
            let is_over = next >= upto && under_way.is_empty() && recording.is_empty();
            if next < parts && is_over && seen.is_past(next) {
                self.rest(running).await?;
                first = next;
                continue;
            }
            tokio::select! {
                // In order: the part the indexer waits for always gets its frame first.
                admitted = self.admit(next, &asking), if next < upto => {
                    let run = self.run_of(admitted?, upto, &asking);
                    next = run.end;
                    let (job, asking) = (self.clone(), asking.clone());
                    under_way.spawn(async move { job.land(run, &asking).await });
                }
                Some(landing) = under_way.join_next() => {
                    if let Some(format) = landing.map_err(|_| shutting_down())?? {
                        return Ok(Some(format));
                    }
                }
                landed = self.parts.landed(recorded + RECORD_PARTS), if recording.is_empty() && !under_way.is_empty() => {
                    recorded = landed;
                    recording.push(self.record());
                }
                Some(()) = recording.next() => {}
                // How far it is needed shows in what came,
                gone_on = self.parts.gone_on(seen), if next < parts => gone_on?,
                // and is said by whoever waits.
                Ok(()) = wants.changed(), if next < parts => {}
                Ok(()) = starts.changed(), if next < parts => {}
                else => return Ok(None),
            }
        }
    }

    /// Lets others go first, and holds no memory meanwhile; everything that was asked for has come.
    async fn rest(&self, running: &mut Running<'_>) -> Result<()> {
        self.parts.let_go();
        if let Some(allotment) = &self.allotment {
            allotment.rests();
        }
        self.unless_failed(running.let_others(self.growth.more_wanted())).await?;
        if let Some(allotment) = &self.allotment {
            allotment.runs();
        }
        Ok(())
    }

    /// The part before which all may be asked for now: all of the shard, unless some samples are waited for.
    /// Then what is waited for of this one, and beside it, once the first batch of its job is there,
    /// - while nobody waits for another: as much again as came, up to what is asked for at once;
    /// - while others that are waited for are in line: so that turns are worth their round trips, as much again as it had
    ///   when its turn began with part `first`, up to what is asked for at once;
    /// - while such others are at work: a part at a time, and more the further it is, up to that. So the
    ///   first samples of one shard need not share the network with much of another; and if they do not
    ///   come, others do.
    ///
    /// `arrived`: parts that are not under way any more.
    fn asked_upto(&self, first: u64, arrived: u64, running: &Running<'_>) -> u64 {
        // One reply cannot be left for later; and what comes from another tier takes nothing from the network.
        if self.stat.binding == Binding::Sequential || self.since.is_some() {
            return u64::MAX;
        }
        if running.is_held_back() {
            return self.awaited_upto().max(1);
        }
        let at_once = PARTS_AT_ONCE as u64;
        let share = match (running.is_contested(), running.has_company()) {
            (true, _) => first + first.clamp(1, at_once),
            (false, true) => arrived + (arrived / 2).clamp(1, at_once),
            (false, false) if self.is_awaited_in_part() => arrived + arrived.clamp(1, at_once),
            (false, false) => return u64::MAX,
        };
        share.max(self.awaited_upto())
    }

    /// Whether somebody waits for less than all of it.
    fn is_awaited_in_part(&self) -> bool {
        self.rank.is_awaited() && self.growth.wanted().1 < u64::MAX
    }

    /// The part before which those samples are thought to be that somebody waits for: if all that came are
    /// as large as those.
    fn awaited_upto(&self) -> u64 {
        let passed = self.parts.seen().passed as u64;
        let (have, wanted) = self.growth.wanted();
        match wanted {
            _ if wanted <= have => 0,
            u64::MAX => u64::MAX,
            _ => (passed + 1).max(passed.saturating_mul(wanted).div_ceil(have.max(1))),
        }
    }

    /// The parts that are asked for together with `first`: as many as suit the source, as far as there
    /// is room for them now.
    fn run_of(&self, first: Admitted, parts: u64, asking: &Arc<Semaphore>) -> Run {
        let begin = first.part;
        if self.stat.binding == Binding::Sequential {
            // One reply for all of it, which nothing runs beside.
            return Run { admitted: VecDeque::from([first]), end: parts };
        }
        let has_head = begin == 0 && self.head().is_some();
        let wanted = if has_head { 1 } else { self.source.at_once().div_ceil(PART_BYTES as u64) };
        let mut run = Run { admitted: VecDeque::from([first]), end: begin + 1 };
        // What is here already is not asked for.
        while !self.is_here(begin) && run.end < parts.min(begin + wanted) && !self.is_here(run.end)
        {
            let Some(admitted) = self.try_admit(run.end, asking) else { break };
            run.admitted.push_back(admitted);
            run.end += 1;
        }
        run
    }

    /// Makes the parts that are written durable, then records them.
    ///
    /// What an earlier record said of parts that this fill has not come to stays said: whoever goes
    /// on with them compares. Data that cannot be made durable ends the target: a later sync of the
    /// same file need not tell again. A record that cannot be written only costs a restart.
    async fn record(&self) {
        let Target::Disk(disk) = &self.target else { return };
        let here = disk.here.iter().copied().chain(std::iter::repeat(None));
        let blocks = self.parts.sums().into_iter().zip(here).map(|(now, then)| now.or(then));
        let partial = Partial {
            origin: self.origin.clone(),
            tenant: self.tenant.clone(),
            len: self.stat.len,
            blocks: blocks.collect(),
        };
        // Asked last: parts that a failed target lost are noted after its fault.
        if self.fault.get().is_some() {
            return;
        }
        if let Err(error) = disk.engine.sync_data(&disk.file).await {
            return self.give_up_target(error);
        }
        let recorded = disk.on_disk(move |directory, name| directory.record(name, &partial)).await;
        if let Err(error) = recorded {
            let shard = disk.name.as_str();
            tracing::warn!(shard, %error, "failed to record a fill; a crash restarts it");
        }
    }

    /// Whether the next fill can go on with what is here, now that this one failed with `error`. A
    /// record of an archive that is broken is removed: its bytes may have been garbled on the way.
    pub(crate) async fn left_for_the_next(&self, error: &Error) -> bool {
        let Target::Disk(disk) = &self.target else { return false };
        let keep = self.fault.get().is_none()
            && matches!(
                error.kind(),
                ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::PermissionDenied
            );
        let look = disk.on_disk(move |directory, name| match keep {
            true => Ok(directory.is_recorded(name)),
            false => {
                if let Err(error) = directory.remove_record(name) {
                    tracing::warn!(shard = name.as_str(), %error, "failed to remove a record");
                }
                Ok(false)
            }
        });
        // The runtime ends: then the next start looks.
        look.await.unwrap_or(keep)
    }

    /// Waits until one more part may be asked for.
    async fn admit(&self, part: u64, asking: &Arc<Semaphore>) -> Result<Admitted> {
        let window = self.parts.admit().await?;
        let frame = self.frames.lease(PART_BYTES).await?;
        let asking = asking.clone().acquire_owned().await.map_err(|_| shutting_down())?;
        Ok(Admitted { part, window, frame, asking })
    }

    /// The same, if it may be asked for now.
    fn try_admit(&self, part: u64, asking: &Arc<Semaphore>) -> Option<Admitted> {
        let window = self.parts.try_admit()?;
        let asking = asking.clone().try_acquire_owned().ok()?;
        let frame = self.frames.try_lease(PART_BYTES)?;
        Some(Admitted { part, window, frame, asking })
    }

    fn head(&self) -> MutexGuard<'_, Option<Box<dyn Stretch>>> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets a run of parts and keeps them; unless they turn out to be compressed.
    async fn land(self: &Arc<Self>, run: Run, asking: &Arc<Semaphore>) -> Result<Option<Format>> {
        // Each is written while the next arrives.
        let mut keeping = JoinSet::new();
        let mut landed = self.land_each(run, asking, &mut keeping).await;
        if let Err(error) = &landed {
            // Nobody is to wait for what does not come until what came is written.
            self.parts.fail(error);
        }
        // However it ended: what was served is written, for it may be read again.
        while let Some(kept) = keeping.join_next().await {
            let kept = kept.map_err(|_| shutting_down()).and_then(|kept| kept);
            landed = landed.and_then(|format| kept.map(|()| format));
        }
        landed
    }

    async fn land_each(
        self: &Arc<Self>,
        mut run: Run,
        asking: &Arc<Semaphore>,
        keeping: &mut JoinSet<Result<()>>,
    ) -> Result<Option<Format>> {
        let Some(Admitted { part: first, .. }) = run.admitted.front() else { return Ok(None) };
        let (first, mut stretch) = (*first, None);
        for part in first..run.end {
            let admitted = match run.admitted.pop_front() {
                Some(admitted) => admitted,
                None => self.admit(part, asking).await?,
            };
            let Admitted { window, frame, asking, .. } = admitted;
            let (frame, here) = self.left_here(part, frame).await;
            if let Some(crc32c) = here {
                self.parts.arrived(part, Frame::new(frame.freeze(), window));
                self.parts.kept(part, crc32c);
                continue;
            }
            let (_, held) = self.extent(part);
            let arrive = async {
                let frame = self.fetch(&mut stretch, part..run.end, frame).await?;
                // The origin may be asked for another while this one is written.
                drop(asking);
                if part == 0 {
                    // Where it is known beforehand, it stays.
                    let _known = self.form.set(Format::of(&frame[..held]));
                }
                Ok((frame, *self.form.wait().await))
            };
            let (frame, form) = tokio::select! {
                arrived = arrive => arrived?,
                () = self.parts.failed() => return Err(given_up()),
            };
            if form.is_some() {
                return Ok(form);
            }
            self.took(held as u64);
            let job = self.clone();
            keeping.spawn(async move { job.keep(part, frame, held, window).await });
            while let Some(kept) = keeping.try_join_next() {
                kept.map_err(|_| shutting_down())??;
            }
        }
        Ok(None)
    }

    /// The next part of a stretch, which begins with the first of `parts`.
    async fn fetch<'a>(
        &'a self,
        stretch: &mut Option<Box<dyn Stretch + 'a>>,
        parts: Range<u64>,
        frame: Span,
    ) -> Result<Span> {
        let (offset, held) = self.extent(parts.start);
        let mut since = Instant::now();
        let stretch = match stretch {
            Some(stretch) => stretch,
            None => {
                let (begin, last) = (parts.start * PART_BYTES as u64, self.extent(parts.end - 1));
                let range = begin..last.0 + last.1 as u64;
                self.pay(range.end - range.start).await;
                since = Instant::now();
                let head = if parts.start == 0 { self.head().take() } else { None };
                stretch.insert(match head {
                    Some(head) => head,
                    None => self.source.stretch(&self.url, &self.stat, range, &self.rank).await?,
                })
            }
        };
        let frame = stretch.fill(frame).await?;
        self.fetched(since, offset..offset + held as u64);
        Ok(frame)
    }

    /// Tells whoever listens of bytes that came from the origin; what comes from another tier does not.
    fn fetched(&self, since: Instant, range: Range<u64>) {
        if self.since.is_none() && !range.is_empty() {
            self.journal.tell(&self.url, since, || Work::Fetched(range));
        }
    }

    /// Counts bytes of the origin's that the shard is made of: each once, however often it was asked for.
    fn took(&self, bytes: u64) {
        if let (Some(tally), None) = (&self.tally, self.since) {
            tally.origin_bytes.add(bytes);
        }
    }

    /// Publishes a part, and puts it where it stays.
    async fn keep(
        &self,
        part: u64,
        mut frame: Span,
        held: usize,
        window: OwnedSemaphorePermit,
    ) -> Result<()> {
        let offset = part * PART_BYTES as u64;
        let padded = match &self.target {
            Target::Disk(disk) => held.next_multiple_of(disk.file.alignment().offset),
            Target::Memory(_) | Target::Nowhere => held,
        };
        frame[held..padded].fill(0);
        let bytes = frame.freeze();
        if let (Target::Memory(blocks), None) = (&self.target, self.fault.get()) {
            blocks.put(usize::try_from(part).expect("parts are counted in usize"), bytes.clone());
        }
        // From here on it is indexed and served, beside being written.
        self.parts.arrived(part, Frame::new(bytes.clone(), window));
        let writing = self.write(offset, bytes.head(padded));
        // Some 0.4 ms: shorter than handing it to another thread would be worth.
        let crc = crc32c(&bytes[..held]);
        writing.await?;
        if self.fault.get().is_none() && !matches!(self.target, Target::Nowhere) {
            self.wrote(held as u64);
        }
        self.parts.kept(part, crc);
        self.parts.add_landed();
        Ok(())
    }

    /// Notes bytes that are where they stay; only those on a disk cost anything.
    fn wrote(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
        if let Some(tally) = &self.tally {
            tally.written_bytes.add(bytes);
        }
        if let (Some(bill), true) = (self.rank.bill(), self.wears) {
            bill.wrote(bytes);
        }
    }

    /// Where a part begins, and its bytes.
    fn extent(&self, part: u64) -> (u64, usize) {
        let offset = part * PART_BYTES as u64;
        let left = usize::try_from(self.stat.len - offset).unwrap_or(usize::MAX);
        (offset, left.min(PART_BYTES))
    }

    /// Waits until so many bytes may come, for whoever asked for it and of its data set.
    async fn pay(&self, bytes: u64) {
        self.rank.pay(bytes).await;
        if let Some(rates) = &self.rates {
            // Asked each time: another rule may count by now.
            rates.now().rate(&self.url).take(bytes).await;
        }
    }

    /// The checksum of a part that an earlier fill left here, as it was recorded.
    fn recorded(&self, part: u64) -> Option<u32> {
        let Target::Disk(disk) = &self.target else { return None };
        // What comes in one piece cannot be gone on with.
        if self.stat.binding == Binding::Sequential {
            return None;
        }
        disk.here.get(usize::try_from(part).unwrap_or(usize::MAX)).copied().flatten()
    }

    fn is_here(&self, part: u64) -> bool {
        self.recorded(part).is_some()
    }

    /// Reads a part that an earlier fill left here; the frame comes back with its checksum if it is
    /// what was recorded.
    async fn left_here(&self, part: u64, frame: Span) -> (Span, Option<u32>) {
        let (Target::Disk(disk), Some(recorded)) = (&self.target, self.recorded(part)) else {
            return (frame, None);
        };
        let (offset, held) = self.extent(part);
        let done = disk.engine.read(&disk.file, offset, frame).await;
        let is_right =
            done.result.is_ok_and(|read| read >= held) && crc32c(&done.span[..held]) == recorded;
        if is_right {
            self.resumed.fetch_add(held as u64, Ordering::Relaxed);
        }
        (done.span, is_right.then_some(recorded))
    }

    /// Writes a part where its target wants it written; the write begins with the call.
    fn write(&self, offset: u64, bytes: Frozen) -> impl Future<Output = Result<()>> + Send {
        let len = bytes.len();
        let writing = match (&self.target, self.fault.get()) {
            (Target::Disk(disk), None) => Some(disk.engine.write_frozen(&disk.file, offset, bytes)),
            _ => None,
        };
        async move {
            let Some(writing) = writing else { return Ok(()) };
            match writing.await.result {
                Ok(written) if written == len => {}
                Ok(written) => self.give_up_target(
                    Error::new(ErrorKind::Unavailable, "the tier took only part of a write")
                        .at("offset", offset)
                        .at("written", written),
                ),
                // What the caller is told of by its own end: nobody will go on.
                Err(error) if error.kind() == ErrorKind::Closed => return Err(error),
                Err(error) => self.give_up_target(error),
            }
            Ok(())
        }
    }
}

fn given_up() -> Error {
    Error::new(ErrorKind::Closed, "the fill was given up")
}

/// Indexes in order, telling `growth` of each sample the moment it is complete.
fn index(bytes: FillBytes, parts: &Parts, growth: &Growth) -> Result<()> {
    // Its first bytes show whether its length is known.
    parts.wait(0)?;
    let mut indexer = Indexer::new(bytes, parts.len());
    let indexed = loop {
        match indexer.next_sample() {
            Ok(Some(at)) => growth.add(indexer.index(), at),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    match indexed {
        // Who reads all of it, and knows how much that is only by its end, hears of bytes that are wrong.
        Ok(()) => {
            parts.pass(u64::MAX);
            parts.wait_compared()?;
            growth.counted(indexer.index(), parts.len());
        }
        // A stream that is damaged may come out as a tar that is: which of both it is, and so whether
        // anything of it is good, shows at the stream's end.
        Err(error) if error.kind() == ErrorKind::Corrupt && growth.is_unpacked() => {
            drop(indexer);
            parts.drain()?;
            return Err(error);
        }
        // So may a tar whose bytes were changed on the way: which of both it is, its origin knows, if it does.
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            drop(indexer);
            parts.pass(u64::MAX);
            parts.wait_compared()?;
            return Err(error);
        }
        Err(error) => return Err(error),
    }
    Ok(())
}
