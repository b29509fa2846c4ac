//! Forecast of a node: announced reads of jobs, by shard names and a real clock.
//!
//! Tables report shards that arrive, are present or leave; jobs report their progress; the
//! forecast answers when a shard is needed next. Nothing here waits or calls a table: a table may
//! ask under its own lock.

mod guests;
mod managed;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::shown;
use forebay_policy::simulate::{self, Decision, Trace};
use forebay_policy::{
    Foresight, Future, JobId, Mass, Moment, NEVER, NOW, PartitionNumber, Presence, Remedy, Role,
    Shard, shortfall,
};
use forebay_source::{ByClient, Options};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use utoipa::ToSchema;

use crate::directory::ObjectKey;
pub use guests::Scope;
use managed::managed;

/// Initial estimate, in bytes per second, of a link's bandwidth and of a job's read rate: one 10
/// Gbit/s port. The first shard corrects it.
const UNSEEN: f64 = 1.25e9;

/// Time for which a shard that could not be fetched is not wanted. The reason (its origin, the
/// rules of its data set) may be gone by then, and a job that reaches the shard asks at once.
const REFUSED: Duration = Duration::from_secs(2);

/// Maximum number of postponed shards. Beyond it nothing is fetched until one of them is wanted
/// again.
const REFUSALS: usize = 64;

/// Share of its time that a job may wait before something is reported as lacking. Less is the first
/// batch's wait, or a busy machine.
const WAITS: f64 = 0.02;

/// Shards ahead of a job in which reports look for missing ones: a terabyte of usual shards,
/// checked in less than a millisecond.
const HORIZON: u64 = 4096;

/// Shards checked for the slack of each job. Later ones can wait for the next check, which takes
/// less than a millisecond.
const LOOKED_AT: usize = 10_000;

/// Decisions remembered, for people and traces.
const REMEMBERED: usize = 4096;

/// Settings with which a job's shards are requested.
#[derive(Clone)]
pub(crate) struct ReadContext {
    pub(crate) scope: Scope,
    pub(crate) tenant: Option<Arc<str>>,
    pub(crate) owner: u64,
    pub(crate) job: Option<Arc<str>>,
    pub(crate) client: Option<ByClient>,
    pub(crate) options: Options,
    pub(crate) urls: Arc<[String]>,
}

/// A job with announced reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForeseenJob {
    /// Number of the job.
    #[schema(value_type = u64)]
    pub job: JobId,
    /// Bytes per second that it reads while it does not wait.
    pub rate: f64,
    /// Bytes read since the announcement.
    pub read: u64,
    /// Seconds waited since the announcement.
    pub waited: f64,
    /// Shards that the forecast fetches for it.
    pub shards: usize,
    /// Seconds until the next fetch must begin for all of its shards to come in time; below 0 if
    /// one will be late; none if it needs none of the most urgent shards.
    pub slack: Option<f64>,
    /// First shard that it will need and that is missing, if one is among the next thousands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacks: Option<Expected>,
}

/// A shard that a job will need.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Expected {
    /// URL of the shard.
    pub url: String,
    /// Seconds until the job needs it, if it does not wait before.
    pub needed_in: f64,
    /// Seconds until it arrives, if it is fetched in its turn; none if it is refused. It may come
    /// later if a shard must be evicted for it: such a fetch starts as late as possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrives_in: Option<f64>,
    /// Reason why it does not come now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
}

/// Reason why a needed shard does not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Origin did not deliver it.
    Origin,
    /// There is no room: the shards that could be evicted are needed sooner, or its data set or
    /// tenant is at its limit.
    Room,
}

/// Forecast of a node, and its results.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForecastReport {
    /// Jobs with announced reads.
    pub jobs: Vec<ForeseenJob>,
    /// Measured bandwidth of all links to the origins, in bytes per second.
    pub bandwidth: f64,
    /// Seconds until the next fetch must begin; below 0 if it is late; none if nothing is to be
    /// fetched.
    pub slack: Option<f64>,
    /// Fetches started ahead of need.
    pub fetches: u64,
    /// Shards evicted for them.
    pub evictions: u64,
    /// Remedy that would let jobs read on without waiting, if they wait for lack of cache or
    /// bandwidth.
    pub lacks: Option<Remedy>,
}

