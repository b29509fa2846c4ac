//! Raw batches of one job, across as many daemons as it takes.
//!
//! One thread receives. When its daemon goes away it finds or starts another, registers the job
//! again and asks for the first batch it has not received; batches received before stay valid
//! ([`Lease`]). So each batch of a run comes exactly once.

mod config;
mod maps;
mod receiving;
mod teller;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver as Queue, unbounded};
use forebay_error::{Doing, Error, ErrorKind, Result, shown};
use forebay_wire::fork::Generation;
use forebay_wire::leases::{LogPosition, Sharing};
use forebay_wire::message::{
    self, Bad, Begin, Located, Opened, Picked, Progress, Reply, Request, RunEnd,
};

use crate::connection::{Connection, SILENT};
use crate::deadline::{Closing, Deadline, TIMEOUT_MAX};
use crate::lease::Lease;
use crate::leased::Leased;
use crate::placing::Placing;
use crate::trace::Trace;
pub use config::SessionConfig;
use receiving::receive;
pub(crate) use teller::Teller;

/// Daemons tried when a job is opened and each goes away before it answers.
const OPENINGS: usize = 5;

/// A batch in the slab, or the end of its run.
#[derive(Debug)]
pub enum RawBatch {
    /// A batch and the lease on its slot.
    Batch {
        /// Offsets of all members.
        batch: Box<message::Batch>,
        /// Start of each sample in its shard, in bytes, if the daemon's release reports it.
        offsets: Vec<u64>,
        /// The slot.
        lease: Arc<Lease>,
        /// Arrival, in nanoseconds of the node's monotonic clock.
        arrived_ns: u64,
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
}

/// Present request, for a daemon that comes later.
#[derive(Debug, Default)]
struct Wanted {
    run: u64,
    /// Part that has not arrived; none once it is over.
    rest: Option<Rest>,
    /// True if it ended early, or cannot be confirmed any more.
    has_failed: bool,
    /// True while it is ahead of its consumer, until the daemon confirms that its shards are still
    /// the ones.
    is_ahead: bool,
    /// State of a run that leases its shards; kept after its end, for late acknowledgements.
    leased: Option<Leased>,
    connection: Option<Arc<Connection>>,
    reconnects: u64,
    /// Reason the last daemon was lost, while there is no other.
    lost: Option<Error>,
    /// Question what the next batch waits for, since the last batch.
    question: Question,
    /// Skipped samples so far.
    bad: Bad,
    /// True if the daemon was not told of the last ones, for lack of room.
    owes_bad: bool,
    /// Progress of its consumer.
    progress: Progress,
}

/// Question to the daemon what the next batch waits for.
#[derive(Debug, Clone, Default)]
enum Question {
    #[default]
    None,
    Asked,
    Answered(Option<Error>),
}

/// Remaining part of a run.
#[derive(Debug, Clone)]
pub(crate) enum Rest {
    /// Batches, from the first that was not received yet.
    Play(Begin),
    /// One batch of these samples, whose places the job's own index may have.
    Pick(Arc<[Picked]>, Arc<[Located]>),
    /// Batches of leased shards; how far they came, [`Wanted::leased`] knows.
    Share,
}

impl Wanted {
    /// Refuses all acknowledgements if the run is over and its daemon is lost: the next daemon does
    /// not serve it. It hears of those of a run that goes on.
    fn refuse_if_over(&mut self) {
        if let Some(leased) = self.leased.as_mut().filter(|_| self.rest.is_none()) {
            let lost = Error::new(ErrorKind::Closed, "the daemon that served this run has ended");
            leased
                .refuse_all(self.lost.iter().fold(lost, |lost, last| lost.at("last_error", last)));
        }
    }

