//! The ring's tables of registered memory and files.
//!
//! An index is free, or belongs to one region or file; it is given to the next only after
//! the kernel was told to forget the last. A refusal costs speed, never an operation.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use io_uring::Submitter;

use crate::engine::counters::{Counting, add};
use crate::engine::flight::Window;
use crate::region::Region;
use crate::span::Memory;

/// Pieces of memory that can be registered: a terabyte in full pieces, for an 8 KiB table (the
/// kernel takes 16 384).
const BUFFERS: u16 = 1024;

/// Most bytes in one piece; the kernel answers EFAULT to more.
const PIECE: usize = 1 << 30;

/// Files that can be registered: as many as a process may usually open (RLIMIT_NOFILE is 1024 by
/// default), for an 8 KiB table.
const FILES: u32 = 1024;

/// Registered memory.
pub(super) struct BufferTable {
    free: Vec<u16>,
    regions: HashMap<u64, Vec<u16>>,
    /// Reason there is no table at all.
    missing: Option<String>,
}

impl BufferTable {
    pub(super) fn new(submitter: &Submitter<'_>, counting: &Counting) -> Self {
        add(&counting.system_calls, 1);
        let made = submitter.register_buffers_sparse(u32::from(BUFFERS));
        let missing = made.err().map(|error| format!("no table for registered memory: {error}"));
        let free = if missing.is_some() { Vec::new() } else { (0..BUFFERS).rev().collect() };
        Self { free, regions: HashMap::new(), missing }
    }

    /// Registers a region whole or not at all.
    pub(super) fn set(
        &mut self,
        submitter: &Submitter<'_>,
        region: &Arc<Region>,
        counting: &Counting,
    ) -> io::Result<()> {
        if self.regions.contains_key(&region.id()) {
            return Ok(());
        }
        if let Some(missing) = &self.missing {
            return Err(io::Error::other(missing.clone()));
        }
        let mut indexes = Vec::new();
        for start in (0..region.len()).step_by(PIECE) {
            let registered = match self.free.pop() {
                None => Err(io::Error::other("the table of registered memory is full")),
                Some(index) => {
                    indexes.push(index);
                    let len = PIECE.min(region.len() - start);
                    // SAFETY: start < len of the region, so the piece begins inside its mapping.
                    let base = unsafe { region.base().as_ptr().add(start) };
                    update(submitter, index, base, len, counting)
                }
            };
            if let Err(error) = registered {
                self.release(submitter, &indexes, counting);
                return Err(explain(error));
            }
        }
        self.regions.insert(region.id(), indexes);
        Ok(())
    }

    /// Forgets a region.
    pub(super) fn clear(&mut self, submitter: &Submitter<'_>, id: u64, counting: &Counting) {
        if let Some(indexes) = self.regions.remove(&id) {
            self.release(submitter, &indexes, counting);
        }
    }

    /// The index under which the window's memory is registered, if it is, as one piece.
    pub(super) fn index_of(&self, memory: &Memory, window: Window) -> Option<u16> {
        let indexes = self.regions.get(&memory.region().id())?;
        let piece = piece_of(memory.offset() + window.start, window.len)?;
        indexes.get(piece).copied()
    }

    fn release(&mut self, submitter: &Submitter<'_>, indexes: &[u16], counting: &Counting) {
        for &index in indexes {
            match update(submitter, index, ptr::null_mut(), 0, counting) {
                Ok(()) => self.free.push(index),
                // The index stays out of use; its memory is released with the ring.
                Err(error) => tracing::warn!(%error, index, "failed to unregister memory"),
            }
        }
    }
}

/// The one piece of a region that holds `len` bytes from `start` on; `None` if they cross a border.
fn piece_of(start: usize, len: usize) -> Option<usize> {
    let last = start + len.saturating_sub(1);
    (start / PIECE == last / PIECE).then_some(start / PIECE)
}

/// Sets one entry of the buffer table; a null base empties it.
fn update(
    submitter: &Submitter<'_>,
    index: u16,
    base: *mut u8,
    len: usize,
    counting: &Counting,
) -> io::Result<()> {
    let piece = [libc::iovec { iov_base: base.cast(), iov_len: len }];
    add(&counting.system_calls, 1);
    // SAFETY: the range is mapped while this call runs (the caller holds the region). The kernel
    // pins the pages behind it, so that unmapping them later frees nothing an operation may touch,
    // and operations name only ranges of spans, which keep their region mapped.
    unsafe { submitter.register_buffers_update(u32::from(index), &piece, None) }
}

/// Says what the usual refusal means.
fn explain(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => io::Error::other(format!(
            "{error}: the memlock limit is too low; raise it (systemd: LimitMEMLOCK=infinity)"
        )),
        _ => error,
    }
}

/// Registered files.
pub(super) struct FileTable {
    free: Vec<u32>,
}

impl FileTable {
    /// A kernel that refuses the table (before 5.19) leaves every file unregistered, which the
    /// report shows as a count of zero.
    pub(super) fn new(submitter: &Submitter<'_>, counting: &Counting) -> Self {
        add(&counting.system_calls, 1);
        match submitter.register_files_sparse(FILES) {
            Ok(()) => Self { free: (0..FILES).rev().collect() },
            Err(error) => {
                tracing::warn!(%error, "io_uring has no table for registered files");
                Self { free: Vec::new() }
            }
        }
    }

    /// Registers a descriptor, if there is room.
    pub(super) fn set(
        &mut self,
        submitter: &Submitter<'_>,
        fd: BorrowedFd<'_>,
        counting: &Counting,
    ) -> Option<u32> {
        let index = self.free.pop()?;
        add(&counting.system_calls, 1);
        match submitter.register_files_update(index, &[fd.as_raw_fd()]) {
            Ok(_) => Some(index),
            Err(error) => {
                tracing::warn!(%error, "failed to register a file");
                self.free.push(index);
                None
            }
        }
    }

    /// Lets go of a file.
    pub(super) fn clear(&mut self, submitter: &Submitter<'_>, index: u32, counting: &Counting) {
        const EMPTY: i32 = -1;
        add(&counting.system_calls, 1);
        match submitter.register_files_update(index, &[EMPTY]) {
            Ok(_) => self.free.push(index),
            // The index stays out of use; the file is released with the ring.
            Err(error) => tracing::warn!(%error, index, "failed to unregister a file"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_across_two_pieces_belongs_to_neither() {
        assert_eq!(piece_of(0, PIECE), Some(0));
        assert_eq!(piece_of(PIECE - 4096, 4096), Some(0));
        assert_eq!(piece_of(PIECE - 4096, 8192), None);
        assert_eq!(piece_of(3 * PIECE, 4096), Some(3));
    }
}
