//! What fetching came to since the start: by job, tenant and data set.
//!
//! Its rule: what a job cost does not go with it. So entries are never dropped, and there are only so many: what comes later is
//! added up in one for all others.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_source::{Bill, Billed};

use crate::tier::Commons;

/// Entries that are kept: a few hundred bytes each, so a megabyte or two. A node sees some jobs an hour, most of one data set.
const ENTRIES: usize = 4096;

/// The job, and the data set, of all that have no entry of their own; each tenant has one of these.
pub const OTHERS: &str = "(others)";

/// Who asks where no job does: tools, and admins.
pub const NO_JOB: &str = "(no job)";

/// Whose bill it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Charged {
    /// The job that asked first, by its name.
    pub job: Arc<str>,
    /// The tenant whose job it is.
    pub tenant: Option<Arc<str>>,
    /// The data set that was fetched of.
    pub dataset: Arc<str>,
}

/// Somebody for whom something is fetched.
#[derive(Clone)]
pub(crate) struct Payer {
    pub(crate) commons: Arc<Commons>,
    /// A job, by its name.
    pub(crate) job: Option<Arc<str>>,
    pub(crate) tenant: Option<Arc<str>>,
}

impl fmt::Debug for Payer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payer").field("job", &self.job).finish_non_exhaustive()
    }
}

impl Payer {
    /// The bill that what is fetched of `url` is on.
    pub(crate) fn bill(&self, url: &str) -> Arc<Bill> {
        self.commons.ledger.bill(Charged {
            job: self.job.clone().unwrap_or_else(|| NO_JOB.into()),
            tenant: self.tenant.clone(),
            dataset: self.commons.dataset_of(url).into(),
        })
    }
}

/// All bills.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<BTreeMap<Charged, Arc<Bill>>>);

impl Ledger {
    /// The bill of `charged`, or the one for all others of its tenant if there are too many: there are as many
    /// tenants as the configuration names.
    pub(crate) fn bill(&self, charged: Charged) -> Arc<Bill> {
        let mut bills = self.lock();
        let is_full = bills.len() >= ENTRIES && !bills.contains_key(&charged);
        let charged = match is_full {
            true => Charged { job: OTHERS.into(), tenant: charged.tenant, dataset: OTHERS.into() },
            false => charged,
        };
        let is_a_job = ![NO_JOB, OTHERS].contains(&&*charged.job);
        let job = is_a_job.then(|| charged.job.clone());
        bills.entry(charged).or_insert_with(|| Arc::new(Bill::of(job))).clone()
    }

    /// Everyone's, in the order of names.
    pub(crate) fn report(&self) -> Vec<(Charged, Billed)> {
        self.lock().iter().map(|(charged, bill)| (charged.clone(), bill.read())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Charged, Arc<Bill>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_too_late_is_added_up() {
        let ledger = Ledger::default();
        let of = |job: usize, tenant: &str| Charged {
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
            let is_it = |of: &Charged| &*of.job == job && of.tenant.as_deref() == Some(tenant);
            let of = report.iter().find(|(charged, _)| is_it(charged));
            of.map(|(_, billed)| billed.written_bytes)
        };
        assert_eq!((written("job 0", "a"), written("job 0", "b")), (Some(2), None));
        // Whose they are is not lost with their names.
        assert_eq!((written(OTHERS, "a"), written(OTHERS, "b")), (Some(5), Some(1)));
        assert_eq!(ledger.bill(of(1, "a")).job(), Some("job 1"));
        assert_eq!(ledger.bill(of(ENTRIES, "a")).job(), None);
    }
}
