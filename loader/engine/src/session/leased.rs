//! Batches with `split="dynamic"`: a rank reads the shards it takes from the queue, at its own
//! pace.
//!
//! A shard's samples are read in the turn's order, so that progress is one number, and
//! another rank can continue there. Shards held together are mixed by choosing, for each sample,
//! the one that is next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::leases::{Mark, Sharing, TURN_SAMPLES_MAX};
use forebay_wire::message::Shuffle;
use tokio::sync::{Notify, mpsc, watch};

use super::ahead::Ahead;
use super::assembly::{Assembly, SamplePlace};
use super::awaited::{Awaited, GATHERED};
use super::gather::{Gatherer, Stages};
use super::patience::pause;
use super::producer::Outcome;
use super::{Event, JobData};
use crate::lease::{Joining, Lease, Leases, Member, Name, Taken};
use crate::plan::{Key, permute};

/// Shards that a rank mixes, at most: others wait for each of them at the end of the epoch.
const MIXED_MAX: u32 = 4;

/// Shards that a rank holds beyond those it mixes, while their bytes arrive.
const RESERVED: usize = 1;

/// Largest number of unacknowledged turns. A rank holds a handful, and those it finished while its
/// consumer was busy; no client of ours sends more.
const MARKS_MAX: usize = 4096;

/// Largest number of shards a job has open at once, over all ranks: a handful for each of ten
/// thousand.
const OPEN_MAX: usize = 1 << 16;

/// Acknowledgements of a trainer that its queue has not recorded.
pub(super) struct Acknowledgements {
    /// Number that answers the run itself.
    first: u64,
    pending: Mutex<Pending>,
    heard: Notify,
    /// First batch that its consumer has not finished.
    done: watch::Sender<u64>,
}

#[derive(Default)]
struct Pending {
    marks: BTreeMap<u32, u64>,
    /// Number of the last unanswered acknowledgement.
    number: Option<u64>,
    /// True if the trainer started another run, or left.
    over: bool,
    /// True once the queue is told.
    is_told: bool,
    /// Reason that the queue will not record any more.
    refused: Option<Error>,
}

impl Pending {
    fn merge(&mut self, marks: &[Mark], number: Option<u64>) {
        for mark in marks {
            let upto = self.marks.entry(mark.turn).or_default();
            *upto = mark.upto.max(*upto);
        }
        self.number = self.number.max(number);
    }
}

