//! Faults of networks and stores, as a source meets them: every byte is right, or the error says
//! why.
//!
//! Every fault meets a known request; what came of it is counted, not timed.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Error, ErrorKind};
use forebay_source::{Begun, Binding, Limits, LinkReport, Options, Rank, Source, Sources, Stat};
use forebay_testkit::{
    ACCESS_KEY, Fault, FaultProxy, RetryAfter, S3Server, SECRET_KEY, When, field,
};
use forebay_uring::{Arena, Region};
use hyper::header::{ETAG, LAST_MODIFIED};

const READER: &str = env!("CARGO_BIN_EXE_forebay-test-reader");
const PART: usize = 64 << 10;
const PARTS: usize = 24;

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(600);

/// A silence far above what a loopback takes, and soon over where a test waits for it.
const SILENCE: Duration = Duration::from_secs(1);

/// Time after which a reply is late.
const LATE: Duration = Duration::from_millis(100);

/// A server with one object behind a proxy.
struct Bench {
    dir: tempfile::TempDir,
    proxy: FaultProxy,
    _server: S3Server,
    sources: Sources,
    arena: Arena,
    bytes: Vec<u8>,
}

impl Bench {
    /// Nothing is asked for twice, however busy the machine is: requests can be counted.
    fn new() -> Self {
        Self::with(NEVER, NEVER)
    }

    /// A reply may be late after `late`, and a connection silent for `read_timeout`.
    fn with(late: Duration, read_timeout: Duration) -> Self {
        let retry_time = Duration::from_secs(20);
        let limits = Limits { late, retries: 3, retry_time, read_timeout, ..Limits::default() };
        let dir = tempfile::tempdir().unwrap();
        let bytes = field(1, 1, "tar", PARTS * PART - 99);
        std::fs::create_dir(dir.path().join("bucket")).unwrap();
        std::fs::write(dir.path().join("bucket/k.tar"), &bytes).unwrap();
        let server = S3Server::start(dir.path()).unwrap();
        Self {
            proxy: FaultProxy::start(server.address()).unwrap(),
            _server: server,
            sources: Sources::new(vec![READER.into()], limits).unwrap(),
            arena: Arena::new(Region::create("test", 8 << 20).unwrap()),
            bytes,
            dir,
        }
    }

