//! Arrival of parts from the origin.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::checksum::crc32c;
use forebay_source::{Binding, RangeRead};
use forebay_uring::{Frozen, Span};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use super::endpoints::{Pace, Pulse};
use super::flights::Yield;
use super::record::RECORD_PARTS;
use super::{Fill, FillSize, Running, Target, Unwritten, check_written};
use crate::compression::Compression;
use crate::device;
use crate::parts::{Frame, abandoned};
use crate::sizes::{PART_BYTES, PARTS_AT_ONCE};

/// Running part tasks. Each returns the compression if its part turns out to be compressed.
pub(super) type PartTasks = JoinSet<Result<Option<Compression>>>;

/// Permits to request a part, and its frame.
struct AdmittedPart {
    part: u64,
    window: OwnedSemaphorePermit,
    frame: Span,
    asking: OwnedSemaphorePermit,
}

/// Parts requested together.
struct PartRun {
    /// Parts that are admitted.
    admitted: VecDeque<AdmittedPart>,
    /// End of the run. Its other parts are admitted one by one, as permits come free.
    end: u64,
}

/// Permits of the requests of one fill, and their recall.
struct Requests {
    permits: Arc<Semaphore>,
    /// True while all requests must end, with or without their bytes.
    recalled: watch::Sender<bool>,
}

impl Requests {
    fn new() -> Arc<Self> {
        let permits = Arc::new(Semaphore::new(PARTS_AT_ONCE));
        Arc::new(Self { permits, recalled: watch::Sender::new(false) })
    }

    /// Number of parts in flight.
    fn in_flight(&self) -> usize {
        PARTS_AT_ONCE - self.permits.available_permits()
    }

    async fn recalled(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.recalled.subscribe().wait_for(|recalled| *recalled).await;
    }
}

impl Fill {
    /// Fetches every part, or returns the compression of the origin's bytes; then no part has
    /// arrived.
    pub(super) async fn fetch_parts(
        self: &Arc<Self>,
        running: &mut Running<'_>,
        under_way: &mut PartTasks,
    ) -> Result<Option<Compression>> {
        let parts = self.request.stat.len.div_ceil(PART_BYTES as u64);
        let requests = Requests::new();
        let mut pulse = Pulse::new();
        let mut recording = FuturesUnordered::new();
        let (mut wants, mut starts) = (self.growth.watch_wants(), running.watch_starts());
        // The next part to request, the number of recorded parts, and the first part of this turn.
        let (mut next, mut recorded, mut first) = (0, 0, 0);
        loop {
            wants.mark_unchanged();
            starts.mark_unchanged();
            let seen = self.parts.progress();
            let arrived = next - requests.in_flight() as u64;
            let upto = self.request_limit(first, arrived, running).min(parts);
            let is_over = next >= upto && under_way.is_empty() && recording.is_empty();
            if next < parts && is_over && seen.is_past(next) {
                self.pause(running).await?;
                first = next;
                continue;
            }
            tokio::select! {
                // In order: the part that the indexer waits for gets its frame first.
                admitted = self.admit(next, &requests), if next < upto => {
                    let run = self.next_run(admitted?, upto, &requests);
                    next = run.end;
                    let (fill, requests) = (self.clone(), requests.clone());
                    under_way.spawn(async move { fill.land(run, &requests).await });
                }
                Some(landing) = under_way.join_next() => {
                    if let Some(format) = landing.map_err(|_| Error::shutting_down())?? {
                        return Ok(Some(format));
                    }
                    if pulse.is_young() {
                        running.note_fast().await?;
                    }
                }
                () = pulse.tick(), if !under_way.is_empty() => {
                    let (given, format) =
                        self.check_pace(&mut pulse, running, &requests, under_way).await?;
                    if format.is_some() {
                        return Ok(format);
                    }
                    if given != Yield::Nothing {
                        next = self.retract();
                        first = next;
                    }
                    if given == Yield::Turn {
                        self.yield_turn(running).await?;
                    }
                }
                landed = self.parts.wait_landed(recorded + RECORD_PARTS), if recording.is_empty() && !under_way.is_empty() => {
                    recorded = landed;
                    recording.push(self.record());
                }
                Some(()) = recording.next() => {}
                // The need may change with the parts that came,
                gone_on = self.parts.wait_for_progress(seen), if next < parts => gone_on?,
                // and with the samples that readers wait for.
                Ok(()) = wants.changed(), if next < parts => {}
                Ok(()) = starts.changed(), if next < parts => {}
                else => return Ok(None),
            }
        }
    }

