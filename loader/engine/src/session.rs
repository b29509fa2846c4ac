//! One job: it plays epochs into slots until its trainer leaves.
//!
//! A session can be dropped at any instant. Every task of it dies with it, every span it lent
//! returns to its arena, and memory the kernel still writes stays alive in the I/O engine.

mod ahead;
mod assembly;
mod awaited;
mod delivery;
mod excerpts;
mod foresee;
mod gather;
mod joined;
mod leased;
mod located;
mod look;
mod patience;
mod producer;
mod room;
mod shared_memory;
mod slab_memory;
mod slots;
mod verdicts;

use std::os::fd::OwnedFd;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Options;
use forebay_store::{ShardHandle, Store};
use forebay_uring::Region;
use forebay_wire::leases::{self, Mark, Sharing};
use forebay_wire::message::{
    self, Batch, Begin, Binning, Chosen, Extent, Joined, Mixture, Open, Opened, PartsEstimate,
    Picked, RunEnd,
};
use futures::FutureExt;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::filter::{Choice, Choices};
use crate::lease::Leases;
use crate::plan::{self, Bins, Epoch, Lengths, Share};
use awaited::Waits;
use delivery::{pick, play, share};
use excerpts::{Excerpts, Reading};
use foresee::Outlook;
use joined::Joins;
use leased::{Acknowledgements, Leased, Trainer};
use located::Located;
use patience::Patience;
use producer::Outcome;
use room::Holding;
pub use slab_memory::{Grant, SlabMemory};
pub use slots::Memory;
use slots::Slots;
use verdicts::Verdicts;

/// Events a connection may lag behind; slots bound the batches, so this only smooths.
const EVENTS: usize = 4;

/// Consecutive failures of a shard through other jobs' files before it counts as this job's own
/// failure.
const OTHERS: u32 = 8;

/// Events of a session for its trainer.
#[derive(Debug)]
pub enum Event {
    /// A new slab to map.
    Slab {
        /// Number of the slab.
        slab: u32,
        /// Memory of the slab.
        region: Arc<Region>,
        /// Batches it is sized for, or [`forebay_wire::message::NO_OTHERS`].
        batches: u32,
    },
    /// Memory of a tier to map, which members may lie in.
    Memory {
        /// Number of the memory.
        memory: u32,
        /// The memory.
        region: Arc<Region>,
        /// To be held by the trainer while it reads there.
        line: OwnedFd,
    },
    /// A batch in a slot.
    Batch {
        /// The batch.
        batch: Box<Batch>,
        /// Byte offset of each sample in its shard.
        offsets: Vec<u64>,
    },
    /// The run read every shard, and none was broken; sent before its end.
    Learnt {
        /// The run.
        run: u64,
        /// Samples of each shard.
        counts: Vec<u64>,
    },
    /// The run delivered everything.
    End(RunEnd),
    /// The run ended early.
    Failed {
        /// The run.
        run: u64,
        /// Reason.
        error: Error,
    },
    /// The places of the samples that the job reads of a shard are wanted.
    Locate {
        /// The shard.
        shard: u32,
    },
    /// An acknowledgement was recorded.
    Acknowledged {
        /// The run.
        run: u64,
        /// The last acknowledgement's number.
        number: u64,
        /// State of the queue's log.
        place: leases::LogPosition,
    },
    /// An acknowledgement will not be recorded.
    Unrecorded {
        /// The run.
        run: u64,
        /// The last acknowledgement's number.
        number: u64,
        /// Reason.
        error: Error,
    },
}

/// Data shared by every run of a job.
pub(crate) struct JobData {
    pub(crate) spec: Open,
    pub(crate) mixture: Mixture,
    /// Shards that complete the samples of others.
    pub(crate) joins: Arc<Joins>,
    pub(crate) origin: Options,
    pub(crate) lanes: u32,
    pub(crate) store: Store,
    pub(crate) slots: Slots,
    pub(crate) patience: Patience,
    pub(crate) waits: Arc<Waits>,
    pub(crate) verdicts: Verdicts,
    /// Bytes of each shard, if the trainer knew them.
    pub(crate) bytes: Option<Vec<u64>>,
    /// Cache that its open shards take, if that is known.
    holding: Option<Holding>,
    pub(crate) outlook: Outlook,
    /// Samples that the job reads, if not all of its shards.
    pub(crate) choices: Option<Choices>,
    /// Places of samples that the job's own index has.
    pub(crate) located: Located,
    /// Lengths of its samples, if batches are cut by tokens.
    pub(crate) lengths: Option<Arc<Lengths>>,
    /// Way in which it reads its shards, if its trainer knows the places of their samples.
    reading: Option<Reading>,
    /// Excerpts of shards, if it reads those.
    excerpts: Option<Excerpts>,
    /// True if its trainer reads members where they lie in memory of a tier.
    borrows: bool,
}

