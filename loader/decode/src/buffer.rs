//! Memory of tensors: 64-byte aligned, writable, recycled.
//!
//! A dropped buffer returns to its pool, and the pool never keeps more idle bytes or buffers
//! than its limits. A batch of 256 float32 images of 224 pixels is 154 MB; fresh memory for every
//! batch would fault in 37 000 pages each time.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{Pod, Zeroable};
use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::fork::Generation;

/// Alignment required by DLPack consumers and the widest vector loads, and one cache line.
const ALIGN: usize = 64;

/// An idle buffer serves a request of at least half its size; a larger one would pin memory that
/// the request never touches.
const WASTE_MAX: usize = 2;

/// Idle buffers kept, however small: two columns of differing arrays in each of eight batches of
/// 1024 samples. More would be bookkeeping (some 100 bytes each) that no batch uses.
const IDLE_COUNT_MAX: usize = 16 << 10;

/// One cache line, so that a vector of them is aligned without unsafe code.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGN]);

const _: () = assert!(size_of::<Line>() == ALIGN && align_of::<Line>() == ALIGN);

/// Pool of [`Buffer`]s. Clones share one pool.
#[derive(Clone)]
pub struct BufferPool(Arc<Shared>);

struct Shared {
    idle_max: usize,
    made_in: Generation,
    idle: Mutex<Idle>,
}

/// Idle buffers, found by size and released by age.
#[derive(Default)]
struct Idle {
    /// By length in lines, then age: a request finds its size at once.
    buffers: BTreeMap<(usize, u64), Vec<Line>>,
    /// Lengths by age, the oldest first.
    ages: BTreeMap<u64, usize>,
    /// Age of the next buffer; ages count up.
    next_age: u64,
    bytes: usize,
}

impl BufferPool {
    /// Makes a pool that keeps at most `idle_max` bytes of idle buffers.
    #[must_use]
    pub fn new(idle_max: usize) -> Self {
        Self(Arc::new(Shared { idle_max, made_in: Generation::now(), idle: Mutex::default() }))
    }

    /// Takes a buffer of `len` bytes with unspecified contents: zeros, or an earlier user's.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] when the system has no such memory.
    pub fn take(&self, len: usize) -> Result<Buffer> {
        let lines = len.div_ceil(ALIGN);
        let lines = match self.0.idle().reuse(lines) {
            Some(lines) => lines,
            None => bytemuck::try_zeroed_vec(lines).map_err(|()| {
                Error::new(ErrorKind::Full, "no memory is left for the decoded batch")
                    .at("bytes", len)
                    .advise("use a smaller batch_size, size or dtype, or more memory")
            })?,
        };
        Ok(Buffer { lines, len, home: self.0.clone() })
    }

    /// Returns the bytes of idle buffers.
    #[must_use]
    pub fn idle_bytes(&self) -> usize {
        self.0.idle().bytes
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle_bytes = self.idle_bytes();
        f.debug_struct("BufferPool").field("idle_bytes", &idle_bytes).finish_non_exhaustive()
    }
}

impl Shared {
    fn idle(&self) -> std::sync::MutexGuard<'_, Idle> {
        // Each update below is complete wherever it could panic: a poisoned list is whole.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `lines` for a later request.
    fn keep(&self, lines: Vec<Line>) {
        if lines.is_empty() || size_of_val(&lines[..]) > self.idle_max {
            return;
        }
        // In a forked child a thread that does not exist there may hold the lock for ever.
        if !self.made_in.is_now() {
            return;
        }
        // Frees memory after releasing the lock.
        let _old = self.idle().keep(lines, self.idle_max);
    }
}

impl Idle {
    /// Takes the smallest buffer that fits without waste.
    fn reuse(&mut self, lines: usize) -> Option<Vec<Line>> {
        let fitting = (lines, 0)..=(lines.saturating_mul(WASTE_MAX), u64::MAX);
        let (&(lines, age), _) = self.buffers.range(fitting).next()?;
        self.remove(lines, age)
    }

    /// Adds `lines` and returns the longest idle buffers to make room, since their size is out of
    /// use.
    fn keep(&mut self, lines: Vec<Line>, bytes_max: usize) -> Vec<Vec<Line>> {
        let mut old = Vec::new();
        let bytes = size_of_val(&lines[..]);
        while self.bytes + bytes > bytes_max || self.buffers.len() >= IDLE_COUNT_MAX {
            let Some((&age, &lines)) = self.ages.first_key_value() else { break };
            old.extend(self.remove(lines, age));
        }
        self.ages.insert(self.next_age, lines.len());
        self.bytes += bytes;
        self.buffers.insert((lines.len(), self.next_age), lines);
        self.next_age += 1;
        old
    }

