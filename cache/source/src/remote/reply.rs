//! One reply of a store, as it comes.
//!
//! Before a byte is given out, the reply is known to be of the version and the range that
//! were asked for; what ends early is a fault, and what does not end there, too.

use std::ops::Range;
use std::time::Instant;

use bytes::Bytes;
use forebay_error::{Error, ErrorKind};
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use object_store::{GetOptions, GetRange, GetResult};

use super::Object;
use super::attempts::{Again, Failed};
use super::link::Asking;
use crate::stat::{Binding, Stat, changed};

type Chunks = BoxStream<'static, object_store::Result<Bytes>>;

/// A request under way, or its reply.
pub(super) struct Reply {
    object: Object,
    state: ReplyState,
    /// Range of the object still to come.
    left: Range<u64>,
    asked: Instant,
    first: Option<Instant>,
    got: u64,
}

enum ReplyState {
    Asked(BoxFuture<'static, Result<Chunks, Failed>>),
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
    pub(super) fn of(object: Object, got: GetResult, asked: Instant) -> Self {
        let range = got.range.clone();
        Self::new(object, ReplyState::Coming(got.into_stream()), range, asked)
    }

    fn new(object: Object, state: ReplyState, left: Range<u64>, asked: Instant) -> Self {
        Self { object, state, left, asked, first: None, got: 0 }
    }

    /// Bytes that were asked for.
    pub(super) fn whole(&self) -> u64 {
        self.got + (self.left.end - self.left.start)
    }

    /// Returns the time of the request.
    pub(super) fn asked(&self) -> Instant {
        self.asked
    }

    /// The next bytes; there are some until all came. May be dropped and called again.
    pub(super) async fn chunk(&mut self) -> Result<Bytes, Failed> {
        loop {
            match &mut self.state {
                ReplyState::Asked(asked) => match asked.await {
                    Ok(chunks) => self.state = ReplyState::Coming(chunks),
                    Err(failed) => {
                        self.state = ReplyState::Over;
                        return Err(failed);
                    }
                },
                ReplyState::Coming(chunks) => match chunks.next().await {
                    Some(Ok(chunk)) if chunk.is_empty() => {}
                    Some(Ok(chunk)) => return self.take(chunk),
                    Some(Err(error)) => {
                        self.state = ReplyState::Over;
                        return Err(self.object.refused(&error, None, self.object.answers()));
                    }
                    None => {
                        self.state = ReplyState::Over;
                        return Err(self.wrong_length());
                    }
                },
                ReplyState::Over => return Err(self.wrong_length()),
            }
        }
    }

    fn take(&mut self, chunk: Bytes) -> Result<Bytes, Failed> {
        let len = chunk.len() as u64;
        if len > self.left.end - self.left.start {
            self.state = ReplyState::Over;
            return Err(self.wrong_length());
        }
        self.first.get_or_insert_with(Instant::now);
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

async fn chunks(
    object: &Object,
    stat: &Stat,
    range: Range<u64>,
    deadline: Instant,
) -> Result<Chunks, Failed> {
    let (wanted, if_match) = match stat.binding {
        Binding::Strong => (Some(GetRange::Bounded(range.clone())), Some(stat.version.clone())),
        Binding::Weak => (Some(GetRange::Bounded(range.clone())), None),
        Binding::Sequential if range == (0..stat.len) => (None, None),
        Binding::Sequential | Binding::Stream => {
            return Err(Failed::for_good(only_whole(object, range.start)));
        }
    };
    let asking = object.link().enter(deadline).await.map_err(Failed::for_good)?;
    let options = GetOptions { range: wanted, if_match, ..GetOptions::default() };
    let got = object.get(options, asking).await?;
    let now = object.stat_of(&got.meta);
    // Not every store honours If-Match, and what is weak cannot be sent.
    let is_same = match stat.binding {
        Binding::Strong | Binding::Weak => now == *stat,
        Binding::Sequential => now.len == stat.len && got.range == range,
        // No server's.
        Binding::Stream => false,
    };
    match is_same {
        true => Ok(got.into_stream()),
        false => Err(Failed::for_good(changed(object.url()))),
    }
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
        Some(Failed { again: Again::Later(_), .. }) => asking.failed(),
        Some(_) => asking.refused(),
        None => asking.answered(),
    }
}
