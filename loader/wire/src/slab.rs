//! The trainer's read-only view of a slab.
//!
//! A byte of the map is read only through [`Slab::get`], which checks the range, and only
//! while a guard of its slot is held. The daemon rewrites a slot only after that guard was
//! returned.

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A slab mapped read-only; unmapped when its last guard is gone.
pub struct Slab {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is process-wide, read-only here, and lives until drop; threads share only
// immutable reads of it.
unsafe impl Send for Slab {}
// SAFETY: as above: no method writes through the pointer.
unsafe impl Sync for Slab {}

impl Slab {
    /// Maps a descriptor that came with a slab message.
    ///
    /// # Errors
    /// `Invalid` if the descriptor is smaller than announced; otherwise the error of `mmap`.
    pub fn map(descriptor: OwnedFd, len: u64) -> Result<Arc<Self>> {
        let held = rustix::fs::fstat(&descriptor).doing("stat the slab")?.st_size;
        let len = usize::try_from(len)
            .ok()
            .filter(|len| *len > 0 && u64::try_from(held).is_ok_and(|held| held >= *len as u64))
            .ok_or_else(|| {
                Error::new(ErrorKind::Invalid, "the slab does not have the announced size")
                    .at("announced", len)
                    .at("held", held)
            })?;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours; the
        // daemon sealed the descriptor against shrinking, so no access can fault past its end.
        let start = unsafe {
            mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &descriptor, 0)
        }
        .doing("map the slab")?;
        let start = NonNull::new(start.cast()).expect("mmap never returns null on success");
        Ok(Arc::new(Self { start, len }))
    }

    /// Returns the bytes of a range that the daemon named.
    ///
    /// # Errors
    /// `Invalid` if the range leaves the slab.
    pub fn get(&self, offset: u64, len: u64) -> Result<&[u8]> {
        let range = usize::try_from(offset)
            .ok()
            .zip(usize::try_from(len).ok())
            .filter(|(offset, len)| offset.checked_add(*len).is_some_and(|end| end <= self.len));
        let Some((offset, len)) = range else {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the daemon named a range outside the slab",
            )
            .at("offset", offset)
            .at("len", len));
        };
        // SAFETY: the range was checked to lie inside the mapping, which lives as long as `self`;
        // the caller holds the slot's guard, so the daemon does not write these bytes.
        Ok(unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), len) })
    }

    /// Returns the mapped addresses, for copies to a device, which may read only ranges of held
    /// slots.
    #[must_use]
    pub fn addresses(&self) -> Range<usize> {
        let start = self.start.as_ptr() as usize;
        start..start + self.len
    }

    /// Returns the slab's length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: an empty slab is rejected when it is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this start and length, and every slice of it
        // borrowed `self`. A failure leaves address space mapped, which harms nobody.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_outside_the_map_are_rejected() {
        let memfd = rustix::fs::memfd_create("slab-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memfd, 8192).unwrap();
        rustix::io::pwrite(&memfd, b"bytes", 4096).unwrap();
        let slab = Slab::map(memfd.try_clone().unwrap(), 8192).unwrap();
        assert_eq!(slab.get(4096, 5).unwrap(), b"bytes");
        assert_eq!(slab.get(8192, 0).unwrap(), b"");
        for (offset, len) in [(8192, 1), (4096, 4097), (u64::MAX, 2), (1, u64::MAX)] {
            assert_eq!(slab.get(offset, len).unwrap_err().kind(), ErrorKind::Invalid);
        }
        assert_eq!(Slab::map(memfd, 8193).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
