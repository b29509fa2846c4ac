//! One connection: greet, register a job, carry events out and releases in.
//!
//! The client can end only its own session. Whatever it sends, the worst that follows is
//! an error to it and the end of its connection.

mod checkpoint;
mod incoming;
mod members;
mod ranges;

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use forebay_api::status;
use forebay_api::status::BadSamples;
use forebay_engine::session::{Event, Grant, Preface, Session};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_source::{self as source, Client, Ending, Handover, Listing, Options, Permit, Rate};
use forebay_store::{Listener, OnChange, Store};
use forebay_uring::{LentRegion, Region};
use forebay_wire::clock::now_ns;
use forebay_wire::frame;
use forebay_wire::leases::Sharing;
use forebay_wire::message::{
    Batch, Begin, Came, Cause, IN_SLOT, LeftOut, Located, Open, Progress, Reply, Request,
    RequestKind, Work,
};
use forebay_wire::{PROTOCOL, PROTOCOL_OLDEST, PROTOCOL_POSITIONS, commands};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};

pub use incoming::RequestMemory;

use crate::Node;
use crate::access::{Holder, Rights, SessionPermit};
use crate::sessions::RegisteredSession;
use incoming::{Incoming, Intake, received};
use ranges::RangeRequest;

/// Frames queued for a client that reads slowly. Batches are bounded by slots before that.
const OUTGOING: usize = 8;

/// Shards indexed at once for one client; more requests wait in the socket.
const INDEXING: usize = 8;

/// URLs in one piece of a list: keys have at most a kilobyte, so a piece has some megabytes.
const LISTED: usize = 4096;

/// Requests for one shard that another client's files failed to deliver.
const OTHERS: u32 = 8;

/// URLs of a job that are looked at in passing; more take longer than other connections should
/// wait.
const LONG_LIST: usize = 10_000;

/// Time to flush the queue of a departing client: eight frames take milliseconds for a client that
/// reads.
const LINGER: Duration = Duration::from_secs(1);

/// A frame to send, with what rides on it.
type Outgoing = (Vec<u8>, Option<Rider>);

/// A file descriptor sent along with a frame.
enum Rider {
    Slab(Arc<Region>),
    /// Memory of a tier, and the line that says if it is used.
    Memory {
        region: Arc<Region>,
        line: OwnedFd,
    },
    /// Memory of a client's checkpoints.
    Lent(Arc<LentRegion>),
    /// A reader's, to the client.
    Socket(OwnedFd),
    /// Standard output of a command, and the line that reports its end.
    Command {
        output: OwnedFd,
        line: OwnedFd,
    },
}

impl Rider {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Self::Slab(region) => vec![region.fd()],
            Self::Memory { region, line } => vec![region.fd(), line.as_fd()],
            Self::Lent(lent) => vec![lent.fd()],
            Self::Socket(socket) => vec![socket.as_fd()],
            Self::Command { output, line } => vec![output.as_fd(), line.as_fd()],
        }
    }
}

/// The way to a client for what it opens and runs. It keeps no connection open.
struct ToClient {
    outgoing: mpsc::WeakSender<Outgoing>,
}

impl ToClient {
    async fn send(&self, reply: &Reply, rider: Rider) -> Result<()> {
        let gone = || Error::new(ErrorKind::Closed, "the job that names the shard is gone");
        let outgoing = self.outgoing.upgrade().ok_or_else(gone)?;
        outgoing.send((frame::encode(reply)?, Some(rider))).await.map_err(|_| gone())
    }
}

#[async_trait]
impl Handover for ToClient {
    async fn hand(&self, socket: OwnedFd) -> Result<()> {
        self.send(&Reply::Reader, Rider::Socket(socket)).await
    }

    async fn run(&self, url: &str, output: OwnedFd) -> Result<Ending> {
        let (near, far) = UnixStream::pair().doing("create a socket pair to a client")?;
        let far = far.into_std().doing("create a socket pair to a client")?;
        far.set_nonblocking(false).doing("create a socket pair to a client")?;
        let reply = Reply::Command { url: url.to_owned() };
        self.send(&reply, Rider::Command { output, line: far.into() }).await?;
        Ok(Box::pin(async move {
            let mut line = commands::Line::default();
            received(&near, || line.try_hear(near.as_fd())).await?
        }))
    }
}

