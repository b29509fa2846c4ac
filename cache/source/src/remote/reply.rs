//! One reply of a store, as it comes.
//!
//! Before a byte is given out, the reply is known to be of the version and the range that
//! were asked for; what ends early is a fault, and what does not end there, too.

use std::ops::Range;
use std::time::Instant;

use bytes::{Buf as _, Bytes};
use forebay_error::{Error, ErrorKind};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use object_store::{GetOptions, GetRange};

use super::attempts::{Again, Failed};
use super::link::{Asking, Blame, Lack};
use super::protocol::UNCONDITIONAL;
use super::wire::Noted;
use super::{Got, Object};
use crate::stat::{Binding, Stat, changed};

type Chunks = BoxStream<'static, object_store::Result<Bytes>>;

/// A request under way, or its reply.
pub(super) struct Reply {
    object: Object,
    state: ReplyState,
    /// Range of the object still to come.
    left: Range<u64>,
    /// Bytes to drop before them: the reply is the whole object, in place of a part.
    skip: u64,
    /// True if more may follow, which is dropped.
    has_more: bool,
    asked: Instant,
    first: Option<Instant>,
    got: u64,
}

enum ReplyState {
    Asked(BoxFuture<'static, Result<(Chunks, bool), Failed>>),
    Coming(Chunks),
    Over,
}

impl Reply {
    /// Asks for `range` of the version `stat`; all of it, if that has nothing to be known by.
    pub(super) fn ask(object: Object, stat: Stat, range: Range<u64>, deadline: Instant) -> Self {
        let (of, wanted) = (object.clone(), range.clone());
        let asked = async move { chunks(&of, &stat, wanted, deadline).await };
        Self::new(object, ReplyState::Asked(asked.boxed()), range, Instant::now())
    }

    /// The reply that a request already has.
    pub(super) fn of(object: Object, got: Got, range: Range<u64>, asked: Instant) -> Self {
        Self::new(object, ReplyState::Coming(got.result.into_stream()), range, asked)
    }

    fn new(object: Object, state: ReplyState, left: Range<u64>, asked: Instant) -> Self {
        Self { object, state, left, skip: 0, has_more: false, asked, first: None, got: 0 }
    }

    /// Bytes that were asked for.
    pub(super) fn whole(&self) -> u64 {
        self.got + (self.left.end - self.left.start)
    }

    /// Returns true once bytes of it came.
    pub(super) fn has_begun(&self) -> bool {
        self.first.is_some()
    }

    /// Returns the time of the request.
    pub(super) fn asked(&self) -> Instant {
        self.asked
    }

    /// The next bytes; there are some until all came, of a stream without length none at its end.
    /// May be dropped and called again.
    pub(super) async fn chunk(&mut self) -> Result<Bytes, Failed> {
        loop {
            match &mut self.state {
                ReplyState::Asked(asked) => match asked.await {
                    Ok((chunks, is_whole)) => {
                        self.state = ReplyState::Coming(chunks);
                        if is_whole {
                            (self.skip, self.has_more) = (self.left.start, true);
                        }
                    }
                    Err(failed) => {
                        self.state = ReplyState::Over;
                        return Err(failed);
                    }
                },
                ReplyState::Coming(chunks) => match chunks.next().await {
                    Some(Ok(mut chunk)) => {
                        self.first.get_or_insert_with(Instant::now);
                        let skipped = self.skip.min(chunk.len() as u64);
                        self.skip -= skipped;
                        // At most the chunk's length, as just compared.
                        chunk.advance(skipped as usize);
                        if !chunk.is_empty() {
                            return self.take(chunk);
                        }
                    }
                    Some(Err(error)) => {
                        self.state = ReplyState::Over;
                        let noted = Noted::default();
                        return Err(self.object.refused(&error, &noted, self.object.answers()));
                    }
                    None => {
                        self.state = ReplyState::Over;
                        if self.left.end == u64::MAX {
                            self.landed();
                            return Ok(Bytes::new());
                        }
                        return Err(self.wrong_length());
                    }
                },
                ReplyState::Over => return Err(self.wrong_length()),
            }
        }
    }

    fn take(&mut self, mut chunk: Bytes) -> Result<Bytes, Failed> {
        let left = self.left.end - self.left.start;
        if self.has_more && chunk.len() as u64 > left {
            // Below the chunk's length, as just compared.
            chunk.truncate(left as usize);
        }
        let len = chunk.len() as u64;
        if len > left {
            self.state = ReplyState::Over;
            return Err(self.wrong_length());
        }
        self.got += len;
        self.left.start += len;
        self.object.received(chunk.len());
        if self.left.is_empty() {
            self.landed();
        }
        Ok(chunk)
    }

