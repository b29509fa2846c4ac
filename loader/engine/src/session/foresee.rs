//! Announcement of a job's future reads and progress to the node.
//!
//! Announcing happens in parallel with reading and never changes the samples a job gets. A
//! job with unknown sample counts or shard sizes is not announced, and looks ahead for itself.
//!
//! The order does not depend on the number of ranks. So in a cluster each node also announces what
//! all ranks read: it keeps its shards for them, by the next use of any.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_store::{AnnouncedReads, Announcement, Scope};
use forebay_wire::message::Order;
use tokio::sync::SetOnce;
use tokio::task::JoinHandle;

use super::JobData;
use crate::plan::{self, Share};

/// Longest delay of a job's first batch for the announcement, while its bytes arrive: below human
/// perception, and enough for a hundred thousand shards. Before the announcement the node does not
/// know which shards to keep.
const PATIENCE: Duration = Duration::from_millis(50);

/// State of a job's announcement to the node.
#[derive(Default)]
pub(crate) struct Outlook {
    state: Mutex<OutlookState>,
    /// Set at the first announcement, or when there is nothing to announce.
    told: SetOnce<()>,
}

#[derive(Default)]
enum OutlookState {
    /// Nothing announced yet.
    #[default]
    Untold,
    /// An announcement is being made; meanwhile the job began this epoch.
    Telling {
        telling: JoinHandle<()>,
        begun: u64,
    },
    Told(Told),
    /// There is nothing to announce.
    Unknown,
}

/// An announced future: epochs from `first` on.
struct Told {
    first: u64,
    /// Last epoch of it that was started.
    latest: u64,
    epoch_bytes: u64,
    sample_bytes: f64,
    foreseen: Announcement,
    /// Reads of all ranks, in a cluster.
    of_all: Option<Announcement>,
}

impl Told {
    /// Returns the place of an epoch's position in that future; `None` if it lies before.
    fn place(&self, epoch: u64, position: u64) -> Option<u64> {
        let epochs = epoch.checked_sub(self.first)?;
        let before = epochs.saturating_mul(self.epoch_bytes);
        Some(before.saturating_add(plan::place(position, self.sample_bytes)))
    }

    /// True if an epoch is a started one or the next. Skipping further would make the node walk
    /// through all uses in between, possibly millions.
    fn leads_to(&self, epoch: u64) -> bool {
        (self.first..=self.latest.saturating_add(1)).contains(&epoch)
    }

    /// Continues at a position of an epoch; returns false if that lies behind, or too far ahead.
    fn goes_on(&mut self, epoch: u64, position: u64) -> bool {
        if !self.leads_to(epoch) {
            return false;
        }
        self.latest = self.latest.max(epoch);
        let Some(read) = self.place(epoch, position) else { return false };
        let goes_on = self.foreseen.restart_at(read);
        goes_on && self.of_all.as_ref().is_none_or(|of_all| of_all.restart_at(read))
    }
}

impl Drop for Outlook {
    fn drop(&mut self) {
        if let OutlookState::Telling { telling, .. } = &*self.lock() {
            telling.abort();
        }
    }
}

impl Outlook {
    fn lock(&self) -> MutexGuard<'_, OutlookState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps of these shards the ones that the job fetches for itself. During the announcement that
    /// is none: they might displace shards the job needs sooner.
    pub(super) fn leave(&self, shards: &mut Vec<u32>) {
        match &*self.lock() {
            OutlookState::Telling { .. } => shards.clear(),
            OutlookState::Told(told) => shards.retain(|shard| !told.foreseen.has(*shard as usize)),
            OutlookState::Untold | OutlookState::Unknown => {}
        }
    }

    /// Waits for the announcement, for a short time at most.
    pub(super) async fn is_told(&self) {
        // After the timeout the job continues without it.
        let _ = tokio::time::timeout(PATIENCE, self.told.wait()).await;
    }

