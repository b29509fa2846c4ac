//! Credentials of a client, and the number of requests for them.
//!
//! Real processes ask real servers; the tests count the servers' requests.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

mod web;

use std::path::Path;
use std::sync::Arc;

use forebay_error::ErrorKind;
use forebay_source::{Limits, Options, Rule, Rules, Sources};
use forebay_testkit::{ACCESS_KEY, S3Server, SECRET_KEY};
use web::Web;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-test-reader");

fn sources() -> Sources {
    let limits = Limits { retries: 0, ..Limits::default() };
    let sources = Sources::new(vec![PROGRAM.into()], limits).unwrap();
    sources.lending(vec![PROGRAM.into(), "lend".into()], true)
}

/// A store with one object in each of two buckets.
fn store() -> (tempfile::TempDir, S3Server) {
    let dir = tempfile::tempdir().unwrap();
    for bucket in ["one", "two"] {
        std::fs::create_dir(dir.path().join(bucket)).unwrap();
        std::fs::write(dir.path().join(bucket).join("k.tar"), b"bytes").unwrap();
    }
    let server = S3Server::start(dir.path()).unwrap();
    (dir, server)
}

/// Credentials of a container's agent.
fn agent(access: &'static str, secret: &'static str) -> Web {
    Web::new(move |_| {
        let body = format!(
            "{{\"AccessKeyId\":\"{access}\",\"SecretAccessKey\":\"{secret}\",\"Token\":\"\",\
             \"Expiration\":\"2999-01-01T00:00:00Z\"}}"
        );
        (200, vec!["Content-Type: application/json".to_owned()], body)
    })
}

