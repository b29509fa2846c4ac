//! Nodes of a cluster that do not keep to the protocol: as owners, and as askers.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use forebay_config::read_peer_tls;
use forebay_peers::message::{
    BYTES, BytesRequest, FRAME_HEAD, Greeting, HELLO, INDEX, MAX_BYTES, MAX_REQUEST, Reply, STAT,
    ShardRequest,
};
use forebay_peers::{Fallback, PeerReport, PeerTls};
use forebay_tests::{
    ClusterFiles, Daemon, Lie, LyingNode, Origin, PATIENCE, epoch, eventually, job_with,
};
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const SHARDS: u64 = 12;
const SAMPLES: u64 = 6;
const SIZES: std::ops::Range<usize> = 3_000..3_001;

/// A node, and the files of another one.
struct Bench {
    origin: Origin,
    files: ClusterFiles,
    node: Daemon,
    _disk: TempDir,
}

impl Bench {
    fn new() -> Self {
        let (files, disk) = (ClusterFiles::new(2), Daemon::disk());
        let origin = files.origin(SHARDS, SAMPLES, &SIZES);
        let node = Daemon::try_start(files.config(0, disk.path(), 64 << 20, &origin)).unwrap();
        Self { origin, files, node, _disk: disk }
    }

    fn address(&self, number: usize) -> SocketAddr {
        self.files.members()[number].address.parse().unwrap()
    }

    fn tls(&self) -> PeerTls {
        read_peer_tls(&self.files.settings(1).tls).unwrap()
    }

    /// Starts the other node, which tells this lie.
    fn liar(&self, lie: Lie) -> LyingNode {
        let tars: HashMap<_, _> = (0..SHARDS)
            .map(|n| (Origin::url(&format!("{n}.tar")), self.origin.bytes(&format!("{n}.tar"))))
            .collect();
        let tar = Arc::new(move |url: &str| tars[url].clone());
        LyingNode::start(self.address(1), self.tls(), lie, tar)
    }

    /// Reads all shards, and compares every byte.
    fn read_all(&self) {
        let urls = Origin::urls(SHARDS);
        let played = epoch(self.node.address(), job_with(BTreeMap::new(), urls)).unwrap();
        assert_eq!(played.errors, []);
        played.assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    }

    fn other(&self) -> PeerReport {
        let members = self.node.node().cluster.as_ref().unwrap().report().members;
        members.into_iter().find(|member| member.name == "node1").unwrap()
    }

    fn served(&self) -> u64 {
        (0..SHARDS).map(|n| self.origin.served(&format!("{n}.tar"))).sum()
    }

    fn request(&self, number: u64) -> ShardRequest {
        let (endpoint, url) =
            (self.origin.server.endpoint(), Origin::url(&format!("{number}.tar")));
        ShardRequest { is_awaited: true, ..ShardRequest::any_version(&endpoint, &url) }
    }

    /// Connects to the node as the other one.
    async fn connect(&self) -> TlsStream<TcpStream> {
        let stream = TcpStream::connect(self.address(0)).await.unwrap();
        let connector = TlsConnector::from(self.tls().client);
        let name = ServerName::try_from("node0").unwrap();
        connector.connect(name, stream).await.unwrap()
    }

    /// Sends a request as the other node. Returns the status and the body.
    async fn ask(&self, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let mut stream = self.connect().await;
        stream.write_all(&post(path, body)).await.unwrap();
        let mut reply = Vec::new();
        // A node may break off.
        let _: std::io::Result<usize> = stream.read_to_end(&mut reply).await;
        let text = String::from_utf8_lossy(&reply);
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let at =
            reply.windows(4).position(|end| end == b"\r\n\r\n").map_or(reply.len(), |at| at + 4);
        (status, reply.split_off(at))
    }
}

fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let len = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: node0\r\nconnection: close\r\ncontent-length: {len}\r\n\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Returns the first frame of a body that came in chunks.
fn first_frame(body: &[u8]) -> Reply {
    let size = body.windows(2).position(|end| end == b"\r\n").unwrap();
    let size_text = std::str::from_utf8(&body[..size]).unwrap();
    let len = usize::from_str_radix(size_text, 16).unwrap();
    Reply::decode(&body[size + 2 + FRAME_HEAD..size + 2 + len]).unwrap()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, work).await.unwrap() })
}

/// A node that tells the truth is read: the liar is none without its lie.
#[test]
fn honest_stand_in_is_read() {
    let bench = Bench::new();
    let node = bench.liar(Lie::Nothing);
    bench.read_all();
    assert!(node.requests() > 0);
    let other = bench.other();
    assert_eq!((other.fallbacks, other.is_down), (Vec::new(), false));
    let all: u64 = (0..SHARDS).map(|n| bench.origin.bytes(&format!("{n}.tar")).len() as u64).sum();
    assert!(other.received_bytes > 0 && bench.served() < all, "{}", bench.served());
}

