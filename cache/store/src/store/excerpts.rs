//! Excerpts of shards: the members that a job wants, kept on a tier as a shard of their own.
//!
//! Rule: an excerpt is named by its shard's version and by the places of its members. So a job with
//! a wrong index has excerpts of its own, and spoils nobody's.

use std::sync::{Arc, RwLock};
use std::time::Instant;

use forebay_error::{Error, Result, command};
use forebay_policy::access;
use forebay_shard::{Catalogue, Excerpt, Origin};
use forebay_source::{Options, Source, Stat, object_of};

use super::Store;
use super::by_ranges::{Places, of_another_version};
use crate::compression::Compression;
use crate::dataset::Cache;
use crate::directory::ShardName;
use crate::excerpt_source::{ExcerptSource, excerpt_version};
use crate::identity::{Head, Identity};
use crate::shard::{ShardHandle, View, Waited};
use crate::tier::Urgency;

/// Members of a shard that a job wants, by its own member index.
#[derive(Debug)]
pub struct ExcerptPlaces {
    /// The shard.
    places: Places,
    excerpt: Arc<Excerpt>,
    /// Identity of the excerpt.
    hash: String,
    view: Arc<View>,
}

impl ExcerptPlaces {
    /// Wanted members of a shard of `samples` samples and `len` bytes. `catalogue` has them at
    /// their places in the excerpt; `rows` are the places in the shard of the samples that have
    /// bytes there, in order.
    #[must_use]
    pub fn new(
        (version, len, samples): (Option<String>, u64, u64),
        excerpt: Excerpt,
        catalogue: Catalogue,
        rows: Vec<u64>,
    ) -> Self {
        let places = Places::new(version, len, samples, Catalogue::default());
        let view = View { catalogue: RwLock::new(catalogue), rows, samples, len };
        let hash = excerpt.hash();
        Self { places, excerpt: Arc::new(excerpt), hash, view: Arc::new(view) }
    }

    /// The places of the shard, by which failed reads are judged.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Stat of the excerpt of the object that has this one.
    fn stat_of(&self, whole: &Stat) -> Stat {
        Stat::new(self.excerpt.len(), excerpt_version(&whole.version, &self.hash), whole.binding)
    }
}

impl Store {
    /// Opens the excerpt of a shard, on a tier or on its way there; or the whole, if that is here
    /// or costs less room. None if only the whole shard can be read: open it with
    /// [`Store::shard`].
    ///
    /// # Errors
    /// As [`Store::open_ranges`] and [`Store::shard`].
    pub async fn open_excerpt(
        &self,
        url: &str,
        options: &Options,
        wanted: &ExcerptPlaces,
        urgency: Urgency,
    ) -> Result<Option<ShardHandle>> {
        let rank = self.rank();
        let _awaited = (urgency == Urgency::Needed).then(|| rank.awaited());
        let source = self.source(url, options)?;
        let url = &*object_of(url);
        if wanted.excerpt.is_empty() || !self.takes_excerpts(&*source, url) {
            return Ok(None);
        }
        let asking = Instant::now();
        let (stat, asked) = match self.listed(&*source, url, wanted).await {
            Some(stat) => (stat, Waited::default()),
            None => {
                let begun = self.look(&source, url).await?;
                (begun.stat, Waited::since(asking, source.peer_times()))
            }
        };
        wanted.places.check(url, &stat)?;
        if !wanted.places.fits(&stat) {
            return Ok(None);
        }
        let (opening, head) = (Instant::now(), Head::default());
        let own = wanted.stat_of(&stat);
        let shard = if self.prefers_excerpt(&*source, url, &stat, &own).await {
            let excerpt = ExcerptSource::new(source, stat, own.clone(), wanted.excerpt.clone());
            let shard = self.shard_of(url, Arc::new(excerpt), own, rank, head, urgency).await?;
            shard.seen_as(wanted.view.clone())
        } else {
            self.shard_of(url, source, stat, rank, head, urgency).await?
        };
        let opened = shard.waited_since(opening);
        Ok(Some(shard.opened_in(asked, opened)))
    }

