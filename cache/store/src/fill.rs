//! Fill of one shard, from its origin to a tier.
//!
//! ```text
//!   origin ──parts, several at once──▶ frame ──O_DIRECT──▶ data file
//!                                        │
//!                                        ├── in order ──▶ indexer (headers, CRC32C per member)
//!                                        └── in order ──▶ comparison (`compare.rs`)
//! ```
//! A frame is frozen once its bytes are there: it is indexed, served and written at the same time.
//! Bytes that are compressed at the origin are unpacked into parts first (`intake.rs`,
//! `unpack.rs`). From then on such a shard is like any other, but its length is known only at its
//! end.
//!
//! Rule: [`WINDOW`](crate::sizes::WINDOW) bounds the frames. A part is requested only if its frame
//! fits the window. The window moves when a part is written and both the indexer and the comparison
//! have passed it. So a slow disk, a slow checksum or a stalled part slows the origin down and
//! never grows memory.

mod allotment;
mod bytes;
mod commits;
mod compare;
mod endpoints;
mod flights;
mod indexing;
mod intake;
mod landing;
mod pace;
mod record;
mod starts;
mod target;
mod unpack;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime};

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::{Origin, Sidecar};
use forebay_source::{RangeRead, Rank, Source, Stat};
use forebay_uring::{Arena, Frozen};
use tokio::sync::SetOnce;
use tokio::task::JoinSet;

use crate::compression::Compression;
use crate::counters::Tally;
use crate::device;
use crate::journal::{FetchStep, Journal};
use crate::parts::{Parts, abandoned};
use crate::shard::Growth;
use crate::shares::CurrentShares;
use crate::sizes::PART_BYTES;
pub(crate) use allotment::Allotment;
use commits::ToCommit;
pub(crate) use endpoints::WATCHED;
pub use flights::Fills;
pub(crate) use flights::{FillSize, Flights, Running};
pub use pace::gave_way;
pub use starts::FirstBatchWait;
use target::opened;
pub(crate) use target::{DataFile, DiskTarget, Target};

/// The part of a tier that uncommitted shards may take while commits wait. They cannot be evicted,
/// so a small tier would keep fetches waiting for room.
const OF_TIER: u64 = 8;

/// A fill: one shard on its way to a tier, or past all of them.
pub(crate) struct Fill {
    pub(crate) request: FillRequest,
    pub(crate) destination: Destination,
    pub(crate) accounting: Accounting,
    pub(crate) parts: Arc<Parts>,
    pub(crate) growth: Growth,
    /// Compression of the origin's bytes, once known.
    form: SetOnce<Option<Compression>>,
    /// Bytes of a small shard, which its commit writes.
    unwritten: OnceLock<Unwritten>,
    /// Requests that wait for their bytes.
    asking: AtomicUsize,
    /// The failed checksum of the whole, the stream's own or the origin's: no byte can be trusted.
    pub(crate) untrusted: OnceLock<Error>,
}

/// The shard that a fill fetches, and the request behind it.
pub(crate) struct FillRequest {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) stat: Stat,
    pub(crate) origin: Origin,
    /// The tenant whose job brought the shard in.
    pub(crate) tenant: Option<String>,
    /// Urgency, and the job that asks.
    pub(crate) rank: Rank,
    /// First bytes that are already on their way.
    pub(crate) head: Mutex<Option<Box<dyn RangeRead>>>,
    /// Arrival time on this node, if the shard comes from another tier.
    pub(crate) since: Option<SystemTime>,
}

/// The place where a fill puts its bytes.
pub(crate) struct Destination {
    pub(crate) target: Target,
    /// Memory for parts: the daemon's frames, or the memory they stay in.
    pub(crate) frames: Arena,
    /// The daemon's frames, for bytes that are not kept.
    pub(crate) spare: Arena,
    /// Bytes reserved on the tier, if there is one.
    pub(crate) allotment: Option<Arc<dyn Allotment>>,
    /// Name of the tier.
    pub(crate) tier: Option<Arc<str>>,
    /// True if the tier lies on a disk, which writing wears.
    pub(crate) wears: bool,
    /// Reason why the target takes no more bytes. The fill goes on without it: waiting readers get
    /// their samples, but nothing is kept.
    pub(crate) fault: Arc<OnceLock<Error>>,
}

