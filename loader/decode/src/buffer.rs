//! The memory tensors live in: 64-byte aligned, writable, recycled.
//!
//! Its rule: a buffer goes back to its pool when dropped, and the pool never keeps more idle bytes
//! than its limit. A batch of 256 float32 images of 224 pixels is 154 MB; taking it fresh from the
//! system for every batch would fault in 37 000 pages each time.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{Pod, Zeroable};

/// What DLPack consumers and the widest vector loads ask for, and one cache line.
const ALIGN: usize = 64;

/// An idle buffer serves a request that needs at least a half of it; a larger one would pin memory
/// that the request never touches.
const WASTE_MAX: usize = 2;

/// One cache line: what makes a vector of them aligned without a line of unsafe code.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGN]);

const _: () = assert!(size_of::<Line>() == ALIGN && align_of::<Line>() == ALIGN);

/// Hands out [`Buffer`]s and takes them back. Clones share one pool.
#[derive(Clone)]
pub struct BufferPool(Arc<Shared>);

struct Shared {
    idle_max: usize,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    buffers: VecDeque<Vec<Line>>,
    bytes: usize,
}

impl BufferPool {
    /// A pool that keeps at most `idle_max` bytes of buffers nobody uses.
    #[must_use]
    pub fn new(idle_max: usize) -> Self {
        Self(Arc::new(Shared { idle_max, idle: Mutex::default() }))
    }

    /// A buffer of `len` bytes whose contents are unspecified: zeros, or what an earlier user left.
    #[must_use]
    pub fn take(&self, len: usize) -> Buffer {
        let lines = len.div_ceil(ALIGN);
        let lines = self.0.reuse(lines).unwrap_or_else(|| bytemuck::zeroed_vec(lines));
        Buffer { lines, len, home: self.0.clone() }
    }

    /// Bytes of idle buffers kept now.
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
        // Each update below is complete at every point where it could panic: a poisoned list is whole.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The smallest idle buffer that fits without waste.
    fn reuse(&self, lines: usize) -> Option<Vec<Line>> {
        let mut idle = self.idle();
        let fits = |have: usize| have >= lines && have <= lines.saturating_mul(WASTE_MAX);
        let best = (0..idle.buffers.len())
            .filter(|&i| fits(idle.buffers[i].len()))
            .min_by_key(|&i| idle.buffers[i].len())?;
        let buffer = idle.buffers.remove(best)?;
        idle.bytes -= buffer.len() * ALIGN;
        Some(buffer)
    }

    /// Keeps `lines` for a later request; the longest idle make room, for their size has gone out
    /// of use.
    fn keep(&self, lines: Vec<Line>) {
        let bytes = lines.len() * ALIGN;
        if bytes == 0 || bytes > self.idle_max {
            return;
        }
        let mut idle = self.idle();
        while idle.bytes + bytes > self.idle_max {
            let Some(oldest) = idle.buffers.pop_front() else { break };
            idle.bytes -= oldest.len() * ALIGN;
        }
        idle.bytes += bytes;
        idle.buffers.push_back(lines);
    }
}

/// Writable memory, aligned to 64 bytes, that returns to its pool when dropped.
pub struct Buffer {
    lines: Vec<Line>,
    len: usize,
    home: Arc<Shared>,
}

impl Buffer {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no byte at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    /// Its bytes, to be written.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }

    /// Where it starts: stable while the buffer lives, however often it is moved.
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.lines.as_ptr().cast()
    }

    /// Where it starts, to be written through by whoever takes the buffer over (DLPack).
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }

    /// Gives up the bytes after the first `len`; the memory itself stays.
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
    fn a_dropped_buffer_serves_the_next_request_of_its_size() {
        let pool = BufferPool::new(1 << 20);
        let mut first = pool.take(1000);
        first.as_bytes_mut()[999] = 7;
        let at = first.as_ptr();
        assert_eq!(at as usize % ALIGN, 0);
        drop(first);
        assert_eq!(pool.idle_bytes(), 1024);
        let second = pool.take(900);
        assert_eq!((second.as_ptr(), second.len()), (at, 900));
        assert_eq!(pool.idle_bytes(), 0);
    }

    #[test]
    fn a_small_request_leaves_a_large_buffer_alone() {
        let pool = BufferPool::new(1 << 20);
        drop(pool.take(64 * 100));
        let small = pool.take(64 * 49);
        assert_eq!(pool.idle_bytes(), 64 * 100);
        drop(small);
        drop(pool.take(64 * 50));
        assert_eq!(pool.idle_bytes(), 64 * 149);
    }

    #[test]
    fn idle_bytes_stay_within_the_limit_and_the_oldest_go_first() {
        let pool = BufferPool::new(64 * 10);
        let many: Vec<_> = (1..=8).map(|lines| pool.take(64 * lines)).collect();
        for buffer in many {
            drop(buffer);
            assert!(pool.idle_bytes() <= 64 * 10);
        }
        assert_eq!(pool.idle_bytes(), 64 * 8, "only the last, largest one is left");
        drop(pool.take(64 * 11));
        assert_eq!(pool.idle_bytes(), 64 * 8, "one above the limit is never kept");
    }

    #[test]
    fn no_bytes_need_no_memory() {
        let pool = BufferPool::new(64);
        let mut empty = pool.take(0);
        assert!(empty.is_empty() && empty.as_bytes_mut().is_empty());
    }
}
