//! What will be needed when, and so what is to be fetched next, when, and what may go for it.
//!
//! Its rule: fetching ahead and giving up are one decision, taken by four rules that lose nothing (Cao, Felten, Karlin and
//! Li, SIGMETRICS 1995): fetch what is needed first; give up what is needed last; only if that is needed later than what
//! comes in; and not before it must be. The last is *forestall* (Kimbrel et al., OSDI 1996): whoever gives up a shard
//! early cannot give up a better one later. A fetch begins when, of all that is to come, anything would be late without
//! it.
//!
//! Moments are estimates: how fast each job reads while it does not wait, and how fast the link brings, are learnt. They are
//! worked out anew a few shards with each step, so that no step costs more than O(log n).

mod epochs;
mod pace;
#[cfg(test)]
mod tests;
mod timeline;
mod walk;

use std::collections::{BTreeMap, BTreeSet};

pub use epochs::{Epoch, Epochs};
use pace::Pace;
use timeline::Timeline;
pub(crate) use walk::{Changed, Walk};

/// Microseconds since a beginning of the caller's choice.
pub type Moment = u64;

/// A shard's number among those that were added.
pub type Shard = u32;

/// A job's number, the caller's choice.
pub type JobId = u64;

/// Needed by nobody that is known.
pub const NEVER: Moment = Moment::MAX;

/// Needed already: a job has come to it, and is not done.
pub const NOW: Moment = 0;

/// How much earlier than it must a fetch begins, in shards of the usual size: what runs at once in a daemon. With less, a
/// link that is now three times faster and now slower than usual makes jobs wait; more gives up shards too early.
const SLACK: f64 = 4.0;

/// Shards whose moments are worked out anew for each that a job begins with or is done with.
const RENEWED: usize = 8;

/// One use of a shard: it is needed from where the job has read `start` bytes until it has read `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use {
    /// Which.
    pub shard: Shard,
    /// Bytes that the job reads before.
    pub start: u64,
    /// Bytes that it has read when it is done with it.
    pub end: u64,
}

/// All that a job will read: uses in the order in which they begin.
///
/// It is asked with ascending indexes, so that an order that is made epoch by epoch may be forgotten so.
pub trait Future: Send {
    /// The use number `index`; none past the end.
    fn at(&mut self, index: u64) -> Option<Use>;

    /// The first use of `shard` from number `index` on, as far as is known.
    fn next(&mut self, shard: Shard, index: u64) -> Option<Use>;
}

/// Where a shard is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// At its origin alone.
    Missing,
    /// On its way.
    Arriving,
    /// On the node.
    Here,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    bytes: u64,
    presence: Presence,
    /// When it is needed next, as it was last worked out.
    needed: Moment,
    /// Uses of it that are under way.
    open: u32,
}

struct Job {
    walk: Walk,
    /// While it does not wait.
    pace: Pace,
    /// When it was where it is.
    at: Moment,
}

impl Job {
    /// When it comes to what begins after `start` bytes.
    fn comes_to(&self, start: u64) -> Moment {
        let ahead = self.pace.takes(start.saturating_sub(self.walk.read()));
        self.at.saturating_add(ahead).clamp(NOW + 1, NEVER - 1)
    }
}

/// The future of one link and one cache, as far as their jobs have told it.
pub struct Foresight {
    shards: Vec<Known>,
    jobs: BTreeMap<JobId, Job>,
    /// What is missing and needed.
    missing: Timeline,
    /// What is here, by when it is needed.
    here: BTreeSet<(Moment, Shard)>,
    link: Pace,
    /// Bytes on their way.
    arriving: u64,
    /// Bytes of all shards.
    bytes: u64,
    /// The shard that is worked out anew next.
    stalest: Shard,
}

impl Foresight {
    /// Of a link that is taken to bring `bandwidth` bytes a second until it was seen to.
    #[must_use]
    pub fn new(bandwidth: f64) -> Self {
        Self {
            shards: Vec::new(),
            jobs: BTreeMap::new(),
            missing: Timeline::default(),
            here: BTreeSet::new(),
            link: Pace::new(bandwidth),
            arriving: 0,
            bytes: 0,
            stalest: 0,
        }
    }

    /// A shard of `bytes` bytes that is missing.
    ///
    /// # Panics
    /// If there are four billion already.
    pub fn add(&mut self, bytes: u64) -> Shard {
        let shard = Shard::try_from(self.shards.len()).expect("fewer than four billion shards");
        let presence = Presence::Missing;
        self.shards.push(Known { bytes, presence, needed: NEVER, open: 0 });
        self.bytes += bytes;
        shard
    }

    /// A job comes that will read `future`, at `rate` bytes a second until it was seen to. Costs O(n log n).
    pub fn join(&mut self, id: JobId, future: Box<dyn Future>, rate: f64, now: Moment) {
        self.jobs.insert(id, Job { walk: Walk::new(future), pace: Pace::new(rate), at: now });
        self.walk(id, 0);
        self.renew_all();
    }

    /// A job goes. Costs O(n log n).
    pub fn leave(&mut self, id: JobId) {
        let Some(job) = self.jobs.remove(&id) else { return };
        for (_, shard) in job.walk.open() {
            self.shards[shard as usize].open -= 1;
        }
        self.renew_all();
    }

