//! Shares: what each data set and each tenant may hold of a node, all tiers together, and holds.
//!
//! One rule: a shard is charged to one data set, by its URL, and to one tenant, whose job brought it in,
//! for as long as it is on a tier. Both limits are as hard as the tier's own.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Rate;
use lru::LruCache;

use crate::budget::Budget;
use crate::dataset::Dataset;
use crate::tenant::Tenant;
use forebay_policy::Evict;

/// The name of what belongs to no data set, or to no tenant.
const REST: &str = "(rest)";

/// Shards remembered of those a data set with `scan_bypass` saw once: 8 bytes and a place in a list
/// each, so 4 MB at most.
const SEEN: NonZeroUsize = NonZeroUsize::new(65_536).expect("not zero");

/// What a data set or a tenant may hold, and holds.
#[derive(Debug)]
pub(crate) struct Share {
    of: Kind,
    pub(crate) name: String,
    min_bytes: u64,
    pub(crate) max_bytes: Option<u64>,
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
        let budget = Budget::new(max_bytes.unwrap_or(u64::MAX));
        Self { of, name: name.to_owned(), min_bytes, max_bytes, budget, held: AtomicU64::new(0) }
    }

    /// Bytes that others may take of it.
    pub(crate) fn above_minimum(&self) -> u64 {
        self.held.load(Ordering::Relaxed).saturating_sub(self.min_bytes)
    }

    /// Whether it is within its minimum, `bytes` more included.
    pub(crate) fn is_due(&self, bytes: u64) -> bool {
        self.held.load(Ordering::Relaxed).saturating_add(bytes) <= self.min_bytes
    }

    /// Bytes of it that are reserved, but for those that rest elsewhere than where `here` of them do.
    pub(crate) fn reserved_here(&self, here: u64) -> u64 {
        let elsewhere = self.held.load(Ordering::Relaxed).saturating_sub(here);
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
    pub(crate) share: Share,
    /// How fast it may come from its origin.
    rate: Option<Arc<Rate>>,
    /// With `scan_bypass`: hashes of shards that came in once.
    seen: Mutex<LruCache<u64, ()>>,
}

impl Kept {
    fn new(rule: Dataset) -> Self {
        let share = Share::new(Kind::Dataset, &rule.name, rule.min_bytes, rule.max_bytes);
        let rate = rule.bandwidth.map(|bandwidth| Arc::new(Rate::new(bandwidth)));
        Self { rule, share, rate, seen: Mutex::new(LruCache::new(SEEN)) }
    }

    pub(crate) fn saw(&self, identity: u64) -> bool {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(&identity).is_some()
    }

    pub(crate) fn see(&self, identity: u64) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).put(identity, ());
    }
}

/// Whom a shard is charged to: a data set and a tenant, by their places in [`Shares`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Charge {
    pub(crate) dataset: usize,
    pub(crate) tenant: usize,
}

/// Every share of a node.
#[derive(Debug)]
pub(crate) struct Shares {
    /// In the order of their rules; last what belongs to none.
    pub(crate) datasets: Vec<Arc<Kept>>,
    /// The same.
    pub(crate) tenants: Vec<Arc<Share>>,
}

impl Shares {
    /// Shares of tiers, each a name and a capacity.
    ///
    /// # Errors
    /// `Invalid` naming data set or tenant and the options, if what they are promised cannot all be kept.
    pub(crate) fn new(
        mut datasets: Vec<Dataset>,
        mut tenants: Vec<Tenant>,
        tiers: &[(&str, u64)],
    ) -> Result<Self> {
        check_datasets(&datasets, tiers)?;
        check_tenants(&tenants, tiers)?;
        datasets.push(Dataset::new(REST, "**", Evict::default())?);
        tenants.push(Tenant { name: REST.to_owned(), min_bytes: 0, max_bytes: None });
        let tenant =
            |of: &Tenant| Arc::new(Share::new(Kind::Tenant, &of.name, of.min_bytes, of.max_bytes));
        Ok(Self {
            datasets: datasets.into_iter().map(|rule| Arc::new(Kept::new(rule))).collect(),
            tenants: tenants.iter().map(tenant).collect(),
        })
    }

    /// Whom a shard is charged to that a job of this tenant brought in.
    pub(crate) fn charge(&self, url: &str, tenant: usize) -> Charge {
        let rest = self.datasets.len() - 1;
        let dataset = self.datasets[..rest].iter().position(|kept| kept.rule.has(url));
        Charge { dataset: dataset.unwrap_or(rest), tenant }
    }

