//! The client's map of memory that a daemon lends to it.
//!
//! The client writes blocks of a checkpoint there, or reads blocks that the daemon has put there.
//! The daemon never looks at the bytes; it only names them to its kernel. So both sides agree by
//! messages on who uses a range, and a client that breaks the agreement spoils only its own file.

use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Lent memory, mapped to read and to write.
pub struct Lent {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is process-wide and lives until drop. All access goes through `&mut self`
// for writes and `&self` for reads, so threads of this process never race.
unsafe impl Send for Lent {}
// SAFETY: as above: `&self` only reads.
unsafe impl Sync for Lent {}

impl Lent {
    /// Maps a descriptor that came with a message.
    ///
    /// # Errors
    /// `Invalid` if the descriptor is smaller than announced; otherwise the error of `mmap`.
    pub fn map(descriptor: OwnedFd, len: u64) -> Result<Self> {
        let held = rustix::fs::fstat(&descriptor).doing("stat the lent memory")?.st_size;
        let len = usize::try_from(len)
            .ok()
            .filter(|len| *len > 0 && u64::try_from(held).is_ok_and(|held| held >= *len as u64))
            .ok_or_else(|| {
                Error::new(ErrorKind::Invalid, "the lent memory does not have the announced size")
                    .at("announced", len)
                    .at("held", held)
            })?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours; the
        // daemon sealed the descriptor against resizing, so no access can fault past its end.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &descriptor, 0) }
                .doing("map the lent memory")?;
        let start = NonNull::new(start.cast()).expect("mmap never returns null on success");
        Ok(Self { start, len })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: memory without bytes is rejected when it is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes to an offset.
    ///
    /// # Panics
    /// If the bytes do not fit: the caller chose the offset.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= self.len), "lent memory ends before {end:?}");
        // SAFETY: the range lies inside the mapping, and `bytes` is other memory: a caller cannot
        // borrow this mapping while it is mutably borrowed here.
        unsafe {
            let to = self.start.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Sets the bytes from an offset on to zero.
    ///
    /// # Panics
    /// If the range leaves the memory: the caller chose it.
    pub fn clear(&mut self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "lent memory ends before {end:?}");
        // SAFETY: the range lies inside the mapping, which only this call touches.
        unsafe { std::ptr::write_bytes(self.start.as_ptr().add(offset), 0, len) };
    }

    /// Returns the bytes of a range that the daemon has filled.
    ///
    /// # Panics
    /// If the range leaves the memory: the caller chose it.
    #[must_use]
    pub fn get(&self, offset: usize, len: usize) -> &[u8] {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "lent memory ends before {end:?}");
        // SAFETY: the range lies inside the mapping, which lives as long as `self`. The daemon
        // fills a range before it answers, and touches it again only when it is asked to.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), len) }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this start and length, and every slice of it
        // borrowed `self`. A failure leaves address space mapped, which harms nobody.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
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

    #[test]
    fn memory_smaller_than_announced_is_rejected() {
        let error = Lent::map(memory(4096).into(), 8192).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(Lent::map(memory(0).into(), 0).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
