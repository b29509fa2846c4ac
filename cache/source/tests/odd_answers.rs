//! Answers of servers that are odd: each concerns its object alone, and is named at once.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod web;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_error::{Error, ErrorKind};
use forebay_source::{Begun, Binding, Limits, Options, Rank, Rule, Rules, Source, Sources, Stat};
use forebay_uring::{Arena, Region};
use web::{Asked, RAW, Said, Web};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-test-reader");
const PART: usize = 64 << 10;

fn sources() -> Sources {
    Sources::new(vec![PROGRAM.into()], Limits { retries: 3, ..Limits::default() }).unwrap()
}

fn open(sources: &Sources, url: &str) -> Arc<dyn Source> {
    sources.open(url, &Options::default()).unwrap()
}

fn arena() -> Arena {
    Arena::new(Region::create("test", 4 << 20).unwrap())
}

/// The bytes of an object: text, so that a reply by hand can hold them.
fn body() -> String {
    (0..4000).map(|number| format!("{number:08}")).collect()
}

fn ranged(asked: &Asked) -> Option<std::ops::Range<usize>> {
    let (first, last) = asked.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
    Some(first.parse().ok()?..last.parse::<usize>().ok()? + 1)
}

/// A server as it should be.
fn well(asked: &Asked, etag: &str) -> Said {
    let (body, tag) = (body(), format!("ETag: \"{etag}\""));
    match ranged(asked) {
        None => (200, vec![tag], body),
        Some(range) => {
            let end = range.end.min(body.len());
            let told = format!("Content-Range: bytes {}-{}/{}", range.start, end - 1, body.len());
            (206, vec![tag, told], body[range.start..end].to_owned())
        }
    }
}

async fn read(source: &dyn Source, url: &str, stat: &Stat) -> Result<Vec<u8>, Error> {
    let (arena, rank) = (arena(), Rank::now(0));
    let mut stretch = source.range_read(url, stat, 0..stat.len, &rank).await?;
    let (mut bytes, mut end) = (Vec::new(), stat.len as usize);
    while bytes.len() < end || stat.binding == Binding::Stream {
        let span = stretch.fill(arena.try_lease(PART).unwrap()).await?;
        if let Some(ends_at) = stretch.ends_at() {
            end = ends_at as usize;
        }
        let len = if stat.binding == Binding::Stream && stretch.ends_at().is_none() {
            PART
        } else {
            end - bytes.len()
        };
        bytes.extend_from_slice(&span[..len.min(PART)]);
        if bytes.len() == end {
            break;
        }
    }
    Ok(bytes)
}

async fn first(begun: Begun) -> Vec<u8> {
    let mut head = begun.head.expect("the first bytes are on their way");
    let span = head.fill(arena().try_lease(PART).unwrap()).await.unwrap();
    span[..body().len()].to_vec()
}

