//! Reports on counters and holdings.

use std::collections::HashMap;

use forebay_histogram::Times;
use forebay_source::{Billed, LinkReport};

use super::Store;
use crate::checkpoint_rule::CheckpointRule;
use crate::counters::{Counters, Holding, Holdings, ThroughCounters};
use crate::dataset::Dataset;
use crate::fill::Fills;
use crate::ledger::BillKey;
use crate::tier::{Tier, TierReport};
use crate::traffic::DatasetTraffic;

impl Store {
    /// Costs of fetches since the start, by payer.
    #[must_use]
    pub fn bills(&self) -> Vec<(BillKey, Billed)> {
        self.inner.shared.ledger.report()
    }

    /// Counters since the start, over all tiers.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let past = self.past().into();
        self.inner.tiers.iter().map(Tier::counters).fold(past, |sum, tier| sum + tier)
    }

    /// Counters of reads past all tiers.
    #[must_use]
    pub fn past(&self) -> ThroughCounters {
        self.inner.shared.past.past(self.inner.shared.traffic.sums())
    }

    /// Report on each tier, fastest first.
    #[must_use]
    pub fn tiers(&self) -> Vec<TierReport> {
        self.inner.tiers.iter().map(Tier::report).collect()
    }

    /// Bytes for batches that came past all tiers, by data set.
    #[must_use]
    pub fn past_tiers(&self) -> Vec<DatasetTraffic> {
        self.inner.shared.traffic.report()
    }

    /// Waits for samples that had not arrived.
    #[must_use]
    pub fn waits(&self) -> Times {
        self.inner.shared.waits.read()
    }

    /// Times of fetches, from their turn until a tier had the shard durably.
    #[must_use]
    pub fn fetches(&self) -> Times {
        self.inner.shared.fetches.read()
    }

    /// Running and waiting fills.
    #[must_use]
    pub fn fills(&self) -> Fills {
        self.inner.shared.flights.report()
    }

    /// Report on each endpoint that was used.
    #[must_use]
    pub fn links(&self) -> Vec<LinkReport> {
        self.inner.sources.links()
    }

    /// Holdings of each data set and each tenant.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        let shares = self.inner.shared.shares.current();
        let (mut of_dataset, mut of_tenant) = (HashMap::new(), HashMap::new());
        for (charge, shards) in self.inner.tiers.iter().flat_map(Tier::shards) {
            *of_dataset.entry(charge.dataset).or_default() += shards;
            *of_tenant.entry(charge.tenant).or_default() += shards;
        }
        let shards = |of: &HashMap<usize, usize>, at| of.get(&at).copied().unwrap_or(0);
        let datasets = shares
            .datasets()
            .map(|(at, kept)| Holding::of(&kept.share, Some(&kept.rule), shards(&of_dataset, at)));
        let tenants =
            shares.tenants().map(|(at, share)| Holding::of(share, None, shards(&of_tenant, at)));
        Holdings { datasets: datasets.collect(), tenants: tenants.collect() }
    }

    /// Name of the data set of a shard.
    #[must_use]
    pub fn dataset_of(&self, url: &str) -> String {
        self.inner.shared.dataset_of(url)
    }

    /// Names of the data sets of these shards.
    #[must_use]
    pub fn datasets_of<'u>(&self, urls: impl Iterator<Item = &'u String>) -> Vec<String> {
        let shares = self.inner.shared.shares.current();
        let mut names: Vec<String> = Vec::new();
        for url in urls {
            let name = &shares.dataset(shares.charge(url, None)).share.name;
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// Rules of each data set, in order; last the defaults for shards of none.
    #[must_use]
    pub fn datasets(&self) -> Vec<Dataset> {
        let shares = self.inner.shared.shares.current();
        shares.datasets().map(|(_, kept)| kept.rule.clone()).collect()
    }

    /// Rules for checkpoints, in order.
    #[must_use]
    pub fn checkpoint_rules(&self) -> Vec<CheckpointRule> {
        self.inner.shared.shares.current().checkpoints().to_vec()
    }

    /// Rule for the checkpoint at `url`: the first that matches, if any does.
    #[must_use]
    pub fn checkpoint_rule(&self, url: &str) -> Option<CheckpointRule> {
        let shares = self.inner.shared.shares.current();
        shares.checkpoints().iter().find(|rule| rule.has(url)).cloned()
    }
}