    /// The place of a tenant; one that is not configured, or none, is the rest.
    pub(crate) fn tenant(&self, name: Option<&str>) -> usize {
        let rest = self.tenants.len() - 1;
        let at = self.tenants[..rest].iter().position(|share| name == Some(share.name.as_str()));
        at.unwrap_or(rest)
    }

    /// The name of the tenant at a place; none for the rest.
    pub(crate) fn tenant_name(&self, at: usize) -> Option<&str> {
        let rest = self.tenants.len() - 1;
        (at < rest).then(|| self.tenants[at].name.as_str())
    }

    /// Whom what belongs to nobody is charged to.
    pub(crate) fn rest(&self) -> Charge {
        Charge { dataset: self.datasets.len() - 1, tenant: self.tenants.len() - 1 }
    }

    pub(crate) fn rule(&self, charge: Charge) -> &Dataset {
        &self.datasets[charge.dataset].rule
    }

    /// How fast what is charged like this may come, if that is limited.
    pub(crate) fn rate(&self, charge: Charge) -> Option<Arc<Rate>> {
        self.datasets[charge.dataset].rate.clone()
    }

    /// The shares of data set and tenant.
    pub(crate) fn of(&self, charge: Charge) -> [&Share; 2] {
        [&self.datasets[charge.dataset].share, &self.tenants[charge.tenant]]
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

/// Refuses data sets whose rules cannot all be kept by `tiers`.
fn check_datasets(datasets: &[Dataset], tiers: &[(&str, u64)]) -> Result<()> {
    for set in datasets {
        set.check()?;
        let known = |name: &&String| !tiers.iter().any(|(tier, _)| tier == name);
        if let Some(unknown) = set.tiers.iter().find(known) {
            return Err(Error::new(ErrorKind::Invalid, "there is no tier of this name")
                .at("dataset", &set.name)
                .at("tier", unknown));
        }
    }
    // All tiers, and each choice of tiers that a data set is bound to: what may lie only there must fit.
    let everywhere: Vec<&str> = tiers.iter().map(|(name, _)| *name).collect();
    let choices = datasets.iter().filter(|set| !set.tiers.is_empty());
    let choices = choices.map(|set| set.tiers.iter().map(String::as_str).collect());
    for choice in std::iter::once(everywhere).chain(choices) {
        let within = |set: &&Dataset| match set.tiers.is_empty() {
            true => tiers.iter().all(|(name, _)| choice.contains(name)),
            false => set.tiers.iter().all(|name| choice.contains(&name.as_str())),
        };
        let chosen = tiers.iter().filter(|(name, _)| choice.contains(name));
        let capacity = total(chosen.map(|(_, bytes)| *bytes));
        let bound = || datasets.iter().filter(within);
        let refuse = |what: &str, promised: u64, advice: &str| {
            Err(Error::new(ErrorKind::Invalid, what.to_owned())
                .at("tiers", choice.join(", "))
                .at("capacity", capacity)
                .at("promised", promised)
                .advise(advice.to_owned()))
        };
        let minima = total(bound().map(|set| set.min_bytes));
        if minima > capacity {
            let advice = "lower quota.min, or raise the tiers' capacity";
            return refuse("the data sets' minima exceed the capacity", minima, advice);
        }
        // What is pinned may grow to its max; beside the others' minima that must fit.
        let promised = total(bound().map(|set| match (set.pin, set.max_bytes) {
            (true, Some(max)) => max,
            _ => set.min_bytes,
        }));
        if promised > capacity {
            let advice = "lower the pinned data sets' quota.max, or raise the tiers' capacity";
            return refuse("what is pinned exceeds the capacity", promised, advice);
        }
    }
    Ok(())
}

/// Refuses tenants whose limits cannot all be kept by `tiers`.
fn check_tenants(tenants: &[Tenant], tiers: &[(&str, u64)]) -> Result<()> {
    tenants.iter().try_for_each(Tenant::check)?;
    let capacity = total(tiers.iter().map(|(_, bytes)| *bytes));
    let minima = total(tenants.iter().map(|tenant| tenant.min_bytes));
    match minima > capacity {
        false => Ok(()),
        true => Err(Error::new(ErrorKind::Invalid, "the tenants' minima exceed the capacity")
            .at("capacity", capacity)
            .at("promised", minima)
            .advise("lower the tenants' quota.min, or raise the tiers' capacity")),
    }
}

fn total(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}
