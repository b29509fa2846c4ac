//! Change of rules while shards are present and jobs run.
//!
//! All or nothing. Everything that can fail is done first and changes nothing. The change
//! itself is made while the tables of all tiers are locked, so no decision sees half of it. Nothing
//! is written: if the daemon is killed, the next one reads its file.
//!
//! Shards beyond the new limits, or on tiers the rules no longer allow, leave afterwards: moved by
//! the background task (`moves.rs`), or evicted for room. Until then their owner gets no more room.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Rules;

use super::Store;
use crate::checkpoint_rule::CheckpointRule;
use crate::dataset::Dataset;
use crate::shares::Shares;
use crate::tenant::Tenant;
use crate::tier::{self, Effects, NewCharges, Tier, TierLimits};

/// Rules of a store that can change at run time.
pub struct StoreRules {
    /// Rules for data sets; the first with a matching pattern counts.
    pub datasets: Vec<Dataset>,
    /// Limits of tenants.
    pub tenants: Vec<Tenant>,
    /// Rules for checkpoints; the first with a matching pattern counts.
    pub checkpoints: Vec<CheckpointRule>,
    /// Limits of every tier.
    pub tiers: Vec<TierLimits>,
    /// Rules for origins.
    pub sources: Rules,
}

impl Store {
    /// Puts other rules in force, and returns their effects on present shards. `dry`: only returns
    /// the effects.
    ///
    /// The rules apply to running jobs at once. A job keeps its tenant; if that is no longer
    /// configured, it is charged as none.
    ///
    /// # Errors
    /// `Invalid` if the rules cannot all be kept, or name other tiers than exist; then nothing has
    /// changed.
    pub async fn reconfigure(&self, rules: StoreRules, dry: bool) -> Result<Effects> {
        let Self { inner, .. } = self;
        // One change at a time: the checked rules must be the next in force.
        let _alone = inner.reconfiguring.lock().await;
        let StoreRules { datasets, tenants, checkpoints, tiers: limits, sources } = rules;
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
        let shares = inner.shared.shares.current().ruled(datasets, tenants, &named)?;
        let shares = Arc::new(shares.with_checkpoints(checkpoints, &named)?);
        let sources = inner.sources.prepare(sources)?;
        let judged = self.judge(shares).await?;
        let effects = Effects::of(&inner.shared.shares.current(), &judged, &inner.tiers, &sizes);
        if !dry {
            inner.sources.rule(sources);
            tier::reconfigure(&inner.tiers, &judged, &sizes);
            let largest = sizes.iter().map(|size| size.capacity).max().unwrap_or(0);
            inner.shared.largest_tier.store(largest, Ordering::Relaxed);
            // Unwanted shards leave, and waiting ones may find room.
            inner.shared.moves.notify_one();
            let store = self.clone();
            // Fails only while the node stops; then nothing needs a decision.
            let _ = tokio::task::spawn_blocking(move || store.note_ring_change()).await;
        }
        Ok(effects)
    }

    /// Charges of all present shards under the new rules. This takes a while, beside running
    /// readers.
    async fn judge(&self, shares: Arc<Shares>) -> Result<NewCharges> {
        let tiers = self.inner.tiers.clone();
        let judge = move || NewCharges::by(shares, tiers.iter().flat_map(Tier::provenances));
        tokio::task::spawn_blocking(judge).await.map_err(|_| Error::shutting_down())
    }
}

fn other_tiers(name: &str) -> Error {
    Error::new(ErrorKind::Invalid, "tiers are added and removed only when the daemon starts")
        .at("tier", name)
}
