//! Memory of a device, and memory of the host that a device copies from by itself: taken in blocks that are used
//! again.
//!
//! Its rule: a block knows until when a device uses it. It goes back to its pool with that event, and whoever takes it
//! next waits for it, on the device where the device writes, on the host where the host does. A block of which nobody
//! said so is given back to the driver, when the device is done with everything.

#![allow(unsafe_code, reason = "the driver takes addresses")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::result;
use forebay_error::Result;

use super::driver::{Done, Driver, Stream, failed};
use super::view::Address;

/// An idle block serves a request that needs at least a half of it.
const WASTE_MAX: usize = 2;

/// Blocks begin and end at multiples of this: what the widest loads and any framework ask for.
const ALIGN: usize = 256;

/// On which side of the bus the memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Device,
    /// Pinned: a device copies it without the CPU.
    Host,
}

/// Blocks of one side that nobody uses. Clones share them.
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
    /// When its last user is done with it; nothing if nobody ever used it.
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
    /// A pool that keeps `idle_max` bytes at most of what nobody uses.
    pub(super) fn new(driver: &Arc<Driver>, side: Side, idle_max: usize) -> Self {
        let idle = Mutex::default();
        Self(Arc::new(Shared { driver: driver.clone(), side, idle_max, idle }))
    }

    /// `len` bytes or a little more for what is put in line on `stream`; on the host they can be written at once.
    ///
    /// # Errors
    /// `Full` where there is no such memory.
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
        // Every change below is whole at each point where it could panic.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of the blocks that fit without waste the one that has been idle for longest: most likely nobody uses it still.
    fn reuse(&self, want: usize) -> Option<Block> {
        let mut idle = self.idle();
        let fits = |block: &Block| (want..=want * WASTE_MAX).contains(&block.len);
        let at = idle.iter().position(fits)?;
        Some(idle.remove(at))
    }

    fn allocate(&self, len: usize) -> Result<Block> {
        match self.get(len) {
            Err(_) if !self.idle().is_empty() => {
                // What is kept for others is in the way.
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
            // SAFETY: memory that nobody knows yet; the context is this thread's.
            Side::Device => unsafe { result::malloc_sync(len) },
            // SAFETY: as above. Cached, for the host reads what it writes: no flags.
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

    /// Gives a block back to the driver, after whoever uses it.
    fn free(&self, block: &Block) {
        if !self.driver.is_ours() || self.driver.bind().is_err() {
            return;
        }
        // What is said of earlier work here, whoever waits for that work hears.
        let _ = match &block.free {
            Some(free) => free.wait(),
            None => self.driver.synchronize(),
        };
        let _ = match self.side {
            // SAFETY: the driver gave it, nobody has it any more, and the device is done with it.
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
    /// Where it begins.
    pub(super) fn at(&self) -> Address {
        self.block.as_ref().expect("taken by drop alone").at
    }

    /// Its bytes, as many as were asked for.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Its bytes, to be written; for memory of the host.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        assert_eq!(self.home.side, Side::Host, "memory of a device is written by the device");
        // SAFETY: the driver gave at least so many bytes, zeroed by the system or written by an earlier user, and
        // nobody else has them: a device that copied them was waited for.
        unsafe { std::slice::from_raw_parts_mut(self.at() as *mut u8, self.len) }
    }

    /// The same, to be read.
    pub(super) fn bytes(&self) -> &[u8] {
        assert_eq!(self.home.side, Side::Host, "memory of a device is read by the device");
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.at() as *const u8, self.len) }
    }

    /// Whether nobody said until when it is used.
    pub(super) fn is_unmarked(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.free.is_none())
    }

    /// Says that a device uses it until `done`, however soon it is dropped. The last word counts.
    pub(super) fn used_until(&mut self, done: &Done) {
        if let Some(block) = &mut self.block {
            block.free = Some(done.clone());
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else { return };
        // A forked child shares neither the driver nor what a lock was held for.
        if !self.home.driver.is_ours() {
            return;
        }
        if block.free.is_some() { self.home.keep(block) } else { self.home.free(&block) }
    }
}