impl Acknowledgements {
    pub(super) fn new(sharing: &Sharing) -> Self {
        let (pending, heard, done) = <(Mutex<Pending>, Notify, watch::Sender<u64>)>::default();
        Self { first: sharing.number, pending, heard, done }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a trainer's acknowledgement; several together become one for the queue. Returns the
    /// reason if the queue will not record it.
    ///
    /// # Errors
    /// `Invalid` for more marks than a trainer can have.
    pub(super) fn add(&self, number: u64, batch: u64, marks: &[Mark]) -> Result<Option<Error>> {
        let mut pending = self.lock();
        if let Some(error) = &pending.refused {
            return Ok(Some(error.clone()));
        }
        pending.merge(marks, Some(number));
        if pending.marks.len() > MARKS_MAX {
            return Err(Error::new(
                ErrorKind::Invalid,
                "more shards are acknowledged than are held",
            )
            .at("shards", pending.marks.len()));
        }
        drop(pending);
        self.reach(batch);
        self.heard.notify_one();
        Ok(None)
    }

    /// Ends a run that failed before its queue was told; returns the number to answer.
    pub(super) fn fail(&self, error: &Error) -> Option<u64> {
        let is_told = self.lock().is_told;
        (!is_told).then(|| self.refuse(error, Some(self.first))).flatten()
    }

    /// Ends recording; returns the number to answer.
    fn refuse(&self, error: &Error, number: Option<u64>) -> Option<u64> {
        let mut pending = self.lock();
        pending.refused = Some(error.clone());
        pending.marks.clear();
        pending.number.take().max(number)
    }

    fn reach(&self, batch: u64) {
        self.done.send_if_modified(|done| {
            let is_further = batch > *done;
            *done = batch.max(*done);
            is_further
        });
    }

    /// Takes all marks, the number to answer, and true if it is the last.
    fn take(&self) -> (Vec<Mark>, Option<u64>, bool) {
        let mut pending = self.lock();
        let marks = std::mem::take(&mut pending.marks).into_iter();
        let marks = marks.map(|(turn, upto)| Mark { turn, upto }).collect();
        (marks, pending.number.take(), pending.over)
    }

    fn end(&self) {
        self.lock().over = true;
        self.heard.notify_one();
    }
}

/// A trainer's side of a run; dropping it ends the run.
pub(super) struct Trainer {
    pub(super) run: u64,
    pub(super) acknowledgements: Arc<Acknowledgements>,
}

impl Drop for Trainer {
    fn drop(&mut self) {
        self.acknowledgements.end();
    }
}

/// Sends a trainer's acknowledgements and heartbeats to the queue, and returns its shards when it
/// leaves. Outlives the run, which may end with an error while its consumer still has progress to
/// acknowledge.
async fn tell(
    (session, job, tenant): (Option<u64>, String, Option<String>),
    member: Arc<Member>,
    acknowledgements: Arc<Acknowledgements>,
    run: u64,
    events: mpsc::Sender<Event>,
) {
    let heartbeat = member.heartbeat().unwrap_or(Duration::MAX);
    loop {
        let (marks, number, over) = acknowledgements.take();
        match member.acknowledge(&marks).await {
            // A trainer that left needs no answer.
            Ok(place) => {
                if let Some(number) = number {
                    let _ = events.send(Event::Acknowledged { run, number, place }).await;
                }
            }
            Err(error) if error.kind() == ErrorKind::Unavailable && !over => {
                tracing::warn!(session, job, tenant, %error, "an acknowledgement is not recorded yet");
                acknowledgements.lock().merge(&marks, number);
                pause().await;
                continue;
            }
            Err(error) => {
                if let Some(number) = acknowledgements.refuse(&error, number) {
                    let error = error.clone();
                    let _ = events.send(Event::Unrecorded { run, number, error }).await;
                }
                let _ = events.send(Event::Failed { run, error }).await;
                return;
            }
        }
        if over {
            if let Err(error) = member.leave().await {
                tracing::warn!(session, job, tenant, %error, "shards held by a job return only when it expires");
            }
            return;
        }
        let _ = tokio::time::timeout(heartbeat, acknowledgements.heard.notified()).await;
    }
}

/// A shard being read.
#[derive(Debug)]
struct Reading {
    turn: u32,
    shard: u32,
    /// Next sample, in the turn's order.
    next: u64,
    samples: u64,
}

/// Maker of the batches of one run.
pub(super) struct Leased {
    job: Arc<JobData>,
    member: Arc<Member>,
    gatherer: Gatherer,
    ahead: Ahead,
    key: Key,
    /// Number of mixed shards.
    mixed: usize,
    /// Shards held from before, not opened yet.
    before: Vec<Lease>,
    reading: Vec<Reading>,
    /// Next turn to be dealt, as far as known.
    next_turn: u32,
    /// The queue's answer when it last had nothing.
    dry: Option<Taken>,
    index: u64,
    /// First batch that the consumer has not finished.
    done: watch::Receiver<u64>,
    drawn: u64,
    errors: Vec<Error>,
    outcome: Arc<OnceLock<Outcome>>,
}

impl Leased {
    /// Joins the queue, and reports its state.
    pub(super) async fn begin(
        job: Arc<JobData>,
        run: u64,
        sharing: Sharing,
        (leases, owner): (Arc<dyn Leases>, u64),
        acknowledgements: Arc<Acknowledgements>,
        events: &mpsc::Sender<Event>,
    ) -> Result<Self> {
        check(&job, &sharing)?;
        let Sharing { group, rank, world_size, epoch, take, member: number, batch: index, .. } =
            sharing;
        let shards = job.joins.planned();
        let who = Joining {
            member: number,
            rank,
            world_size,
            shards,
            from: sharing.from,
            log: sharing.log,
            acknowledged: sharing.acknowledged,
            received: sharing.received,
            fresh: fresh(),
        };
        let name = Name { owner, group, epoch, take };
        let (member, before, place) = Member::join(leases, name, &who).await?;
        let member = Arc::new(member);
        acknowledgements.reach(sharing.done);
        let done = acknowledgements.done.subscribe();
        let tenant = job.store.tenant().map(str::to_owned);
        let whose = (job.store.session(), job.spec.job.clone(), tenant);
        acknowledgements.lock().is_told = true;
        tokio::spawn(tell(whose, member.clone(), acknowledgements, run, events.clone()));
        // A trainer that left needs no answer.
        let number = sharing.number;
        let _ = events.send(Event::Acknowledged { run, number, place: place.clone() }).await;
        let order = &job.spec.order;
        let mixed = match order.shuffle {
            Shuffle::None => 1,
            Shuffle::Window | Shuffle::Global => {
                order.window.div_ceil(world_size).clamp(1, MIXED_MAX)
            }
        };
        Ok(Self {
            gatherer: Gatherer::new(job.clone(), run),
            ahead: Ahead::new(job.clone(), u64::from(mixed), None),
            key: Key::new(order.seed).with(epoch),
            mixed: mixed as usize,
            before,
            reading: Vec::new(),
            next_turn: place.next,
            dry: None,
            index,
            done,
            drawn: 0,
            errors: Vec::new(),
            outcome: Arc::default(),
            member,
            job,
        })
    }

