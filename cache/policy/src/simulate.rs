//! A node on a clock of its own: jobs that read, a link that brings one shard after the other, a
//! cache of so many bytes.
//!
//! Decisions are made by the node's own code, [`Foresight`] or an [`evict`](crate::evict) policy.
//! The rest is minimal: a job reads at its own speed while all its open shards are cached.

mod agreement;
pub mod cluster;
mod limits;
mod orders;
#[cfg(test)]
mod tests;

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::evict::{Evict, List, Newcomer, Policy};
use crate::foresight::{
    Changed, Foresight, Future, Moment, NOW, PartitionNumber, Presence, Shard, Use, Walk,
};
pub use agreement::Agreement;

/// Uses that a job without foresight fetches ahead, as a daemon does.
pub const AHEAD: u64 = 8;

/// The cache: one place.
const CACHE: PartitionNumber = 0;

/// Microseconds of a second.
const SECOND: f64 = 1e6;

/// Workload of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// Bytes of the cache.
    pub capacity: u64,
    /// Bytes a second that the link brings.
    pub bandwidth: f64,
    /// Bytes of each shard; its number is its place here.
    pub shards: Vec<u64>,
    /// Jobs that read them.
    pub jobs: Vec<Reader>,
    /// Epochs of each job that are not counted: those that fill the cache.
    #[serde(default)]
    pub warm_epochs: u64,
    /// Variation of steps and fetches.
    #[serde(default)]
    pub jitter: Jitter,
    /// Shards that are in the cache at the beginning.
    #[serde(default)]
    pub here: Vec<Shard>,
    /// Names of the shards, in a recorded trace.
    #[serde(default)]
    pub names: Vec<String>,
    /// Time of the recording, by the clock of the decisions.
    #[serde(default)]
    pub at: Moment,
    /// The node's decisions by then, the oldest first.
    #[serde(default)]
    pub decisions: Vec<Decision>,
}

/// A job.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reader {
    /// Name.
    pub name: String,
    /// The shards that it reads.
    pub shards: Vec<Shard>,
    /// Bytes a second that it reads while it does not wait.
    pub rate: f64,
    /// In which order.
    #[serde(default)]
    pub order: Order,
    /// Shards that it has open at once.
    #[serde(default = "one")]
    pub window: usize,
    /// Number of epochs.
    pub epochs: u64,
    /// Seed of its orders.
    #[serde(default)]
    pub seed: u64,
    /// Seconds after the beginning at which it comes.
    #[serde(default)]
    pub joins: f64,
    /// Recorded reads: order, window, epochs and seed are then unused.
    #[serde(default)]
    pub uses: Vec<Use>,
}

fn one() -> usize {
    1
}

/// The order of a job's epochs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// As they are listed.
    Fixed,
    /// Drawn anew for each epoch.
    #[default]
    Reshuffled,
    /// Drawn anew for each epoch, and of so many shards one is read.
    Drawn {
        /// Number of shards of which one is read.
        one_in: u32,
    },
}

/// Variation of steps and fetches; a factor drawn evenly on a logarithmic scale.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Jitter {
    /// A step takes up to so many times as long, or as short: 1.3.
    pub step: f64,
    /// A fetch likewise: 3.
    pub fetch: f64,
    /// Seed.
    pub seed: u64,
}

/// Results, without the warm-up epochs.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Bytes that jobs read.
    pub read_bytes: u64,
    /// Bytes that were fetched.
    pub origin_bytes: u64,
    /// The share of what jobs read that was not fetched for it; 0 where more was fetched than was
    /// read.
    pub hit_ratio: f64,
    /// Utilisation by job: the share of time in which it did not wait.
    pub busy: Vec<(String, f64)>,
    /// Seconds that it covers.
    pub seconds: f64,
    /// Fetches and their evictions, in order; from the beginning.
    #[serde(skip)]
    pub decisions: Vec<Decision>,
}

impl Report {
    /// The share of the time in which a job did not wait, of all jobs alike.
    #[must_use]
    pub fn busy_share(&self) -> f64 {
        self.busy.iter().map(|(_, busy)| busy).sum::<f64>() / (self.busy.len() as f64).max(1.0)
    }
}

/// A fetch that began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Time.
    pub at: Moment,
    /// The fetched shard.
    pub fetched: Shard,
    /// Shards evicted for it.
    pub went: Vec<Shard>,
}

