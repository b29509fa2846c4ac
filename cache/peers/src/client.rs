//! Client of the other nodes: connections, failures and their counts.
//!
//! Nobody announces that a node is dead. The node that asks finds out: a connection must come
//! within a second, and a reply may not pause for three. A node that failed is left alone for a
//! while, which doubles as long as it fails.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use forebay_cluster::{Member, ObjectKey, Ring};
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::Stat;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::message::{
    BYTES, BytesRequest, FRAME_HEAD, Greeting, HAS, HELLO, INDEX, KEEP, MAX_FRAME, Presence, Reply,
    STAT, SUSPECT, ShardRequest,
};
use crate::peer::{Asked, Failure, Fallback, Peer, PeerReport};
use crate::ranges::RangesReader;
use crate::routes::{Route, Routes};
use crate::tls::PeerTls;

/// Time in which a connection must be made: a hundred times that of a busy node in another hall.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Time without a byte after which a node counts as dead. A node that waits for its origin sends a
/// frame each second.
const SILENCE: Duration = Duration::from_secs(3);

/// Attempts at a busy node. With [`BUSY_PAUSE`] that is the time in which a full serving memory
/// drains over a slow link.
const BUSY_ATTEMPTS: u32 = 20;
/// Time between them, if the node names none; and the longest that it may name.
const BUSY_PAUSE: Duration = Duration::from_millis(250);
/// Shortest pause, whatever a node asks for.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// Rate below which a reply counts as silence, in bytes per second: a megabit. A node that serves
/// as much as it may asks to come again instead.
const SLOWEST: u64 = 128 << 10;

/// Idle connections kept to each node: as many as fills and records of a batch use at once.
const IDLE_CONNECTIONS: usize = 32;

/// Maximum bytes of an error document or a greeting.
const MAX_DOCUMENT: usize = 64 << 10;

/// Addresses of members, by their names.
struct MemberAddresses(watch::Receiver<Arc<Ring>>);

