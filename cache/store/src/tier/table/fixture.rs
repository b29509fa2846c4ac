//! Table of one tier for tests, and the budgets that its shards are charged to.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::sync::Arc;
use std::time::SystemTime;

use forebay_shard::Origin;

use super::{ShardState, ShardTable};
use crate::budget::{Budget, Space};
use crate::dataset::Dataset;
use crate::directory::{ShardName, object_key};
use crate::forecast::Forecast;
use crate::shares::{Provenance, Shares};
use crate::tenant::Tenant;

/// Room for every shard of a test.
pub(super) const CAPACITY: u64 = 1 << 20;

pub(super) struct Fixture {
    pub(super) table: ShardTable,
    pub(super) tier: Arc<Budget>,
    pub(super) shares: Arc<Shares>,
}

impl Fixture {
    pub(super) fn new(datasets: Vec<Dataset>) -> Self {
        let tenants = ["red", "blue"].map(|name| Tenant {
            name: name.to_owned(),
            min_bytes: 0,
            max_bytes: None,
        });
        let shares = Shares::new(datasets, tenants.to_vec(), &[("nvme", CAPACITY)]).unwrap();
        let shares = Arc::new(shares);
        shares.enforce(&shares);
        let table = ShardTable::new(shares.clone(), Arc::new(Forecast::new()));
        Self { table, tier: Budget::new(CAPACITY), shares }
    }

    /// Adds a whole shard without a tenant, fetched at the epoch.
    pub(super) fn add(&mut self, url: &str, bytes: u64) -> ShardName {
        self.add_found(url, None, bytes, (SystemTime::UNIX_EPOCH, ShardState::Whole))
    }

    /// Adds a shard as a survey of the directory finds it.
    pub(super) fn add_found(
        &mut self,
        url: &str,
        tenant: Option<&str>,
        bytes: u64,
        found: (SystemTime, ShardState),
    ) -> ShardName {
        self.enter((url, ""), tenant, bytes, found)
    }

    /// Adds one of several versions of a shard.
    pub(super) fn add_version(
        &mut self,
        url: &str,
        version: &str,
        bytes: u64,
        found: (SystemTime, ShardState),
    ) -> ShardName {
        self.enter((url, version), None, bytes, found)
    }

    fn enter(
        &mut self,
        (url, version): (&str, &str),
        tenant: Option<&str>,
        bytes: u64,
        found: (SystemTime, ShardState),
    ) -> ShardName {
        let of = Provenance { url: url.into(), tenant: tenant.map(Arc::from) };
        let (endpoint, version) = (String::new(), version.to_owned());
        let origin = Origin { endpoint, url: url.to_owned(), version };
        let (name, object) = (ShardName::new(&origin), object_key(&origin));
        let budgets = self.shares.budgets(self.shares.charge_of(&of));
        let space = Space::enter(&self.tier, budgets, bytes);
        self.table.add_found((name.clone(), object), of, space, found);
        name
    }
}
