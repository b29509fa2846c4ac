//! Device memory, and host memory that a device copies from directly, in recycled blocks.
//!
//! A block knows the event after which the device no longer uses it, and returns to its pool with
//! that event. The pool hands out only blocks whose event is over: a JPEG engine writes when it is
//! called, whatever its stream waits for, and a batch that waits for the memory of the batch before
//! overlaps nothing. The number of blocks is bounded by the batches in flight, which the device
//! limits.

#![allow(unsafe_code, reason = "the driver takes addresses")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::CUresult;
use cudarc::driver::{DriverError, result};
use forebay_error::{Error, ErrorKind, Result};

use super::driver::{Done, Driver, failed};
use super::view::Address;

/// An idle block serves a request of at least half its size.
const WASTE_MAX: usize = 2;

/// Sizes of blocks between a power of two and the next: batches of about the same size share them,
/// for an eighth of their size at most.
const SIZES: usize = 8;

/// Alignment of blocks: enough for the widest loads and any framework.
const ALIGN: usize = 256;

/// Side of the bus that the memory is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Device,
    /// Pinned: a device copies it without the CPU.
    Host,
}

/// Idle blocks of one side. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    driver: Arc<Driver>,
    side: Side,
    idle_max: usize,
    idle: Mutex<Vec<Block>>,
}

/// Use of a block by the device.
#[derive(Debug)]
enum Use {
    None,
    Until(Done),
    /// No event was recorded: after all work of the device.
    Unknown,
}

#[derive(Debug)]
struct Block {
    at: Address,
    len: usize,
    used: Use,
}

/// A block in use.
#[derive(Debug)]
pub(super) struct Memory {
    block: Option<Block>,
    len: usize,
    home: Arc<Shared>,
}

impl Pool {
    /// Makes a pool that keeps at most `idle_max` bytes of idle blocks.
    pub(super) fn new(driver: &Arc<Driver>, side: Side, idle_max: usize) -> Self {
        let idle = Mutex::default();
        Self(Arc::new(Shared { driver: driver.clone(), side, idle_max, idle }))
    }

    /// Takes at least `len` bytes that no device uses.
    ///
    /// # Errors
    /// `Full` if there is no such memory.
    pub(super) fn take(&self, len: usize) -> Result<Memory> {
        let (home, want) = (&self.0, len.max(1).next_multiple_of(ALIGN));
        let block = match home.reuse(want) {
            Some(block) => block,
            None => home.allocate(want.next_multiple_of(step(want)))?,
        };
        // Memory of the host is used once a copy is queued, which says so.
        let used = if home.side == Side::Device { Use::Unknown } else { Use::None };
        let block = Some(Block { used, ..block });
        Ok(Memory { block, len, home: home.clone() })
    }
}

/// Returns the distance between sizes of blocks of about `len` bytes.
fn step(len: usize) -> usize {
    (len.next_power_of_two() / 2 / SIZES).max(ALIGN)
}

impl Shared {
    fn idle(&self) -> MutexGuard<'_, Vec<Block>> {
        // Every change below is complete wherever it could panic.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the smallest block that fits without waste and is no longer in use.
    fn reuse(&self, want: usize) -> Option<Block> {
        let mut idle = self.idle();
        let fits =
            |block: &Block| (want..=want * WASTE_MAX).contains(&block.len) && block.is_free();
        let fitting = idle.iter().enumerate().filter(|(_, block)| fits(block));
        let (at, _) = fitting.min_by_key(|(_, block)| block.len)?;
        Some(idle.remove(at))
    }

    fn allocate(&self, len: usize) -> Result<Block> {
        match self.get(len) {
            Err(_) if !self.idle().is_empty() => {
                // Idle blocks kept for others are in the way.
                let idle = std::mem::take(&mut *self.idle());
                idle.into_iter().for_each(|block| self.free(&block));
                self.get(len)
            }
            got => got,
        }
    }

    fn get(&self, len: usize) -> Result<Block> {
        let _entered = self.driver.enter()?;
        let at = match self.side {
            // SAFETY: fresh memory without users; the context is this thread's.
            Side::Device => unsafe { result::malloc_sync(len) },
            // SAFETY: as above. Cached, since the host reads it as well: no flags.
            Side::Host => unsafe { result::malloc_host(len, 0) }.map(|at| at as Address),
        };
        let at = at.map_err(|error| match self.side {
            Side::Device => failed("take memory", error).at("bytes", len),
            Side::Host => failed_host(error).at("bytes", len),
        })?;
        Ok(Block { at, len, used: Use::None })
    }

