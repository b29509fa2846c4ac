//! Shards behind a network: the common part of all stores.
//!
//! Requests, retries, resumption and errors are the same for every store; a store adds the place of
//! an object, its client, and the meaning of its errors.
//!
//! ```text
//!   range_read.rs  consecutive bytes: resumed at the byte, requested twice when late
//!     attempts.rs    number and pauses of retries
//!     reply.rs       one reply: of the requested version and range, or an error
//!       head.rs        head of a reply, as the server meant it
//!       refusal.rs     meaning of an error: retry, or which kind
//!         protocol.rs    replies that are none
//!       link.rs        the endpoint: places, concurrency limit, late replies, circuit breaker
//!       wire.rs        the HTTP client
//!   bucket_sink.rs  writes, by the same link and with the same retries
//! ```

mod attempts;
pub(crate) mod azure;
mod bounded_body;
mod bucket;
mod bucket_sink;
mod error_document;
pub(crate) mod gcs;
mod head;
mod http;
mod hub;
mod link;
mod listing_page;
mod protocol;
mod range_read;
mod refusal;
mod reply;
pub(crate) mod s3;
mod s3_attributes;
mod store_client;
mod tls;
mod wire;

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectStore};

use crate::listing::Listing;
use crate::origin_checksum::Comparison;
use crate::queue::Rank;
use crate::stat::{Binding, Stat};
use crate::{Begun, Limits, RangeRead, Source};
use attempts::{Attempts, Failed};
pub(crate) use bucket_sink::BucketSink;
use head::Head;
pub(crate) use http::Http;
pub(crate) use hub::Hub;
pub(crate) use link::Link;
pub use link::LinkReport;
use link::{Asking, Lack, Target};
use range_read::ObjectRead;
use refusal::Refusals;
use reply::{Reply, tell};
pub(crate) use store_client::StoreClient;
pub use wire::Counters;
pub(crate) use wire::{Direction, Wire};

/// Bytes of the first request for a shard, before its size is known: a part, enough for the first
/// samples.
const HEAD: u64 = link::PART;

/// A store: where objects lie, and what its refusals mean.
#[async_trait]
pub(crate) trait Store: Send + Sync {
    /// The object behind `url`.
    fn locate(&self, url: &str) -> Result<(Arc<dyn ObjectStore>, Path)>;

    /// Returns the route all its requests share.
    fn route(&self) -> &Route;

    /// As [`Source::list`].
    async fn list(&self, pattern: &str) -> Result<Listing> {
        Err(crate::lists_nothing(pattern))
    }

    /// As [`Source::origin_checksum`].
    async fn origin_checksum(&self, _url: &str, _stat: &Stat) -> Option<Comparison> {
        None
    }
}

/// The way to an endpoint, once it is settled.
pub(crate) struct Route {
    wire: Arc<Wire>,
    link: Arc<Link>,
    refusals: Refusals,
}

impl Route {
    /// The way to the endpoint that `refusals` names.
    fn new(store_client: &StoreClient<'_>, mut refusals: Refusals) -> Self {
        let StoreClient { wire, limits, network, .. } = store_client;
        let link = wire.link(&refusals.endpoint, *limits, network);
        refusals.proxy = network.proxy_of(&refusals.endpoint);
        Self { wire: Arc::clone(store_client.wire), link, refusals }
    }

    /// Runs `once` with retries; with a `rank`, each attempt takes its turn among the requests for
    /// bytes.
    async fn asked<T, F>(
        &self,
        rank: Option<&Rank>,
        target: Target<'_>,
        once: impl Fn() -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        let mut attempts = Attempts::new(self.wire.limits());
        loop {
            let place = match rank {
                Some(rank) => Some(self.link.place(rank).await?),
                None => None,
            };
            let asking = self.link.enter(target, attempts.deadline()).await?;
            let got = once().await;
            tell(asking, got.as_ref().err());
            drop(place);
            match got {
                Ok(got) => return Ok(got),
                Err(failed) => attempts.again(failed, &self.link).await?,
            }
        }
    }
}

/// A source behind a network.
pub(crate) struct Remote<S>(Arc<S>);

impl<S: Store + 'static> Remote<S> {
    pub(crate) fn new(store: S) -> Self {
        Self(Arc::new(store))
    }

    fn object(&self, url: &str) -> Result<Object> {
        let (store, location) = self.0.locate(url)?;
        let of: Arc<dyn Store> = self.0.clone();
        Ok(Object { url: url.into(), folder: folder_of(url).into(), store, location, of })
    }
}