    /// Returns true if excerpts of this shard may be kept.
    #[must_use]
    pub fn keeps_excerpts(&self, url: &str, options: &Options) -> bool {
        let source = self.source(url, options);
        source.is_ok_and(|source| self.takes_excerpts(&*source, &object_of(url)))
    }

    /// Returns true if parts of an object may be kept.
    fn takes_excerpts(&self, source: &dyn Source, url: &str) -> bool {
        // The owner of a shared shard keeps it whole, for all nodes. A file that a client opens is
        // read by whichever client is there: each would need the excerpt's layout.
        let is_a_clients = !source.is_remote() && source.scope() != source.endpoint();
        let is_whole_only = source.is_shared()
            || is_a_clients
            || command(url).is_some()
            || Compression::is_promised(url)
            || !source.has_ranges(url);
        let rule = self.inner.shared.shares.current().rule(self.charge(url)).cache;
        !is_whole_only && rule != Cache::Never
    }

    /// Returns the stat that the index has, if the object needs no look: a fetch of the excerpt
    /// names the version, and so did the run's first read of it. A copy that is here from before
    /// says nothing about the object now.
    async fn listed(&self, source: &dyn Source, url: &str, wanted: &ExcerptPlaces) -> Option<Stat> {
        let stat = wanted.places.stat().filter(|_| source.is_remote())?;
        let origin = origin_of(source, url, &stat);
        if self.has_seen(&origin) {
            return Some(stat);
        }
        let excerpt = Self::name_of(source, url, &wanted.stat_of(&stat));
        let is_here =
            self.has_whole(&ShardName::new(&origin)).await || self.has_whole(&excerpt).await;
        (!is_here).then_some(stat)
    }

    /// Returns true if an excerpt is read rather than the whole. The whole comes first if it is
    /// here, and then what is here or on its way. If neither is, the excerpt is fetched, unless
    /// that and the other excerpts of the object take about as much room as the whole.
    async fn prefers_excerpt(
        &self,
        source: &dyn Source,
        url: &str,
        whole: &Stat,
        excerpt: &Stat,
    ) -> bool {
        let origin = origin_of(source, url, whole);
        let (name, own) = (ShardName::new(&origin), Self::name_of(source, url, excerpt));
        if self.has_whole(&name).await {
            return false;
        }
        if self.in_use(&own).is_some() || self.has_whole(&own).await {
            return true;
        }
        let tiers = self.inner.tiers.iter();
        let others: u64 = tiers.map(|tier| tier.excerpt_bytes(&own, url)).sum();
        self.in_use(&name).is_none()
            && access::is_clearly_less(others.saturating_add(excerpt.len), whole.len)
    }

    /// Remembers the version of an object, if the origin confirmed it to the fetch of an excerpt.
    pub(super) fn note_excerpt(&self, shard: &ShardHandle) {
        // What an earlier fetch left here was confirmed then.
        let is_confirmed = shard.source.is_remote()
            && !shard.came_whole()
            && shard.resumed_bytes() == 0
            && shard.progress().samples > 0;
        if let Some(whole) = shard.whole_stat().filter(|_| is_confirmed) {
            let key = (shard.source.scope().to_owned(), shard.url().to_owned());
            let mut identities = self.inner.shared.identities();
            if identities.peek(&key).is_none() {
                identities.put(key, Identity::known(whole));
            }
        }
    }

    /// Compares the members of samples that came with an excerpt with the checksums of the index
    /// that located them.
    ///
    /// # Errors
    /// `Invalid` if they differ: the index is of another version.
    pub fn check_excerpt(
        &self,
        shard: &ShardHandle,
        ordinals: impl Iterator<Item = u64>,
    ) -> Result<()> {
        match shard.agrees(ordinals) {
            true => Ok(()),
            false => {
                let error: Error = of_another_version(shard.url());
                Err(error.at("reason", "checksum"))
            }
        }
    }
}

/// Identity of an object's version.
fn origin_of(source: &dyn Source, url: &str, stat: &Stat) -> Origin {
    let (endpoint, version) = (source.endpoint().to_owned(), stat.version.clone());
    Origin { endpoint, url: url.to_owned(), version }
}
