//! Order of future needs: the next shard to fetch, the time to fetch it, and the shards to evict
//! for it.
//!
//! Prefetching and eviction are one decision, taken by four rules that lose nothing (Cao, Felten,
//! Karlin and Li, SIGMETRICS 1995): fetch the shard needed first; evict the shard needed last; only
//! if that is needed later than the fetched one; and not before it must be. The last rule is
//! *forestall* (Kimbrel et al., OSDI 1996): an early eviction excludes a better one later. A fetch
//! begins when any later need would be late without it.
//!
//! Times are estimates: the daemon learns each job's read rate while it does not wait, and the
//! link's rate. They are updated a few shards at each step, so that no step costs more than O(log
//! n).

mod epochs;
mod pace;
#[cfg(test)]
mod tests;
mod timeline;
mod walk;

use std::collections::{BTreeMap, BTreeSet};

pub use epochs::{Epoch, Epochs};
use pace::Pace;
use serde::{Deserialize, Serialize};
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

/// Safety margin of a fetch's start, in shards of the usual size: the number a daemon fetches at
/// once. With less, a link whose speed varies threefold makes jobs wait; more evicts shards too
/// early.
const SLACK: f64 = 4.0;

/// Shards whose moments are worked out anew for each that a job begins with or is done with.
const RENEWED: usize = 8;

/// One use of a shard: it is needed from where the job has read `start` bytes until it has read
/// `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Use {
    /// The shard.
    pub shard: Shard,
    /// Bytes that the job reads before.
    pub start: u64,
    /// Bytes that it has read when it is done with it.
    pub end: u64,
}

/// All that a job will read: uses in the order in which they begin.
///
/// It is asked with ascending indexes, so that an order that is made epoch by epoch may be
/// forgotten so.
pub trait Future: Send {
    /// The use number `index`; none past the end.
    fn at(&mut self, index: u64) -> Option<Use>;

    /// The first use of `shard` from number `index` on, as far as is known.
    fn next(&mut self, shard: Shard, index: u64) -> Option<Use>;

    /// The use of `shard` after that one.
    fn second(&mut self, shard: Shard, index: u64) -> Option<Use>;
}

/// Decision about a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It is fetched in time, and evicted for what is needed sooner.
    Kept,
    /// Another node keeps it: it is not fetched here, and a copy goes before all shards that are
    /// kept.
    Guest,
    /// Others decide about it.
    Apart,
}

/// Place of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// At its origin alone.
    Missing,
    /// At its origin, which does not give it now.
    Refused,
    /// On its way.
    Arriving,
    /// On the node.
    Here,
    /// Wherever it is, others decide what becomes of it.
    Apart,
}

/// Number of a partition, a part of the cache whose shards are evicted in one order: small, and
/// chosen by the caller.
pub type PartitionNumber = u16;

/// Partitions that may hold one shard at a time: a tier of each class, and as many copies on the
/// way from one to another.
const COPIES: usize = 8;

/// Partitions that hold a shard.
#[derive(Debug, Clone, Copy, Default)]
struct Partitions {
    at: [PartitionNumber; COPIES],
    count: usize,
}

impl Partitions {
    fn all(&self) -> &[PartitionNumber] {
        &self.at[..self.count]
    }

    /// One more, unless it is one too many.
    fn add(&mut self, place: PartitionNumber) {
        if self.count < COPIES && !self.all().contains(&place) {
            self.at[self.count] = place;
            self.count += 1;
        }
    }