    /// Starts reading at a position of an epoch, or from a shared queue. An earlier announcement
    /// continues from there, unless the position lies behind it.
    pub(super) fn begins(&self, job: &Arc<JobData>, at: Option<(u64, u64)>) {
        let mut state = self.lock();
        let Some((epoch, position)) = at else {
            *state = OutlookState::Untold;
            return;
        };
        let goes_on = match &mut *state {
            OutlookState::Telling { begun, .. } => {
                *begun = epoch;
                true
            }
            OutlookState::Unknown => true,
            OutlookState::Untold => false,
            OutlookState::Told(told) => told.goes_on(epoch, position),
        };
        if goes_on {
            return;
        }
        // The node foresees whole shards.
        if job.spec.counts.is_none() || job.reads_excerpts() {
            *state = OutlookState::Unknown;
            // The first caller has set it.
            let _ = self.told.set(());
            return;
        }
        // One future at a time.
        *state = OutlookState::Untold;
        let weak = Arc::downgrade(job);
        // It computes orders and hashes names: about a second for a million shards.
        let telling = tokio::task::spawn_blocking(move || {
            let Some(job) = weak.upgrade() else { return };
            let mut first = epoch;
            loop {
                let told = tell(&job, first);
                let mut state = job.outlook.lock();
                // Unless the job takes shards from a queue by now.
                if let OutlookState::Telling { begun, .. } = &*state {
                    match told {
                        Some(told) if !told.leads_to(*begun) => {
                            first = *begun;
                            continue;
                        }
                        told => *state = told.map_or(OutlookState::Unknown, OutlookState::Told),
                    }
                }
                break;
            }
            // It may have been set before.
            let _ = job.outlook.told.set(());
        });
        *state = OutlookState::Telling { telling, begun: epoch };
    }

    /// Records that batches up to `position` of an epoch are the trainer's.
    pub(super) fn handed(&self, job: &JobData, epoch: u64, position: u64) {
        if let OutlookState::Told(told) = &*self.lock()
            && let Some(read) = told.place(epoch, position)
        {
            let waited = job.slots.missed();
            told.foreseen.advance(read, waited);
            if let Some(of_all) = &told.of_all {
                of_all.advance(read, waited);
            }
        }
    }
}

/// Announces the job's reads from an epoch on, if they are known.
fn tell(job: &Arc<JobData>, first: u64) -> Option<Told> {
    let counts = job.spec.counts.as_ref()?;
    let bytes = match &job.bytes {
        Some(bytes) => bytes.clone(),
        None => job.store.lengths(&job.spec.urls, &job.origin)?,
    };
    let samples: u64 = counts.iter().sum();
    let sample_bytes = bytes.iter().sum::<u64>() as f64 / (samples.max(1)) as f64;
    let epoch = job.epoch(first).ok()?;
    let share = job.share(epoch.lanes(), 0);
    // A job without uses announces nothing.
    epoch.spans(&share).filter(|spans| !spans.is_empty())?;
    let epoch_bytes = plan::place(epoch.total()?, sample_bytes);
    let world = job.spec.order.world_size;
    let part = if world == 1 || share.takes_whole_lanes() { 1.0 } else { 1.0 / f64::from(world) };
    let urls: Arc<[String]> = job.spec.urls.clone().into();
    let announce = |share: Share, scope: Scope| {
        let (order, joins) = (job.order(), job.joins.clone());
        let future = move |shards| {
            let make = move |number: u64| order(first.saturating_add(number));
            let others = move |shard: u32| joins.others(shard).collect();
            plan::outlook(make, share, shards, others, sample_bytes)
        };
        let (bytes, options, future) = (bytes.clone(), job.origin.clone(), Box::new(future));
        let (name, urls) = (job.spec.job.clone(), urls.clone());
        let announced =
            job.store.announce(AnnouncedReads { name, urls, bytes, options, scope, future });
        announced.map_err(|error| {
            // The error is reported where the shard is opened.
            tracing::debug!(job = job.spec.job, tenant = job.store.tenant(), %error, "future reads of a job are not announced");
        })
    };
    // The only rank of a world takes all.
    let alone = Order { rank: 0, world_size: 1, ..job.spec.order.clone() };
    let of_all = (world > 1 && job.store.peers().is_some())
        .then(|| announce(Share::new(&alone, epoch.lanes(), 0), Scope::Cluster));
    let of_all = of_all.transpose().ok()?;
    let foreseen = announce(share, Scope::Node(part)).ok()?;
    Some(Told { first, latest: first, epoch_bytes, sample_bytes, foreseen, of_all })
}