impl JobData {
    /// Returns the choice of samples of a shard, if the job reads some only.
    pub(crate) fn choice(&self, shard: u32) -> Option<&Choice> {
        self.choices.as_ref().and_then(|choices| choices.of(shard))
    }

    /// Returns true unless it is known that the job reads nothing of a shard.
    pub(crate) fn reads(&self, shard: u32) -> bool {
        self.spec.counts.as_ref().is_none_or(|counts| counts[shard as usize] > 0)
    }

    /// Returns the place in its shard of the sample that is number `nth` of those the job reads.
    pub(crate) fn place(&self, shard: u32, nth: u64) -> u64 {
        match self.choice(shard) {
            None => nth,
            // Counts, of which the plan is made, are those of the choices.
            Some(choice) => choice.place(nth).expect("the plan names samples that were chosen"),
        }
    }

    pub(crate) fn url(&self, shard: u32) -> &str {
        &self.spec.urls[shard as usize]
    }

    /// Makes the order of an epoch.
    ///
    /// # Errors
    /// `Invalid` for an invalid mixture.
    pub(crate) fn epoch(&self, epoch: u64) -> Result<Epoch> {
        order_of(&self.spec, (&self.mixture, self.joins.planned()), self.lanes, epoch)
    }

    /// Returns the bins of an epoch, if batches are cut by tokens.
    ///
    /// # Errors
    /// As [`JobData::epoch`].
    pub(crate) fn bins(&self, epoch: u64) -> Result<Option<Bins>> {
        let Some(lengths) = &self.lengths else { return Ok(None) };
        Bins::new(self.epoch(epoch)?, lengths.clone(), &self.spec.order, epoch).map(Some)
    }

    /// Returns the share of this rank in a run that begins at position `base`, where the sequence
    /// has these lanes. Bins have samples of all lanes.
    pub(crate) fn share(&self, lanes: u32, base: u64) -> Share {
        let lanes = if self.lengths.is_some() { 1 } else { lanes };
        Share::new(&self.spec.order, lanes, base)
    }

    /// Returns a function from epoch numbers to orders that may outlive the job; it gives `None`
    /// for an invalid order.
    pub(crate) fn order(&self) -> impl Fn(u64) -> Option<Epoch> + Send + use<> {
        let (spec, mixture, lanes) = (self.spec.clone(), self.mixture.clone(), self.lanes);
        let shards = self.joins.planned();
        move |epoch| order_of(&spec, (&mixture, shards), lanes, epoch).ok()
    }

    /// True if a shard failed because another job that reads it went away or does not open it. The
    /// shard is then requested once more through this job's own files, a bounded number of times.
    fn is_anothers_fault(&self, shard: &ShardHandle, error: &Error, others: &mut u32) -> bool {
        let may_be = matches!(
            error.kind(),
            ErrorKind::Unavailable
                | ErrorKind::Closed
                | ErrorKind::NotFound
                | ErrorKind::PermissionDenied
        );
        *others += 1;
        may_be && *others <= OTHERS && self.store.came_through_other_client(shard)
    }

    /// Returns the errors found in samples delivered up to batch `batch`, and logs them.
    fn wrong_shards(&self, batch: u64) -> Vec<Error> {
        let wrong = self.verdicts.wrong(batch);
        for error in &wrong {
            let (url, tenant) = (error.place("url"), self.store.tenant());
            let dataset = url.map(|url| self.store.dataset_of(url));
            tracing::error!(
                session = self.store.session(),
                job = self.spec.job,
                tenant,
                dataset,
                url,
                %error,
                "a shard was found wrong after a job had samples of it"
            );
        }
        wrong
    }
}

/// A job on this daemon.
pub struct Session {
    number: u64,
    job: Arc<JobData>,
    /// Samples of an epoch, if known beforehand.
    samples: Option<u64>,
    events: mpsc::Sender<Event>,
    current: CurrentRun,
    /// Set when an admin stops the job: no run delivers anything from then on.
    stopped: watch::Sender<bool>,
}

