//! Shares: limits and holdings of each data set and each tenant of a node, over all tiers.
//!
//! While a shard is on a tier, it is charged to one data set, by its URL, and to one tenant,
//! whose job brought it in. Both limits are as hard as the tier's own.
//! The rules for checkpoints stand beside them, so that all rules change at one moment.
//!
//! Rules may change while shards are here. A data set or tenant that keeps its name keeps its share
//! and all it holds; only the limits change.

mod check;
mod current;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Rate;
use lru::LruCache;

use crate::budget::Budget;
use crate::checkpoint_rule::CheckpointRule;
use crate::dataset::Dataset;
use crate::tenant::Tenant;
pub use check::check_promises;
pub(crate) use current::CurrentShares;
use forebay_policy::Evict;

/// Name of the share for shards of no data set, or of no tenant.
const REST: &str = "(rest)";

/// Shards remembered by a data set with `scan_bypass` after their first use: 8 bytes and a list
/// entry each, so 4 MB at most.
const SEEN: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// Capacity of a share without a maximum.
const NO_LIMIT: u64 = u64::MAX;

/// Limits and holdings of a data set or a tenant.
#[derive(Debug)]
pub(crate) struct Share {
    of: ShareKind,
    pub(crate) name: String,
    min_bytes: AtomicU64,
    /// Reserved bytes; readers of evicted copies still hold theirs.
    pub(crate) budget: Arc<Budget>,
    /// Bytes of present shards, without those being removed.
    held: AtomicU64,
}

/// Kind of a share's owner.
#[derive(Debug, Clone, Copy)]
enum ShareKind {
    Dataset,
    Tenant,
}

impl ShareKind {
    /// Key in errors.
    fn key(self) -> &'static str {
        match self {
            Self::Dataset => "dataset",
            Self::Tenant => "tenant",
        }
    }

    /// Noun in error texts.
    fn noun(self) -> &'static str {
        match self {
            Self::Dataset => "data set",
            Self::Tenant => "tenant",
        }
    }
}

impl Share {
    fn new(of: ShareKind, name: &str, min_bytes: u64, max_bytes: Option<u64>) -> Self {
        let budget = Budget::new(max_bytes.unwrap_or(NO_LIMIT));
        let (min_bytes, held) = (AtomicU64::new(min_bytes), AtomicU64::new(0));
        Self { of, name: name.to_owned(), min_bytes, budget, held }
    }

    /// Changes the limits. Bytes above them stay until they are evicted; nothing comes in
    /// meanwhile.
    fn limit(&self, min_bytes: u64, max_bytes: Option<u64>) {
        self.min_bytes.store(min_bytes, Ordering::Relaxed);
        let capacity = max_bytes.unwrap_or(NO_LIMIT);
        self.budget.set_capacity(capacity, capacity);
    }

    fn min_bytes(&self) -> u64 {
        self.min_bytes.load(Ordering::Relaxed)
    }

    /// Maximum bytes, if limited.
    pub(crate) fn max_bytes(&self) -> Option<u64> {
        Some(self.budget.capacity()).filter(|max| *max != NO_LIMIT)
    }

    /// Bytes of present shards.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes that others may evict.
    pub(crate) fn above_minimum(&self) -> u64 {
        self.held().saturating_sub(self.min_bytes())
    }

    /// Returns true if `bytes` more are within the minimum.
    pub(crate) fn is_due(&self, bytes: u64) -> bool {
        self.held().saturating_add(bytes) <= self.min_bytes()
    }

    /// Reserved bytes, without those of shards on other tiers. `here`: bytes of the present shards
    /// on this tier.
    pub(crate) fn reserved_here(&self, here: u64) -> u64 {
        let elsewhere = self.held().saturating_sub(here);
        self.budget.used().saturating_sub(elsewhere)
    }

