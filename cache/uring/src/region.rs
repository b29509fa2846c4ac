//! One memfd-backed mapping, on the largest pages the machine will give.
//!
//! A region is backed before anyone touches it, and never shrinks, so touching it cannot raise
//! SIGBUS; what cannot be backed is the error `Full`. Regions of this process are backed as a whole
//! when they are created, memory for a client step by step, while the client uses the first steps.
//!
//! Large pages are tried by a ladder, because the kernel pins and walks pages per operation: 2 MiB
//! pages cost a tenth of the CPU of 4 KiB ones. The rungs: reserved huge pages (`MFD_HUGETLB`),
//! ordinary memory collapsed chunk by chunk (`MADV_COLLAPSE`), plain 4 KiB pages. [`PageReport`]
//! says where each byte ended up.

use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::fs::{MemfdFlags, SealFlags};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::arena::FreeList;
use crate::engine::Attachment;

mod mapping;

use mapping::Mapping;

/// Unit of a region's length and of the ladder in bytes: a huge page, the PMD size of x86-64 and of
/// arm64 with 4 KiB base pages, the two layouts GPU nodes run.
pub const CHUNK: usize = 2 << 20;

/// Bytes of a region by kind of page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PageReport {
    /// Bytes on huge pages reserved by the administrator (`vm.nr_hugepages`).
    pub hugetlb: usize,
    /// Bytes on ordinary memory that the kernel joined into 2 MiB pages.
    pub collapsed: usize,
    /// Bytes on 4 KiB pages.
    pub small: usize,
}

/// A mapping shared by `Arc`, never moved, unmapped when the last `Arc` drops.
///
/// A region gives no access to its bytes; [`crate::Arena`] leases them out as [`crate::Span`]s.
pub struct Region {
    // Fields drop in this order: the engines forget the memory before it is unmapped.
    attachments: Mutex<Vec<Attachment>>,
    map: Mapping,
    free_list: FreeList,
    fd: OwnedFd,
    pages: PageReport,
    /// Bytes from the start on that are backed.
    backed: AtomicUsize,
    /// Held while more is backed.
    backing: Mutex<()>,
    id: u64,
    /// Things to drop once the memory is unmapped.
    kept: Mutex<Vec<Box<dyn Any + Send + Sync>>>,
}

impl Region {
    /// Maps at least `len` bytes (rounded up to 2 MiB), zeroed and backed; `name` shows in
    /// `/proc/PID/maps`.
    ///
    /// The descriptor is sealed against resizing and writing, so the bytes change only through
    /// spans; more seals may still be added. Blocks while the kernel zeroes the pages, about a
    /// tenth of a second per GiB and far more in a virtual machine whose host must find them first.
    ///
    /// On a machine with several NUMA nodes the pages come from the calling thread's node while it
    /// has some (first touch); they are not bound, whichever disk the region is for.
    ///
    /// # Errors
    /// `Invalid` for a length of zero or one that overflows, `Full` if the machine lacks the
    /// memory.
    pub fn create(name: &str, len: usize) -> Result<Arc<Self>> {
        Self::build(name, len, usize::MAX, SealFlags::FUTURE_WRITE)
    }

