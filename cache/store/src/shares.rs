//! Shares: what each data set and each tenant may hold of a node, all tiers together, and holds.
//!
//! One rule: a shard is charged to one data set, by its URL, and to one tenant, whose job brought it in,
//! for as long as it is on a tier. Both limits are as hard as the tier's own.
//!
//! Rules may change while shards are here. What keeps its name keeps its share then, with all that it
//! holds; only the limits are others.

mod check;
mod in_force;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Rate;
use lru::LruCache;

use crate::budget::Budget;
use crate::dataset::Dataset;
use crate::tenant::Tenant;
pub use check::check_promises;
use forebay_policy::Evict;
pub(crate) use in_force::InForce;

/// The name of what belongs to no data set, or to no tenant.
const REST: &str = "(rest)";

/// Shards remembered of those a data set with `scan_bypass` saw once: 8 bytes and a place in a list
/// each, so 4 MB at most.
const SEEN: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// The capacity of a share without a maximum.
const NO_LIMIT: u64 = u64::MAX;

/// What a data set or a tenant may hold, and holds.
#[derive(Debug)]
pub(crate) struct Share {
    of: Kind,
    pub(crate) name: String,
    min_bytes: AtomicU64,
    /// What it may hold; readers of evicted copies keep their part of it.
    pub(crate) budget: Arc<Budget>,
    /// Bytes of the shards that are there, those of shards on their way out not counted.
    held: AtomicU64,
}

/// Whose share it is.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Dataset,
    Tenant,
}

impl Kind {
    /// As errors name it.
    fn key(self) -> &'static str {
        match self {
            Self::Dataset => "dataset",
            Self::Tenant => "tenant",
        }
    }

    /// As sentences do.
    fn noun(self) -> &'static str {
        match self {
            Self::Dataset => "data set",
            Self::Tenant => "tenant",
        }
    }
}

impl Share {
    fn new(of: Kind, name: &str, min_bytes: u64, max_bytes: Option<u64>) -> Self {
        let budget = Budget::new(max_bytes.unwrap_or(NO_LIMIT));
        let (min_bytes, held) = (AtomicU64::new(min_bytes), AtomicU64::new(0));
        Self { of, name: name.to_owned(), min_bytes, budget, held }
    }

    /// Other limits from now on. What is held above them stays until it goes; nothing comes meanwhile.
    fn limit(&self, min_bytes: u64, max_bytes: Option<u64>) {
        self.min_bytes.store(min_bytes, Ordering::Relaxed);
        let capacity = max_bytes.unwrap_or(NO_LIMIT);
        self.budget.set_capacity(capacity, capacity);
    }

    fn min_bytes(&self) -> u64 {
        self.min_bytes.load(Ordering::Relaxed)
    }

    /// Bytes it may hold, where that is less than the tiers.
    pub(crate) fn max_bytes(&self) -> Option<u64> {
        Some(self.budget.capacity()).filter(|max| *max != NO_LIMIT)
    }

    /// Bytes of the shards that are there.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes that others may take of it.
    pub(crate) fn above_minimum(&self) -> u64 {
        self.held().saturating_sub(self.min_bytes())
    }

    /// Whether it is within its minimum, `bytes` more included.
    pub(crate) fn is_due(&self, bytes: u64) -> bool {
        self.held().saturating_add(bytes) <= self.min_bytes()
    }

    /// Bytes of it that are reserved, but for those that rest elsewhere than where `here` of them do.
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

    /// Refuses what it can never hold.
    ///
    /// # Errors
    /// `Full` naming it and its limit.
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

    /// Nothing of what it holds can go for a shard of its own.
    pub(crate) fn full(&self) -> Error {
        let noun = self.of.noun();
        let what = format!(
            "the {noun}'s quota has no room: every shard of it is in use, or kept by its rules"
        );
        let advice =
            format!("raise the {noun}'s quota.max, lower window and prefetch, or relax pins");
        self.locate(Error::new(ErrorKind::Full, what)).advise(advice)
    }

