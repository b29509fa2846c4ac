//! A node of a cluster that has a good certificate and does not keep to the protocol.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use forebay_peers::PeerTls;
use forebay_peers::message::{BYTES, BytesRequest, INDEX, RANGE_HEAD, Reply, STAT, ShardRequest};
use forebay_shard::checksum::crc32c;
use forebay_shard::{Catalogue, IndexPart, Indexer, Plain};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

/// Lie of a node. In all else it tells the truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// None.
    Nothing,
    /// A range's checksum is another one.
    Checksum,
    /// A range's head names more bytes than follow.
    LongHead,
    /// A range is followed by bytes that belong to none.
    MoreBytes,
    /// A range ends early, with a checksum that is right.
    ShortRange,
    /// A member's checksum in the index is another one.
    MemberChecksum,
    /// A member's bytes lie behind the end of the shard.
    MemberBehindEnd,
    /// A member is larger than any disk.
    GiantMember,
    /// The shard ends elsewhere than the object.
    ShardLength,
    /// A frame announces 4 GiB.
    GiantFrame,
    /// A frame holds no reply.
    JunkFrame,
    /// The index breaks off.
    NoEnd,
    /// It is busy, for a time that is no number.
    BusyForNoNumber,
    /// It is busy, until the past.
    BusyUntilThePast,
    /// It sends the asker elsewhere.
    Redirect,
    /// It answers with a page.
    Page,
    /// A byte comes in each second.
    Drip,
}

impl Lie {
    /// All lies.
    pub const ALL: [Self; 16] = [
        Self::Checksum,
        Self::LongHead,
        Self::MoreBytes,
        Self::ShortRange,
        Self::MemberChecksum,
        Self::MemberBehindEnd,
        Self::GiantMember,
        Self::ShardLength,
        Self::GiantFrame,
        Self::JunkFrame,
        Self::NoEnd,
        Self::BusyForNoNumber,
        Self::BusyUntilThePast,
        Self::Redirect,
        Self::Page,
        Self::Drip,
    ];
}

/// A running node that lies, until dropped.
pub struct LyingNode {
    requests: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

type Body = StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

/// Returns the tar of a URL.
type TarOf = dyn Fn(&str) -> Vec<u8> + Send + Sync;

impl LyingNode {
    /// Starts a node at an address.
    ///
    /// # Panics
    /// If the port is taken.
    #[must_use]
    pub fn start(address: SocketAddr, tls: PeerTls, lie: Lie, tar: Arc<TarOf>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let requests = Arc::<AtomicU64>::default();
        let count = requests.clone();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let serve = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime starts");
            runtime.block_on(async move {
                let listener = TcpListener::bind(address).await.expect("the port is free");
                ready.send(()).expect("the test waits");
                let acceptor = TlsAcceptor::from(tls.server.clone());
                let accepting = async {
                    while let Ok((stream, _)) = listener.accept().await {
                        let (acceptor, tar, count) = (acceptor.clone(), tar.clone(), count.clone());
                        tokio::spawn(async move {
                            let Ok(stream) = acceptor.accept(stream).await else { return };
                            let service = service_fn(move |request| {
                                count.fetch_add(1, Ordering::Relaxed);
                                let tar = tar.clone();
                                async move { Ok::<_, Infallible>(answer(request, lie, &*tar).await) }
                            });
                            let connection = http1::Builder::new();
                            // Askers break off when they see the lie.
                            let _: Result<(), _> =
                                connection.serve_connection(TokioIo::new(stream), service).await;
                        });
                    }
                };
                tokio::select! {
                    () = accepting => {}
                    _ = stopped => {}
                }
            });
        };
        let thread = std::thread::spawn(serve);
        is_ready.recv().expect("the node starts");
        Self { requests, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the number of requests so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for LyingNode {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the node shows as requests that fail.
            let _ = thread.join();
        }
    }
}

async fn answer(request: Request<Incoming>, lie: Lie, tar: &TarOf) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.expect("a request has a body").to_bytes();
    if path == STAT {
        // Askers ask the origin.
        return with_status(StatusCode::NOT_FOUND, vec![Bytes::from_static(b"null")]);
    }
    match (lie, path.as_str()) {
        (Lie::BusyForNoNumber, _) => busy("nan"),
        (Lie::BusyUntilThePast, _) => busy("-1e300"),
        (Lie::Redirect, _) => {
            let mut response = with_status(StatusCode::TEMPORARY_REDIRECT, vec![]);
            let to = hyper::header::HeaderValue::from_static("https://192.0.2.1/");
            response.headers_mut().insert("location", to);
            response
        }
        (Lie::Page, _) => {
            with_status(StatusCode::OK, vec![Bytes::from_static(b"<html>It works!</html>")])
        }
        (_, INDEX) => {
            let request: ShardRequest = serde_json::from_slice(&body).expect("a request");
            index(&tar(&request.url), lie)
        }
        (_, BYTES) => {
            let request: BytesRequest = serde_json::from_slice(&body).expect("a request");
            ranges(&tar(&request.shard.url), &request, lie)
        }
        _ => with_status(StatusCode::NOT_FOUND, vec![Bytes::from_static(b"null")]),
    }
}

