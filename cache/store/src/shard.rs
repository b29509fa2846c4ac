//! One shard in use: arriving or whole, its index, and reads of its records.
//!
//! One rule: while anybody holds a [`Lease`] its file is not evicted under them, and whoever waits
//! for room hears of its end. Holders keep it for a read, never for an epoch.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::checksum::crc32c;
use forebay_shard::{Index, Member};
use forebay_uring::{DiskFile, Engine, Read, Span};
use tokio::sync::watch;

use crate::budget::{Budget, Space};
use crate::directory::ShardName;
use crate::fill::{self, Parts};

/// How far a shard is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Samples complete so far.
    pub samples: u64,
    /// True once `samples` is the shard's count.
    pub counted: bool,
    /// Why no more will come, if none will.
    pub failed: Option<Error>,
}

/// A shard's growing index and who waits for it.
#[derive(Debug, Clone)]
pub(crate) struct Growth {
    index: Arc<RwLock<Index>>,
    progress: Arc<watch::Sender<Progress>>,
}

impl Growth {
    pub(crate) fn new() -> Self {
        Self { index: Arc::default(), progress: Arc::new(watch::Sender::default()) }
    }

    /// A whole index at once.
    pub(crate) fn whole(index: Index) -> Self {
        let progress =
            Progress { samples: index.samples.len() as u64, counted: true, failed: None };
        Self {
            index: Arc::new(RwLock::new(index)),
            progress: Arc::new(watch::Sender::new(progress)),
        }
    }

    /// Takes over sample `at` of the indexer's own index, and everything before it.
    pub(crate) fn add(&self, from: &Index, at: usize) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        copy_upto(&mut index, from, at + 1);
        let samples = index.samples.len() as u64;
        drop(index);
        self.progress.send_modify(|progress| progress.samples = samples);
    }

    /// The indexer saw the archive's end.
    pub(crate) fn counted(&self, from: &Index) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        copy_upto(&mut index, from, from.samples.len());
        drop(index);
        self.progress.send_modify(|progress| progress.counted = true);
    }

    pub(crate) fn fail(&self, error: &Error) {
        self.progress.send_modify(|progress| progress.failed = Some(error.clone()));
    }

    pub(crate) fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn copy_upto(to: &mut Index, from: &Index, samples: usize) {
    to.fields.extend_from_slice(&from.fields[to.fields.len()..]);
    to.samples.extend_from_slice(&from.samples[to.samples.len()..samples]);
    let members = to.samples.last().map_or(0, |sample| sample.members.end as usize);
    to.members.extend_from_slice(&from.members[to.members.len()..members]);
}

/// What reads of all shards of a store share.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) tier_bytes: AtomicU64,
    pub(crate) copied_bytes: AtomicU64,
    /// Set by a test: from now on a copy is a bug.
    pub(crate) no_copies: AtomicBool,
}

/// The right to a shard's file, until dropped.
#[derive(Debug)]
pub struct Lease {
    // Dropped in this order: the count is down when waiters look again.
    shard: Arc<Shard>,
    _end: EndOfLease,
}

#[derive(Debug)]
struct EndOfLease(Arc<Budget>);

impl Drop for EndOfLease {
    fn drop(&mut self) {
        self.0.wake();
    }
}

impl Lease {
    pub(crate) fn new(shard: Arc<Shard>, budget: &Arc<Budget>) -> Self {
        Self { shard, _end: EndOfLease(budget.clone()) }
    }
}

impl Deref for Lease {
    type Target = Shard;

    fn deref(&self) -> &Shard {
        &self.shard
    }
}

/// A shard in use.
#[derive(Debug)]
pub struct Shard {
    pub(crate) name: ShardName,
    pub(crate) url: String,
    pub(crate) len: u64,
    pub(crate) growth: Growth,
    pub(crate) engine: Engine,
    pub(crate) file: DiskFile,
    /// The fill's frames while it runs.
    pub(crate) parts: Mutex<Option<Arc<Parts>>>,
    pub(crate) traffic: Arc<Traffic>,
    /// Held for as long as the file may be open, and what tells this copy from its successors.
    pub(crate) space: Arc<Space>,
}

impl Shard {
    /// Its name on the tier.
    #[must_use]
    pub fn name(&self) -> &ShardName {
        &self.name
    }