    fn remove(&mut self, place: PartitionNumber) {
        if let Some(at) = self.all().iter().position(|other| *other == place) {
            self.count -= 1;
            self.at[at] = self.at[self.count];
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Known {
    bytes: u64,
    places: Partitions,
    /// Fetches of it under way.
    coming: u32,
    /// True if its origin fails to deliver it.
    is_refused: bool,
    role: Role,
    /// Time of the next need, as last computed.
    needed: Moment,
    /// Uses of it that are under way here.
    open: u32,
    /// The same on other nodes.
    open_elsewhere: u32,
}

impl Known {
    fn of(bytes: u64) -> Self {
        let places = Partitions::default();
        Self {
            bytes,
            places,
            coming: 0,
            is_refused: false,
            role: Role::Kept,
            needed: NEVER,
            open: 0,
            open_elsewhere: 0,
        }
    }

    /// Uses under way, here or on other nodes.
    fn uses(&mut self, elsewhere: bool) -> &mut u32 {
        if elsewhere { &mut self.open_elsewhere } else { &mut self.open }
    }

    fn presence(&self) -> Presence {
        match self.role {
            Role::Apart => return Presence::Apart,
            Role::Guest if self.places.count == 0 => return Presence::Apart,
            Role::Guest | Role::Kept => {}
        }
        match (self.places.count, self.coming, self.is_refused) {
            (1.., ..) => Presence::Here,
            (0, 1.., _) => Presence::Arriving,
            (0, 0, true) => Presence::Refused,
            (0, 0, false) => Presence::Missing,
        }
    }
}

struct AnnouncedJob {
    /// True for the reads of other nodes, which matter for shards that are kept for them.
    is_elsewhere: bool,
    walk: Walk,
    /// While it does not wait.
    pace: Pace,
    /// Time it was at this position.
    at: Moment,
}

impl AnnouncedJob {
    /// Returns the time it reaches a use that begins after `start` bytes.
    fn comes_to(&self, start: u64) -> Moment {
        let ahead = self.pace.takes(start.saturating_sub(self.walk.read()));
        self.at.saturating_add(ahead).clamp(NOW + 1, NEVER - 1)
    }
}

/// The future of one link and one cache, as far as their jobs have told it.
pub struct Foresight {
    shards: Vec<Known>,
    /// Numbers of shards that were forgotten.
    vacant: Vec<Shard>,
    jobs: BTreeMap<JobId, AnnouncedJob>,
    /// Shards missing and needed.
    missing: Timeline,
    /// Kept shards in each place, by the time of need.
    here: Vec<BTreeSet<(Moment, Shard)>>,
    /// Guests in each place, by the time of need.
    guests: Vec<BTreeSet<(Moment, Shard)>>,
    /// Bytes of kept shards that are needed and not on their way.
    missing_bytes: u64,
    link: Pace,
    /// Bytes on their way.
    arriving: u64,
    /// Bytes of all shards.
    bytes: u64,
    /// The shard that is worked out anew next.
    stalest: Shard,
}

impl Foresight {
    /// Creates the state for a link assumed to deliver `bandwidth` bytes a second until measured.
    #[must_use]
    pub fn new(bandwidth: f64) -> Self {
        Self {
            shards: Vec::new(),
            vacant: Vec::new(),
            jobs: BTreeMap::new(),
            missing: Timeline::default(),
            here: Vec::new(),
            guests: Vec::new(),
            missing_bytes: 0,
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
        self.bytes += bytes;
        if let Some(shard) = self.vacant.pop() {
            self.shards[shard as usize] = Known::of(bytes);
            return shard;
        }
        let shard = Shard::try_from(self.shards.len()).expect("fewer than four billion shards");
        self.shards.push(Known::of(bytes));
        shard
    }

    /// A shard that no job reads any more, wherever it is: its number will be another's.
    pub fn forget(&mut self, shard: Shard) {
        self.take_out(shard);
        self.bytes -= self.shards[shard as usize].bytes;
        self.shards[shard as usize] = Known::of(0);
        self.vacant.push(shard);
    }

    /// A job comes that will read `future`, at `rate` bytes a second until it was seen to. Costs
    /// O(n log n).
    pub fn join(&mut self, id: JobId, future: Box<dyn Future>, rate: f64, now: Moment) {
        self.add_job(id, future, (rate, now), false);
    }

    /// The same for what all nodes of a cluster will read of a job: it counts for the shards that
    /// this node keeps for them. Costs O(n log n).
    pub fn join_elsewhere(&mut self, id: JobId, future: Box<dyn Future>, rate: f64, now: Moment) {
        self.add_job(id, future, (rate, now), true);
    }

    fn add_job(
        &mut self,
        id: JobId,
        future: Box<dyn Future>,
        (rate, at): (f64, Moment),
        is_elsewhere: bool,
    ) {
        let (walk, pace) = (Walk::new(future), Pace::new(rate));
        self.jobs.insert(id, AnnouncedJob { is_elsewhere, walk, pace, at });
        self.walk(id, 0);
        self.renew_all();
    }

    /// A job goes. Costs O(n log n).
    pub fn leave(&mut self, id: JobId) {
        let Some(job) = self.jobs.remove(&id) else { return };
        for (_, shard) in job.walk.open() {
            *self.shards[shard as usize].uses(job.is_elsewhere) -= 1;
        }
        self.renew_all();
    }

    /// Returns a job's reads from its position, for this many bytes; counted from there.
    pub fn ahead(&mut self, id: JobId, bytes: u64) -> Vec<Use> {
        self.jobs.get_mut(&id).map(|job| job.walk.ahead(bytes)).unwrap_or_default()
    }

    /// Excludes a job's time until now from its measured pace.
    pub fn pause(&mut self, id: JobId, now: Moment) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.at = now;
        }
    }

    /// A job has read `read` bytes in all; since it was last heard of it waited for `waited`
    /// microseconds.
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
        self.change(shard, |known| {
            known.coming += 1;
            known.is_refused = false;
        });
    }

    /// A fetch of a shard ended without it.
    pub fn failed(&mut self, shard: Shard) {
        self.change(shard, |known| known.coming = known.coming.saturating_sub(1));
    }

    /// A shard came, which took the link so many microseconds, and lies in `place`.
    pub fn arrived(&mut self, shard: Shard, took: u64, place: PartitionNumber) {
        self.link.saw(self.shards[shard as usize].bytes, took, self.usual());
        self.failed(shard);
        self.found(shard, place);
    }

    /// A shard was found in `place`.
    pub fn found(&mut self, shard: Shard, place: PartitionNumber) {
        self.change(shard, |known| known.places.add(place));
    }

    /// A shard was evicted there.
    pub fn left(&mut self, shard: Shard, place: PartitionNumber) {
        self.change(shard, |known| known.places.remove(place));
    }

    /// The origin does not give a shard, until that is taken back: it is not wanted meanwhile.
    pub fn refuse(&mut self, shard: Shard, is_refused: bool) {
        self.change(shard, |known| known.is_refused = is_refused);
    }

    /// Another decision is made about a shard.
    pub fn set_role(&mut self, shard: Shard, role: Role) {
        self.change(shard, |known| known.role = role);
        // A guest is needed by this node alone.
        self.renew(shard);
    }

    /// Returns the decision about a shard.
    #[must_use]
    pub fn role(&self, shard: Shard) -> Role {
        self.shards[shard as usize].role
    }

    /// Returns the time at which this node needs a shard after its next use, if a guest that comes
    /// now stays until then: it and the guests that are needed before fit `room` bytes.
    pub fn guest_due(&mut self, shard: Shard, room: u64) -> Option<Moment> {
        let again = self.needed_again(shard).filter(|again| *again < NEVER)?;
        let before = self.guests.iter().flat_map(|here| here.range(..(again, shard)));
        let before: u64 = before.map(|(_, guest)| self.bytes(*guest)).sum();
        (before.saturating_add(self.bytes(shard)) <= room).then_some(again)
    }

    /// Bytes of all guests here.
    #[must_use]
    pub fn guest_bytes(&self) -> u64 {
        self.guests.iter().flatten().map(|(_, guest)| self.bytes(*guest)).sum()
    }

    /// Bytes of kept shards that are needed, and not here or on their way.
    #[must_use]
    pub fn missing_bytes(&self) -> u64 {
        self.missing_bytes
    }

    /// Returns the place of a shard.
    #[must_use]
    pub fn presence(&self, shard: Shard) -> Presence {
        self.shards[shard as usize].presence()
    }

    /// Bytes of a shard.
    #[must_use]
    pub fn bytes(&self, shard: Shard) -> u64 {
        self.shards[shard as usize].bytes
    }

    /// Bytes of these together.
    #[must_use]
    pub fn bytes_of(&self, shards: &[Shard]) -> u64 {
        shards.iter().map(|shard| self.bytes(*shard)).sum()
    }

    /// Bytes that a job has read; 0 of one that is not here.
    #[must_use]
    pub fn read(&self, id: JobId) -> u64 {
        self.jobs.get(&id).map_or(0, |job| job.walk.read())
    }

    /// Returns the time of a shard's next known need.
    #[must_use]
    pub fn needed(&self, shard: Shard) -> Moment {
        self.shards[shard as usize].needed
    }

    /// Bytes a second that the link brings, as far as was seen.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        self.link.rate()
    }

