//! The client's map of memory that a daemon lends to it.
//!
//! The client writes blocks of a checkpoint there, or reads blocks that the daemon has put there.
//! The daemon never looks at the bytes; it only names them to its kernel. So both sides agree by
//! messages on who uses a range, and a client that breaks the agreement spoils only its own file.

use std::fmt;
use std::os::fd::OwnedFd;

use forebay_error::Result;
use rustix::mm::ProtFlags;

use crate::shared_map::SharedMap;

/// Lent memory, mapped to read and to write. All access goes through `&mut self` for writes and
/// `&self` for reads, so threads of this process never race.
pub struct Lent(SharedMap);

impl Lent {
    /// Maps a descriptor that came with a message.
    ///
    /// # Errors
    /// `Invalid` if the descriptor is smaller than announced; otherwise the error of `mmap`.
    pub fn map(descriptor: OwnedFd, len: u64) -> Result<Self> {
        SharedMap::new(&descriptor, len, ProtFlags::READ | ProtFlags::WRITE).map(Self)
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Never true: memory without bytes is rejected when it is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Copies bytes to an offset.
    ///
    /// # Panics
    /// If the bytes do not fit: the caller chose the offset.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= self.len()), "lent memory ends before {end:?}");
        // SAFETY: the range lies inside the mapping, and `bytes` is other memory: a caller cannot
        // borrow this mapping while it is mutably borrowed here.
        unsafe {
            let to = self.0.start().as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Sets the bytes from an offset on to zero.
    ///
    /// # Panics
    /// If the range leaves the memory: the caller chose it.
    pub fn clear(&mut self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len()), "lent memory ends before {end:?}");
        // SAFETY: the range lies inside the mapping, which only this call touches.
        unsafe { std::ptr::write_bytes(self.0.start().as_ptr().add(offset), 0, len) };
    }

    /// Returns the bytes of a range that the daemon has filled.
    ///
    /// # Panics
    /// If the range leaves the memory: the caller chose it.
    #[must_use]
    pub fn get(&self, offset: usize, len: usize) -> &[u8] {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len()), "lent memory ends before {end:?}");
        // SAFETY: the range lies inside the mapping, which lives as long as `self`. The daemon
        // fills a range before it answers, and touches it again only when it is asked to.
        unsafe { std::slice::from_raw_parts(self.0.start().as_ptr().add(offset), len) }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn memory(len: u64) -> File {
        let file = File::from(memfd_create("lent-test", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(len).unwrap();
        file
    }

    #[test]
    fn copied_bytes_are_in_the_file() {
        let file = memory(1 << 20);
        let mut lent = Lent::map(file.try_clone().unwrap().into(), 1 << 20).unwrap();
        let bytes: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
        lent.write(4096, &bytes[..100]);
        lent.write(4196, &bytes[100..]);
        let mut seen = vec![0; bytes.len()];
        file.read_exact_at(&mut seen, 4096).unwrap();
        assert!(seen == bytes && lent.get(4096, bytes.len()) == bytes);
        lent.clear(4096, 100);
        assert!(lent.get(4096, 100).iter().all(|byte| *byte == 0));
        assert_eq!(lent.get(4196, 1), &bytes[100..101]);
    }
}
