//! Batches of tensors, a few ahead of the consumer.
//!
//! A few threads each decode a batch (on the decoder's own threads), two if there is a GPU; the
//! consumer takes them out of a bounded queue, in order. A batch is with these threads from when it
//! came, though it may wait for its turn there. A slot is returned the moment its last byte was
//! decoded; only fields handed out as views keep it, and only while that leaves the daemon room to
//! go on.

mod lending;
mod order;
mod picking;
mod retiring;
mod rows;
mod runs;
mod slowest;
mod stages;
mod tally;
mod telling;

use std::cmp;
use std::ops::Range;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver as Queue, RecvTimeoutError, bounded};
use forebay_decode::{BufferPool, Decoder, Device, FieldSpec};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_wire::clock::now_ns;
use forebay_wire::fork::Generation;
use forebay_wire::leases::{LogPosition, Sharing};
use forebay_wire::message::{self, Bad, Begin, Cause, Opened, Progress, RunEnd, SlowSample, Stage};

use crate::deadline::Deadline;
use crate::lease::Lease;
use crate::session::{RawBatch, Rest, Session, SessionConfig};
use crate::trace::{Followed, Handed, Trace};
use lending::Lending;
use order::{InOrder, Threads};
use retiring::{Busy, Retiring};
pub use rows::{Batch, Extent, Rows, View};
use runs::Runs;
use stages::decoding;
use tally::Counts;
pub use tally::{Stats, Tally};
use telling::Telling;

/// Interval at which a waiting consumer checks for an interrupt (Ctrl-C).
const INTERRUPT_CHECK: Duration = Duration::from_millis(50);

/// Parts of the time limit: the daemon is asked what a batch waits for once in each …
const PARTS: u32 = 25;

/// … from this one on, which is when a daemon gives a store up that does not answer.
const ASKS_FROM: u32 = 20;

/// Time in which a daemon confirms a run that was begun ahead: it waits for a silent file system or
/// store for two seconds. After that the run is begun anew.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(3);

/// Idle output buffers kept for reuse: six batches of 256 float32 images of 224 pixels, which is
/// the default `prefetch` and one each being decoded and in use.
const IDLE_BUFFERS: usize = 1 << 30;

/// Settings of a loader.
#[derive(Debug, Clone)]
pub struct LoaderConfig {
    /// Daemon, job and time limit.
    pub session: SessionConfig,
    /// Decoding of each field; `None` delivers every field as bytes.
    pub fields: Option<Vec<FieldSpec>>,
    /// Fields handed out as views of the slab rather than copies.
    pub views: Vec<String>,
    /// Decode threads.
    pub threads: usize,
    /// The GPU that decodes, of this process; `None` leaves all to the CPU.
    pub device: Option<Arc<Device>>,
    /// Trace of its batches, if any.
    pub trace: Option<Trace>,
    /// True if the next epoch is begun while the last batches of one are taken. What it reads and
    /// fetches then is not told apart from what this epoch did.
    pub looks_ahead: bool,
}

impl LoaderConfig {
    /// Returns a loader of every field's bytes, on one thread.
    #[must_use]
    pub fn new(session: SessionConfig) -> Self {
        let (fields, views, threads, device, trace) = (None, Vec::new(), 1, None, None);
        Self { session, fields, views, threads, device, trace, looks_ahead: false }
    }
}

/// Result of [`Loader::next`].
#[derive(Debug)]
pub enum Next {
    /// A batch.
    Batch(Box<Batch>),
    /// The epoch is over.
    End(RunEnd),
}

enum Ready {
    Batch { run: u64, batch: Box<Batch>, stages: Vec<Stage>, followed: Option<Box<Followed>> },
    End(RunEnd),
    Failed { run: u64, error: Error },
}

impl Ready {
    fn run(&self) -> u64 {
        match self {
            Self::Batch { run, .. } | Self::Failed { run, .. } => *run,
            Self::End(end) => end.run,
        }
    }
}

/// Batches of tensors of one job.
pub struct Loader {
    session: Session,
    ready: Queue<Ready>,
    runs: Arc<Runs>,
    looks_ahead: bool,
    lending: Arc<Lending>,
    /// Busy times of the decoding GPU.
    device_busy: Option<Arc<Busy>>,
    tally: Tally,
    trace: Option<Trace>,
    timeout: Duration,
    telling: Telling,
    /// The decode threads', who alone keep it.
    work: Weak<Work>,
    decoding: Option<Vec<std::thread::JoinHandle<()>>>,
    made_in: Generation,
}