#[async_trait]
impl<S: Store + 'static> Source for Remote<S> {
    async fn stat(&self, url: &str) -> Result<Stat> {
        self.object(url)?.stat().await
    }

    async fn begin(&self, url: &str, rank: &Rank) -> Result<Begun> {
        self.object(url)?.begin(rank).await
    }

    async fn range_read<'a>(
        &'a self,
        url: &'a str,
        stat: &'a Stat,
        range: Range<u64>,
        rank: &'a Rank,
    ) -> Result<Box<dyn RangeRead + 'a>> {
        let object = self.object(url)?;
        Ok(Box::new(ObjectRead::new(object, stat.clone(), range, rank.clone())))
    }

    async fn list(&self, pattern: &str) -> Result<Listing> {
        self.0.list(pattern).await
    }

    async fn origin_checksum(&self, url: &str, stat: &Stat) -> Option<Comparison> {
        self.0.origin_checksum(url, stat).await
    }

    fn at_once(&self) -> u64 {
        self.0.route().link.request_bytes()
    }

    fn trouble(&self, url: &str) -> Option<Error> {
        self.0.route().link.trouble(Target { folder: folder_of(url), url })
    }

    fn has_ranges(&self, url: &str) -> bool {
        !self.0.route().link.lacks().know(Lack::Ranges, url)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn endpoint(&self) -> &str {
        &self.0.route().refusals.endpoint
    }
}

/// One object of a store.
#[derive(Clone)]
struct Object {
    url: Arc<str>,
    /// URL of what it lies in.
    folder: Arc<str>,
    store: Arc<dyn ObjectStore>,
    location: Path,
    of: Arc<dyn Store>,
}

/// A reply that passed: its head as the server meant it, and its body.
struct Got {
    head: Head,
    result: GetResult,
}

/// Ways to ask for length and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inquiry {
    Head,
    /// One byte, where the server does not answer HEAD, or the link is for GET alone.
    Byte,
    /// All bytes, of which none is read: no range lies in an empty object.
    Whole,
}

impl Object {
    async fn stat(&self) -> Result<Stat> {
        let lacks = self.link().lacks();
        let is_for_get = crate::signature::is_signed(&self.url);
        let mut inquiry = match is_for_get || lacks.know(Lack::Head, &self.url) {
            true => Inquiry::Byte,
            false => Inquiry::Head,
        };
        let mut attempts = Attempts::new(self.limits());
        loop {
            let options = match inquiry {
                Inquiry::Head => GetOptions { head: true, ..GetOptions::default() },
                Inquiry::Byte => self.part(0..1),
                Inquiry::Whole => GetOptions::default(),
            };
            match self.try_once(options, attempts.deadline()).await {
                Ok(got) if inquiry == Inquiry::Head && got.head.len.is_none() => {
                    lacks.find(Lack::Head, &self.url);
                    inquiry = Inquiry::Byte;
                }
                Ok(got) => return Ok(self.stat_of(&got)),
                Err(failed) => match (inquiry, failed.status) {
                    (Inquiry::Head, Some(status)) if protocol::NO_HEAD.contains(&status) => {
                        lacks.find(Lack::Head, &self.url);
                        inquiry = Inquiry::Byte;
                    }
                    (Inquiry::Byte, Some(416)) => inquiry = Inquiry::Whole,
                    _ => attempts.again(failed, self.link()).await?,
                },
            }
        }
    }

    /// Learns length and version from the reply to the first bytes, whose others go on coming.
    async fn begin(&self, rank: &Rank) -> Result<Begun> {
        let mut attempts = Attempts::new(self.limits());
        self.link().pay(HEAD).await;
        let (place, got, asked) = loop {
            let place = self.link().place(rank).await?;
            let options = self.part(0..HEAD);
            let asked = Instant::now();
            if let Some(bill) = rank.bill() {
                bill.asked();
            }
            match self.try_once(options, attempts.deadline()).await {
                Ok(got) => break (place, got, asked),
                // No range lies in an empty object.
                Err(Failed { status: Some(416), .. }) => {
                    return Ok(Begun { stat: self.stat().await?, head: None });
                }
                Err(failed) => {
                    drop(place);
                    attempts.again(failed, self.link()).await?;
                }
            }
        };
        let stat = self.stat_of(&got);
        let whole = if stat.binding == Binding::Stream { u64::MAX } else { stat.len };
        let range = got.head.range.clone().unwrap_or(0..whole);
        let is_usable = stat.binding != Binding::Sequential || range == (0..stat.len);
        let head = (is_usable && !range.is_empty()).then(|| {
            let reply = Reply::of(self.clone(), got, range.clone(), asked);
            let head = ObjectRead::new(self.clone(), stat.clone(), range, rank.clone());
            Box::new(head.begun(reply, place)) as Box<dyn RangeRead>
        });
        Ok(Begun { stat, head })
    }

