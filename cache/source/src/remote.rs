//! Shards behind a network: how object stores and HTTP are the same.
//!
//! Its rule: one stat and one ranged read for all; a store says only where an object lies and what
//! a refusal means.

pub(crate) mod azure;
mod bucket;
pub(crate) mod gcs;
mod http;
mod hub;
mod reach;
mod refusal;
pub(crate) mod s3;
mod wire;

use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::Span;
use futures::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore};

use crate::stat::{Stat, changed};
pub(crate) use http::{Http, endpoint as check_endpoint};
pub(crate) use hub::Hub;
pub(crate) use reach::{Network, Reach};
use refusal::Refusals;
pub use wire::Counters;
pub(crate) use wire::Wire;

/// One object of a store, and how to word what the store says about it.
struct Object<'a> {
    url: &'a str,
    store: &'a dyn ObjectStore,
    location: &'a Path,
    wire: &'a Wire,
    refusals: &'a Refusals,
}

impl Object<'_> {
    async fn stat(&self) -> Result<Stat> {
        let result = self.get(GetOptions { head: true, ..GetOptions::default() }).await?;
        Ok(stat_of(&result.meta))
    }

    async fn read_part(&self, stat: &Stat, offset: u64, mut into: Span) -> Result<Span> {
        let len = stat.part_len(offset, into.len()).map_err(|e| e.at("url", self.url))?;
        let options = GetOptions {
            range: Some(GetRange::Bounded(offset..offset + len as u64)),
            if_match: stat.strong.then(|| stat.version.clone()),
            ..GetOptions::default()
        };
        let _permit = self.wire.permit().await?;
        let result = self.get(options).await?;
        // Not every store honours If-Match, and a weak version cannot be sent.
        if stat_of(&result.meta) != *stat {
            return Err(changed(self.url));
        }
        let mut filled = 0;
        let mut chunks = result.into_stream();
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| self.refused(&error))?;
            let room = into.get_mut(filled..len).filter(|room| chunk.len() <= room.len());
            let Some(room) = room else { return Err(self.wrong_length(offset)) };
            room[..chunk.len()].copy_from_slice(&chunk);
            filled += chunk.len();
            self.wire.received(chunk.len());
        }
        if filled == len { Ok(into) } else { Err(self.wrong_length(offset)) }
    }

    async fn get(&self, options: GetOptions) -> Result<GetResult> {
        let answers = self.refusals.answers();
        let again = options.clone();
        let got = match self.store.get_opts(self.location, options).await {
            Err(error) if self.refusals.renewed(&error, answers) => {
                self.store.get_opts(self.location, again).await
            }
            got => got,
        };
        got.map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &object_store::Error) -> Error {
        self.refusals.explain(error, self.url)
    }

    fn wrong_length(&self, offset: u64) -> Error {
        Error::new(ErrorKind::Unavailable, "the store sent another number of bytes than asked for")
            .at("url", self.url)
            .at("offset", offset)
    }
}

fn stat_of(meta: &ObjectMeta) -> Stat {
    match meta.e_tag.as_deref().filter(|etag| !etag.is_empty() && !etag.starts_with("W/")) {
        Some(etag) => Stat { len: meta.size, version: etag.to_owned(), strong: true },
        None => {
            let time = meta.last_modified.timestamp();
            Stat { len: meta.size, version: format!("{time}-{:x}", meta.size), strong: false }
        }
    }
}
