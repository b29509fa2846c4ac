//! A map of memory that a daemon shares by its descriptor.
//!
//! It starts at a multiple of a huge page. The kernel maps a huge page of the daemon's as a whole
//! then, by one fault instead of 512, and the processor needs one entry of its TLB for it.

use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Bytes of a huge page of x86-64, and of arm64 with base pages of 4 KiB.
const HUGE_PAGE: usize = 2 << 20;

/// Mapped addresses. They carry no right to read or to write: their owners' methods do.
pub(crate) struct SharedMap {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is process-wide and lives until drop; the value gives no access to its bytes.
unsafe impl Send for SharedMap {}
// SAFETY: as above.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Maps a descriptor that came with a message. The daemon has sealed it against resizing, so
    /// no access can fault past its end.
    ///
    /// # Errors
    /// `Invalid` if the descriptor is smaller than announced; otherwise the error of `mmap`.
    pub(crate) fn new(descriptor: &OwnedFd, announced: u64, access: ProtFlags) -> Result<Self> {
        let held = rustix::fs::fstat(descriptor).doing("stat shared memory")?.st_size;
        let len = usize::try_from(announced)
            .ok()
            .filter(|len| *len > 0 && u64::try_from(held).is_ok_and(|held| held >= *len as u64))
            .ok_or_else(|| {
                Error::new(ErrorKind::Invalid, "shared memory does not have the announced size")
                    .at("announced", announced)
                    .at("held", held)
            })?;
        let map = Self::reserve(len)?;
        // SAFETY: the range was reserved just now and is this value's alone, so that replacing its
        // pages touches no one else's memory.
        let mapped = unsafe {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            mmap(map.start.as_ptr().cast(), len, access, flags, descriptor, 0)
        };
        if let Err(error) = mapped {
            // A kernel that fails after it cleared the range has freed the addresses; another
            // thread may have them by now, and unmapping them would take its memory away.
            std::mem::forget(map);
            return Err(error).doing("map shared memory");
        }
        // A core dump of a trainer would have all shards of the node. A kernel that does not know
        // the advice dumps them.
        // SAFETY: the advice concerns core dumps alone, and the range is this value's.
        let _ = unsafe { madvise(map.start.as_ptr().cast(), len, Advice::LinuxDontDump) };
        Ok(map)
    }

    /// Reserves addresses without memory behind them. The kernel aligns to small pages only, so
    /// that a huge page more is taken, and both ends are unmapped again.
    fn reserve(len: usize) -> Result<Self> {
        let padded = len.checked_add(HUGE_PAGE).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "shared memory is larger than the address space")
        })?;
        // SAFETY: an anonymous mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            mmap_anonymous(ptr::null_mut(), padded, ProtFlags::empty(), flags)
        }
        .doing("reserve addresses")?
        .cast::<u8>();
        let head = start.align_offset(HUGE_PAGE);
        // SAFETY: `head` < HUGE_PAGE, so the start lies inside the `padded` bytes just reserved.
        let aligned = NonNull::new(unsafe { start.add(head) });
        let map = Self { start: aligned.expect("the kernel maps nothing at address zero"), len };
        // The kernel maps whole pages: the end of the last one belongs to the map.
        let end = head + len.next_multiple_of(rustix::param::page_size());
        for (from, bytes) in [(0, head), (end, padded.saturating_sub(end))] {
            if bytes > 0 {
                // SAFETY: an end of this reservation that nothing uses.
                unsafe { munmap(start.add(from).cast(), bytes) }.doing("trim a reservation")?;
            }
        }
        Ok(map)
    }

    /// First address.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length in bytes, above zero.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own, and every slice of it borrowed its owner. A
        // failure leaves address space mapped, which harms nobody.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn memory(len: u64) -> OwnedFd {
        let memory = memfd_create("shared-map-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, len).unwrap();
        memory
    }

    #[test]
    fn maps_start_at_a_huge_page() {
        for len in [1_u64, 8192, 2 << 20, (6 << 20) + 4096, 64 << 20] {
            let map = SharedMap::new(&memory(len), len, ProtFlags::READ).unwrap();
            assert_eq!(map.start().as_ptr() as usize % HUGE_PAGE, 0);
            assert_eq!(map.len() as u64, len);
        }
    }

    /// Neighbours of a reservation are unmapped once each: maps that come and go in any order leave
    /// the others alone.
    #[test]
    fn maps_leave_their_neighbours_alone() {
        let backing = memory(4 << 20);
        rustix::io::pwrite(&backing, b"bytes", 4096).unwrap();
        let mut maps: Vec<_> =
            (0..64).map(|_| SharedMap::new(&backing, 4 << 20, ProtFlags::READ).unwrap()).collect();
        while let Some(gone) = maps.pop() {
            drop(gone);
            if maps.len() % 3 == 0 {
                maps.reverse();
            }
            for map in &maps {
                // SAFETY: the map is alive, and nobody writes to its memory.
                assert_eq!(unsafe { *map.start().as_ptr().add(4096) }, b'b');
            }
        }
    }

    #[test]
    fn memory_smaller_than_announced_is_rejected() {
        for (held, announced) in [(4096, 8192), (0, 0), (0, 1)] {
            let made = SharedMap::new(&memory(held), announced, ProtFlags::READ);
            assert_eq!(made.err().map(|error| error.kind()), Some(ErrorKind::Invalid));
        }
    }
}