/// The latest run of a job; it ends when this is dropped.
#[derive(Default)]
struct CurrentRun {
    task: Option<JoinHandle<()>>,
    /// Number of the run, if it is ahead of its consumer.
    ahead: Option<u64>,
    /// Looks at the job's shards, once the consumer of a run that was ahead has come.
    _looking: JoinSet<()>,
    /// The trainer's side of a run with a shared queue.
    leasing: Option<Trainer>,
}

impl Drop for CurrentRun {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Makes the order of a job's epoch over so many shards.
fn order_of(
    spec: &Open,
    (mixture, shards): (&Mixture, u32),
    lanes: u32,
    epoch: u64,
) -> Result<Epoch> {
    Epoch::new(&spec.order, (shards, spec.counts.as_deref()), mixture, lanes, epoch)
}

/// Parts of the daemon that a session needs.
pub struct Host {
    /// The tiers, whose engines read into slabs.
    pub store: Store,
    /// Slab memory shared by all sessions.
    pub slabs: SlabMemory,
}

/// Facts about a job that a client sends before it opens the job.
#[derive(Debug, Clone, Default)]
pub struct Preface {
    /// Data sets, if it mixes several.
    pub mixture: Mixture,
    /// Sizes of its shards, if they are known.
    pub extent: Option<Extent>,
    /// Samples that it reads, if not all.
    pub chosen: Option<Vec<Chosen>>,
    /// Shards that complete samples of others.
    pub joined: Vec<Joined>,
    /// Lengths of its samples, if its batches are cut by tokens.
    pub binning: Option<Binning>,
    /// Cost of what it reads, if its trainer knows the places of all samples.
    pub parts: Option<PartsEstimate>,
    /// True if its trainer reads members where they lie in memory of a tier, and may read all of
    /// that.
    pub borrows: bool,
}

impl Session {
    /// Opens a job; its events come from the receiver.
    ///
    /// # Errors
    /// `Invalid` if the job is invalid, `Full` if its window exceeds its share of the cache.
    pub fn open(
        number: u64,
        spec: Open,
        preface: Preface,
        host: Host,
    ) -> Result<(Self, mpsc::Receiver<Event>)> {
        let Preface { mixture, extent, chosen, joined, binning, parts, borrows } = preface;
        let joins = Joins::new(&joined, u32::try_from(spec.urls.len()).unwrap_or(u32::MAX))?;
        plan::check(&spec.order, joins.planned() as usize, spec.counts.as_deref())?;
        if spec.prefetch == 0 {
            return Err(Error::new(ErrorKind::Invalid, "prefetch is 0").advise("give at least 1"));
        }
        let choices =
            chosen.map(|all| Choices::from_wire(&all, spec.counts.as_deref())).transpose()?;
        let lengths =
            binning.map(|binning| Lengths::new(Arc::new(binning), spec.counts.as_deref()));
        let lengths = lengths.transpose()?.map(Arc::new);
        let shards = joins.planned();
        // Streams have lanes of their own.
        let lanes = match mixture.is_empty() {
            true => plan::lanes(&spec.order, shards, spec.counts.is_some())?,
            false => 1,
        };
        // A single data set is not dealt here, only in its run.
        let samples = match mixture.is_empty() {
            true => {
                let all = || spec.counts.as_ref().map(|counts| counts.iter().sum());
                spec.order.epoch_samples.or_else(all)
            }
            false => order_of(&spec, (&mixture, shards), lanes, 0)?.total(),
        };
        let reading = Reading::of(parts, &spec, &joined, &host.store);
        let by_excerpts = reading.as_ref().filter(|reading| reading.estimate.takes_parts());
        let mut holding = None;
        if let Some(extent) = &extent {
            let lanes = (lanes, lengths.is_some());
            let scaled = by_excerpts.map(|reading| reading.scaled(extent));
            let extent = scaled.as_ref().unwrap_or(extent);
            holding = room::check(&spec, (&mixture, &joins), lanes, extent, &host.store)?;
        }
        let (events, receiver) = mpsc::channel(EVENTS);
        let patience = Duration::from_millis(spec.patience_ms);
        let waits = Arc::<Waits>::default();
        let job = JobData {
            origin: Options::from(spec.origin.clone()),
            lanes,
            slots: Slots::new(
                host.store.engines(),
                host.slabs,
                spec.prefetch,
                patience,
                events.clone(),
                waits.clone(),
            ),
            waits,
            patience: Patience::new(patience, &spec.job, &host.store),
            store: host.store,
            verdicts: Verdicts::default(),
            bytes: extent.map(|extent| extent.bytes),
            holding,
            outlook: Outlook::default(),
            choices,
            located: Located::default(),
            lengths,
            excerpts: by_excerpts.map(|_| Excerpts::new(events.clone())),
            reading,
            borrows,
            spec,
            mixture,
            joins: Arc::new(joins),
        };
        let (job, stopped) = (Arc::new(job), watch::Sender::new(false));
        Ok((
            Self { number, job, samples, events, current: CurrentRun::default(), stopped },
            receiver,
        ))
    }

