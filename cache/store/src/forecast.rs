//! What jobs said they will read, and what is where of it: the node's foresight, by shards' names and a real clock.
//!
//! Its rule: tables say what comes, lies and goes; jobs say how far they are; whoever asks hears when a shard is needed next.
//! Nothing here waits, nor calls a table: a table may ask under its own lock.

mod ours;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_error::shown;
use forebay_policy::simulate::{self, Decision, Trace};
use forebay_policy::{
    Foresight, Future, JobId, Mass, Moment, NEVER, NOW, Place, Presence, Remedy, Shard, shortfall,
};
use forebay_source::{ByClient, Options};
use serde::Serialize;
use tokio::sync::Notify;
use utoipa::ToSchema;

use crate::directory::ObjectKey;
use ours::ours;

/// Bytes a second that a link is taken to bring before anything came over it, and a job to read before it did: what one
/// 10 Gbit/s port brings. The first shard corrects it.
const UNSEEN: f64 = 1.25e9;

/// For how long a shard is not wanted that could not be had: what is in the way (its origin, the rules of its data set) may
/// have gone by then, and a job that comes to it asks at once.
const REFUSED: Duration = Duration::from_secs(2);

/// Shards that could not be had, at most: beyond that many, none is looked for until one of them is wanted again.
const REFUSALS: usize = 64;

/// A job that waits for more than this share of its time lacks something: less is the first batch's wait, or a busy machine's.
const WAITS: f64 = 0.02;

/// Shards ahead of a job among which reports look for what it lacks: a terabyte of usual ones, and less than a millisecond to look at.
const HORIZON: u64 = 4096;

/// Shards that are looked at for what time is left to each job: what is needed behind so many can wait for the next look, and
/// the look takes less than a millisecond.
const LOOKED_AT: usize = 10_000;

/// Decisions remembered, for people and traces.
const REMEMBERED: usize = 4096;

/// How a job's shards are asked for.
#[derive(Clone)]
pub(crate) struct Via {
    pub(crate) tenant: Option<Arc<str>>,
    pub(crate) owner: u64,
    pub(crate) job: Option<Arc<str>>,
    pub(crate) client: Option<ByClient>,
    pub(crate) options: Options,
    pub(crate) urls: Arc<[String]>,
}

/// A job that is foreseen.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ForeseenJob {
    /// Its number.
    #[schema(value_type = u64)]
    pub job: JobId,
    /// Bytes a second that it reads while it does not wait.
    pub rate: f64,
    /// Bytes that it has read since it was foreseen.
    pub read: u64,
    /// Seconds that it waited meanwhile.
    pub waited: f64,
    /// Shards that it reads of which foresight decides.
    pub shards: usize,
    /// Seconds until the next fetch must begin for none of its shards to come late; none if none of those that are needed
    /// first is its, below 0 if one will.
    pub slack: Option<f64>,
    /// The first shard that it will need and that is not here, if one is among the next thousands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacks: Option<Expected>,
}

/// A shard that a job will need.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Expected {
    /// Its URL.
    pub url: String,
    /// Seconds until the job comes to it, if it waits for nothing meanwhile.
    pub needed_in: f64,
    /// Seconds until it is here, if it is fetched in its turn from now on; none if it is refused. It may be later where something
    /// must go first: fetches begin no earlier than they must then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrives_in: Option<f64>,
    /// Why it does not come now, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
}

/// Why a shard that is needed does not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// Its origin did not give it.
    Origin,
    /// There is no room for it: what may go for it is needed sooner, or its data set or tenant has all that it may have.
    Room,
}

/// What is foreseen, and what came of it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ForecastReport {
    /// The jobs.
    pub jobs: Vec<ForeseenJob>,
    /// Bytes a second that the links to the origins bring together, as far as was seen.
    pub bandwidth: f64,
    /// Seconds until the next fetch must begin; none if nothing is to come, below 0 if it is late.
    pub slack: Option<f64>,
    /// Fetches that were begun ahead of need.
    pub fetches: u64,
    /// Shards that went for them.
    pub evictions: u64,
    /// What would let jobs read on without waiting, where they wait for shards and that is so for lack of cache or link.
    pub lacks: Option<Remedy>,
}

struct Reader {
    /// What admins call it.
    name: String,
    via: Arc<Via>,
    since: Moment,
    waited: Duration,
    shards: Vec<Shard>,
    /// Of which of its shards foresight decides, by their places among its URLs.
    ours: Arc<[AtomicBool]>,
}

