//! Sources against real servers: the same promises over S3, HTTP and files.
//!
//! Every fault is made at a known byte or request, so each test has one outcome.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_error::{Error, ErrorKind};
use forebay_source::{Binding, Limits, Options, Rank, Source, Sources, Stat};
use forebay_testkit::{ACCESS_KEY, S3Server, SECRET_KEY, field};
use forebay_uring::{Arena, Region};

const READER: &str = env!("CARGO_BIN_EXE_forebay-test-reader");
const PART: usize = 64 << 10;
const KEY: &str = "bucket/dir/train 0.tar";

/// Time within which whatever is to happen does.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server with one object, and everything to read it.
struct Bench {
    dir: tempfile::TempDir,
    server: S3Server,
    sources: Sources,
    arena: Arena,
    bytes: Vec<u8>,
}

/// One way to the object.
struct Way {
    source: Arc<dyn Source>,
    url: String,
}

impl Bench {
    fn new() -> Self {
        let late = Duration::from_secs(600);
        Self::with(Limits { retries: 2, late, ..Limits::default() })
    }

    fn with(limits: Limits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let bytes = field(1, 1, "tar", 5 * PART / 2 + 77);
        let path = dir.path().join(KEY);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        Self {
            server: S3Server::start(dir.path()).unwrap(),
            sources: Sources::new(vec![READER.into()], limits).unwrap(),
            arena: Arena::new(Region::create("test", 8 << 20).unwrap()),
            bytes,
            dir,
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join(KEY)
    }

    fn options(&self) -> Options {
        Options::default()
            .with("AWS_ENDPOINT_URL", &self.server.endpoint())
            .with("AWS_ACCESS_KEY_ID", ACCESS_KEY)
            .with("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    }

    fn way(&self, url: &str) -> Way {
        let source = self.sources.open(url, &self.options()).unwrap();
        Way { source, url: url.to_owned() }
    }

    fn s3(&self) -> Way {
        self.way(&format!("s3://{KEY}"))
    }

    fn http(&self) -> Way {
        self.way(&format!("{}/{}", self.server.endpoint(), KEY.replace(' ', "%20")))
    }

    /// Anonymously, as a store that is not Google's or Microsoft's is asked without credentials.
    fn google(&self) -> Way {
        let options = Options::default().with("STORAGE_EMULATOR_HOST", &self.server.endpoint());
        let url = format!("gs://{KEY}");
        Way { source: self.sources.open(&url, &options).unwrap(), url }
    }

    fn azure(&self) -> Way {
        let options = Options::default()
            .with("AZURE_STORAGE_ENDPOINT", &self.server.endpoint())
            .with("AZURE_STORAGE_ACCOUNT_NAME", "account")
            .with("AZURE_SKIP_SIGNATURE", "true");
        let url = format!("az://{KEY}");
        Way { source: self.sources.open(&url, &options).unwrap(), url }
    }

    fn file(&self) -> Way {
        self.way(self.path().to_str().unwrap())
    }

    async fn part(&self, way: &Way, stat: &Stat, offset: u64) -> Result<Vec<u8>, Error> {
        let span = self.arena.try_lease(PART).expect("spans are given back");
        let span = way.source.read_part(&way.url, stat, offset, span, &Rank::now(0)).await?;
        let len = ((stat.len - offset) as usize).min(PART);
        Ok(span[..len].to_vec())
    }

    async fn whole(&self, way: &Way) -> Result<Vec<u8>, Error> {
        let stat = way.source.stat(&way.url).await?;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < stat.len {
            bytes.extend(self.part(way, &stat, bytes.len() as u64).await?);
        }
        Ok(bytes)
    }

    /// Another object under the same name, of the same length, as an upload would put it there.
    fn replace(&self) {
        let other = self.dir.path().join("other");
        std::fs::write(&other, field(2, 1, "tar", self.bytes.len())).unwrap();
        std::fs::rename(&other, self.path()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_source_gives_the_same_bytes() {
    let bench = Bench::new();
    for way in [bench.s3(), bench.google(), bench.azure(), bench.http(), bench.file()] {
        let stat = way.source.stat(&way.url).await.unwrap();
        assert_eq!(stat.len, bench.bytes.len() as u64, "{}", way.url);
        let is_file = way.source.endpoint() == "file";
        let binding = if is_file { Binding::Weak } else { Binding::Strong };
        assert_eq!(stat.binding, binding);
        assert_eq!(bench.whole(&way).await.unwrap(), bench.bytes, "{}", way.url);
        let span = bench.arena.try_lease(PART).unwrap();
        let outside =
            way.source.read_part(&way.url, &stat, stat.len, span, &Rank::now(0)).await.unwrap_err();
        assert_eq!(outside.kind(), ErrorKind::Invalid);
    }
    assert_eq!(bench.s3().source.endpoint(), bench.server.endpoint());
    let (s3, http) = (bench.s3(), bench.http());
    let versions =
        (s3.source.stat(&s3.url).await.unwrap(), http.source.stat(&http.url).await.unwrap());
    assert_eq!(versions.0, versions.1, "one file has one ETag, whoever asks");
    let counters = bench.sources.counters();
    // Per way over the network two stats and three parts, and two more stats.
    // What was late on a busy machine was asked for twice.
    let hedges: u64 = bench.sources.links().iter().map(|link| link.hedges).sum();
    assert_eq!(counters.requests - hedges, 4 * (2 + 3) + 2);
    assert_eq!(counters.bytes, 4 * bench.bytes.len() as u64);
    assert_eq!(counters.failed, 0);
    assert_eq!(bench.arena.in_use(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn equal_options_share_a_source() {
    let bench = Bench::new();
    assert!(Arc::ptr_eq(&bench.s3().source, &bench.s3().source));
    let more = bench.options().with("PATH", "/bin");
    assert!(Arc::ptr_eq(&bench.s3().source, &bench.sources.open("s3://bucket/y", &more).unwrap()));
    let other = bench.options().with("AWS_SECRET_ACCESS_KEY", "other");
    let other = bench.sources.open("s3://bucket/x", &other).unwrap();
    assert!(!Arc::ptr_eq(&bench.s3().source, &other));
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_shard_is_reported_with_its_url() {
    let bench = Bench::new();
    let missing = [
        "s3://bucket/no.tar".to_owned(),
        "s3://no-bucket/no.tar".to_owned(),
        format!("{}/bucket/no.tar?sig=hunter2", bench.server.endpoint()),
        bench.dir.path().join("no.tar").to_str().unwrap().to_owned(),
    ];
    for url in missing {
        let way = bench.way(&url);
        let stat = way.source.stat(&url).await.unwrap_err();
        assert_eq!(stat.kind(), ErrorKind::NotFound, "{stat}");
        assert!(stat.place("url").unwrap().contains("no.tar"), "{stat}");
        assert!(!stat.to_string().contains("hunter2"), "{stat}");
        let known = Stat::new(9, "\"x\"".to_owned(), Binding::Strong);
        let read = bench.part(&way, &known, 0).await.unwrap_err();
        assert_eq!(read.kind(), ErrorKind::NotFound, "{read}");
    }
    assert_eq!(bench.arena.in_use(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn google_and_azure_errors_have_the_same_kinds() {
    let bench = Bench::new();
    for way in [bench.google(), bench.azure()] {
        let url = way.url.replace("train", "no");
        let error = way.source.stat(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert_eq!(error.place("url"), Some(&url[..]), "{error}");
        bench.server.deny(KEY, true);
        let error = way.source.stat(&way.url).await.unwrap_err();
        bench.server.deny(KEY, false);
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("SKIP_SIGNATURE"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn denied_access_names_the_variables_and_no_secret() {
    let bench = Bench::new();
    let wrong = bench.options().with("AWS_SECRET_ACCESS_KEY", "hunter2");
    let url = format!("s3://{KEY}");
    let source = bench.sources.open(&url, &wrong).unwrap();
    bench.server.deny(KEY, true);
    let denied = [source.stat(&url).await.unwrap_err(), {
        let way = bench.http();
        way.source.stat(&way.url).await.unwrap_err()
    }];
    bench.server.deny(KEY, false);
    let signature = source.stat(&url).await.unwrap_err();
    for error in denied.iter().chain([&signature]) {
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    let text = signature.to_string();
    assert!(text.contains("AWS_SECRET_ACCESS_KEY is set"), "{text}");
    assert!(text.contains("AWS_SESSION_TOKEN is not set"), "{text}");
    // A denial is an answer: it is not asked again.
    assert_eq!(bench.sources.counters().requests, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn down_endpoint_is_reported_with_its_address() {
    let bench = Bench::new();
    let (s3, http) = (bench.s3(), bench.http());
    let endpoint = bench.server.endpoint();
    let Bench { server, sources, .. } = bench;
    drop(server);
    for way in [s3, http] {
        let error = way.source.stat(&way.url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert_eq!(error.place("endpoint"), Some(&endpoint[..]), "{error}");
        assert!(error.to_string().contains("refused"), "{error}");
    }
    // Each was tried once and repeated twice.
    assert_eq!(sources.counters().failed, 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_store_is_retried_until_retries_end() {
    let bench = Bench::new();
    let way = bench.s3();
    bench.server.fail_next(2, 503);
    assert!(way.source.stat(&way.url).await.is_ok());
    assert_eq!(bench.sources.counters().failed, 2);
    bench.server.fail_next(3, 503);
    let error = way.source.stat(&way.url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("503"), "{error}");
    assert_eq!(bench.sources.counters().requests, 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_body_is_resumed_until_retries_end() {
    let bench = Bench::new();
    for way in [bench.s3(), bench.http()] {
        let before = bench.server.counts();
        bench.server.cut(KEY, 10_000, 2);
        let stat = way.source.stat(&way.url).await.unwrap();
        assert_eq!(bench.part(&way, &stat, 0).await.unwrap(), bench.bytes[..PART]);
        let after = bench.server.counts();
        assert_eq!(after.gets[KEY] - before.gets.get(KEY).unwrap_or(&0), 3);

        bench.server.cut(KEY, 10_000, u32::MAX);
        let error = bench.part(&way, &stat, 0).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        bench.server.cut(KEY, 0, 0);
    }
    assert_eq!(bench.arena.in_use(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_reply_leaves_its_place_to_a_request() {
    let late = Duration::from_secs(600);
    let bench = Bench::with(Limits { connections: 1, retries: 0, late, ..Limits::default() });
    for way in [bench.s3(), bench.http()] {
        let (source, url, rank) = (&way.source, &way.url, Rank::now(0));
        let span = || bench.arena.try_lease(PART).expect("spans are given back");
        let other = |stat| tokio::time::timeout(PATIENCE, bench.part(&way, stat, PART as u64));
        let second = &bench.bytes[PART..2 * PART];

        let begun = source.begin(url, &rank).await.unwrap();
        let (stat, mut head) = (begun.stat, begun.head.unwrap());
        assert_eq!(other(&stat).await.expect("a head that is not read waits").unwrap(), second);
        assert_eq!(head.fill(span()).await.unwrap()[..PART], bench.bytes[..PART]);
        drop(head);

        let mut read = source.range_read(url, &stat, 0..2 * PART as u64, &rank).await.unwrap();
        assert_eq!(read.fill(span()).await.unwrap()[..PART], bench.bytes[..PART]);
        assert_eq!(other(&stat).await.expect("a reply between parts waits").unwrap(), second);
        assert_eq!(read.fill(span()).await.unwrap()[..PART], *second, "asked for again");
        let under_way = bench.sources.links().iter().map(|link| link.under_way).sum::<usize>();
        assert_eq!(under_way, 0, "all of it came: its reader holds no place");
    }
    assert_eq!(bench.arena.in_use(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connection_times_out() {
    let limits = Limits {
        retries: 1,
        read_timeout: Duration::from_secs(1),
        // No second request beside a late one: attempts are counted.
        late: Duration::from_secs(600),
        ..Limits::default()
    };
    let bench = Bench::with(limits);
    let way = bench.s3();
    let stat = way.source.stat(&way.url).await.unwrap();
    bench.server.stall(KEY, 10_000);
    let error = bench.part(&way, &stat, 0).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(bench.server.counts().gets[KEY], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn replaced_shard_is_detected_before_any_byte_is_used() {
    let bench = Bench::new();
    for way in [bench.s3(), bench.http(), bench.file()] {
        let stat = way.source.stat(&way.url).await.unwrap();
        bench.replace();
        let error = bench.part(&way, &stat, 0).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.message().contains("changed"), "{error}");
        let now = way.source.stat(&way.url).await.unwrap();
        assert_ne!(now.version, stat.version);
        assert!(bench.part(&way, &now, 0).await.is_ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_replaced_in_mid_body_is_not_spliced() {
    let bench = Arc::new(Bench::new());
    // The body stops at byte 10 000; the object is replaced; then the connection breaks there.
    bench.server.stall(KEY, 10_000);
    bench.server.cut(KEY, 10_000, 1);
    let reading = {
        let bench = Arc::clone(&bench);
        tokio::spawn(async move {
            let way = bench.s3();
            let stat = way.source.stat(&way.url).await?;
            bench.part(&way, &stat, 0).await
        })
    };
    let waiting = Arc::clone(&bench);
    tokio::task::spawn_blocking(move || waiting.server.wait_until(|counts| counts.stalled == 1))
        .await
        .unwrap();
    bench.replace();
    bench.server.release(KEY);
    let error = reading.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(bench.arena.in_use(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_urls_and_options_are_rejected_before_any_request() {
    let bench = Bench::new();
    let refused = |url: &str, options: &Options| bench.sources.open(url, options).err().unwrap();
    let none = Options::default();
    let endpoint = none.clone().with("AWS_ENDPOINT_URL", &bench.server.endpoint());
    let google = none.clone().with("GOOGLE_SERVICE_ACCOUNT", "/nowhere/hunter2.json");
    let azure = none.clone().with("AZURE_STORAGE_ACCOUNT_NAME", "account");
    let azure = azure.with("AZURE_STORAGE_ENDPOINT", &bench.server.endpoint());
    let signed = azure.clone().with("AZURE_STORAGE_SAS_TOKEN", "hunter2");
    for (url, options, kind, says) in [
        ("ftp://b/k.tar", &none, ErrorKind::Invalid, "ftp"),
        ("relative.tar", &none, ErrorKind::Invalid, "absolute"),
        ("gs:///k.tar", &none, ErrorKind::Invalid, "bucket"),
        ("gs://b/k.tar", &google, ErrorKind::Invalid, "credentials file"),
        ("az://c/k.tar", &none, ErrorKind::Invalid, "AZURE_STORAGE_ACCOUNT_NAME"),
        ("abfss://c@elsewhere.org/k.tar", &none, ErrorKind::Invalid, "no Azure account"),
        ("az://c/k.tar", &azure, ErrorKind::PermissionDenied, "AZURE_STORAGE_SAS_TOKEN is not set"),
        ("az://c/k.tar", &signed, ErrorKind::Invalid, "shared access signature"),
        ("s3:///k.tar", &endpoint, ErrorKind::Invalid, "bucket"),
        ("s3://b/k.tar", &none, ErrorKind::Invalid, "AWS_REGION"),
        ("s3://b/k.tar", &endpoint, ErrorKind::PermissionDenied, "AWS_ACCESS_KEY_ID is not set"),
        ("http://u:hunter2@h/k.tar", &none, ErrorKind::Invalid, "password"),
    ] {
        let error = refused(url, options);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    let folder = bench.way(bench.dir.path().to_str().unwrap());
    assert_eq!(folder.source.stat(&folder.url).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(bench.sources.counters().requests, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn public_buckets_need_no_keys() {
    let bench = Bench::new();
    let options = Options::default()
        .with("AWS_ENDPOINT_URL", &bench.server.endpoint())
        .with("AWS_SKIP_SIGNATURE", "true");
    let url = format!("s3://{KEY}");
    let source = bench.sources.open(&url, &options).unwrap();
    let stat = source.stat(&url).await.unwrap();
    assert_eq!(stat.len, bench.bytes.len() as u64);
    assert!(Path::new(&bench.path()).exists());
}