/// Plays a trace to its end. Any other policy than `clairvoyant` has [`AHEAD`] uses of each job
/// fetched ahead.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a trace that makes no sense, [`ErrorKind::Full`] if the cache does
/// not hold what jobs have open at once.
pub fn simulate(trace: &Trace, evict: Evict) -> Result<Report> {
    trace.check()?;
    simulate_with(trace, evict, &|job| trace.future(job))
}

/// Reads of each job, by its number; called more than once.
pub type Futures<'f> = dyn Fn(usize) -> Box<dyn Future> + 'f;

/// The same for jobs whose futures somebody else makes; of their orders in the trace nothing is
/// read then.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_with(trace: &Trace, evict: Evict, futures: &Futures<'_>) -> Result<Report> {
    trace.check()?;
    Node::new(trace, evict, futures).run()
}

impl Trace {
    /// Checks the trace.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::new(ErrorKind::Invalid, what.to_owned()));
        let is_rate = |rate: f64| rate.is_finite() && rate >= 1.0;
        if !is_rate(self.bandwidth) {
            return wrong("a link brings at least one byte a second");
        }
        if self.jobs.is_empty() {
            return wrong("there is no job");
        }
        let bytes = |shard: &Shard| self.shards.get(*shard as usize).copied();
        let here = self.here.iter().try_fold(0_u64, |sum, shard| sum.checked_add(bytes(shard)?));
        if here.is_none_or(|here| here > self.capacity) {
            return wrong(
                "what is in the cache at the beginning does not fit, or is not in the list",
            );
        }
        let is_factor = |factor: f64| factor == 0.0 || (factor.is_finite() && factor >= 1.0);
        if !is_factor(self.jitter.step) || !is_factor(self.jitter.fetch) {
            return wrong("jitter is a factor of 1 or more");
        }
        for job in &self.jobs {
            let named = |what: &str| {
                Err(Error::new(ErrorKind::Invalid, what.to_owned()).at("job", &job.name))
            };
            if !is_rate(job.rate) || !job.joins.is_finite() || job.joins < 0.0 {
                return named("a job reads at least a byte a second, and comes at some second");
            }
            if job.shards.iter().any(|shard| *shard as usize >= self.shards.len()) {
                return named("a job reads a shard that is not in the list");
            }
            let known = |one: &Use| (one.shard as usize) < self.shards.len() && one.start < one.end;
            if !job.uses.iter().all(known) || !job.uses.is_sorted_by_key(|one| one.start) {
                return named(
                    "a job's uses are not in order, or of shards that are not in the list",
                );
            }
            let mut seen = vec![false; self.shards.len()];
            if job.shards.iter().any(|shard| std::mem::replace(&mut seen[*shard as usize], true)) {
                return named("a job reads a shard twice in an epoch");
            }
            if job.shards.iter().any(|shard| self.shards[*shard as usize] == 0) {
                return named("a shard has no bytes");
            }
            if job.epochs <= self.warm_epochs && job.uses.is_empty() {
                return named("none of a job's epochs is counted");
            }
        }
        Ok(())
    }
}

/// A job under way.
struct Running<'t> {
    reader: &'t Reader,
    walk: Walk,
    /// Shards of uses under way of which it has read nothing yet.
    begun: Vec<Shard>,
    /// Position at which it needs another shard or finishes one.
    target: u64,
    /// Time it arrives there; none while it waits.
    until: Option<Moment>,
    /// Since when it waits, and for how long it did.
    waits: Moment,
    waited: u64,
    /// Uses that are claimed: up to this one.
    claimed: u64,
    /// Since when it counts, and what it had read then.
    counted: Option<(Moment, u64)>,
    has_joined: bool,
    /// Time it ended.
    done: Option<Moment>,
}

/// Eviction of shards known only by past use.
struct ByUse {
    policy: Box<dyn Policy>,
    /// Shards not admitted, evicted before all others.
    passing: List,
    passes: Vec<bool>,
    /// True for shards fetched for their first use, which is no second one.
    fresh: Vec<bool>,
    /// Jobs that are about to need a shard, or have it open.
    claims: Vec<u32>,
    /// Jobs that have it open.
    open: Vec<u32>,
}

