//! Charges of shards under other rules, computed ahead.

use std::collections::HashMap;
use std::sync::Arc;

use crate::shares::{Charge, Provenance, Shares};

/// Charges of shards under other rules. They are computed before the tables are locked: matching
/// patterns is slow beside all else that is done there.
pub(crate) struct NewCharges {
    pub(crate) shares: Arc<Shares>,
    datasets: HashMap<Arc<str>, usize>,
}

impl NewCharges {
    /// Computes the charges of `shards` under these rules.
    pub(crate) fn by(shares: Arc<Shares>, shards: impl Iterator<Item = Provenance>) -> Self {
        let mut datasets = HashMap::new();
        for shard in shards {
            let of = |url: &Arc<str>| shares.dataset_of(url);
            let at = datasets.get(&shard.url).copied().unwrap_or_else(|| of(&shard.url));
            datasets.insert(shard.url, at);
        }
        Self { shares, datasets }
    }

    pub(crate) fn charge(&self, shard: &Provenance) -> Charge {
        // A shard that came since.
        let found = || self.shares.dataset_of(&shard.url);
        Charge {
            dataset: self.datasets.get(&shard.url).copied().unwrap_or_else(found),
            tenant: self.shares.tenant_of(shard.tenant.as_deref()),
        }
    }
}