/// Counters of a fill, and the counters and limits it shares with others.
pub(crate) struct Accounting {
    /// Length of the origin's object; of a stream, the bytes received so far.
    pub(crate) origin_len: AtomicU64,
    /// Bytes that came out of a compressed shard.
    pub(crate) unpacked: AtomicU64,
    /// Bytes that this fill wrote.
    pub(crate) written: Arc<AtomicU64>,
    /// Counters of the tier.
    pub(crate) tally: Option<Arc<Tally>>,
    /// Rate limits of data sets; none for a move between tiers.
    pub(crate) rates: Option<Arc<CurrentShares>>,
    /// Journal that announces arriving bytes.
    pub(crate) journal: Journal,
}

/// The only part of a small shard, before its commit.
struct Unwritten {
    /// The part, padded to the disk's blocks.
    bytes: Frozen,
    /// Bytes of the shard in it.
    held: usize,
    /// Checksum of those.
    crc32c: u32,
}

/// Fails the parts on drop, however the fill ends: a thread that waits for a part hears of it even
/// if the fill is gone.
struct FailOnDrop(Option<Arc<Parts>>);

impl Drop for FailOnDrop {
    fn drop(&mut self) {
        if let Some(parts) = self.0.take() {
            parts.fail(&abandoned());
        }
    }
}

/// Marks the end of all writes on drop.
struct EndOnDrop(Arc<Parts>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Checks that a write at `offset` wrote all of its bytes.
fn check_written(offset: u64, len: usize, written: usize) -> Result<()> {
    match written == len {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::Unavailable, "the tier wrote only part of the bytes")
            .at("offset", offset)
            .at("written", written)),
    }
}

/// Checks that the target still counts: after a call that was not answered in time, the shard may
/// be gone from its tier, or on its way there again.
fn check_in_time(fault: &OnceLock<Error>) -> Result<()> {
    fault.get().cloned().map_or(Ok(()), Err)
}

impl Accounting {
    /// Counters of a fill that begins now.
    pub(crate) fn new(
        origin_len: u64,
        tally: Option<Arc<Tally>>,
        rates: Option<Arc<CurrentShares>>,
        journal: Journal,
    ) -> Self {
        Self {
            origin_len: AtomicU64::new(origin_len),
            unpacked: AtomicU64::new(0),
            written: Arc::default(),
            tally,
            rates,
            journal,
        }
    }
}

impl Fill {
    pub(crate) fn new(
        request: FillRequest,
        destination: Destination,
        accounting: Accounting,
        parts: Arc<Parts>,
        growth: Growth,
    ) -> Arc<Self> {
        Arc::new(Self {
            request,
            destination,
            accounting,
            parts,
            growth,
            form: SetOnce::new(),
            unwritten: OnceLock::new(),
            asking: AtomicUsize::new(0),
            untrusted: OnceLock::new(),
        })
    }

    /// Size class of the fill, by what is known before its first byte.
    pub(crate) fn size(&self) -> FillSize {
        FillSize::of(&self.request.stat, self.url())
    }

    pub(crate) fn url(&self) -> &str {
        &self.request.origin.url
    }

    /// Fetches the shard. At the end it is indexed, and its copy is durable unless the target
    /// failed ([`Destination::fault`]).
    pub(crate) async fn run(self: &Arc<Self>, running: &mut Running<'_>) -> Result<()> {
        let _fail_on_drop = FailOnDrop(Some(self.parts.clone()));
        let end = EndOnDrop(self.parts.clone());
        let (transferred, compared, indexed) =
            tokio::join!(self.transfer(running), self.compare(), self.index());
        // A malformed tar fails both; the indexer knows the reason.
        let came = match (indexed, transferred) {
            (Err(error), _) if error.kind() == ErrorKind::Corrupt => Err(error),
            (_, Err(error)) | (Err(error), _) => Err(error),
            (Ok(()), Ok(())) => compared,
        };
        if let Err(error) = came {
            if error.kind() == ErrorKind::Corrupt {
                // Samples before the fault are good, and may be read from the tier.
                self.write_unwritten().await;
            }
            return Err(error);
        }
        drop(end);
        // Readers that have all samples do not wait for the disk.
        self.growth.mark_good();
        let since = Instant::now();
        // The next fill runs meanwhile: for small shards the syncs take most of the time.
        let _committing = running.commit(self.to_commit()).await?;
        self.growth.mark_fetched();
        if let (Target::Disk(disk), None) = (&self.destination.target, self.destination.fault.get())
            && let Err(error) = self.commit(disk).await
        {
            self.abandon_target(error);
        }
        if let Some(Unwritten { crc32c, .. }) = self.unwritten.get() {
            self.note_kept(0, *crc32c);
        }
        if let (Some(tier), None, None) =
            (&self.destination.tier, self.destination.fault.get(), self.request.since)
        {
            self.accounting.journal.tell(self.url(), since, || FetchStep::Kept(tier.clone()));
        }
        Ok(())
    }