    /// Bytes a second that a job reads while it does not wait, as far as was seen.
    #[must_use]
    pub fn rate(&self, id: JobId) -> Option<f64> {
        self.jobs.get(&id).map(|job| job.pace.rate())
    }

    /// The missing shard that is needed first, and when.
    #[must_use]
    pub fn wanted(&self) -> Option<(Moment, Shard)> {
        self.missing.first()
    }

    /// The first of the shards that a job will use next, so many at most, that is still to come
    /// here: after how many bytes it is needed, and how many microseconds the link takes to bring
    /// it in its turn, from now on; none where its origin does not give it.
    pub fn lacks(&mut self, id: JobId, most: u64) -> Option<(Shard, u64, Option<u64>)> {
        let shards = &self.shards;
        let is_to_come = |shard: Shard| {
            !matches!(shards[shard as usize].presence(), Presence::Here | Presence::Apart)
        };
        let (shard, after) = self.jobs.get_mut(&id)?.walk.first(most, is_to_come)?;
        let arriving = self.link.takes(self.arriving);
        let takes = match self.presence(shard) {
            Presence::Missing => {
                Some(arriving.saturating_add(self.missing.work_to(self.needed(shard), shard)))
            }
            Presence::Arriving => Some(arriving),
            Presence::Refused | Presence::Here | Presence::Apart => None,
        };
        Some((shard, after, takes))
    }

