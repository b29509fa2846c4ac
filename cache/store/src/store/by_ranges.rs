//! Parts of objects, read from the origin without the rest: samples of a shard that a job's own
//! member index locates, and ranges of such an index.
//!
//! Rule: an index that a job brings serves that job alone. Nothing of it is kept for others, no
//! copy is dropped because of it, and each member is compared with the checksum that it names.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result, command};
use forebay_shard::{Catalogue, Origin};
use forebay_source::{Binding, Options, Rank, Source, Stat, object_of};

use super::Store;
use crate::compression::Compression;
use crate::directory::ShardName;
use crate::identity::Head;
use crate::shard::{Body, Growth, Shard, ShardHandle, Waited};
use crate::sizes::PART_BYTES;
use crate::tier::Urgency;

/// Samples of a shard and the places of their members, as a job's member index has them.
#[derive(Debug)]
pub struct Places {
    /// Version of the object that was indexed, if it is the same at this URL.
    version: Option<String>,
    /// Length of the plain tar.
    len: u64,
    growth: Growth,
}

impl Places {
    /// Places of some samples of a shard of `samples` samples.
    #[must_use]
    pub fn new(version: Option<String>, len: u64, samples: u64, catalogue: Catalogue) -> Self {
        Self { version, len, growth: Growth::known(catalogue, samples, len) }
    }

    /// Length of the shard in bytes.
    #[must_use]
    pub fn shard_len(&self) -> u64 {
        self.len
    }

    /// The stat of the object, if the index has all that binds reads to its version.
    pub(super) fn stat(&self) -> Option<Stat> {
        let etag = self.version.as_deref().filter(|version| version.starts_with('"'))?;
        Some(Stat::new(self.len, etag.to_owned(), Binding::Strong))
    }

    /// Returns true if this may be the object that was indexed.
    pub(super) fn check(&self, url: &str, stat: &Stat) -> Result<()> {
        match &self.version {
            Some(listed) if *listed != stat.version => {
                Err(of_another_version(url).at("listed", listed).at("found", &stat.version))
            }
            _ => Ok(()),
        }
    }

    /// Returns true if the object is the plain tar that was indexed, and has ranges.
    pub(super) fn fits(&self, stat: &Stat) -> bool {
        matches!(stat.binding, Binding::Strong | Binding::Weak) && stat.len == self.len
    }
}