    fn remove(&mut self, lines: usize, age: u64) -> Option<Vec<Line>> {
        self.ages.remove(&age);
        let buffer = self.buffers.remove(&(lines, age))?;
        self.bytes -= size_of_val(&buffer[..]);
        Some(buffer)
    }
}

/// Writable memory, aligned to 64 bytes, that returns to its pool when dropped.
pub struct Buffer {
    lines: Vec<Line>,
    len: usize,
    home: Arc<Shared>,
}

impl Buffer {
    /// Returns its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    /// Returns its bytes for writing.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }

    /// Returns its address, which is stable while the buffer lives, wherever it moves.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.lines.as_ptr().cast()
    }

    /// Returns its address for writing by a new owner (DLPack).
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }

    /// Shortens it to `len` bytes; the memory stays.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.keep(std::mem::take(&mut self.lines));
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_buffer_is_reused_for_the_same_size() {
        let pool = BufferPool::new(1 << 20);
        let mut first = pool.take(1000).unwrap();
        first.as_bytes_mut()[999] = 7;
        let at = first.as_ptr();
        assert_eq!(at as usize % ALIGN, 0);
        drop(first);
        assert_eq!(pool.idle_bytes(), 1024);
        let second = pool.take(900).unwrap();
        assert_eq!((second.as_ptr(), second.len()), (at, 900));
        assert_eq!(pool.idle_bytes(), 0);
    }

    #[test]
    fn small_request_does_not_take_a_large_buffer() {
        let pool = BufferPool::new(1 << 20);
        drop(pool.take(64 * 100).unwrap());
        let small = pool.take(64 * 49).unwrap();
        assert_eq!(pool.idle_bytes(), 64 * 100);
        drop(small);
        drop(pool.take(64 * 50).unwrap());
        assert_eq!(pool.idle_bytes(), 64 * 149);
    }

    #[test]
    fn idle_bytes_stay_within_the_limit_oldest_freed_first() {
        let pool = BufferPool::new(64 * 10);
        let many: Vec<_> = (1..=8).map(|lines| pool.take(64 * lines).unwrap()).collect();
        for buffer in many {
            drop(buffer);
            assert!(pool.idle_bytes() <= 64 * 10);
        }
        assert_eq!(pool.idle_bytes(), 64 * 8, "only the last, largest one is left");
        drop(pool.take(64 * 11).unwrap());
        assert_eq!(pool.idle_bytes(), 64 * 8, "one above the limit is never kept");
    }

    #[test]
    fn smallest_fitting_idle_buffer_is_taken() {
        let pool = BufferPool::new(1 << 30);
        let many: Vec<_> = (1..=300).map(|lines| pool.take(64 * lines).unwrap()).collect();
        let at: Vec<_> = many.iter().map(Buffer::as_ptr).collect();
        drop(many);
        for lines in [200, 7, 151] {
            let exact = pool.take(64 * lines - 1).unwrap();
            assert_eq!(exact.as_ptr(), at[lines - 1]);
            let next = pool.take(64 * lines).unwrap();
            assert_eq!(next.as_ptr(), at[lines], "the exact one is in use");
        }
    }

    #[test]
    fn idle_buffers_are_limited_and_the_oldest_dropped() {
        let pool = BufferPool::new(1 << 30);
        let first = pool.take(64 * 50).unwrap();
        let many: Vec<_> = (0..IDLE_COUNT_MAX).map(|_| pool.take(1).unwrap()).collect();
        drop(first);
        drop(many);
        assert_eq!(pool.idle_bytes(), 64 * IDLE_COUNT_MAX, "all but the oldest");
        let idle = pool.0.idle();
        assert_eq!((idle.buffers.len(), idle.ages.len()), (IDLE_COUNT_MAX, IDLE_COUNT_MAX));
    }

    #[test]
    fn forked_child_does_not_use_its_parents_pool() {
        let idle = Mutex::default();
        let made_in = Generation::now().child();
        let pool = BufferPool(Arc::new(Shared { idle_max: 1 << 20, made_in, idle }));
        drop(pool.take(64).unwrap());
        // Returning a buffer there takes the lock.
        assert_eq!(pool.0.idle().bytes, 0);
    }

    #[test]
    fn failed_allocation_is_full_without_panic() {
        for len in [usize::MAX, usize::MAX / 2, 1 << 56] {
            let error = BufferPool::new(64).take(len).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full);
            assert_eq!(error.place("bytes"), Some(len.to_string().as_str()));
        }
    }

    #[test]
    fn empty_buffer_needs_no_memory() {
        let pool = BufferPool::new(64);
        let mut empty = pool.take(0).unwrap();
        assert!(empty.is_empty() && empty.as_bytes_mut().is_empty());
    }
}