    /// Returns the cell that holds the outcome once [`Leased::next`] has returned `None`.
    pub(super) fn outcome(&self) -> Arc<OnceLock<Outcome>> {
        self.outcome.clone()
    }

    /// Returns the next batch, located, arrived and with a slot; `None` once every rank's batches
    /// are acknowledged.
    pub(super) async fn next(&mut self) -> Result<Option<Assembly>> {
        // Batches ready ahead are withheld from others: one is with the consumer, and as many wait
        // as it requested.
        let (index, ahead) = (self.index, u64::from(self.job.spec.prefetch));
        let wanted = |done: &u64| index <= done.saturating_add(ahead);
        let gone = |_| Error::new(ErrorKind::Closed, "the trainer is gone");
        self.done.wait_for(wanted).await.map_err(gone)?;
        let mut stages = Stages::begin();
        loop {
            let places = self.places(&mut stages).await?;
            if !places.is_empty() {
                let (index, errors) = (self.index, std::mem::take(&mut self.errors));
                self.index += 1;
                return self.gatherer.gather(index, &places, errors, stages).await.map(Some);
            }
            match self.dry {
                // Without a limit: the consumer's own timeout bounds it.
                Some(Taken::Nothing { position }) => {
                    let _listed = self.job.waits.begin(GATHERED, Awaited::Queue);
                    self.member.changed(position).await?;
                    stages.resume();
                }
                _ => {
                    let errors = std::mem::take(&mut self.errors);
                    let (batches, samples) = (self.index, self.drawn);
                    // Set once: no call follows `None`.
                    let _ = self.outcome.set(Outcome { batches, samples, errors, counts: None });
                    return Ok(None);
                }
            }
        }
    }

    /// Chooses the samples of a batch; fewer, or none, where the queue is empty for now.
    async fn places(&mut self, stages: &mut Stages) -> Result<Vec<SamplePlace>> {
        self.dry = None;
        let mut places = Vec::new();
        while places.len() < self.job.spec.order.batch_size as usize {
            self.fill(stages).await?;
            let Some(place) = self.draw() else { break };
            places.push(place);
        }
        Ok(places)
    }

    /// Takes shards up to the mixed and reserved number, as available.
    async fn fill(&mut self, stages: &mut Stages) -> Result<()> {
        while self.reading.len() < self.mixed + RESERVED && self.dry.is_none() {
            let lease = match self.before.pop() {
                Some(lease) => lease,
                None => {
                    let listed = self.job.waits.begin(GATHERED, Awaited::Queue);
                    let taken = self.member.take().await?;
                    drop(listed);
                    stages.resume();
                    match taken {
                        Taken::Lease { lease, next } => {
                            self.next_turn = next;
                            lease
                        }
                        dry => {
                            self.dry = Some(dry);
                            return Ok(());
                        }
                    }
                }
            };
            let reading = self.open(lease, stages).await?;
            self.member.count(reading.turn, reading.samples).await?;
            stages.resume();
            if reading.next < reading.samples {
                self.reading.push(reading);
            }
            self.look_ahead();
        }
        Ok(())
    }

