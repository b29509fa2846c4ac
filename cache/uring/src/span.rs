//! Exclusive use of one range of a region.
//!
//! No two spans of a process overlap, so `&mut Span` may give `&mut [u8]`.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::lent::LentSpan;
use crate::region::Region;

/// One lease of an arena: the range is free again when the last piece of it drops.
pub(crate) struct Block {
    region: Arc<Region>,
    start: usize,
    len: usize,
}

impl Drop for Block {
    fn drop(&mut self) {
        // An empty one was never taken from the list.
        if self.len > 0 {
            self.region.free_list().give_back(&self.region, self.start, self.len);
        }
    }
}

/// The exclusive owner of the bytes `[offset, offset + len)` of a region.
///
/// Bytes are zero when the region is new and keep what was last written into them: a fresh lease
/// shows what its last holder left.
pub struct Span {
    block: Arc<Block>,
    offset: usize,
    len: usize,
}

impl Span {
    /// A span over a range that the region's free list has just taken for the caller alone.
    pub(crate) fn new(region: &Arc<Region>, start: usize, len: usize) -> Self {
        let block = Arc::new(Block { region: Arc::clone(region), start, len });
        Self { block, offset: start, len }
    }

    /// Returns the span's start in its region, in bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True for the rest of a span split at its end.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The region the span lies in.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.block.region
    }

    /// Cuts the first `n` bytes off and returns them; `self` keeps the rest.
    ///
    /// Any `n` is allowed; a piece that is to be read into or written from must meet the file's
    /// alignment. The arena has the range back when all pieces are dropped.
    ///
    /// # Panics
    /// If `n` is more than the span holds.
    #[must_use = "dropping the piece gives nothing back until the rest is dropped too"]
    pub fn split_to(&mut self, n: usize) -> Self {
        assert!(n <= self.len, "split_to({n}) of a span of {} bytes", self.len);
        let piece = Self { block: Arc::clone(&self.block), offset: self.offset, len: n };
        self.offset += n;
        self.len -= n;
        piece
    }

    /// Puts `next`, which was cut off behind this piece, back to it.
    ///
    /// # Panics
    /// If it does not follow this piece in the same lease.
    #[must_use]
    pub fn join(mut self, next: Self) -> Self {
        let follows =
            Arc::ptr_eq(&self.block, &next.block) && next.offset == self.offset + self.len;
        assert!(follows, "join of {self:?} with {next:?}, which does not follow it");
        self.len += next.len;
        // Given back before the bytes are named by `self` alone.
        drop(next);
        self
    }

    /// An empty piece, which overlaps nothing.
    fn stub(&self) -> Self {
        Self { block: Arc::clone(&self.block), offset: self.offset, len: 0 }
    }

    /// Address of the first byte, for the kernel. Writing there needs ownership of the span.
    pub(crate) fn address(&self) -> NonNull<u8> {
        // SAFETY: offset is at most the region's length, so the result is inside the mapping or
        // one past its end, which an empty span never reads.
        unsafe { self.region().base().add(self.offset) }
    }
}

/// The bytes of a span that nobody writes any more, shared: they may be read, and written to a
/// file, at the same time. The range is free again when the last holder drops it.
#[derive(Debug, Clone)]
pub struct Frozen {
    span: Arc<Span>,
    len: usize,
}

impl Span {
    /// Gives up writing to the bytes; they can be shared from now on.
    #[must_use]
    pub fn freeze(self) -> Frozen {
        let len = self.len;
        Frozen { span: Arc::new(self), len }
    }
}

impl Frozen {
    /// The region that the bytes lie in.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        self.span.region()
    }

    /// Returns the start of the bytes in their region, in bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.span.offset
    }

    /// The first `len` bytes.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn head(&self, len: usize) -> Self {
        assert!(len <= self.len, "head({len}) of {} frozen bytes", self.len);
        Self { span: Arc::clone(&self.span), len }
    }
}

impl Deref for Frozen {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.span[..self.len]
    }
}

/// Memory of an operation's bytes.
#[derive(Debug)]
pub(crate) enum Memory {
    /// Memory of the operation alone.
    Span(Span),
    /// Only read from: others may read it at the same time.
    Frozen(Frozen),
    /// A client's, which may write it at any time.
    Lent(LentSpan),
}

impl Memory {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Span(span) => span.len,
            Self::Frozen(frozen) => frozen.len,
            Self::Lent(lent) => lent.len(),
        }
    }

    /// Returns its start in its region, in bytes.
    pub(crate) fn offset(&self) -> usize {
        match self {
            Self::Span(span) => span.offset,
            Self::Frozen(frozen) => frozen.span.offset,
            Self::Lent(lent) => lent.offset(),
        }
    }

    /// The region it lies in.
    pub(crate) fn region(&self) -> &Arc<Region> {
        match self {
            Self::Span(span) => span.region(),
            Self::Frozen(frozen) => frozen.span.region(),
            Self::Lent(lent) => lent.region(),
        }
    }

    /// Address of the first byte, for the kernel, which writes there unless it is frozen.
    pub(crate) fn address(&self) -> NonNull<u8> {
        // SAFETY: the offset is at most the region's length, so the result is inside the mapping
        // or one past its end, which an empty piece never reads.
        unsafe { self.region().base().add(self.offset()) }
    }

    /// Returns the span for the caller: an empty piece for memory that stays with others.
    pub(crate) fn into_span(self) -> Span {
        match self {
            Self::Span(span) => span,
            Self::Frozen(_) | Self::Lent(_) => self.stub(),
        }
    }

    /// An empty piece of it.
    pub(crate) fn stub(&self) -> Span {
        match self {
            Self::Span(span) => span.stub(),
            Self::Frozen(frozen) => frozen.span.stub(),
            Self::Lent(lent) => Span::new(lent.region(), lent.offset(), 0),
        }
    }
}

impl Deref for Span {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in a live mapping (the block holds the region), is fully backed
        // and initialised (new pages are zero), and belongs to this span alone: arenas take
        // disjoint ranges from the region's one free list and `split_to` cuts disjoint pieces. The
        // kernel writes only into spans that an engine owns, which no one can borrow; the memfd is
        // sealed against other writers.
        unsafe { slice::from_raw_parts(self.address().as_ptr(), self.len) }
    }
}

impl DerefMut for Span {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` excludes every other borrow of this range.
        unsafe { slice::from_raw_parts_mut(self.address().as_ptr(), self.len) }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span")
            .field("region", &self.region().id())
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish()
    }
}