    /// The same for memory whose descriptor leaves the process: the set of seals is sealed too.
    ///
    /// The receiver of the descriptor can map it read-only and do nothing else to it.
    ///
    /// # Errors
    /// As [`Region::create`].
    pub fn create_sealed(name: &str, len: usize) -> Result<Arc<Self>> {
        Self::build(name, len, usize::MAX, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
    }

    /// The same for memory that its receiver may map to write, as [`crate::LentRegion`]. `first`:
    /// bytes that are backed at once.
    pub(crate) fn create_lent(name: &str, len: usize, first: usize) -> Result<Arc<Self>> {
        Self::build(name, len, first, SealFlags::SEAL)
    }

    fn build(name: &str, len: usize, first: usize, extra: SealFlags) -> Result<Arc<Self>> {
        let len = len
            .checked_next_multiple_of(CHUNK)
            .filter(|len| (1..=isize::MAX as usize).contains(len))
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Invalid,
                    "a region needs a length above zero that fits memory",
                )
                .at("region", name)
                .at("bytes", len)
            })?;
        let first = first.min(len).next_multiple_of(CHUNK);
        let (fd, map, pages) = climb(name, len, first).map_err(|error| {
            error.at("region", name).at("bytes", len).advise("lower the budget or free memory")
        })?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | extra)
            .doing("seal a memory region")
            .map_err(|error| error.at("region", name))?;
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Ok(Arc::new(Self {
            attachments: Mutex::new(Vec::new()),
            map,
            free_list: FreeList::new(len),
            fd,
            pages,
            backed: AtomicUsize::new(first),
            backing: Mutex::new(()),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            kept: Mutex::default(),
        }))
    }

    /// Keeps `owned` until the memory is unmapped: a reservation ends with the last span, and not
    /// before a hanging disk returns its own.
    pub fn keep(&self, owned: impl Send + Sync + 'static) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(owned));
    }

    /// The memfd, for sending to a process that maps the region read-only.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Length in bytes, a multiple of 2 MiB.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Bytes from the start on that are backed.
    pub(crate) fn backed(&self) -> usize {
        self.backed.load(Ordering::Acquire)
    }

    /// Backs the bytes up to an end, which is rounded up to 2 MiB. Blocks while the kernel zeroes
    /// them.
    ///
    /// # Errors
    /// `Full` if the machine lacks the memory.
    pub(crate) fn back(&self, end: usize) -> Result<()> {
        let end = end.min(self.len()).next_multiple_of(CHUNK);
        let _guard = self.backing.lock().unwrap_or_else(PoisonError::into_inner);
        let backed = self.backed();
        if backed < end {
            if self.pages.hugetlb == 0 {
                self.map.collapse(backed..end)?;
            }
            self.map.populate(backed..end)?;
            self.backed.store(end, Ordering::Release);
        }
        Ok(())
    }

    /// Returns the pages the region got.
    #[must_use]
    pub fn pages(&self) -> PageReport {
        self.pages.clone()
    }

    /// Address of the first byte. The pointer carries no right to read or write: spans do.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.map.base()
    }

    /// Returns the book of its ranges.
    pub(crate) fn free_list(&self) -> &FreeList {
        &self.free_list
    }

    /// Unique in this process for all time, unlike an address.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The engines that know this memory.
    pub(crate) fn attachments(&self) -> &Mutex<Vec<Attachment>> {
        &self.attachments
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Region")
            .field("id", &self.id)
            .field("len", &self.len())
            .field("pages", &self.pages)
            .finish_non_exhaustive()
    }
}

/// Tries the rungs from the top and returns memory whose `first` bytes are backed.
fn climb(name: &str, len: usize, first: usize) -> Result<(OwnedFd, Mapping, PageReport)> {
    // A refused reservation is the normal case (no huge pages set aside), so the next rung is not
    // a hidden failure: the report shows which one held.
    if let Ok((fd, map)) =
        Mapping::of_new_memfd(name, len, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB)
        && map.populate(0..first).is_ok()
    {
        return Ok((fd, map, PageReport { hugetlb: len, ..PageReport::default() }));
    }
    check_available(len)?;
    let (fd, map) = Mapping::of_new_memfd(name, len, MemfdFlags::empty())?;
    let collapsed = map.collapse(0..first)?;
    map.populate(0..first)?;
    Ok((fd, map, PageReport { collapsed, small: len - collapsed, ..PageReport::default() }))
}

/// Refuses what the kernel says it cannot back.
///
/// Ordinary memory is overcommitted: populating more than there is wakes the OOM killer instead of
/// returning an error. Where `/proc/meminfo` cannot be read, populating alone decides.
fn check_available(len: usize) -> Result<()> {
    let Ok(text) = std::fs::read_to_string("/proc/meminfo") else { return Ok(()) };
    match available_bytes(&text) {
        Some(available) if available < len as u64 => {
            Err(Error::new(ErrorKind::Full, "not enough memory for a region")
                .at("available", available))
        }
        _ => Ok(()),
    }
}

/// `MemAvailable` in bytes.
fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_meminfo() {
        let text = "MemTotal:  24 kB\nMemFree:   2 kB\nMemAvailable:   16 kB\n";
        assert_eq!(available_bytes(text), Some(16 * 1024));
        assert_eq!(available_bytes("MemTotal: 24 kB\n"), None);
        assert_eq!(available_bytes("MemAvailable: many kB\n"), None);
        assert_eq!(available_bytes("MemAvailable: 18446744073709551615 kB\n"), None);
    }
}