/// Serves one client to its end; calls `greeted` once the client has sent its greeting.
pub async fn serve(
    node: Arc<Node>,
    stream: Arc<UnixStream>,
    rights: Arc<Rights>,
    greeted: impl FnOnce() + Send,
) {
    let (outgoing, queue) = mpsc::channel(OUTGOING);
    let mut tasks = JoinSet::new();
    tasks.spawn(send_all(stream.clone(), queue));
    let mut connection = Connection {
        // Before a word is heard: what it asks for is charged.
        store: node.store_for(rights.last().tenant.as_deref()),
        rights,
        place: None,
        node: node.clone(),
        intake: Intake::new(stream),
        lists: HashMap::new(),
        outgoing,
        tasks,
        indexing: Arc::new(Semaphore::new(INDEXING)),
        pace: None,
        session: None,
        protocol: PROTOCOL_OLDEST,
        preface: Preface::default(),
        located: Vec::new(),
        traces: false,
        on_change: OnChange::default(),
        telling: None,
        checkpoint: checkpoint::Client::default(),
    };
    if let Err(error) = connection.run(greeted).await
        && error.kind() != ErrorKind::Closed
    {
        let session = connection.session.as_ref();
        let (number, tenant) = (session.map(|of| of.number), connection.store.tenant());
        let job = session.map(|of| status::cut(of.lock().name()));
        let dataset = session.map(|of| &*of.datasets);
        tracing::warn!(session = number, job, tenant, dataset, %error, "ended a connection");
        // The client may be gone; if it is not, it learns why.
        let _ = connection.reply(&Reply::Failed { run: None, error }).await;
    }
    connection.leave().await;
}

struct Connection {
    node: Arc<Node>,
    /// The cache as the client's tenant uses it.
    store: Store,
    intake: Intake,
    /// Memory of the job's lists: a later list of the same kind replaces the earlier one.
    lists: HashMap<RequestKind, Grant>,
    outgoing: mpsc::Sender<Outgoing>,
    tasks: JoinSet<()>,
    indexing: Arc<Semaphore>,
    /// Rate limit of fetches for tools.
    pace: Option<Arc<Rate>>,
    session: Option<RegisteredSession>,
    /// Protocol version of both sides.
    protocol: u32,
    /// Facts about the next job.
    preface: Preface,
    /// Places of the samples that the job picks next.
    located: Vec<Located>,
    /// True if the next job asks for its shards' arrivals.
    traces: bool,
    /// Treatment of shards that change during a run of the next job.
    on_change: OnChange,
    /// Task that reports arrivals.
    telling: Option<AbortHandle>,
    /// Rights of the client.
    rights: Arc<Rights>,
    /// The job's slot among those of its tenant or user.
    place: Option<SessionPermit>,
    /// Checkpoints of the client.
    checkpoint: checkpoint::Client,
}

impl Connection {
    /// Receives the client's greeting and answers it.
    async fn greet(&mut self) -> Result<()> {
        let Request::Hello { protocol, .. } = self.intake.greeting().await? else {
            return Err(Error::new(ErrorKind::Invalid, "a connection starts with a greeting"));
        };
        if protocol < PROTOCOL_OLDEST {
            return Err(Error::new(ErrorKind::Invalid, "the client's protocol is too old")
                .at("protocol", protocol)
                .at("oldest", PROTOCOL_OLDEST)
                .advise("install the same release on both sides"));
        }
        self.protocol = protocol.min(PROTOCOL);
        self.reply(&Reply::Welcome {
            protocol: self.protocol,
            release: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
        })
        .await
    }

