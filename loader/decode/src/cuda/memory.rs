//! Device memory, and host memory that a device copies from directly, in recycled blocks.
//!
//! A block knows the event after which the device no longer uses it. It returns to its pool
//! with that event, and its next user waits for it, on the device or on the host, whichever writes.
//! A block without an event is freed after all work of the device.

#![allow(unsafe_code, reason = "the driver takes addresses")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::result;
use forebay_error::Result;

use super::driver::{Done, Driver, Stream, failed};
use super::view::Address;

/// An idle block serves a request of at least half its size.
const WASTE_MAX: usize = 2;

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

#[derive(Debug)]
struct Block {
    at: Address,
    len: usize,
    /// End of its last use; `None` if it was never used.
    free: Option<Done>,
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

    /// Takes at least `len` bytes for work queued on `stream`; host memory can be written at once.
    ///
    /// # Errors
    /// `Full` if there is no such memory.
    pub(super) fn take(&self, len: usize, stream: &Stream) -> Result<Memory> {
        let (home, want) = (&self.0, len.max(1).next_multiple_of(ALIGN));
        let mut block = match home.reuse(want) {
            Some(block) => block,
            None => home.allocate(want)?,
        };
        if let Some(free) = block.free.take() {
            match home.side {
                Side::Device => stream.after(&free)?,
                Side::Host => free.wait()?,
            }
        }
        Ok(Memory { block: Some(block), len, home: home.clone() })
    }
}

impl Shared {
    fn idle(&self) -> MutexGuard<'_, Vec<Block>> {
        // Every change below is complete wherever it could panic.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes, of the blocks that fit without waste, the longest idle one, which is most likely no
    /// longer in use.
    fn reuse(&self, want: usize) -> Option<Block> {
        let mut idle = self.idle();
        let fits = |block: &Block| (want..=want * WASTE_MAX).contains(&block.len);
        let at = idle.iter().position(fits)?;
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
        self.driver.bind()?;
        let at = match self.side {
            // SAFETY: fresh memory without users; the context is this thread's.
            Side::Device => unsafe { result::malloc_sync(len) },
            // SAFETY: as above. Cached, since the host reads it as well: no flags.
            Side::Host => unsafe { result::malloc_host(len, 0) }.map(|at| at as Address),
        };
        let at = at.map_err(|error| failed("take memory", error).at("bytes", len))?;
        Ok(Block { at, len, free: None })
    }

    fn keep(&self, block: Block) {
        let mut idle = self.idle();
        idle.push(block);
        let mut bytes: usize = idle.iter().map(|block| block.len).sum();
        let mut old = Vec::new();
        while bytes > self.idle_max {
            let block = idle.remove(0);
            bytes -= block.len;
            old.push(block);
        }
        drop(idle);
        old.into_iter().for_each(|block| self.free(&block));
    }

    /// Frees a block after its last use.
    fn free(&self, block: &Block) {
        if !self.driver.is_ours() || self.driver.bind().is_err() {
            return;
        }
        // Errors of earlier work reach the batches that wait for it.
        let _ = match &block.free {
            Some(free) => free.wait(),
            None => self.driver.synchronize(),
        };
        let _ = match self.side {
            // SAFETY: it came from the driver, has no owner any more, and the device is done with
            // it.
            Side::Device => unsafe { result::free_sync(block.at) },
            // SAFETY: as above.
            Side::Host => unsafe { result::free_host(block.at as *mut std::ffi::c_void) },
        };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let idle = std::mem::take(&mut *self.idle());
        idle.into_iter().for_each(|block| self.free(&block));
    }
}

impl Memory {
    /// Returns its address.
    pub(super) fn at(&self) -> Address {
        self.block.as_ref().expect("only drop takes it").at
    }

    /// Returns its requested size in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of host memory for writing.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        assert_eq!(self.home.side, Side::Host, "the device writes device memory");
        // SAFETY: the driver gave at least this many bytes, zeroed by the system or written by an
        // earlier user, without another owner: any device that copied them was waited for.
        unsafe { std::slice::from_raw_parts_mut(self.at() as *mut u8, self.len) }
    }

    /// Returns the bytes of host memory.
    pub(super) fn bytes(&self) -> &[u8] {
        assert_eq!(self.home.side, Side::Host, "the device reads device memory");
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.at() as *const u8, self.len) }
    }

    /// True if no end of use was recorded.
    pub(super) fn is_unmarked(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.free.is_none())
    }

    /// Records that a device uses it until `done`, even if it is dropped before. The last call
    /// counts.
    pub(super) fn used_until(&mut self, done: &Done) {
        if let Some(block) = &mut self.block {
            block.free = Some(done.clone());
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
        if block.free.is_some() { self.home.keep(block) } else { self.home.free(&block) }
    }
}