/// A range of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRange {
    /// Length of the object.
    pub len: u64,
    /// Version of the object.
    pub version: String,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Store {
    /// Opens a shard of which a job's member index has these places: the copy of that version which
    /// is here, or ranges of the origin. None if only the whole shard can be read, since its origin
    /// keeps it compressed or has no ranges: open it with [`Store::shard`].
    ///
    /// Where the index has the object's strong ETag, the origin is asked for nothing yet: each
    /// read names the version.
    ///
    /// # Errors
    /// `Invalid` if the object has another version than the one that was indexed; the error of the
    /// origin.
    pub async fn open_ranges(
        &self,
        url: &str,
        options: &Options,
        places: &Places,
    ) -> Result<Option<ShardHandle>> {
        let source = self.source_of_parts(url, options)?;
        let url = &*object_of(url);
        if command(url).is_some() || Compression::is_promised(url) || !source.has_ranges(url) {
            return Ok(None);
        }
        let asking = Instant::now();
        let (stat, asked) = match places.stat().filter(|_| source.is_remote()) {
            Some(stat) => (stat, Waited::default()),
            None => {
                let begun = self.look(&source, url).await?;
                (begun.stat, Waited::since(asking, source.peer_times()))
            }
        };
        places.check(url, &stat)?;
        if !places.fits(&stat) {
            return Ok(None);
        }
        let name = Self::name_of(&*source, url, &stat);
        let opening = Instant::now();
        if self.has_whole(&name).await {
            let whole = self.source(url, options)?;
            let (rank, head) = (self.rank(), Head::default());
            let shard = self.shard_of(url, whole, stat, rank, head, Urgency::Needed).await?;
            let opened = shard.waited_since(opening);
            return Ok(Some(shard.opened_in(asked, opened)));
        }
        let shard = Arc::new(Shard {
            name,
            url: url.to_owned(),
            growth: places.growth.clone(),
            body: Body::Ranges,
            parts: Mutex::default(),
            traffic: self.inner.shared.traffic_of(url),
            home: None,
            source,
            stat,
            rank: self.rank(),
            lost: Arc::new(OnceLock::new()),
        });
        Ok(Some(ShardHandle::new(shard).paid_by(self.payer()).opened_in(asked, Waited::default())))
    }

    /// Returns the name of an object's version.
    pub(super) fn name_of(source: &dyn Source, url: &str, stat: &Stat) -> ShardName {
        let (endpoint, version) = (source.endpoint().to_owned(), stat.version.clone());
        ShardName::new(&Origin { endpoint, url: url.to_owned(), version })
    }

    /// Judges a read by [`Store::open_ranges`] that failed with `error`. Returns if the shard is to
    /// be read as a whole instead.
    ///
    /// # Errors
    /// `Invalid` if the object is not the one that was indexed; else `error`.
    pub async fn judge_ranges(
        &self,
        url: &str,
        options: &Options,
        places: &Places,
        error: Error,
    ) -> Result<()> {
        if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) {
            return Err(error);
        }
        let Ok(source) = self.source(url, options) else { return Err(error) };
        let url = &*object_of(url);
        self.inner.shared.forget_identity(&*source, url);
        let Ok(begun) = self.look(&source, url).await else { return Err(error) };
        places.check(url, &begun.stat)?;
        if !places.fits(&begun.stat) || !source.has_ranges(url) {
            return Ok(());
        }
        match (error.kind(), &places.version) {
            // The same version would have the same bytes.
            (ErrorKind::Corrupt, None) => Err(of_another_version(url).at("reason", "checksum")),
            _ => Err(error),
        }
    }

    /// Reads a range of an object that is no shard, such as a member index: at most a part, less
    /// where the object ends. Without a version, any is read.
    ///
    /// # Errors
    /// The error of the origin; `Unavailable` with the reason `changed` if it has another version;
    /// `Invalid` if the origin has no ranges.
    pub async fn read_range(
        &self,
        url: &str,
        options: &Options,
        version: Option<&str>,
        wanted: Range<u64>,
    ) -> Result<ObjectRange> {
        let at = |error: Error| error.at("url", url);
        let source = self.inner.sources.open_for(url, options, self.client.as_ref())?;
        let stat = self.look(&source, url).await?.stat;
        if !matches!(stat.binding, Binding::Strong | Binding::Weak) || !source.has_ranges(url) {
            return Err(at(Error::new(ErrorKind::Invalid, "the server has no ranges of the file")
                .advise("copy the manifest and its member index to a local folder")));
        }
        if version.is_some_and(|version| version != stat.version) {
            self.inner.shared.forget_identity(&*source, url);
            let what = "the file changed while it was read";
            return Err(at(Error::new(ErrorKind::Unavailable, what).at("reason", "changed")));
        }
        let end = wanted.end.min(wanted.start.saturating_add(PART_BYTES as u64)).min(stat.len);
        let range = wanted.start.min(end)..end;
        let bytes = match usize::try_from(range.end - range.start).unwrap_or(0) {
            0 => Vec::new(),
            len => {
                let mut span = self.inner.shared.frames.lease(len).await?;
                let exact = span.split_to(len);
                let rank = Rank::now(self.owner);
                rank.bill_to(|| self.bill(url));
                let read = source.read_part(url, &stat, range.start, exact, &rank).await;
                read.inspect_err(|_| self.inner.shared.forget_identity(&*source, url))?.to_vec()
            }
        };
        Ok(ObjectRange { len: stat.len, version: stat.version, bytes })
    }
}

pub(super) fn of_another_version(url: &str) -> Error {
    Error::new(ErrorKind::Invalid, "the member index is of another version of the shard")
        .at("url", url)
        .advise("index the shards again with `forebay index --members`")
}
