//! Shards behind signed links, which run out.
//!
//! The object is known by its URL without the signature; the link stays with whoever asks. Whoever
//! held a link that worked goes on with the copies that are cached, as while an origin is away.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use lru::LruCache;

use crate::origin_checksum::Comparison;
use crate::queue::Rank;
use crate::readers::Turn;
use crate::stat::Stat;
use crate::{Begun, RangeRead, Source};

/// Links that are remembered: of a few large jobs.
const LINKS: NonZeroUsize = NonZeroUsize::new(1 << 17).expect("a power of two is not zero");

/// Links that worked, by their hashes, with the version behind each and true once it ran out.
pub(crate) struct Worked(Mutex<LruCache<u64, (Stat, bool)>>);

impl Default for Worked {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(LINKS)))
    }
}

impl Worked {
    fn note(&self, link: u64, stat: &Stat) {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        links.put(link, (stat.clone(), false));
    }

    /// The version behind a link that ran out, and true if that is new.
    fn before(&self, link: u64) -> Option<(Stat, bool)> {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (stat, has_run_out) = links.get_mut(&link)?;
        Some((stat.clone(), !std::mem::replace(has_run_out, true)))
    }
}

/// A web server's object by a signed link.
pub(crate) struct Linked {
    server: Arc<dyn Source>,
    link: String,
    hash: u64,
    scope: String,
    worked: Arc<Worked>,
}

impl Linked {
    /// The object behind `link`, which `server` serves.
    pub(crate) fn new(server: Arc<dyn Source>, link: &str, worked: Arc<Worked>) -> Self {
        let mut hasher = DefaultHasher::new();
        link.hash(&mut hasher);
        let hash = hasher.finish();
        // Each link shows its own rights.
        let scope = format!("{} by link {hash:016x}", server.endpoint());
        Self { server, link: link.to_owned(), hash, scope, worked }
    }

    /// The version as it was while the link worked, if `error` says that it ran out.
    fn before(&self, error: Error) -> Result<Stat> {
        if error.kind() != ErrorKind::PermissionDenied {
            return Err(error);
        }
        let Some((stat, is_new)) = self.worked.before(self.hash) else { return Err(error) };
        if is_new {
            let url = forebay_error::shown(&self.link);
            tracing::warn!(url, %error, "a signed link ran out: its cached copy goes on");
        }
        Ok(stat)
    }
}

#[async_trait]
impl Source for Linked {
    async fn stat(&self, _: &str) -> Result<Stat> {
        match self.server.stat(&self.link).await {
            Ok(stat) => {
                self.worked.note(self.hash, &stat);
                Ok(stat)
            }
            Err(error) => self.before(error),
        }
    }

    async fn begin(&self, _: &str, rank: &Rank) -> Result<Begun> {
        let begun = self.server.begin(&self.link, rank).await?;
        self.worked.note(self.hash, &begun.stat);
        Ok(begun)
    }

    async fn range_read<'a>(
        &'a self,
        _: &'a str,
        stat: &'a Stat,
        range: Range<u64>,
        rank: &'a Rank,
    ) -> Result<Box<dyn RangeRead + 'a>> {
        self.server.range_read(&self.link, stat, range, rank).await
    }

    async fn origin_checksum(&self, _: &str, stat: &Stat) -> Option<Comparison> {
        self.server.origin_checksum(&self.link, stat).await
    }

    fn at_once(&self) -> u64 {
        self.server.at_once()
    }

    async fn turn(&self, _: &str, rank: &Rank) -> Result<Turn> {
        self.server.turn(&self.link, rank).await
    }

    fn trouble(&self, _: &str) -> Option<Error> {
        self.server.trouble(&self.link)
    }

    fn has_ranges(&self, _: &str) -> bool {
        self.server.has_ranges(&self.link)
    }

    fn is_remote(&self) -> bool {
        self.server.is_remote()
    }

    fn scope(&self) -> &str {
        &self.scope
    }

    fn endpoint(&self) -> &str {
        self.server.endpoint()
    }
}
