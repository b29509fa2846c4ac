//! Source of an excerpt: members of a shard, read from its origin as a tar of their own.
//!
//! The bytes go where they belong without another buffer. Unneeded bytes between two members of a
//! request are read over room that later members fill. A request goes on from one span to the next.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_error::{Error, Result};
use forebay_policy::access::REQUEST_BYTES;
use forebay_shard::{Excerpt, ExcerptRequest};
use forebay_source::{PeerTimes, RangeRead, Rank, Source, Stat, Turn};
use forebay_uring::Span;

use crate::sizes::PART_BYTES;

/// Bytes of an excerpt that are read at once, at least. Samples of some megabytes cost hardly more
/// requests than they are, and two such reads of a shard are in flight.
const LONG_READ: u64 = 4 * PART_BYTES as u64;

/// Separates the version of a shard from the identity of its excerpt.
const MARK: &str = " excerpt ";

/// Returns the version of the excerpt of this identity.
pub(crate) fn excerpt_version(whole: &str, identity: &str) -> String {
    format!("{whole}{MARK}{identity}")
}

/// Returns the version of the object that a shard or an excerpt of it has.
pub(crate) fn version_of_object(version: &str) -> &str {
    parts_of(version).map_or(version, |(version, _)| version)
}

/// Returns true for the version of an excerpt.
pub(crate) fn is_excerpt(version: &str) -> bool {
    parts_of(version).is_some()
}

/// Version of the object and identity of the excerpt, if this is the version of one. A store may
/// use the mark in versions of its own, but not with an identity behind it.
fn parts_of(version: &str) -> Option<(&str, &str)> {
    let parts = version.rsplit_once(MARK)?;
    let is_hex = parts.1.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (is_hex && parts.1.len() == Excerpt::HASH_DIGITS).then_some(parts)
}

/// Members of a shard as a tar of their own.
pub(crate) struct ExcerptSource {
    origin: Arc<dyn Source>,
    /// Stat of the whole shard.
    whole: Stat,
    /// Stat of the excerpt.
    own: Stat,
    excerpt: Arc<Excerpt>,
}

impl ExcerptSource {
    pub(crate) fn new(
        origin: Arc<dyn Source>,
        whole: Stat,
        own: Stat,
        excerpt: Arc<Excerpt>,
    ) -> Self {
        Self { origin, whole, own, excerpt }
    }
}

#[async_trait]
impl Source for ExcerptSource {
    async fn stat(&self, _url: &str) -> Result<Stat> {
        Ok(self.own.clone())
    }

    async fn range_read<'a>(
        &'a self,
        url: &'a str,
        _stat: &'a Stat,
        range: Range<u64>,
        rank: &'a Rank,
    ) -> Result<Box<dyn RangeRead + 'a>> {
        let requests = self.excerpt.requests(&range, REQUEST_BYTES).into();
        let Range { start: at, end } = range;
        Ok(Box::new(ExcerptRead { source: self, url, rank, at, end, requests, open: None }))
    }

    fn at_once(&self) -> u64 {
        // A member that two of them share takes two requests.
        self.origin.at_once().max(LONG_READ)
    }

    async fn turn(&self, url: &str, rank: &Rank) -> Result<Turn> {
        self.origin.turn(url, rank).await
    }

    fn trouble(&self, url: &str) -> Option<Error> {
        self.origin.trouble(url)
    }

    fn is_remote(&self) -> bool {
        self.origin.is_remote()
    }

    fn peer_times(&self) -> Option<&PeerTimes> {
        self.origin.peer_times()
    }

    fn scope(&self) -> &str {
        self.origin.scope()
    }

    fn endpoint(&self) -> &str {
        self.origin.endpoint()
    }
}

/// Consecutive bytes of an excerpt.
struct ExcerptRead<'a> {
    source: &'a ExcerptSource,
    url: &'a str,
    rank: &'a Rank,
    at: u64,
    end: u64,
    /// Requests for the bytes from `at` on.
    requests: VecDeque<ExcerptRequest>,
    /// Request that reached beyond the span before: it goes on in the next.
    open: Option<OpenRequest<'a>>,
}