    /// Returns the latest start of the next fetch so that nothing is late; none without future
    /// needs. A fetch into free room need not wait for it.
    #[must_use]
    pub fn due(&self) -> Option<Moment> {
        let latest = self.missing.latest_start()?.saturating_sub_unsigned(self.ahead_of_all());
        Some(Moment::try_from(latest).unwrap_or(NOW))
    }

    /// The missing shards that are needed first, `most` of them, and when the next fetch must begin
    /// for each of them to come in time, in microseconds; below 0 if that is past.
    #[must_use]
    pub fn due_for(&self, most: usize) -> Vec<(Shard, i64)> {
        let ahead = self.ahead_of_all();
        let mut starts = self.missing.starts(most);
        starts.iter_mut().for_each(|(_, start)| *start = start.saturating_sub_unsigned(ahead));
        starts
    }

    /// Returns the link's current work, and the safety margin.
    fn ahead_of_all(&self) -> u64 {
        let slack = (SLACK * self.link.takes(self.usual()) as f64) as u64;
        self.link.takes(self.arriving).saturating_add(slack)
    }

    /// The shards of these places to give up for `bytes` bytes of what is needed at `than`: those
    /// that are needed last, all of them later than that, and `may_go`; without a moment, whenever
    /// they are needed. None if there are not enough.
    pub fn victims(
        &self,
        places: &[PartitionNumber],
        than: Option<Moment>,
        bytes: u64,
        may_go: &mut dyn FnMut(Shard) -> bool,
    ) -> Option<Vec<Shard>> {
        let (mut sum, mut victims) = (0, Vec::new());
        for (_, shard) in later(&self.here, places, than) {
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

    /// Returns the guest in these places that is needed last, later than `than`, and `may_go`;
    /// without a moment, whenever it is needed.
    pub fn last_guest(
        &self,
        places: &[PartitionNumber],
        than: Option<Moment>,
        may_go: &mut dyn FnMut(Shard) -> bool,
    ) -> Option<Shard> {
        let mut later = later(&self.guests, places, than);
        later.find_map(|(_, guest)| may_go(guest).then_some(guest))
    }

    /// Bytes of a usual shard.
    fn usual(&self) -> u64 {
        let count = self.shards.len() - self.vacant.len();
        self.bytes / (count as u64).max(1)
    }

    /// Begins and ends a job's uses up to where it has read `read` bytes; of which shards.
    fn walk(&mut self, id: JobId, read: u64) -> Vec<Shard> {
        let Some(job) = self.jobs.get_mut(&id) else { return Vec::new() };
        let Changed { mut begun, ended } = job.walk.to(read);
        let is_elsewhere = job.is_elsewhere;
        begun.iter().for_each(|shard| *self.shards[*shard as usize].uses(is_elsewhere) += 1);
        ended.iter().for_each(|shard| *self.shards[*shard as usize].uses(is_elsewhere) -= 1);
        begun.extend(ended);
        begun
    }

    fn next_use(&mut self, shard: Shard) -> Moment {
        let Known { role, open, open_elsewhere, .. } = self.shards[shard as usize];
        // A guest is of no use to other nodes.
        let is_guest = role == Role::Guest;
        if open > 0 || (open_elsewhere > 0 && !is_guest) {
            return NOW;
        }
        let jobs = self.jobs.values_mut().filter(|job| !(is_guest && job.is_elsewhere));
        let uses = jobs.filter_map(|job| {
            let Use { start, .. } = job.walk.next_of(shard)?;
            Some(job.comes_to(start))
        });
        uses.min().unwrap_or(NEVER)
    }

    /// Returns the time at which this node needs a shard after its next use, or after the one that
    /// is under way.
    fn needed_again(&mut self, shard: Shard) -> Option<Moment> {
        let mut uses = Vec::new();
        for job in self.jobs.values_mut().filter(|job| !job.is_elsewhere) {
            let next = [job.walk.next_of(shard), job.walk.second_of(shard)];
            uses.extend(next.into_iter().flatten().map(|one| job.comes_to(one.start)));
        }
        uses.sort_unstable();
        let under_way = self.shards[shard as usize].open > 0;
        uses.get(usize::from(!under_way)).copied()
    }

    fn renew(&mut self, shard: Shard) {
        let needed = self.next_use(shard);
        self.take_out(shard);
        self.shards[shard as usize].needed = needed;
        self.put_in(shard);
    }

    fn renew_all(&mut self) {
        self.missing = Timeline::default();
        self.here.iter_mut().chain(&mut self.guests).for_each(BTreeSet::clear);
        (self.arriving, self.missing_bytes) = (0, 0);
        for shard in 0..self.shards.len() as Shard {
            self.shards[shard as usize].needed = self.next_use(shard);
            self.put_in(shard);
        }
    }

    fn change(&mut self, shard: Shard, change: impl FnOnce(&mut Known)) {
        self.take_out(shard);
        change(&mut self.shards[shard as usize]);
        self.put_in(shard);
    }

    fn take_out(&mut self, shard: Shard) {
        let known = self.shards[shard as usize];
        let Known { bytes, needed, .. } = known;
        match known.presence() {
            Presence::Missing if needed < NEVER => {
                self.missing.remove(needed, shard);
                self.missing_bytes -= bytes;
            }
            Presence::Refused if needed < NEVER => self.missing_bytes -= bytes,
            Presence::Missing | Presence::Refused | Presence::Apart => {}
            Presence::Arriving => self.arriving -= bytes,
            Presence::Here => {
                let here = self.shards_here(known.role);
                for place in known.places.all() {
                    here[usize::from(*place)].remove(&(needed, shard));
                }
            }
        }
    }

    fn put_in(&mut self, shard: Shard) {
        let known = self.shards[shard as usize];
        let Known { bytes, needed, .. } = known;
        match known.presence() {
            Presence::Missing if needed < NEVER => {
                self.missing.insert(needed, shard, self.link.takes_at_most(bytes));
                self.missing_bytes += bytes;
            }
            Presence::Refused if needed < NEVER => self.missing_bytes += bytes,
            Presence::Missing | Presence::Refused | Presence::Apart => {}
            Presence::Arriving => self.arriving += bytes,
            Presence::Here => {
                let here = self.shards_here(known.role);
                for place in known.places.all() {
                    let place = usize::from(*place);
                    if here.len() <= place {
                        here.resize_with(place + 1, BTreeSet::new);
                    }
                    here[place].insert((needed, shard));
                }
            }
        }
    }

    fn shards_here(&mut self, role: Role) -> &mut Vec<BTreeSet<(Moment, Shard)>> {
        if role == Role::Guest { &mut self.guests } else { &mut self.here }
    }
}

/// Returns the shards in these places needed later than `than`, the last first.
fn later(
    here: &[BTreeSet<(Moment, Shard)>],
    places: &[PartitionNumber],
    than: Option<Moment>,
) -> impl Iterator<Item = (Moment, Shard)> {
    let from = (than.map_or(NOW, |than| than.saturating_add(1)), 0);
    let of = |place: &PartitionNumber| here.get(usize::from(*place));
    let mut places: Vec<_> =
        places.iter().filter_map(of).map(|here| here.range(from..).rev().peekable()).collect();
    let mut before = None;
    std::iter::from_fn(move || {
        loop {
            let of = (0..places.len()).max_by_key(|of| places[*of].peek().copied())?;
            let last = places[of].next().copied()?;
            // A shard that lies in several of them comes once.
            if before.replace(last) != Some(last) {
                return Some(last);
            }
        }
    })
}

/// A moment from which one subtracts.
fn signed(moment: u64) -> i64 {
    i64::try_from(moment).unwrap_or(i64::MAX)
}