    /// Counts the bytes that came. If next to nothing comes and others wait, ends all requests.
    /// Returns the rights that the fill gave up, and the compression of the origin's bytes if that
    /// shows first.
    async fn check_pace(
        &self,
        pulse: &mut Pulse,
        running: &mut Running<'_>,
        requests: &Requests,
        under_way: &mut PartTasks,
    ) -> Result<(Yield, Option<Compression>)> {
        let given = match self.count(pulse) {
            Pace::Unknown => return Ok((Yield::Nothing, None)),
            Pace::Fast => {
                running.note_fast().await?;
                return Ok((Yield::Nothing, None));
            }
            Pace::Slow => running.note_slow(),
        };
        if given == Yield::Nothing {
            return Ok((given, None));
        }
        if self.request.stat.binding == Binding::Sequential {
            // One reply cannot be continued.
            return self.yield_whole(given).map(|()| (Yield::Nothing, None));
        }
        pulse.restart();
        requests.recalled.send_replace(true);
        while let Some(landing) = under_way.join_next().await {
            if let Some(format) = landing.map_err(|_| Error::shutting_down())?? {
                return Ok((given, Some(format)));
            }
        }
        requests.recalled.send_replace(false);
        Ok((given, None))
    }

    /// Forgets the parts behind the first missing one, and returns its number. In a memory tier
    /// they leave their blocks: the shard has room for each part once.
    fn retract(&self) -> u64 {
        let first = self.parts.retract();
        if let Target::Memory(blocks) = &self.destination.target {
            blocks.remove_from(usize::try_from(first).expect("parts are counted in usize"));
        }
        first
    }

    /// Waits for a new turn.
    async fn yield_turn(&self, running: &mut Running<'_>) -> Result<()> {
        self.without_memory(running.renew()).await
    }

    /// Lets others go first. Everything requested has arrived.
    async fn pause(&self, running: &mut Running<'_>) -> Result<()> {
        self.without_memory(running.let_others(self.growth.more_wanted())).await
    }

    /// Waits, and holds no memory meanwhile.
    async fn without_memory(&self, wait: impl Future<Output = Result<()>>) -> Result<()> {
        self.parts.release_passed();
        if let Some(allotment) = &self.destination.allotment {
            allotment.pause();
        }
        self.unless_failed(wait).await?;
        if let Some(allotment) = &self.destination.allotment {
            allotment.resume();
        }
        Ok(())
    }

    /// Returns the part before which all may be requested now. That is the whole shard, unless
    /// readers wait for some samples only. Then it is the part up to the awaited samples. Once the
    /// job has its first batch, more is requested:
    ///
    /// - if nobody waits for another shard: as much again as came, up to [`PARTS_AT_ONCE`];
    /// - if other awaited fills wait for a turn: as much again as there was when this turn began
    ///   with part `first`, up to [`PARTS_AT_ONCE`], so that a turn is worth its round trips;
    /// - if other awaited fills run: one part at a time, and more the further this fill is, up to
    ///   [`PARTS_AT_ONCE`]. So the first samples of one shard need not share the network with much
    ///   of another, and if they do not come, others do.
    ///
    /// In a lane, parts come one by one.
    ///
    /// `arrived`: parts that are no longer in flight.
    fn request_limit(&self, first: u64, arrived: u64, running: &Running<'_>) -> u64 {
        // One reply cannot be paused, and a move between tiers uses no network.
        if self.request.stat.binding == Binding::Sequential || self.request.since.is_some() {
            return u64::MAX;
        }
        let at_once = PARTS_AT_ONCE as u64;
        let in_lane = if running.has_lane() { arrived + 1 } else { u64::MAX };
        if running.is_held_back() {
            return self.awaited_end().max(1).min(in_lane);
        }
        let share = match (running.is_contested(), running.has_company()) {
            (true, _) => first + first.clamp(1, at_once),
            (false, true) => arrived + (arrived / 2).clamp(1, at_once),
            (false, false) if self.is_awaited_in_part() => arrived + arrived.clamp(1, at_once),
            (false, false) => return in_lane,
        };
        share.max(self.awaited_end()).min(in_lane)
    }

    /// Returns true if readers wait for less than all of the shard.
    fn is_awaited_in_part(&self) -> bool {
        self.request.rank.is_awaited() && self.growth.wanted().1 < u64::MAX
    }

    /// Estimates the part before which the awaited samples end, if all samples are as large as
    /// those that came.
    fn awaited_end(&self) -> u64 {
        let passed = self.parts.progress().passed as u64;
        let (have, wanted) = self.growth.wanted();
        match wanted {
            _ if wanted <= have => 0,
            u64::MAX => u64::MAX,
            _ => (passed + 1).max(passed.saturating_mul(wanted).div_ceil(have.max(1))),
        }
    }

