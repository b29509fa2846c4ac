//! Replies to other nodes: about shards, and with their bytes.
//!
//! Memory bounds what is served at once. A request that finds none within [`MEMORY_WAIT`] is told
//! to come again: the asker waits, and does not go to the origin.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use forebay_error::{Error, ErrorKind, Result};
use forebay_peers::message::{
    BYTES, BytesRequest, Greeting, HAS, HELLO, INDEX, KEEP, MAX_REQUEST, PART_MEMBERS, RANGE_HEAD,
    Reply, STAT, SUSPECT, ShardRequest,
};
use forebay_peers::replicas::{FILE_BYTES, FILE_STATES, KEEP_FILE};
use forebay_shard::IndexPart;
use forebay_shard::checksum::crc32c;
use forebay_source::Rate;
use forebay_store::{PeerShard, Shard, Store};
use forebay_uring::{Arena, Span};
use futures::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use crate::replicas::Replicas;
use crate::server::{Asker, Guard, Tally};

/// Wait for serving memory: some blocks at a gigabit.
pub(crate) const MEMORY_WAIT: Duration = Duration::from_millis(500);

/// Pause that a busy node asks for, in seconds.
const RETRY_AFTER: &str = "0.25";

/// Time in which the body of a request must come: a few round trips, on a busy node.
const BODY_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes that are sent at once where `serve` limits the rate: an asker that waits hears of the next
/// ones before it takes the pause for silence.
const PIECE: usize = 64 << 10;

/// Interval of signs of life while a reply waits: well below the silence that an asker accepts.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Shards that wait to be compared with their checksums.
pub(crate) const SUSPECTS: usize = 16;

/// Second copies that are made or wait for it. Fills take turns of their own; a node that has more
/// to copy tells its askers to come again.
pub(crate) const SECOND_COPIES: usize = 64;

/// Frames that wait for the connection.
const FRAMES_AHEAD: usize = 4;

/// Body of a reply.
pub(crate) type Body = UnsyncBoxBody<Bytes, Error>;

/// Answers of a node.
pub(crate) struct Answers {
    pub(crate) store: Store,
    pub(crate) greeting: watch::Receiver<Greeting>,
    pub(crate) memory: Arena,
    pub(crate) rate: Rate,
    /// Judge of requests.
    pub(crate) guard: Arc<dyn Guard>,
    /// Permits of shards that wait to be compared.
    pub(crate) suspects: Arc<Semaphore>,
    /// Permits of second copies.
    pub(crate) second_copies: Arc<Semaphore>,
    pub(crate) tally: Arc<Tally>,
    /// Files of checkpoints; none while the node starts.
    pub(crate) replicas: Arc<OnceLock<Weak<dyn Replicas>>>,
}

/// Bytes on their way to the connection.
pub(crate) struct Sent {
    span: Span,
    range: Range<usize>,
}

impl Sent {
    pub(crate) fn new(span: Span, range: Range<usize>) -> Self {
        Self { span, range }
    }
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.span[self.range.clone()]
    }
}