    /// A job has read `read` bytes in all; since it was last heard of it waited for `waited` microseconds.
    pub fn advance(&mut self, id: JobId, read: u64, now: Moment, waited: u64) {
        let usual = self.usual();
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let took = now.saturating_sub(job.at).saturating_sub(waited);
        job.pace.saw(read.saturating_sub(job.walk.read()), took, usual);
        job.at = now;
        let changed = self.walk(id, read);
        let others = (RENEWED * changed.len().max(1)).min(self.shards.len());
        changed.into_iter().for_each(|shard| self.renew(shard));
        for _ in 0..others {
            self.stalest = (self.stalest + 1) % self.shards.len() as Shard;
            self.renew(self.stalest);
        }
    }

    /// A shard is being fetched.
    pub fn began(&mut self, shard: Shard) {
        self.place(shard, Presence::Arriving);
    }

    /// A shard came, which took the link so many microseconds.
    pub fn arrived(&mut self, shard: Shard, took: u64) {
        self.link.saw(self.shards[shard as usize].bytes, took, self.usual());
        self.place(shard, Presence::Here);
    }

    /// A shard was found here.
    pub fn found(&mut self, shard: Shard) {
        self.place(shard, Presence::Here);
    }

    /// A shard was given up, or did not come.
    pub fn left(&mut self, shard: Shard) {
        self.place(shard, Presence::Missing);
    }

    /// Where a shard is.
    #[must_use]
    pub fn presence(&self, shard: Shard) -> Presence {
        self.shards[shard as usize].presence
    }

    /// When a shard is needed next, as far as is known.
    #[must_use]
    pub fn needed(&self, shard: Shard) -> Moment {
        self.shards[shard as usize].needed
    }

    /// The missing shard that is needed first, and when.
    #[must_use]
    pub fn wanted(&self) -> Option<(Moment, Shard)> {
        self.missing.first()
    }

    /// When the next fetch must begin, that nothing comes late; none if nothing is to come. What is fetched where there is
    /// room need not wait for it.
    #[must_use]
    pub fn due(&self) -> Option<Moment> {
        let busy = self.link.takes(self.arriving);
        let slack = (SLACK * self.link.takes(self.usual()) as f64) as u64;
        let latest =
            self.missing.latest_start()?.saturating_sub_unsigned(busy.saturating_add(slack));
        Some(Moment::try_from(latest).unwrap_or(NOW))
    }

    /// The shards to give up for `bytes` bytes of what is needed at `than`: those that are needed last, all of them later than
    /// that, and `may_go`. None if there are not enough.
    pub fn victims(
        &self,
        than: Moment,
        bytes: u64,
        may_go: &mut dyn FnMut(Shard) -> bool,
    ) -> Option<Vec<Shard>> {
        let (mut sum, mut victims) = (0, Vec::new());
        let later = self.here.range((than.saturating_add(1), 0)..).rev();
        for &(_, shard) in later {
            if sum >= bytes {
                break;
            }
            if may_go(shard) {
                sum += self.shards[shard as usize].bytes;
                victims.push(shard);
            }
        }
        (sum >= bytes).then_some(victims)
    }

    /// Bytes of a usual shard.
    fn usual(&self) -> u64 {
        self.bytes / (self.shards.len() as u64).max(1)
    }

    /// Begins and ends a job's uses up to where it has read `read` bytes; of which shards.
    fn walk(&mut self, id: JobId, read: u64) -> Vec<Shard> {
        let Some(job) = self.jobs.get_mut(&id) else { return Vec::new() };
        let Changed { mut begun, ended } = job.walk.to(read);
        begun.iter().for_each(|shard| self.shards[*shard as usize].open += 1);
        ended.iter().for_each(|shard| self.shards[*shard as usize].open -= 1);
        begun.extend(ended);
        begun
    }

    fn next_use(&mut self, shard: Shard) -> Moment {
        if self.shards[shard as usize].open > 0 {
            return NOW;
        }
        let uses = self.jobs.values_mut().filter_map(|job| {
            let Use { start, .. } = job.walk.next_of(shard)?;
            Some(job.comes_to(start))
        });
        uses.min().unwrap_or(NEVER)
    }

    fn renew(&mut self, shard: Shard) {
        let needed = self.next_use(shard);
        self.take_out(shard);
        self.shards[shard as usize].needed = needed;
        self.put_in(shard);
    }

    fn renew_all(&mut self) {
        self.missing = Timeline::default();
        self.here.clear();
        for shard in 0..self.shards.len() as Shard {
            self.shards[shard as usize].needed = self.next_use(shard);
            self.put_in(shard);
        }
    }

    fn place(&mut self, shard: Shard, presence: Presence) {
        self.take_out(shard);
        self.shards[shard as usize].presence = presence;
        self.put_in(shard);
    }

    fn take_out(&mut self, shard: Shard) {
        let Known { bytes, presence, needed, .. } = self.shards[shard as usize];
        match presence {
            Presence::Missing if needed < NEVER => self.missing.remove(needed, shard),
            Presence::Missing => {}
            Presence::Arriving => self.arriving -= bytes,
            Presence::Here => {
                self.here.remove(&(needed, shard));
            }
        }
    }

    fn put_in(&mut self, shard: Shard) {
        let Known { bytes, presence, needed, .. } = self.shards[shard as usize];
        match presence {
            Presence::Missing if needed < NEVER => {
                self.missing.insert(needed, shard, self.link.takes_at_most(bytes));
            }
            Presence::Missing => {}
            Presence::Arriving => self.arriving += bytes,
            Presence::Here => {
                self.here.insert((needed, shard));
            }
        }
    }
}

/// A moment from which one subtracts.
fn signed(moment: u64) -> i64 {
    i64::try_from(moment).unwrap_or(i64::MAX)
}
