//! Writes to a bucket or container.
//!
//! Requests go the way of reads: the same credentials, network, link, breakers and retries. A write
//! whose answer was lost is made again; what the store says of the second one is judged by what is
//! there, for the first may have arrived.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use forebay_error::{Error, ErrorKind, Result};
use futures::StreamExt as _;
use object_store::list::PaginatedListOptions;
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{
    Error as Refusal, GetOptions, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, PutResult,
};
use tokio::sync::OnceCell;

use super::attempts::{Again, Attempts, Failed};
use super::bucket::Bucket;
use super::folder_of;
use super::link::{Blame, Target};
use super::reply::tell;
use super::wire::noting;
use crate::queue::{QueuePermit, Rank};
use crate::sink::{self, Found, Named, Overwrite, PartTag, Sink, Tag, UploadId};

/// Bytes a second below which a request counts as hung: a part of 16 MiB takes four minutes, and a
/// checkpoint would take days.
const SLOWEST: u64 = 64 << 10;

/// Time for a store to join the parts of an upload: S3's documentation speaks of minutes.
const JOINING: Duration = Duration::from_secs(300);

/// Pages of a listing at most: ten times those of a full one, for stores whose pages are not full.
const PAGES_MAX: usize = 10 * sink::LISTED_MAX / 1000;

/// Error codes of an upload that is lost, or of parts that are: S3's and Google's, then Azure's.
const LOST_UPLOAD: [&str; 2] = ["NoSuchUpload", "InvalidBlockList"];

/// Error codes of two writes to one object at once, of which one is to come again.
const CONFLICTS: [&str; 2] = ["ConditionalRequestConflict", "OperationAborted"];

/// Error code of an object that is there, where the status is that of any conflict.
const AZURE_EXISTS: &str = "BlobAlreadyExists";

/// Error codes of a store without room: Ceph's, then MinIO's.
const FULL: [&str; 3] = ["QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "XMinioStorageFull"];

/// Status of a store without room.
const INSUFFICIENT_STORAGE: u16 = 507;

/// Error codes of a bucket that is missing, which is no missing object.
const NO_BUCKET: [&str; 2] = ["NoSuchBucket", "ContainerNotFound"];

/// Start of the name of an object by which a store is tried.
const PROBE: &str = ".forebay-probe-";

/// Times of a part for which jobs may pass it by: uploads have a tenth of a busy link.
const PASSED_BY: u32 = 9;

/// Time assumed for the first part: 16 MiB at 1 Gbit/s.
const FIRST: Duration = Duration::from_millis(150);

/// A bucket that is written to.
pub(crate) struct BucketSink {
    bucket: Bucket,
    /// True if the store honours conditions, once that is known.
    is_conditional: OnceCell<bool>,
    /// Time of the last request that sent bytes, in milliseconds.
    sent_in_ms: AtomicU64,
}

/// A request.
struct Request<'a> {
    url: &'a str,
    rank: Rank,
    /// Bytes that it sends.
    bytes: u64,
    /// Time for its answer.
    patience: Duration,
}

/// The error of a request that is made no more.
struct GaveUp {
    error: Error,
    /// True if an earlier attempt may have done what was asked.
    may_be_done: bool,
}

impl From<Error> for GaveUp {
    fn from(error: Error) -> Self {
        Self { error, may_be_done: false }
    }
}

impl BucketSink {
    pub(crate) fn new(bucket: Bucket) -> Self {
        let known = bucket.is_conditional.then_some(true);
        let sent_in_ms = AtomicU64::new(millis(FIRST));
        Self { bucket, is_conditional: OnceCell::new_with(known), sent_in_ms }
    }