    async fn open(&mut self, lease: Lease, stages: &mut Stages) -> Result<Reading> {
        let shard = self.shard(lease.turn);
        let samples = match &self.job.spec.counts {
            Some(counts) => counts[shard as usize],
            None => self.learn(shard, stages).await?,
        };
        if samples >= TURN_SAMPLES_MAX {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a shard has too many samples for split='dynamic'",
            )
            .at("url", self.job.url(shard))
            .at("samples", samples)
            .advise("leave split unset"));
        }
        Ok(Reading { turn: lease.turn, shard, next: lease.from, samples })
    }

    /// Counts a shard without a manifest: it must arrive to its end.
    async fn learn(&mut self, shard: u32, stages: &mut Stages) -> Result<u64> {
        let (open, progress) = self.gatherer.open(shard, u64::MAX, stages).await?;
        match progress {
            Ok(progress) if progress.samples == 0 => {
                // Nothing of it will be gathered.
                self.errors.extend(self.gatherer.measure(shard, 0, stages).await?);
                Ok(0)
            }
            Ok(progress) => Ok(progress.samples),
            // A broken tar ends at its last good sample; the fault travels with the next batch.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                match open.verdict().is_wrong() {
                    true => self.job.verdicts.note(shard, &open, self.index),
                    false => self.errors.push(error),
                }
                Ok(open.progress().samples)
            }
            Err(error) => Err(error),
        }
    }

    /// Draws the next sample from the mixed shards, with probability proportional to their
    /// remaining samples.
    fn draw(&mut self) -> Option<SamplePlace> {
        let mixed = self.reading.len().min(self.mixed);
        let left = |reading: &Reading| reading.samples - reading.next;
        let total: u64 = self.reading[..mixed].iter().map(left).sum();
        if total == 0 {
            return None;
        }
        let mut at = permute(self.key.with(self.drawn), 0, total);
        self.drawn += 1;
        let chosen = self.reading.iter().position(|reading| {
            let here = at < left(reading);
            if !here {
                at -= left(reading);
            }
            here
        });
        let chosen = chosen.expect("the draw is below the sum");
        let reading = &mut self.reading[chosen];
        let Reading { turn, shard, next: place, samples } = *reading;
        reading.next += 1;
        if reading.next == samples {
            self.reading.remove(chosen);
        }
        let ordinal = match self.job.spec.order.shuffle {
            Shuffle::None => place,
            Shuffle::Window | Shuffle::Global => {
                permute(self.key.with(u64::from(shard)), place, samples)
            }
        };
        let ordinal = self.job.place(shard, ordinal);
        Some(SamplePlace { position: Mark::position(turn, place), valid: true, shard, ordinal })
    }

    /// Returns the shard of a turn.
    fn shard(&self, turn: u32) -> u32 {
        let shards = u64::from(self.job.joins.planned());
        match self.job.spec.order.shuffle {
            Shuffle::None => turn,
            Shuffle::Window | Shuffle::Global => {
                // No shard has this number, so the key of the order differs from every shard's.
                let to = permute(self.key.with(u64::MAX), u64::from(turn), shards);
                u32::try_from(to).expect("a permutation of u32 stays in u32")
            }
        }
    }

    /// Fetches held shards, and those that a rank of this node will hold next.
    fn look_ahead(&mut self) {
        let mut upcoming: Vec<_> = self.reading.iter().map(|reading| reading.shard).collect();
        if self.member.is_near() {
            let turns = self.next_turn..self.job.joins.planned();
            let next = turns.take(self.ahead.limit()).map(|turn| self.shard(turn));
            // A shard of which nothing is read is not fetched.
            upcoming.extend(next.filter(|shard| self.job.reads(*shard)));
        }
        self.ahead.look(upcoming);
    }
}

/// Rejects jobs that cannot use a shared queue.
fn check(job: &JobData, sharing: &Sharing) -> Result<()> {
    let invalid = |what: &str| Err(Error::new(ErrorKind::Invalid, what));
    if !job.mixture.is_empty() {
        return invalid("split='dynamic' does not support mixtures");
    }
    if job.spec.order.shuffle == Shuffle::Global || job.spec.order.epoch_samples.is_some() {
        return invalid("split='dynamic' supports neither a global shuffle nor epoch_samples");
    }
    if sharing.world_size == 0 || sharing.rank >= sharing.world_size {
        return invalid("rank is not below world_size");
    }
    let open = sharing.from.as_ref().map_or(0, |from| from.open.len());
    if open.max(sharing.acknowledged.len()).max(sharing.received.len()) > OPEN_MAX {
        return invalid("more shards are open at once than any job reads");
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if !(1..=128).contains(&sharing.group.len()) || !sharing.group.bytes().all(is_plain) {
        return invalid("a group's name is 1 to 128 letters, digits, `-` and `_`");
    }
    Ok(())
}

/// Returns a unique name for a log.
fn fresh() -> String {
    use std::hash::{BuildHasher, RandomState};
    // Each state is seeded by the system's randomness.
    let half = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", half(), half())
}