    /// A request for these bytes, or for all where the server is known to send all in any case.
    fn part(&self, range: Range<u64>) -> GetOptions {
        let is_whole = self.link().lacks().know(Lack::Ranges, &self.url);
        let range = (!is_whole).then_some(GetRange::Bounded(range));
        GetOptions { range, ..GetOptions::default() }
    }

    async fn try_once(&self, options: GetOptions, by: Instant) -> Result<Got, Failed> {
        let asking = self.link().enter(self.target(), by).await.map_err(Failed::for_good)?;
        self.get(options, asking).await
    }

    async fn get(&self, options: GetOptions, asking: Asking<'_>) -> Result<Got, Failed> {
        let answers = self.answers();
        let (got, noted) = wire::noting(self.store.get_opts(&self.location, options)).await;
        let got = match (got, &noted.head) {
            (Ok(result), Some(head)) => Ok(Got { head: head.clone(), result }),
            // The client reports every reply.
            (Ok(_), None) => Err(Failed::for_now(Error::new(
                ErrorKind::Unavailable,
                "the store's reply has no head",
            ))),
            (Err(error), _) => Err(self.refused(&error, &noted, answers)),
        };
        tell(asking, got.as_ref().err());
        if let Ok(got) = &got
            && got.head.ignores_ranges()
            && self.link().lacks().find(Lack::Ranges, &self.url)
        {
            let url = forebay_error::shown(&self.url);
            tracing::info!(
                url,
                "the server sends no byte range of this shard: it comes in one reply"
            );
        }
        got
    }

    fn stat_of(&self, got: &Got) -> Stat {
        let (meta, len) = (&got.result.meta, got.head.len);
        let etag = meta.e_tag.as_deref().filter(|etag| !etag.is_empty());
        // object_store's default when the server gives no time.
        let time = Some(meta.last_modified.timestamp()).filter(|time| *time != 0);
        // Of a stream the length is no part of the version.
        let size = len.map_or_else(String::new, |len| format!("{len:x}"));
        let (version, binding) = match (etag, time) {
            (Some(etag), _) if !etag.starts_with("W/") => (etag.to_owned(), Binding::Strong),
            (_, Some(time)) => (format!("{time}-{size}"), Binding::Weak),
            (Some(etag), None) => (format!("{etag}-{size}"), Binding::Weak),
            (None, None) => (format!("-{size}"), Binding::Sequential),
        };
        let binding = match len {
            None => Binding::Stream,
            Some(_) if self.link().lacks().know(Lack::Ranges, &self.url) => Binding::Sequential,
            Some(_) => binding,
        };
        Stat::new(len.unwrap_or(0), version, binding)
    }

    fn refused(&self, error: &object_store::Error, noted: &wire::Noted, answers: u64) -> Failed {
        self.of.route().refusals.explain(error, &self.url, noted, answers)
    }

    /// For what is refused without a reply of its own.
    fn answers(&self) -> u64 {
        self.of.route().refusals.answers()
    }

    fn received(&self, bytes: usize) {
        self.of.route().wire.received(bytes);
        self.link().received(bytes);
    }

    fn target(&self) -> Target<'_> {
        Target { folder: &self.folder, url: &self.url }
    }

    fn link(&self) -> &Arc<Link> {
        &self.of.route().link
    }

    fn limits(&self) -> &Limits {
        self.of.route().wire.limits()
    }

    fn url(&self) -> &str {
        &self.url
    }
}

/// The URL up to the last name of its path.
fn folder_of(url: &str) -> &str {
    let path = url.split_once('?').map_or(url, |(path, _)| path);
    path.rsplit_once('/').map_or(path, |(folder, _)| folder)
}