struct ForecastJob {
    /// Name of the job, for admins.
    name: String,
    via: Arc<ReadContext>,
    since: Moment,
    waited: Duration,
    shards: Vec<Shard>,
    /// True for the shards that the forecast decides about, by their index among its URLs.
    managed: Arc<[AtomicBool]>,
}

/// A shard that jobs read.
struct ForeseenShard {
    object: ObjectKey,
    /// Jobs that read it, and its index among their URLs.
    readers: Vec<(JobId, u32)>,
    /// Kept and guests are evicted by the forecast; others by their use.
    role: Role,
    /// Start of its transfer.
    began: Option<Moment>,
    /// Reason of the last refusal.
    refused: Option<Refusal>,
}

#[derive(Default)]
struct ForecastLog {
    /// Shards by the ids they had then.
    decisions: VecDeque<Decision>,
    fetches: u64,
    evictions: u64,
}

struct ForecastState {
    foresight: Foresight,
    numbers: HashMap<ObjectKey, Shard>,
    /// By shard id.
    shards: Vec<Option<ForeseenShard>>,
    readers: HashMap<JobId, ForecastJob>,
    /// Postponed shards, by the time they are wanted again.
    refused: BTreeSet<(Moment, Shard)>,
    /// End of the last transfer of the link.
    brought: Moment,
    places: PartitionNumber,
    log: ForecastLog,
}

/// The next shard to fetch.
pub(crate) struct NextFetch {
    pub(crate) shard: Shard,
    pub(crate) object: ObjectKey,
    pub(crate) bytes: u64,
    pub(crate) via: Arc<ReadContext>,
    /// Index among the job's URLs.
    pub(crate) at: usize,
    /// Latest start of the fetch.
    pub(crate) due: Moment,
}

/// Forecast of a node.
pub(crate) struct Forecast {
    since: Instant,
    state: Mutex<ForecastState>,
    /// Number of jobs with announced reads, readable without the lock. It falls only after the
    /// tables forgot the job's shards.
    jobs: AtomicU64,
    /// Notified of changes that may allow more fetches.
    pub(crate) changed: Notify,
    /// Held while jobs come and go.
    pub(crate) changing: Mutex<()>,
}

