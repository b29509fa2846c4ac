//! Other rules while shards are here and jobs run.
//!
//! One rule: all of it or nothing. Everything that can fail is done beforehand and changes nothing; what
//! then changes does so while every tier's table is held, so that nobody decides by half of it. Nothing is
//! written: should the daemon be killed at any moment, the next goes by its file.
//!
//! What is here beyond what the new rules leave a data set or a tenant, or where they want it no more, goes
//! afterwards: by whoever moves shards (`moves.rs`), or to make room. Until then nothing comes beside it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Rules;

use super::Store;
use crate::dataset::Dataset;
use crate::shares::Shares;
use crate::tenant::Tenant;
use crate::tier::{self, Effects, Judged, Tier, TierLimits, shutting_down};

/// What may change of a store while it is used.
pub struct StoreRules {
    /// What admins say of data sets; the first whose pattern matches counts.
    pub datasets: Vec<Dataset>,
    /// What each of those may hold who share the node.
    pub tenants: Vec<Tenant>,
    /// What every tier may hold.
    pub tiers: Vec<TierLimits>,
    /// Which stores may be read, and how.
    pub sources: Rules,
}

impl Store {
    /// Goes by other rules from now on, and says what that means for what is here. `dry`: only says it.
    ///
    /// A running job feels them at once. It stays the tenant that it was when it came; one that is not
    /// configured any more is charged as none.
    ///
    /// # Errors
    /// `Invalid` if the rules cannot all be kept, or name other tiers than there are; then nothing changed.
    pub async fn reconfigure(&self, rules: StoreRules, dry: bool) -> Result<Effects> {
        let Self { inner, .. } = self;
        // One at a time: what is judged must be what counts then.
        let _alone = inner.reconfiguring.lock().await;
        let StoreRules { datasets, tenants, tiers: limits, sources } = rules;
        let mut sizes = Vec::with_capacity(inner.tiers.len());
        for tier in &inner.tiers {
            let its = limits.iter().find(|limits| limits.name == tier.name());
            sizes.push(tier.size_by(its.ok_or_else(|| other_tiers(tier.name()))?).await?);
        }
        if let Some(unknown) =
            limits.iter().find(|of| !inner.tiers.iter().any(|tier| tier.name() == of.name))
        {
            return Err(other_tiers(&unknown.name));
        }
        let named: Vec<_> = inner
            .tiers
            .iter()
            .zip(&sizes)
            .map(|(tier, size)| (tier.name(), size.capacity))
            .collect();
        let shares = Arc::new(inner.commons.shares.now().ruled(datasets, tenants, &named)?);
        let sources = inner.sources.prepare(sources)?;
        let judged = self.judge(shares).await?;
        let effects = Effects::of(&inner.commons.shares.now(), &judged, &inner.tiers, &sizes);
        if !dry {
            inner.sources.rule(sources);
            tier::reconfigure(&inner.tiers, &judged, &sizes);
            let largest = sizes.iter().map(|size| size.capacity).max().unwrap_or(0);
            inner.commons.largest_tier.store(largest, Ordering::Relaxed);
            // What is wanted no more goes, and what had no room may have it.
            inner.commons.moves.notify_one();
            let store = self.clone();
            // It fails only where the node ends: nothing is decided any more then.
            let _ = tokio::task::spawn_blocking(move || store.decide(None)).await;
        }
        Ok(effects)
    }

    /// What the rules say of everything that is here, beside those who read: that takes a while.
    async fn judge(&self, shares: Arc<Shares>) -> Result<Judged> {
        let tiers = self.inner.tiers.clone();
        let judge = move || Judged::by(shares, tiers.iter().flat_map(Tier::provenances));
        tokio::task::spawn_blocking(judge).await.map_err(|_| shutting_down())
    }
}

fn other_tiers(name: &str) -> Error {
    Error::new(ErrorKind::Invalid, "tiers come and go only as the daemon starts").at("tier", name)
}