struct Node<'t> {
    trace: &'t Trace,
    futures: &'t Futures<'t>,
    jobs: Vec<Running<'t>>,
    used: u64,
    foresight: Foresight,
    by_use: Option<ByUse>,
    /// The shard in flight, with its start and end.
    arriving: Option<(Shard, Moment, Moment)>,
    now: Moment,
    random: fastrand::Rng,
    /// Bytes fetched and read while that counts.
    fetched: u64,
    read: u64,
    decisions: Vec<Decision>,
}

impl<'t> Node<'t> {
    fn new(trace: &'t Trace, evict: Evict, futures: &'t Futures<'t>) -> Self {
        let mut foresight = Foresight::new(trace.bandwidth);
        for bytes in &trace.shards {
            foresight.add(*bytes);
        }
        let shards = trace.shards.len();
        let by_use = match evict {
            Evict::Clairvoyant => None,
            evict => Some(ByUse {
                policy: evict.policy(),
                passing: List::default(),
                passes: vec![false; shards],
                fresh: vec![false; shards],
                claims: vec![0; shards],
                open: vec![0; shards],
            }),
        };
        let mut by_use = by_use;
        for shard in &trace.here {
            foresight.found(*shard, CACHE);
            if let Some(by_use) = &mut by_use {
                by_use.enter(*shard, trace.shards[*shard as usize], false);
                by_use.fresh[*shard as usize] = false;
            }
        }
        let used = trace.here.iter().map(|shard| trace.shards[*shard as usize]).sum();
        let running = |(at, reader): (usize, &'t Reader)| Running {
            reader,
            walk: Walk::new(futures(at)),
            begun: Vec::new(),
            target: 0,
            until: None,
            waits: NOW,
            waited: 0,
            claimed: 0,
            counted: None,
            has_joined: false,
            done: None,
        };
        Self {
            futures,
            jobs: trace.jobs.iter().enumerate().map(running).collect(),
            used,
            foresight,
            by_use,
            arriving: None,
            now: NOW,
            random: fastrand::Rng::with_seed(trace.jitter.seed),
            fetched: 0,
            read: 0,
            decisions: Vec::new(),
            trace,
        }
    }

    fn run(mut self) -> Result<Report> {
        loop {
            self.join();
            self.go_on();
            self.fetch();
            let Some(next) = self.next_event() else {
                if self.jobs.iter().all(|job| job.done.is_some()) {
                    break;
                }
                let what = "the cache does not hold what its jobs have open at once";
                return Err(Error::new(ErrorKind::Full, what)
                    .at("capacity", self.trace.capacity)
                    .advise("give it more bytes, or jobs smaller windows"));
            };
            self.now = next;
            self.arrive();
            self.finish_steps();
        }
        Ok(self.report())
    }

    /// Jobs whose time has come.
    fn join(&mut self) {
        for at in 0..self.jobs.len() {
            let job = &mut self.jobs[at];
            if job.has_joined || job.joins() > self.now {
                continue;
            }
            job.has_joined = true;
            if self.by_use.is_none() {
                let future = (self.futures)(at);
                self.foresight.join(at as u64, future, job.reader.rate, self.now);
            }
            self.begin_and_end(at);
        }
    }

    /// Begins and ends the uses of a job that it has come to; it waits until all that are under way
    /// are here.
    fn begin_and_end(&mut self, at: usize) {
        let job = &mut self.jobs[at];
        (job.until, job.waits) = (None, self.now);
        let Changed { begun, ended } = job.walk.to(job.target);
        job.begun = begun;
        match job.walk.turn() {
            Some(target) => job.target = target,
            None => {
                job.done = Some(self.now);
                self.foresight.leave(at as u64);
            }
        }
        let Some(by_use) = &mut self.by_use else { return };
        for shard in ended {
            by_use.claims[shard as usize] -= 1;
            by_use.open[shard as usize] -= 1;
        }
        let claimed = job.walk.next() + AHEAD;
        for index in job.claimed..claimed {
            if let Some(one) = job.walk.at(index) {
                by_use.claims[one.shard as usize] += 1;
            }
        }
        job.claimed = claimed;
        for shard in &job.begun {
            by_use.open[*shard as usize] += 1;
        }
    }