    pub(crate) fn came(&self, bytes: u64) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn left(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Rejects a shard larger than the share.
    ///
    /// # Errors
    /// `Full` naming the share and its limit.
    pub(crate) fn check(&self, bytes: u64) -> Result<()> {
        match bytes > self.budget.capacity() {
            false => Ok(()),
            true => {
                let noun = self.of.noun();
                let what = format!("the shard is larger than its {noun}'s quota");
                let advice = format!("raise the {noun}'s quota.max, or make smaller shards");
                Err(self.locate(Error::new(ErrorKind::Full, what)).advise(advice))
            }
        }
    }

    /// Error if no shard of the share can be evicted for another one of it.
    pub(crate) fn full(&self) -> Error {
        let noun = self.of.noun();
        let what = format!(
            "the {noun}'s quota is full: every shard of it is in use or protected by its rules"
        );
        let advice =
            format!("raise the {noun}'s quota.max, lower window and prefetch, or relax pins");
        self.locate(Error::new(ErrorKind::Full, what)).advise(advice)
    }

    fn locate(&self, error: Error) -> Error {
        error.at(self.of.key(), &self.name).at("quota", self.budget.capacity())
    }
}

/// Rule, share and memory of a data set.
#[derive(Debug)]
pub(crate) struct DatasetShare {
    pub(crate) rule: Dataset,
    pub(crate) share: Arc<Share>,
    /// Rate limit for fetches from the origin.
    rate: Arc<Rate>,
    /// With `scan_bypass`: hashes of shards after their first use.
    seen: Arc<Mutex<LruCache<u64, ()>>>,
}

impl DatasetShare {
    fn new(rule: Dataset) -> Self {
        let share =
            Arc::new(Share::new(ShareKind::Dataset, &rule.name, rule.min_bytes, rule.max_bytes));
        let rate = Arc::new(Rate::of(rule.bandwidth));
        Self { rule, share, rate, seen: Arc::new(Mutex::new(LruCache::new(SEEN))) }
    }

    /// The same data set with another rule, not in force yet.
    fn ruled(&self, rule: Dataset) -> Self {
        let Self { share, rate, seen, .. } = self;
        Self { rule, share: share.clone(), rate: rate.clone(), seen: seen.clone() }
    }

    pub(crate) fn saw(&self, identity: u64) -> bool {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(&identity).is_some()
    }

    pub(crate) fn see(&self, identity: u64) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).put(identity, ());
    }
}

/// URL of a shard, and the tenant that brought it in. With the rules, they decide its charge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Provenance {
    pub(crate) url: Arc<str>,
    /// Tenant whose job brought the shard in, configured now or not.
    pub(crate) tenant: Option<Arc<str>>,
}

/// Data set and tenant that a shard is charged to, as indexes into [`Shares`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Charge {
    pub(crate) dataset: usize,
    pub(crate) tenant: usize,
}

/// Charge of a shard of no data set and no tenant.
pub(crate) const NOBODY: Charge = Charge { dataset: 0, tenant: 0 };

/// Any data set, if only the tenant matters: no data set has a higher priority.
pub(crate) const ANY: usize = usize::MAX;

/// All shares of a node under one set of rules.
///
/// An index belongs to one data set or tenant as long as it is named, and to nobody afterwards. So
/// a charge made under older rules means the same, or the rest.
#[derive(Debug)]
pub(crate) struct Shares {
    /// By index; the first is for shards of no data set, as is each index of a removed data set.
    datasets: Vec<Arc<DatasetShare>>,
    /// Indexes in the order of the rules.
    rules: Vec<usize>,
    /// The same for tenants.
    tenants: Vec<Arc<Share>>,
    named: Vec<(usize, Tenant)>,
    /// Rules for checkpoints, in their order.
    checkpoints: Vec<CheckpointRule>,
}

impl Shares {
    /// Creates the shares of tiers, each given by name and capacity.
    ///
    /// # Errors
    /// `Invalid` naming the data set or tenant and the options, if the limits cannot all be kept.
    pub(crate) fn new(
        datasets: Vec<Dataset>,
        tenants: Vec<Tenant>,
        tiers: &[(&str, u64)],
    ) -> Result<Self> {
        let rest = DatasetShare::new(Dataset::new(REST, "**", Evict::default())?);
        let nobody = Share::new(ShareKind::Tenant, REST, 0, None);
        let none = Self {
            datasets: vec![Arc::new(rest)],
            rules: Vec::new(),
            tenants: vec![Arc::new(nobody)],
            named: Vec::new(),
            checkpoints: Vec::new(),
        };
        none.ruled(datasets, tenants, tiers)
    }

