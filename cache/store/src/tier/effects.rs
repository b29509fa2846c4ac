//! What other rules mean for what is here, in bytes.
//!
//! One rule: it is reckoned from the very judgement that is then put in force, and changes nothing.

use std::collections::HashMap;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::Tier;
use super::limits::Size;
use super::shelf::age;
use super::table::Judged;
use crate::shares::{Charge, Provenance, Shares};
use crate::store::is_read_in_place;

/// What other rules mean for what is here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effects {
    /// Each data set, in the order of the new rules; then those that are gone.
    pub datasets: Vec<ShareEffect>,
    /// Each tenant, the same way.
    pub tenants: Vec<ShareEffect>,
    /// Each tier, the fastest first.
    pub tiers: Vec<TierEffect>,
}

/// What they mean for a data set or a tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareEffect {
    /// Its name.
    pub name: String,
    /// Bytes that it holds by the old rules; none where they do not name it,
    pub before_bytes: Option<u64>,
    /// and by the new ones.
    pub after_bytes: Option<u64>,
    /// Bytes that it takes over from others.
    pub comes_bytes: u64,
    /// Bytes that others take over from it.
    pub goes_bytes: u64,
    /// Bytes that it may hold.
    pub max_bytes: Option<u64>,
    /// Bytes that it holds above that: they go, oldest first or as its policy says, unless they are pinned.
    pub over_bytes: u64,
    /// Bytes that it holds where the new rules want no copies: they go, or move.
    pub unwanted_bytes: u64,
    /// Bytes that are older than its time to live: they are fetched anew when they are next wanted.
    pub stale_bytes: u64,
}

/// What they mean for a tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierEffect {
    /// Its name.
    pub name: String,
    /// Bytes that it may hold by the old rules,
    pub before_bytes: u64,
    /// and by the new ones.
    pub after_bytes: u64,
    /// Bytes that it holds above that: they move to slower tiers, or go.
    pub over_bytes: u64,
}

/// A shard that is here.
pub(super) struct Present {
    pub(super) of: Provenance,
    pub(super) charge: Charge,
    pub(super) bytes: u64,
    pub(super) since: SystemTime,
}

impl Effects {
    /// What changes if these rules come to count in place of those `before`.
    pub(crate) fn of(before: &Shares, judged: &Judged, tiers: &[Tier], sizes: &[Size]) -> Self {
        let now = SystemTime::now();
        let (mut datasets, mut tenants) = (Sums::default(), Sums::default());
        for tier in tiers {
            // Copied out: the table is not to be held while all of them are looked at.
            let present = tier.table().present();
            for shard in present {
                let charge = judged.charge(&shard.of);
                let rule = judged.shares.rule(charge);
                let bytes = shard.bytes;
                let is_unwanted =
                    !rule.allows(tier.name()) || is_read_in_place(rule, &shard.of.url);
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

/// Bytes by the places of those who hold them.
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

    /// Of each place, with its name and what it may hold.
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