    /// Asks for what is left, if anything is.
    fn ask(&self, connection: &Connection) -> Result<()> {
        match &self.rest {
            None => Ok(()),
            Some(Rest::Play(begin)) if self.is_ahead => connection.play_ahead(self.run, *begin),
            Some(Rest::Play(begin)) => connection.play(self.run, *begin),
            Some(Rest::Pick(samples, located)) => {
                connection.locate(located)?;
                connection.pick(self.run, samples)
            }
            Some(Rest::Share) => {
                let leased = self.leased.as_ref().expect("set with the run");
                connection.share(self.run, leased.sharing())
            }
        }
    }
}

#[derive(Debug)]
struct Shared {
    config: SessionConfig,
    /// Receiver of its shards' arrivals.
    trace: Option<Trace>,
    /// Answers to the daemon's questions for places.
    placing: Option<Placing>,
    wanted: Mutex<Wanted>,
    /// Something was acknowledged, or will not be any more.
    noted: Condvar,
    closing: Arc<Closing>,
    /// Cleared if memory of a tier cannot be mapped here: then all samples are copied.
    borrows: AtomicBool,
    /// Samples of each shard, once a run has passed them all.
    learnt: OnceLock<Vec<u64>>,
    /// Reason the receiving thread ended, if it did.
    lost: OnceLock<Error>,
}

/// One job's raw batches.
#[derive(Debug)]
pub(crate) struct Session {
    shared: Arc<Shared>,
    opened: Opened,
    receiving: Option<std::thread::JoinHandle<()>>,
    made_in: Generation,
}

impl Session {
    /// Opens the job; batches come out of the queue after [`Session::start`].
    ///
    /// `trace` hears what comes in of the job's shards.
    pub(crate) fn open(
        config: SessionConfig,
        trace: Option<Trace>,
    ) -> Result<(Self, Queue<RawBatch>)> {
        if config.timeout > TIMEOUT_MAX {
            return Err(Error::new(ErrorKind::Invalid, "the time limit is out of range")
                .at("timeout", config.timeout.as_secs())
                .advise(format!("give {} seconds (a year) at most", TIMEOUT_MAX.as_secs())));
        }
        let closing = Closing::new()?;
        let deadline = closing.or_after(config.timeout);
        let mut registered = register(&config, (trace.is_some(), config.borrows), &deadline);
        for _ in 1..OPENINGS {
            match &registered {
                // It answered and went away: the next may stay.
                Err(error) if error.kind() == ErrorKind::Closed => {
                    registered = register(&config, (trace.is_some(), config.borrows), &deadline);
                }
                _ => break,
            }
        }
        let (connection, opened) = registered?;
        // The daemon's answers come behind batches, and must not wait for whoever waits for them.
        // A daemon's slots bound its batches, each run has one end, and [`receive`] looks for
        // another daemon only while few batches wait here.
        let (batches, queue) = unbounded();
        let borrows = AtomicBool::new(config.borrows);
        let wanted = Wanted { connection: Some(connection.clone()), ..Wanted::default() };
        let wanted = Mutex::new(wanted);
        let placing = config.parts.as_ref().map(Placing::start);
        let placing = placing.transpose()?;
        let shared = Arc::new(Shared {
            config,
            trace,
            placing,
            wanted,
            noted: Condvar::new(),
            closing,
            borrows,
            learnt: OnceLock::new(),
            lost: OnceLock::new(),
        });
        let theirs = shared.clone();
        let receiving = std::thread::Builder::new()
            .name("fb-receive".into())
            .spawn(move || receive(&theirs, connection, &batches))
            .doing("start the receiving thread")?;
        let made_in = Generation::now();
        Ok((Self { shared, opened, receiving: Some(receiving), made_in }, queue))
    }

    pub(crate) fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Starts a run; batches of earlier ones may still be in the queue.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release knows no such run.
    pub(crate) fn start(&self, run: u64, rest: Rest) -> Result<()> {
        Self::begin(self.shared.wanted(), run, rest, false)
    }

    /// Starts a run whose consumer has not come yet.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub(crate) fn start_ahead(&self, run: u64, begin: Begin) -> Result<()> {
        Self::begin(self.shared.wanted(), run, Rest::Play(begin), true)
    }

    fn begin(
        mut wanted: MutexGuard<'_, Wanted>,
        run: u64,
        rest: Rest,
        is_ahead: bool,
    ) -> Result<()> {
        (wanted.run, wanted.rest) = (run, Some(rest));
        (wanted.has_failed, wanted.is_ahead) = (false, is_ahead);
        wanted.question = Question::None;
        let asked = wanted.connection.as_ref().map(|connection| wanted.ask(connection));
        match asked {
            Some(Err(error)) if error.kind() == ErrorKind::Invalid => Err(error),
            // If the daemon is gone, the receiving thread starts the run on the next one.
            _ => Ok(()),
        }
    }

    /// Returns true if all of the latest run has arrived, and that is `run`.
    pub(crate) fn has_arrived(&self, run: u64) -> bool {
        let wanted = self.shared.wanted();
        wanted.run == run && wanted.rest.is_none() && !wanted.has_failed
    }

    /// Says that the consumer of a run that was started ahead has come. Returns false if the run is
    /// to be started anew: it failed, or its daemon was lost.
    pub(crate) fn confirm(&self, run: u64) -> bool {
        let wanted = self.shared.wanted();
        let stands = wanted.run == run && !wanted.has_failed;
        let connection = wanted.connection.as_ref().filter(|_| stands);
        connection.is_some_and(|connection| connection.confirm(run).is_ok())
    }