    /// Parts to request together with `first`: as many as suit the source and have room now.
    fn next_run(&self, first: AdmittedPart, parts: u64, requests: &Requests) -> PartRun {
        let begin = first.part;
        if self.request.stat.binding == Binding::Sequential {
            // One reply for all of it; no other request runs.
            return PartRun { admitted: VecDeque::from([first]), end: parts };
        }
        let has_head = begin == 0 && self.head().is_some();
        let wanted =
            if has_head { 1 } else { self.request.source.at_once().div_ceil(PART_BYTES as u64) };
        let mut run = PartRun { admitted: VecDeque::from([first]), end: begin + 1 };
        // Parts left by an earlier fill are not requested.
        while !self.is_here(begin) && run.end < parts.min(begin + wanted) && !self.is_here(run.end)
        {
            let Some(admitted) = self.try_admit(run.end, requests) else { break };
            run.admitted.push_back(admitted);
            run.end += 1;
        }
        run
    }

    /// Memory for a part. A small shard has only one, and many of them come at once.
    fn room(&self, part: u64) -> usize {
        match (self.size(), &self.destination.target) {
            (FillSize::Small, Target::Disk(_) | Target::Nowhere) => self.extent(part).1,
            // A memory tier counts in whole parts.
            (FillSize::Large, _) | (_, Target::Memory(_)) => PART_BYTES,
        }
    }

    /// Waits for the permits of one more part.
    async fn admit(&self, part: u64, requests: &Requests) -> Result<AdmittedPart> {
        let window = self.parts.admit().await?;
        let frame = self.destination.frames.lease(self.room(part)).await?;
        let asking =
            requests.permits.clone().acquire_owned().await.map_err(|_| Error::shutting_down())?;
        Ok(AdmittedPart { part, window, frame, asking })
    }

    /// Takes the permits of one more part, if they are free now.
    fn try_admit(&self, part: u64, requests: &Requests) -> Option<AdmittedPart> {
        let window = self.parts.try_admit()?;
        let asking = requests.permits.clone().try_acquire_owned().ok()?;
        let frame = self.destination.frames.try_lease(self.room(part))?;
        Some(AdmittedPart { part, window, frame, asking })
    }

    /// Fetches a run of parts and stores them, unless they turn out to be compressed.
    async fn land(
        self: &Arc<Self>,
        run: PartRun,
        requests: &Requests,
    ) -> Result<Option<Compression>> {
        // Each part is written while the next arrives.
        let mut keeping = JoinSet::new();
        let mut landed = self.land_each(run, requests, &mut keeping).await;
        if let Err(error) = &landed {
            // Waiting readers get the error before the writes end.
            self.parts.fail(error);
        }
        // Served parts are written to their end in any case: they may be read again.
        while let Some(kept) = keeping.join_next().await {
            let kept = kept.map_err(|_| Error::shutting_down()).and_then(|kept| kept);
            landed = landed.and_then(|format| kept.map(|()| format));
        }
        landed
    }

    async fn land_each(
        self: &Arc<Self>,
        mut run: PartRun,
        requests: &Requests,
        keeping: &mut JoinSet<Result<()>>,
    ) -> Result<Option<Compression>> {
        let Some(AdmittedPart { part: first, .. }) = run.admitted.front() else { return Ok(None) };
        let (first, mut stretch) = (*first, None);
        for part in first..run.end {
            let admitted = match run.admitted.pop_front() {
                Some(admitted) => admitted,
                None => tokio::select! {
                    admitted = self.admit(part, requests) => admitted?,
                    () = requests.recalled() => return Ok(None),
                },
            };
            let AdmittedPart { window, frame, asking, .. } = admitted;
            let (frame, here) = self.read_resumed_part(part, frame).await?;
            if let Some(crc32c) = here {
                self.parts.arrived(part, Frame::new(frame.freeze(), window));
                self.parts.note_stored(part, crc32c);
                continue;
            }
            let (_, held) = self.extent(part);
            let arrive = async {
                let frame = self.fetch(&mut stretch, part..run.end, frame).await?;
                // The next request may start while this part is written.
                drop(asking);
                if part == 0 {
                    // A format that is known already stays.
                    let _known = self.form.set(Compression::of(&frame[..held]));
                }
                Ok((frame, *self.form.wait().await))
            };
            let (frame, form) = tokio::select! {
                arrived = arrive => arrived?,
                () = self.parts.failed() => return Err(abandoned()),
                () = requests.recalled() => return Ok(None),
            };
            if form.is_some() {
                return Ok(form);
            }
            self.count_origin_bytes(held as u64);
            if part + 1 == run.end {
                // No other part of the run arrives meanwhile, and its request is over.
                drop(stretch.take());
                self.keep(part, frame, held, window).await?;
                continue;
            }
            let fill = self.clone();
            keeping.spawn(async move { fill.keep(part, frame, held, window).await });
            while let Some(kept) = keeping.try_join_next() {
                kept.map_err(|_| Error::shutting_down())??;
            }
        }
        Ok(None)
    }