    /// Jobs that have all that they need read on.
    fn go_on(&mut self) {
        for job in self.jobs.iter_mut().filter(|job| job.has_joined && job.done.is_none()) {
            let is_here =
                |(_, shard): (u64, Shard)| self.foresight.presence(shard) == Presence::Here;
            if job.until.is_some() || !job.walk.open().all(is_here) {
                continue;
            }
            let took = (job.target - job.walk.read()) as f64 / job.reader.rate * SECOND;
            let took = took * factor(&mut self.random, self.trace.jitter.step);
            job.until = Some(self.now + took as u64);
            job.waited = self.now - job.waits;
            if job.walk.read() >= self.trace.warm_epochs * self.trace.epoch_bytes(job.reader) {
                job.counted.get_or_insert((self.now, job.walk.read()));
            }
            let begun = std::mem::take(&mut job.begun);
            if let Some(by_use) = &mut self.by_use {
                begun.into_iter().for_each(|shard| by_use.used(shard));
            }
        }
    }

    /// Begins to fetch, if there is something to fetch and the link is free.
    fn fetch(&mut self) {
        while self.arriving.is_none() {
            let chosen = match self.by_use.take() {
                None => self.foreseen(),
                Some(mut by_use) => {
                    let chosen = self.upcoming(&mut by_use);
                    self.by_use = Some(by_use);
                    chosen
                }
            };
            let Some((shard, went)) = chosen else { return };
            self.begin(shard);
            let bytes = self.trace.shards[shard as usize];
            let took = bytes as f64 / self.trace.bandwidth * SECOND;
            let took = (took * factor(&mut self.random, self.trace.jitter.fetch)) as u64;
            self.arriving = Some((shard, self.now, self.now + took));
            if self.counts() {
                self.fetched += bytes;
            }
            self.decisions.push(Decision { at: self.now, fetched: shard, went });
        }
    }

    /// Returns the next fetch by jobs' future reads, and its evictions.
    fn foreseen(&mut self) -> Option<(Shard, Vec<Shard>)> {
        let (needed, shard) = self.foresight.wanted()?;
        let short = self.trace.shards[shard as usize].saturating_sub(self.free());
        if short == 0 {
            return Some((shard, Vec::new()));
        }
        if self.foresight.due().is_none_or(|due| due > self.now) {
            return None;
        }
        let went = self.foresight.victims(&[CACHE], Some(needed), short, &mut |_| true)?;
        went.iter().for_each(|gone| self.give_up(*gone));
        Some((shard, went))
    }

    /// The same by what is next, and how shards were used.
    fn upcoming(&mut self, by_use: &mut ByUse) -> Option<(Shard, Vec<Shard>)> {
        let mut next: Option<(u64, Shard, bool)> = None;
        for job in self.jobs.iter_mut().filter(|job| job.has_joined && job.done.is_none()) {
            let is_missing = |shard: Shard| self.foresight.presence(shard) == Presence::Missing;
            // Awaited shards first.
            let waits_for = job.walk.open().filter(|(_, shard)| is_missing(*shard)).min();
            let next_use = job.walk.next();
            let ahead = (next_use..next_use + AHEAD).find_map(|index| {
                let shard = job.walk.at(index)?.shard;
                is_missing(shard).then_some((index + 1 - next_use, shard))
            });
            let first = waits_for.map(|(_, shard)| (0, shard)).or(ahead);
            if let Some((ahead, shard)) = first
                && next.is_none_or(|(least, ..)| ahead < least)
            {
                next = Some((ahead, shard, ahead == 0));
            }
        }
        let (_, shard, waits) = next?;
        let bytes = self.trace.shards[shard as usize];
        let passes = !by_use.policy.admits(self.free() >= bytes);
        let mut went = Vec::new();
        while self.free() < bytes {
            let gone = by_use.victim(passes, waits, &self.foresight)?;
            self.give_up(gone);
            went.push(gone);
        }
        by_use.enter(shard, bytes, passes);
        Some((shard, went))
    }

    fn free(&self) -> u64 {
        self.trace.capacity - self.used
    }

    /// Begins to fetch a shard, for which there is room.
    fn begin(&mut self, shard: Shard) {
        self.used += self.trace.shards[shard as usize];
        assert!(self.used <= self.trace.capacity, "over budget");
        self.foresight.began(shard);
    }

    /// Gives a shard up.
    fn give_up(&mut self, shard: Shard) {
        self.used -= self.trace.shards[shard as usize];
        self.foresight.left(shard, CACHE);
    }

