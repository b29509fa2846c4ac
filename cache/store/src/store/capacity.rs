//! Capacity of the tiers for a set of shards, if nothing else were there.
//!
//! The limits of tiers, data sets and tenant bound it, never the bytes that are free at the
//! moment.

use std::collections::HashSet;

use super::Store;
use crate::shares::{Charge, NOBODY};
use crate::tier::Tier;

impl Store {
    /// Bytes that shards of these URLs may take together. None if all of them are read where they
    /// are: no copies are kept, or no tier accepts them now.
    #[must_use]
    pub fn room_for<'a>(&self, urls: impl Iterator<Item = &'a str>) -> Option<u64> {
        let datasets = self.kept_datasets(urls);
        let is_taken = self.takers(&datasets).next().is_some();
        is_taken.then(|| self.room_of(&datasets))
    }

    /// Names of the tiers for shards of these URLs that have less room than their capacity: other
    /// files fill their disks.
    #[must_use]
    pub fn filled_by_others<'a>(&self, urls: impl Iterator<Item = &'a str>) -> Vec<String> {
        let is_short = |tier: &&Tier| tier.budget().limit() < tier.budget().capacity();
        let datasets = self.kept_datasets(urls);
        self.takers(&datasets).filter(is_short).map(|tier| tier.name().to_owned()).collect()
    }

    /// Data sets of the shards of which copies are kept.
    fn kept_datasets<'a>(&self, urls: impl Iterator<Item = &'a str>) -> Vec<usize> {
        let kept = urls.filter(|url| self.keeps(url)).map(|url| self.charge(url).dataset);
        let datasets: HashSet<usize> = kept.collect();
        datasets.into_iter().collect()
    }

    /// Returns true if copies of a shard are kept.
    #[must_use]
    pub fn keeps(&self, url: &str) -> bool {
        !self.is_never_cached(url)
    }

    /// Maximum bytes of these data sets for this tenant.
    pub(super) fn room_of(&self, datasets: &[usize]) -> u64 {
        let shares = self.inner.shared.shares.current();
        let of = |dataset: &usize| shares.dataset(Charge { dataset: *dataset, ..NOBODY });
        let quotas = datasets.iter().map(|at| of(at).share.budget.capacity());
        let tenant = shares.tenant(shares.charge("", self.tenant())).budget.capacity();
        self.takers(datasets)
            .map(|tier| tier.budget().limit())
            .fold(0, u64::saturating_add)
            .min(quotas.fold(0, u64::saturating_add))
            .min(tenant)
    }

    /// Tiers that accept shards of any of these data sets.
    fn takers(&self, datasets: &[usize]) -> impl Iterator<Item = &Tier> {
        let shares = self.inner.shared.shares.current();
        self.inner.tiers.iter().filter(move |tier| {
            let charge = |dataset: &usize| Charge { dataset: *dataset, ..NOBODY };
            let allows = |at: &usize| shares.rule(charge(at)).allows(tier.name());
            tier.is_writable() && datasets.iter().any(allows)
        })
    }
}
