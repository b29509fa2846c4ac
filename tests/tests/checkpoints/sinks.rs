//! One list of behaviours of stores that are written to, each against a real server.
//!
//! A store that cannot show a behaviour says so here, with the reason.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use bytes::Bytes;
use forebay_error::{Error, ErrorKind};
use forebay_source::{
    EXISTS, Limits, NO_UPLOAD, Named, Options, Overwrite, PART_BYTES_MIN, PartTag, REASON, Sink,
    Sources, UploadId,
};
use forebay_testkit::{Ceph, say, skip};
use forebay_tests::TestSource;
use futures::StreamExt as _;
use tokio::runtime::Runtime;

/// Largest document of a test.
const LIMIT: usize = 64 << 20;

/// Objects of a listing of more than one page: S3 has a thousand on each.
const MANY: usize = 1005;

/// Writes under way at once.
const AT_ONCE: usize = 16;

/// A store and a process that writes to it.
struct Bench<'a> {
    store: TestSource,
    sources: Sources,
    runtime: Runtime,
    except: &'a [(&'static str, &'static str)],
}

type Behaviour = (&'static str, fn(&Bench<'_>));

const BEHAVIOURS: [Behaviour; 10] = [
    ("objects as a whole", whole),
    ("objects that may not be replaced", rejected),
    ("objects in parts", parts),
    ("an upload that is given up", abort),
    ("a lost upload", lost),
    ("an upload that is over", over),
    ("documents", documents),
    ("lists", lists),
    ("denied access", denied),
    ("counts", counts),
];

/// Another process: nothing is known but the configuration.
fn process() -> Sources {
    // No reader is started where nothing is read by one.
    Sources::new(vec!["false".into()], Limits::default()).unwrap()
}

impl<'a> Bench<'a> {
    fn new(store: TestSource, except: &'a [(&'static str, &'static str)]) -> Self {
        Self { store, sources: process(), runtime: Runtime::new().unwrap(), except }
    }

    fn all(&self) {
        for (name, behaviour) in BEHAVIOURS {
            if let Some((_, why)) = self.except.iter().find(|(except, _)| *except == name) {
                say(&format!("{name} does not apply to {}: {why}", self.store.name));
            } else if let Err(panic) = catch_unwind(AssertUnwindSafe(|| behaviour(self))) {
                say(&format!("this failed for {}: {name}", self.store.name));
                resume_unwind(panic);
            }
        }
    }

    fn sink(&self) -> Arc<dyn Sink> {
        self.sink_of(&self.sources, &self.store.environment)
    }

    fn sink_of(&self, by: &Sources, environment: &BTreeMap<String, String>) -> Arc<dyn Sink> {
        by.sink(&self.store.url("k"), &Options::from(environment.clone()), None).unwrap()
    }

    fn url(&self, key: &str) -> String {
        self.store.url(key)
    }

    fn put(&self, key: &str, bytes: &[u8]) {
        let (sink, url) = (self.sink(), self.url(key));
        let put = sink.put(&url, Bytes::copy_from_slice(bytes), Overwrite::Allowed);
        self.runtime.block_on(put).unwrap();
    }

    fn get(&self, key: &str) -> Option<Bytes> {
        self.runtime.block_on(self.sink().get(&self.url(key), LIMIT)).unwrap()
    }
}

fn told(error: &Error) -> (ErrorKind, Option<&str>) {
    (error.kind(), error.place(REASON))
}

fn whole(bench: &Bench<'_>) {
    let sink = bench.sink();
    let keys = ["whole/k", "a b/c d", "plus+and&more=", "percent%41", "größe/日本", "(x)'!*"];
    for key in keys {
        let url = bench.url(key);
        let contents = [b"first".to_vec(), Vec::new(), vec![7; 3 << 20], b"last".to_vec()];
        for bytes in contents.map(Bytes::from) {
            let put = sink.put(&url, bytes.clone(), Overwrite::Allowed);
            let tag = bench.runtime.block_on(put).unwrap();
            let found = bench.runtime.block_on(sink.head(&url)).unwrap().unwrap();
            assert_eq!((found.len, found.tag), (bytes.len() as u64, tag), "{key}");
            assert!(bench.get(key).unwrap() == bytes, "{key} has other bytes");
        }
    }
}