impl Answers {
    /// Answers a request of the member with this name; none: the certificate names no member.
    pub(crate) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        asker: &Asker,
        member: Option<&str>,
    ) -> Response<Body> {
        self.tally.requests.fetch_add(1, Ordering::Relaxed);
        let path = request.uri().path().to_owned();
        if (request.method(), path.as_str()) == (&Method::POST, HELLO) {
            // Nodes that have no list yet find each other by it.
            return self.greet();
        }
        let Some(member) = member else {
            let what = "the certificate of the asking node names no member of the cluster";
            let error = Error::new(ErrorKind::PermissionDenied, what);
            let error = error.at("names", asker.names.join(", "));
            let error = error.advise("add the node to the member list of all nodes");
            self.tally.rejected.fetch_add(1, Ordering::Relaxed);
            self.guard.note_rejected(&asker.from, &error);
            return failed(&error);
        };
        let answered = match (request.method(), path.as_str()) {
            (&Method::POST, STAT) => self.clone().stat(request, member).await,
            (&Method::POST, INDEX) => self.clone().index(request, member).await,
            (&Method::POST, BYTES) => self.clone().bytes(request, member).await,
            (&Method::POST, SUSPECT) => self.suspect(request, member).await,
            (&Method::POST, KEEP) => self.keep(request, member).await,
            (&Method::POST, HAS) => self.has(request, member).await,
            (&Method::POST, KEEP_FILE) => self.clone().keep_file(request, member).await,
            (&Method::POST, FILE_BYTES) => self.clone().file_bytes(request, member).await,
            (&Method::POST, FILE_STATES) => self.file_states(request).await,
            _ => Err(Error::new(ErrorKind::Invalid, "unknown request of another node")
                .at("path", &path)
                .advise("upgrade the nodes of a cluster one release at a time")),
        };
        answered.unwrap_or_else(|error| {
            if error.kind() != ErrorKind::NotFound {
                self.tally.failed.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(node = member, path, %error, "another node's request failed");
            }
            failed(&error)
        })
    }

    fn greet(&self) -> Response<Body> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let unix_time = now.map_or(0, |now| now.as_secs());
        let greeting = self.greeting.borrow().clone();
        document(StatusCode::OK, &Greeting { unix_time, ..greeting })
    }

    /// Reads a request about a shard, which the asking node's tenant must be allowed to read.
    async fn asked(&self, request: Request<Incoming>, member: &str) -> Result<ShardRequest> {
        let request: ShardRequest = read(request).await?;
        self.guard.may_read(member, request.tenant.as_deref(), &request.url)?;
        Ok(request)
    }

    async fn stat(
        self: Arc<Self>,
        request: Request<Incoming>,
        member: &str,
    ) -> Result<Response<Body>> {
        let request = self.asked(request, member).await?;
        Ok(frames(move |frames| async move {
            let stat = alive(&frames, self.store.stat_for_peer(&request)).await?;
            frames.reply(&stat.map_or_else(Reply::Failed, Reply::Stat)).await
        }))
    }

    async fn index(
        self: Arc<Self>,
        request: Request<Incoming>,
        member: &str,
    ) -> Result<Response<Body>> {
        let request = self.asked(request, member).await?;
        Ok(frames(move |frames| async move {
            match alive(&frames, self.store.shard_for_peer(&request, true)).await? {
                Ok(shard) => send_index(&shard, request.is_awaited, &frames).await,
                Err(error) => frames.reply(&Reply::Failed(error)).await,
            }
        }))
    }

    /// Answers what this node has of a shard. Nothing is fetched for it.
    async fn has(&self, request: Request<Incoming>, member: &str) -> Result<Response<Body>> {
        let request = self.asked(request, member).await?;
        let presence = self.store.presence_for_peer(&request).await?;
        Ok(document(StatusCode::OK, &presence))
    }

    /// Takes notice of a shard whose bytes another node found wrong. It is compared later.
    async fn suspect(&self, request: Request<Incoming>, member: &str) -> Result<Response<Body>> {
        let request = self.asked(request, member).await?;
        let Ok(permit) = self.suspects.clone().try_acquire_owned() else { return Ok(busy()) };
        let (node, url) = (member, forebay_error::shown(&request.url));
        tracing::warn!(node, url, "another node found wrong bytes of a shard: it is compared");
        self.compare(request, permit);
        Ok(document(StatusCode::OK, &true))
    }

    /// Compares the copies of a shard, and drops those that are corrupt.
    fn compare(&self, request: ShardRequest, permit: OwnedSemaphorePermit) {
        let store = self.store.clone();
        tokio::spawn(async move {
            if let Err(error) = store.compare_for_peer(&request).await {
                let url = forebay_error::shown(&request.url);
                tracing::warn!(url, %error, "a shard cannot be compared");
            }
            drop(permit);
        });
    }

    /// Takes notice of a shard of which this node keeps the second copy. It is copied later.
    async fn keep(&self, request: Request<Incoming>, member: &str) -> Result<Response<Body>> {
        let request = self.asked(request, member).await?;
        let (store, node) = (self.store.clone(), member.to_owned());
        let permit = self.second_copies.clone().acquire_owned();
        let Ok(permit) = tokio::time::timeout(MEMORY_WAIT, permit).await else {
            return Ok(busy());
        };
        tokio::spawn(async move {
            if let Err(error) = store.keep_for_peer(&request).await {
                let url = forebay_error::shown(&request.url);
                tracing::debug!(node, url, %error, "the second copy of a shard is not kept");
            }
            drop(permit);
        });
        Ok(document(StatusCode::OK, &true))
    }

    async fn bytes(
        self: Arc<Self>,
        request: Request<Incoming>,
        member: &str,
    ) -> Result<Response<Body>> {
        let request: BytesRequest = read(request).await?;
        request.check()?;
        self.guard.may_read(member, request.shard.tenant.as_deref(), &request.shard.url)?;
        let shard = self.store.shard_for_peer(&request.shard, false).await?;
        let ranges: Vec<_> = request
            .ranges
            .iter()
            .map(|(start, len)| *start..shard.end_of(start + len).max(*start))
            .collect();
        let sums = match request.of_object {
            true => Some(
                ranges.iter().map(|range| shard.block_sum(range)).collect::<Result<Vec<_>>>()?,
            ),
            false => None,
        };
        let footprints = ranges.iter().filter(|range| !range.is_empty()).map(Shard::footprint);
        let rooms: Vec<_> = footprints
            .map(|part| usize::try_from(part.end - part.start).unwrap_or(usize::MAX))
            .collect();
        // At once: a reply that holds a part of its memory while it waits could block another.
        let Ok(leased) = tokio::time::timeout(MEMORY_WAIT, self.lease(rooms.iter().sum())).await
        else {
            self.tally.busy.fetch_add(1, Ordering::Relaxed);
            return Ok(busy());
        };
        let mut memory = leased?;
        let wanted = ranges.iter().filter(|range| !range.is_empty()).zip(rooms);
        let wanted = wanted.map(|(range, room)| (range.clone(), memory.split_to(room))).collect();
        let mut read = shard.read(wanted).await?.into_iter();
        let mut sent = Vec::with_capacity(2 * ranges.len());
        for (at, range) in ranges.iter().enumerate() {
            let mut head = Vec::with_capacity(RANGE_HEAD);
            let bytes = if range.is_empty() { None } else { read.next() };
            let Some((span, place)) = bytes else {
                head.extend_from_slice(&[0; RANGE_HEAD]);
                sent.push(Bytes::from(head));
                continue;
            };
            let bytes = Sent::new(span, place);
            let sum = crc32c(bytes.as_ref());
            if sums.as_ref().is_some_and(|sums| sums[at] != sum) {
                return Err(self.flawed(request.shard, range.start));
            }
            // A request asks for less than 4 GiB.
            head.extend_from_slice(&(bytes.as_ref().len() as u32).to_le_bytes());
            head.extend_from_slice(&sum.to_le_bytes());
            self.tally.sent_bytes.fetch_add(bytes.as_ref().len() as u64, Ordering::Relaxed);
            sent.extend([Bytes::from(head), Bytes::from_owner(bytes)]);
        }
        Ok(paced(self, sent))
    }

    /// Leases serving memory. A lease has a byte at least.
    pub(crate) async fn lease(&self, bytes: usize) -> Result<Span> {
        self.memory.lease(bytes.max(1)).await
    }

    /// Has a copy compared of which a block is wrong, and returns the answer: a node without a good
    /// copy has none.
    fn flawed(&self, shard: ShardRequest, offset: u64) -> Error {
        let what = "a block of the copy differs from its checksum";
        let error =
            Error::new(ErrorKind::NotFound, what).at("url", &shard.url).at("offset", offset);
        if let Ok(permit) = self.suspects.clone().try_acquire_owned() {
            self.compare(shard, permit);
        }
        error
    }
}

