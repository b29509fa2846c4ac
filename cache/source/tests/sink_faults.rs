//! Faults of networks and stores, as writes meet them: what is there is right, or the error says
//! why it is not.
//!
//! Every fault meets a known request, and each write is looked at in the store behind the proxy.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_error::{Error, ErrorKind, Result};
use forebay_source::{
    Client, EXISTS, Ending, Handover, Limits, LinkReport, NO_UPLOAD, Options, Overwrite,
    PART_BYTES_MIN, Permit, REASON, Rule, Rules, Sink, Sources,
};
use forebay_testkit::{
    ACCESS_KEY, Bucket, Fault, FaultProxy, Moto, RetryAfter, S3Server, SECRET_KEY, When,
};
use tokio::runtime::Runtime;

const READER: &str = env!("CARGO_BIN_EXE_forebay-test-reader");
const URL: &str = "s3://bucket/dir/k";
const LIMIT: usize = 64 << 20;

/// A store behind a proxy.
struct Bench<Server> {
    proxy: FaultProxy,
    sources: Sources,
    sink: Arc<dyn Sink>,
    runtime: Runtime,
    server: Server,
}

fn limits() -> Limits {
    Limits {
        retries: 3,
        retry_time: Duration::from_secs(20),
        // Far above what a loopback takes, and soon over where a test waits for it.
        read_timeout: Duration::from_millis(1500),
        ..Limits::default()
    }
}

