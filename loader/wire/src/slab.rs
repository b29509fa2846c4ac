//! The trainer's read-only view of a slab.
//!
//! A byte of the map is read only through [`Slab::get`], which checks the range, and only
//! while a guard of its slot is held. The daemon rewrites a slot only after that guard was
//! returned.

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use rustix::mm::ProtFlags;

use crate::shared_map::SharedMap;

/// A slab mapped read-only; unmapped when its last guard is gone. Threads share only immutable
/// reads of it.
pub struct Slab(SharedMap);

impl Slab {
    /// Maps a descriptor that came with a slab message.
    ///
    /// # Errors
    /// `Invalid` if the descriptor is smaller than announced; otherwise the error of `mmap`.
    pub fn map(descriptor: OwnedFd, len: u64) -> Result<Arc<Self>> {
        Ok(Arc::new(Self(SharedMap::new(&descriptor, len, ProtFlags::READ)?)))
    }

    /// Returns the bytes of a range that the daemon named.
    ///
    /// # Errors
    /// `Invalid` if the range leaves the slab.
    pub fn get(&self, offset: u64, len: u64) -> Result<&[u8]> {
        let range = usize::try_from(offset)
            .ok()
            .zip(usize::try_from(len).ok())
            .filter(|(offset, len)| offset.checked_add(*len).is_some_and(|end| end <= self.len()));
        let Some((offset, len)) = range else {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the daemon named a range outside the slab",
            )
            .at("offset", offset)
            .at("len", len));
        };
        // SAFETY: the range was checked to lie inside the mapping, which lives as long as `self`;
        // the caller holds the slot's guard, so the daemon does not write these bytes. Of memory of
        // a tier, the guard holds the end of a pipe that the daemon waits for.
        Ok(unsafe { std::slice::from_raw_parts(self.0.start().as_ptr().add(offset), len) })
    }

    /// Returns the mapped addresses, for copies to a device, which may read only ranges of held
    /// slots.
    #[must_use]
    pub fn addresses(&self) -> Range<usize> {
        let start = self.0.start().as_ptr() as usize;
        start..start + self.len()
    }

    /// Returns the slab's length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never true: an empty slab is rejected when it is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").field("len", &self.len()).finish_non_exhaustive()
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