impl Loader {
    /// Opens the job at its daemon.
    ///
    /// # Errors
    /// `Invalid` for options that make no sense, else why no daemon serves the job.
    pub fn open(config: LoaderConfig) -> Result<Self> {
        Self::open_after(config, Tally::default())
    }

    /// The same, going on with what loaders before it counted.
    ///
    /// # Errors
    /// As [`Loader::open`].
    pub fn open_after(mut config: LoaderConfig, tally: Tally) -> Result<Self> {
        // A GPU copies from pinned memory, which slabs are.
        config.session.borrows &= config.device.is_none();
        let prefetch = config.session.open.prefetch as usize;
        let timeout = config.session.timeout;
        let (seed, batch) = (config.session.open.order.seed, config.session.open.order.batch_size);
        let pool = BufferPool::new(IDLE_BUFFERS);
        let decoder = match config.fields {
            Some(fields) => {
                Some(Decoder::new(fields, config.threads, &pool, config.device.clone())?)
            }
            None => None,
        };
        let device = match config.device {
            Some(device) => Some((device, Retiring::new(prefetch)?)),
            None => None,
        };
        let device_busy = device.as_ref().map(|(_, retiring)| retiring.busy());
        let urls: Arc<[String]> = config.session.open.urls.clone().into();
        let shards = config.session.mixture.streams.iter().map(|stream| stream.shards);
        let firsts = shards.scan(0_u32, |first, shards| {
            Some(std::mem::replace(first, first.saturating_add(shards)))
        });
        let streams = firsts.collect();
        let (session, raw) = Session::open(config.session, config.trace.clone())?;
        let telling = Telling::new(session.teller(), tally.clone())?;
        if tally.lock().progress() != Progress::default() {
            // So that what a loader before this one counted is told apart from what this one will.
            telling.at_once();
        }
        let (sender, ready) = bounded(prefetch);
        let runs = Arc::new(Runs::new());
        let on_cpu = decoder.is_some().then_some((config.threads, batch as usize));
        let Threads { threads, held } = Threads::new(prefetch, on_cpu, device.is_some());
        let work = Work {
            decoder,
            device,
            views: config.views,
            urls,
            streams,
            seed,
            runs: runs.clone(),
            follows: config.trace.is_some(),
            order: InOrder::new(raw, sender, held),
        };
        let work = Arc::new(work);
        let start = |_| {
            let work = work.clone();
            let thread = std::thread::Builder::new().name("fb-decode".into());
            thread.spawn(move || work.run()).doing("start a decode thread")
        };
        let decoding = (0..threads).map(start).collect::<Result<_>>()?;
        let work = Arc::downgrade(&work);
        Ok(Self {
            session,
            ready,
            runs,
            looks_ahead: config.looks_ahead,
            lending: Arc::new(Lending::new(prefetch)),
            device_busy,
            tally,
            trace: config.trace,
            timeout,
            telling,
            work,
            decoding: Some(decoding),
            made_in: Generation::now(),
        })
    }

    /// The job as the daemon sees it.
    #[must_use]
    pub fn opened(&self) -> &Opened {
        self.session.opened()
    }

    /// Samples of each shard, once a run without a manifest has passed them all and none was
    /// broken.
    #[must_use]
    pub fn learnt(&self) -> Option<&[u64]> {
        self.session.learnt()
    }

    /// Starts a run; whatever an earlier one had ready is dropped. A run that was begun ahead, as
    /// the epoch after one that was played to its end, goes on.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release knows no such run.
    pub fn start(&self, begin: Begin) -> Result<()> {
        match self.runs.adopt(begin, Instant::now(), |run| self.session.confirm(run)) {
            true => Ok(()),
            false => self.begin(begin.epoch, Rest::Play(begin)),
        }
    }

    /// Starts a run of leased shards; whatever an earlier one had ready is dropped. One that begins
    /// the same epoch again, as often begun before, goes on in its log.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release leases no shards.
    pub fn share(&self, sharing: Sharing) -> Result<()> {
        let run = self.new_run(sharing.epoch, None);
        self.session.share(run, sharing)
    }