fn rejected(bench: &Bench<'_>) {
    let sink = bench.sink();
    let url = bench.url("rejected/.metadata");
    bench.runtime.block_on(async {
        sink.delete(&url).await.unwrap();
        assert!(sink.conditional(&bench.url("rejected")).await.unwrap());
        assert!(sink.conditional(&bench.url("other")).await.unwrap());
        assert_eq!(sink.list(&bench.url("rejected")).await.unwrap(), [], "the probe is removed");
        let put = |bytes| sink.put(&url, Bytes::from_static(bytes), Overwrite::Rejected);
        let tag = put(b"one").await.unwrap();
        for bytes in [&b"one"[..], b"two", b""] {
            let error = put(bytes).await.unwrap_err();
            assert_eq!(told(&error), (ErrorKind::Invalid, Some(EXISTS)), "{error}");
            assert_eq!(error.place("url"), Some(&*url), "{error}");
        }
        assert_eq!(sink.head(&url).await.unwrap().unwrap().tag, tag);
        sink.delete(&url).await.unwrap();
        put(b"two").await.unwrap();
    });
    assert_eq!(bench.get("rejected/.metadata").unwrap(), &b"two"[..]);
}

/// The bytes of an upload in three parts.
fn three_parts() -> [Bytes; 3] {
    let part = |byte, len: u64| Bytes::from(vec![byte; usize::try_from(len).unwrap()]);
    [part(1, PART_BYTES_MIN), part(2, PART_BYTES_MIN), part(3, 7)]
}

fn parts(bench: &Bench<'_>) {
    let url = bench.url("parts/a b");
    let [first, second, last] = three_parts();
    let sink = bench.sink();
    let journal = bench.runtime.block_on(async {
        sink.delete(&url).await.unwrap();
        let upload = sink.begin_upload(&url, PART_BYTES_MIN).await.unwrap();
        let third = sink.upload_part(&url, &upload, 2, last.clone()).await.unwrap();
        let one = sink.upload_part(&url, &upload, 0, second.clone()).await.unwrap();
        // A part may come again.
        let again = sink.upload_part(&url, &upload, 0, first.clone()).await.unwrap();
        assert_ne!((&one, &third), (&third, &again));
        assert_eq!(sink.head(&url).await.unwrap(), None);
        serde_json::to_string(&(upload, again, third)).unwrap()
    });
    // The daemon begins anew: it has its journal and nothing else.
    let sources = process();
    let sink = bench.sink_of(&sources, &bench.store.environment);
    let (upload, one, third): (UploadId, PartTag, PartTag) =
        serde_json::from_str(&journal).unwrap();
    bench.runtime.block_on(async {
        let two = sink.upload_part(&url, &upload, 1, second.clone()).await.unwrap();
        let tag = sink.complete(&url, &upload, &[one, two, third]).await.unwrap();
        let found = sink.head(&url).await.unwrap().unwrap();
        assert_eq!((found.len, found.tag), (2 * PART_BYTES_MIN + 7, tag));
    });
    assert!(bench.get("parts/a b").unwrap() == [first, second, last].concat());
}

fn abort(bench: &Bench<'_>) {
    let (sink, url) = (bench.sink(), bench.url("abort/k"));
    bench.runtime.block_on(async {
        let upload = sink.begin_upload(&url, PART_BYTES_MIN).await.unwrap();
        sink.upload_part(&url, &upload, 0, Bytes::from_static(b"x")).await.unwrap();
        sink.abort(&url, &upload).await.unwrap();
        sink.abort(&url, &upload).await.unwrap();
        assert_eq!(sink.head(&url).await.unwrap(), None);
    });
}

fn lost(bench: &Bench<'_>) {
    let (sink, url) = (bench.sink(), bench.url("lost/k"));
    bench.runtime.block_on(async {
        let upload = sink.begin_upload(&url, PART_BYTES_MIN).await.unwrap();
        let part = sink.upload_part(&url, &upload, 0, Bytes::from_static(b"x")).await.unwrap();
        sink.abort(&url, &upload).await.unwrap();
        let gone = sink.complete(&url, &upload, &[part]).await.unwrap_err();
        assert_eq!(told(&gone), (ErrorKind::NotFound, Some(NO_UPLOAD)), "{gone}");
        if bench.store.name.ends_with("moto") {
            return say("moto fails where a part comes to no upload");
        }
        let late = sink.upload_part(&url, &upload, 1, Bytes::from_static(b"x")).await.unwrap_err();
        assert_eq!(told(&late), (ErrorKind::NotFound, Some(NO_UPLOAD)), "{late}");
        assert_eq!(late.place("url"), Some(&*url), "{late}");
    });
}

