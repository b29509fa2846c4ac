//! Prefetch of shards for later jobs.
//!
//! Jobs come first. A prefetch ranks behind all fetches of jobs, evicts nothing that a job
//! claimed, and stops before it would evict its own earlier shards.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{Options, Rank, object_of};

use super::Store;
use crate::directory::ShardName;
use crate::identity::Begun;
use crate::shard::ShardHandle;
use crate::tier::{ShardState, Urgency};

/// A prefetched shard: on its way to a tier, or there already.
#[derive(Debug)]
pub struct Prefetched {
    bytes: u64,
    /// None if it was there already.
    arriving: Option<ShardHandle>,
}

impl Prefetched {
    /// Returns true if nothing had to be fetched.
    #[must_use]
    pub fn was_here(&self) -> bool {
        self.arriving.is_none()
    }

    /// Returns true if it was opened at another node, and no copy comes.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.arriving.as_ref().is_some_and(|shard| shard.is_at_owner())
    }

    /// Estimated bytes at the time of the request.
    #[must_use]
    pub fn estimated_bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the shard; the size at its origin until it is unpacked.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.arriving.as_ref().map_or(self.bytes, |shard| shard.len())
    }

    /// Bytes that came from the origin for this request so far; those that a killed daemon left on
    /// the tier did not.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        let arrived =
            |shard: &ShardHandle| shard.kept_bytes().saturating_sub(shard.resumed_bytes());
        self.arriving.as_ref().map_or(0, arrived)
    }

    /// Waits until the fetch is over; the shard may not be durable yet.
    pub async fn fetched(&self) {
        if let Some(shard) = &self.arriving {
            shard.fetched().await;
        }
    }

    /// Waits until the shard is durable on its tier.
    ///
    /// # Errors
    /// The error of the origin, or the reason why no tier kept the shard.
    pub async fn settled(&self) -> Result<()> {
        match &self.arriving {
            Some(shard) => shard.settled().await,
            None => Ok(()),
        }
    }
}

impl Store {
    /// Starts to fetch the shard at `url` to a tier, unless one has it whole. `held`: bytes
    /// prefetched by the caller so far; this shard's are added.
    ///
    /// # Errors
    /// The error of the origin; `Full` if there is no room beside the shards of jobs and the bytes
    /// in `held`; `Invalid` if the data set is never cached.
    pub async fn prefetch(
        &self,
        url: &str,
        options: &Options,
        held: &AtomicU64,
    ) -> Result<Prefetched> {
        if self.is_never_cached(url) {
            let what = "its data set is never cached: there is nothing to prefetch";
            return Err(Error::new(ErrorKind::Invalid, what)
                .at("url", url)
                .at("cache", "never")
                .advise(
                    "let jobs read it in place, or remove `cache = \"never\"` from its data set",
                ));
        }
        let source = self.source(url, options)?;
        let url = &*object_of(url);
        let rank = Rank::behind(self.owner).paced(self.pace.clone());
        let (Begun { stat, head }, _) = self.identity(&source, url, &rank).await?;
        let name = Self::name_of(&*source, url, &stat);
        let bytes = self.inner.shared.unpacked(&name).unwrap_or(stat.len);
        let before = held.fetch_add(bytes, Ordering::Relaxed);
        if self.has_whole(&name).await {
            drop(head.take());
            return Ok(Prefetched { bytes, arriving: None });
        }
        let brought = match self.check_room(url, before.saturating_add(bytes)) {
            Ok(()) => self.shard_of(url, source, stat, rank, head.clone(), Urgency::Ahead).await,
            Err(error) => Err(error),
        };
        // Releases the first bytes if nobody took them.
        drop(head.take());
        match brought {
            Ok(shard) => Ok(Prefetched { bytes, arriving: Some(shard) }),
            Err(error) => {
                held.fetch_sub(bytes, Ordering::Relaxed);
                Err(error.at("url", url))
            }
        }
    }

    /// Returns true if a tier can serve the whole shard.
    pub(super) async fn has_whole(&self, name: &ShardName) -> bool {
        for tier in &self.inner.tiers {
            if tier.look_up(name).await.is_some_and(|(_, state)| ShardState::is_whole(state)) {
                return true;
            }
        }
        false
    }

    /// Rejects more bytes than the tiers for such shards can hold together.
    fn check_room(&self, url: &str, bytes: u64) -> Result<()> {
        let room = self.room_of(&[self.charge(url).dataset]);
        if bytes <= room {
            return Ok(());
        }
        let what = "the cache has no room for it beside the shards prefetched before it";
        Err(Error::new(ErrorKind::Full, what)
            .at("room", room)
            .advise("name fewer shards, or give the cache more room"))
    }
}
