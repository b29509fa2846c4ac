//! A shared writable mapping of a memfd, aligned so that huge pages fit.
//!
//! The value owns its address range alone and unmaps it once, on drop.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::CHUNK;
use crate::GRANULE;

pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the value is an address range that belongs to the process, not to a thread; it offers no
// access to the bytes by itself, so sharing or moving it between threads races with nothing.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; every method takes the range as a whole and leaves the bytes' values
// alone.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a new memfd of `len` bytes, a multiple of [`CHUNK`], at a multiple of [`CHUNK`].
    pub(super) fn of_new_memfd(
        name: &str,
        len: usize,
        pages: MemfdFlags,
    ) -> Result<(OwnedFd, Self)> {
        let fd =
            rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages)
                .doing("create a memory file")?;
        rustix::fs::ftruncate(&fd, len as u64).doing("size a memory file")?;
        let map = if pages.contains(MemfdFlags::HUGETLB) {
            Self::of_huge_pages(&fd, len)?
        } else {
            Self::over_reserved(&fd, len)?
        };
        Ok((fd, map))
    }

    /// Maps a file of huge pages: the kernel aligns those by itself.
    fn of_huge_pages(fd: &OwnedFd, len: usize) -> Result<Self> {
        // SAFETY: a mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        }
        .doing("map a file of huge pages")?;
        let base = NonNull::new(start.cast()).expect("the kernel maps nothing at address zero");
        Ok(Self { base, len })
    }

    /// Maps a file of small pages over addresses reserved with the alignment of huge ones.
    fn over_reserved(fd: &OwnedFd, len: usize) -> Result<Self> {
        let map = Self::reserve(len)?;
        // SAFETY: the range [base, base + len) was reserved just now by this `Mapping`, which alone
        // owns it, so replacing its pages touches no one else's memory.
        let mapped = unsafe {
            rustix::mm::mmap(
                map.base.as_ptr().cast(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                fd,
                0,
            )
        };
        if let Err(error) = mapped {
            // A kernel that fails after it cleared the range has given the addresses up; another
            // thread may have them by now, and unmapping them would take its memory away.
            std::mem::forget(map);
            return Err(error).doing("map a memory file");
        }
        Ok(map)
    }

    /// Reserves addresses without memory behind them. The kernel only promises page alignment, so
    /// one chunk more is taken and the ends are given back.
    fn reserve(len: usize) -> Result<Self> {
        let padded = len.checked_add(CHUNK).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "a region's length overflows the address space")
        })?;
        // SAFETY: an anonymous mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                padded,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .doing("reserve addresses")?
        .cast::<u8>();
        let head = start.align_offset(CHUNK);
        // SAFETY: `head` < CHUNK, so base lies inside the `padded` bytes just reserved.
        let base = unsafe { start.add(head) };
        let base = NonNull::new(base).expect("the kernel maps nothing at address zero by itself");
        let map = Self { base, len };
        if head > 0 {
            // SAFETY: [start, start + head) is the unused front of our own reservation.
            unsafe { rustix::mm::munmap(start.cast(), head) }.doing("trim a reservation")?;
        }
        let tail = padded - head - len;
        if tail > 0 {
            // SAFETY: [base + len, start + padded) is the unused end of our own reservation.
            unsafe { rustix::mm::munmap(base.as_ptr().add(len).cast(), tail) }
                .doing("trim a reservation")?;
        }
        Ok(map)
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Joins pages of a range into huge ones, chunk by chunk; returns the bytes that were joined.
    /// The range starts and ends at a multiple of [`CHUNK`].
    ///
    /// # Errors
    /// `Full` if there is not even the memory for small pages.
    pub(super) fn collapse(&self, range: Range<usize>) -> Result<usize> {
        let mut collapsed = 0;
        for offset in range.step_by(CHUNK) {
            // The kernel refuses a chunk without any page, and zeroes less when there is only one.
            self.populate(offset..offset + GRANULE)?;
            // SAFETY: populating has checked that the chunk begins inside our mapping, whose length
            // is a multiple of it.
            let chunk = unsafe { self.base.as_ptr().add(offset) };
            // SAFETY: the chunk is ours; collapsing changes which pages back it, not its bytes.
            let code = unsafe { libc::madvise(chunk.cast(), CHUNK, libc::MADV_COLLAPSE) };
            if code == 0 {
                collapsed += CHUNK;
            } else if std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
                // The kernel cannot do it at all (before 6.1, or built without huge pages);
                // other errors say that this one chunk found no free huge page.
                break;
            }
        }
        Ok(collapsed)
    }

    /// Backs the pages of a range now, so that no later touch of them can fail.
    ///
    /// # Errors
    /// `Full` if there is not the memory.
    pub(super) fn populate(&self, range: Range<usize>) -> Result<()> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} leaves the mapping");
        // SAFETY: the range is inside our own writable mapping; populating keeps its bytes.
        let populated = unsafe {
            let start = self.base.as_ptr().add(range.start);
            rustix::mm::madvise(start.cast(), range.len(), Advice::LinuxPopulateWrite)
        };
        match populated {
            // A SIGBUS or SIGSEGV of a write appears here as EFAULT.
            Err(Errno::FAULT | Errno::NOMEM | Errno::HWPOISON) => {
                Err(Error::new(ErrorKind::Full, "not enough memory to back a region"))
            }
            other => other.doing("back a region with memory"),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this value's own; spans and in-flight operations keep the region
        // alive by `Arc`, so none of them is left.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping our own range cannot fail: {unmapped:?}");
    }
}