    async fn run(&mut self, greeted: impl FnOnce()) -> Result<()> {
        self.greet().await?;
        greeted();
        self.store = self.store.for_client(&self.client());
        loop {
            match self.receive().await? {
                Request::Hello { .. } => {
                    return Err(Error::new(ErrorKind::Invalid, "a connection sends one greeting"));
                }
                Request::Open(open) => self.open(*open).await?,
                Request::Start { run, epoch, batch } => {
                    self.begins()?.start(run, Begin::at(epoch, batch));
                }
                Request::Play { run, begin } => self.begins()?.start(run, begin),
                Request::PlayAhead { run, begin } => self.begins()?.start_ahead(run, begin),
                Request::Confirm { run } => self.confirm(run).await?,
                Request::Mix(mixture) => self.preface.mixture = mixture,
                Request::Extent(extent) => self.preface.extent = Some(extent),
                Request::Choose { shards } => self.preface.chosen = Some(shards),
                Request::Join(joined) => self.preface.joined = joined,
                Request::Bin(binning) => self.preface.binning = Some(*binning),
                Request::Trace => self.traces = true,
                Request::ServeChanges => self.on_change = OnChange::Serve,
                Request::Borrow => self.preface.borrows = true,
                Request::Parts(estimate) => self.preface.parts = Some(estimate),
                Request::Placed { shard, located } => {
                    self.session()?.lock().placed(shard, located);
                }
                Request::Locate { shards } => self.located = shards,
                Request::Pick { run, samples } => {
                    let located = std::mem::take(&mut self.located);
                    self.begins()?.pick(run, samples, located);
                }
                Request::Bad(bad) => self.session()?.told().bad_samples = BadSamples::told(bad),
                Request::Progress(progress) => self.progress(*progress)?,
                Request::Share { run, sharing } => self.share(run, *sharing)?,
                Request::Acknowledge { run, number, batch, marks } => {
                    let marks = self.session()?.lock().acknowledge(run, number, batch, &marks)?;
                    if let Some(error) = marks {
                        self.reply(&Reply::Unrecorded { run, number, error }).await?;
                    }
                }
                Request::Explain { run } => {
                    let wait = self.session()?.lock().awaited();
                    self.reply(&Reply::Awaited { run, wait }).await?;
                }
                Request::Release { slab, slot } => self.session()?.lock().release(slab, slot),
                Request::Index { url, origin } => self.index(url, Options::from(origin)).await?,
                Request::Members { url, origin, first } => {
                    self.members(url, Options::from(origin), first).await?;
                }
                Request::Range { number, url, origin, version, at, len } => {
                    let wanted = RangeRequest { number, url, version, at, len };
                    self.range(wanted, Options::from(origin)).await?;
                }
                Request::List { pattern, origin } => {
                    self.list(pattern, Options::from(origin)).await?;
                }
                Request::Checkpoint(request) => self.checkpoint(*request).await?,
                Request::Pace { bandwidth } => {
                    self.pace = Some(Arc::new(Rate::new(bandwidth)));
                }
            }
        }
    }

    /// The client, as sources judge it.
    fn client(&self) -> Client {
        let who = self.rights.last();
        Client {
            name: format!("connection {}", self.node.sessions.next_client()),
            user: who.owner,
            permit: (!who.is_admin).then(|| self.rights.clone() as Arc<dyn Permit>),
            handover: Arc::new(ToClient { outgoing: self.outgoing.downgrade() }),
        }
    }

