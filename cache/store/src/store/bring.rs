//! Shards that are brought in though no job wants them yet.
//!
//! One rule: jobs come first. What is brought ranks behind all that jobs want, pushes out nothing that one
//! claimed, and stops where it would begin to push out what was brought before it.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Origin;
use forebay_source::{Options, Rank};

use super::Store;
use super::identity::Begun;
use crate::directory::ShardName;
use crate::shard::Lease;
use crate::tier::{State, Urgency};

/// A shard that was asked for: on its way to a tier, or there already.
#[derive(Debug)]
pub struct Brought {
    bytes: u64,
    /// None where it was there.
    arriving: Option<Lease>,
}

impl Brought {
    /// Whether nothing of it had to be fetched.
    #[must_use]
    pub fn was_here(&self) -> bool {
        self.arriving.is_none()
    }

    /// Bytes that it was thought to have when it was asked for.
    #[must_use]
    pub fn reckoned(&self) -> u64 {
        self.bytes
    }

    /// Its bytes, as its origin has them until they are unpacked.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.arriving.as_ref().map_or(self.bytes, |shard| shard.len())
    }

    /// Bytes of it that came here for this.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arriving.as_ref().map_or(0, |shard| shard.kept_bytes())
    }

    /// Waits until it is on its tier for good.
    ///
    /// # Errors
    /// What its origin answered, or why no tier kept it.
    pub async fn settled(&self) -> Result<()> {
        match &self.arriving {
            Some(shard) => shard.settled().await,
            None => Ok(()),
        }
    }
}

impl Store {
    /// Begins to bring the shard at `url` to a tier, unless one has it whole. `held` is what whoever asks
    /// has brought so far, in bytes, and this one's are added.
    ///
    /// # Errors
    /// What the origin answered; `Full` if there is no room for it beside what jobs need and what is
    /// `held`; `Invalid` if its data set is never cached.
    pub async fn bring(&self, url: &str, options: &Options, held: &AtomicU64) -> Result<Brought> {
        if self.is_never_cached(url) {
            let what = "its data set is never cached: there is nothing to bring here";
            return Err(Error::new(ErrorKind::Invalid, what)
                .at("url", url)
                .at("cache", "never")
                .advise(
                    "let jobs read it where it is, or take `cache = \"never\"` from its data set",
                ));
        }
        let source = self.inner.sources.open(url, options)?;
        let rank = Rank::behind(self.owner).paced(self.pace.clone());
        let Begun { stat, head } = self.identity(&source, url, &rank).await?;
        let origin = Origin {
            endpoint: source.endpoint().to_owned(),
            url: url.to_owned(),
            version: stat.version.clone(),
        };
        let name = ShardName::new(&origin);
        let bytes = self.inner.commons.unpacked(&name).unwrap_or(stat.len);
        let before = held.fetch_add(bytes, Ordering::Relaxed);
        if self.has_whole(&name).await {
            drop(head.take());
            return Ok(Brought { bytes, arriving: None });
        }
        let brought = match self.check_room(url, before.saturating_add(bytes)) {
            Ok(()) => self.shard_of(url, source, stat, rank, head.clone(), Urgency::Ahead).await,
            Err(error) => Err(error),
        };
        // Nobody else is to wait for what nobody took.
        drop(head.take());
        match brought {
            Ok(shard) => Ok(Brought { bytes, arriving: Some(shard) }),
            Err(error) => {
                held.fetch_sub(bytes, Ordering::Relaxed);
                Err(error.at("url", url))
            }
        }
    }

    /// Whether a tier can serve all of a shard.
    async fn has_whole(&self, name: &ShardName) -> bool {
        for tier in &self.inner.tiers {
            if tier.look_for(name).await.is_some_and(|(_, state)| State::is_whole(state)) {
                return true;
            }
        }
        false
    }

    /// Refuses more than the tiers that take such shards can hold together.
    fn check_room(&self, url: &str, bytes: u64) -> Result<()> {
        let room = self.room_of(&[self.charge(url).dataset]);
        if bytes <= room {
            return Ok(());
        }
        let what = "the cache has no room for it beside the shards that were brought before it";
        Err(Error::new(ErrorKind::Full, what)
            .at("room", room)
            .advise("name fewer shards, or give the cache more room"))
    }
}