/// A shard that jobs read.
struct Foreseen {
    object: ObjectKey,
    /// Who reads it, and its place among their URLs.
    readers: Vec<(JobId, u32)>,
    /// Foresight decides what becomes of it; else its use does.
    is_ours: bool,
    /// When its bytes were asked for.
    began: Option<Moment>,
    /// Why it was last not to be had.
    refused: Option<Refusal>,
}

#[derive(Default)]
struct Log {
    /// By the numbers that shards have then.
    decisions: VecDeque<Decision>,
    fetches: u64,
    evictions: u64,
}

struct State {
    foresight: Foresight,
    numbers: HashMap<ObjectKey, Shard>,
    /// By number.
    shards: Vec<Option<Foreseen>>,
    readers: HashMap<JobId, Reader>,
    /// When which shard is wanted again.
    refused: BTreeSet<(Moment, Shard)>,
    /// When the link last brought something to its end.
    brought: Moment,
    places: Place,
    log: Log,
}

/// What is to be fetched.
pub(crate) struct Next {
    pub(crate) shard: Shard,
    pub(crate) object: ObjectKey,
    pub(crate) bytes: u64,
    pub(crate) via: Arc<Via>,
    /// Its place among the job's URLs.
    pub(crate) at: usize,
    /// When it must begin.
    pub(crate) due: Moment,
}

/// A node's foresight.
pub(crate) struct Forecast {
    since: Instant,
    state: Mutex<State>,
    /// Jobs that are foreseen, or were until just now; to be looked at without the lock.
    jobs: AtomicU64,
    /// Something changed by which more may be fetched.
    pub(crate) changed: Notify,
    /// Held while jobs come and go.
    pub(crate) changing: Mutex<()>,
}

