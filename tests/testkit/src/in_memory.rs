//! An origin in this process's memory: it answers as fast as memory is copied, and never fails.

use std::ops::Range;

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Binding, RangeRead, Rank, Source, Stat};
use forebay_uring::Span;

/// An object whose bytes every URL of the source names. Its version never changes.
#[derive(Debug)]
pub struct InMemory(Vec<u8>);

impl InMemory {
    /// An origin of these bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Bytes of the object.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[async_trait]
impl Source for InMemory {
    async fn stat(&self, _: &str) -> Result<Stat> {
        Ok(Stat::new(self.0.len() as u64, "1".to_owned(), Binding::Strong))
    }

    async fn range_read<'a>(
        &'a self,
        _: &'a str,
        _: &'a Stat,
        range: Range<u64>,
        _: &'a Rank,
    ) -> Result<Box<dyn RangeRead + 'a>> {
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        let bytes = self.0.get(place(range.start)..place(range.end));
        let beyond = || Error::new(ErrorKind::Invalid, "a range beyond the object's end");
        Ok(Box::new(Slice(bytes.ok_or_else(beyond)?)))
    }

    fn endpoint(&self) -> &str {
        "memory"
    }
}

/// Bytes of a range that were not read yet.
struct Slice<'a>(&'a [u8]);

#[async_trait]
impl RangeRead for Slice<'_> {
    async fn fill(&mut self, mut into: Span) -> Result<Span> {
        let (next, rest) = self.0.split_at(self.0.len().min(into.len()));
        into[..next.len()].copy_from_slice(next);
        self.0 = rest;
        Ok(into)
    }
}