    /// Says that the consumer is done with the first `batches` batches of a run of leased shards.
    pub fn acknowledge(&self, batches: u64) {
        self.session.acknowledge(batches);
    }

    /// The same, and where the lease log stands with it; `interrupted` is asked now and then while
    /// waiting.
    ///
    /// # Errors
    /// The error of `interrupted`, `Invalid` without a run of leased shards, `Unavailable` after
    /// the time limit, or why the log cannot be known.
    pub fn place<E: From<Error>>(
        &self,
        batches: u64,
        mut interrupted: impl FnMut() -> Result<(), E>,
    ) -> Result<LogPosition, E> {
        let deadline = Deadline::after(self.timeout);
        let Some(number) = self.session.acknowledge(batches) else {
            return Err(Error::new(ErrorKind::Invalid, "no run leases its shards").into());
        };
        loop {
            if let Some(place) = self.session.place(number, INTERRUPT_CHECK)? {
                return Ok(place);
            }
            interrupted()?;
            if deadline.has_passed() {
                let what = "the lease log's position was not reported in time";
                return Err(Error::new(ErrorKind::Unavailable, what)
                    .at("timeout_s", self.timeout.as_secs())
                    .advise("check that the lease server is reachable")
                    .into());
            }
        }
    }

    fn begin(&self, epoch: u64, rest: Rest) -> Result<()> {
        let begin = match &rest {
            Rest::Play(begin) => Some(*begin),
            Rest::Pick(..) | Rest::Share => None,
        };
        let run = self.new_run(epoch, begin);
        self.session.start(run, rest)
    }

    fn new_run(&self, epoch: u64, begin: Option<Begin>) -> u64 {
        let run = self.runs.begin(epoch, begin, Instant::now());
        self.drop_ready();
        run
    }

    /// Gives slots of an old run back. Before the new run starts: its batches may come at once.
    fn drop_ready(&self) {
        while self.ready.try_recv().is_ok() {
            self.got();
        }
    }

    /// Waits until a run that was begun ahead is confirmed, or begins it anew.
    fn confirm<E: From<Error>>(
        &self,
        mut interrupted: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let Some((run, begin)) = self.runs.unconfirmed() else { return Ok(()) };
        let deadline = Deadline::after(CONFIRMED_WITHIN);
        let holds = loop {
            match self.session.confirmed(run, INTERRUPT_CHECK) {
                Some(holds) => break holds,
                None if deadline.has_passed() => break false,
                None => interrupted()?,
            }
        };
        if holds {
            self.runs.confirm();
            return Ok(());
        }
        let again = self.runs.begin_again();
        self.drop_ready();
        Ok(self.session.start(again, Rest::Play(begin))?)
    }

    /// Begins the next epoch, if that is expected and the rest of this one is here.
    fn look_ahead(&self) {
        if !self.looks_ahead {
            return;
        }
        let ahead = self.runs.look_ahead(|run| self.session.has_arrived(run));
        if let Some((run, begin)) = ahead
            && self.session.start_ahead(run, begin).is_err()
        {
            // An older daemon, or the error is its consumer's when it comes.
            self.runs.forget_ahead();
        }
    }

    /// The next batch, or the end; `interrupted` is asked now and then while waiting.
    ///
    /// # Errors
    /// The error of `interrupted`, the one that ended the run, or `Unavailable` after the time
    /// limit.
    pub fn next<E: From<Error>>(
        &self,
        interrupted: impl FnMut() -> Result<(), E>,
    ) -> Result<Next, E> {
        let next = self.wait(interrupted);
        if next.is_err() {
            // It waits no more: were that untold, its wait would grow at the daemon for as long as
            // the loader is there.
            self.telling.waits_no_more();
            self.telling.at_once();
        }
        next
    }