impl Forecast {
    pub(crate) fn new() -> Self {
        let state = State {
            foresight: Foresight::new(UNSEEN),
            numbers: HashMap::new(),
            shards: Vec::new(),
            readers: HashMap::new(),
            refused: BTreeSet::new(),
            brought: NOW,
            places: 0,
            log: Log::default(),
        };
        Self {
            since: Instant::now(),
            state: Mutex::new(state),
            jobs: AtomicU64::new(0),
            changed: Notify::new(),
            changing: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Microseconds since the beginning.
    pub(crate) fn now(&self) -> Moment {
        u64::try_from(self.since.elapsed().as_micros()).unwrap_or(NEVER - 1)
    }

    /// When a moment is, by the clock.
    pub(crate) fn instant(&self, moment: Moment) -> Instant {
        self.since + Duration::from_micros(moment)
    }

    /// Whether no job told what it will read.
    fn is_idle(&self) -> bool {
        self.jobs.load(Ordering::Acquire) == 0
    }

    /// A part of a tier whose shards are given up in one order; none once there are too many of them.
    pub(crate) fn place(&self) -> Option<Place> {
        let mut state = self.state();
        let place = state.places;
        state.places = place.checked_add(1)?;
        Some(place)
    }

    /// The number of a shard that jobs read, and of which foresight decides.
    pub(crate) fn number(&self, object: ObjectKey) -> Option<Shard> {
        if self.is_idle() {
            return None;
        }
        self.state().ours(object)
    }

    /// When a shard is needed next; none if no job told to read it, or foresight does not decide of it.
    pub(crate) fn needed(&self, object: ObjectKey) -> Option<Moment> {
        if self.is_idle() {
            return None;
        }
        let state = self.state();
        let shard = state.ours(object)?;
        Some(state.foresight.needed(shard))
    }

    /// A job comes, which reads these shards of so many bytes, as `future` says in their numbers; with of which of them foresight
    /// decides: of none that is new, until that [was decided](Self::decide). What lies where of them, the tables are to tell.
    pub(crate) fn join(
        &self,
        job: JobId,
        (name, via): (&str, Arc<Via>),
        objects: &[(ObjectKey, u64)],
        future: impl FnOnce(Vec<Shard>) -> Box<dyn Future>,
    ) -> Arc<[AtomicBool]> {
        let now = self.now();
        let mut state = self.state();
        let (mut shards, mut ours) = (Vec::new(), Vec::new());
        for (at, (object, bytes)) in (0..).zip(objects) {
            let shard = state.number(*object, *bytes);
            if let Some(foreseen) = &mut state.shards[shard as usize] {
                foreseen.readers.push((job, at));
                ours.push(AtomicBool::new(foreseen.is_ours));
            }
            shards.push(shard);
        }
        let ours: Arc<[AtomicBool]> = ours.into();
        let reader = Reader {
            name: name.to_owned(),
            via,
            since: now,
            waited: Duration::ZERO,
            shards: shards.clone(),
            ours: ours.clone(),
        };
        state.readers.insert(job, reader);
        state.foresight.join(job, future(shards), UNSEEN, now);
        self.jobs.store(state.readers.len() as u64, Ordering::Release);
        ours
    }

    /// A job goes; with what nobody reads any more, to be [forgotten](Self::forget) once the tables have.
    pub(crate) fn leave(&self, job: JobId) -> Vec<Shard> {
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

    /// Gives up the numbers of shards that no table knows by them any more.
    pub(crate) fn forget(&self, orphans: Vec<Shard>) {
        let mut state = self.state();
        orphans.into_iter().for_each(|shard| state.foresight.forget(shard));
        self.jobs.store(state.readers.len() as u64, Ordering::Release);
    }

    /// A job has read so many bytes in all; since it was last heard of it waited so long.
    pub(crate) fn advance(&self, job: JobId, read: u64, waited: Duration) {
        let now = self.now();
        let mut state = self.state();
        let Some(reader) = state.readers.get_mut(&job) else { return };
        reader.waited += waited;
        // Batches are handed out in their order, but a job may be sent back.
        let read = read.max(state.foresight.read(job));
        let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        state.foresight.advance(job, read, now, waited);
        drop(state);
        self.changed.notify_one();
    }

    /// A job begins anew where it has read so many bytes; whether that is no less than before.
    pub(crate) fn go_on(&self, job: JobId, read: u64) -> bool {
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

    /// A fetch ahead of need begins, which is to [end](Self::ended).
    pub(crate) fn begins(&self, shard: Shard) {
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

    /// A fetch ahead of need ended; where it was refused, it is not wanted for a while.
    pub(crate) fn ended(&self, object: ObjectKey, refused: Option<Refusal>) {
        let mut state = self.state();
        // Nobody may want it any more.
        let Some(shard) = state.numbers.get(&object).copied() else { return };
        state.foresight.failed(shard);
        drop(state);
        if let Some(why) = refused {
            self.refuse(shard, why);
        }
        self.changed.notify_one();
    }

    /// A shard is on its way to a tier.
    pub(crate) fn began(&self, shard: Shard) {
        self.state().foresight.began(shard);
    }

    /// The link begins with a shard.
    pub(crate) fn runs(&self, shard: Shard) {
        let now = self.now();
        if let Some(foreseen) = &mut self.state().shards[shard as usize] {
            foreseen.began.get_or_insert(now);
        }
    }

    /// A shard came, and lies in `place`.
    pub(crate) fn arrived(&self, shard: Shard, place: Place) {
        let now = self.now();
        let mut state = self.state();
        let began = state.shards[shard as usize].as_mut().and_then(|known| known.began.take());
        match began {
            // Of shards that come side by side the link brings each from when it was done with the one before.
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

    /// A fetch of a shard ended without it.
    pub(crate) fn failed(&self, shard: Shard) {
        let mut state = self.state();
        if let Some(foreseen) = &mut state.shards[shard as usize] {
            foreseen.began = None;
        }
        state.foresight.failed(shard);
        drop(state);
        self.changed.notify_one();
    }

    /// A shard lies in `place`.
    pub(crate) fn found(&self, shard: Shard, place: Place) {
        self.state().foresight.found(shard, place);
    }

    /// A shard left `place`.
    pub(crate) fn left(&self, shard: Shard, place: Place) {
        self.state().foresight.left(shard, place);
        self.changed.notify_one();
    }

    /// A shard could not be had: it is not wanted for a while.
    pub(crate) fn refuse(&self, shard: Shard, why: Refusal) {
        let until = self.now().saturating_add(REFUSED.as_micros() as u64);
        let mut state = self.state();
        if let Some(Some(foreseen)) = state.shards.get_mut(shard as usize) {
            foreseen.refused = Some(why);
            state.foresight.refuse(shard, true);
            state.refused.insert((until, shard));
        }
    }

    /// The shard that is needed last of these places, later than `than` if that is given, and `may_go`.
    pub(crate) fn last(
        &self,
        places: &[Place],
        than: Option<Moment>,
        may_go: &mut dyn FnMut(Shard) -> bool,
    ) -> Option<Shard> {
        if self.is_idle() {
            return None;
        }
        self.state().foresight.victims(places, than, 1, may_go)?.pop()
    }

    /// What is to be fetched next, or when to look again where that is known.
    pub(crate) fn next(&self) -> Result<Next, Option<Moment>> {
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
        Ok(Next { shard, object, bytes, via, at: *at as usize, due })
    }

    /// When the first of those that were refused is wanted again.
    pub(crate) fn wanted_again(&self) -> Option<Moment> {
        self.state().refused.first().map(|(until, _)| *until)
    }

    /// Notes what went for a fetch.
    pub(crate) fn note_eviction(&self, fetched: ObjectKey, gone: ObjectKey) {
        if self.is_idle() {
            return;
        }
        let state = &mut *self.state();
        let Some(fetched) = state.numbers.get(&fetched) else { return };
        let mut latest = state.log.decisions.iter_mut().rev();
        if let Some(decision) = latest.find(|decision| decision.fetched == *fetched) {
            state.log.evictions += 1;
            // What no job reads has no number.
            decision.went.extend(state.numbers.get(&gone));
        }
    }

    /// What jobs will read in the next so many rounds through their shards, of a node whose cache holds `capacity` bytes, as a trace to
    /// simulate; with what was decided. Costs O(n).
    pub(crate) fn trace(&self, capacity: u64, rounds: u64) -> Trace {
        let at = self.now();
        let state = &mut *self.state();
        let mut jobs = Vec::with_capacity(state.readers.len());
        for (job, reader) in &state.readers {
            let bytes = state.foresight.bytes_of(&reader.shards);
            let mut uses = state.foresight.ahead(*job, bytes.saturating_mul(rounds));
            uses.retain(|one| ours(&state.shards, one.shard));
            jobs.push(simulate::Reader {
                name: reader.name.clone(),
                shards: reader.ours(&state.shards).collect(),
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
        let name = |foreseen: &Option<Foreseen>| {
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

    /// What is foreseen of a cache of `capacity` bytes, and what came of it. Costs O(n).
    pub(crate) fn report(&self, capacity: u64) -> ForecastReport {
        let now = self.now();
        let left = |moment: i64| (moment as f64 - now as f64) / 1e6;
        let state = &mut *self.state();
        let dues = state.dues();
        let State { foresight, readers, shards, .. } = state;
        let mut jobs: Vec<_> = readers
            .iter()
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
                    shards: reader.ours(shards).count(),
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

impl State {
    /// When the next fetch must begin for each job that reads something of what is missing and needed first.
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

    /// What is lacking, where a job waits for more than [`WAITS`] of its time.
    fn lacks(&self, capacity: u64, now: Moment) -> Option<Remedy> {
        let waits = |reader: &Reader| {
            let here = Duration::from_micros(now.saturating_sub(reader.since));
            reader.waited.as_secs_f64() > WAITS * here.as_secs_f64()
        };
        if !self.readers.values().any(waits) {
            return None;
        }
        let frequencies: HashMap<JobId, f64> = self
            .readers
            .iter()
            .map(|(job, reader)| {
                let rate = self.foresight.rate(*job).unwrap_or_default();
                let bytes = self.foresight.bytes_of(&reader.shards);
                (*job, rate / (bytes as f64).max(1.0))
            })
            .collect();
        let shards = (0..).zip(&self.shards).filter_map(|(number, known)| {
            let readers = &known.as_ref().filter(|known| known.is_ours)?.readers;
            let frequency = readers.iter().filter_map(|(job, _)| frequencies.get(job)).sum();
            Some(Mass { bytes: self.foresight.bytes(number), frequency })
        });
        shortfall(&shards.collect::<Vec<_>>(), capacity, self.foresight.bandwidth())
    }

    /// The number of a shard, a new one if it has none.
    fn number(&mut self, object: ObjectKey, bytes: u64) -> Shard {
        if let Some(shard) = self.numbers.get(&object) {
            return *shard;
        }
        let shard = self.foresight.add(bytes);
        self.numbers.insert(object, shard);
        if self.shards.len() <= shard as usize {
            self.shards.resize_with(shard as usize + 1, || None);
        }
        self.foresight.set_apart(shard, true);
        let readers = Vec::new();
        self.shards[shard as usize] =
            Some(Foreseen { object, readers, is_ours: false, began: None, refused: None });
        shard
    }
}