    fn keep(&self, block: Block) {
        let mut idle = self.idle();
        idle.push(block);
        let mut bytes: usize = idle.iter().map(|block| block.len).sum();
        let mut old = Vec::new();
        while bytes > self.idle_max {
            // The longest idle one; one in use would have to be waited for.
            let at = idle.iter().position(Block::is_free).unwrap_or(0);
            let block = idle.remove(at);
            bytes -= block.len;
            old.push(block);
        }
        drop(idle);
        old.into_iter().for_each(|block| self.free(&block));
    }

    /// Frees a block after its last use.
    fn free(&self, block: &Block) {
        if !self.driver.is_ours() {
            return;
        }
        let Ok(_entered) = self.driver.enter() else { return };
        // Errors of earlier work reach the batches that wait for it; the memory of a device that
        // failed is gone with its context.
        let is_free = match &block.used {
            Use::None => Ok(true),
            Use::Until(done) => done.wait().map(|()| true),
            Use::Unknown => self.driver.synchronize(),
        };
        if matches!(is_free, Ok(false)) {
            tracing::warn!(
                bytes = block.len,
                "memory of a failed batch stays taken: a graph is captured, so that nothing tells \
                 when the GPU is done with it"
            );
            return;
        }
        let _ = match self.side {
            // SAFETY: it came from the driver, has no owner any more, and the device is done with
            // it.
            Side::Device => unsafe { result::free_sync(block.at) },
            // SAFETY: as above.
            Side::Host => unsafe { result::free_host(block.at as *mut std::ffi::c_void) },
        };
    }
}

/// Translates a driver error about the host's memory.
fn failed_host(DriverError(code): DriverError) -> Error {
    if code != CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return failed("pin memory", DriverError(code));
    }
    let what = "the node has no memory left that the GPU can copy from";
    Error::new(ErrorKind::Full, what).at("memory", "pinned").advise(
        "use a smaller batch_size or prefetch, give the job more memory (a cgroup's limit counts \
         pinned memory), or use device=\"cpu\"",
    )
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Not by its lock, which another thread may have held when this process was forked.
        let idle = self.idle.get_mut().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(idle).into_iter().for_each(|block| self.free(&block));
    }
}

impl Block {
    /// True if no device uses it.
    fn is_free(&self) -> bool {
        match &self.used {
            Use::None => true,
            Use::Until(done) => done.is_over(),
            Use::Unknown => false,
        }
    }
}

impl Memory {
    fn block(&self) -> &Block {
        self.block.as_ref().expect("only drop takes it")
    }

    /// Returns its address.
    pub(super) fn at(&self) -> Address {
        self.block().at
    }

    /// Returns its requested size in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes that it has room for.
    pub(super) fn room(&self) -> usize {
        self.block().len
    }

    /// Returns the bytes of host memory for writing.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        assert_eq!(self.home.side, Side::Host, "the device writes device memory");
        // SAFETY: the driver gave at least this many bytes, without another owner: no device copies
        // them any more. Any bytes are good.
        unsafe { std::slice::from_raw_parts_mut(self.at() as *mut u8, self.len) }
    }

    /// Returns the bytes of host memory.
    pub(super) fn bytes(&self) -> &[u8] {
        assert_eq!(self.home.side, Side::Host, "the device reads device memory");
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.at() as *const u8, self.len) }
    }

    /// Records that a device uses it until `done`, even if it is dropped before. The last call
    /// counts.
    pub(super) fn used_until(&mut self, done: &Done) {
        self.set_use(Use::Until(done.clone()));
    }

    /// Records that a device is about to use it, until an end that is recorded later.
    pub(super) fn is_used(&mut self) {
        self.set_use(Use::Unknown);
    }

    /// Records that no device uses it any more.
    pub(super) fn is_unused(&mut self) {
        self.set_use(Use::None);
    }

    fn set_use(&mut self, used: Use) {
        if let Some(block) = &mut self.block {
            block.used = used;
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        // A forked child shares neither the driver nor the state behind a lock.
        if !self.home.driver.is_ours() {
            return;
        }
        match block.used {
            Use::Unknown => self.home.free(&block),
            Use::None | Use::Until(_) => self.home.keep(block),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_blocks_waste_an_eighth_at_most() {
        for len in [256_usize, 257 * 256, 1 << 20, (1 << 20) + 256, 3_000_064, 1 << 30] {
            let size = len.next_multiple_of(step(len));
            assert!(size >= len && size - len <= len / SIZES + ALIGN, "{len} {size}");
        }
    }
}
