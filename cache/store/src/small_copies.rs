//! Copies of small shards in memory that no fill needs now.
//!
//! Shuffled samples are read one by one. Of a shard of captions or labels that is 4 KiB of the
//! device for each few hundred bytes, and a joined sample has one such read more. The device's
//! reads in a second, not its bytes, then limit the job. So a small shard that is read often is
//! read once more, whole, and its samples are copied out of that.
//!
//! The memory is that of frames, which fills use only while shards arrive. A fill that finds none
//! free takes it back, that of the least recently read shard first.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_uring::{Arena, Frozen, Reclaim, Span};
use lru::LruCache;

use crate::sizes::PART_BYTES;

/// Largest shard that is copied: a frame.
pub(crate) const COPIED_BYTES: u64 = PART_BYTES as u64;

/// Bytes of one long read that cost as much as one short read: 2 GB/s and 30 µs of a core and of
/// the device. Once the short reads cost as much as the copy, it is made. So whatever comes, all
/// reads cost at most twice of the best choice.
const READ_WORTH: u64 = 64 << 10;

/// Fewest reads before a copy: shards of a few samples are read a few times an epoch.
const READS_LEAST: u64 = 32;

/// Copies of all small shards.
pub(crate) struct SmallCopies {
    frames: Arena,
    held: Mutex<HeldCopies>,
    next: AtomicU64,
}

/// Copies that are held now.
struct HeldCopies {
    /// By the number of their shard's [`SmallCopy`].
    copies: LruCache<u64, Frozen>,
    /// Their bytes.
    bytes: usize,
}

/// The copy of one open shard, if there is one.
pub(crate) struct SmallCopy {
    copies: Arc<SmallCopies>,
    number: u64,
    /// Reads of the device since the shard was opened or last copied.
    reads: AtomicU64,
    is_loading: AtomicBool,
}

/// The right to make a copy.
pub(crate) struct Loading<'a>(&'a SmallCopy);

impl SmallCopies {
    pub(crate) fn new(frames: Arena) -> Arc<Self> {
        let held = Mutex::new(HeldCopies { copies: LruCache::unbounded(), bytes: 0 });
        let copies = Arc::new(Self { frames, held, next: AtomicU64::new(0) });
        let holder = Arc::downgrade(&copies);
        copies.frames.reclaim_from(holder);
        copies
    }

    /// Returns the place of a copy of a shard that was opened now.
    pub(crate) fn place(self: &Arc<Self>) -> SmallCopy {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (reads, is_loading) = (AtomicU64::new(0), AtomicBool::new(false));
        SmallCopy { copies: self.clone(), number, reads, is_loading }
    }

    fn held(&self) -> MutexGuard<'_, HeldCopies> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldCopies {
    fn put(&mut self, number: u64, copy: Frozen) {
        self.bytes += copy.len();
        let before = self.copies.put(number, copy);
        self.bytes -= before.map_or(0, |before| before.len());
    }

    fn pop(&mut self, number: u64) -> Option<Frozen> {
        let copy = self.copies.pop(&number)?;
        self.bytes -= copy.len();
        Some(copy)
    }

    fn pop_least_recent(&mut self) -> Option<Frozen> {
        let (_, copy) = self.copies.pop_lru()?;
        self.bytes -= copy.len();
        Some(copy)
    }
}

impl Reclaim for SmallCopies {
    fn reclaim_one(&self) -> bool {
        // Dropped after the unlock: a waiting fill is woken by it.
        let evicted = self.held().pop_least_recent();
        evicted.is_some()
    }

    fn bytes(&self) -> usize {
        self.held().bytes
    }
}

impl SmallCopy {
    /// Returns the bytes, if they are in memory.
    pub(crate) fn bytes(&self) -> Option<Frozen> {
        self.copies.held().copies.get(&self.number).cloned()
    }

    /// Notes reads of the device. Returns the right to make a copy of `len` bytes,
    /// [`COPIED_BYTES`] at most, and memory for it, once it is worth it and there is memory.
    pub(crate) fn note_reads(&self, reads: usize, len: u64) -> Option<(Loading<'_>, Span)> {
        let reads = self.reads.fetch_add(reads as u64, Ordering::Relaxed) + reads as u64;
        let is_due = reads >= READS_LEAST.max(len / READ_WORTH);
        if !is_due || self.is_loading.swap(true, Ordering::Relaxed) {
            return None;
        }
        let loading = Loading(self);
        let memory = self.copies.frames.try_lease(usize::try_from(len).ok()?)?;
        Some((loading, memory))
    }
}

impl Loading<'_> {
    /// Keeps a copy that was read, and returns it.
    pub(crate) fn keep(self, memory: Span) -> Frozen {
        let (copies, bytes) = (&self.0.copies, memory.freeze());
        copies.held().put(self.0.number, bytes.clone());
        if copies.frames.is_awaited() {
            copies.reclaim_one();
        }
        bytes
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        // The next copy must be earned anew.
        self.0.reads.store(0, Ordering::Relaxed);
        self.0.is_loading.store(false, Ordering::Relaxed);
    }
}

impl Drop for SmallCopy {
    fn drop(&mut self) {
        let closed = self.copies.held().pop(self.number);
        drop(closed);
    }
}

impl fmt::Debug for SmallCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmallCopy").field("number", &self.number).finish_non_exhaustive()
    }
}