    /// Next part of a range read that begins with the first of `parts`.
    async fn fetch<'a>(
        &'a self,
        stretch: &mut Option<Box<dyn RangeRead + 'a>>,
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
                    None => {
                        let _asks = self.asks();
                        self.request
                            .source
                            .range_read(self.url(), &self.request.stat, range, &self.request.rank)
                            .await?
                    }
                })
            }
        };
        let _asks = self.asks();
        let frame = stretch.fill(frame).await?;
        self.announce_fetched(since, offset..offset + held as u64);
        Ok(frame)
    }

    /// Publishes a part, and stores it.
    pub(super) async fn keep(
        &self,
        part: u64,
        mut frame: Span,
        held: usize,
        window: OwnedSemaphorePermit,
    ) -> Result<()> {
        let offset = part * PART_BYTES as u64;
        let padded = match &self.destination.target {
            Target::Disk(disk) => held.next_multiple_of(disk.block()),
            Target::Memory(_) | Target::Nowhere => held,
        };
        frame[held..padded].fill(0);
        let bytes = frame.freeze();
        if let (Target::Memory(blocks), None) =
            (&self.destination.target, self.destination.fault.get())
        {
            blocks.put(usize::try_from(part).expect("parts are counted in usize"), bytes.clone());
        }
        // From here on the part is indexed and served while it is written.
        self.parts.arrived(part, Frame::new(bytes.clone(), window));
        if self.is_written_by_commit() {
            let crc32c = crc32c(&bytes[..held]);
            // Set once: a small shard has one part.
            let _ = self.unwritten.set(Unwritten { bytes: bytes.head(padded), held, crc32c });
            return Ok(());
        }
        let writing = self.write(offset, bytes.head(padded));
        // Takes 0.4 ms: less than a switch to another thread is worth.
        let crc = crc32c(&bytes[..held]);
        writing.await?;
        if self.destination.fault.get().is_none()
            && !matches!(self.destination.target, Target::Nowhere)
        {
            self.count_written(held as u64);
        }
        self.note_kept(part, crc);
        Ok(())
    }

    /// Notes that a part that came is stored, or will not be.
    pub(super) fn note_kept(&self, part: u64, crc32c: u32) {
        self.parts.note_stored(part, crc32c);
        self.parts.add_landed();
    }

    /// Returns true if the commit writes the bytes, on its way: those of a small shard take one
    /// part of memory, and a switch of threads costs as much as their write.
    fn is_written_by_commit(&self) -> bool {
        let Target::Disk(disk) = &self.destination.target else { return false };
        // Encryption needs memory of its own while a part is written.
        self.size() == FillSize::Small
            && !self.growth.is_unpacked()
            && disk.bounce.is_none()
            && self.destination.fault.get().is_none()
    }

    /// Reads a part that an earlier fill left here. Returns the frame, and its checksum if it
    /// matches the record.
    async fn read_resumed_part(&self, part: u64, frame: Span) -> Result<(Span, Option<u32>)> {
        let (Target::Disk(disk), Some(recorded)) = (&self.destination.target, self.recorded(part))
        else {
            return Ok((frame, None));
        };
        if self.destination.fault.get().is_some() {
            return Ok((frame, None));
        }
        let (offset, held) = self.extent(part);
        let file = disk.opened()?;
        let read = device::answer(disk.engine.read(file, offset, frame)).await;
        let done = match read {
            Ok(done) => done,
            Err(error) => {
                // The kernel keeps the frame: the part comes from its origin, into another.
                self.abandon_target(error);
                return Ok((self.destination.spare.lease(self.room(part)).await?, None));
            }
        };
        let is_right =
            done.result.is_ok_and(|read| read >= held) && crc32c(&done.span[..held]) == recorded;
        if is_right {
            self.growth.add_resumed(held as u64);
        }
        Ok((done.span, is_right.then_some(recorded)))
    }

    /// Writes a part to its target. The write starts with the call.
    pub(super) fn write(
        &self,
        offset: u64,
        bytes: Frozen,
    ) -> impl Future<Output = Result<()>> + Send {
        let len = bytes.len();
        let writing = match (&self.destination.target, self.destination.fault.get()) {
            (Target::Disk(disk), None) => Some(disk.write(offset, bytes)),
            _ => None,
        };
        async move {
            let Some(writing) = writing else { return Ok(()) };
            let written = match writing {
                Ok(writing) => writing.await,
                Err(error) => Err(error),
            };
            match written {
                // The daemon stops: the caller ends as well.
                Err(error) if error.kind() == ErrorKind::Closed => return Err(error),
                written => {
                    let checked = written.and_then(|written| check_written(offset, len, written));
                    checked.unwrap_or_else(|error| self.abandon_target(error));
                }
            }
            Ok(())
        }
    }
}
