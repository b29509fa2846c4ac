//! Listings of real stores and of ones that change while they are read.
//!
//! An object present all along is listed once; one that appears or disappears meanwhile may be.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod web;

use std::sync::{Arc, Mutex};

use forebay_error::ErrorKind;
use forebay_source::{LeftOut, Limits, Options, Rule, Rules, Sources};
use forebay_testkit::{ACCESS_KEY, S3Server, SECRET_KEY};
use web::{Asked, Web};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-test-reader");

fn sources() -> Sources {
    Sources::new(vec![PROGRAM.into()], Limits { retries: 0, ..Limits::default() }).unwrap()
}

/// Returns a query's value of `name`, unescaped.
fn said(asked: &Asked, name: &str) -> Option<String> {
    let url = url::Url::parse(&format!("http://h{}", asked.target)).unwrap();
    let mut pairs = url.query_pairs();
    pairs.find(|(have, _)| have == name).map(|(_, value)| value.into_owned())
}

/// Names in order, two a page; the token is the last name of the page before, as S3 means it.
fn page(names: &[String], asked: &Asked) -> (u16, Vec<String>, String) {
    let after = said(asked, "continuation-token");
    let prefix = said(asked, "prefix").unwrap_or_default();
    let rest = names.iter().filter(|name| name.starts_with(&prefix));
    let rest: Vec<_> =
        rest.filter(|name| after.as_ref().is_none_or(|after| *name > after)).collect();
    let mut body = String::from("<ListBucketResult>");
    for name in rest.iter().take(2) {
        body.push_str(&format!(
            "<Contents><Key>{name}</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified>\
             <ETag>\"e\"</ETag><Size>1</Size></Contents>"
        ));
    }
    if rest.len() > 2 {
        body.push_str(&format!("<NextContinuationToken>{}</NextContinuationToken>", rest[1]));
    }
    body.push_str("</ListBucketResult>");
    (200, Vec::new(), body)
}