    /// Returns the job as its trainer sees it.
    #[must_use]
    pub fn opened(&self) -> Opened {
        let samples = self.samples;
        let share = self.job.share(self.job.lanes, 0);
        // Bins are counted when they are composed.
        let counted = samples.filter(|_| self.job.lengths.is_none());
        Opened {
            session: self.number,
            lanes: self.job.lanes,
            samples,
            batches: counted.map(|samples| share.batches(samples)),
        }
    }

    /// Returns the name shown to admins.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.job.spec.job
    }

    /// Returns the way in which the job reads its shards and the reason, a sentence for people, if
    /// its trainer knows the places of their samples.
    #[must_use]
    pub fn reading(&self) -> Option<String> {
        self.job.reading.as_ref().map(|reading| reading.estimate.why())
    }

    /// Returns the way in which the job reads the shard at `url` and the reason, a sentence for
    /// people; none if it does not read the shard, or its trainer does not know the places of its
    /// samples.
    #[must_use]
    pub fn reading_of(&self, url: &str) -> Option<String> {
        self.job.reading_of(url)
    }

    /// Returns the cache that the job's open shards take, as the end of a sentence that begins with
    /// the job; none if it does not read the shard at `url`, or its trainer does not know the
    /// shards' lengths.
    #[must_use]
    pub fn holding_of(&self, url: &str) -> Option<String> {
        let JobData { spec, mixture, lanes, holding, .. } = &*self.job;
        let holding = holding.filter(|_| spec.urls.iter().any(|one| one == url))?;
        Some(holding.why(&spec.order, mixture.is_empty().then_some(*lanes)))
    }

    /// Takes the trainer's places of the samples of a shard.
    pub fn placed(&self, shard: u32, located: Result<message::Located>) {
        self.job.placed(shard, located);
    }

    /// Returns slab memory and slots in use.
    #[must_use]
    pub fn memory(&self) -> Memory {
        self.job.slots.memory()
    }

    /// Returns a description of what its next batch waits for at present, as an error with places
    /// and advice; `None` if nothing here holds it up.
    #[must_use]
    pub fn awaited(&self) -> Option<Error> {
        let JobData { waits, store, spec, origin, .. } = &*self.job;
        waits.first().map(|wait| wait.describe(store, &spec.urls, origin))
    }

    /// Returns the number of shards found wrong after the job had samples of them.
    #[must_use]
    pub fn wrong_shards(&self) -> u64 {
        self.job.verdicts.total()
    }

    /// Plays an epoch from a position on, ending the current run.
    pub fn start(&mut self, run: u64, begin: Begin) {
        let (job, events) = (self.job.clone(), self.events.clone());
        self.run(run, None, async move {
            job.located.clear();
            let _looking = look::begin_run(&job);
            play(job, run, begin, &events).await
        });
    }

    /// Plays an epoch ahead of its consumer, ending the current run. Its shards may still change.
    pub fn start_ahead(&mut self, run: u64, begin: Begin) {
        let (job, events) = (self.job.clone(), self.events.clone());
        self.run(run, None, async move {
            job.located.clear();
            job.store.begin_run(true);
            play(job, run, begin, &events).await
        });
        self.current.ahead = Some(run);
    }

    /// Takes over a run whose consumer has come; the result is true if it goes on, false if
    /// another is to be started, since shards were replaced that it opened.
    pub fn confirm(&mut self, run: u64) -> impl Future<Output = bool> + Send + use<> {
        let is_ahead = self.current.ahead.take_if(|ahead| *ahead == run).is_some();
        let confirmed = is_ahead.then(|| self.job.store.confirm_run(&self.job.origin));
        if is_ahead {
            self.current._looking = look::look(&self.job);
        }
        async move {
            match confirmed {
                Some(confirmed) => confirmed.await,
                None => false,
            }
        }
    }