impl Resolve for MemberAddresses {
    fn resolve(&self, name: Name) -> Resolving {
        let member = self.0.borrow().member(name.as_str()).cloned();
        Box::pin(async move {
            let unknown = || format!("{} is no member of the cluster", name.as_str());
            let address = member.map(|member| member.address).ok_or_else(unknown)?;
            let found: Vec<_> = tokio::net::lookup_host(address).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// The other nodes of a cluster.
pub struct Peers {
    routes: Routes,
    ring: watch::Receiver<Arc<Ring>>,
    client: RwLock<reqwest::Client>,
    /// Client of nodes whose names are not known.
    greeter: RwLock<reqwest::Client>,
    /// Hears of requests that a node rejected.
    denied: OnceLock<Denied>,
}

/// Receiver of rejections: the node, and its error.
pub type Denied = Box<dyn Fn(&str, &Error) + Send + Sync>;

impl Peers {
    /// Creates the client of the node named `own`, for the members of `ring`.
    ///
    /// # Errors
    /// `Unavailable` if the HTTP client cannot start.
    pub fn new(own: &str, tls: &PeerTls, ring: watch::Receiver<Arc<Ring>>) -> Result<Self> {
        let client = RwLock::new(member_client(tls, ring.clone())?);
        let greeter = RwLock::new(build(any_client(&tls.any_name))?);
        let routes = Routes::new(own, ring.clone());
        Ok(Self { routes, ring, client, greeter, denied: OnceLock::new() })
    }

    /// Has `denied` hear of each request that a node rejected for want of rights. A second call has
    /// no effect.
    pub fn when_denied(&self, denied: Denied) {
        // Set once, by the node that starts.
        let _ = self.denied.set(denied);
    }

    /// Uses other certificates for new connections.
    ///
    /// # Errors
    /// As [`Peers::new`].
    pub fn renew(&self, tls: &PeerTls) -> Result<()> {
        let renewed = member_client(tls, self.ring.clone())?;
        let greeter = build(any_client(&tls.any_name))?;
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        *self.greeter.write().unwrap_or_else(PoisonError::into_inner) = greeter;
        Ok(())
    }

    /// Returns the ring in force.
    #[must_use]
    pub fn ring(&self) -> Arc<Ring> {
        self.routes.ring()
    }

    /// Returns the name of this node.
    #[must_use]
    pub fn own(&self) -> &str {
        self.routes.own()
    }

    /// Returns the nodes that may have a shard. Costs a look-up if it was asked for before.
    #[must_use]
    pub fn route(&self, key: ObjectKey) -> Route {
        self.routes.of(key)
    }

    /// Returns the state of all members.
    #[must_use]
    pub fn report(&self) -> Vec<PeerReport> {
        let ring = self.ring();
        let report = |member: &Member| {
            if member.name != self.own() {
                return self.routes.peer(member).report();
            }
            PeerReport { is_self: true, ..Peer::new(member.clone()).report() }
        };
        ring.members().iter().map(report).collect()
    }

    /// Returns all members but this node.
    #[must_use]
    pub fn others(&self) -> Vec<Arc<Peer>> {
        let ring = self.ring();
        let others = ring.members().iter().filter(|member| member.name != self.own());
        others.map(|member| self.routes.peer(member)).collect()
    }

    /// Asks a member for its identity.
    pub(crate) async fn greet_member(&self, peer: &Peer) -> Result<Greeting> {
        self.answered(peer, HELLO, Ok(Vec::new())).await
    }

    /// Sends a request that is answered by a short document.
    pub(crate) async fn answered<T: DeserializeOwned>(
        &self,
        peer: &Peer,
        path: &str,
        body: Asked<Vec<u8>>,
    ) -> Result<T> {
        let asked = async { document(self.post(peer, path, body?).await?).await };
        let body = asked.await.map_err(|failure| failure.error)?;
        parsed(&body).map_err(|error| error.at("node", peer.name()))
    }

    /// Sends a request of which a node takes notice.
    async fn told(&self, peer: &Peer, path: &str, request: &ShardRequest) -> Result<()> {
        let told = async { self.post(peer, path, json(request)?).await.map(drop) };
        told.await.map_err(|failure| failure.error.at("node", peer.name()))
    }

    /// Asks a member what it has of a shard. Its answer counts for nothing but a report.
    ///
    /// # Errors
    /// The error of the node, or of the way to it.
    pub async fn presence(&self, node: &str, request: &ShardRequest) -> Result<Presence> {
        self.answered(&*self.member(node)?, HAS, json(request)).await
    }

    /// Returns the member with a name.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub(crate) fn member(&self, node: &str) -> Result<Arc<Peer>> {
        let unknown = || Error::new(ErrorKind::NotFound, "no member of the cluster");
        let ring = self.ring();
        let member = ring.member(node).ok_or_else(unknown).map_err(|error| error.at("node", node));
        Ok(self.routes.peer(member?))
    }

    /// Asks the node at an address, a host and a port, for its identity. Its certificate must be
    /// one of the authority's, for any name.
    ///
    /// # Errors
    /// `Unavailable` if it does not answer; `PermissionDenied` if a certificate was not accepted.
    pub async fn greet(&self, address: &str) -> Result<Greeting> {
        let client = self.greeter.read().unwrap_or_else(PoisonError::into_inner).clone();
        let url = format!("https://{address}{HELLO}");
        let response = client.post(url).send().await.map_err(|error| lost(address, &error))?;
        let status = response.status();
        let body = document(response).await.map_err(|failure| failure.error)?;
        parsed(&body).map_err(|error| error.at("address", address).at("status", status.as_u16()))
    }

    /// Asks a node for length and version of a shard.
    pub(crate) async fn stat(&self, peer: &Peer, request: &ShardRequest) -> Asked<Stat> {
        let mut frames = self.frames(peer, STAT, request).await?;
        loop {
            match frames.next().await? {
                Reply::Waiting => {}
                Reply::Stat(stat) => return Ok(stat),
                Reply::Failed(error) => return Err(Failure::told(error)),
                Reply::Samples(_) | Reply::End { .. } | Reply::Kept => {
                    return Err(frames.wrong("no identity"));
                }
            }
        }
    }

    /// Opens a shard at a node: its samples come as it indexes them.
    ///
    /// # Errors
    /// The error of the node, which is counted.
    pub async fn index(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        request: &ShardRequest,
    ) -> Result<IndexStream> {
        let opened = async {
            let mut frames = self.frames(peer, INDEX, request).await?;
            match frames.next().await? {
                Reply::Failed(error) => Err(Failure::told(error)),
                first => Ok(IndexStream { first: Some(first), frames, peer: peer.clone() }),
            }
        };
        opened.await.map_err(|failure| peer.noted(failure))
    }

    /// Tells a node that its bytes of a shard were wrong. Returns once it took notice.
    ///
    /// # Errors
    /// The error of the node.
    pub async fn suspect(&self, peer: &Peer, request: &ShardRequest) -> Result<()> {
        let error = Error::new(ErrorKind::Corrupt, "a member differs from its checksum");
        peer.note(&Failure::new(Fallback::Corrupt, error));
        self.told(peer, SUSPECT, request).await
    }

    /// Returns true if a node has a whole copy of the version that the request names. A node that
    /// does not answer has none.
    pub async fn has_copy(&self, peer: &Peer, request: &ShardRequest) -> bool {
        match self.stat(peer, request).await {
            Ok(_) => true,
            Err(failure) => {
                peer.note(&failure);
                false
            }
        }
    }

    /// Asks the next candidate of a shard to keep the second copy. Returns once it took notice; it
    /// copies the shard afterwards.
    ///
    /// # Errors
    /// The error of the node.
    pub async fn keep(&self, peer: &Peer, request: &ShardRequest) -> Result<()> {
        self.told(peer, KEEP, request).await
    }

    /// Fills `into` with the bytes of the request's ranges, each as far as the shard has any.
    /// Returns their numbers.
    pub(crate) async fn bytes(
        &self,
        peer: &Peer,
        request: &BytesRequest,
        into: Vec<&mut [u8]>,
    ) -> Asked<Vec<usize>> {
        self.fill(peer, (BYTES, json(request)?), into).await
    }

    /// Fills `into` with the bytes that a request is answered with. Returns their numbers.
    pub(crate) async fn fill(
        &self,
        peer: &Peer,
        (path, request): (&str, Vec<u8>),
        into: Vec<&mut [u8]>,
    ) -> Asked<Vec<usize>> {
        let response = self.post(peer, path, request).await?;
        // Bytes that drip are no sign of life.
        let bytes: usize = into.iter().map(|into| into.len()).sum();
        let longest = SILENCE + Duration::from_secs(bytes as u64 / SLOWEST);
        let receive = receive(peer, response, into);
        let Ok(received) = tokio::time::timeout(longest, receive).await else {
            let error = Error::new(ErrorKind::Unavailable, "a node sends next to nothing");
            let error = error.at("node", peer.name()).at("seconds", longest.as_secs());
            return Err(Failure::new(Fallback::Silence, error));
        };
        let bytes = received.as_ref().map_or(0, |lens| lens.iter().sum::<usize>());
        peer.received.fetch_add(bytes as u64, Ordering::Relaxed);
        received
    }

    pub(crate) async fn frames<T: Serialize>(
        &self,
        peer: &Peer,
        path: &str,
        request: &T,
    ) -> Asked<Frames> {
        let response = self.post(peer, path, json(request)?).await?;
        Ok(Frames { response, buffer: BytesMut::new(), node: peer.name().to_owned() })
    }

    /// Sends a request, again and again while the node is busy.
    async fn post(&self, peer: &Peer, path: &str, body: Vec<u8>) -> Asked<Response> {
        if peer.is_down() {
            let error = Error::new(ErrorKind::Unavailable, "the node failed shortly before");
            return Err(Failure::new(Fallback::Down, error.at("node", peer.name())));
        }
        let port = peer.member.address.rsplit(':').next().unwrap_or_default();
        let url = format!("https://{}:{port}{path}", peer.name());
        let body = Bytes::from(body);
        for _ in 0..BUSY_ATTEMPTS {
            let client = self.client.read().unwrap_or_else(PoisonError::into_inner).clone();
            peer.requests.fetch_add(1, Ordering::Relaxed);
            let sent = client.post(&url).body(body.clone()).send().await;
            let response = sent.map_err(|error| broken(peer.name(), &error))?;
            peer.note_success();
            match response.status() {
                StatusCode::OK => return Ok(response),
                StatusCode::SERVICE_UNAVAILABLE => {
                    pause(retry_after(&response)).await;
                }
                status => {
                    let failure = rejected(peer, status, response).await;
                    if failure.error.kind() == ErrorKind::PermissionDenied
                        && let Some(denied) = self.denied.get()
                    {
                        denied(peer.name(), &failure.error);
                    }
                    return Err(failure);
                }
            }
        }
        let error = Error::new(ErrorKind::Unavailable, "the node stayed busy");
        Err(Failure::new(Fallback::Busy, error.at("node", peer.name())))
    }
}

/// Receives ranges, and compares each with its checksum. Returns their bytes.
async fn receive(peer: &Peer, mut response: Response, into: Vec<&mut [u8]>) -> Asked<Vec<usize>> {
    let corrupt = |what: &str| {
        let error = Error::new(ErrorKind::Corrupt, what.to_owned()).at("node", peer.name());
        Failure::new(Fallback::Corrupt, error)
    };
    let mut reader = RangesReader::new(into);
    while let Some(chunk) = response.chunk().await.map_err(|error| broken(peer.name(), &error))? {
        reader.feed(&chunk).map_err(corrupt)?;
    }
    reader.finish().map_err(corrupt)
}

/// Samples of a shard, as a node indexes them.
pub struct IndexStream {
    first: Option<Reply>,
    frames: Frames,
    peer: Arc<Peer>,
}

impl IndexStream {
    /// Returns the node that sends them.
    #[must_use]
    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Counts samples that cannot be those of the shard.
    pub fn note_wrong(&self, error: &Error) {
        self.peer.note(&Failure::new(Fallback::Corrupt, error.clone()));
    }

    /// Returns the next frame.
    ///
    /// # Errors
    /// The failure of the connection, which is counted.
    pub async fn next(&mut self) -> Result<Reply> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        self.frames.next().await.map_err(|failure| self.peer.noted(failure))
    }
}

/// Frames of a reply.
pub(crate) struct Frames {
    response: Response,
    buffer: BytesMut,
    node: String,
}

impl Frames {
    pub(crate) async fn next(&mut self) -> Asked<Reply> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(frame);
            }
            match self.response.chunk().await.map_err(|error| broken(&self.node, &error))? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => {
                    let error = Error::new(ErrorKind::Unavailable, "a node's reply broke off");
                    let error = error.at("node", &self.node);
                    return Err(Failure::new(Fallback::Connection, error));
                }
            }
        }
    }

    /// Takes a frame that is here.
    fn take(&mut self) -> Asked<Option<Reply>> {
        let Some(head) = self.buffer.get(..FRAME_HEAD) else { return Ok(None) };
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if len > MAX_FRAME {
            return Err(self.wrong("a frame that is too large"));
        }
        if self.buffer.len() < FRAME_HEAD + len {
            return Ok(None);
        }
        self.buffer.advance(FRAME_HEAD);
        let body = self.buffer.split_to(len);
        let reply = Reply::decode(&body);
        reply.map(Some).map_err(|error| Failure::new(Fallback::Corrupt, error))
    }

    pub(crate) fn wrong(&self, what: &str) -> Failure {
        let error = Error::new(ErrorKind::Corrupt, format!("a node sent {what}"));
        Failure::new(Fallback::Corrupt, error.at("node", &self.node))
    }
}