/// Lies of an owner, each of which costs time: a job gets each sample once, with its bytes.
#[test]
fn lies_of_an_owner_cost_no_sample() {
    for lie in Lie::ALL {
        let bench = Bench::new();
        let node = bench.liar(lie);
        bench.read_all();
        assert!(node.requests() > 0, "{lie:?}");
        let expected = match lie {
            Lie::BusyForNoNumber | Lie::BusyUntilThePast => Fallback::Busy,
            Lie::Redirect => Fallback::Failed,
            Lie::NoEnd => Fallback::Connection,
            Lie::Drip => Fallback::Silence,
            _ => Fallback::Corrupt,
        };
        let fallbacks = bench.other().fallbacks;
        let counted = fallbacks.iter().find(|(why, _)| *why == expected);
        assert!(counted.is_some_and(|(_, count)| *count > 0), "{lie:?}: {fallbacks:?}");
        // The next epoch, too.
        bench.read_all();
    }
}

/// Requests that ask for too much, or for nothing that makes sense, are rejected.
#[test]
fn senseless_requests_are_rejected() {
    let bench = Bench::new();
    bench.read_all();
    let bytes = |ranges: Vec<(u64, u64)>| {
        let request = BytesRequest { shard: bench.request(0), of_object: false, ranges };
        serde_json::to_vec(&request).unwrap()
    };
    run(async {
        for ranges in [
            vec![],
            vec![(0, MAX_BYTES + 1)],
            vec![(0, u64::MAX)],
            vec![(u64::MAX, 1)],
            vec![(u64::MAX, u64::MAX)],
            vec![(0, MAX_BYTES); 2],
            vec![(0, 1); 257],
        ] {
            let (status, _) = bench.ask(BYTES, &bytes(ranges.clone())).await;
            assert_eq!(status, 400, "{ranges:?}");
        }
        // Behind the end there is nothing; that is an answer.
        let (status, body) = bench.ask(BYTES, &bytes(vec![(1 << 50, 4096)])).await;
        assert_eq!(status, 200);
        assert!(body.windows(8).any(|head| head == [0; 8]), "{body:?}");
        for path in [STAT, INDEX, BYTES] {
            let huge = vec![b' '; MAX_REQUEST + 1];
            for body in [&b""[..], b"{", b"[]", b"\xff\xfe", &huge] {
                let (status, _) = bench.ask(path, body).await;
                assert_eq!(status, 400, "{path} {}", body.len());
            }
        }
        for path in ["/", "/peer/1", "/peer/2/hello", "/peer/1/../../etc/passwd", "/metrics"] {
            let (status, _) = bench.ask(path, b"{}").await;
            assert_eq!(status, 400, "{path}");
        }
        let elsewhere = [
            ShardRequest { endpoint: "http://192.0.2.1".into(), ..bench.request(0) },
            ShardRequest { url: "file:///etc/passwd".into(), ..bench.request(0) },
            ShardRequest { url: "http://127.0.0.1:1/0.tar".into(), ..bench.request(0) },
            ShardRequest { url: "pipe:cat /etc/passwd".into(), ..bench.request(0) },
            ShardRequest { url: "\0".into(), ..bench.request(0) },
        ];
        for request in elsewhere {
            let (status, answer) = bench.ask(STAT, &serde_json::to_vec(&request).unwrap()).await;
            let body = String::from_utf8_lossy(&answer).into_owned();
            assert!(!body.contains("root:"), "{body}");
            let is_rejected = status != 200 || matches!(first_frame(&answer), Reply::Failed(_));
            assert!(is_rejected, "{}: {status} {body}", request.url);
        }
        // The node still serves.
        let (status, body) = bench.ask(HELLO, b"").await;
        assert_eq!(status, 200);
        let text = String::from_utf8_lossy(&body).into_owned();
        let json = text.find('{').zip(text.rfind('}')).map(|(from, to)| &text[from..=to]);
        let greeting: Greeting = serde_json::from_str(json.unwrap()).unwrap();
        assert_eq!(greeting.name, "node0");
    });
    bench.read_all();
}

/// Askers that read nothing hold no more than the memory for replies, and are cut off.
#[test]
fn askers_that_do_not_read_are_cut_off() {
    let bench = Bench::new();
    bench.read_all();
    let shard = bench.request(0);
    let len = bench.origin.bytes("0.tar").len() as u64;
    let request = BytesRequest { shard, of_object: false, ranges: vec![(0, len)] };
    let request = post(BYTES, &serde_json::to_vec(&request).unwrap());
    let serving = || bench.node.node().cluster.as_ref().unwrap().report().serving;
    run(async {
        let mut idle = Vec::new();
        for _ in 0..64 {
            let mut stream = bench.connect().await;
            stream.write_all(&request).await.unwrap();
            stream.flush().await.unwrap();
            idle.push(stream);
        }
        // A connection that ends with replies unread takes an unread request with it.
        eventually("all requests are read", || serving().requests >= 64);
        // One that reads is served beside them.
        let one = ShardRequest { version: None, ..bench.request(1) };
        let (status, body) = bench.ask(INDEX, &serde_json::to_vec(&one).unwrap()).await;
        assert_eq!(status, 200);
        assert!(!body.is_empty());
        drop(idle);
    });
    assert!(serving().requests >= 65);
    bench.read_all();
}