/// Answers with the samples of a shard.
fn index(tar: &[u8], lie: Lie) -> Response<Body> {
    let len = tar.len() as u64;
    let mut indexer = Indexer::new(Plain::new(std::io::Cursor::new(tar)), len);
    while indexer.next_sample().expect("a good tar").is_some() {}
    let mut index = indexer.index().clone();
    let last = index.members.last_mut().expect("a shard with samples");
    match lie {
        Lie::MemberChecksum => last.crc32c ^= 1,
        Lie::MemberBehindEnd => last.offset = len + 512,
        Lie::GiantMember => last.len = 1 << 60,
        _ => {}
    }
    let part = IndexPart::of(&Catalogue::Plain(index), 0, 0, usize::MAX).expect("samples");
    let end = if lie == Lie::ShardLength { len - 512 } else { len };
    let frame = |reply: Reply| Bytes::from(reply.encode().expect("a small reply"));
    let frames = match lie {
        Lie::GiantFrame => vec![Bytes::from_static(&[0xff; 64])],
        Lie::JunkFrame => vec![Bytes::from_static(&[4, 0, 0, 0, 200, 200, 200, 200])],
        Lie::NoEnd => vec![frame(Reply::Samples(part))],
        _ => {
            vec![frame(Reply::Samples(part)), frame(Reply::End { len: end, is_unpacked: false })]
        }
    };
    with_status(StatusCode::OK, frames)
}

/// Answers with ranges of a shard.
fn ranges(tar: &[u8], request: &BytesRequest, lie: Lie) -> Response<Body> {
    let mut sent = Vec::new();
    for (start, len) in &request.ranges {
        let at = |offset: u64| usize::try_from(offset).map_or(tar.len(), |at| at.min(tar.len()));
        let range = at(*start)..at(start + len);
        let mut bytes = Bytes::copy_from_slice(&tar[range]);
        if lie == Lie::ShortRange {
            bytes.truncate(bytes.len() / 2);
        }
        let told = bytes.len() as u32 + if lie == Lie::LongHead { 1 } else { 0 };
        let sum = crc32c(&bytes) ^ if lie == Lie::Checksum { 1 } else { 0 };
        let mut head = Vec::with_capacity(RANGE_HEAD);
        head.extend_from_slice(&told.to_le_bytes());
        head.extend_from_slice(&sum.to_le_bytes());
        sent.extend([Bytes::from(head), bytes]);
    }
    match lie {
        Lie::MoreBytes => sent.push(Bytes::from_static(&[0; 100])),
        Lie::Drip => {
            let all: Vec<u8> = sent.concat();
            let drops = stream::iter(all).then(|byte| async move {
                tokio::time::sleep_until(tokio::time::Instant::now() + DROP).await;
                Ok(Frame::data(Bytes::copy_from_slice(&[byte])))
            });
            return Response::new(StreamBody::new(drops.boxed()));
        }
        _ => {}
    }
    with_status(StatusCode::OK, sent)
}

/// Interval of bytes that drip: shorter than the silence that an asker accepts.
const DROP: Duration = Duration::from_secs(1);

fn busy(until: &'static str) -> Response<Body> {
    let mut response = with_status(StatusCode::SERVICE_UNAVAILABLE, vec![]);
    response.headers_mut().insert("retry-after", hyper::header::HeaderValue::from_static(until));
    response
}

fn with_status(status: StatusCode, parts: Vec<Bytes>) -> Response<Body> {
    let parts = stream::iter(parts).map(|part| Ok(Frame::data(part)));
    let mut response = Response::new(StreamBody::new(parts.boxed()));
    *response.status_mut() = status;
    response
}