    fn next_event(&self) -> Option<Moment> {
        let steps = self.jobs.iter().filter_map(|job| job.until);
        let joins = self.jobs.iter().filter(|job| !job.has_joined).map(Running::joins);
        let next = steps.chain(joins).chain(self.arriving.map(|(_, _, until)| until)).min();
        // A due fetch waits for an eviction already.
        let due = self.by_use.is_none().then(|| self.foresight.due()).flatten();
        let due = due.filter(|due| self.arriving.is_none() && *due > self.now);
        // Nobody is woken if nothing else is to happen.
        next.map(|next| due.map_or(next, |due| due.min(next)))
    }

    fn arrive(&mut self) {
        if let Some((shard, since, until)) = self.arriving
            && until <= self.now
        {
            self.arriving = None;
            self.foresight.arrived(shard, until - since, CACHE);
        }
    }

    /// Returns true once every present job has passed its warm-up epochs.
    fn counts(&self) -> bool {
        let is_warm = |job: &Running<'_>| !job.has_joined || job.counted.is_some();
        self.jobs.iter().all(is_warm)
    }

    /// Ends the steps whose time has come.
    fn finish_steps(&mut self) {
        let counts = self.counts();
        for at in 0..self.jobs.len() {
            let job = &mut self.jobs[at];
            if job.until.is_none_or(|until| until > self.now) {
                continue;
            }
            if counts {
                self.read += job.target - job.walk.read();
            }
            let (read, waited) = (job.target, job.waited);
            self.begin_and_end(at);
            if self.by_use.is_none() && self.jobs[at].done.is_none() {
                self.foresight.advance(at as u64, read, self.now, waited);
            }
        }
    }

    fn report(self) -> Report {
        let mut busy = Vec::new();
        let (read, mut since) = (self.read, self.now);
        for job in &self.jobs {
            let (from, before) = job.counted.unwrap_or((self.now, job.walk.read()));
            let bytes = job.walk.read() - before;
            let whole = (job.done.unwrap_or(self.now) - from) as f64 / SECOND;
            let busy_for = bytes as f64 / job.reader.rate;
            // Moments are whole microseconds.
            busy.push((job.reader.name.clone(), (busy_for / whole.max(1e-6)).min(1.0)));
            since = since.min(from);
        }
        Report {
            read_bytes: read,
            origin_bytes: self.fetched,
            hit_ratio: (1.0 - self.fetched as f64 / (read as f64).max(1.0)).max(0.0),
            busy,
            seconds: (self.now - since) as f64 / SECOND,
            decisions: self.decisions,
        }
    }
}

impl Running<'_> {
    fn joins(&self) -> Moment {
        (self.reader.joins * SECOND) as u64
    }
}

impl ByUse {
    fn used(&mut self, shard: Shard) {
        let is_first = std::mem::take(&mut self.fresh[shard as usize]);
        if !is_first && !self.passes[shard as usize] {
            self.policy.hit(shard);
        }
    }

    fn enter(&mut self, shard: Shard, bytes: u64, passes: bool) {
        (self.passes[shard as usize], self.fresh[shard as usize]) = (passes, true);
        if passes {
            self.passing.push(shard);
        } else {
            self.policy.insert(Newcomer { slot: shard, identity: u64::from(shard), bytes });
        }
    }

    /// Takes the shard out that goes first for one that passes or stays, and for which a job waits
    /// or not: what others are about to need goes only for what is needed now.
    fn victim(&mut self, passes: bool, waits: bool, node: &Foresight) -> Option<Shard> {
        let is_here = |shard: Shard| node.presence(shard) == Presence::Here;
        for needed in [&self.claims, &self.open].into_iter().take(1 + usize::from(waits)) {
            let mut may_go = |shard: Shard| needed[shard as usize] == 0 && is_here(shard);
            if let Some(shard) = self.passing.oldest_that(&mut may_go) {
                self.passing.remove(shard);
                return Some(shard);
            }
            if (waits || !passes)
                && let Some(shard) = self.policy.victim(&mut may_go)
            {
                self.policy.remove(shard, true);
                return Some(shard);
            }
        }
        None
    }
}

/// A factor between 1/`most` and `most`, whose mean is 1.
fn factor(random: &mut fastrand::Rng, most: f64) -> f64 {
    if most <= 1.0 {
        return 1.0;
    }
    let log = most.ln();
    // The mean of e^x for x drawn evenly in ±ln most.
    let mean = (most - most.recip()) / (2.0 * log);
    ((random.f64() * 2.0 - 1.0) * log).exp() / mean
}