    /// Returns the job, of which a run begins.
    fn begins(&self) -> Result<MutexGuard<'_, Session>> {
        let session = self.session()?;
        session.pace().begins();
        Ok(session.lock())
    }

    /// Notes the trainer's waits, the decoders of its rows, and its slowest samples.
    fn progress(&self, mut progress: Progress) -> Result<()> {
        let session = self.session()?;
        let decoders = status::decoders(std::mem::take(&mut progress.decoded));
        let slowest = status::slowest(std::mem::take(&mut progress.slowest));
        let mut told = session.told();
        (told.decoders, told.slowest) = (decoders, slowest);
        drop(told);
        session.pace().heard(progress, Instant::now());
        Ok(())
    }

    fn session(&self) -> Result<&RegisteredSession> {
        let none = || Error::new(ErrorKind::Invalid, "no job is open on this connection");
        self.session.as_ref().ok_or_else(none)
    }

    /// Registers the job. A job that makes no sense is told so; the connection lives on.
    async fn open(&mut self, open: Open) -> Result<()> {
        if self.session.is_some() {
            return Err(Error::new(ErrorKind::Invalid, "a connection carries one job"));
        }
        let mut preface = std::mem::take(&mut self.preface);
        let place = match self.may_open(&open) {
            Ok(place) => place,
            Err(error) => return self.reply(&Reply::Failed { run: None, error }).await,
        };
        // The memory of a tier has shards of everybody. Decided just now, by the rights in force.
        preface.borrows &= self.rights.last().reads_all;
        // It may be another's by the policy in force now.
        self.store = self.store.for_tenant(self.rights.last().tenant.as_deref());
        let number = self.node.sessions.next_session();
        let host = self.node.host(self.store.for_job(number).named(&status::cut(&open.job)));
        host.store.set_on_change(std::mem::take(&mut self.on_change));
        // Before it begins, so that nothing of it is missed.
        let traced =
            std::mem::take(&mut self.traces).then(|| (self.store.listen(), open.urls.clone()));
        let datasets = self.store.datasets_of(open.urls.iter().take(LONG_LIST)).join(", ");
        let opened = Session::open(number, open, preface, host);
        let (session, events) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.reply(&Reply::Failed { run: None, error }).await,
        };
        let opened = session.opened();
        let tenant = self.store.tenant().map(str::to_owned);
        let job = status::cut(session.name());
        tracing::info!(session = number, job, tenant, dataset = datasets, "opened a job");
        let session = Arc::new(Mutex::new(session));
        let (told, pace) = Default::default();
        let pid = self.rights.pid();
        let registered = RegisteredSession { number, tenant, pid, datasets, session, told, pace };
        self.node.sessions.lock().await.push(registered.clone());
        (self.session, self.place) = (Some(registered), place);
        self.reply(&Reply::Opened(opened)).await?;
        if let Some((listener, urls)) = traced {
            let telling = tell_what_comes(listener, urls, self.outgoing.clone());
            self.telling = Some(self.tasks.spawn(telling));
        }
        self.tasks.spawn(forward(events, self.outgoing.clone(), self.protocol));
        Ok(())
    }

    /// Refuses a job that is one too many, or of which a shard is not for this client. Admins whose
    /// jobs are no tenant's have as many as they like.
    fn may_open(&self, open: &Open) -> Result<Option<SessionPermit>> {
        let (policy, admitted) =
            self.rights.now().map_err(|error| self.rights.refused("open", error))?;
        let holder = match (&admitted.tenant, admitted.is_admin) {
            (Some(tenant), _) => Some(Holder::Tenant(tenant.clone())),
            (None, false) => Some(Holder::User(admitted.owner)),
            (None, true) => None,
        };
        let limits = policy.limits(admitted.tenant.as_deref());
        let place = holder.map(|holder| self.node.usage.open(holder, limits)).transpose();
        let place = place.map_err(|error| self.rights.refused("open", error))?;
        match open.urls.len() > LONG_LIST {
            // Other connections are not to wait for it.
            true => tokio::task::block_in_place(|| self.rights.read_all(&open.urls))?,
            false => self.rights.read_all(&open.urls)?,
        }
        Ok(place)
    }

    /// Begins a run of leased shards, in a queue of this client's user.
    fn share(&mut self, run: u64, sharing: Sharing) -> Result<()> {
        let owner = self.rights.last().owner;
        let leases = self.node.leases.of(sharing.keeper.as_deref(), sharing.is_spread);
        self.begins()?.share(run, sharing, leases, owner);
        Ok(())
    }

    /// Compares the shards of a run that began ahead, once its consumer has come.
    async fn confirm(&mut self, run: u64) -> Result<()> {
        let confirmed = self.session()?.lock().confirm(run);
        let outgoing = self.outgoing.clone();
        self.beside(async move {
            let holds = confirmed.await;
            // A client that left does not want it any more.
            let _ = send(&outgoing, &Reply::Confirmed { run, holds }).await;
        })
        .await
    }

    /// Does work beside everything else; at the limit, requests wait.
    async fn beside(&mut self, work: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        while self.tasks.try_join_next().is_some() {}
        let permit = self.indexing.clone().acquire_owned().await;
        let permit = permit.map_err(|_| Error::shutting_down())?;
        self.tasks.spawn(async move {
            work.await;
            drop(permit);
        });
        Ok(())
    }

    /// Indexes a shard.
    async fn index(&mut self, url: String, origin: Options) -> Result<()> {
        let (store, outgoing) = (self.store.paced(self.pace.clone()), self.outgoing.clone());
        self.beside(async move {
            let reply = match count(&store, &url, &origin).await {
                Ok((bytes, samples)) => Reply::Shard { url, bytes, samples },
                Err(error) => Reply::Failed { run: None, error },
            };
            // A client that left does not want it any more.
            let _ = send(&outgoing, &reply).await;
        })
        .await
    }

    /// Lists what a pattern means.
    async fn list(&mut self, pattern: String, origin: Options) -> Result<()> {
        let (store, outgoing) = (self.store.clone(), self.outgoing.clone());
        let hears = self.protocol >= PROTOCOL_POSITIONS;
        self.beside(async move {
            let told = match store.list(&pattern, &origin).await {
                Ok(Listing { urls, left_out: source::LeftOut { count, keys } }) => {
                    let left_out = (hears && count > 0).then_some(LeftOut { count, keys });
                    tell(&outgoing, &urls, left_out).await
                }
                Err(error) => send(&outgoing, &Reply::Failed { run: None, error }).await,
            };
            // A client that left does not want it any more.
            drop(told);
        })
        .await
    }

    async fn reply(&self, reply: &Reply) -> Result<()> {
        send(&self.outgoing, reply).await
    }

    async fn receive(&mut self) -> Result<Request> {
        let Node { slabs, requests, .. } = &*self.node;
        let Incoming { request, list } = self.intake.next(slabs, requests).await?;
        self.lists.extend(list);
        Ok(request)
    }

    /// Ends the job. What is queued for the client is still sent if it takes it at once.
    async fn leave(mut self) {
        self.place = None;
        if let Some(left) = self.session.take() {
            let (whose, waited) = left.waited();
            let (job, tenant) = &whose;
            tracing::info!(
                session = left.number,
                job,
                tenant,
                dataset = left.datasets,
                "a job left"
            );
            let mut sessions = self.node.sessions.lock().await;
            sessions.retain(|other| other.number != left.number);
            // While nobody can look: it is told of once.
            self.node.costs.left(whose, &waited);
        }
        if let Some(telling) = self.telling.take() {
            telling.abort();
        }
        drop(self.outgoing);
        let sent = async { while self.tasks.join_next().await.is_some() {} };
        // A client that no longer reads gets a reset instead of tasks that wait for ever.
        if tokio::time::timeout(LINGER, sent).await.is_err() {
            self.tasks.shutdown().await;
        }
    }
}