    fn locate(&self, error: Error) -> Error {
        error.at(self.of.key(), &self.name).at("quota", self.budget.capacity())
    }
}

/// A data set's rule, its share, and what it remembers.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) rule: Dataset,
    pub(crate) share: Arc<Share>,
    /// How fast it may come from its origin.
    rate: Arc<Rate>,
    /// With `scan_bypass`: hashes of shards that came in once.
    seen: Arc<Mutex<LruCache<u64, ()>>>,
}

impl Kept {
    fn new(rule: Dataset) -> Self {
        let share = Arc::new(Share::new(Kind::Dataset, &rule.name, rule.min_bytes, rule.max_bytes));
        let rate = Arc::new(Rate::of(rule.bandwidth));
        Self { rule, share, rate, seen: Arc::new(Mutex::new(LruCache::new(SEEN))) }
    }

    /// The same data set by another rule, which is not in force yet.
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

/// Where a shard comes from, and for whom: whom it is charged to follows from that and the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Provenance {
    pub(crate) url: Arc<str>,
    /// The tenant whose job brought it in, configured now or not.
    pub(crate) tenant: Option<Arc<str>>,
}

/// Whom a shard is charged to: a data set and a tenant, by their places in [`Shares`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Charge {
    pub(crate) dataset: usize,
    pub(crate) tenant: usize,
}

/// Whom what belongs to nobody is charged to.
pub(crate) const NOBODY: Charge = Charge { dataset: 0, tenant: 0 };

/// No data set in particular, where only a tenant matters: none of what it holds is more important.
pub(crate) const ANY: usize = usize::MAX;

/// Every share of a node, by one set of rules.
///
/// A place is one data set's, or one tenant's, as long as it is named, and nobody's afterwards: so a charge
/// that was made by older rules means the same, or the rest.
#[derive(Debug)]
pub(crate) struct Shares {
    /// By their places; first what belongs to none, and so does each place whose data set is gone.
    datasets: Vec<Arc<Kept>>,
    /// The places, in the order of the rules.
    rules: Vec<usize>,
    /// The same of tenants.
    tenants: Vec<Arc<Share>>,
    named: Vec<(usize, Tenant)>,
}

impl Shares {
    /// Shares of tiers, each a name and a capacity.
    ///
    /// # Errors
    /// `Invalid` naming data set or tenant and the options, if what they are promised cannot all be kept.
    pub(crate) fn new(
        datasets: Vec<Dataset>,
        tenants: Vec<Tenant>,
        tiers: &[(&str, u64)],
    ) -> Result<Self> {
        let rest = Kept::new(Dataset::new(REST, "**", Evict::default())?);
        let nobody = Share::new(Kind::Tenant, REST, 0, None);
        let none = Self {
            datasets: vec![Arc::new(rest)],
            rules: Vec::new(),
            tenants: vec![Arc::new(nobody)],
            named: Vec::new(),
        };
        none.ruled(datasets, tenants, tiers)
    }