/// Returns a reply of bytes, no faster than the node may serve.
pub(crate) fn paced(answers: Arc<Answers>, sent: Vec<Bytes>) -> Response<Body> {
    let pieces = futures::stream::iter(sent.into_iter().flat_map(pieces));
    let paced = pieces.then(move |piece| {
        let answers = answers.clone();
        async move {
            answers.rate.take(piece.len() as u64).await;
            Ok(Frame::data(piece))
        }
    });
    Response::new(StreamBody::new(paced).boxed_unsync())
}

/// Cuts bytes into pieces of [`PIECE`].
fn pieces(mut bytes: Bytes) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || {
        let piece = bytes.split_to(bytes.len().min(PIECE));
        (!piece.is_empty()).then_some(piece)
    })
}

/// Sends the samples of a shard as they are indexed.
async fn send_index(shard: &PeerShard, is_awaited: bool, frames: &Frames) -> Result<()> {
    let (mut sent, mut known_fields) = (0, 0);
    loop {
        let part = {
            let index = shard.index();
            let part = IndexPart::of(&index, sent, known_fields, PART_MEMBERS);
            known_fields = part.as_ref().map_or(known_fields, |_| index.fields().len());
            part
        };
        if let Some(part) = part {
            sent += part.len();
            frames.reply(&Reply::Samples(part)).await?;
            continue;
        }
        let progress = match alive(frames, shard.more_than(sent, is_awaited)).await? {
            Ok(progress) => progress,
            Err(error) => return frames.reply(&Reply::Failed(error)).await,
        };
        if progress.samples > sent {
            continue;
        }
        if progress.counted {
            let (len, is_unpacked) = (shard.len(), shard.is_unpacked());
            return frames.reply(&Reply::End { len, is_unpacked }).await;
        }
    }
}

