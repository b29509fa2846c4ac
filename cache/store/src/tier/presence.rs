//! What a tier has of a shard, for those who only ask.
//!
//! One rule: looking changes nothing. No copy is used, opened for others or dropped by it.

use std::sync::Arc;

use forebay_error::{Error, Result};
use forebay_shard::{BLOCK_BYTES, Origin};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Tier;
use super::table::State;
use crate::directory::{Directory, ShardName};
use crate::shard::Shard;
use crate::store::{Copy, IsMeant};

/// A copy of a shard, and what keeps it or lets it go.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Kept {
    /// The tier that it is on.
    pub tier: String,
    /// How much of it is there.
    pub state: Copy,
    /// Bytes that it takes.
    pub bytes: u64,
    /// The tenant that is charged for it.
    pub tenant: Option<String>,
    /// Seconds since it was fetched.
    pub age_seconds: u64,
    /// How often jobs used it since.
    pub uses: u32,
    /// Somebody reads it, or is about to: it does not leave meanwhile.
    pub in_use: bool,
    /// A job has it in its window: it leaves only where nothing else can.
    pub claimed: bool,
    /// An admin pinned it.
    pub pinned: bool,
    /// It was not admitted: it goes before all others.
    pub passes: bool,
    /// Its data set or its tenant is left with so many bytes that this one does not go for others'.
    pub within_minimum: bool,
    /// Seconds until its data set lets it be evicted.
    pub kept_for_seconds: Option<u64>,
    /// Seconds until it is too old to be served.
    pub stale_in_seconds: Option<u64>,
    /// Seconds until a job that told its order needs it, as far as jobs' speeds tell.
    pub needed_in_seconds: Option<f64>,
}

impl Tier {
    /// A copy here, as far as it is known.
    pub(crate) fn kept(&self, name: &ShardName) -> Option<Kept> {
        self.table().kept(name, self.name())
    }

    /// How a shard is doing here, and its name here; the directory is looked at where its listing has not
    /// come to it yet.
    pub(crate) async fn look_for(&self, name: &ShardName) -> Option<(ShardName, State)> {
        if !self.is_readable() {
            return None;
        }
        let mut here = self.name_for(name);
        if self.state(&here).is_none() {
            // What cannot be looked at is listed, or not there.
            if let Err(error) = self.probe(&here).await {
                tracing::debug!(tier = self.name(), %error, "failed to look for a shard");
            }
            here = self.name_for(name);
        }
        let state = self.state(&here)?;
        Some((here, state))
    }

    /// Bytes that are here of a shard that is not whole.
    pub(crate) async fn bytes_of_unfinished(&self, name: &ShardName) -> u64 {
        if let Some((shard, _)) = self.in_use(name) {
            return shard.kept_bytes();
        }
        let name = name.clone();
        let record = self.on_disk(move |directory| directory.read_partial(&name)).await;
        // One that cannot be read is worth nothing to the next fill either.
        let Ok(record) = record else { return 0 };
        let blocks = record.blocks.iter().flatten().count() as u64;
        (blocks * BLOCK_BYTES).min(record.len)
    }

    /// Compares a whole copy with what its origin sent; what is wrong with it, if anything is. Copies in
    /// memory are compared at each read.
    pub(crate) async fn verify(&self, name: &ShardName) -> Option<Error> {
        self.disk()?;
        let space = {
            let table = self.table();
            let entry = table.get(name).filter(|entry| entry.state() == State::Whole)?;
            Arc::downgrade(&entry.space)
        };
        self.flaw_of(name, &space).await
    }

    /// Every copy of what came from `url`, whatever its version, those on their way included.
    ///
    /// # Errors
    /// If the directory could not be listed.
    pub(crate) async fn copies_of(&self, url: &str) -> Result<Vec<ShardName>> {
        self.scanned().await?;
        // What is looked for is what the names of all versions have in common.
        let (endpoint, version) = (String::new(), String::new());
        let any = ShardName::new(&Origin { endpoint, url: url.to_owned(), version });
        let (live, resting): (Vec<_>, Vec<_>) =
            self.table().called_like(&any).into_iter().partition(|(_, shard)| shard.is_some());
        let is_of = |shard: &Shard| shard.url() == url;
        let live = live.into_iter().filter(|(_, shard)| shard.as_deref().is_some_and(is_of));
        let mut names: Vec<_> = live.map(|(name, _)| name).collect();
        if self.disk().is_some() {
            let of = url.to_owned();
            // Heads are read one by one, of those that are called like it: 20 µs each.
            let found = self.on_disk(move |directory: &Directory| {
                let resting = resting.into_iter().map(|(name, _)| name);
                let is_of = |name: &ShardName| directory.url_of(name).is_some_and(|url| url == of);
                Ok(resting.filter(is_of).collect::<Vec<_>>())
            });
            names.extend(found.await?);
        }
        Ok(names)
    }

    /// The URLs of shards here that are meant, those on their way included.
    ///
    /// # Errors
    /// If the directory could not be listed.
    pub(crate) async fn urls(&self, is_meant: &IsMeant) -> Result<Vec<String>> {
        self.scanned().await?;
        let table = self.table();
        let urls = table.all().map(|(_, url)| url).filter(|url| is_meant(url));
        Ok(urls.map(str::to_owned).collect())
    }
}