    /// Returns true once the daemon has confirmed a run, false if the run is to be started anew;
    /// `None` after `limit`.
    pub(crate) fn confirmed(&self, run: u64, limit: Duration) -> Option<bool> {
        // Everything that lasts ends it: an answer, a failure of the run, or the daemon's loss.
        let waits = |wanted: &mut Wanted| {
            wanted.run == run && wanted.is_ahead && !wanted.has_failed && self.lost().is_none()
        };
        let wanted = self.shared.wanted();
        let waited = self.shared.noted.wait_timeout_while(wanted, limit, waits);
        let (mut wanted, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_open = waits(&mut wanted);
        (!is_open).then(|| wanted.run == run && !wanted.is_ahead && !wanted.has_failed)
    }

    /// Tells the daemon what of the job could not be used so far; the one after it hears of it,
    /// too.
    pub(crate) fn tell(&self, bad: Bad) {
        let mut wanted = self.shared.wanted();
        wanted.bad = bad;
        match wanted.connection.as_ref().filter(|one| one.has_room()) {
            // As for how far its consumer came.
            Some(connection) => drop(connection.tell(&wanted.bad)),
            None => wanted.owes_bad = true,
        }
    }

    /// Returns the sender of the consumer's progress.
    pub(crate) fn teller(&self) -> Teller {
        Teller::new(self.shared.clone())
    }

    /// Starts a run of leased shards.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub(crate) fn share(&self, run: u64, sharing: Sharing) -> Result<()> {
        // At once: an answer about the run before must not count for this one.
        let mut wanted = self.shared.wanted();
        wanted.leased = Some(Leased::new(sharing, wanted.leased.as_ref()));
        Self::begin(wanted, run, Rest::Share, false)
    }

    /// Says that the consumer is done with the batches of the run before number `before`.
    pub(crate) fn acknowledge(&self, before: u64) -> Option<u64> {
        let mut wanted = self.shared.wanted();
        let run = wanted.run;
        let (number, marks) = wanted.leased.as_mut()?.acknowledge(before);
        let connection = wanted.connection.as_ref();
        let is_sent = connection
            .is_some_and(|connection| connection.acknowledge(run, number, before, marks).is_ok());
        if !is_sent {
            wanted.refuse_if_over();
        }
        Some(number)
    }

    /// Returns the lease log's position once it holds the acknowledgement `number`; `None` after
    /// `limit`.
    ///
    /// # Errors
    /// The reason once no log will hold it.
    pub(crate) fn place(&self, number: u64, limit: Duration) -> Result<Option<LogPosition>> {
        let wanted = self.shared.wanted();
        let place =
            |wanted: &Wanted| wanted.leased.as_ref().and_then(|leased| leased.place(number));
        let is_open = |wanted: &mut Wanted| place(wanted).is_none() && self.lost().is_none();
        let waited = self.shared.noted.wait_timeout_while(wanted, limit, is_open);
        let (wanted, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match (place(&wanted), self.lost()) {
            (None, Some(lost)) => Err(lost.clone()),
            (place, _) => place.transpose(),
        }
    }

    /// Daemons found again after one was lost.
    pub(crate) fn reconnects(&self) -> u64 {
        self.shared.wanted().reconnects
    }

    /// Samples of each shard, if a run whose end was received passed them all.
    pub(crate) fn learnt(&self) -> Option<&[u64]> {
        self.shared.learnt.get().map(Vec::as_slice)
    }

    pub(crate) fn daemon_pid(&self) -> Option<u32> {
        self.shared.wanted().connection.as_ref().map(|connection| connection.daemon_pid)
    }

    /// Adds to `error` what the next batch waits for, as far as it is known here.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let wanted = self.shared.wanted();
        let Some(connection) = &wanted.connection else {
            let error = error.at("waited_for", "daemon").at("reason", "lost");
            return wanted.lost.iter().fold(error, |error, lost| error.at("last_error", lost));
        };
        match &wanted.question {
            Question::None | Question::Answered(None) => error,
            Question::Asked => error
                .at("waited_for", "daemon")
                .at("reason", "silent")
                .at("socket", connection.path().display())
                .at("pid", connection.daemon_pid)
                .advise(SILENT),
            Question::Answered(Some(wait)) => {
                let error = wait.places().fold(error, |error, (name, value)| error.at(name, value));
                wait.advice().into_iter().fold(error, Error::advise)
            }
        }
    }

    /// Returns the reason no further batch will come, once the receiving thread has ended.
    pub(crate) fn lost(&self) -> Option<&Error> {
        self.shared.lost.get()
    }