fn is_well(sources: &Sources) {
    for link in sources.links() {
        assert_eq!((link.down, link.breaks), (false, 0), "{link:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_reply_to_a_range_concerns_its_object_alone() {
    let web = Web::new(|asked| match asked.target.as_str() {
        "/d/empty.tar" => (200, vec!["ETag: \"0\"".to_owned()], String::new()),
        "/d/odd.tar" => (200, vec!["ETag: \"1\"".to_owned()], body()),
        _ => well(asked, "1"),
    });
    let (sources, rank) = (sources(), Rank::now(0));
    let [empty, odd, good] =
        ["empty", "odd", "good"].map(|name| format!("{}/d/{name}.tar", web.url()));
    let source = open(&sources, &odd);
    let begun = source.begin(&empty, &rank).await.unwrap();
    assert_eq!((begun.stat.len, begun.head.is_none()), (0, true));
    let begun = source.begin(&odd, &rank).await.unwrap();
    assert_eq!(begun.stat.binding, Binding::Sequential);
    assert_eq!(first(begun).await, body().as_bytes());
    assert_eq!(web.asked().len(), 2, "the first reply is used");
    let begun = source.begin(&good, &rank).await.unwrap();
    assert_eq!(begun.stat.binding, Binding::Strong);
    assert_eq!(source.stat(&odd).await.unwrap().binding, Binding::Sequential);
    // A version that was told by HEAD alone.
    let stat = Stat::new(body().len() as u64, "\"1\"".to_owned(), Binding::Strong);
    assert_eq!(read(&*source, &odd, &stat).await.unwrap(), body().as_bytes());
    let span = arena().try_lease(PART).unwrap();
    let part = source.read_part(&odd, &stat, 1000, span, &rank).await.unwrap();
    assert_eq!(part[..1000], body().as_bytes()[1000..2000]);
    is_well(&sources);
}

#[tokio::test(flavor = "multi_thread")]
async fn reply_without_length_is_a_stream() {
    let chunked = |tag: &str| {
        let body = body();
        let (one, two) = body.split_at(10_000);
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n{tag}\r\n\
             {:x}\r\n{one}\r\n{:x}\r\n{two}\r\n0\r\n\r\n",
            one.len(),
            two.len()
        )
    };
    let web = Web::new(move |asked| match (asked.method.as_str(), asked.target.as_str()) {
        ("HEAD", _) => (RAW, Vec::new(), "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned()),
        (_, "/cut.tar") => (RAW, Vec::new(), chunked("")[..5_000].to_owned()),
        (_, "/tagged.tar") => (RAW, Vec::new(), chunked("ETag: \"1\"\r\n")),
        _ => (RAW, Vec::new(), chunked("")),
    });
    let (sources, rank) = (sources(), Rank::now(0));
    for name in ["plain", "tagged"] {
        let url = format!("{}/{name}.tar", web.url());
        let source = open(&sources, &url);
        let begun = source.begin(&url, &rank).await.unwrap();
        assert_eq!(begun.stat.binding, Binding::Stream, "{name}");
        let stat = begun.stat.clone();
        let mut head = begun.head.unwrap();
        let span = head.fill(arena().try_lease(PART).unwrap()).await.unwrap();
        assert_eq!(head.ends_at(), Some(body().len() as u64));
        assert_eq!(span[..body().len()], *body().as_bytes());
        assert_eq!(source.stat(&url).await.unwrap(), stat, "{name}");
        assert_eq!(read(&*source, &url, &stat).await.unwrap(), body().as_bytes());
    }
    let cut = format!("{}/cut.tar", web.url());
    let source = open(&sources, &cut);
    let stat = source.begin(&cut, &rank).await.unwrap().stat;
    let error = read(&*source, &cut, &stat).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    is_well(&sources);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_without_if_match_is_read_by_its_etag() {
    for status in [501, 400, 412] {
        let replaced = Arc::new(AtomicBool::new(false));
        let now = replaced.clone();
        let web = Web::new(move |asked| match asked.header("if-match") {
            Some(_) => (status, Vec::new(), String::new()),
            None => well(asked, if now.load(Ordering::Relaxed) { "2" } else { "1" }),
        });
        let (sources, url) = (sources(), format!("{}/d/0.tar", web.url()));
        let source = open(&sources, &url);
        let stat = source.stat(&url).await.unwrap();
        assert_eq!(read(&*source, &url, &stat).await.unwrap(), body().as_bytes(), "{status}");
        let before = web.asked().len();
        assert_eq!(read(&*source, &url, &stat).await.unwrap(), body().as_bytes());
        assert_eq!(web.asked().len() - before, 1, "it is remembered");
        replaced.store(true, Ordering::Relaxed);
        let error = read(&*source, &url, &stat).await.unwrap_err();
        assert_eq!(error.place("reason"), Some("changed"), "{error}");
        is_well(&sources);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn protocol_fault_is_named_at_once() {
    let web = Web::new(|asked| {
        let raw = |text: String| (RAW, Vec::new(), text);
        let led = |to: &str| (302, vec![format!("Location: {to}")], String::new());
        match asked.target.as_str() {
            "/shifted" => {
                let told = "Content-Range: bytes 5-9/100".to_owned();
                (206, vec!["ETag: \"1\"".to_owned(), told], "12345".to_owned())
            }
            "/unnamed" => (206, Vec::new(), "12345".to_owned()),
            "/large" => raw(format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(2 << 20))),
            "/ssh" => raw("SSH-2.0-OpenSSH_9.6\r\n".to_owned()),
            "/circle" => led("/circle"),
            "/file" => led("file:///etc/passwd"),
            "/nowhere" => (302, Vec::new(), String::new()),
            "/unknown" => (501, Vec::new(), String::new()),
            _ => well(asked, "1"),
        }
    });
    let (sources, rank) = (sources(), Rank::now(0));
    for name in ["shifted", "unnamed", "large", "ssh", "circle", "file", "nowhere", "unknown"] {
        let url = format!("{}/{name}", web.url());
        let source = open(&sources, &url);
        // More than it takes to believe that an endpoint is down.
        for _ in 0..15 {
            let before = web.asked().len();
            let error = source.begin(&url, &rank).await.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{name}: {error}");
            assert!(error.place("url").is_some_and(|url| url.ends_with(name)), "{error}");
            assert!(web.asked().len() - before <= 3, "{name} is not tried for long");
        }
    }
    let good = format!("{}/good", web.url());
    assert_eq!(
        first(open(&sources, &good).begin(&good, &rank).await.unwrap()).await,
        body().as_bytes()
    );
    is_well(&sources);
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_folder_holds_no_other_up() {
    let web = Web::new(|asked| match asked.target.starts_with("/bad/") {
        true => (503, Vec::new(), String::new()),
        false => well(asked, "1"),
    });
    // Those that the breaker keeps from asking wait for so long.
    let limits = Limits { retries: 3, retry_time: Duration::from_secs(2), ..Limits::default() };
    let sources = Arc::new(Sources::new(vec![PROGRAM.into()], limits).unwrap());
    let asking: Vec<_> = (0..24)
        .map(|number| {
            let (sources, url) = (sources.clone(), format!("{}/bad/{number}.tar", web.url()));
            tokio::spawn(async move { open(&sources, &url).stat(&url).await })
        })
        .collect();
    for asked in asking {
        let error = asked.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        // Also of those that the breaker kept from asking.
        assert_eq!(error.place("status"), Some("503"), "{error}");
    }
    let link = &sources.links()[0];
    assert!(link.breaks > 0 && !link.down, "{link:?}");
    let (before, good) = (web.asked().len(), format!("{}/good/0.tar", web.url()));
    open(&sources, &good).stat(&good).await.unwrap();
    assert_eq!(web.asked().len() - before, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn signed_link_is_asked_by_get_and_may_run_out() {
    let has_run_out = Arc::new(AtomicBool::new(false));
    let now = has_run_out.clone();
    let web = Web::new(move |asked| {
        let is_good =
            asked.target.ends_with("X-Amz-Signature=good") && !now.load(Ordering::Relaxed);
        match asked.method == "GET" && (is_good || asked.target.ends_with("=other")) {
            true => well(asked, "1"),
            false => (403, Vec::new(), "<Error><Code>AccessDenied</Code></Error>".to_owned()),
        }
    });
    let sources = sources();
    let link =
        |signature: &str| format!("{}/b/0.tar?X-Amz-Date=1&X-Amz-Signature={signature}", web.url());
    let object = forebay_source::object_of(&link("good")).into_owned();
    assert_eq!(object, format!("{}/b/0.tar", web.url()));
    let source = open(&sources, &link("good"));
    let stat = source.stat(&object).await.unwrap();
    let begun = source.begin(&object, &Rank::now(0)).await.unwrap();
    assert_eq!((begun.stat.clone(), stat.len), (stat.clone(), body().len() as u64));
    assert_eq!(first(begun).await, body().as_bytes());
    let other = open(&sources, &link("other"));
    assert_eq!(other.stat(&object).await.unwrap(), stat, "one object, whoever signed");
    assert_eq!(other.endpoint(), source.endpoint());
    assert_ne!(other.scope(), source.scope(), "each link shows its own rights");
    has_run_out.store(true, Ordering::Relaxed);
    assert_eq!(source.stat(&object).await.unwrap(), stat, "what is cached goes on");
    let again = open(&sources, &link("good"));
    assert_eq!(again.stat(&object).await.unwrap(), stat, "for a second job as well");
    for never in [link("forged"), object.clone()] {
        let error = open(&sources, &never).stat(&object).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(!error.to_string().contains("forged"), "{error}");
    }
    let error = source.begin(&object, &Rank::now(0)).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "bytes that are not here: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn redirect_leads_only_to_what_a_rule_names() {
    let target = Arc::new(Web::new(|asked| well(asked, "1")));
    let to = target.url();
    let web = Web::new(move |asked| match asked.target.strip_prefix("/led") {
        Some(path) => (302, vec![format!("Location: {to}{path}")], String::new()),
        None => well(asked, "1"),
    });
    let ruled = |redirects: &[String]| {
        let mut rule = Rule::new(&format!("{}/", web.url())).unwrap();
        rule.redirects = redirects.to_vec();
        let open = Rule::new(&format!("{}/open/", target.url())).unwrap();
        sources().ruled(Rules::new(vec![rule, open]).unwrap()).unwrap()
    };
    let stat = async |redirects: &[String], path: &str| {
        let url = format!("{}/led{path}", web.url());
        let source = open(&ruled(redirects), &url);
        source.stat(&url).await
    };
    stat(&[], "/open/0.tar").await.unwrap();
    let before = target.asked().len();
    let error = stat(&[], "/closed/0.tar").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.place("redirect").unwrap().ends_with("/closed/0.tar"), "{error}");
    assert!(error.advice().unwrap().contains("redirects = "), "{error}");
    assert_eq!(target.asked().len(), before, "it was never asked");
    stat(&[format!("{}/closed/", target.url())], "/closed/0.tar").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn down_proxy_is_named_with_its_setting() {
    let mut rule = Rule::new("http://store.invalid/").unwrap();
    // Nothing listens there.
    rule.proxy = Some("http://user:hunter2@127.0.0.1:1".to_owned());
    let sources = sources().ruled(Rules::new(vec![rule]).unwrap()).unwrap();
    let url = "http://store.invalid/0.tar";
    let error = open(&sources, url).stat(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.place("proxy"), Some("http://127.0.0.1:1"), "{error}");
    assert_eq!(error.place("setting"), Some("proxy"), "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

/// S3 names the region of a bucket that was asked for in another; so does the error.
#[tokio::test(flavor = "multi_thread")]
async fn bucket_in_another_region_is_named_with_it() {
    let header = || vec!["x-amz-bucket-region: eu-west-1".to_owned()];
    let document = |code: &str, inner: &str| format!("<Error><Code>{code}</Code>{inner}</Error>");
    let moved = document("PermanentRedirect", "<Endpoint>b.s3-eu-west-1.amazonaws.com</Endpoint>");
    let signed = document("AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>");
    for (status, headers, body) in [
        (301, header(), String::new()),
        (301, header(), moved.clone()),
        (301, Vec::new(), moved),
        (400, header(), String::new()),
        (400, Vec::new(), signed),
    ] {
        let said = (headers, body.clone());
        let web = Web::new(move |_| (status, said.0.clone(), said.1.clone()));
        let options = Options::default()
            .with("AWS_ENDPOINT_URL", &web.url())
            .with("AWS_REGION", "us-east-1")
            .with("AWS_ACCESS_KEY_ID", "key")
            .with("AWS_SECRET_ACCESS_KEY", "secret");
        let (sources, url) = (sources(), "s3://bucket/0.tar");
        let source = sources.open(url, &options).unwrap();
        let begun = source.begin(url, &Rank::now(0)).await.map(drop).unwrap_err();
        let listed = sources.list("s3://bucket/*.tar", &options).await.map(drop).unwrap_err();
        for error in [begun, listed] {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{status} {body}: {error}");
            assert_eq!(error.place("region"), Some("us-east-1"), "{status} {body}: {error}");
            assert_eq!(error.place("bucket_region"), Some("eu-west-1"), "{status} {body}: {error}");
            let advice = error.advice().unwrap();
            assert!(advice.contains("AWS_REGION=eu-west-1"), "{error}");
            assert!(advice.contains("[[source]]"), "{error}");
        }
        assert_eq!(web.asked().len(), 2, "it is not asked again");
    }
}