    fn wait<E: From<Error>>(
        &self,
        mut interrupted: impl FnMut() -> Result<(), E>,
    ) -> Result<Next, E> {
        let start_ns = now_ns();
        if let Some(trace) = &self.trace {
            trace.asked(start_ns);
        }
        self.confirm(&mut interrupted)?;
        self.look_ahead();
        let deadline = Deadline::after(self.timeout);
        let mut asks_at = self.timeout / PARTS * ASKS_FROM;
        loop {
            let ready = self.ready.recv_timeout(INTERRUPT_CHECK);
            if ready.is_ok() {
                self.got();
            }
            let ready = match ready {
                Ok(ready) => match ready.run().cmp(&self.runs.current()) {
                    cmp::Ordering::Less => continue,
                    cmp::Ordering::Equal => ready,
                    // Asked for a batch behind the end: the next epoch is begun anew.
                    cmp::Ordering::Greater => {
                        self.runs.forget_ahead();
                        continue;
                    }
                },
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended().into()),
                Err(RecvTimeoutError::Timeout) => {
                    interrupted()?;
                    self.telling.waits(start_ns);
                    let waited = Duration::from_nanos(now_ns().saturating_sub(start_ns));
                    if waited >= asks_at {
                        self.telling.asks();
                        asks_at = waited + self.timeout / PARTS;
                    }
                    if deadline.has_passed() {
                        return Err(self.timed_out().into());
                    }
                    continue;
                }
            };
            self.telling.waits_no_more();
            return match ready {
                Ready::Batch { mut batch, mut stages, followed, .. } => {
                    // A batch that cannot be lent is copied.
                    let copying_ns = now_ns();
                    batch.hand_out(&self.lending);
                    stages.extend(decoding(copying_ns..now_ns(), []));
                    let busy = self.device_busy.as_ref().map(|busy| busy.stretches());
                    let (batches, wait) =
                        self.count(&batch, start_ns, &stages, &busy.unwrap_or_default());
                    if let (Some(trace), Some(followed)) = (&self.trace, followed) {
                        trace.handed(followed, wait);
                    }
                    // The first one is reported at once: a job must not be mistaken for another for
                    // long.
                    match batches {
                        1 => self.telling.soon(),
                        _ => self.telling.now_and_then(),
                    }
                    Ok(Next::Batch(batch))
                }
                Ready::End(end) => {
                    // It may have come just now.
                    self.look_ahead();
                    self.runs.end(Instant::now());
                    self.telling.at_once();
                    Ok(Next::End(end))
                }
                Ready::Failed { error, .. } => Err(error.into()),
            };
        }
    }

    /// Notes that a batch left the queue: another may be begun.
    fn got(&self) {
        if let Some(work) = self.work.upgrade() {
            work.order.got();
        }
    }

    /// Returns true if [`Loader::next`] would not wait.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Batches that are ready to be taken.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Returns the waits since the last reset, in nanoseconds, in the order of [`Cause::ALL`].
    #[must_use]
    pub fn waited_ns(&self) -> [u64; Cause::ALL.len()] {
        self.counts().waits.by_cause()
    }

    /// Tells the daemon, for whoever looks at its status, what of the job could not be used so far:
    /// all of it, in place of what was told before.
    pub fn tell(&self, bad: Bad) {
        self.session.tell(bad);
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        // First: whoever counts a batch must not wait for who talks to the daemon.
        let (reconnects, daemon_pid) = (self.session.reconnects(), self.session.daemon_pid());
        let counts = self.counts();
        Stats {
            private_copies: counts.stats.private_copies + self.lending.copies(),
            reconnects: counts.stats.reconnects + reconnects,
            daemon_pid,
            wait: counts.waits.report(),
            ..counts.stats.clone()
        }
    }

    /// Forgets waits and counts so far: the next [`Loader::stats`] speaks of what follows.
    pub fn reset_stats(&self) {
        let mut counts = self.counts();
        // The daemon counts on.
        *counts = Counts { before: counts.progress(), ..Counts::default() };
    }

    /// Notes samples that took long in user code.
    pub fn note_slow(&self, slow: &[SlowSample]) {
        slowest::merge(&mut self.counts().stats.slowest, slow);
    }

    /// Counts a batch that was waited for since then, until now; with how many there were, and what
    /// became of the wait.
    fn count(
        &self,
        batch: &Batch,
        start_ns: u64,
        stages: &[Stage],
        device_busy: &[Range<u64>],
    ) -> (u64, Handed) {
        let mut counts = self.counts();
        counts.stats.batches += 1;
        counts.stats.samples += batch.keys.len() as u64;
        counts.stats.bad_samples += batch.errors.len() as u64;
        counts.stats.tier_bytes += batch.tier_bytes;
        counts.stats.origin_bytes += batch.origin_bytes;
        slowest::merge(&mut counts.stats.slowest, &batch.slowest);
        for ((decoder, reason), images) in &batch.routes {
            let reasons = counts.stats.decoders.entry(decoder).or_default();
            *reasons.entry(reason).or_default() += images;
        }
        // As late as can be: counting keeps the consumer, too.
        let wait = start_ns..now_ns();
        let parts = counts.waits.book(wait.clone(), stages, device_busy);
        (counts.stats.batches, Handed { wait, parts })
    }

    /// Returns the reason the decode thread ended although the loader is open.
    fn ended(&self) -> Error {
        self.session.lost().cloned().unwrap_or_else(|| {
            Error::new(ErrorKind::Closed, "a thread of the loader died").advise(
                "this is a bug in Forebay: report it with the panic on standard error; a new loader resumes from the last state_dict()",
            )
        })
    }

    fn timed_out(&self) -> Error {
        let late = Error::new(ErrorKind::Unavailable, "no batch came in time")
            .at("timeout_s", self.timeout.as_secs_f64())
            .advise(
                "`forebay status` shows the cause of the wait; raise timeout= if a batch takes that long",
            );
        match self.work.upgrade().and_then(|work| work.order.oldest_ns()) {
            None => self.session.explain(late),
            Some(since) => {
                let lasted = Duration::from_nanos(now_ns().saturating_sub(since));
                late.at("waited_for", Cause::Decode.name()).at("waited_s", lasted.as_secs()).advise(
                    "decode fewer fields or smaller images, or raise timeout= if a batch takes that long",
                )
            }
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.tally.lock()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let Some(decoding) = self.decoding.take() else { return };
        // A forked child has no threads to end; the parent's go on.
        if !self.made_in.is_now() {
            std::mem::forget(decoding);
            return;
        }
        // The receiving thread ends first and lets go of the queue that decode threads read; these
        // may be blocked on a full queue, which draining frees.
        self.runs.begin(0, None, Instant::now());
        let stats = self.stats();
        self.counts().stats = stats;
        self.session.close();
        while self.ready.recv().is_ok() {
            self.got();
        }
        // The threads' own panics were reported when they happened.
        for thread in decoding {
            let _ = thread.join();
        }
        // The trace is readable after a close, though later loaders continue it.
        if let Some(trace) = &self.trace {
            trace.settle();
        }
    }
}