/// Returns a client of members: their certificates must name them.
fn member_client(tls: &PeerTls, ring: watch::Receiver<Arc<Ring>>) -> Result<reqwest::Client> {
    build(any_client(&tls.client).dns_resolver(Arc::new(MemberAddresses(ring))))
}

fn any_client(tls: &rustls::ClientConfig) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls.clone())
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(SILENCE)
        .http1_only()
        .https_only(true)
        .no_proxy()
        .tcp_nodelay(true)
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
}

fn build(builder: reqwest::ClientBuilder) -> Result<reqwest::Client> {
    builder.build().map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("the HTTP client cannot start: {error}"))
    })
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("a node's answer is malformed: {error}"))
    })
}

pub(crate) fn json<T: Serialize>(request: &T) -> Asked<Vec<u8>> {
    serde_json::to_vec(request).map_err(|error| {
        let what = format!("a request does not encode: {error}");
        Failure::new(Fallback::Failed, Error::new(ErrorKind::Invalid, what))
    })
}

#[expect(clippy::disallowed_methods, reason = "a pause has no other condition than its end")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Returns the time that a busy node asks for.
fn retry_after(response: &Response) -> Duration {
    let header = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
    let asked = header.and_then(|value| value.parse().ok());
    let asked = asked.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    asked.map_or(BUSY_PAUSE, |pause| pause.clamp(SHORTEST_PAUSE, BUSY_PAUSE))
}

