//! Costs of fetches since the start, by job, tenant and data set.
//!
//! The costs of a job outlive it. So entries are never dropped, and their number is limited:
//! later jobs are added up in one entry per tenant.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_source::{Bill, Billed};

use crate::shares::CurrentShares;

/// Maximum number of entries: a few hundred bytes each, so a megabyte or two. A node sees some jobs
/// an hour, most of one data set.
const ENTRIES: usize = 4096;

/// Job and data set of the entry for all that have none of their own; one per tenant.
pub const OTHERS: &str = "(others)";

/// Job name of fetches without a job: those of tools and admins.
pub const NO_JOB: &str = "(no job)";

/// Key of a bill.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BillKey {
    /// Name of the job that asked first.
    pub job: Arc<str>,
    /// Tenant of the job.
    pub tenant: Option<Arc<str>>,
    /// Data set of the fetched shards.
    pub dataset: Arc<str>,
}

/// Job and tenant that pay for a fetch.
#[derive(Clone)]
pub(crate) struct Payer {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) shares: Arc<CurrentShares>,
    /// Name of the job.
    pub(crate) job: Option<Arc<str>>,
    pub(crate) tenant: Option<Arc<str>>,
}

impl fmt::Debug for Payer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payer").field("job", &self.job).finish_non_exhaustive()
    }
}

impl Payer {
    /// Bill for fetches of `url`.
    pub(crate) fn bill(&self, url: &str) -> Arc<Bill> {
        self.ledger.bill(BillKey {
            job: self.job.clone().unwrap_or_else(|| NO_JOB.into()),
            tenant: self.tenant.clone(),
            dataset: self.shares.current().name_of(url).into(),
        })
    }
}

/// All bills.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<BTreeMap<BillKey, Arc<Bill>>>);

impl Ledger {
    /// Bill of `charged`, or its tenant's bill for all others if there are too many. The number of
    /// tenants is limited by the configuration.
    pub(crate) fn bill(&self, charged: BillKey) -> Arc<Bill> {
        let mut bills = self.lock();
        let is_full = bills.len() >= ENTRIES && !bills.contains_key(&charged);
        let charged = match is_full {
            true => BillKey { job: OTHERS.into(), tenant: charged.tenant, dataset: OTHERS.into() },
            false => charged,
        };
        let is_a_job = ![NO_JOB, OTHERS].contains(&&*charged.job);
        let job = is_a_job.then(|| charged.job.clone());
        bills.entry(charged).or_insert_with(|| Arc::new(Bill::of(job))).clone()
    }

    /// All bills, sorted by name.
    pub(crate) fn report(&self) -> Vec<(BillKey, Billed)> {
        self.lock().iter().map(|(charged, bill)| (charged.clone(), bill.read())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<BillKey, Arc<Bill>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bills_beyond_the_limit_are_added_up() {
        let ledger = Ledger::default();
        let of = |job: usize, tenant: &str| BillKey {
            job: format!("job {job}").into(),
            tenant: Some(tenant.into()),
            dataset: "d".into(),
        };
        (0..ENTRIES + 5).for_each(|job| ledger.bill(of(job, "a")).wrote(1));
        ledger.bill(of(0, "a")).wrote(1);
        ledger.bill(of(0, "b")).wrote(1);
        let report = ledger.report();
        assert_eq!(report.len(), ENTRIES + 2);
        let written = |job: &str, tenant: &str| {
            let is_it = |of: &BillKey| &*of.job == job && of.tenant.as_deref() == Some(tenant);
            let of = report.iter().find(|(charged, _)| is_it(charged));
            of.map(|(_, billed)| billed.written_bytes)
        };
        assert_eq!((written("job 0", "a"), written("job 0", "b")), (Some(2), None));
        // The tenant is known even without an entry of its own.
        assert_eq!((written(OTHERS, "a"), written(OTHERS, "b")), (Some(5), Some(1)));
        assert_eq!(ledger.bill(of(1, "a")).job(), Some("job 1"));
        assert_eq!(ledger.bill(of(ENTRIES, "a")).job(), None);
    }
}
