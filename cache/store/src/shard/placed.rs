//! Bytes of a shard in a span, checked member by member.

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Member;
use forebay_shard::checksum::crc32c;
use forebay_uring::Span;

use crate::device::is_silent;

/// Unchecked bytes of a shard in a span.
#[derive(Debug)]
pub struct Placed {
    pub(super) span: Span,
    /// Offset in the shard of the span's first byte.
    pub(super) start: u64,
    pub(super) from_tier: bool,
    pub(super) outcome: Result<()>,
}

impl Placed {
    /// Checks a member, and returns the offset of its data in the span's region.
    ///
    /// # Errors
    /// `Corrupt` if the bytes differ from those the indexer saw; the error of the read.
    pub fn check(&self, member: &Member) -> Result<usize> {
        self.outcome.clone()?;
        let from = usize::try_from(member.offset - self.start).unwrap_or(usize::MAX);
        let len = usize::try_from(member.len).unwrap_or(usize::MAX);
        let bytes = from.checked_add(len).and_then(|end| self.span.get(from..end));
        match bytes {
            Some(bytes) if crc32c(bytes) == member.crc32c => Ok(self.span.offset() + from),
            _ => {
                Err(Error::new(ErrorKind::Corrupt, "a member differs from the bytes of the origin")
                    .at("offset", member.offset))
            }
        }
    }

    /// Returns true if the bytes came from the tier, not from frames of a running fill.
    #[must_use]
    pub fn from_tier(&self) -> bool {
        self.from_tier
    }

    /// Returns true if the device of the tier keeps the memory: the range must be read again, into
    /// other memory.
    #[must_use]
    pub fn is_stranded(&self) -> bool {
        self.outcome.as_ref().is_err_and(is_silent)
    }

    /// The unchecked memory, if the read succeeded.
    pub(crate) fn whole(self) -> Result<Span> {
        self.outcome.map(|()| self.span)
    }

    /// The memory, to be kept while the bytes are in use.
    #[must_use]
    pub fn into_span(self) -> Span {
        self.span
    }
}