/// Returns the failure of a connection.
fn broken(node: &str, error: &reqwest::Error) -> Failure {
    let reason = match certificate(error) {
        true => Fallback::Certificate,
        false if error.is_timeout() && !error.is_connect() => Fallback::Silence,
        false => Fallback::Connection,
    };
    Failure::new(reason, lost(node, error))
}

fn lost(node: &str, error: &reqwest::Error) -> Error {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let kind =
        if certificate(error) { ErrorKind::PermissionDenied } else { ErrorKind::Unavailable };
    let io = cause.downcast_ref::<std::io::Error>();
    let cause = match io.map(std::io::Error::kind) {
        // rustls adds a link to its manual.
        Some(std::io::ErrorKind::UnexpectedEof) => "the connection broke off".to_owned(),
        _ => cause.to_string(),
    };
    Error::new(kind, format!("a node of the cluster does not answer: {cause}")).at("node", node)
}

/// Returns true if a TLS check failed, here or there.
fn certificate(error: &reqwest::Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = next {
        if let Some(
            rustls::Error::InvalidCertificate(_)
            | rustls::Error::AlertReceived(_)
            | rustls::Error::NoCertificatesPresented,
        ) = cause.downcast_ref::<rustls::Error>()
        {
            return true;
        }
        next = match cause.downcast_ref::<std::io::Error>() {
            Some(io) => io.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static)),
            None => cause.source(),
        };
    }
    false
}