    /// Returns the shares under other rules, which are not in force before [`Shares::enforce`].
    ///
    /// # Errors
    /// As [`Shares::new`].
    pub(crate) fn ruled(
        &self,
        datasets: Vec<Dataset>,
        tenants: Vec<Tenant>,
        tiers: &[(&str, u64)],
    ) -> Result<Self> {
        check_promises(&datasets, &tenants, &[], tiers)?;
        // Removed names fall back to the share of nobody.
        let mut kept = vec![self.datasets[NOBODY.dataset].clone(); self.datasets.len()];
        let mut rules = Vec::with_capacity(datasets.len());
        for rule in datasets {
            let is_its = |at: &&usize| self.datasets[**at].rule.name == rule.name;
            let mut places = self.rules.iter().filter(|at| !rules.contains(*at));
            rules.push(match places.find(is_its) {
                Some(&at) => {
                    kept[at] = Arc::new(self.datasets[at].ruled(rule));
                    at
                }
                None => {
                    kept.push(Arc::new(DatasetShare::new(rule)));
                    kept.len() - 1
                }
            });
        }
        let mut shares = vec![self.tenants[NOBODY.tenant].clone(); self.tenants.len()];
        let mut named: Vec<(usize, Tenant)> = Vec::with_capacity(tenants.len());
        for tenant in tenants {
            let is_free = |at: usize| named.iter().all(|(taken, _)| *taken != at);
            let mut places = self.named.iter().filter(|(at, _)| is_free(*at));
            let at = match places.find(|(_, before)| before.name == tenant.name) {
                Some(&(at, _)) => {
                    shares[at] = self.tenants[at].clone();
                    at
                }
                None => {
                    let Tenant { name, min_bytes, max_bytes } = &tenant;
                    shares.push(Arc::new(Share::new(
                        ShareKind::Tenant,
                        name,
                        *min_bytes,
                        *max_bytes,
                    )));
                    shares.len() - 1
                }
            };
            named.push((at, tenant));
        }
        Ok(Self { datasets: kept, rules, tenants: shares, named, checkpoints: Vec::new() })
    }

    /// Adds the rules for checkpoints.
    ///
    /// # Errors
    /// `Invalid` naming the rule, if not all promises can be kept.
    pub(crate) fn with_checkpoints(
        self,
        checkpoints: Vec<CheckpointRule>,
        tiers: &[(&str, u64)],
    ) -> Result<Self> {
        let datasets: Vec<_> =
            self.rules.iter().map(|at| self.datasets[*at].rule.clone()).collect();
        check_promises(&datasets, &[], &checkpoints, tiers)?;
        Ok(Self { checkpoints, ..self })
    }

    /// Rules for checkpoints, in their order.
    pub(crate) fn checkpoints(&self) -> &[CheckpointRule] {
        &self.checkpoints
    }

    /// Puts these limits in force, in place of those of `before`.
    pub(crate) fn enforce(&self, before: &Self) {
        for gone in before.datasets.iter().filter(|kept| !self.has_share(kept)) {
            // Tasks that wait for this rate go on.
            gone.rate.set(None);
        }
        for kept in &self.datasets {
            kept.share.limit(kept.rule.min_bytes, kept.rule.max_bytes);
            kept.rate.set(kept.rule.bandwidth);
        }
        for (at, tenant) in &self.named {
            self.tenants[*at].limit(tenant.min_bytes, tenant.max_bytes);
        }
    }

    fn has_share(&self, of: &DatasetShare) -> bool {
        self.datasets.iter().any(|kept| Arc::ptr_eq(&kept.share, &of.share))
    }

    /// Returns the charge of a shard.
    pub(crate) fn charge(&self, url: &str, tenant: Option<&str>) -> Charge {
        Charge { dataset: self.dataset_of(url), tenant: self.tenant_of(tenant) }
    }

