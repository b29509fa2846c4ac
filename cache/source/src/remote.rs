//! Shards behind a network: the common part of all stores.
//!
//! Requests, retries, resumption and errors are the same for every store; a store adds the place of
//! an object, its client, and the meaning of its errors.
//!
//! ```text
//!   range_read.rs  consecutive bytes: resumed at the byte, requested twice when late
//!     attempts.rs    number and pauses of retries
//!     reply.rs       one reply: of the requested version and range, or an error
//!       refusal.rs     meaning of an error: retry, or which kind
//!       link.rs        the endpoint: slots, concurrency limit, late replies, circuit breaker
//!       wire.rs        the HTTP client
//! ```

mod attempts;
pub(crate) mod azure;
mod bucket;
pub(crate) mod gcs;
mod http;
mod hub;
mod link;
mod range_read;
mod refusal;
mod reply;
pub(crate) mod s3;
mod store_client;
mod tls;
mod wire;

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use forebay_error::{ErrorKind, Result};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore};

use crate::origin_checksum::Comparison;
use crate::queue::Rank;
use crate::stat::{Binding, Stat};
use crate::{Begun, Limits, RangeRead, Source};
use attempts::{Again, Attempts, Failed};
pub(crate) use http::Http;
pub(crate) use hub::Hub;
use link::Asking;
pub(crate) use link::Link;
pub use link::LinkReport;
use range_read::ObjectRead;
use refusal::Refusals;
use reply::{Reply, tell};
pub(crate) use store_client::StoreClient;
pub use wire::Counters;
pub(crate) use wire::Wire;

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
    async fn list(&self, pattern: &str) -> Result<Vec<String>> {
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
    fn new(store_client: &StoreClient<'_>, refusals: Refusals) -> Self {
        let link = store_client.wire.link(&refusals.endpoint, store_client.limits);
        Self { wire: Arc::clone(store_client.wire), link, refusals }
    }

    /// Runs `once` with retries; with a `rank`, each attempt takes its turn among the requests for
    /// bytes.
    async fn asked<T, F>(&self, rank: Option<&Rank>, once: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Failed>>,
    {
        let mut attempts = Attempts::new(self.wire.limits());
        loop {
            let place = match rank {
                Some(rank) => Some(self.link.place(rank).await?),
                None => None,
            };
            let asking = self.link.enter(attempts.deadline()).await?;
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
        Ok(Object { url: url.into(), store, location, of })
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

    async fn list(&self, pattern: &str) -> Result<Vec<String>> {
        self.0.list(pattern).await
    }

    async fn origin_checksum(&self, url: &str, stat: &Stat) -> Option<Comparison> {
        self.0.origin_checksum(url, stat).await
    }

    fn at_once(&self) -> u64 {
        self.0.route().link.request_bytes()
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
    store: Arc<dyn ObjectStore>,
    location: Path,
    of: Arc<dyn Store>,
}

impl Object {
    async fn stat(&self) -> Result<Stat> {
        let head = || GetOptions { head: true, ..GetOptions::default() };
        let mut attempts = Attempts::new(self.limits());
        loop {
            let got = self.try_once(head(), attempts.deadline()).await;
            match got {
                Ok(got) => return Ok(self.stat_of(&got.meta)),
                Err(failed) => attempts.again(failed, self.link()).await?,
            }
        }
    }

    /// Learns length and version from the reply to the first bytes, whose others go on coming.
    async fn begin(&self, rank: &Rank) -> Result<Begun> {
        let mut attempts = Attempts::new(self.limits());
        self.link().pay(HEAD).await;
        let place = self.link().place(rank).await?;
        let (got, asked) = loop {
            let range = (!self.link().is_sequential()).then_some(GetRange::Bounded(0..HEAD));
            let had_range = range.is_some();
            let options = GetOptions { range, ..GetOptions::default() };
            let asked = Instant::now();
            if let Some(bill) = rank.bill() {
                bill.asked();
            }
            let failed = match self.try_once(options, attempts.deadline()).await {
                Ok(got) => break (got, asked),
                Err(failed) => failed,
            };
            match failed.again {
                // It serves no ranges, which is known now.
                _ if had_range && self.link().is_sequential() => {}
                // No range lies in an empty object.
                Again::Never if failed.error.kind() == ErrorKind::Unavailable => {
                    return Ok(Begun { stat: self.stat().await?, head: None });
                }
                _ => attempts.again(failed, self.link()).await?,
            }
        };
        let (stat, range) = (self.stat_of(&got.meta), got.range.clone());
        let is_usable = stat.binding != Binding::Sequential || range == (0..stat.len);
        let head = (is_usable && !range.is_empty()).then(|| {
            let reply = Reply::of(self.clone(), got, asked);
            let head = ObjectRead::new(self.clone(), stat.clone(), range, rank.clone());
            Box::new(head.begun(reply, place)) as Box<dyn RangeRead>
        });
        Ok(Begun { stat, head })
    }

    async fn try_once(&self, options: GetOptions, by: Instant) -> Result<GetResult, Failed> {
        let asking = self.link().enter(by).await.map_err(Failed::for_good)?;
        self.get(options, asking).await
    }

    async fn get(&self, options: GetOptions, asking: Asking<'_>) -> Result<GetResult, Failed> {
        let answers = self.answers();
        let (got, retry_after) = wire::noting(self.store.get_opts(&self.location, options)).await;
        let got = got.map_err(|error| self.refused(&error, retry_after, answers));
        tell(asking, got.as_ref().err());
        got
    }

    fn stat_of(&self, meta: &ObjectMeta) -> Stat {
        let len = meta.size;
        let etag = meta.e_tag.as_deref().filter(|etag| !etag.is_empty());
        // object_store's default when the server gives no time.
        let time = Some(meta.last_modified.timestamp()).filter(|time| *time != 0);
        let (version, binding) = match (etag, time) {
            (Some(etag), _) if !etag.starts_with("W/") => (etag.to_owned(), Binding::Strong),
            (_, Some(time)) => (format!("{time}-{len:x}"), Binding::Weak),
            (Some(etag), None) => (format!("{etag}-{len:x}"), Binding::Weak),
            (None, None) => (format!("-{len:x}"), Binding::Sequential),
        };
        let binding = if self.link().is_sequential() { Binding::Sequential } else { binding };
        Stat::new(len, version, binding)
    }

    fn refused(
        &self,
        error: &object_store::Error,
        retry_after: Option<std::time::Duration>,
        answers: u64,
    ) -> Failed {
        if refusal::is_without_ranges(error) {
            self.link().set_sequential();
        }
        self.of.route().refusals.explain(error, &self.url, retry_after, answers)
    }

    /// For what is refused without a reply of its own.
    fn answers(&self) -> u64 {
        self.of.route().refusals.answers()
    }

    fn received(&self, bytes: usize) {
        self.of.route().wire.received(bytes);
        self.link().received(bytes);
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