    /// Makes the shard visible on its tier.
    async fn commit(&self, disk: &DiskTarget) -> Result<()> {
        self.check_answers()?;
        let len = self.parts.len();
        // A truncation that changes nothing would still change the inode.
        let has_padding = self.has_padding(disk);
        let (origin, tenant) = (self.request.origin.clone(), self.request.tenant.clone());
        let index = self.growth.index().index();
        let unwritten = self.unwritten.get();
        let blocks = match unwritten {
            Some(Unwritten { crc32c, .. }) => vec![*crc32c],
            // Every part is written by now.
            None => self.parts.sums().into_iter().flatten().collect(),
        };
        let origin_len = self.accounting.origin_len.load(Ordering::Relaxed);
        let compressed_len = self.growth.is_unpacked().then_some(origin_len);
        let sidecar = Sidecar { origin, tenant, len, compressed_len, blocks, index };
        let since = self.request.since;
        let bytes = match unwritten {
            Some(unwritten) => Some(disk.permit(unwritten.bytes.clone()).await?),
            None => None,
        };
        let (place, file) = (disk.place().await?, disk.file.clone());
        let fault = self.destination.fault.clone();
        disk.on_disk(move |directory, name| {
            check_in_time(&fault)?;
            if let Some(bytes) = bytes {
                bytes.store(directory, name, &place, &file)?;
            }
            if has_padding {
                directory.trim(name, len)?;
            }
            place.sync_data(opened(&file)?)?;
            drop(place);
            check_in_time(&fault)?;
            directory.commit(name, &sidecar, since)
        })
        .await?;
        if let Some(Unwritten { held, .. }) = unwritten {
            self.count_written(*held as u64);
        }
        Ok(())
    }

    /// Checks that the device of the tier answers: others wait for the turn, and for what this one
    /// would wait for.
    fn check_answers(&self) -> Result<()> {
        match self.destination.allotment.as_ref().is_some_and(|allotment| allotment.is_silent()) {
            true => Err(device::silent()),
            false => Ok(()),
        }
    }

    /// Writes the bytes of a small shard that is not committed.
    async fn write_unwritten(&self) {
        let Some(Unwritten { bytes, held, crc32c }) = self.unwritten.get() else { return };
        let why_not = self.destination.fault.get().or_else(|| self.untrusted.get());
        if let (Target::Disk(disk), None) = (&self.destination.target, why_not) {
            let fault = self.destination.fault.clone();
            let written = async {
                self.check_answers()?;
                let bytes = disk.permit(bytes.clone()).await?;
                let (place, file) = (disk.place().await?, disk.file.clone());
                disk.on_disk(move |directory, name| {
                    check_in_time(&fault)?;
                    bytes.store(directory, name, &place, &file)
                })
                .await
            };
            match written.await {
                Ok(()) => self.count_written(*held as u64),
                // Then the tier does not keep the shard.
                Err(error) => self.abandon_target(error),
            }
        }
        self.note_kept(0, *crc32c);
    }

    /// Creates the file of a shard that its commit does not write after all.
    async fn create_file(&self) {
        let len = self.destination.allotment.as_ref().map_or(0, |allotment| allotment.bytes());
        if let (Target::Disk(disk), None) = (&self.destination.target, self.destination.fault.get())
            && let Err(error) = disk.created(len, self.destination.fault.clone()).await
        {
            self.abandon_target(error);
        }
    }