    /// Index of the data set of a shard.
    pub(crate) fn dataset_of(&self, url: &str) -> usize {
        let mut rules = self.rules.iter();
        rules.find(|at| self.datasets[**at].rule.has(url)).copied().unwrap_or(NOBODY.dataset)
    }

    /// Name of the data set of a shard.
    pub(crate) fn name_of(&self, url: &str) -> &str {
        &self.datasets[self.dataset_of(url)].share.name
    }

    /// Rule of the data set of a shard.
    pub(crate) fn rule_of(&self, url: &str) -> &Dataset {
        &self.datasets[self.dataset_of(url)].rule
    }

    /// Returns true if this holds for the rule of any data set.
    pub(crate) fn any_rule(&self, holds: impl Fn(&Dataset) -> bool) -> bool {
        self.datasets.iter().any(|dataset| holds(&dataset.rule))
    }

    /// Index of a tenant.
    pub(crate) fn tenant_of(&self, name: Option<&str>) -> usize {
        let mut named = self.named.iter();
        let found = named.find(|(_, tenant)| Some(tenant.name.as_str()) == name);
        found.map_or(NOBODY.tenant, |(at, _)| *at)
    }

    /// Returns the charge of a shard with known provenance.
    pub(crate) fn charge_of(&self, shard: &Provenance) -> Charge {
        self.charge(&shard.url, shard.tenant.as_deref())
    }

    /// Returns true if a tenant is configured.
    pub(crate) fn has_tenant(&self, name: &str) -> bool {
        self.named.iter().any(|(_, tenant)| tenant.name == name)
    }

    /// Each data set with its index, in the order of the rules; last the share for shards of none.
    pub(crate) fn datasets(&self) -> impl Iterator<Item = (usize, &Arc<DatasetShare>)> {
        let places = self.rules.iter().copied().chain([NOBODY.dataset]);
        places.map(|at| (at, &self.datasets[at]))
    }

    /// Each tenant with its index, in the same way.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = (usize, &Arc<Share>)> {
        let places = self.named.iter().map(|(at, _)| *at).chain([NOBODY.tenant]);
        places.map(|at| (at, &self.tenants[at]))
    }

    /// Index, name and maximum of each tenant under these rules, in force or not.
    pub(crate) fn named(&self) -> Vec<(usize, String, Option<u64>)> {
        let nobody = (NOBODY.tenant, REST.to_owned(), None);
        let named = self.named.iter();
        let all = named.map(|(at, tenant)| (*at, tenant.name.clone(), tenant.max_bytes));
        all.chain([nobody]).collect()
    }

    pub(crate) fn dataset(&self, charge: Charge) -> &Arc<DatasetShare> {
        &self.datasets[charge.dataset]
    }

    pub(crate) fn tenant(&self, charge: Charge) -> &Arc<Share> {
        &self.tenants[charge.tenant]
    }

    pub(crate) fn rule(&self, charge: Charge) -> &Dataset {
        &self.dataset(charge).rule
    }

    /// Priority of shards with this charge.
    pub(crate) fn priority(&self, charge: Charge) -> i32 {
        self.datasets.get(charge.dataset).map_or(i32::MAX, |kept| kept.rule.priority)
    }

    /// Rate limit for fetches from a URL.
    pub(crate) fn rate(&self, url: &str) -> Arc<Rate> {
        self.datasets[self.dataset_of(url)].rate.clone()
    }

    /// Shares of the data set and the tenant.
    pub(crate) fn of(&self, charge: Charge) -> [&Share; 2] {
        [&self.dataset(charge).share, self.tenant(charge)]
    }

    /// Budgets of the data set and the tenant.
    pub(crate) fn budgets(&self, charge: Charge) -> [&Arc<Budget>; 2] {
        self.of(charge).map(|share| &share.budget)
    }

    /// Returns true if both have room for `bytes` more.
    pub(crate) fn have(&self, charge: Charge, bytes: u64) -> bool {
        self.of(charge).iter().all(|share| share.budget.has(bytes))
    }
}

#[cfg(test)]
mod tests;