/// Frames of a reply, on their way to the connection.
pub(crate) struct Frames(mpsc::Sender<std::result::Result<Frame<Bytes>, Error>>);

impl Frames {
    /// Sends a frame.
    ///
    /// # Errors
    /// `Closed` if the asker is gone.
    pub(crate) async fn reply(&self, reply: &Reply) -> Result<()> {
        let frame = Frame::data(Bytes::from(reply.encode()?));
        let gone = |_| Error::new(ErrorKind::Closed, "the asking node is gone");
        self.0.send(Ok(frame)).await.map_err(gone)
    }
}

/// Runs some work, with signs of life meanwhile.
pub(crate) async fn alive<T>(frames: &Frames, work: impl Future<Output = T>) -> Result<T> {
    let mut work = std::pin::pin!(work);
    loop {
        match tokio::time::timeout(HEARTBEAT, work.as_mut()).await {
            Ok(done) => return Ok(done),
            Err(_) => frames.reply(&Reply::Waiting).await?,
        }
    }
}

/// Returns a reply whose frames `send` sends.
pub(crate) fn frames<F>(send: impl FnOnce(Frames) -> F) -> Response<Body>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let (sender, mut receiver) = mpsc::channel(FRAMES_AHEAD);
    let breaker = sender.clone();
    let sending = send(Frames(sender));
    tokio::spawn(async move {
        let broke = tokio::select! {
            sent = sending => sent.err(),
            // Nobody reads: what the asker waited for is not needed any more.
            () = breaker.closed() => None,
        };
        if let Some(error) = broke {
            // The asker finds the reply broken off.
            let _: std::result::Result<(), _> = breaker.send(Err(error)).await;
        }
    });
    let stream = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
    Response::new(StreamBody::new(stream).boxed_unsync())
}

/// Reads the body of a request.
pub(crate) async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T> {
    read_up_to(request, MAX_REQUEST).await
}

/// Reads a body of at most `limit` bytes.
pub(crate) async fn read_up_to<T: DeserializeOwned>(
    request: Request<Incoming>,
    limit: usize,
) -> Result<T> {
    let invalid = |why: String| Error::new(ErrorKind::Invalid, format!("invalid request: {why}"));
    let body = Limited::new(request.into_body(), limit).collect();
    let body = tokio::time::timeout(BODY_TIMEOUT, body).await;
    let body = body.map_err(|_| invalid("its body does not come".to_owned()))?;
    let body = body.map_err(|error| invalid(error.to_string()).at("limit", limit))?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| invalid(error.to_string()))
}

pub(crate) fn busy() -> Response<Body> {
    let error = Error::new(ErrorKind::Unavailable, "this node serves as much as it may");
    let mut response = document(StatusCode::SERVICE_UNAVAILABLE, &error);
    response
        .headers_mut()
        .insert("retry-after", hyper::header::HeaderValue::from_static(RETRY_AFTER));
    response
}

/// Returns the reply for an error.
fn failed(error: &Error) -> Response<Body> {
    let status = match error.kind() {
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::PermissionDenied if error.place("url").is_none() => StatusCode::FORBIDDEN,
        ErrorKind::Unavailable if error.place("reason") == Some("changed") => {
            StatusCode::PRECONDITION_FAILED
        }
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    document(status, error)
}

pub(crate) fn document<T: serde::Serialize>(status: StatusCode, content: &T) -> Response<Body> {
    // Greetings and errors are made of texts and numbers.
    let body = serde_json::to_vec(content).unwrap_or_default();
    let never = |never: std::convert::Infallible| match never {};
    let mut response = Response::new(Full::from(body).map_err(never).boxed_unsync());
    *response.status_mut() = status;
    response
}
