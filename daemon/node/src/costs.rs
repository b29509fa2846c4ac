//! Costs of jobs: bytes fetched and written for them, and their GPUs' waiting time.
//!
//! Amounts come first. They are counted from the daemon's start, ended jobs included; prices are
//! applied on request, from the configuration in force then. An amount that several jobs share is
//! billed to the job that asked first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_api::costs::{ByCause, Whose};
use forebay_store::OTHERS;

/// Jobs that ended and are told of by name; those that come later are added up in one.
const ENDED: usize = 4096;

/// Processes of one job that are told apart: a node runs some tens of a job's, and starts some
/// anew. Later ones are trainers as often as they come.
const PROCESSES: usize = 256;

/// A trainer's waiting time on one connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waited {
    /// Process id, if this daemon's namespace has one for it.
    pub process: Option<u32>,
    /// Waiting time by cause.
    pub ns: ByCause,
}

/// Waiting time of one job's trainers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waits {
    /// Number of trainers.
    pub(crate) trainers: u64,
    /// Their processes, as far as they are known: one that comes back is no other trainer.
    processes: BTreeSet<u32>,
    pub(crate) ns: ByCause,
}

impl Waits {
    pub(crate) fn add(&mut self, waited: &Waited) {
        let came_before = waited.process.is_some_and(|process| {
            let is_told = self.processes.len() < PROCESSES || self.processes.contains(&process);
            is_told && !self.processes.insert(process)
        });
        if !came_before {
            self.trainers = self.trainers.saturating_add(1);
        }
        add(&mut self.ns, &waited.ns);
    }
}

fn add(ns: &mut ByCause, more: &ByCause) {
    ns.iter_mut().zip(more).for_each(|(ns, more)| *ns = ns.saturating_add(*more));
}

/// Waiting time of ended jobs.
#[derive(Debug, Default)]
pub struct Costs(Mutex<BTreeMap<Whose, Waits>>);

impl Costs {
    /// A trainer left that waited so long.
    pub fn left(&self, whose: Whose, waited: &Waited) {
        let mut ended = self.lock();
        let is_full = ended.len() >= ENDED && !ended.contains_key(&whose);
        let whose = if is_full { (OTHERS.to_owned(), whose.1) } else { whose };
        ended.entry(whose).or_default().add(waited);
    }

    /// Nanoseconds that all trainers waited, by cause: those that are gone, and those that are
    /// `here`, while none can leave.
    pub fn waited_ns(&self, here: impl Iterator<Item = Waited>) -> ByCause {
        let gone = self.lock();
        let each = gone.values().map(|waits| waits.ns).chain(here.map(|waited| waited.ns));
        each.fold(ByCause::default(), |mut all, more| {
            add(&mut all, &more);
            all
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<Whose, Waits>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use forebay_wire::message::Cause;

    use super::*;

    #[test]
    fn ended_jobs_are_kept_up_to_a_limit() {
        let costs = Costs::default();
        let one = Waited::default();
        let whose = |job: usize, tenant: &str| (format!("job {job}"), Some(tenant.to_owned()));
        (0..ENDED + 9).for_each(|job| costs.left(whose(job, "a"), &one));
        costs.left(whose(0, "b"), &one);
        let ended = costs.lock();
        let others = |tenant: &str| ended[&(OTHERS.to_owned(), Some(tenant.to_owned()))].trainers;
        assert_eq!((ended.len(), others("a"), others("b")), (ENDED + 2, 9, 1));
    }

    #[test]
    fn reconnecting_trainer_is_counted_once() {
        let mut waits = Waits::default();
        let mut ns = [0; Cause::ALL.len()];
        ns[0] = 5;
        let mut add = |process| waits.add(&Waited { process, ns });
        [Some(7), Some(8), Some(7)].into_iter().for_each(&mut add);
        // Nobody can tell whether these are the same.
        [None, None].into_iter().for_each(&mut add);
        // Those that cannot be remembered are counted, not refused.
        (0..2 * PROCESSES as u32).map(|process| Some(1000 + process)).for_each(&mut add);
        add(Some(8));
        assert_eq!((waits.trainers, waits.processes.len()), (4 + 2 * PROCESSES as u64, PROCESSES));
        assert_eq!(waits.ns[0], 5 * (6 + 2 * PROCESSES as u64));
    }
}