fn over(bench: &Bench<'_>) {
    let (sink, url) = (bench.sink(), bench.url("over/k"));
    bench.runtime.block_on(async {
        let upload = sink.begin_upload(&url, PART_BYTES_MIN).await.unwrap();
        let part = sink.upload_part(&url, &upload, 0, Bytes::from_static(b"x")).await.unwrap();
        let tag = sink.complete(&url, &upload, std::slice::from_ref(&part)).await.unwrap();
        // Some stores know for a while what they completed.
        match sink.complete(&url, &upload, &[part]).await {
            Ok(again) => assert_eq!(again, tag),
            Err(error) => {
                assert_eq!(told(&error), (ErrorKind::NotFound, Some(NO_UPLOAD)), "{error}");
            }
        }
        assert_eq!(sink.head(&url).await.unwrap().unwrap().tag, tag);
    });
}

fn documents(bench: &Bench<'_>) {
    let (sink, url) = (bench.sink(), bench.url("documents/d.json"));
    bench.runtime.block_on(async {
        assert_eq!(sink.get(&url, 4).await.unwrap(), None);
        assert_eq!(sink.head(&url).await.unwrap(), None);
        sink.delete(&url).await.unwrap();
    });
    bench.put("documents/d.json", b"four");
    bench.runtime.block_on(async {
        assert_eq!(sink.get(&url, 4).await.unwrap().as_deref(), Some(&b"four"[..]));
        let error = sink.get(&url, 3).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(error.place("url"), Some(&*url), "{error}");
        sink.delete(&url).await.unwrap();
        sink.delete(&url).await.unwrap();
        assert_eq!(sink.head(&url).await.unwrap(), None);
    });
}

fn lists(bench: &Bench<'_>) {
    for (key, len) in [("lists/k", 1), ("lists/a/b/l m", 2), ("lists2/k", 3), ("list", 4)] {
        bench.put(key, &vec![0; len]);
    }
    let named = |name: &str, len| Named { name: name.to_owned(), len };
    let sink = bench.sink();
    for folder in ["lists", "lists/"] {
        let listed = bench.runtime.block_on(sink.list(&bench.url(folder))).unwrap();
        assert_eq!(listed, [named("a/b/l m", 2), named("k", 1)], "{folder}");
    }
    let listed = bench.runtime.block_on(sink.list(&bench.url("lists/a"))).unwrap();
    assert_eq!(listed, [named("b/l m", 2)]);
    // The beginning of other keys is no object.
    assert_eq!(bench.runtime.block_on(sink.head(&bench.url("lists/a"))).unwrap(), None);
    assert_eq!(bench.runtime.block_on(sink.list(&bench.url("no-such"))).unwrap(), []);
}

fn denied(bench: &Bench<'_>) {
    let denied = match &bench.store.denied {
        Ok(denied) => denied,
        Err(why) => return say(&format!("denied access: {} has none: {why}", bench.store.name)),
    };
    let sink = bench.sink_of(&bench.sources, &denied.environment);
    let url = &denied.url;
    let one = || Bytes::from_static(b"x");
    bench.runtime.block_on(async {
        let errors = [
            sink.put(url, one(), Overwrite::Allowed).await.map(drop),
            sink.put(url, one(), Overwrite::Rejected).await.map(drop),
            match bench.store.name.starts_with("az") {
                // Nothing is asked before the first part.
                true => sink.upload_part(url, &UploadId::new(""), 0, one()).await.map(drop),
                false => sink.begin_upload(url, PART_BYTES_MIN).await.map(drop),
            },
            sink.head(url).await.map(drop),
            sink.get(url, LIMIT).await.map(drop),
            sink.delete(url).await,
            sink.list(url).await.map(drop),
            sink.conditional(url).await.map(drop),
        ];
        for (at, error) in errors.into_iter().enumerate() {
            let error = error.expect_err(&format!("{at} is denied"));
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{at}: {error}");
            assert!(error.place("url").unwrap().contains("k.tar"), "{at}: {error}");
            assert!(!format!("{error:?}").contains(bench.store.secret()), "{at}: {error:?}");
        }
    });
}