    /// Tells the receiving thread to end, wherever it waits, without waiting for it.
    pub(crate) fn close(&self) {
        self.shared.closing.close();
        if let Some(connection) = self.shared.wanted().connection.take() {
            connection.shut();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A forked child has the memory but not the thread, and the socket is its parent's.
        if !self.made_in.is_now() {
            std::mem::forget(self.receiving.take());
            return;
        }
        self.close();
        if let Some(receiving) = self.receiving.take() {
            // The thread's own panics were reported when they happened.
            let _ = receiving.join();
        }
    }
}

impl Shared {
    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the lease log holds acknowledgement `number`.
    fn acknowledged(&self, run: u64, number: u64, place: LogPosition) {
        let mut wanted = self.wanted();
        let is_this = run == wanted.run;
        if let Some(leased) = wanted.leased.as_mut().filter(|_| is_this) {
            leased.note(number, place);
        }
        self.noted.notify_all();
    }

    /// Notes that no lease log will hold acknowledgement `number`.
    fn unrecorded(&self, run: u64, number: u64, error: Error) {
        let mut wanted = self.wanted();
        let is_this = run == wanted.run;
        if let Some(leased) = wanted.leased.as_mut().filter(|_| is_this) {
            leased.refuse(number, error);
        }
        self.noted.notify_all();
    }

    /// Notes the daemon's answer that a run goes on with its consumer, or not.
    fn confirmed(&self, run: u64, holds: bool) {
        let mut wanted = self.wanted();
        if run == wanted.run {
            (wanted.is_ahead, wanted.has_failed) = (false, wanted.has_failed || !holds);
        }
        self.noted.notify_all();
    }

    /// Notes the daemon's answer what the next batch waits for.
    fn explained(&self, run: u64, wait: Option<Error>) {
        let mut wanted = self.wanted();
        if run == wanted.run {
            wanted.question = Question::Answered(wait);
        }
    }

    /// Takes what a daemon tells beside batches.
    fn told(&self, reply: Reply) {
        match reply {
            Reply::Learnt { counts, .. } => {
                // The first pass says what all do: later ones of the same job learn the same.
                let _ = self.learnt.set(counts);
            }
            Reply::Acknowledged { run, number, place } => {
                self.acknowledged(run, number, place);
            }
            Reply::Unrecorded { run, number, error } => self.unrecorded(run, number, error),
            Reply::Awaited { run, wait } => {
                self.explained(run, wait);
            }
            Reply::Confirmed { run, holds } => self.confirmed(run, holds),
            Reply::Came(came) => {
                if let Some(trace) = &self.trace {
                    let url = self.config.open.urls.get(came.shard as usize);
                    trace.came(came, url.map(|url| shown(url)));
                }
            }
            _ => {}
        }
    }

    /// Asks the next daemon for copies, since memory of a tier cannot be mapped.
    fn borrow_no_more(&self, error: &Error) {
        tracing::warn!(%error, "cannot map memory of a tier; its samples are copied from now on");
        self.borrows.store(false, Ordering::Relaxed);
    }

    /// Notes that `run` is over, unless another is wanted by now.
    fn ended(&self, run: u64, has_failed: bool) {
        let mut wanted = self.wanted();
        if wanted.run == run {
            (wanted.rest, wanted.has_failed) = (None, has_failed);
        }
        self.noted.notify_all();
    }
}

/// Connects and registers the job.
fn register(
    config: &SessionConfig,
    (traces, borrows): (bool, bool),
    deadline: &Deadline,
) -> Result<(Arc<Connection>, Opened)> {
    let connection = Arc::new(config.address.connect(deadline)?);
    connection.limit_sends(config.timeout)?;
    if config.allow_pipe {
        connection.allow_commands();
    }
    if !config.mixture.is_empty() {
        connection.mix(&config.mixture)?;
    }
    if config.serves_changes {
        connection.serve_changes()?;
    }
    if let Some(extent) = &config.extent {
        connection.extend(extent)?;
    }
    if let Some(chosen) = &config.chosen {
        connection.choose(chosen)?;
    }
    if !config.joined.is_empty() {
        connection.join(&config.joined)?;
    }
    if let Some(binning) = &config.binning {
        connection.bin(binning)?;
    }
    if let Some(parts) = &config.parts {
        connection.parts(&parts.estimate)?;
    }
    if borrows {
        connection.borrow()?;
    }
    if traces {
        connection.trace()?;
    }
    match connection.ask(&Request::Open(Box::new(config.job())), deadline)? {
        Reply::Opened(opened) => Ok((connection, opened)),
        _ => Err(Error::new(ErrorKind::Invalid, "the daemon did not answer a job")),
    }
}
