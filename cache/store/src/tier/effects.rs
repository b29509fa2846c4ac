//! Effects of other rules on present shards, in bytes.
//!
//! Effects are computed from the same charges that are then put in force, and change nothing.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::Tier;
use super::limits::Size;
use super::new_charges::NewCharges;
use super::partition::age;
use crate::clock;
use crate::shares::Shares;

/// Effects of other rules on present shards.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effects {
    /// Each data set, in the order of the new rules; then removed ones.
    pub datasets: Vec<ShareEffect>,
    /// Each tenant, in the same way.
    pub tenants: Vec<ShareEffect>,
    /// Each tier, fastest first.
    pub tiers: Vec<TierEffect>,
}

/// Effects on a data set or a tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareEffect {
    /// Name of the data set or tenant.
    pub name: String,
    /// Bytes held under the old rules; none if they do not name it,
    pub before_bytes: Option<u64>,
    /// and under the new rules.
    pub after_bytes: Option<u64>,
    /// Bytes taken over from others.
    pub comes_bytes: u64,
    /// Bytes that others take over.
    pub goes_bytes: u64,
    /// Maximum bytes.
    pub max_bytes: Option<u64>,
    /// Bytes above the maximum: they are evicted in the order of its policy, unless pinned.
    pub over_bytes: u64,
    /// Bytes where the new rules want no copies: they are evicted, or move.
    pub unwanted_bytes: u64,
    /// Bytes older than the time to live: they are fetched anew on their next use.
    pub stale_bytes: u64,
}

/// Effects on a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierEffect {
    /// Name of the tier.
    pub name: String,
    /// Maximum bytes under the old rules,
    pub before_bytes: u64,
    /// and under the new rules.
    pub after_bytes: u64,
    /// Bytes above the maximum: they move to slower tiers, or are evicted.
    pub over_bytes: u64,
}

impl Effects {
    /// Computes the effects of these rules if they replace those `before`.
    pub(crate) fn of(before: &Shares, judged: &NewCharges, tiers: &[Tier], sizes: &[Size]) -> Self {
        let now = clock::now();
        let (mut datasets, mut tenants) = (Sums::default(), Sums::default());
        for tier in tiers {
            // Copied out: the table is not locked while the shards are looked at.
            let present = tier.table().present();
            for shard in present {
                let charge = judged.charge(&shard.of);
                let rule = judged.shares.rule(charge);
                let bytes = shard.bytes;
                let is_unwanted = !rule.allows(tier.name()) || rule.is_read_in_place(&shard.of.url);
                let unwanted = if is_unwanted { bytes } else { 0 };
                let is_stale = rule.ttl.is_some_and(|ttl| age(shard.since, now) >= ttl);
                let stale = if is_stale { bytes } else { 0 };
                datasets.add(shard.charge.dataset, charge.dataset, bytes, (unwanted, stale));
                tenants.add(shard.charge.tenant, charge.tenant, bytes, (unwanted, stale));
            }
        }
        let after = &judged.shares;
        let named = |shares: &Shares| -> Vec<(usize, String, Option<u64>)> {
            let all = shares.datasets();
            all.map(|(at, kept)| (at, kept.rule.name.clone(), kept.rule.max_bytes)).collect()
        };
        let of_tenants = Shares::named;
        let tiers = tiers.iter().zip(sizes).map(|(tier, size)| TierEffect {
            name: tier.name().to_owned(),
            before_bytes: tier.size().capacity,
            after_bytes: size.capacity,
            over_bytes: tier.budget().used().saturating_sub(size.capacity),
        });
        Self {
            datasets: datasets.effects(&named(before), named(after)),
            tenants: tenants.effects(&of_tenants(before), of_tenants(after)),
            tiers: tiers.collect(),
        }
    }
}

/// Sums of bytes by index of their owner.
#[derive(Default)]
struct Sums {
    before: HashMap<usize, u64>,
    after: HashMap<usize, ShareEffect>,
    goes: HashMap<usize, u64>,
}

impl Sums {
    fn add(&mut self, before: usize, after: usize, bytes: u64, (unwanted, stale): (u64, u64)) {
        *self.before.entry(before).or_default() += bytes;
        let effect = self.after.entry(after).or_default();
        *effect.after_bytes.get_or_insert_default() += bytes;
        effect.unwanted_bytes += unwanted;
        effect.stale_bytes += stale;
        if before != after {
            effect.comes_bytes += bytes;
            *self.goes.entry(before).or_default() += bytes;
        }
    }

    /// Effects on each owner, given by index, name and maximum.
    fn effects(
        mut self,
        before: &[(usize, String, Option<u64>)],
        after: Vec<(usize, String, Option<u64>)>,
    ) -> Vec<ShareEffect> {
        let was = |at: usize| before.iter().any(|(before, ..)| *before == at);
        let held = |of: &HashMap<usize, u64>, at: usize| of.get(&at).copied().unwrap_or(0);
        let is_gone = |(at, ..): &&(usize, String, _)| !after.iter().any(|(after, ..)| after == at);
        let gone: Vec<_> =
            before.iter().filter(is_gone).map(|(at, name, _)| (*at, name.clone())).collect();
        let mut effects = Vec::with_capacity(after.len() + gone.len());
        for (at, name, max_bytes) in after {
            let effect = self.after.remove(&at).unwrap_or_default();
            let bytes = effect.after_bytes.unwrap_or(0);
            effects.push(ShareEffect {
                name,
                before_bytes: was(at).then(|| held(&self.before, at)),
                after_bytes: Some(bytes),
                goes_bytes: held(&self.goes, at),
                max_bytes,
                over_bytes: bytes.saturating_sub(max_bytes.unwrap_or(u64::MAX)),
                ..effect
            });
        }
        effects.extend(gone.into_iter().map(|(at, name)| ShareEffect {
            name,
            before_bytes: Some(held(&self.before, at)),
            goes_bytes: held(&self.goes, at),
            ..ShareEffect::default()
        }));
        effects
    }
}

#[cfg(test)]
mod tests;
