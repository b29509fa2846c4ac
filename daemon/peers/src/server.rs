//! The peer server's port: connections, handshakes, and the names of those who may ask.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_peers::message::Greeting;
use forebay_peers::{PeerTls, Peers, ServingReport};
use forebay_source::Rate;
use forebay_store::{Repeats, Store};
use forebay_uring::Arena;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::answer::{Answers, SECOND_COPIES, SUSPECTS};
use crate::pace::Paced;
use crate::replicas::Replicas;

/// Maximum number of connections: 32 of each node in a rack of 64.
const CONNECTIONS: usize = 2048;

/// Time for a handshake: a few round trips, on a busy node.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time in which a request's head must come, and for which a connection may be idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause after a failed accept: the limit of open files, which others must close.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Judge of what other nodes ask for.
pub trait Guard: Send + Sync {
    /// Rejects a shard that the tenant for whose job another node asks may not read here.
    ///
    /// # Errors
    /// `PermissionDenied` naming the URL.
    fn may_read(&self, node: &str, tenant: Option<&str>, url: &str) -> Result<()>;

    /// Rejects the second copy of a checkpoint's file that another node wants kept here.
    ///
    /// # Errors
    /// `PermissionDenied` naming the URL.
    fn may_keep(&self, node: &str, url: &str) -> Result<()>;

    /// Notes that a connection from this address was rejected.
    fn note_rejected(&self, from: &str, error: &Error);
}

/// Settings of a peer server.
pub struct PeerServerConfig {
    /// Address and port.
    pub listen: SocketAddr,
    /// Certificates, as they are renewed.
    pub tls: watch::Receiver<PeerTls>,
    /// Introduction of this node, as it changes.
    pub greeting: watch::Receiver<Greeting>,
    /// Maximum bytes per second to all other nodes together.
    pub serve: Option<u64>,
    /// Memory of replies.
    pub memory: Arena,
    /// Judge of requests.
    pub guard: Arc<dyn Guard>,
}

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) requests: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) rejected: AtomicU64,
}

/// A running peer server, until dropped.
pub struct PeerServer {
    address: SocketAddr,
    tally: Arc<Tally>,
    accepting: tokio::task::JoinHandle<()>,
    replicas: Arc<OnceLock<Weak<dyn Replicas>>>,
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl PeerServer {
    /// Opens the port and starts to serve.
    ///
    /// # Errors
    /// If the port cannot be opened.
    pub async fn start(config: PeerServerConfig, store: &Store, peers: Arc<Peers>) -> Result<Self> {
        let at = |error: Error| error.at("listen", config.listen);
        let listener = TcpListener::bind(config.listen).await;
        let listener = listener.doing("open the port for other nodes").map_err(at)?;
        let address = listener.local_addr().doing("open the port for other nodes")?;
        let tally = Arc::<Tally>::default();
        let replicas: Arc<OnceLock<_>> = Arc::default();
        let answers = Arc::new(Answers {
            store: store.for_peer(),
            greeting: config.greeting,
            memory: config.memory,
            guard: config.guard,
            rate: Rate::of(config.serve),
            suspects: Arc::new(Semaphore::new(SUSPECTS)),
            second_copies: Arc::new(Semaphore::new(SECOND_COPIES)),
            tally: tally.clone(),
            replicas: replicas.clone(),
        });
        let accepting = tokio::spawn(accept(listener, config.tls, answers, peers));
        tracing::info!(%address, "serves other nodes");
        Ok(Self { address, tally, accepting, replicas })
    }

    /// Begins to answer what concerns files of checkpoints; before, the asker is told to come
    /// again. A second call has no effect.
    pub fn serve_replicas(&self, replicas: Weak<dyn Replicas>) {
        // Set once, by the node that starts.
        let _ = self.replicas.set(replicas);
    }

    /// Returns the address and port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the counts.
    #[must_use]
    pub fn report(&self) -> ServingReport {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ServingReport {
            requests: read(&self.tally.requests),
            sent_bytes: read(&self.tally.sent_bytes),
            busy: read(&self.tally.busy),
            failed: read(&self.tally.failed),
            rejected: read(&self.tally.rejected),
        }
    }
}

async fn accept(
    listener: TcpListener,
    tls: watch::Receiver<PeerTls>,
    answers: Arc<Answers>,
    peers: Arc<Peers>,
) {
    let (connections, failed) = (Arc::new(Semaphore::new(CONNECTIONS)), Repeats::default());
    loop {
        // Further connections wait in the kernel.
        let Ok(permit) = connections.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                if let Some(times) = failed.note(Instant::now()) {
                    tracing::warn!(times, %error, "cannot accept another node's connection");
                }
                pause(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let acceptor = TlsAcceptor::from(tls.borrow().server.clone());
        tokio::spawn(serve(stream, acceptor, answers.clone(), peers.clone(), permit));
    }
}

#[expect(clippy::disallowed_methods, reason = "no event tells that a file may be opened again")]
async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Other end of a connection.
pub(crate) struct Asker {
    /// Address.
    pub(crate) from: String,
    /// Names in its certificate.
    pub(crate) names: Vec<String>,
}

/// Serves one connection to its end.
async fn serve(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    answers: Arc<Answers>,
    peers: Arc<Peers>,
    _permit: OwnedSemaphorePermit,
) {
    let from = stream.peer_addr().map_or_else(|_| String::new(), |address| address.to_string());
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let rejected = |error: &Error| {
        answers.tally.rejected.fetch_add(1, Ordering::Relaxed);
        answers.guard.note_rejected(&from, error);
    };
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(Paced::new(stream)));
    let stream = match handshake.await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return rejected(&handshake_error(&error)),
        Err(_) => {
            return rejected(&Error::new(ErrorKind::Unavailable, "a handshake took too long"));
        }
    };
    let names = names(stream.get_ref().1.peer_certificates().and_then(<[_]>::first));
    let asker = Arc::new(Asker { from: from.clone(), names });
    let service = service_fn(move |request| {
        let (answers, asker, ring) = (answers.clone(), asker.clone(), peers.ring());
        // The list may change while the connection lasts.
        let member = asker.names.iter().find(|name| ring.member(name).is_some()).cloned();
        async move {
            let answer = answers.answer(request, &asker, member.as_deref()).await;
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(from, %error, "another node's connection ended");
    }
}

/// Returns the names in a verified certificate.
fn names(certificate: Option<&rustls::pki_types::CertificateDer<'_>>) -> Vec<String> {
    let parsed = certificate.and_then(|der| webpki::EndEntityCert::try_from(der).ok());
    parsed.map(|parsed| parsed.valid_dns_names().map(str::to_owned).collect()).unwrap_or_default()
}

fn handshake_error(error: &std::io::Error) -> Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
            Error::new(ErrorKind::PermissionDenied, format!("invalid certificate: {error}"))
                .advise("sign the certificates of all nodes with the authority in `ca`")
        }
        _ => Error::new(ErrorKind::Unavailable, format!("a TLS handshake failed: {error}")),
    }
}
