//! Look-ups of a tier's copies, for reports.
//!
//! A look-up changes nothing. It uses, opens or drops no copy.

use std::sync::Arc;

use forebay_error::{Error, Result};
use forebay_shard::{BLOCK_BYTES, Origin};

use super::Tier;
use super::copy::CopyReport;
use super::entry::ShardState;
use crate::directory::{Directory, ShardName};
use crate::selector::Selector;
use crate::shard::Shard;

impl Tier {
    /// Report on a copy, if it is known.
    pub(crate) fn report_copy(&self, name: &ShardName) -> Option<CopyReport> {
        self.table().report_copy(name, self.name())
    }

    /// State of a shard here, and its name on this tier. Looks into the directory if that is still
    /// being listed.
    pub(crate) async fn look_up(&self, name: &ShardName) -> Option<(ShardName, ShardState)> {
        if !self.is_readable() {
            return None;
        }
        let mut here = self.name_for(name);
        if self.state(&here).is_none() {
            // If the look fails, the listing will show the shard.
            if let Err(error) = self.probe(&here).await {
                tracing::debug!(tier = self.name(), %error, "failed to look up a shard");
            }
            here = self.name_for(name);
        }
        let state = self.state(&here)?;
        Some((here, state))
    }

    /// Bytes here of a shard that is not whole.
    pub(crate) async fn bytes_of_unfinished(&self, name: &ShardName) -> u64 {
        if let Some((shard, _)) = self.in_use(name) {
            return shard.kept_bytes();
        }
        let name = name.clone();
        let record = self.on_disk(move |directory| directory.read_partial(&name)).await;
        // An unreadable record is useless for the next fill as well.
        let Ok(record) = record else { return 0 };
        let blocks = record.blocks.iter().flatten().count() as u64;
        (blocks * BLOCK_BYTES).min(record.len)
    }

    /// Compares a whole copy with its recorded checksums. Returns the error, if it differs. Copies
    /// in memory are checked at each read.
    pub(crate) async fn verify(&self, name: &ShardName) -> Option<Error> {
        self.disk()?;
        let space = {
            let table = self.table();
            let entry = table.get(name).filter(|entry| entry.state() == ShardState::Whole)?;
            Arc::downgrade(&entry.space)
        };
        self.flaw_of(name, &space).await
    }

    /// Compares a whole copy with its recorded checksums, and drops it if it differs. Returns true
    /// if it was dropped.
    pub(crate) async fn drop_if_corrupt(&self, name: &ShardName) -> bool {
        let space = {
            let table = self.table();
            let entry = table.get(name).filter(|entry| entry.state() == ShardState::Whole);
            entry.map(|entry| Arc::downgrade(&entry.space))
        };
        match (space, self.verify(name).await) {
            (Some(space), Some(flaw)) => self.drop_corrupt(name, &space, &flaw).await,
            _ => false,
        }
    }

    /// Every copy of `url` in any version, arriving ones included.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub(crate) async fn copies_of(&self, url: &str) -> Result<Vec<ShardName>> {
        self.scanned().await?;
        // Only the part of the name that all versions share is looked for.
        let (endpoint, version) = (String::new(), String::new());
        let any = ShardName::new(&Origin { endpoint, url: url.to_owned(), version });
        let (live, resting): (Vec<_>, Vec<_>) =
            self.table().with_same_label(&any).into_iter().partition(|(_, shard)| shard.is_some());
        let is_of = |shard: &Shard| shard.url() == url;
        let live = live.into_iter().filter(|(_, shard)| shard.as_deref().is_some_and(is_of));
        let mut names: Vec<_> = live.map(|(name, _)| name).collect();
        if self.disk().is_some() {
            let of = url.to_owned();
            // Heads of candidates are read one by one: 20 µs each.
            let found = self.on_disk(move |directory: &Directory| {
                let resting = resting.into_iter().map(|(name, _)| name);
                let is_of = |name: &ShardName| directory.url_of(name).is_some_and(|url| url == of);
                Ok(resting.filter(is_of).collect::<Vec<_>>())
            });
            names.extend(found.await?);
        }
        Ok(names)
    }

    /// Bytes of the other excerpts of the object at `url` that are known to be here, arriving ones
    /// included. `own` is one of the excerpts, here or not.
    pub(crate) fn excerpt_bytes(&self, own: &ShardName, url: &str) -> u64 {
        self.table().excerpt_bytes(&self.name_for(own), url)
    }

    /// URLs of selected shards here, arriving ones included.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub(crate) async fn urls(&self, is_meant: &Selector) -> Result<Vec<String>> {
        self.scanned().await?;
        let table = self.table();
        let urls = table.urls().map(|(_, url)| url).filter(|url| is_meant(url));
        Ok(urls.map(str::to_owned).collect())
    }
}