async fn send(outgoing: &mpsc::Sender<Outgoing>, reply: &Reply) -> Result<()> {
    let gone = |_| Error::new(ErrorKind::Closed, "the client is gone");
    outgoing.send((frame::encode(reply)?, None)).await.map_err(gone)
}

/// Sends a list in pieces.
async fn tell(
    outgoing: &mpsc::Sender<Outgoing>,
    urls: &[String],
    left_out: Option<LeftOut>,
) -> Result<()> {
    if let Some(left_out) = left_out {
        send(outgoing, &Reply::LeftOut(left_out)).await?;
    }
    let mut left = urls.len();
    for piece in urls.chunks(LISTED) {
        left -= piece.len();
        send(outgoing, &Reply::Listed { urls: piece.to_vec(), more: left > 0 }).await?;
    }
    Ok(())
}

/// The bytes and samples of a shard, fetched if need be.
async fn count(store: &Store, url: &str, origin: &Options) -> Result<(u64, u64)> {
    let shard = members::whole(store, url, origin).await?;
    Ok((shard.len(), shard.progress().samples))
}

/// Tells a job what comes in of its shards, whoever wanted them.
async fn tell_what_comes(
    mut listener: Listener,
    urls: Vec<String>,
    outgoing: mpsc::Sender<Outgoing>,
) {
    let shards: HashMap<String, u32> = urls.into_iter().zip(0..).collect();
    let mut missed = 0;
    while let Some((happened, before)) = listener.next().await {
        missed += before;
        let Some(shard) = shards.get(&*happened.url) else { continue };
        let ago = |moment: Instant| {
            let ago = moment.elapsed().as_nanos();
            now_ns().saturating_sub(u64::try_from(ago).unwrap_or(u64::MAX))
        };
        let work = match happened.work {
            forebay_store::FetchStep::Fetched(Range { start: from, end: until }) => {
                Work::Fetched { from, until }
            }
            forebay_store::FetchStep::Kept(tier) => Work::Kept { tier: tier.to_string() },
        };
        let came = Came {
            shard: *shard,
            work,
            start_ns: ago(happened.since),
            end_ns: ago(happened.until),
            missed: std::mem::take(&mut missed),
        };
        if send(&outgoing, &Reply::Came(came)).await.is_err() {
            return;
        }
    }
}