/// State shared by the decode threads.
struct Work {
    decoder: Option<Decoder>,
    /// The GPU that decodes, and who waits for it.
    device: Option<(Arc<Device>, Retiring)>,
    views: Vec<String>,
    urls: Arc<[String]>,
    /// The first shard of each data set of a mixture.
    streams: Vec<u32>,
    seed: u64,
    runs: Arc<Runs>,
    /// True if batches are traced.
    follows: bool,
    order: InOrder<RawBatch, Ready>,
}

impl Drop for Work {
    fn drop(&mut self) {
        // The device may serve the job's next session; the slab is this one's.
        if let Some((device, _)) = &self.device {
            device.copy_from_none();
        }
    }
}

impl Work {
    /// Decodes batches until there are no more, or nobody takes them.
    fn run(&self) {
        while let Some((raw, turn)) = self.order.take() {
            let item = match raw {
                RawBatch::Batch { batch, offsets, lease, arrived_ns } => {
                    // Nobody waits for batches of an older run.
                    let epoch = self.runs.epoch_of(batch.run);
                    epoch.map(|epoch| self.decoded(*batch, epoch, &offsets, &lease, arrived_ns))
                }
                RawBatch::End(end) => Some(Ready::End(end)),
                RawBatch::Failed { run, error } => Some(Ready::Failed { run, error }),
            };
            if !turn.hand(item) {
                return;
            }
        }
    }

    fn decoded(
        &self,
        batch: message::Batch,
        epoch: u64,
        offsets: &[u64],
        lease: &Arc<Lease>,
        arrived_ns: u64,
    ) -> Ready {
        let run = batch.run;
        let mut stages = batch.stages.clone();
        let mut followed = self.follows.then(|| self.follow(&batch, epoch, offsets, arrived_ns));
        let start_ns = now_ns();
        match self.decode(batch, epoch, offsets, lease) {
            Ok((batch, brought)) => {
                let end_ns = now_ns();
                if let Some(followed) = &mut followed {
                    let decode = Stage { cause: Cause::Decode, start_ns, end_ns };
                    (followed.decode, followed.brought) = (decode, brought.clone());
                }
                stages.extend(decoding(arrived_ns..end_ns, brought));
                Ready::Batch { run, batch: Box::new(batch), stages, followed }
            }
            Err(error) => Ready::Failed { run, error },
        }
    }
}

