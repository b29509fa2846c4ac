//! What a job will read, and how far it is, told to the node.
//!
//! One rule: it is told while the job reads, and changes nothing of what it gets. A job of which too little is known beforehand
//! (its sample counts, the sizes of its shards) is not foreseen, and looks ahead for itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_store::{Foreseen, Reading};
use tokio::sync::SetOnce;
use tokio::task::JoinHandle;

use super::Job;
use crate::plan::{self, Share};

/// How long a job's first batch waits at most for it to be told what the job will read, while its bytes come: less than a person sees,
/// and more than a hundred thousand shards take. Until then the node does not know what is to stay.
const PATIENCE: Duration = Duration::from_millis(50);

/// What the node was told of a job.
#[derive(Default)]
pub(crate) struct Outlook {
    state: Mutex<State>,
    /// Set when it was told for the first time, or there was nothing to tell.
    told: SetOnce<()>,
}

#[derive(Default)]
enum State {
    /// Nothing yet.
    #[default]
    Untold,
    /// It is being told; meanwhile the job began this epoch.
    Telling {
        telling: JoinHandle<()>,
        begun: u64,
    },
    Told(Told),
    /// There is nothing to tell.
    Unknown,
}

/// The future that was told: epochs from `first` on.
struct Told {
    first: u64,
    /// The last epoch that was begun of it.
    latest: u64,
    epoch_bytes: u64,
    sample_bytes: f64,
    foreseen: Foreseen,
}

impl Told {
    /// Where a position of an epoch is in that future; none if it lies before.
    fn place(&self, epoch: u64, position: u64) -> Option<u64> {
        let epochs = epoch.checked_sub(self.first)?;
        let before = epochs.saturating_mul(self.epoch_bytes);
        Some(before.saturating_add(plan::place(position, self.sample_bytes)))
    }

    /// Whether an epoch is one of those that were begun, or the next. To one further on the node would walk through all uses that
    /// lie between, and there may be millions.
    fn leads_to(&self, epoch: u64) -> bool {
        (self.first..=self.latest.saturating_add(1)).contains(&epoch)
    }

    /// Goes on at a position of an epoch; not if that lies behind, or too far ahead.
    fn goes_on(&mut self, epoch: u64, position: u64) -> bool {
        if !self.leads_to(epoch) {
            return false;
        }
        self.latest = self.latest.max(epoch);
        self.place(epoch, position).is_some_and(|read| self.foreseen.go_on(read))
    }
}

impl Drop for Outlook {
    fn drop(&mut self) {
        if let State::Telling { telling, .. } = &*self.lock() {
            telling.abort();
        }
    }
}

impl Outlook {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves of these shards those that the job fetches for itself. While the node is being told, none: they might take the place
    /// of what the job needs sooner.
    pub(super) fn leave(&self, shards: &mut Vec<u32>) {
        match &*self.lock() {
            State::Telling { .. } => shards.clear(),
            State::Told(told) => shards.retain(|shard| !told.foreseen.has(*shard as usize)),
            State::Untold | State::Unknown => {}
        }
    }

    /// Waits until it is told, but not for long.
    pub(super) async fn is_told(&self) {
        // Whoever has waited long enough goes on.
        let _ = tokio::time::timeout(PATIENCE, self.told.wait()).await;
    }

    /// The job begins to read at a position of an epoch, or what it leases. What was told before goes on from there, unless
    /// that lies behind it.
    pub(super) fn begins(&self, job: &Arc<Job>, at: Option<(u64, u64)>) {
        let mut state = self.lock();
        let Some((epoch, position)) = at else {
            *state = State::Untold;
            return;
        };
        let goes_on = match &mut *state {
            State::Telling { begun, .. } => {
                *begun = epoch;
                true
            }
            State::Unknown => true,
            State::Untold => false,
            State::Told(told) => told.goes_on(epoch, position),
        };
        if goes_on {
            return;
        }
        if job.spec.counts.is_none() {
            *state = State::Unknown;
            // Whoever looks first has set it.
            let _ = self.told.set(());
            return;
        }
        // One future at a time.
        *state = State::Untold;
        let weak = Arc::downgrade(job);
        // It reads orders and hashes names: a matter of a second for a million shards.
        let telling = tokio::task::spawn_blocking(move || {
            let Some(job) = weak.upgrade() else { return };
            let mut first = epoch;
            loop {
                let told = tell(&job, first);
                let mut state = job.outlook.lock();
                // Unless it leases by now.
                if let State::Telling { begun, .. } = &*state {
                    match told {
                        Some(told) if !told.leads_to(*begun) => {
                            first = *begun;
                            continue;
                        }
                        told => *state = told.map_or(State::Unknown, State::Told),
                    }
                }
                break;
            }
            // It may have been told before.
            let _ = job.outlook.told.set(());
        });
        *state = State::Telling { telling, begun: epoch };
    }

    /// Batches up to `position` of an epoch are the trainer's.
    pub(super) fn handed(&self, job: &Job, epoch: u64, position: u64) {
        if let State::Told(told) = &*self.lock()
            && let Some(read) = told.place(epoch, position)
        {
            told.foreseen.advance(read, job.slots.starved());
        }
    }
}

/// Tells what the job will read from an epoch on, if that is known.
fn tell(job: &Arc<Job>, first: u64) -> Option<Told> {
    let counts = job.spec.counts.as_ref()?;
    let bytes = match &job.bytes {
        Some(bytes) => bytes.clone(),
        None => job.store.lengths(&job.spec.urls, &job.origin)?,
    };
    let samples: u64 = counts.iter().sum();
    let sample_bytes = bytes.iter().sum::<u64>() as f64 / (samples.max(1)) as f64;
    let epoch = job.epoch(first).ok()?;
    let share = Share::new(&job.spec.order, epoch.lanes(), 0);
    // Nothing is foreseen of what has no uses.
    epoch.spans(&share).filter(|spans| !spans.is_empty())?;
    let epoch_bytes = plan::place(epoch.total()?, sample_bytes);
    let order = job.order();
    let future = move |shards| {
        let make = move |number: u64| order(first.saturating_add(number));
        plan::outlook(make, share, shards, sample_bytes)
    };
    let (urls, options) = (job.spec.urls.clone().into(), job.origin.clone());
    let (name, future) = (job.spec.job.clone(), Box::new(future));
    let reading = Reading { name, urls, bytes, options, future };
    match job.store.foresee(reading) {
        Ok(foreseen) => Some(Told { first, latest: first, epoch_bytes, sample_bytes, foreseen }),
        Err(error) => {
            // Whoever opens that shard meets the error, and reports it.
            tracing::debug!(job = job.spec.job, tenant = job.store.tenant(), %error, "what a job will read is not foreseen");
            None
        }
    }
}