    /// Returns what the shard holds until its commit.
    fn to_commit(&self) -> ToCommit {
        let allotment = self.destination.allotment.as_ref();
        ToCommit {
            bytes: self.parts.len(),
            room: allotment.map_or(0, |allotment| allotment.capacity()) / OF_TIER,
            memory: self.unwritten.get().map_or(0, |unwritten| unwritten.bytes.len()),
            has_file: matches!(&self.destination.target, Target::Disk(disk) if disk.opened().is_ok()),
        }
    }

    /// Returns true if the file may be longer than the shard: the last write reached beyond it, an
    /// earlier fill wrote it, or the length it was created with was an estimate.
    fn has_padding(&self, disk: &DiskTarget) -> bool {
        let (len, is_resumed) = (self.parts.len(), !disk.here.is_empty());
        let is_padded = disk.padded(len) != disk.directory.stored_len(len);
        is_padded || is_resumed || self.growth.is_unpacked()
    }

    /// Tells waiting readers why no more samples come, and readers of earlier samples if those were
    /// wrong.
    pub(crate) fn fail(&self, error: &Error) {
        self.growth.fail(error, self.untrusted.get());
    }

    /// Marks all bytes as untrusted, for this reason. Readers hear of it once the copy is off the
    /// tier.
    fn distrust(&self, why: &Error) {
        // The first reason counts.
        let _: Result<(), _> = self.untrusted.set(why.clone());
    }

    /// Stops writing to the target: from now on the fill only passes samples on.
    fn abandon_target(&self, error: Error) {
        // The first reason counts.
        let is_first = self.destination.fault.set(error.at("url", self.url())).is_ok();
        // Readers cannot read earlier parts from the origin: the shard has to begin anew.
        if let Some(allotment) = &self.destination.allotment
            && is_first
            && self.growth.is_unpacked()
        {
            allotment.abandon();
        }
    }

    async fn transfer(self: &Arc<Self>, running: &mut Running<'_>) -> Result<()> {
        if self.growth.is_unpacked() {
            // A move of such a shard, which is never written by its commit.
            self.create_file().await;
        }
        if self.is_here(0) {
            // A resumed part 0 makes the requested first bytes useless.
            self.head().take();
        }
        // Separate tasks: the checksum of one part must not delay the writes of others.
        let mut under_way = JoinSet::new();
        let transferred = self.fetch_all(running, &mut under_way).await;
        // Errors that follow from this one only say that the fill was abandoned.
        let transferred = transferred.map_err(|error| self.parts.fail(&error));
        // Served parts are written to their end: they may be read again.
        while under_way.join_next().await.is_some() {}
        transferred
    }

    fn head(&self) -> MutexGuard<'_, Option<Box<dyn RangeRead>>> {
        self.request.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces bytes that came from the origin, not those of another tier.
    fn announce_fetched(&self, since: Instant, range: Range<u64>) {
        if self.request.since.is_none() && !range.is_empty() {
            self.accounting.journal.tell(self.url(), since, || FetchStep::Fetched(range));
        }
    }

    /// Counts bytes of the origin's object that came in whole parts. Parts that were forgotten
    /// ([`crate::parts`]) count again when they come again.
    fn count_origin_bytes(&self, bytes: u64) {
        if let (Some(tally), None) = (&self.accounting.tally, self.request.since) {
            tally.origin_bytes.add(bytes);
        }
    }

    /// Counts bytes that are stored; only bytes on a disk are billed.
    fn count_written(&self, bytes: u64) {
        self.accounting.written.fetch_add(bytes, Ordering::Relaxed);
        if let Some(tally) = &self.accounting.tally {
            tally.written_bytes.add(bytes);
        }
        if let (Some(bill), true) = (self.request.rank.bill(), self.destination.wears) {
            bill.wrote(bytes);
        }
    }

    /// Offset and length of a part.
    fn extent(&self, part: u64) -> (u64, usize) {
        let offset = part * PART_BYTES as u64;
        let left = usize::try_from(self.request.stat.len - offset).unwrap_or(usize::MAX);
        (offset, left.min(PART_BYTES))
    }

    /// Waits until the rate limits of the asker and of the data set allow `bytes`.
    async fn pay(&self, bytes: u64) {
        self.request.rank.pay(bytes).await;
        if let Some(rates) = &self.accounting.rates {
            // Looked up each time: the rules may have changed.
            rates.current().rate(self.url()).take(bytes).await;
        }
    }
}