/// Returns the failure that a node reports.
async fn rejected(peer: &Peer, status: StatusCode, response: Response) -> Failure {
    let reason = match status {
        StatusCode::NOT_FOUND | StatusCode::PRECONDITION_FAILED => Fallback::Absent,
        StatusCode::FORBIDDEN => Fallback::Certificate,
        _ => Fallback::Failed,
    };
    let told = match document(response).await {
        Ok(body) => serde_json::from_slice(&body).ok(),
        Err(failure) => return failure,
    };
    let error = told.unwrap_or_else(|| {
        Error::new(ErrorKind::Unavailable, "a node rejected a request")
            .at("status", status.as_u16())
    });
    Failure::new(reason, error.at("node", peer.name()))
}

/// Reads a short reply.
async fn document(mut response: Response) -> Asked<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let chunk = response
            .chunk()
            .await
            .map_err(|error| Failure::new(Fallback::Connection, lost("", &error)))?;
        match chunk {
            Some(chunk) if body.len() + chunk.len() <= MAX_DOCUMENT => body.extend(chunk),
            Some(_) => {
                let error = Error::new(ErrorKind::Corrupt, "a node's reply is too long");
                return Err(Failure::new(Fallback::Corrupt, error));
            }
            None => return Ok(body),
        }
    }
}