/// A client without keys, in a home without files.
fn client(server: &S3Server) -> Options {
    Options::default()
        .with("AWS_ENDPOINT_URL", &server.endpoint())
        .with("AWS_CONFIG_FILE", "/dev/null")
        .with("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
}

#[tokio::test(flavor = "multi_thread")]
async fn container_agent_is_asked_once_for_many_buckets() {
    let (_dir, server) = store();
    let agent = agent(ACCESS_KEY, SECRET_KEY);
    let options = client(&server).with("AWS_CONTAINER_CREDENTIALS_FULL_URI", &agent.url());
    let sources = Arc::new(sources());
    let asking: Vec<_> = (0..64)
        .map(|n| {
            let (sources, options) = (sources.clone(), options.clone());
            tokio::spawn(async move {
                let url = format!("s3://{}/k.tar", if n % 2 == 0 { "one" } else { "two" });
                sources.open(&url, &options)?.stat(&url).await
            })
        })
        .collect();
    for stat in asking {
        assert_eq!(stat.await.unwrap().unwrap().len, 5);
    }
    assert_eq!(agent.asked().len(), 1, "{:?}", agent.asked());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_client_has_its_own_credentials() {
    let (_dir, server) = store();
    let (mine, theirs) = (agent(ACCESS_KEY, SECRET_KEY), agent(ACCESS_KEY, "hunter2"));
    let sources = sources();
    let url = "s3://one/k.tar";
    let with =
        |agent: &Web| client(&server).with("AWS_CONTAINER_CREDENTIALS_FULL_URI", &agent.url());
    let mine_opened = sources.open(url, &with(&mine)).unwrap();
    assert!(mine_opened.stat(url).await.is_ok());
    let theirs_opened = sources.open(url, &with(&theirs)).unwrap();
    let error = theirs_opened.stat(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(!error.to_string().contains("hunter2"), "{error}");
    // A client without credentials gets nobody else's.
    let error = sources.open(url, &client(&server)).unwrap().stat(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.message().contains("no credentials are found"), "{error}");
    assert!(mine_opened.stat(url).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn profile_is_read_from_the_clients_files() {
    let (dir, server) = store();
    let (config, keys) = (dir.path().join("config"), dir.path().join("keys"));
    std::fs::write(&config, "[profile train]\nregion = eu-west-1\n").unwrap();
    let pair = format!("aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n");
    std::fs::write(&keys, format!("[train]\n{pair}")).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let options = client(&server)
        .with("AWS_CONFIG_FILE", &text(&config))
        .with("AWS_SHARED_CREDENTIALS_FILE", &text(&keys));
    let sources = sources();
    let url = "s3://one/k.tar";
    let opened = sources.open(url, &options.clone().with("AWS_PROFILE", "train")).unwrap();
    assert_eq!(opened.stat(url).await.unwrap().len, 5);
    let opened = sources.open(url, &options.with("AWS_PROFILE", "absent")).unwrap();
    let error = opened.stat(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("AWS_PROFILE is set"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_agent_is_reported_without_its_answer() {
    let (_dir, server) = store();
    let agent = Web::new(|_| (403, Vec::new(), "hunter2".to_owned()));
    let options = client(&server).with("AWS_CONTAINER_CREDENTIALS_FULL_URI", &agent.url());
    let sources = sources();
    let url = "s3://one/k.tar";
    let error = sources.open(url, &options).unwrap().stat(url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(error.place("url"), Some(url));
    assert!(!error.to_string().contains("hunter2"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_redirect_requests_and_deny_the_rest() {
    let (_dir, server) = store();
    let mut store = Rule::new("s3://one/").unwrap();
    store.endpoint = Some(server.endpoint());
    store.limits.bandwidth = Some(1_000_000);
    store.limits.connections = Some(3);
    let mut web = Rule::new("http://data.example/one/").unwrap();
    web.endpoint = Some(format!("{}/", server.endpoint()));
    let mut proxied = Rule::new("http://store.invalid/").unwrap();
    proxied.proxy = Some(server.endpoint());
    let limits = store.limits;
    let ruled = sources().ruled(Rules::new(vec![store, web, proxied]).unwrap()).unwrap();
    let keys = Options::default()
        .with("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .with("AWS_SECRET_ACCESS_KEY", SECRET_KEY);
    for url in ["s3://one/k.tar", "http://data.example/one/k.tar", "http://store.invalid/two/k.tar"]
    {
        let source = ruled.open(url, &keys).unwrap();
        assert_eq!(source.stat(url).await.unwrap().len, 5, "{url}");
        let endpoint =
            if url.contains("invalid") { "http://store.invalid".into() } else { server.endpoint() };
        assert_eq!(source.endpoint(), endpoint, "{url}");
    }
    let links = ruled.links();
    let limited = links.iter().filter(|link| Some(link.limit) == limits.connections);
    assert_eq!(limited.count(), 1, "{links:?}");
    let own = server.endpoint();
    for url in ["s3://two/k.tar", "/etc/passwd", "file:///etc/passwd", &format!("{own}/one/k.tar")]
    {
        let error = ruled.open(url, &keys).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("[[source]] match"), "{error}");
    }
    // A client's endpoint gives way to the rule's.
    let elsewhere = keys.with("AWS_ENDPOINT_URL", "http://169.254.169.254");
    let source = ruled.open("s3://one/k.tar", &elsewhere).unwrap();
    assert_eq!(source.endpoint(), server.endpoint());
}

#[tokio::test(flavor = "multi_thread")]
async fn virtual_host_style_puts_the_bucket_into_the_host() {
    let options = Options::default()
        .with("AWS_ENDPOINT_URL", "http://store.invalid")
        .with("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .with("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        .with("AWS_REQUEST_PAYER", "requester");
    let web = Web::new(|_| {
        (
            200,
            vec!["ETag: \"e\"".into(), "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT".into()],
            "abc".into(),
        )
    });
    let by = |host: Option<bool>| {
        let mut rule = Rule::new("s3://one").unwrap();
        (rule.proxy, rule.endpoint) = (Some(web.url()), Some("http://store.invalid".into()));
        rule.virtual_host = host;
        sources().ruled(Rules::new(vec![rule]).unwrap()).unwrap()
    };
    for (host, target) in
        [(None, "http://store.invalid/one/k.tar"), (Some(true), "http://one.store.invalid/k.tar")]
    {
        let source = by(host).open("s3://one/k.tar", &options).unwrap();
        source.stat("s3://one/k.tar").await.unwrap();
        let asked = web.asked().pop().unwrap();
        assert_eq!(asked.target, target);
        assert_eq!(asked.header("x-amz-request-payer"), Some("requester"));
        assert!(asked.header("authorization").is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_token_is_not_sent_to_redirect_targets() {
    let object = || {
        let headers = ["ETag: \"e\"", "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT"];
        (200, headers.map(str::to_owned).to_vec(), "abc".to_owned())
    };
    let elsewhere = Web::new(move |_| object());
    let location = format!("Location: {}/cdn/x", elsewhere.url());
    let hub = Web::new(move |_| (302, vec![location.clone()], String::new()));
    let options = Options::default().with("HF_ENDPOINT", &hub.url()).with("HF_TOKEN", "hf_hunter2");
    let sources = sources();
    for (url, target) in [
        ("hf://datasets/o/n/d/k 1.tar", "/datasets/o/n/resolve/main/d/k%201.tar"),
        ("hf://datasets/o/n@v1.0/k.tar", "/datasets/o/n/resolve/v1.0/k.tar"),
        ("hf://datasets/o/n@refs%2Fpr%2F1/k.tar", "/datasets/o/n/resolve/refs%2Fpr%2F1/k.tar"),
    ] {
        let source = sources.open(url, &options).unwrap();
        assert_eq!(source.stat(url).await.unwrap().len, 3, "{url}");
        assert_eq!(source.endpoint(), hub.url());
        let (asked, led) = (hub.asked().pop().unwrap(), elsewhere.asked().pop().unwrap());
        assert_eq!((&asked.target[..], &led.target[..]), (target, "/cdn/x"));
        assert_eq!(asked.header("authorization"), Some("Bearer hf_hunter2"));
        assert_eq!(led.header("authorization"), None);
    }
    for url in ["hf://datasets/o/n", "hf://models/o/n/k.tar", "hf://datasets/o/../../x/k.tar"] {
        let error = sources.open(url, &options).unwrap().stat(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}