    /// A request without bytes worth speaking of, which somebody waits for.
    fn asking<'a>(&self, url: &'a str) -> Request<'a> {
        self.sending(url, 0, Rank::now(0))
    }

    /// A request that sends bytes.
    fn sending<'a>(&self, url: &'a str, bytes: u64, rank: Rank) -> Request<'a> {
        let silence = self.bucket.route.wire.limits().read_timeout;
        Request { url, rank, bytes, patience: silence + Duration::from_secs(bytes / SLOWEST) }
    }

    /// Makes a request until it succeeds or no attempt is left.
    async fn made<T, F>(&self, request: &Request<'_>, once: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Refusal>>,
    {
        self.tried(request, once).await.map_err(|gave_up| gave_up.error)
    }

    /// The same, which tells more of a failure.
    async fn tried<T, F>(&self, request: &Request<'_>, once: impl Fn() -> F) -> Result<T, GaveUp>
    where
        F: Future<Output = Result<T, Refusal>>,
    {
        let route = &self.bucket.route;
        let target = Target { folder: folder_of(request.url), url: request.url };
        let mut attempts = Attempts::new(route.wire.limits());
        let mut may_be_done = false;
        loop {
            route.link.pay(request.bytes).await;
            let place = self.place(&request.rank).await?;
            let asking = route.link.enter(target, attempts.deadline()).await?;
            let answers = route.refusals.answers();
            let began = Instant::now();
            let made = tokio::time::timeout(request.patience, noting(once())).await;
            if request.bytes > 0 {
                self.sent_in_ms.store(millis(began.elapsed()), Ordering::Relaxed);
            }
            let made = match made {
                Ok((Ok(made), _)) => Ok(made),
                Ok((Err(refusal), noted)) => {
                    let failed = route.refusals.explain(&refusal, request.url, &noted, answers);
                    Err(read(request.url, &refusal, failed))
                }
                Err(_) => Err(silent(request)),
            };
            tell(asking, made.as_ref().err());
            drop(place);
            let failed = match made {
                Ok(made) => return Ok(made),
                Err(failed) => failed,
            };
            let was_done = may_be_done;
            // All but what says that nothing was done.
            may_be_done |= !matches!(failed.status, Some(300..=407 | 409..=499));
            let again = attempts.again(failed, &route.link).await;
            again.map_err(|error| GaveUp { error, may_be_done: was_done })?;
        }
    }

    /// Waits for a place in the link's queue: behind what jobs wait for, and not for ever.
    async fn place(&self, rank: &Rank) -> Result<QueuePermit> {
        let link = &self.bucket.route.link;
        let mut place = std::pin::pin!(link.place(rank));
        let sent_in = Duration::from_millis(self.sent_in_ms.load(Ordering::Relaxed));
        if let Ok(placed) = tokio::time::timeout(PASSED_BY * sent_in, &mut place).await {
            return placed;
        }
        let _awaited = rank.awaited();
        place.await
    }

    /// The same for one that sends bytes, which are counted.
    async fn sent<T, F>(&self, request: Request<'_>, once: impl Fn() -> F) -> Result<T, GaveUp>
    where
        F: Future<Output = Result<T, Refusal>>,
    {
        let made = self.tried(&request, once).await?;
        self.bucket.route.wire.wrote(request.bytes);
        self.bucket.route.link.wrote(request.bytes);
        Ok(made)
    }

    /// An object as a whole, of at most `limit` bytes.
    async fn whole(&self, url: &str, limit: usize) -> Result<Option<(Tag, Bytes)>> {
        let location = self.bucket.location(url)?;
        let silence = self.bucket.route.wire.limits().read_timeout;
        let once = async || {
            let got = self.bucket.store.get_opts(&location, GetOptions::default());
            let got = tokio::time::timeout(silence, got).await.map_err(|_| own(broken(url)))??;
            let tag = Tag::of_etag(got.meta.e_tag.as_deref().unwrap_or_default());
            let mut bytes = BytesMut::new();
            let mut chunks = got.into_stream();
            loop {
                let chunk = tokio::time::timeout(silence, chunks.next()).await;
                let Some(chunk) = chunk.map_err(|_| own(broken(url)))? else { break };
                bytes.extend_from_slice(&chunk?);
                if bytes.len() > limit {
                    return Err(own(sink::too_large(url, limit)));
                }
            }
            Ok((tag, bytes.freeze()))
        };
        let most = Duration::from_secs(limit as u64 / SLOWEST);
        let request = self.asking(url);
        let request = Request { patience: request.patience + most, ..request };
        let (tag, bytes) = match found(self.made(&request, once).await)? {
            Some(whole) => whole,
            None => return Ok(None),
        };
        self.bucket.route.wire.received(bytes.len());
        self.bucket.route.link.received(bytes.len());
        Ok(Some((tag, bytes)))
    }

    /// Returns the state of an object that was just written: Ceph leaves it out of some answers.
    async fn tag_of(&self, url: &str, put: &PutResult) -> Result<Tag> {
        if let Some(etag) = put.e_tag.as_deref().filter(|etag| !etag.is_empty()) {
            return Ok(Tag::of_etag(etag));
        }
        let gone = || {
            let what = "the object was removed right after it was written";
            Error::new(ErrorKind::Unavailable, what).at("url", url)
        };
        self.head(url).await?.map(|found| found.tag).ok_or_else(gone)
    }

    /// The store says that the object is there, after an attempt whose answer was lost: true if
    /// that one wrote it.
    async fn is_ours(&self, url: &str, bytes: &Bytes) -> Result<Option<Tag>> {
        match self.whole(url, bytes.len()).await {
            Ok(there) => Ok(there.filter(|(_, there)| there == bytes).map(|(tag, _)| tag)),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns true if an upload is lost that a store failed to complete: Ceph answers with a fault
    /// of its own.
    async fn forgot(&self, location: &Path, upload: &str, error: &Error) -> bool {
        let has_answered = error.place("status").is_some();
        match &self.bucket.attributes {
            Some(attributes) if error.kind() == ErrorKind::Unavailable && has_answered => {
                attributes.lacks_upload(&self.bucket.route, location.as_ref(), upload).await
            }
            _ => false,
        }
    }

    /// Tries if the store refuses to replace an object in `folder`.
    async fn probe(&self, folder: &str) -> Result<bool> {
        let url = format!("{}/{PROBE}{:032x}", folder.trim_end_matches('/'), fastrand::u128(..));
        // Two contents: a second write is not to be taken for the first, made again.
        let first = self.put(&url, Bytes::from_static(b"1"), Overwrite::Rejected).await;
        match first {
            // It knows no such condition.
            Err(error) if error.kind() == ErrorKind::Invalid => return Ok(false),
            first => first.map(drop)?,
        }
        let second = self.put(&url, Bytes::from_static(b"2"), Overwrite::Rejected).await;
        let honours = match second {
            Ok(_) => false,
            Err(error) if sink::is_exists(&error) => true,
            Err(error) => return Err(error),
        };
        if let Err(error) = self.delete(&url).await {
            tracing::warn!(%error, "an object that a store was tried with stays behind");
        }
        Ok(honours)
    }

    /// One page of what lies below a prefix.
    async fn page(
        &self,
        folder: &str,
        prefix: &str,
        token: Option<&str>,
    ) -> Result<(Vec<Named>, Option<String>)> {
        let prefix = Some(prefix).filter(|prefix| !prefix.is_empty());
        let once = || {
            let page_token = token.map(str::to_owned);
            let delimiter: Option<Cow<'static, str>> = None;
            let options = PaginatedListOptions { delimiter, page_token, ..Default::default() };
            self.bucket.store.list_paginated(prefix, options)
        };
        let page = self.made(&self.asking(folder), once).await?;
        let below = |location: &Path| {
            location.as_ref().strip_prefix(prefix.unwrap_or_default()).map(str::to_owned)
        };
        let objects = page.result.objects.into_iter();
        let named = objects.filter_map(|object| {
            let name = below(&object.location).filter(|name| !name.is_empty())?;
            Some(Named { name, len: object.size })
        });
        Ok((named.collect(), page.page_token.filter(|token| !token.is_empty())))
    }
}

#[async_trait]
impl Sink for BucketSink {
    fn endpoint(&self) -> &str {
        &self.bucket.route.refusals.endpoint
    }

    async fn put(&self, url: &str, bytes: Bytes, overwrite: Overwrite) -> Result<Tag> {
        let location = self.bucket.location(url)?;
        let mode = match overwrite {
            Overwrite::Allowed => PutMode::Overwrite,
            Overwrite::Rejected => PutMode::Create,
        };
        let once = || {
            let options = PutOptions::from(mode.clone());
            self.bucket.store.put_opts(&location, payload(&bytes), options)
        };
        let request = self.sending(url, bytes.len() as u64, Rank::now(0));
        match self.sent(request, once).await {
            Ok(put) => self.tag_of(url, &put).await,
            Err(GaveUp { error, may_be_done: true }) if sink::is_exists(&error) => {
                self.is_ours(url, &bytes).await?.ok_or(error)
            }
            Err(gave_up) => Err(gave_up.error),
        }
    }

    async fn begin_upload(&self, url: &str, part_bytes: u64) -> Result<UploadId> {
        sink::check_part_bytes(url, part_bytes)?;
        let location = self.bucket.location(url)?;
        let once = || self.bucket.store.create_multipart(&location);
        Ok(UploadId::new(self.made(&self.asking(url), once).await?))
    }

    async fn upload_part(
        &self,
        url: &str,
        upload: &UploadId,
        number: u32,
        bytes: Bytes,
    ) -> Result<PartTag> {
        sink::check_part(url, number, &bytes)?;
        let location = self.bucket.location(url)?;
        let id = upload.as_str().to_owned();
        // Below ten thousand.
        let number = number as usize;
        let once = || self.bucket.store.put_part(&location, &id, number, payload(&bytes));
        // Behind what a job waits for.
        let request = self.sending(url, bytes.len() as u64, Rank::ahead(0));
        let part = self.sent(request, once).await.map_err(|gave_up| gave_up.error)?;
        Ok(PartTag::of(bytes.len() as u64, &part.content_id))
    }

    async fn complete(&self, url: &str, upload: &UploadId, parts: &[PartTag]) -> Result<Tag> {
        sink::check_parts(url, parts)?;
        let location = self.bucket.location(url)?;
        let (mut ids, mut whole) = (Vec::new(), 0_u64);
        for part in parts {
            let (len, name) = part.parts().map_err(|error| error.at("url", url))?;
            ids.push(PartId { content_id: name.to_owned() });
            whole = whole.saturating_add(len);
        }
        let id = upload.as_str().to_owned();
        let once = || self.bucket.store.complete_multipart(&location, &id, ids.clone());
        let asking = self.asking(url);
        let joining = Request { patience: asking.patience + JOINING, ..asking };
        match self.tried(&joining, once).await {
            Ok(put) => self.tag_of(url, &put).await,
            // Completed by an attempt whose answer was lost, if what is there is as long.
            Err(GaveUp { error, may_be_done: true }) if sink::is_no_upload(&error) => {
                let found = self.head(url).await?.filter(|found| found.len == whole);
                found.map(|found| found.tag).ok_or(error)
            }
            Err(GaveUp { error, .. }) => match self.forgot(&location, &id, &error).await {
                true => Err(sink::no_upload(url)),
                false => Err(error),
            },
        }
    }

    async fn abort(&self, url: &str, upload: &UploadId) -> Result<()> {
        let location = self.bucket.location(url)?;
        let id = upload.as_str().to_owned();
        let once = || self.bucket.store.abort_multipart(&location, &id);
        match self.made(&self.asking(url), once).await {
            Err(error) if !sink::is_no_upload(&error) => Err(error),
            _ => Ok(()),
        }
    }

    async fn head(&self, url: &str) -> Result<Option<Found>> {
        let location = self.bucket.location(url)?;
        let once = async || {
            let options = GetOptions { head: true, ..GetOptions::default() };
            Ok(self.bucket.store.get_opts(&location, options).await?.meta)
        };
        let meta = found(self.made(&self.asking(url), once).await)?;
        Ok(meta.map(|meta| Found {
            len: meta.size,
            tag: Tag::of_etag(meta.e_tag.as_deref().unwrap_or_default()),
            version: meta.version,
        }))
    }

    async fn get(&self, url: &str, limit: usize) -> Result<Option<Bytes>> {
        Ok(self.whole(url, limit).await?.map(|(_, bytes)| bytes))
    }

    async fn delete(&self, url: &str) -> Result<()> {
        let location = self.bucket.location(url)?;
        let once = || self.bucket.store.delete(&location);
        found(self.made(&self.asking(url), once).await).map(drop)
    }

    async fn list(&self, folder: &str) -> Result<Vec<Named>> {
        let prefix = self.bucket.folder(folder)?;
        let (mut listed, mut token) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let (named, next) = self.page(folder, &prefix, token.as_deref()).await?;
            listed.extend(named);
            if listed.len() > sink::LISTED_MAX {
                return Err(sink::too_many(folder));
            }
            if next.is_none() {
                listed.sort_by(|one, other| one.name.cmp(&other.name));
                return Ok(listed);
            }
            token = next;
        }
        let error = Error::new(ErrorKind::Unavailable, "the store's listing does not end");
        Err(error.at("url", folder).at("pages", PAGES_MAX))
    }

    async fn conditional(&self, folder: &str) -> Result<bool> {
        self.is_conditional.get_or_try_init(|| self.probe(folder)).await.copied()
    }
}

/// The bytes of a request, without a copy.
fn payload(bytes: &Bytes) -> PutPayload {
    PutPayload::from_bytes(bytes.clone())
}

/// `None` for an object that is not there.
fn found<T>(asked: Result<T>) -> Result<Option<T>> {
    match asked {
        Ok(found) => Ok(Some(found)),
        Err(error) => {
            let lacks_bucket = error.place("code").is_some_and(|code| NO_BUCKET.contains(&code));
            match error.kind() {
                ErrorKind::NotFound if !lacks_bucket => Ok(None),
                _ => Err(error),
            }
        }
    }
}

/// Reads a refusal as one of a write.
fn read(url: &str, refusal: &Refusal, failed: Failed) -> Failed {
    let has = |codes: &[&str]| failed.error.place("code").is_some_and(|code| codes.contains(&code));
    if has(&CONFLICTS) {
        let what = "another write to the object is under way";
        let error = Error::new(ErrorKind::Unavailable, what).at("url", url);
        return Failed { error, again: Again::Later(None), ..failed };
    }
    // object_store takes every conflict for one.
    let is_conflict = failed.status == Some(409) && !has(&[AZURE_EXISTS]);
    let error = if matches!(refusal, Refusal::AlreadyExists { .. }) && !is_conflict {
        sink::exists(url)
    } else if has(&LOST_UPLOAD) {
        sink::no_upload(url)
    } else if has(&FULL) || failed.status == Some(INSUFFICIENT_STORAGE) {
        Error::new(ErrorKind::Full, "the store has no room, or its quota is spent")
            .at("url", url)
            .advise("free some of it, or ask the store's admins for more")
    } else {
        return failed;
    };
    let status = failed.status.into_iter();
    let error = status.fold(error, |error, status| error.at("status", status));
    Failed { error, again: Again::Never, blame: Blame::Object, ..failed }
}

/// The failure of a request that nobody answered.
fn silent(request: &Request<'_>) -> Failed {
    let what = "the store does not answer";
    let error = Error::new(ErrorKind::Unavailable, what)
        .at("url", request.url)
        .at("seconds", request.patience.as_secs())
        .advise("check that the endpoint is up and reachable from this machine");
    Failed { blame: Blame::Folder, ..Failed::for_now(error) }
}

fn broken(url: &str) -> Error {
    Error::new(ErrorKind::Unavailable, "the store fell silent").at("url", url)
}

/// Returns a time in milliseconds, at least one.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// This crate's own error, as object_store carries it.
fn own(error: Error) -> Refusal {
    Refusal::Generic { store: "forebay", source: Box::new(error) }
}