impl Work {
    /// Collects a trace's facts about a batch, before it is decoded.
    fn follow(
        &self,
        batch: &message::Batch,
        epoch: u64,
        offsets: &[u64],
        arrived_ns: u64,
    ) -> Box<Followed> {
        let mut shards: Vec<(u32, u64, u64)> = Vec::new();
        for (sample, offset) in batch.samples.iter().zip(offsets) {
            match shards.iter_mut().find(|(shard, ..)| *shard == sample.url) {
                Some((_, first, last)) => {
                    (*first, *last) = ((*first).min(*offset), (*last).max(*offset));
                }
                None => shards.push((sample.url, *offset, *offset)),
            }
        }
        Box::new(Followed {
            epoch,
            run: batch.run,
            index: batch.index,
            samples: batch.samples.len(),
            bytes: batch.bytes,
            shards,
            stages: batch.stages.clone(),
            arrived_ns,
            decode: Stage { cause: Cause::Decode, start_ns: arrived_ns, end_ns: arrived_ns },
            brought: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use forebay_wire::PROTOCOL;
    use forebay_wire::frame::{self, Receiver};
    use forebay_wire::message::{Open, Order, Reply, Request};

    use super::*;
    use crate::address::Address;

    fn open(urls: Vec<String>) -> Open {
        Open { prefetch: 1, ..Open::new("test", urls, Order::of_list(1)) }
    }

    /// Greets one trainer and takes its job.
    fn greet(listener: &UnixListener) -> std::os::unix::net::UnixStream {
        let (socket, _) = listener.accept().unwrap();
        let mut receiver = Receiver::default();
        let opened = Opened { session: 1, lanes: 1, samples: None, batches: None };
        let welcome = Reply::Welcome { protocol: PROTOCOL, release: String::new(), pid: 1 };
        for reply in [welcome, Reply::Opened(opened)] {
            receiver.receive::<Request>(&socket).unwrap();
            frame::send(&socket, &frame::encode(&reply).unwrap(), &[]).unwrap();
        }
        socket
    }

    /// Opens a loader at a daemon that greets and says no more.
    fn silent_loader(timeout: Duration) -> (Loader, std::os::unix::net::UnixStream) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("d.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::scope(|scope| {
            let daemon = scope.spawn(|| greet(&listener));
            let open = open(vec!["file:///0.tar".into()]);
            let session = SessionConfig::new(Address::Unix(socket), open, timeout);
            let loader = Loader::open(LoaderConfig::new(session)).unwrap();
            (loader, daemon.join().unwrap())
        })
    }

    #[test]
    fn timeout_names_a_decoder_that_is_busy() {
        let (mut loader, _daemon) = silent_loader(Duration::from_secs(2));
        let (sender, raw) = bounded(1);
        let (decoded, _ready) = bounded(1);
        let work = Arc::new(Work {
            decoder: None,
            device: None,
            views: Vec::new(),
            urls: Arc::new([]),
            streams: Vec::new(),
            seed: 0,
            runs: Arc::new(Runs::new()),
            follows: false,
            order: InOrder::new(raw, decoded, 1),
        });
        let end = RawBatch::Failed { run: 0, error: Error::new(ErrorKind::Closed, "") };
        sender.send(end).unwrap();
        let in_hand = work.order.take();
        loader.work = Arc::downgrade(&work);
        let error = loader.next::<Error>(|| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(error.place("waited_for"), Some("decode"), "{error}");
        drop(in_hand);
    }

    /// A panic of the decode thread is reported as a bug, not as a closed loader.
    #[test]
    fn dead_decode_thread_is_not_reported_as_closed() {
        let (mut loader, _daemon) = silent_loader(Duration::from_secs(60));
        let (sender, ready) = bounded(1);
        let panicked = std::thread::spawn(move || {
            let _sender: crossbeam_channel::Sender<Ready> = sender;
            panic!("as a decoder might");
        });
        assert!(panicked.join().is_err());
        loader.ready = ready;
        let error = loader.next::<Error>(|| Ok(())).unwrap_err();
        assert!(error.message().contains("thread of the loader died"), "{error}");
        assert!(error.to_string().contains("bug"), "{error}");
    }
}
