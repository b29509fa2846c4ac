//! What fetching came to since the start: by job, tenant and data set.
//!
//! Its rule: what a job cost does not go with it. So entries are never dropped, and there are only so many: what comes later is
//! added up in one for all others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_source::{Bill, Billed};

/// Entries that are kept: a few hundred bytes each, so a megabyte or two. A node sees some jobs an hour, most of one data set.
const ENTRIES: usize = 4096;

/// Whose job is for all that have no entry of their own.
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

/// All bills.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<BTreeMap<Charged, Arc<Bill>>>);

impl Ledger {
    /// The bill of `charged`, or the one for all others if there are too many.
    pub(crate) fn bill(&self, charged: Charged) -> Arc<Bill> {
        let mut bills = self.lock();
        let is_full = bills.len() >= ENTRIES && !bills.contains_key(&charged);
        let charged = match is_full {
            true => Charged { job: OTHERS.into(), tenant: None, dataset: OTHERS.into() },
            false => charged,
        };
        bills.entry(charged).or_default().clone()
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
        let of = |job: usize| Charged {
            job: format!("job {job}").into(),
            tenant: None,
            dataset: "d".into(),
        };
        (0..ENTRIES + 5).for_each(|job| ledger.bill(of(job)).wrote(1));
        ledger.bill(of(0)).wrote(1);
        let report = ledger.report();
        assert_eq!(report.len(), ENTRIES + 1);
        let written = |job: &str| {
            let of = report.iter().find(|(charged, _)| &*charged.job == job);
            of.map(|(_, billed)| billed.written_bytes)
        };
        assert_eq!((written("job 0"), written(OTHERS)), (Some(2), Some(5)));
    }
}
