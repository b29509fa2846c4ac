//! Removal of copies from a tier.

use std::sync::{Arc, Weak};

use forebay_error::{Error, ErrorKind, Result};
use futures::FutureExt;
use futures::future::Shared;

use super::Tier;
use super::entry::{Entry, ShardState};
use super::table::{Removal, ShardTable};
use crate::budget::Space;
use crate::directory::ShardName;
use crate::shard::Shard;

impl Tier {
    /// Removes this copy, if it is still there.
    pub(super) fn remove_open_copy(&self, shard: &Shard) -> Option<Shared<Removal>> {
        self.remove_copy(shard.name(), &shard.home.as_ref()?.space)
    }

    /// Removes the copy that holds `space`, if it is still there.
    pub(super) fn remove_copy(
        &self,
        name: &ShardName,
        space: &Arc<Space>,
    ) -> Option<Shared<Removal>> {
        let mut table = self.table();
        let is_there = table.get(name).is_some_and(|entry| Arc::ptr_eq(&entry.space, space));
        is_there.then(|| self.remove(&mut table, name, false))
    }

    /// Drops and counts a corrupt copy. Returns false if it was dropped already. A copy is
    /// identified by its space: the shard may have been fetched anew.
    pub(crate) async fn drop_corrupt(
        &self,
        name: &ShardName,
        space: &Weak<Space>,
        why: &Error,
    ) -> bool {
        if self.scanned().await.is_err() {
            return false;
        }
        let gone = {
            let mut table = self.table();
            let is_there = table.get(name).is_some_and(|entry| entry.is_copy(space));
            is_there.then(|| self.remove(&mut table, name, false))
        };
        let Some(gone) = gone else { return false };
        self.0.tally.corruptions.inc();
        let (tier, device) = (self.name(), self.device());
        let url = why.place("url");
        let dataset = url.map(|url| self.0.shared.dataset_of(url));
        let shard = name.as_str();
        tracing::error!(tier, device, dataset, url, shard, error = %why, "removed a corrupt copy");
        gone.await;
        true
    }

    /// Drops a copy that cannot be opened.
    pub(super) async fn discard(&self, name: &ShardName, why: &Error) -> Result<()> {
        // The listing must not find a copy that is about to leave.
        self.scanned().await?;
        let (tier, device) = (self.name(), self.device());
        let url = why.place("url");
        let dataset = url.map(|url| self.0.shared.dataset_of(url));
        let shard = name.as_str();
        tracing::warn!(tier, device, dataset, url, shard, error = %why, "removed a copy that could not be opened");
        if why.kind() == ErrorKind::Corrupt {
            self.0.tally.corruptions.inc();
        }
        let gone = {
            let mut table = self.table();
            self.remove(&mut table, name, false)
        };
        gone.await;
        Ok(())
    }

    /// Drops every copy of `url` in any version, and returns their number. `dry`: only counts them.
    pub(crate) async fn forget_url(&self, url: &str, dry: bool) -> Result<u64> {
        if !self.is_readable() {
            let what = "the tier cannot be used now: its copy of the shard stays";
            return Err(Error::new(ErrorKind::Unavailable, what)
                .at("url", url)
                .advise("try again once `forebay tier ls` shows it enabled and normal"));
        }
        let names = self.copies_of(url).await?;
        if !dry {
            for name in &names {
                let gone = {
                    let mut table = self.table();
                    match table.get(name).map(Entry::state) {
                        // Removed when its fill ends.
                        Some(ShardState::Arriving) => {
                            table.mark_for_removal(name);
                            None
                        }
                        Some(_) => Some(self.remove(&mut table, name, false)),
                        None => None,
                    }
                };
                if let Some(gone) = gone {
                    gone.await;
                }
            }
        }
        Ok(names.len() as u64)
    }

    /// Removes a shard. Its bytes stay reserved, and its name taken, until its files are gone. The
    /// removal goes on even if nobody waits for it. `evicted`: true if a policy chose the shard.
    pub(super) fn remove(
        &self,
        table: &mut ShardTable,
        name: &ShardName,
        evicted: bool,
    ) -> Shared<Removal> {
        let entry = table.remove(name, evicted);
        let Ok(directory) = self.directory() else {
            // A memory tier, or a closed directory.
            drop(entry);
            return std::future::ready(()).boxed().shared();
        };
        if self.0.health.is_silent() {
            // A call would hold a thread. The bytes stay reserved until the device is back.
            table.stuck.extend(entry);
            return std::future::ready(()).boxed().shared();
        }
        let (tier, of) = (self.clone(), name.clone());
        let removal = tokio::task::spawn_blocking(move || {
            let removed = directory.remove(&of);
            if let Err(error) = &removed {
                tracing::error!(tier = tier.name(), %error, "failed to remove a shard; its bytes stay reserved");
                tier.note_failure(error);
            }
            let mut table = tier.table();
            table.leaving.remove(&of);
            // With its bytes, while the table is locked: who finds it gone finds them free.
            match removed {
                Ok(()) => drop(entry),
                Err(_) => table.stuck.extend(entry),
            }
        });
        let gone = removal.map(|_| ()).boxed().shared();
        table.leaving.insert(name.clone(), gone.clone());
        gone
    }
}