    fn open(&self, url: &str) -> Arc<dyn Source> {
        let options = Options::default()
            .with("AWS_ENDPOINT_URL", &self.proxy.endpoint())
            .with("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .with("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
        self.sources.open(url, &options).unwrap()
    }

    fn ways(&self) -> [String; 2] {
        ["s3://bucket/k.tar".to_owned(), self.http("k.tar")]
    }

    fn http(&self, name: &str) -> String {
        format!("{}/bucket/{name}", self.proxy.endpoint())
    }

    async fn part(&self, url: &str, stat: &Stat, at: usize) -> Result<Vec<u8>, Error> {
        let span = self.arena.try_lease(PART).expect("spans are given back");
        let span =
            self.open(url).read_part(url, stat, (at * PART) as u64, span, &Rank::now(0)).await?;
        let len = (stat.len as usize - at * PART).min(PART);
        Ok(span[..len].to_vec())
    }

    async fn whole(&self, url: &str, stat: &Stat) -> Result<Vec<u8>, Error> {
        let source = self.open(url);
        let rank = Rank::now(0);
        let mut stretch = source.range_read(url, stat, 0..stat.len, &rank).await?;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < stat.len {
            let span = stretch.fill(self.arena.try_lease(PART).unwrap()).await?;
            let len = (stat.len as usize - bytes.len()).min(PART);
            bytes.extend_from_slice(&span[..len]);
        }
        Ok(bytes)
    }

    async fn stat(&self, url: &str) -> Stat {
        self.open(url).stat(url).await.unwrap()
    }

    /// Reads so many parts that what is usual is known.
    async fn get_used_to(&self, url: &str, stat: &Stat) {
        for at in 0..PARTS {
            self.part(url, stat, at).await.unwrap();
        }
    }

    fn link(&self) -> LinkReport {
        let links = self.sources.links();
        assert_eq!(links.len(), 1);
        links.into_iter().next().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn first_request_returns_bytes_length_and_version() {
    let bench = Bench::new();
    for url in bench.ways() {
        let before = bench.proxy.traffic();
        let Begun { stat, head } = bench.open(&url).begin(&url, &Rank::now(0)).await.unwrap();
        assert_eq!((stat.len, stat.binding), (bench.bytes.len() as u64, Binding::Strong));
        let span = bench.arena.try_lease(PART).unwrap();
        let span = head.expect("it is on its way").fill(span).await.unwrap();
        assert_eq!(span[..PART], bench.bytes[..PART]);
        let after = bench.proxy.traffic();
        assert_eq!(after.requests - before.requests, 1, "{after:?}");
        assert_eq!(bench.stat(&url).await, stat, "it is what a HEAD says");
    }
    let (empty, missing) = (bench.http("empty.tar"), bench.http("no.tar"));
    std::fs::write(bench.dir.path().join("bucket/empty.tar"), b"").unwrap();
    let begun = bench.open(&empty).begin(&empty, &Rank::now(0)).await.unwrap();
    assert!(begun.stat.len == 0 && begun.head.is_none());
    let error = bench.open(&missing).begin(&missing, &Rank::now(0)).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(bench.arena.in_use(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn unversioned_object_is_read_in_one_request_or_fails() {
    let bench = Bench::new();
    let url = bench.http("k.tar");
    let nothing = |name| (When::any(), Fault::no_header(name));
    bench.proxy.set([nothing(ETAG), nothing(LAST_MODIFIED)]);
    let Begun { stat, head } = bench.open(&url).begin(&url, &Rank::now(0)).await.unwrap();
    assert_eq!(stat.binding, Binding::Sequential);
    let mut head = head.expect("all of it is in one reply");
    for part in bench.bytes.chunks(PART) {
        let span = head.fill(bench.arena.try_lease(PART).unwrap()).await.unwrap();
        assert_eq!(span[..part.len()], *part);
    }
    let before = bench.proxy.traffic().requests;
    assert_eq!(bench.whole(&url, &stat).await.unwrap(), bench.bytes);
    assert_eq!(bench.proxy.traffic().requests - before, 1);
    let part = bench.part(&url, &stat, 1).await.unwrap_err();
    assert_eq!(part.kind(), ErrorKind::Unavailable, "{part}");

    let cut = (When::get().times(1), Fault::Cut(100_000));
    bench.proxy.set([nothing(ETAG), nothing(LAST_MODIFIED), cut]);
    let before = bench.proxy.traffic().requests;
    let error = bench.whole(&url, &stat).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("ETag"), "{error}");
    assert_eq!(bench.proxy.traffic().requests - before, 1, "nothing is to be had by asking again");
}

#[tokio::test(flavor = "multi_thread")]
async fn weak_version_is_compared_with_each_reply() {
    let bench = Bench::new();
    let url = bench.http("k.tar");
    let weak = || (When::any(), Fault::weak_etag());
    let untimed = || (When::any(), Fault::no_header(LAST_MODIFIED));
    bench.proxy.set([weak(), untimed()]);
    let stat = bench.stat(&url).await;
    assert_eq!(stat.binding, Binding::Weak);
    bench.proxy.set([weak(), untimed(), (When::get().times(1), Fault::Cut(100_000))]);
    assert_eq!(bench.whole(&url, &stat).await.unwrap(), bench.bytes);

    let path = bench.dir.path().join("bucket/k.tar");
    let other = field(2, 1, "tar", bench.bytes.len());
    let replace = Arc::new(move || std::fs::write(&path, &other).unwrap());
    bench.proxy.set([
        weak(),
        untimed(),
        (When::get().times(1), Fault::Cut(100_000)),
        (When::get().after(1).times(1), Fault::Call(replace)),
    ]);
    let error = bench.whole(&url, &stat).await.unwrap_err();
    assert!(error.message().contains("changed"), "{error}");
    assert_eq!(bench.arena.in_use(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_faults_are_retried() {
    let bench = Bench::with(NEVER, SILENCE);
    for url in bench.ways() {
        let stat = bench.stat(&url).await;
        for fault in [
            Fault::status(500),
            Fault::status(503),
            Fault::status(429),
            Fault::busy(503, RetryAfter::Seconds(0)),
            Fault::busy(429, RetryAfter::Date(0)),
            Fault::ResetBeforeHead,
            Fault::Reset(70_000),
            Fault::Cut(70_000),
            Fault::Stall(70_000),
            Fault::Drip(70_000, Duration::from_millis(10)),
            Fault::StallBeforeHead,
            Fault::shifted_range(1),
            Fault::wrong_length(-5),
            Fault::wrong_length(5),
        ] {
            let (name, before) = (format!("{url} {fault:?}"), bench.link());
            let said = format!("{fault:?}");
            let refuses = ["500", "503", "429"].iter().any(|status| said.contains(status));
            bench.proxy.set([(When::get().times(1), fault)]);
            let whole = bench.whole(&url, &stat).await;
            assert!(whole.is_ok_and(|whole| whole == bench.bytes), "{name}");
            let after = bench.link();
            assert!(!refuses || after.failures == before.failures + 1, "{name}: {after:?}");
            let replies = |link: &LinkReport| (link.first_bytes.count(), link.replies.count());
            assert!(replies(&after).0 > replies(&before).0, "{name}: {after:?}");
            assert_eq!(replies(&after).0, replies(&after).1, "{name}");
        }
    }
    assert!(bench.link().retries > 0);
    assert_eq!(bench.arena.in_use(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn lasting_faults_fail_after_retries() {
    let bench = Bench::new();
    for url in bench.ways() {
        let stat = bench.stat(&url).await;
        for (fault, kind) in [
            (Fault::status(403), ErrorKind::PermissionDenied),
            (Fault::status(404), ErrorKind::NotFound),
            (Fault::status(416), ErrorKind::Unavailable),
            (Fault::status(500), ErrorKind::Unavailable),
            (Fault::ResetBeforeHead, ErrorKind::Unavailable),
            (Fault::Cut(1_000), ErrorKind::Unavailable),
            (Fault::shifted_range(1), ErrorKind::Invalid),
            (Fault::longer_total(1), ErrorKind::Unavailable),
        ] {
            let name = format!("{url} {fault:?}");
            bench.proxy.set([(When::get(), fault)]);
            let error = bench.part(&url, &stat, 2).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{name}: {error}");
            assert!(error.place("url").is_some_and(|at| at.contains("k.tar")), "{name}: {error}");
            bench.proxy.clear();
            // It answers again, and whoever took it to be down hears of it.
            assert_eq!(bench.part(&url, &stat, 2).await.unwrap(), bench.bytes[2 * PART..3 * PART]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_beyond_the_time_limit_is_an_error() {
    let bench = Bench::new();
    let url = bench.http("k.tar");
    let stat = bench.stat(&url).await;
    bench.proxy.set([(When::get(), Fault::busy(503, RetryAfter::Seconds(3600)))]);
    let before = bench.proxy.traffic().requests;
    let error = bench.part(&url, &stat, 0).await.unwrap_err();
    assert_eq!(error.place("retry_after_seconds"), Some("3600"), "{error}");
    assert_eq!(bench.proxy.traffic().requests - before, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_key_pair_is_not_retried() {
    let bench = Bench::new();
    let url = "s3://bucket/k.tar";
    let stat = bench.stat(url).await;
    bench.proxy.set([(When::get(), Fault::expired())]);
    let before = bench.proxy.traffic().requests;
    let error = bench.part(url, &stat, 0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert_eq!(bench.proxy.traffic().requests - before, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn late_reply_is_hedged_without_wrong_bytes() {
    // Far above the time in which the bytes before a stall come.
    let bench = Bench::with(5 * LATE, NEVER);
    for url in bench.ways() {
        let stat = bench.stat(&url).await;
        bench.get_used_to(&url, &stat).await;
        let twice = bench.link().hedged_bytes;
        for fault in [Fault::StallBeforeHead, Fault::Stall(0), Fault::Stall(30_000)] {
            let before = bench.link();
            bench.proxy.set([(When::get().times(1), fault)]);
            assert_eq!(bench.part(&url, &stat, 3).await.unwrap(), bench.bytes[3 * PART..4 * PART]);
            let after = bench.link();
            assert_eq!((after.hedges - before.hedges, after.retries), (1, before.retries));
        }
        // Bytes that arrived before the stall are not requested again.
        assert_eq!(bench.link().hedged_bytes, twice);
    }
    assert_eq!(bench.arena.in_use(), 0);
}

/// A reply that is silent from the start is late by the usual wait for a first byte, however long
/// the usual rest takes.
#[tokio::test(flavor = "multi_thread")]
async fn reply_without_a_first_byte_is_late_sooner_than_a_whole_one() {
    let bench = Bench::with(LATE, SILENCE);
    let url = bench.http("k.tar");
    let stat = bench.stat(&url).await;
    // The last bytes take 0.8 s: a whole reply is late after more than the longest silence.
    let drip = Fault::Drip(PART as u64 - 8, Duration::from_millis(100));
    bench.proxy.set([(When::get(), drip)]);
    for at in 0..5 {
        bench.part(&url, &stat, at).await.unwrap();
    }
    let before = bench.link();
    bench.proxy.set([(When::get().times(1), Fault::StallBeforeHead)]);
    assert_eq!(bench.part(&url, &stat, 5).await.unwrap(), bench.bytes[5 * PART..6 * PART]);
    let after = bench.link();
    assert_eq!((after.hedges - before.hedges, after.retries), (1, before.retries));
}

#[tokio::test(flavor = "multi_thread")]
async fn breaker_closes_when_the_endpoint_recovers() {
    let bench = Arc::new(Bench::new());
    std::fs::write(bench.dir.path().join("bucket/l.tar"), &bench.bytes).unwrap();
    // One object's failures would open no breaker.
    let [one, other] = ["k.tar", "l.tar"].map(|name| bench.http(name));
    let stats = [bench.stat(&one).await, bench.stat(&other).await];
    bench.proxy.set([(When::any(), Fault::ResetBeforeHead)]);
    let mut asking = Vec::new();
    for at in 0..PARTS {
        let url = [&one, &other][at % 2].clone();
        let (bench, stat) = (bench.clone(), stats[at % 2].clone());
        asking.push(tokio::spawn(async move { bench.part(&url, &stat, at).await }));
    }
    let watched = bench.clone();
    // The proxy has broken a connection before the client notes it; the next probe wakes this wait.
    let seen = move || watched.proxy.wait_until(|_| watched.link().breaks > 0);
    tokio::task::spawn_blocking(seen).await.unwrap();
    bench.proxy.clear();
    for (at, asked) in asking.into_iter().enumerate() {
        let from = at * PART;
        let part = asked.await.unwrap().unwrap();
        assert_eq!(part, bench.bytes[from..from + part.len()]);
    }
    let link = bench.link();
    assert!(link.breaks > 0 && !link.down, "{link:?}");
    assert_eq!((link.under_way, link.waiting), (0, 0));
}
