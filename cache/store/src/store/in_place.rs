//! Shards that are read where they are: those of data sets that are never cached.
//!
//! One rule: no byte of theirs is kept, only where each member lies and what it sums up to. So they are
//! checked as those on a tier are, and a file that is not the one that was indexed is never served.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Sidecar;

use super::Store;
use crate::dataset::Cache;
use crate::fill::{Format, Job};
use crate::shard::{Growth, Lease, Shard};
use crate::tier::Wanted;

impl Store {
    /// Whether a shard is read where it is. What is compressed there has no members to be read.
    pub(super) fn is_read_in_place(&self, wanted: &Wanted) -> bool {
        self.inner.commons.shares.rule(wanted.charge).cache == Cache::Never
            && !Format::is_promised(&wanted.origin.url)
    }

    /// The shard where it is, by its index; if there is none, that is made on the way.
    pub(super) async fn open_in_place(&self, wanted: &Wanted) -> Arc<Shard> {
        let known = self.inner.commons.through().get(&wanted.name);
        if let Some(shard) = known.filter(|shard| shard.progress().failed.is_none()) {
            return shard;
        }
        if let Some(sidecar) = self.kept_index(wanted).await {
            let growth = Growth::whole(sidecar.index, sidecar.len);
            let shard = self.through(wanted, growth, None, in_place());
            self.inner.commons.through().keep(wanted.name.clone(), &shard);
            return shard;
        }
        self.index_through(wanted, in_place())
    }

    /// The same shard, read from its origin through this client's own files: what is known of it serves
    /// all, but another client may be gone by now.
    #[must_use]
    pub fn by_own_files(&self, lease: Lease) -> Lease {
        match self.own_files(&lease) {
            Some(source) if lease.home.is_none() => Lease::new(lease.shard().read_by(source)),
            _ => lease,
        }
    }

    async fn kept_index(&self, wanted: &Wanted) -> Option<Sidecar> {
        for tier in &self.inner.tiers {
            let name = wanted.name.clone();
            let kept = tier.on_disk(move |directory| Ok(directory.kept_index(&name))).await;
            if let Some(sidecar) = kept.ok().flatten().filter(|kept| kept.origin == wanted.origin) {
                return Some(sidecar);
            }
        }
        None
    }

    /// Keeps the index of a shard that was read whole, where a disk is.
    pub(super) async fn keep_index(&self, job: &Job, shard: &Shard) {
        let sidecar = Arc::new(Sidecar {
            origin: job.origin.clone(),
            tenant: None,
            len: job.parts.len(),
            compressed_len: None,
            blocks: job.parts.sums().into_iter().flatten().collect(),
            index: job.growth.index().index(),
        });
        for tier in self.inner.tiers.iter().filter(|tier| tier.is_writable()) {
            let (name, sidecar) = (shard.name().clone(), sidecar.clone());
            match tier.on_disk(move |directory| directory.keep_index(&name, &sidecar)).await {
                Ok(()) => return,
                // A tier in memory has no directory.
                Err(error) if error.kind() == ErrorKind::Closed => {}
                Err(error) => {
                    tracing::warn!(tier = tier.name(), %error, "failed to keep an index: it is made anew");
                }
            }
        }
    }

    /// Forgets the index of a shard that is not what it was.
    pub(super) async fn drop_index(&self, shard: &Shard) {
        for tier in &self.inner.tiers {
            let name = shard.name().clone();
            // What cannot be removed now proves wrong again when it is next used.
            let _: Result<()> = tier.on_disk(move |directory| directory.drop_index(&name)).await;
        }
    }
}

/// Why no tier has it.
fn in_place() -> Error {
    Error::new(ErrorKind::Unavailable, "its data set is never cached")
}