    fn wrong_length(&self) -> Failed {
        let what = "the store sent a wrong number of bytes";
        Failed::for_now(
            Error::new(ErrorKind::Unavailable, what)
                .at("url", self.object.url())
                .at("offset", self.left.start),
        )
    }

    /// Ends it without a word of its duration.
    pub(super) fn abandon(mut self) {
        self.first = None;
    }

    /// Tells the link how this one went.
    fn landed(&mut self) {
        if let Some(first) = self.first.take() {
            let wait = first.duration_since(self.asked);
            self.object.link().landed(wait, self.got, first.elapsed());
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        // The bytes came over the link in any case.
        self.landed();
    }
}

/// Most bytes of an object that are read and dropped to reach a part of it, where the server sends
/// all in its place: less than asking for the shard anew would cost.
const SKIPPED_MOST: u64 = 64 << 20;

/// The bytes of a reply to a request for `range`, and true if they are those of the whole object.
async fn chunks(
    object: &Object,
    stat: &Stat,
    range: Range<u64>,
    deadline: Instant,
) -> Result<(Chunks, bool), Failed> {
    let is_all = match stat.binding {
        Binding::Strong | Binding::Weak => false,
        Binding::Sequential if range == (0..stat.len) => true,
        Binding::Stream if range.start == 0 => true,
        Binding::Sequential | Binding::Stream => {
            return Err(Failed::for_good(only_whole(object, range.start)));
        }
    };
    let got = match stat.binding {
        Binding::Strong => version_of(object, stat, &range, deadline).await?,
        Binding::Weak | Binding::Sequential | Binding::Stream => {
            let wanted = (!is_all).then(|| GetRange::Bounded(range.clone()));
            object.try_once(GetOptions { range: wanted, ..GetOptions::default() }, deadline).await?
        }
    };
    let now = object.stat_of(&got);
    // Not every store honours If-Match, and what is weak cannot be sent.
    if now.len != stat.len || now.version != stat.version {
        return Err(Failed::for_good(changed(object.url())));
    }
    let is_whole = got.head.range.is_none();
    if !is_all && is_whole && range.start > SKIPPED_MOST {
        return Err(Failed::for_good(without_ranges(object, range.start)));
    }
    Ok((got.result.into_stream(), is_whole && !is_all))
}

/// Asks for a part of the version that has this ETag. Where the server knows no `If-Match`, the
/// reply's own ETag tells.
async fn version_of(
    object: &Object,
    stat: &Stat,
    range: &Range<u64>,
    deadline: Instant,
) -> Result<Got, Failed> {
    let lacks = object.link().lacks();
    let part = || Some(GetRange::Bounded(range.clone()));
    let plain = || GetOptions { range: part(), ..GetOptions::default() };
    if !lacks.know(Lack::Conditions, &object.folder) {
        let if_match = Some(stat.version.clone());
        let got = object.try_once(GetOptions { if_match, ..plain() }, deadline).await;
        match got {
            Err(Failed { status: Some(status), .. }) if UNCONDITIONAL.contains(&status) => {}
            got => return got,
        }
        let got = object.try_once(plain(), deadline).await?;
        if object.stat_of(&got).version == stat.version
            && lacks.find(Lack::Conditions, &object.folder)
        {
            let folder = forebay_error::shown(&object.folder);
            tracing::info!(folder, "the server knows no If-Match: each reply's ETag is compared");
        }
        return Ok(got);
    }
    object.try_once(plain(), deadline).await
}

/// Returns the error for a part of an object that the server sends as a whole only.
fn without_ranges(object: &Object, offset: u64) -> Error {
    Error::new(ErrorKind::Unavailable, "the server answers a range request with the whole shard")
        .at("url", object.url())
        .at("status", 200)
        .at("offset", offset)
        .advise("serve the shards with a server that honours Range requests")
}

/// Returns the error for an object that can only be read as a whole.
fn only_whole(object: &Object, offset: u64) -> Error {
    let what = "the connection broke, and the server cannot resume without byte ranges";
    let advice = "serve it with an ETag or a Last-Modified header, and with byte ranges";
    Error::new(ErrorKind::Unavailable, what)
        .at("url", object.url())
        .at("offset", offset)
        .advise(advice)
}

/// Reports the endpoint's answer to its breaker.
pub(super) fn tell(asking: Asking<'_>, failed: Option<&Failed>) {
    match failed {
        None => asking.answered(),
        Some(Failed { blame: Blame::Object, status: Some(_), .. }) => asking.refused(),
        Some(Failed { again: Again::Never, blame: Blame::Object, .. }) => asking.refused(),
        Some(failed) => asking.failed(failed.blame, &failed.error),
    }
}
