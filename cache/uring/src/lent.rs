//! Memory that a client of the process may write at any time.
//!
//! The process never reads or writes these bytes itself: they may change under a reader. It only
//! names ranges of them to the kernel, which copies between them and files. So a client that
//! changes bytes while they are written spoils nothing but its own file.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};

use crate::region::Region;

/// Memory shared with one client, which maps it to write and to read.
#[derive(Debug, Clone)]
pub struct LentRegion(Arc<Region>);

impl LentRegion {
    /// Maps at least `len` bytes (rounded up to 2 MiB), zeroed. The `first` of them are backed at
    /// once, the others by [`LentRegion::back`]: zeroing 64 MiB takes 10 ms, and far longer in a
    /// virtual machine, which a client need not wait for before it uses the first.
    ///
    /// The descriptor is sealed against resizing and against further seals: the client can neither
    /// shrink the memory under the kernel nor outgrow its budget.
    ///
    /// # Errors
    /// As [`Region::create`].
    pub fn create(name: &str, len: usize, first: usize) -> Result<Self> {
        Region::create_lent(name, len, first).map(Self)
    }

    /// Backs the bytes up to an end. Blocks while the kernel zeroes them.
    ///
    /// # Errors
    /// `Full` if the machine lacks the memory.
    pub fn back(&self, end: usize) -> Result<()> {
        self.0.back(end)
    }

    /// Bytes from the start on that are backed.
    #[must_use]
    pub fn backed(&self) -> usize {
        self.0.backed()
    }

    /// Keeps `owned` until the memory is unmapped, as [`Region::keep`].
    pub fn keep(&self, owned: impl Send + Sync + 'static) {
        self.0.keep(owned);
    }

    /// The memfd, for the client.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// Length in bytes, a multiple of 2 MiB.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// A range of the memory for an operation.
    ///
    /// # Errors
    /// `Invalid` if the range leaves the backed part of the region.
    pub fn span(&self, range: Range<u64>) -> Result<LentSpan> {
        let inside = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        match inside.filter(|(start, end)| start <= end && *end <= self.backed()) {
            Some((start, end)) => {
                Ok(LentSpan { region: self.0.clone(), offset: start, len: end - start })
            }
            None => Err(Error::new(ErrorKind::Invalid, "a range lies outside of the lent memory")
                .at("start", range.start)
                .at("end", range.end)
                .at("bytes", self.backed())),
        }
    }

    /// Copies bytes to an offset, by the kernel.
    ///
    /// # Errors
    /// Those of the system call.
    pub fn fill(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        // No slice of the mapping is made: the client may write it at any time.
        let (mut at, mut left) = (offset, bytes);
        while !left.is_empty() {
            match rustix::io::pwrite(self.fd(), left, at)? {
                0 => return Err(std::io::ErrorKind::WriteZero.into()),
                wrote => (at, left) = (at + wrote as u64, &left[wrote..]),
            }
        }
        Ok(())
    }
}

/// A range of lent memory. It gives no access to the bytes, and may overlap others.
#[derive(Debug, Clone)]
pub struct LentSpan {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

impl LentSpan {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for a range without bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes out, by the kernel: a snapshot that the client changes no more.
    ///
    /// # Errors
    /// Those of the system call; `UnexpectedEof` if `into` is longer than the range.
    pub fn copy_to(&self, into: &mut [u8]) -> std::io::Result<()> {
        if into.len() > self.len {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let (mut at, mut left) = (self.offset as u64, into);
        while !left.is_empty() {
            match rustix::io::pread(self.region.fd(), &mut *left, at)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                read => (at, left) = (at + read as u64, &mut left[read..]),
            }
        }
        Ok(())
    }

    /// Copies bytes in, by the kernel.
    ///
    /// # Errors
    /// Those of the system call; `WriteZero` if `bytes` are more than the range holds.
    pub fn fill(&self, bytes: &[u8]) -> std::io::Result<()> {
        match bytes.len() > self.len {
            true => Err(std::io::ErrorKind::WriteZero.into()),
            false => LentRegion(self.region.clone()).fill(self.offset as u64, bytes),
        }
    }

    /// Start in its region, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// The region it lies in.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }
}
