//! Bytes of a shard in a span, checked member by member.

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Member;
use forebay_shard::checksum::crc32c;
use forebay_uring::Span;

use crate::device::is_silent;
use crate::held::HeldBytes;

/// Unchecked bytes of a shard in a span.
#[derive(Debug)]
pub struct Placed {
    pub(super) span: Span,
    /// Offset in the shard of the span's first byte.
    pub(super) start: u64,
    pub(super) from_tier: bool,
    pub(super) outcome: Result<()>,
    /// The bytes, if they lie in other memory: a check copies those of its member.
    pub(super) held: Option<HeldBytes>,
}

impl Placed {
    /// Checks a member, and returns the offset of its data in the span's region. Only checked
    /// members are there.
    ///
    /// # Errors
    /// `Corrupt` if the bytes differ from those the indexer saw; the error of the read.
    pub fn check(&mut self, member: &Member) -> Result<usize> {
        self.outcome.clone()?;
        let from = usize::try_from(member.offset - self.start).unwrap_or(usize::MAX);
        let len = usize::try_from(member.len).unwrap_or(usize::MAX);
        let place = from..from.saturating_add(len);
        let sum = match &self.held {
            Some(held) => held.copy(member.offset, &mut self.span, place),
            None => self.span.get(place).map(crc32c),
        };
        match sum {
            Some(sum) if sum == member.crc32c => Ok(self.span.offset() + from),
            _ => {
                Err(Error::new(ErrorKind::Corrupt, "a member differs from the bytes of the origin")
                    .at("offset", member.offset))
            }
        }
    }

    /// Drops the other memory: every wanted member is checked. It may be a frame that a fill needs,
    /// while this waits for other shards.
    pub fn end_checks(&mut self) {
        self.held = None;
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

    /// Copies all of the range if it lies in other memory: that is not kept while anything is
    /// awaited.
    pub(super) fn take_in(&mut self) {
        let Some(held) = self.held.take() else { return };
        let range = held.range();
        let place = |offset: u64| usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        let place = place(range.start)..place(range.end);
        if held.copy(range.start, &mut self.span, place).is_none() && self.outcome.is_ok() {
            let error = Error::new(ErrorKind::Corrupt, "the memory with a range ends inside it");
            self.outcome = Err(error.at("offset", range.start));
        }
    }

    /// The unchecked memory with all of the range, if the read succeeded.
    pub(crate) fn whole(mut self) -> Result<Span> {
        self.take_in();
        self.outcome.map(|()| self.span)
    }

    /// The memory, to be kept while checked members are in use.
    #[must_use]
    pub fn into_span(self) -> Span {
        self.span
    }
}