fn options(endpoint: &str) -> Options {
    Options::default()
        .with("AWS_ENDPOINT_URL", endpoint)
        .with("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .with("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
}

impl<Server> Bench<Server> {
    fn before(server: Server, address: std::net::SocketAddr) -> Self {
        let proxy = FaultProxy::start(address).unwrap();
        let sources = Sources::new(vec![READER.into()], limits()).unwrap();
        let sink = sources.sink(URL, &options(&proxy.endpoint()), None).unwrap();
        Self { proxy, sources, sink, runtime: Runtime::new().unwrap(), server }
    }

    fn link(&self) -> LinkReport {
        let links = self.sources.links();
        assert_eq!(links.len(), 1);
        links.into_iter().next().unwrap()
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

/// The test kit's own server, and its folder.
type Folder = (S3Server, tempfile::TempDir);

fn s3s() -> Bench<Folder> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("bucket")).unwrap();
    let server = S3Server::start(dir.path()).unwrap();
    let address = server.address();
    Bench::before((server, dir), address)
}

fn moto() -> Bench<Moto> {
    let moto = Moto::start().unwrap();
    Bucket::make(moto.address(), "bucket", (ACCESS_KEY, SECRET_KEY)).unwrap();
    let address = moto.address();
    Bench::before(moto, address)
}

/// Faults that pass.
fn transient() -> Vec<Fault> {
    vec![
        Fault::status(500),
        Fault::status(503),
        Fault::status(429),
        Fault::busy(503, RetryAfter::Seconds(0)),
        Fault::ResetBeforeHead,
        Fault::LoseAnswer,
    ]
}

/// Faults of requests without a part's bytes: their answers are waited for as those to a read.
fn soon_noticed() -> impl Iterator<Item = Fault> {
    transient().into_iter().chain([Fault::StallBeforeHead])
}

#[test]
fn whole_objects_survive_transient_faults() {
    let bench = s3s();
    for (fault, overwrite) in soon_noticed()
        .flat_map(|fault| [(fault.clone(), Overwrite::Allowed), (fault, Overwrite::Rejected)])
    {
        let name = format!("{fault:?} {overwrite:?}");
        let bytes = Bytes::from(name.clone());
        bench.proxy.set([(When::put().times(1), fault.clone())]);
        let put = bench.run(bench.sink.put(URL, bytes.clone(), overwrite));
        let tag = put.unwrap_or_else(|error| panic!("{name}: {error}"));
        let found = bench.run(bench.sink.head(URL)).unwrap().unwrap();
        assert_eq!((found.len, found.tag), (bytes.len() as u64, tag), "{name}");
        assert_eq!(bench.run(bench.sink.get(URL, LIMIT)).unwrap().unwrap(), bytes, "{name}");
        let before = bench.link().retries;
        bench.proxy.set([(When::any().times(1), fault)]);
        bench.run(bench.sink.delete(URL)).unwrap();
        assert_eq!(bench.link().retries, before + 1, "{name}");
        bench.proxy.clear();
        assert_eq!(bench.run(bench.sink.head(URL)).unwrap(), None, "{name}");
    }
    let link = bench.link();
    assert_eq!((link.under_way, link.waiting), (0, 0));
}

#[test]
fn stored_objects_are_found_despite_transient_faults() {
    let bench = s3s();
    bench.run(bench.sink.put(URL, Bytes::from_static(b"x"), Overwrite::Allowed)).unwrap();
    for fault in soon_noticed().chain([Fault::Cut(0), Fault::Reset(0), Fault::Stall(0)]) {
        let (name, before) = (format!("{fault:?}"), bench.link().retries);
        let is_of_body = matches!(fault, Fault::Cut(_) | Fault::Reset(_) | Fault::Stall(_));
        let once = || bench.proxy.set([(When::any().times(1), fault.clone())]);
        once();
        assert_eq!(bench.run(bench.sink.get(URL, LIMIT)).unwrap().unwrap(), &b"x"[..], "{name}");
        once();
        assert_eq!(bench.run(bench.sink.head(URL)).unwrap().unwrap().len, 1, "{name}");
        once();
        let listed = bench.run(bench.sink.list("s3://bucket/dir")).unwrap();
        assert_eq!((&*listed[0].name, listed[0].len), ("k", 1), "{name}");
        // The answer to HEAD has no body.
        let least = if is_of_body { 2 } else { 3 };
        assert!(bench.link().retries - before >= least, "{name}");
    }
}

#[test]
fn uploads_in_parts_survive_transient_faults() {
    let bench = moto();
    let parts = [vec![1; PART_BYTES_MIN as usize], vec![2; 7]].map(Bytes::from);
    for fault in transient() {
        let name = format!("{fault:?}");
        let once = |when: When| bench.proxy.set([(when.times(1), fault.clone())]);
        once(When::post());
        let upload = bench.run(bench.sink.begin_upload(URL, PART_BYTES_MIN)).unwrap();
        let mut tags = Vec::new();
        for (number, bytes) in (0..).zip(&parts) {
            once(When::put());
            let part = bench.sink.upload_part(URL, &upload, number, bytes.clone());
            tags.push(bench.run(part).unwrap_or_else(|error| panic!("{name}: {error}")));
        }
        once(When::post());
        let tag = bench.run(bench.sink.complete(URL, &upload, &tags));
        let tag = tag.unwrap_or_else(|error| panic!("{name}: {error}"));
        bench.proxy.clear();
        let found = bench.run(bench.sink.head(URL)).unwrap().unwrap();
        assert_eq!((found.len, found.tag), (PART_BYTES_MIN + 7, tag), "{name}");
        assert!(
            bench.run(bench.sink.get(URL, LIMIT)).unwrap().unwrap() == parts.concat(),
            "{name}"
        );
        bench.run(bench.sink.delete(URL)).unwrap();

        let upload = bench.run(bench.sink.begin_upload(URL, PART_BYTES_MIN)).unwrap();
        bench.proxy.set([(When::any().times(1), fault)]);
        bench.run(bench.sink.abort(URL, &upload)).unwrap();
        bench.proxy.clear();
    }
    let link = bench.link();
    assert_eq!(link.puts, 12, "each part counts once");
    assert_eq!(link.written_bytes, 6 * (PART_BYTES_MIN + 7));
}

/// An upload that is gone is complete only if what is there has its length.
#[test]
fn lost_completion_is_told_from_an_older_object() {
    let bench = moto();
    let put = bench.sink.put(URL, Bytes::from_static(b"old"), Overwrite::Allowed);
    let old = bench.run(put).unwrap();
    let upload = bench.run(bench.sink.begin_upload(URL, PART_BYTES_MIN)).unwrap();
    let part = bench.sink.upload_part(URL, &upload, 0, Bytes::from_static(b"longer"));
    let part = bench.run(part).unwrap();
    let lost = Fault::Refuse { status: 404, code: "NoSuchUpload", retry_after: None };
    bench.proxy.set([
        (When::post().times(1), Fault::ResetBeforeHead),
        (When::post().after(1), lost.clone()),
    ]);
    let parts = std::slice::from_ref(&part);
    let error = bench.run(bench.sink.complete(URL, &upload, parts)).unwrap_err();
    assert_eq!((error.kind(), error.place(REASON)), (ErrorKind::NotFound, Some(NO_UPLOAD)));
    assert_eq!(bench.run(bench.sink.head(URL)).unwrap().unwrap().tag, old);
    // Without a doubt there is nothing to look at.
    bench.proxy.set([(When::post(), lost.clone())]);
    let asked = bench.proxy.traffic().requests;
    let error = bench.run(bench.sink.complete(URL, &upload, parts)).unwrap_err();
    assert_eq!((error.kind(), error.place(REASON)), (ErrorKind::NotFound, Some(NO_UPLOAD)));
    assert_eq!(bench.proxy.traffic().requests, asked + 1);
    // Other stores than moto forget an upload once it is complete.
    bench.proxy.set([(When::post().times(1), Fault::LoseAnswer), (When::post().after(1), lost)]);
    let tag = bench.run(bench.sink.complete(URL, &upload, parts)).unwrap();
    bench.proxy.clear();
    assert_eq!(bench.run(bench.sink.head(URL)).unwrap().unwrap().tag, tag);
    assert_eq!(bench.run(bench.sink.get(URL, LIMIT)).unwrap().unwrap(), &b"longer"[..]);
}

/// Two writers, of which one meets a fault while the other is through.
#[test]
fn object_of_another_writer_is_not_taken_for_ours() {
    let bench = s3s();
    let place = bench.server.1.path().join("bucket/dir/k");
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    for (theirs, fault) in [
        (&b"ours?"[..], Fault::ResetBeforeHead),
        (b"ours?", Fault::status(500)),
        (b"theirs", Fault::status(503)),
        (b"theirs that are longer", Fault::status(500)),
        (b"", Fault::StallBeforeHead),
    ] {
        let _ = std::fs::remove_file(&place);
        let (there, bytes) = (place.clone(), theirs.to_vec());
        let write = Arc::new(move || std::fs::write(&there, &bytes).unwrap());
        bench
            .proxy
            .set([(When::put().times(1), Fault::Call(write)), (When::put().times(1), fault)]);
        let put = bench.sink.put(URL, Bytes::from_static(b"ours!"), Overwrite::Rejected);
        let error = bench.run(put).unwrap_err();
        assert_eq!((error.kind(), error.place(REASON)), (ErrorKind::Invalid, Some(EXISTS)));
        assert_eq!(std::fs::read(&place).unwrap(), theirs);
    }
}

#[test]
fn conflicting_writes_come_again() {
    let bench = s3s();
    let conflict = |code| Fault::Refuse { status: 409, code, retry_after: None };
    bench.proxy.set([(When::put().times(2), conflict("ConditionalRequestConflict"))]);
    let put = bench.sink.put(URL, Bytes::from_static(b"x"), Overwrite::Rejected);
    bench.run(put).unwrap();
    // Any other conflict is for somebody to mend.
    bench.proxy.set([(When::put(), conflict("InvalidBucketState"))]);
    let put = bench.sink.put(URL, Bytes::from_static(b"x"), Overwrite::Rejected);
    let error = bench.run(put).unwrap_err();
    assert_eq!((error.kind(), error.place(REASON)), (ErrorKind::Invalid, None), "{error}");
}

#[test]
fn lasting_faults_of_writes_have_kinds() {
    let bench = s3s();
    let refuse = |status, code| Fault::Refuse { status, code, retry_after: None };
    for (fault, kind) in [
        (Fault::status(403), ErrorKind::PermissionDenied),
        (refuse(404, "NoSuchBucket"), ErrorKind::NotFound),
        (Fault::status(500), ErrorKind::Unavailable),
        (Fault::ResetBeforeHead, ErrorKind::Unavailable),
        (refuse(403, "QuotaExceeded"), ErrorKind::Full),
        (refuse(507, "XMinioStorageFull"), ErrorKind::Full),
        (refuse(400, "EntityTooLarge"), ErrorKind::Invalid),
    ] {
        let name = format!("{fault:?}");
        bench.proxy.set([(When::any(), fault)]);
        let before = bench.proxy.traffic().requests;
        let put = bench.sink.put(URL, Bytes::from_static(b"x"), Overwrite::Rejected);
        let error = bench.run(put).unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert_eq!(error.place("url"), Some(URL), "{name}: {error}");
        let asked = bench.proxy.traffic().requests - before;
        assert_eq!(asked, if kind == ErrorKind::Unavailable { 4 } else { 1 }, "{name}");
        let begun = bench.run(bench.sink.begin_upload(URL, PART_BYTES_MIN)).unwrap_err();
        assert_eq!(begun.kind(), kind, "{name}: {begun}");
        bench.proxy.clear();
    }
    let missing = bench.run(bench.sink.get("s3://bucket/no", LIMIT)).unwrap();
    assert_eq!(missing, None, "the store is itself again");
    bench.proxy.set([(When::any(), refuse(404, "NoSuchBucket"))]);
    let error = bench.run(bench.sink.get(URL, LIMIT)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "a missing bucket is no missing object");
}

#[test]
fn store_that_knows_no_condition_is_told_by_the_probe() {
    let bench = s3s();
    bench.proxy.set([(When::put(), Fault::status(501))]);
    assert!(!bench.run(bench.sink.conditional("s3://bucket/dir")).unwrap());
    let before = bench.proxy.traffic().requests;
    assert!(!bench.run(bench.sink.conditional("s3://bucket/other")).unwrap());
    assert_eq!(bench.proxy.traffic().requests, before, "it is known");
}

/// Rights of another user to read everything.
struct All;

impl Permit for All {
    fn read(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn list(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn shows(&self, _: &str) -> bool {
        true
    }
}

/// A client that is asked for nothing.
struct Elsewhere;

#[async_trait]
impl Handover for Elsewhere {
    async fn hand(&self, _: std::os::fd::OwnedFd) -> Result<()> {
        Err(Error::new(ErrorKind::Closed, "gone"))
    }

    async fn run(&self, _: &str, _: std::os::fd::OwnedFd) -> Result<Ending> {
        Err(Error::new(ErrorKind::Closed, "gone"))
    }
}

#[test]
fn sink_obeys_the_rules_of_sources() {
    let bench = s3s();
    let mut rule = Rule::new("s3://bucket/").unwrap();
    rule.endpoint = Some(bench.proxy.endpoint());
    let rules = Rules::new(vec![rule]).unwrap();
    let sources = Sources::new(vec![READER.into()], limits()).unwrap();
    let sources = sources.opening_by_rule().ruled(rules).unwrap();
    let keys = Options::default()
        .with("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .with("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    let sink = sources.sink(URL, &keys, None).unwrap();
    bench.run(sink.put(URL, Bytes::from_static(b"x"), Overwrite::Rejected)).unwrap();
    assert_eq!(std::fs::read(bench.server.1.path().join("bucket/dir/k")).unwrap(), b"x");
    for (url, options) in [("s3://other/k", keys.clone()), ("/tmp/k", Options::default())] {
        let error = sources.sink(url, &options, None).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{url}: {error}");
    }
    // A folder's own URL has no `/`, and what is written there has.
    assert!(sources.sink("s3://bucket", &keys, None).is_ok());
    // Another user's job writes to stores, and never to paths.
    let handover = Arc::new(Elsewhere);
    let client = Client { name: "1".into(), user: 1, permit: Some(Arc::new(All)), handover };
    let client = bench.run(async { sources.by_client(&client) });
    assert!(sources.sink(URL, &keys, Some(&client)).is_ok());
    let own = Sources::new(vec![READER.into()], limits()).unwrap();
    assert!(own.sink("/tmp/k", &keys, None).is_ok());
    for (sources, url) in [(&sources, "/tmp/k"), (&own, "file:///tmp/k"), (&own, URL)] {
        let error = sources.sink(url, &keys, Some(&client)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{url}: {error}");
    }
    // One store is not another.
    let error = bench.run(sink.head("s3://other/k")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// A link that is busy with what jobs wait for leaves uploads a share.
#[test]
fn busy_link_leaves_uploads_a_share() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("bucket")).unwrap();
    let server = S3Server::start(dir.path()).unwrap();
    let one = Limits { connections: 1, ..limits() };
    let sources = Sources::new(vec![READER.into()], one).unwrap();
    let sink = sources.sink(URL, &options(&server.endpoint()), None).unwrap();
    Runtime::new().unwrap().block_on(async {
        sink.put(URL, Bytes::from_static(b"x"), Overwrite::Allowed).await.unwrap();
        let upload = sink.begin_upload(URL, PART_BYTES_MIN).await.unwrap();
        // Somebody waits for the connection whenever it is free.
        let reading = || async {
            loop {
                sink.get(URL, LIMIT).await.unwrap();
            }
        };
        let part = sink.upload_part(URL, &upload, 0, Bytes::from_static(b"part"));
        tokio::select! {
            never = futures::future::join3(reading(), reading(), reading()) => {
                let _: ((), (), ()) = never;
            }
            sent = tokio::time::timeout(Duration::from_secs(60), part) => {
                sent.unwrap().unwrap();
            }
        }
    });
}