    /// Where it comes from.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes at all (never: a tar has end blocks).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What is known of its samples now.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.growth.progress.borrow().clone()
    }

    /// Waits until at least `samples` samples are complete, or all there are.
    ///
    /// # Errors
    /// What ended the fill, if it ended early.
    pub async fn wait(&self, samples: u64) -> Result<Progress> {
        let mut watch = self.growth.progress.subscribe();
        let enough = |p: &Progress| p.samples >= samples || p.counted || p.failed.is_some();
        let progress = watch.wait_for(enough).await.map(|progress| progress.clone());
        match progress {
            Ok(Progress { failed: Some(error), samples: have, .. }) if have < samples => Err(error),
            Ok(progress) => Ok(progress),
            Err(_) => Err(Error::new(ErrorKind::Closed, "the fill was given up")),
        }
    }

    /// The index as far as it is known. Held for look-ups only: the indexer waits for it.
    pub fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.growth.index()
    }

    /// The bytes on disk that a read of `range` transfers: `range` grown to the device's alignment.
    #[must_use]
    pub fn footprint(&self, range: &Range<u64>) -> Range<u64> {
        let align = self.alignment();
        range.start / align * align..range.end.next_multiple_of(align)
    }

    /// Reads ranges, each into a span as long as its footprint. What failed shows when a member of
    /// it is checked; the span comes back either way.
    ///
    /// Ranges whose frames are still in memory are copied from them; all others go to the disk
    /// together.
    pub async fn read(&self, wanted: Vec<(Range<u64>, Span)>) -> Vec<Placed> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut placed = Vec::with_capacity(wanted.len());
        let mut reads = Vec::new();
        let mut pending = Vec::new();
        for (range, mut span) in wanted {
            let footprint = self.footprint(&range);
            if let Some(frames) = parts.as_ref().and_then(|parts| parts.held(&range)) {
                self.copy(&frames, &range, footprint.start, &mut span);
                let start = footprint.start;
                placed.push(Some(Placed { span, start, from_tier: false, outcome: Ok(()) }));
            } else {
                pending.push((placed.len(), footprint.start, range.end));
                reads.push(Read { file: self.file.clone(), offset: footprint.start, into: span });
                placed.push(None);
            }
        }
        for (operation, (at, start, end)) in self.engine.read_many(reads).into_iter().zip(pending) {
            let done = operation.await;
            let outcome = done.result.and_then(|transferred| {
                self.traffic.tier_bytes.fetch_add(transferred as u64, Ordering::Relaxed);
                if start + (transferred as u64) < end {
                    let error = Error::new(ErrorKind::Corrupt, "the copy on the tier is cut");
                    return Err(error.at("offset", start + transferred as u64));
                }
                Ok(())
            });
            placed[at] = Some(Placed { span: done.span, start, from_tier: true, outcome });
        }
        placed.into_iter().flatten().collect()
    }

    fn copy(&self, frames: &[Arc<fill::Frame>], range: &Range<u64>, start: u64, span: &mut Span) {
        assert!(
            !self.traffic.no_copies.load(Ordering::Relaxed),
            "a payload byte was copied where a test forbids it"
        );
        let from = usize::try_from(range.start - start).expect("within the alignment");
        let len = usize::try_from(range.end - range.start).expect("within a span");
        fill::copy(frames, range, &mut span[from..from + len]);
        self.traffic.copied_bytes.fetch_add(len as u64, Ordering::Relaxed);
    }

    /// What offsets and lengths of reads on the tier are multiples of, in bytes.
    #[must_use]
    pub fn alignment(&self) -> u64 {
        let alignment = self.file.alignment();
        alignment.offset.max(alignment.memory) as u64
    }
}

/// Bytes of a shard in a span, not yet checked.
#[derive(Debug)]
pub struct Placed {
    span: Span,
    /// The shard's offset of the span's first byte.
    start: u64,
    from_tier: bool,
    outcome: Result<()>,
}

impl Placed {
    /// Where `member`'s data lies in the span's region, once its checksum is confirmed.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not those the indexer saw, or what the read failed with.
    pub fn check(&self, member: &Member) -> Result<usize> {
        self.outcome.clone()?;
        let from = usize::try_from(member.offset - self.start).unwrap_or(usize::MAX);
        let len = usize::try_from(member.len).unwrap_or(usize::MAX);
        let bytes = from.checked_add(len).and_then(|end| self.span.get(from..end));
        match bytes {
            Some(bytes) if crc32c(bytes) == member.crc32c => Ok(self.span.offset() + from),
            _ => Err(Error::new(ErrorKind::Corrupt, "a member differs from what the origin sent")
                .at("offset", member.offset)),
        }
    }

    /// Whether the bytes came from the tier, not from frames of a running fill.
    #[must_use]
    pub fn from_tier(&self) -> bool {
        self.from_tier
    }

    /// The memory, to be kept for as long as the bytes are in use.
    #[must_use]
    pub fn into_span(self) -> Span {
        self.span
    }
}