impl Forecast {
    pub(crate) fn new() -> Self {
        let state = ForecastState {
            foresight: Foresight::new(UNSEEN),
            numbers: HashMap::new(),
            shards: Vec::new(),
            readers: HashMap::new(),
            refused: BTreeSet::new(),
            brought: NOW,
            places: 0,
            log: ForecastLog::default(),
        };
        Self {
            since: Instant::now(),
            state: Mutex::new(state),
            jobs: AtomicU64::new(0),
            changed: Notify::new(),
            changing: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, ForecastState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Microseconds since the forecast was created.
    pub(crate) fn now(&self) -> Moment {
        u64::try_from(self.since.elapsed().as_micros()).unwrap_or(NEVER - 1)
    }

    /// Converts a moment to clock time.
    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        self.since + Duration::from_micros(moment)
    }

    /// Returns true if no job has announced reads.
    fn is_idle(&self) -> bool {
        self.jobs.load(Ordering::Acquire) == 0
    }

    /// Returns a new partition id, for the shards of a tier that are evicted in one order; none if
    /// there are too many.
    pub(crate) fn new_partition_id(&self) -> Option<PartitionNumber> {
        let mut state = self.state();
        let place = state.places;
        state.places = place.checked_add(1)?;
        Some(place)
    }

    /// Id of a shard that jobs read and whose copy the forecast evicts.
    pub(crate) fn shard_id(&self, object: ObjectKey) -> Option<Shard> {
        if self.is_idle() {
            return None;
        }
        self.state().foreseen(object)
    }

    /// Time of the next use of a shard; none if no job announced it, or the forecast does not
    /// decide about it.
    pub(crate) fn next_use(&self, object: ObjectKey) -> Option<Moment> {
        if self.is_idle() {
            return None;
        }
        let state = self.state();
        let shard = state.foreseen(object)?;
        Some(state.foresight.needed(shard))
    }

    /// Adds a job that reads these shards (with their sizes) in the order of `future`. Returns for
    /// each shard if the forecast decides about it; for new shards that is false until
    /// [`Self::set_roles`]. The tables report the present shards afterwards.
    pub(crate) fn add_job(
        &self,
        job: JobId,
        (name, via): (&str, Arc<ReadContext>),
        objects: &[(ObjectKey, u64)],
        future: impl FnOnce(Vec<Shard>) -> Box<dyn Future>,
    ) -> Arc<[AtomicBool]> {
        let now = self.now();
        let mut state = self.state();
        let (mut shards, mut managed) = (Vec::new(), Vec::new());
        for (at, (object, bytes)) in (0..).zip(objects) {
            let shard = state.shard_id_or_new(*object, *bytes);
            if let Some(foreseen) = &mut state.shards[shard as usize] {
                foreseen.readers.push((job, at));
                managed.push(AtomicBool::new(foreseen.role == Role::Kept));
            }
            shards.push(shard);
        }
        let managed: Arc<[AtomicBool]> = managed.into();
        let reader = ForecastJob {
            name: name.to_owned(),
            via,
            since: now,
            waited: Duration::ZERO,
            shards: shards.clone(),
            managed: managed.clone(),
        };
        let (is_cluster, future) = (reader.via.scope == Scope::Cluster, future(shards));
        state.readers.insert(job, reader);
        match is_cluster {
            true => state.foresight.join_elsewhere(job, future, UNSEEN, now),
            false => state.foresight.join(job, future, UNSEEN, now),
        }
        self.jobs.store(state.readers.len() as u64, Ordering::Release);
        managed
    }

    /// Removes a job. Returns the ids of shards that no job reads any more, for
    /// [`Self::release_ids`] once the tables have dropped them.
    pub(crate) fn remove_job(&self, job: JobId) -> Vec<Shard> {
        let mut state = self.state();
        let Some(reader) = state.readers.remove(&job) else { return Vec::new() };
        state.foresight.leave(job);
        let mut orphans = Vec::new();
        for shard in reader.shards {
            let Some(foreseen) = &mut state.shards[shard as usize] else { continue };
            foreseen.readers.retain(|(of, _)| *of != job);
            if foreseen.readers.is_empty() {
                let object = foreseen.object;
                state.shards[shard as usize] = None;
                state.numbers.remove(&object);
                orphans.push(shard);
            }
        }
        state.refused.retain(|(_, shard)| !orphans.contains(shard));
        orphans
    }

    /// Releases the ids of shards that no table uses any more.
    pub(crate) fn release_ids(&self, orphans: Vec<Shard>) {
        let mut state = self.state();
        orphans.into_iter().for_each(|shard| state.foresight.forget(shard));
        self.jobs.store(state.readers.len() as u64, Ordering::Release);
    }

    /// Notes the progress of a job: bytes read in all, and the wait since the last report.
    pub(crate) fn advance(&self, job: JobId, read: u64, waited: Duration) {
        let now = self.now();
        let mut state = self.state();
        let Some(reader) = state.readers.get_mut(&job) else { return };
        reader.waited += waited;
        // Batches come in order, but a job may be sent back.
        let read = read.max(state.foresight.read(job));
        let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        state.foresight.advance(job, read, now, waited);
        drop(state);
        self.changed.notify_one();
    }

    /// Notes that a job restarts at this number of bytes read. Returns false if it had read more
    /// before.
    pub(crate) fn restart_at(&self, job: JobId, read: u64) -> bool {
        let now = self.now();
        let mut state = self.state();
        let is_ahead = state.readers.contains_key(&job) && state.foresight.read(job) <= read;
        if is_ahead {
            state.foresight.pause(job, now);
            drop(state);
            self.advance(job, read, Duration::ZERO);
        }
        is_ahead
    }

    /// Notes the start of a fetch ahead of need, which [ends](Self::note_fetch_end) later.
    pub(crate) fn note_fetch_start(&self, shard: Shard) {
        let at = self.now();
        let mut state = self.state();
        state.foresight.began(shard);
        let log = &mut state.log;
        log.fetches += 1;
        if log.decisions.len() == REMEMBERED {
            log.decisions.pop_front();
        }
        log.decisions.push_back(Decision { at, fetched: shard, went: Vec::new() });
    }

    /// Notes the end of a fetch ahead of need. A refused shard is postponed.
    pub(crate) fn note_fetch_end(&self, object: ObjectKey, refused: Option<Refusal>) {
        let mut state = self.state();
        // The last reader may be gone.
        let Some(shard) = state.numbers.get(&object).copied() else { return };
        state.foresight.failed(shard);
        drop(state);
        if let Some(why) = refused {
            self.postpone(shard, why);
        }
        self.changed.notify_one();
    }

    /// Notes that a shard is on its way to a tier.
    pub(crate) fn note_arriving(&self, shard: Shard) {
        self.state().foresight.began(shard);
    }

    /// Notes the start of a shard's transfer over the link.
    pub(crate) fn note_transfer_start(&self, shard: Shard) {
        let now = self.now();
        // A guest comes from its owner: that says nothing about the link to the origin.
        if let Some(foreseen) = &mut self.state().shards[shard as usize]
            && foreseen.role == Role::Kept
        {
            foreseen.began.get_or_insert(now);
        }
    }

    /// Notes that a shard arrived in a partition.
    pub(crate) fn note_arrived(&self, shard: Shard, place: PartitionNumber) {
        let now = self.now();
        let mut state = self.state();
        let began = state.shards[shard as usize].as_mut().and_then(|known| known.began.take());
        match began {
            // The link transfers parallel shards one after the other, for this measurement: each
            // from the end of the one before.
            Some(began) => {
                let since = began.max(state.brought);
                state.brought = now;
                state.foresight.arrived(shard, now.saturating_sub(since), place);
            }
            None => {
                state.foresight.failed(shard);
                state.foresight.found(shard, place);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Notes that a fetch of a shard ended without it.
    pub(crate) fn note_arrival_failed(&self, shard: Shard) {
        let mut state = self.state();
        if let Some(foreseen) = &mut state.shards[shard as usize] {
            foreseen.began = None;
        }
        state.foresight.failed(shard);
        drop(state);
        self.changed.notify_one();
    }

    /// Notes that a shard is present in a partition.
    pub(crate) fn note_present(&self, shard: Shard, place: PartitionNumber) {
        self.state().foresight.found(shard, place);
    }

    /// Notes that a shard left a partition.
    pub(crate) fn note_left(&self, shard: Shard, place: PartitionNumber) {
        self.state().foresight.left(shard, place);
        self.changed.notify_one();
    }

    /// Postpones a shard that could not be fetched.
    pub(crate) fn postpone(&self, shard: Shard, why: Refusal) {
        let until = self.now().saturating_add(REFUSED.as_micros() as u64);
        let mut state = self.state();
        if let Some(Some(foreseen)) = state.shards.get_mut(shard as usize) {
            foreseen.refused = Some(why);
            state.foresight.refuse(shard, true);
            state.refused.insert((until, shard));
        }
    }

    /// Returns the shard in these partitions that is needed last (later than `than`, if given) and
    /// for which `may_go` is true.
    pub(crate) fn last_needed(
        &self,
        places: &[PartitionNumber],
        than: Option<Moment>,
        may_go: &mut dyn FnMut(Shard) -> bool,
    ) -> Option<Shard> {
        if self.is_idle() {
            return None;
        }
        self.state().foresight.victims(places, than, 1, may_go)?.pop()
    }

    /// Returns the next shard to fetch, or the time of the next check, if known.
    pub(crate) fn next_fetch(&self) -> Result<NextFetch, Option<Moment>> {
        let now = self.now();
        let mut state = self.state();
        while let Some(&(until, shard)) = state.refused.first()
            && until <= now
        {
            state.refused.pop_first();
            state.foresight.refuse(shard, false);
        }
        let again = state.refused.first().map(|(until, _)| *until);
        if state.refused.len() >= REFUSALS {
            return Err(again);
        }
        let (_, shard) = state.foresight.wanted().ok_or(again)?;
        let due = state.foresight.due().unwrap_or(NOW);
        let foreseen = state.shards[shard as usize].as_ref().ok_or(again)?;
        let (job, at) = foreseen.readers.first().ok_or(again)?;
        let via = state.readers.get(job).ok_or(again)?.via.clone();
        let (object, bytes) = (foreseen.object, state.foresight.bytes(shard));
        Ok(NextFetch { shard, object, bytes, via, at: *at as usize, due })
    }

    /// Time at which the first postponed shard is wanted again.
    pub(crate) fn next_retry(&self) -> Option<Moment> {
        self.state().refused.first().map(|(until, _)| *until)
    }

    /// Notes a shard that was evicted for a fetch.
    pub(crate) fn note_eviction(&self, fetched: ObjectKey, gone: ObjectKey) {
        if self.is_idle() {
            return;
        }
        let state = &mut *self.state();
        let Some(fetched) = state.numbers.get(&fetched) else { return };
        let mut latest = state.log.decisions.iter_mut().rev();
        if let Some(decision) = latest.find(|decision| decision.fetched == *fetched) {
            state.log.evictions += 1;
            // A shard that no job reads has no id.
            decision.went.extend(state.numbers.get(&gone));
        }
    }

    /// Trace for the simulator: the announced reads of the next `rounds` rounds of each job, for a
    /// cache of `capacity` bytes, with the decisions made. Costs O(n).
    pub(crate) fn trace(&self, capacity: u64, rounds: u64) -> Trace {
        let at = self.now();
        let state = &mut *self.state();
        let mut jobs = Vec::with_capacity(state.readers.len());
        for (job, reader) in state.readers.iter().filter(|(_, reader)| reader.is_of_node()) {
            let bytes = state.foresight.bytes_of(&reader.shards);
            let mut uses = state.foresight.ahead(*job, bytes.saturating_mul(rounds));
            uses.retain(|one| managed(&state.shards, one.shard));
            jobs.push(simulate::Reader {
                name: reader.name.clone(),
                shards: reader.managed(&state.shards).collect(),
                rate: state.foresight.rate(*job).unwrap_or(UNSEEN),
                order: simulate::Order::default(),
                window: 1,
                epochs: rounds,
                seed: 0,
                joins: 0.0,
                uses,
            });
        }
        jobs.sort_by(|one, other| one.name.cmp(&other.name));
        let count = Shard::try_from(state.shards.len()).unwrap_or(Shard::MAX);
        let here = |shard: &Shard| {
            matches!(state.foresight.presence(*shard), Presence::Here | Presence::Arriving)
        };
        let mut left = capacity;
        let fits = |shard: &Shard| {
            let fits = state.foresight.bytes(*shard) <= left;
            left -= if fits { state.foresight.bytes(*shard) } else { 0 };
            fits
        };
        let here = (0..count).filter(here).filter(fits).collect();
        let name = |foreseen: &Option<ForeseenShard>| {
            let (job, at) = foreseen.as_ref()?.readers.first()?;
            let urls = &state.readers.get(job)?.via.urls;
            urls.get(*at as usize).map(|url| shown(url))
        };
        Trace {
            capacity,
            bandwidth: state.foresight.bandwidth(),
            shards: (0..count).map(|shard| state.foresight.bytes(shard)).collect(),
            jobs,
            warm_epochs: 0,
            jitter: simulate::Jitter::default(),
            here,
            names: state.shards.iter().map(|one| name(one).unwrap_or_default()).collect(),
            at,
            decisions: state.log.decisions.iter().cloned().collect(),
        }
    }

    /// Report on a cache of `capacity` bytes. Costs O(n).
    pub(crate) fn report(&self, capacity: u64) -> ForecastReport {
        let now = self.now();
        let left = |moment: i64| (moment as f64 - now as f64) / 1e6;
        let state = &mut *self.state();
        let dues = state.dues();
        let ForecastState { foresight, readers, shards, .. } = state;
        let mut jobs: Vec<_> = readers
            .iter()
            .filter(|(_, reader)| reader.is_of_node())
            .map(|(job, reader)| {
                let rate = foresight.rate(*job).unwrap_or_default();
                let lacks = foresight.lacks(*job, HORIZON);
                let expected = lacks.and_then(|(shard, after, takes)| {
                    let own = shards[shard as usize].as_ref()?;
                    let (_, at) = own.readers.iter().find(|(reader, _)| reader == job)?;
                    Some(Expected {
                        url: shown(reader.via.urls.get(*at as usize)?),
                        needed_in: after as f64 / rate,
                        arrives_in: takes.map(|takes| takes as f64 / 1e6),
                        refused: own.refused.filter(|_| takes.is_none()),
                    })
                });
                ForeseenJob {
                    job: *job,
                    rate,
                    read: foresight.read(*job),
                    waited: reader.waited.as_secs_f64(),
                    shards: reader.managed(shards).count(),
                    slack: dues.get(job).map(|due| left(*due)),
                    lacks: expected,
                }
            })
            .collect();
        jobs.sort_by_key(|job| job.job);
        ForecastReport {
            jobs,
            bandwidth: state.foresight.bandwidth(),
            slack: state.foresight.due().map(|due| (due as f64 - now as f64) / 1e6),
            fetches: state.log.fetches,
            evictions: state.log.evictions,
            lacks: state.lacks(capacity, now),
        }
    }
}

impl ForecastState {
    /// Latest start of the next fetch for each job that reads one of the most urgent missing
    /// shards.
    fn dues(&self) -> HashMap<JobId, i64> {
        let mut dues = HashMap::new();
        for (shard, due) in self.foresight.due_for(LOOKED_AT) {
            let foreseen = self.shards.get(shard as usize).and_then(Option::as_ref);
            for (job, _) in foreseen.into_iter().flat_map(|foreseen| &foreseen.readers) {
                dues.entry(*job)
                    .and_modify(|first: &mut i64| *first = due.min(*first))
                    .or_insert(due);
            }
        }
        dues
    }

    /// Remedy for the most lacking resource, if a job waits for more than [`WAITS`] of its time.
    fn lacks(&self, capacity: u64, now: Moment) -> Option<Remedy> {
        let waits = |reader: &ForecastJob| {
            let here = Duration::from_micros(now.saturating_sub(reader.since));
            reader.waited.as_secs_f64() > WAITS * here.as_secs_f64()
        };
        if !self.readers.values().any(waits) {
            return None;
        }
        let frequencies: HashMap<JobId, f64> = self
            .readers
            .iter()
            .filter(|(_, reader)| reader.is_of_node())
            .map(|(job, reader)| {
                let rate = self.foresight.rate(*job).unwrap_or_default();
                let bytes = self.foresight.bytes_of(&reader.shards);
                (*job, rate / (bytes as f64).max(1.0))
            })
            .collect();
        let shards = (0..).zip(&self.shards).filter_map(|(number, known)| {
            let readers = &known.as_ref().filter(|known| known.role == Role::Kept)?.readers;
            let frequency = readers.iter().filter_map(|(job, _)| frequencies.get(job)).sum();
            Some(Mass { bytes: self.foresight.bytes(number), frequency })
        });
        shortfall(&shards.collect::<Vec<_>>(), capacity, self.foresight.bandwidth())
    }

    /// Id of a shard; a new one if it has none.
    fn shard_id_or_new(&mut self, object: ObjectKey, bytes: u64) -> Shard {
        if let Some(shard) = self.numbers.get(&object) {
            return *shard;
        }
        let shard = self.foresight.add(bytes);
        self.numbers.insert(object, shard);
        if self.shards.len() <= shard as usize {
            self.shards.resize_with(shard as usize + 1, || None);
        }
        self.foresight.set_role(shard, Role::Apart);
        let readers = Vec::new();
        self.shards[shard as usize] =
            Some(ForeseenShard { object, readers, role: Role::Apart, began: None, refused: None });
        shard
    }
}

#[cfg(test)]
mod tests;