    /// The shares by other rules, which limit nothing before [`Shares::enforce`].
    ///
    /// # Errors
    /// As [`Shares::new`].
    pub(crate) fn ruled(
        &self,
        datasets: Vec<Dataset>,
        tenants: Vec<Tenant>,
        tiers: &[(&str, u64)],
    ) -> Result<Self> {
        check_promises(&datasets, &tenants, tiers)?;
        // Who is named no more is as good as nobody.
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
                    kept.push(Arc::new(Kept::new(rule)));
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
                    shares.push(Arc::new(Share::new(Kind::Tenant, name, *min_bytes, *max_bytes)));
                    shares.len() - 1
                }
            };
            named.push((at, tenant));
        }
        Ok(Self { datasets: kept, rules, tenants: shares, named })
    }

    /// Puts the limits in force that these rules name, in place of those of `before`.
    pub(crate) fn enforce(&self, before: &Self) {
        for gone in before.datasets.iter().filter(|kept| !self.has_share(kept)) {
            // Who waits for its rate waits for nothing any more.
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

    fn has_share(&self, of: &Kept) -> bool {
        self.datasets.iter().any(|kept| Arc::ptr_eq(&kept.share, &of.share))
    }

    /// Whom a shard is charged to.
    pub(crate) fn charge(&self, url: &str, tenant: Option<&str>) -> Charge {
        Charge { dataset: self.dataset_of(url), tenant: self.tenant_of(tenant) }
    }

    /// The place of the data set that a shard belongs to.
    pub(crate) fn dataset_of(&self, url: &str) -> usize {
        let mut rules = self.rules.iter();
        rules.find(|at| self.datasets[**at].rule.has(url)).copied().unwrap_or(NOBODY.dataset)
    }

    /// What admins say of the data set that a shard belongs to.
    pub(crate) fn rule_of(&self, url: &str) -> &Dataset {
        &self.datasets[self.dataset_of(url)].rule
    }

    /// The place of a tenant.
    pub(crate) fn tenant_of(&self, name: Option<&str>) -> usize {
        let mut named = self.named.iter();
        let found = named.find(|(_, tenant)| Some(tenant.name.as_str()) == name);
        found.map_or(NOBODY.tenant, |(at, _)| *at)
    }

    /// The same of one whose provenance is known.
    pub(crate) fn charge_of(&self, shard: &Provenance) -> Charge {
        self.charge(&shard.url, shard.tenant.as_deref())
    }

    /// Whether a tenant is configured.
    pub(crate) fn has_tenant(&self, name: &str) -> bool {
        self.named.iter().any(|(_, tenant)| tenant.name == name)
    }

    /// Each data set and its place, in the order of the rules; last what belongs to none.
    pub(crate) fn datasets(&self) -> impl Iterator<Item = (usize, &Arc<Kept>)> {
        let places = self.rules.iter().copied().chain([NOBODY.dataset]);
        places.map(|at| (at, &self.datasets[at]))
    }

    /// Each tenant, the same way.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = (usize, &Arc<Share>)> {
        let places = self.named.iter().map(|(at, _)| *at).chain([NOBODY.tenant]);
        places.map(|at| (at, &self.tenants[at]))
    }

    /// Each tenant's place, name and maximum by these rules, in force or not.
    pub(crate) fn named(&self) -> Vec<(usize, String, Option<u64>)> {
        let nobody = (NOBODY.tenant, REST.to_owned(), None);
        let named = self.named.iter();
        let all = named.map(|(at, tenant)| (*at, tenant.name.clone(), tenant.max_bytes));
        all.chain([nobody]).collect()
    }

    pub(crate) fn dataset(&self, charge: Charge) -> &Arc<Kept> {
        &self.datasets[charge.dataset]
    }

    pub(crate) fn tenant(&self, charge: Charge) -> &Arc<Share> {
        &self.tenants[charge.tenant]
    }

    pub(crate) fn rule(&self, charge: Charge) -> &Dataset {
        &self.dataset(charge).rule
    }

    /// How important what is charged like this is.
    pub(crate) fn priority(&self, charge: Charge) -> i32 {
        self.datasets.get(charge.dataset).map_or(i32::MAX, |kept| kept.rule.priority)
    }

    /// How fast what comes from a URL may come.
    pub(crate) fn rate(&self, url: &str) -> Arc<Rate> {
        self.datasets[self.dataset_of(url)].rate.clone()
    }

    /// The shares of data set and tenant.
    pub(crate) fn of(&self, charge: Charge) -> [&Share; 2] {
        [&self.dataset(charge).share, self.tenant(charge)]
    }

    /// Their budgets.
    pub(crate) fn budgets(&self, charge: Charge) -> [&Arc<Budget>; 2] {
        self.of(charge).map(|share| &share.budget)
    }

    /// Whether both have room for `bytes` more.
    pub(crate) fn have(&self, charge: Charge, bytes: u64) -> bool {
        self.of(charge).iter().all(|share| share.budget.has(bytes))
    }
}