/// A request whose reply is read piece by piece.
struct OpenRequest<'a> {
    /// Pieces that are still to come.
    pieces: VecDeque<(Range<u64>, u64)>,
    /// Start and end of the rest in the excerpt.
    into: Range<u64>,
    read: Box<dyn RangeRead + 'a>,
    /// Place in the shard up to which it was read.
    read_to: u64,
}

#[async_trait]
impl RangeRead for ExcerptRead<'_> {
    async fn fill(&mut self, mut into: Span) -> Result<Span> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let len = left.min(into.len());
        let range = self.at..self.at + len as u64;
        let (mut reads, mut at) = (Vec::new(), range.start);
        while let Some(open) = self.next(range.end).await? {
            let here = open.into.start..open.into.end.min(range.end);
            let mut before = into.split_to(length(at..here.start));
            self.source.excerpt.frame(at, &mut before);
            let room = into.split_to(length(here.clone()));
            at = here.end;
            let excerpt = &*self.source.excerpt;
            reads.push(async move {
                let (room, rest) = open.read(excerpt, here, room).await?;
                Ok::<_, Error>((before.join(room), rest))
            });
        }
        let mut behind = into.split_to(length(at..range.end));
        self.source.excerpt.frame(at, &mut behind);
        let mut filled: Option<Span> = None;
        for (read, rest) in futures::future::try_join_all(reads).await? {
            filled = Some(match filled {
                Some(filled) => filled.join(read),
                None => read,
            });
            self.open = rest;
        }
        self.at = range.end;
        let rest = behind.join(into);
        Ok(match filled {
            Some(filled) => filled.join(rest),
            None => rest,
        })
    }
}

impl<'a> ExcerptRead<'a> {
    /// Returns the next request for bytes before `end`: the open one, or one that begins.
    async fn next(&mut self, end: u64) -> Result<Option<OpenRequest<'a>>> {
        if let Some(open) = self.open.take() {
            return Ok(Some(open));
        }
        let Some(request) = self.requests.pop_front_if(|request| request.into.start < end) else {
            return Ok(None);
        };
        let ExcerptRequest { into, from, pieces } = request;
        let ExcerptSource { origin, whole, .. } = self.source;
        let read_to = from.start;
        let read = origin.range_read(self.url, whole, from, self.rank).await?;
        Ok(Some(OpenRequest { pieces: pieces.into(), into, read, read_to }))
    }
}

impl<'a> OpenRequest<'a> {
    /// Reads what belongs to `here`, which begins where it stands, with headers and padding between
    /// its members. Returns the rest of the request, if there is one.
    async fn read(
        mut self,
        excerpt: &Excerpt,
        here: Range<u64>,
        mut room: Span,
    ) -> Result<(Span, Option<OpenRequest<'a>>)> {
        let mut at = here.start;
        let mut filled = room.split_to(0);
        while let Some((piece, start)) =
            self.pieces.pop_front_if(|(piece, _)| piece.start < here.end)
        {
            let mut before = room.split_to(length(at..piece.start));
            excerpt.frame(at, &mut before);
            while self.read_to < start {
                // There is room for a byte at least: a member follows.
                let skipped = length(self.read_to..start).min(room.len());
                let scratch = self.read.fill(room.split_to(skipped)).await?;
                room = scratch.join(room);
                self.read_to += skipped as u64;
            }
            let end = piece.end.min(here.end);
            let data = self.read.fill(room.split_to(length(piece.start..end))).await?;
            filled = filled.join(before).join(data);
            self.read_to += end - piece.start;
            at = end;
            if end < piece.end {
                self.pieces.push_front((end..piece.end, self.read_to));
            }
        }
        excerpt.frame(at, &mut room);
        self.into.start = here.end;
        let rest = (!self.pieces.is_empty()).then_some(self);
        Ok((filled.join(room), rest))
    }
}

fn length(range: Range<u64>) -> usize {
    usize::try_from(range.end - range.start).expect("a part of a span")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_an_excerpt_names_its_object() {
        let whole = "\"an excerpt of\"";
        let hash = Excerpt::default().hash();
        let version = excerpt_version(whole, &hash);
        assert!(is_excerpt(&version) && !is_excerpt(whole));
        assert_eq!((version_of_object(&version), version_of_object(whole)), (whole, whole));
        assert!(!is_excerpt(&excerpt_version(whole, "of")));
    }
}