fn client(endpoint: &str) -> Options {
    Options::default()
        .with("AWS_ENDPOINT_URL", endpoint)
        .with("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .with("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
}

#[tokio::test(flavor = "multi_thread")]
async fn patterns_and_folders_are_listed_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["d/b.tar", "d/a.tar", "d/e/c.tar.gz", "d/notes.txt", "d/train 1.tar", "other.tar"]
    {
        let path = dir.path().join("bucket").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"x").unwrap();
    }
    let server = S3Server::start(dir.path()).unwrap();
    let (sources, options) = (sources(), client(&server.endpoint()));
    for (pattern, found) in [
        ("s3://bucket/d/*.tar", &["d/a.tar", "d/b.tar", "d/train 1.tar"][..]),
        ("s3://bucket/d/", &["d/a.tar", "d/b.tar", "d/e/c.tar.gz", "d/train 1.tar"]),
        ("s3://bucket/**/*.tar", &["d/a.tar", "d/b.tar", "d/train 1.tar", "other.tar"]),
        ("s3://bucket/d/[ab].tar", &["d/a.tar", "d/b.tar"]),
    ] {
        let listed = sources.list(pattern, &options).await.unwrap();
        let found: Vec<_> = found.iter().map(|key| format!("s3://bucket/{key}")).collect();
        assert_eq!(listed.urls, found, "{pattern}");
    }
    let error = sources.list("s3://bucket/none-*.tar", &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("s3://bucket/none-*.tar"), "{error}");
    let error = sources.list("s3://no-bucket/*.tar", &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    for (pattern, word) in [("https://h/*.tar", "braces"), ("s3://buck*/x.tar", "bucket")] {
        let error = sources.list(pattern, &options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_between_pages_neither_double_nor_hide_objects() {
    let stays: Vec<String> = (0..9).map(|n| format!("d/{n}.tar")).collect();
    let names = Mutex::new(stays.clone());
    let pages = Mutex::new(0);
    let web = Web::new(move |asked| {
        let mut names = names.lock().unwrap();
        let said = page(&names, asked);
        let mut pages = pages.lock().unwrap();
        *pages += 1;
        // After each page names come before and behind it, and what came goes again.
        names.retain(|name| !name.contains("new"));
        names.extend([format!("d/0-new{pages}.tar"), format!("d/8-new{pages}.tar")]);
        names.sort();
        said
    });
    let listed = sources().list("s3://bucket/d/*.tar", &client(&web.url())).await.unwrap().urls;
    let kept: Vec<_> = listed.iter().filter(|url| !url.contains("new")).cloned().collect();
    let stays: Vec<_> = stays.iter().map(|name| format!("s3://bucket/{name}")).collect();
    assert_eq!(kept, stays);
    assert!(listed.is_sorted_by(|a, b| a < b), "{listed:?}");
    assert!(web.asked().len() >= 5, "{}", web.asked().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn repeating_listing_is_an_error() {
    let names: Vec<String> = (0..9).map(|n| format!("d/{n}.tar")).collect();
    // The token is not looked at: the first page comes again and again.
    let web = Web::new(move |_| {
        page(&names, &Asked { method: String::new(), target: "/".into(), headers: Vec::new() })
    });
    let error = sources().list("s3://bucket/d/", &client(&web.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(web.asked().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn listing_omits_objects_matched_by_no_rule() {
    let names: Vec<String> = ["a/1.tar", "b/1.tar", "secret/1.tar"].map(str::to_owned).to_vec();
    let web = Web::new(move |asked| page(&names, asked));
    let mut rule = Rule::new("s3://bucket/?/*.tar").unwrap();
    rule.endpoint = Some(web.url());
    let ruled = sources().ruled(Rules::new(vec![rule]).unwrap()).unwrap();
    let keys = client("").with("AWS_ENDPOINT_URL", "");
    // As a text `*` matches `?`; as a pattern it means more.
    let listed = ruled.list("s3://bucket/*/*.tar", &keys).await.unwrap();
    assert_eq!(listed.urls, ["s3://bucket/a/1.tar", "s3://bucket/b/1.tar"]);
    let error = ruled.list("s3://other/*.tar", &keys).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}

/// Two files a page, with those of folders below as the Hub lists them, and where the next page is.
fn tree(files: &[&str], asked: &Asked, base: &str) -> (u16, Vec<String>, String) {
    let at: usize = said(asked, "cursor").map_or(0, |cursor| cursor.parse().unwrap());
    let page: Vec<_> = files.iter().skip(at).take(2).collect();
    let entry = |path: &&&str| {
        let kind = if path.ends_with(".tar") { "file" } else { "directory" };
        format!("{{\"type\":\"{kind}\",\"oid\":\"o\",\"size\":1,\"path\":\"{path}\"}}")
    };
    let body = page.iter().map(entry).collect::<Vec<_>>().join(",");
    let path = asked.target.split('?').next().unwrap();
    let next = format!("Link: <{base}{path}?recursive=true&cursor={}>; rel=\"next\"", at + 2);
    let headers = if at + 2 < files.len() { vec![next] } else { Vec::new() };
    (200, headers, format!("[{body}]"))
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_data_set_is_listed_page_by_page() {
    const FILES: [&str; 5] = [
        "data/train-0.tar",
        "data/sub.tar/x.json",
        "data/train-1.tar",
        "data/e/train-2.tar",
        "data",
    ];
    let elsewhere = Arc::new(Mutex::new(String::new()));
    let base = elsewhere.clone();
    let hub = Web::new(move |asked| match asked.target.contains("/none/") {
        true => (404, Vec::new(), "secret".to_owned()),
        false => tree(&FILES, asked, &base.lock().unwrap()),
    });
    *elsewhere.lock().unwrap() = hub.url();
    let options = Options::default().with("HF_ENDPOINT", &hub.url()).with("HF_TOKEN", "hf_hunter2");
    let sources = sources();
    let all = ["data/e/train-2.tar", "data/train-0.tar", "data/train-1.tar"];
    for (root, pattern, found) in [
        ("hf://datasets/o/n", "data/train-*.tar", &all[1..]),
        ("hf://datasets/o/n@v1", "data/", &all),
        ("hf://datasets/o/n", "**/*.tar", &all),
    ] {
        let listed = sources.list(&format!("{root}/{pattern}"), &options).await.unwrap();
        let found: Vec<_> = found.iter().map(|path| format!("{root}/{path}")).collect();
        assert_eq!(listed.urls, found, "{pattern}");
    }
    let asked = hub.asked();
    let targets: Vec<_> = asked.iter().map(|asked| asked.target.as_str()).collect();
    assert_eq!(targets[0], "/api/datasets/o/n/tree/main/data?recursive=false");
    assert_eq!(targets[3], "/api/datasets/o/n/tree/v1/data?recursive=true");
    assert_eq!(targets.len(), 9, "three pages each: {targets:?}");
    assert!(asked.iter().all(|asked| asked.header("authorization") == Some("Bearer hf_hunter2")));
    let error = sources.list("hf://datasets/o/none/*.tar", &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
    let error = sources.list("hf://datasets/o/n*/x/*.tar", &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    // The token does not follow a next page at another server.
    let other = Web::new(|_| (200, Vec::new(), "[]".to_owned()));
    *elsewhere.lock().unwrap() = other.url();
    let error = sources.list("hf://datasets/o/n/data/", &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(other.asked().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_keys_do_not_fail_a_listing() {
    let names = ["d//b.tar", "d/./c.tar", "d/a&#x9;b.tar", "d/a.tar", "d/e::f.tar"];
    let names = names.map(str::to_owned).to_vec();
    let web = Web::new(move |asked| page(&names, asked));
    let (sources, options) = (sources(), client(&web.url()));
    let listed = sources.list("s3://bucket/d/**/*.tar", &options).await.unwrap();
    assert_eq!(listed.urls, ["s3://bucket/d/a.tar", "s3://bucket/d/e::f.tar"]);
    let LeftOut { count, keys } = listed.left_out;
    assert_eq!(
        (count, &keys[..]),
        (3, &["d/./c.tar", "d//b.tar", "d/a\tb.tar"].map(str::to_owned)[..])
    );
    let error = sources.list("s3://bucket/d/?/c.tar", &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!((error.place("left_out"), error.place("keys")), (Some("1"), Some("d/./c.tar")));
}