/// Carries a session's events to its client, which speaks `protocol`.
async fn forward(
    mut events: mpsc::Receiver<Event>,
    outgoing: mpsc::Sender<Outgoing>,
    protocol: u32,
) {
    while let Some(event) = events.recv().await {
        let (reply, rider) = match event {
            Event::Slab { slab, region, batches } => {
                let len = region.len() as u64;
                (Reply::Slab { slab, len, batches }, Some(Rider::Slab(region)))
            }
            Event::Memory { memory, region, line } => {
                let len = region.len() as u64;
                (Reply::Memory { memory, len }, Some(Rider::Memory { region, line }))
            }
            // A client of the release before knows no such word.
            Event::Learnt { .. } if protocol < PROTOCOL_POSITIONS => continue,
            Event::Learnt { run, counts } => (Reply::Learnt { run, counts }, None),
            Event::Batch { batch, offsets } if protocol >= PROTOCOL_POSITIONS => {
                (placed(batch, offsets), None)
            }
            Event::Batch { mut batch, .. } => {
                // As that client knows it.
                for stage in &mut batch.stages {
                    stage.cause = match stage.cause {
                        Cause::Slab => Cause::RingEmpty,
                        Cause::Peer => Cause::Origin,
                        known => known,
                    };
                }
                (Reply::Batch(batch), None)
            }
            Event::End(end) => (Reply::End(end), None),
            Event::Failed { run, error } => (Reply::Failed { run: Some(run), error }, None),
            Event::Locate { shard } => (Reply::Locate { shard }, None),
            Event::Acknowledged { run, number, place } => {
                (Reply::Acknowledged { run, number, place }, None)
            }
            Event::Unrecorded { run, number, error } => {
                (Reply::Unrecorded { run, number, error }, None)
            }
        };
        let run = match &reply {
            Reply::Batch(batch) | Reply::Placed { batch, .. } | Reply::Lent { batch, .. } => {
                Some(batch.run)
            }
            Reply::End(end) => Some(end.run),
            _ => None,
        };
        // A batch too large for a frame ends its run with the reason.
        let frame = frame::encode(&reply)
            .or_else(|error| frame::encode(&Reply::Failed { run, error }))
            .expect("errors fit into a frame");
        if outgoing.send((frame, rider)).await.is_err() {
            return;
        }
    }
}

/// Makes the message of a batch.
fn placed(batch: Box<Batch>, offsets: Vec<u64>) -> Reply {
    let memories = batch.memories();
    match memories.iter().all(|memory| *memory == IN_SLOT) {
        true => Reply::Placed { batch, offsets },
        false => Reply::Lent { batch, offsets, memories },
    }
}

/// Sends frames in order until the queue ends or the client is gone.
async fn send_all(stream: Arc<UnixStream>, mut queue: mpsc::Receiver<Outgoing>) {
    while let Some((frame, rider)) = queue.recv().await {
        let mut sent = 0;
        while sent < frame.len() {
            let rider = rider.as_ref().filter(|_| sent == 0);
            let riders = rider.map(Rider::descriptors).unwrap_or_default();
            let some = stream
                .async_io(Interest::WRITABLE, || {
                    frame::send(stream.as_fd(), &frame[sent..], &riders)
                })
                .await;
            match some {
                Ok(some) => sent += some,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::debug!(%error, "the client is gone");
                    return;
                }
            }
        }
    }
}