fn counts(bench: &Bench<'_>) {
    let sources = process();
    let sink = bench.sink_of(&sources, &bench.store.environment);
    let url = bench.url("counts/k");
    bench.runtime.block_on(async {
        sink.put(&url, Bytes::from(vec![0; 1000]), Overwrite::Allowed).await.unwrap();
        let upload = sink.begin_upload(&url, PART_BYTES_MIN).await.unwrap();
        sink.upload_part(&url, &upload, 0, Bytes::from(vec![0; 500])).await.unwrap();
        sink.abort(&url, &upload).await.unwrap();
        sink.get(&url, 1000).await.unwrap();
    });
    let links = sources.links();
    let [link] = &links[..] else { panic!("{links:?}") };
    assert_eq!((link.puts, link.written_bytes, link.bytes), (2, 1500, 1000));
    assert_eq!((link.under_way, link.failures), (0, 0));
    let counters = sources.counters();
    assert_eq!((counters.written_bytes, counters.bytes), (1500, 1000));
    // Azure knows no request that begins or ends an upload.
    assert!(counters.requests >= 3, "{counters:?}");
}

/// Writes more objects than a page lists.
fn pages(bench: &Bench<'_>) {
    let sink = bench.sink();
    let writes = futures::stream::iter(0..MANY).map(|n| {
        let (sink, url) = (sink.clone(), bench.url(&format!("pages/{n:05}")));
        async move { sink.put(&url, Bytes::from_static(b"x"), Overwrite::Allowed).await }
    });
    let listed = bench.runtime.block_on(async {
        writes.buffer_unordered(AT_ONCE).for_each(|put| async { drop(put.unwrap()) }).await;
        sink.list(&bench.url("pages")).await.unwrap()
    });
    let names: Vec<_> = (0..MANY).map(|n| format!("{n:05}")).collect();
    assert_eq!(listed.into_iter().map(|named| named.name).collect::<Vec<_>>(), names);
}

/// Uploads whose requests carry checksums, which the server compares.
fn checksums(bench: &mut Bench<'_>) {
    let name = "AWS_REQUEST_CHECKSUM_CALCULATION".to_owned();
    bench.store.environment.insert(name.clone(), "when_supported".to_owned());
    for behaviour in [whole, parts, rejected] {
        behaviour(bench);
    }
    bench.store.environment.insert(name, "sometimes".to_owned());
    let options = Options::from(bench.store.environment.clone());
    let error = bench.sources.sink(&bench.url("k"), &options, None).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

const MOTO: &[(&str, &str)] = &[("denied access", "moto checks nobody who writes")];

#[test]
fn s3_on_s3s() {
    let mut bench = Bench::new(
        TestSource::s3s().unwrap(),
        &[
            ("an upload that is given up", "it denies access to a lost upload"),
            ("a lost upload", "it denies access to a lost upload"),
            ("an upload that is over", "it denies access to a lost upload"),
        ],
    );
    bench.all();
    checksums(&mut bench);
}

#[test]
fn s3_on_moto() {
    let mut bench = Bench::new(TestSource::moto().unwrap(), MOTO);
    bench.all();
    pages(&bench);
    checksums(&mut bench);
}

#[test]
fn s3_on_ceph() {
    if let Some(missing) = Ceph::missing() {
        return skip(missing, "Ceph's daemons and mounts");
    }
    let (_files, gateway, _) = TestSource::ceph().unwrap();
    let bench = Bench::new(gateway, &[]);
    bench.all();
    pages(&bench);
}

#[test]
fn az_on_azurite() {
    let except = &[("a lost upload", "an upload that is given up goes on for a week")];
    Bench::new(TestSource::azurite().unwrap(), except).all();
}

#[test]
fn gs_on_moto() {
    let except = [
        ("objects that may not be replaced", "moto knows no conditions of Google's"),
        MOTO[0],
        ("a lost upload", "moto fails where it knows no upload"),
    ];
    let bench = Bench::new(TestSource::gs_on_moto().unwrap(), &except);
    bench.all();
    let sink = bench.sink();
    let honours = bench.runtime.block_on(sink.conditional(&bench.url("probe"))).unwrap();
    assert!(!honours, "the probe finds that nothing is refused");
    assert_eq!(bench.runtime.block_on(sink.list(&bench.url("probe"))).unwrap(), []);
}

#[test]
fn file_on_a_disk() {
    let except = &[("counts", "files have no link")];
    let bench = Bench::new(TestSource::disk().unwrap(), except);
    bench.all();
    pages(&bench);
}

#[test]
fn stores_without_writes_have_no_sink() {
    let sources = process();
    let options = Options::default();
    for url in ["http://h/k", "https://h/k", "hf://datasets/o/n/k", "pipe:cat", "ftp://h/k"] {
        let error = sources.sink(url, &options, None).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error}");
        assert!(error.advice().is_some(), "{url}: {error}");
    }
}