    /// Delivers these samples as one batch, ending the current run; `located` has their places by
    /// the job's own index, if it has one.
    pub fn pick(&mut self, run: u64, samples: Vec<Picked>, located: Vec<message::Located>) {
        let (job, events) = (self.job.clone(), self.events.clone());
        self.run(run, None, async move {
            job.located.set(located, job.spec.urls.len())?;
            pick(job, run, &samples, &events).await
        });
    }

    /// Delivers shards that this trainer takes from a queue of `owner`, ending the current run;
    /// without a queue, the run fails.
    pub fn share(
        &mut self,
        run: u64,
        sharing: Sharing,
        leases: Result<Arc<dyn Leases>>,
        owner: u64,
    ) {
        let (job, events) = (self.job.clone(), self.events.clone());
        let acknowledgements = Arc::new(Acknowledgements::new(&sharing));
        let theirs = acknowledgements.clone();
        self.run(run, Some(acknowledgements.clone()), async move {
            job.located.clear();
            let queue = (leases?, owner);
            let leased = Leased::begin(job.clone(), run, sharing, queue, theirs, &events).await?;
            share(job, leased, &events).await
        });
        self.current.leasing = Some(Trainer { run, acknowledgements });
    }

    /// Records the consumer's progress in a run with a shared queue; `batch` is the first it has
    /// not finished. Returns the reason if it will not be recorded.
    ///
    /// # Errors
    /// `Invalid` for more marks than a trainer can have.
    pub fn acknowledge(
        &self,
        run: u64,
        number: u64,
        batch: u64,
        marks: &[Mark],
    ) -> Result<Option<Error>> {
        match &self.current.leasing {
            Some(trainer) if trainer.run == run => {
                trainer.acknowledgements.add(number, batch, marks)
            }
            // Others read everything it did not record.
            _ => Ok(Some(Error::new(ErrorKind::Closed, "the daemon does not serve this run"))),
        }
    }

    fn run(
        &mut self,
        run: u64,
        leasing: Option<Arc<Acknowledgements>>,
        delivering: impl Future<Output = Result<Outcome>> + Send + 'static,
    ) {
        self.current = CurrentRun::default();
        let events = self.events.clone();
        let mut stopped = self.stopped.subscribe();
        let delivering = async move {
            tokio::select! {
                biased;
                // The sender ends with the session, and the run with it.
                Ok(_) = stopped.wait_for(|stopped| *stopped) => Err(stopped_by_admin()),
                delivered = delivering => delivered,
            }
        };
        self.current.task = Some(tokio::spawn(async move {
            let last = match Box::pin(AssertUnwindSafe(delivering).catch_unwind()).await {
                Ok(Ok(Outcome { batches, samples, errors, counts })) => {
                    if let Some(counts) = counts.filter(|_| errors.is_empty()) {
                        // A dropped receiver ended the session.
                        let _ = events.send(Event::Learnt { run, counts }).await;
                    }
                    Event::End(RunEnd { run, batches, samples, errors })
                }
                Ok(Err(error)) => Event::Failed { run, error },
                // The run's shared state is behind locks that recover from poison; the panic itself
                // was printed.
                Err(_) => {
                    let error = Error::new(ErrorKind::Invalid, "the daemon failed in this job")
                        .advise("report it as a bug, with the daemon's log");
                    Event::Failed { run, error }
                }
            };
            if let (Event::Failed { error, .. }, Some(leasing)) = (&last, leasing)
                && let Some(number) = leasing.fail(error)
            {
                let error = error.clone();
                let _ = events.send(Event::Unrecorded { run, number, error }).await;
            }
            // A dropped receiver ended the session.
            let _ = events.send(last).await;
        }));
    }

    /// Ends the current run, and every later one, with an error that says so.
    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Takes a slot back from the trainer.
    pub fn release(&self, slab: u32, slot: u64) {
        self.job.slots.release(slab, slot);
    }
}

fn stopped_by_admin() -> Error {
    Error::new(ErrorKind::Closed, "an admin stopped this job")
        .at("reason", "stopped")
        .advise("ask an admin for the reason; a state saved before resumes the job")
}
