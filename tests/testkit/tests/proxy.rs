//! Tests of the proxy over raw sockets: unchanged traffic, and each fault at its byte.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_testkit::{Fault, FaultProxy, Random, RetryAfter, S3Server, When};
use hyper::header::{CONTENT_LENGTH, ETAG};

const BODY: &str = "0123456789";

/// A server with one object and a proxy in front of it.
struct Bench {
    proxy: FaultProxy,
    server: S3Server,
    _dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bbb")).unwrap();
        std::fs::write(dir.path().join("bbb/k 1.tar"), BODY).unwrap();
        let server = S3Server::start(dir.path()).unwrap();
        let proxy = FaultProxy::start(server.address()).unwrap();
        Self { proxy, server, _dir: dir }
    }

    fn open(&self, method: &str, headers: &str) -> TcpStream {
        let mut socket = TcpStream::connect(self.proxy.address()).unwrap();
        let text = format!(
            "{method} /bbb/k%201.tar?q=1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n"
        );
        socket.write_all(text.as_bytes()).unwrap();
        socket
    }

    /// Returns the whole answer and the error that ended it, if any.
    fn ask(&self, method: &str, headers: &str) -> (String, Option<ErrorKind>) {
        let mut socket = self.open(method, headers);
        let mut answer = Vec::new();
        let ended = socket.read_to_end(&mut answer).err().map(|error| error.kind());
        (String::from_utf8(answer).unwrap(), ended)
    }

    fn get(&self) -> (String, Option<ErrorKind>) {
        self.ask("GET", "")
    }

    fn set(&self, fault: Fault) {
        self.proxy.set([(When::get(), fault)]);
    }
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn requests_without_faults_pass_unchanged_and_are_counted() {
    let bench = Bench::new();
    let (whole, ended) = bench.get();
    assert!(whole.starts_with("HTTP/1.1 200") && ended.is_none(), "{whole}");
    assert_eq!(body(&whole), BODY);
    let (part, _) = bench.ask("GET", "range: bytes=2-4\r\n");
    assert!(part.contains("bytes 2-4/10") && part.contains("etag: \"file-"), "{part}");
    assert_eq!(body(&part), "234");
    let (head, _) = bench.ask("HEAD", "");
    assert!(head.contains("content-length: 10") && body(&head).is_empty(), "{head}");
    let (refused, _) = bench.ask("GET", "range: bytes=10-\r\n");
    assert!(refused.starts_with("HTTP/1.1 416"), "{refused}");
    let traffic = bench.proxy.traffic();
    let answered = |method, status| traffic.answered(method, status);
    assert_eq!((answered("GET", 200), answered("GET", 206), answered("GET", 416)), (1, 1, 1));
    assert_eq!((traffic.requests, traffic.connections, answered("HEAD", 200)), (4, 4, 1));
    assert_eq!((traffic.bytes["/bbb/k 1.tar"], traffic.faults), (13, 0));
    // The server saw the same requests.
    assert_eq!(bench.server.counts().requests, 4);
    assert_eq!(bench.server.counts().gets["bbb/k 1.tar"], 3);
    bench.proxy.wait_until(|traffic| traffic.open == 0);
}

#[test]
fn cut_ends_cleanly_and_reset_does_not() {
    let bench = Bench::new();
    bench.set(Fault::Cut(3));
    let (cut, ended) = bench.get();
    assert_eq!((body(&cut), ended), ("012", None));
    bench.set(Fault::Reset(3));
    assert_eq!(bench.get().1, Some(ErrorKind::ConnectionReset));
    bench.set(Fault::ResetBeforeHead);
    assert_eq!(bench.get(), (String::new(), Some(ErrorKind::ConnectionReset)));
    assert_eq!(bench.proxy.traffic().answered("GET", 0), 1);
    bench.proxy.clear();
    assert_eq!(body(&bench.get().0), BODY);
}

#[test]
fn request_whose_answer_is_lost_reaches_the_server() {
    let bench = Bench::new();
    bench.set(Fault::LoseAnswer);
    assert_eq!(bench.get(), (String::new(), Some(ErrorKind::ConnectionReset)));
    assert_eq!(bench.server.counts().gets["bbb/k 1.tar"], 1);
    bench.proxy.set([(When::put(), Fault::status(503)), (When::post(), Fault::status(500))]);
    assert!(bench.ask("PUT", "").0.starts_with("HTTP/1.1 503"));
    assert!(bench.ask("POST", "").0.starts_with("HTTP/1.1 500"));
    assert_eq!(body(&bench.get().0), BODY);
}

#[test]
fn stalled_answers_arrive_when_other_rules_are_set() {
    let bench = Bench::new();
    for (fault, before) in [(Fault::Stall(4), "0123"), (Fault::StallBeforeHead, "")] {
        bench.set(fault);
        let mut socket = bench.open("GET", "");
        bench.proxy.wait_until(|traffic| traffic.stalled == 1);
        let passed = bench.proxy.traffic().all_bytes();
        bench.proxy.clear();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        assert_eq!(body(&answer), BODY);
        assert_eq!(passed % 10, before.len() as u64);
        bench.proxy.wait_until(|traffic| traffic.stalled == 0);
    }
}

#[test]
fn heads_carry_the_false_headers_of_their_rules() {
    let bench = Bench::new();
    let part = |fault| {
        bench.set(fault);
        bench.ask("GET", "range: bytes=2-4\r\n").0
    };
    assert!(part(Fault::shifted_range(1)).contains("bytes 3-5/10"));
    assert!(part(Fault::longer_total(5)).contains("bytes 2-4/15"));
    assert!(part(Fault::weak_etag()).contains("etag: W/\"file-"));
    assert!(!part(Fault::no_header(ETAG)).contains("etag"));
    assert!(part(Fault::header(ETAG, "\"other\"")).contains("etag: \"other\""));
    let longer = part(Fault::wrong_length(4));
    assert!(longer.contains("content-length: 7"), "{longer}");
    assert_eq!(body(&longer), "234");
    let shorter = part(Fault::wrong_length(-1));
    assert!(shorter.contains("content-length: 2"), "{shorter}");
    assert_eq!(body(&shorter), "23");
    let none = part(Fault::no_header(CONTENT_LENGTH));
    assert!(none.contains("transfer-encoding: chunked"), "{none}");
    let garbled = {
        bench.set(Fault::Garble(1));
        let mut answer = Vec::new();
        bench.open("GET", "").read_to_end(&mut answer).unwrap();
        answer
    };
    let tail = &garbled[garbled.len() - BODY.len()..];
    let right = BODY.bytes().enumerate().map(|(at, byte)| if at == 1 { !byte } else { byte });
    assert!(tail.iter().copied().eq(right), "{garbled:?}");
}

#[test]
fn rejections_carry_retry_after() {
    let bench = Bench::new();
    bench.proxy.set([
        (When::any().times(1), Fault::busy(503, RetryAfter::Seconds(7))),
        (When::any().after(1).times(1), Fault::busy(429, RetryAfter::Date(3600))),
        (When::any().after(2).times(1), Fault::expired()),
        (When::any().after(3).times(1), Fault::status(416)),
    ]);
    let (busy, _) = bench.get();
    assert!(busy.starts_with("HTTP/1.1 503") && busy.contains("retry-after: 7\r\n"), "{busy}");
    assert!(busy.contains("<Code>SlowDown</Code>"), "{busy}");
    let (busy, _) = bench.get();
    assert!(busy.starts_with("HTTP/1.1 429") && busy.contains(" GMT\r\n"), "{busy}");
    let (expired, _) = bench.get();
    assert!(expired.starts_with("HTTP/1.1 403") && expired.contains("ExpiredToken"), "{expired}");
    let (head, _) = bench.ask("HEAD", "");
    assert!(head.starts_with("HTTP/1.1 416") && body(&head).is_empty(), "{head}");
    assert!(bench.get().0.starts_with("HTTP/1.1 200"));
    // The server saw no rejected request.
    assert_eq!(bench.server.counts().requests, 1);
    assert_eq!(bench.proxy.traffic().faults, 4);
}

#[test]
fn faults_match_their_requests_only() {
    let bench = Bench::new();
    let met = |when: When, method: &str, headers: &str| {
        bench.proxy.set([(when, Fault::status(500))]);
        bench.ask(method, headers).0.starts_with("HTTP/1.1 500")
    };
    assert!(met(When::any().of("k%201.tar?q"), "GET", ""));
    assert!(!met(When::any().of("k 1.tar"), "GET", ""));
    assert!(met(When::head(), "HEAD", "") && !met(When::head(), "GET", ""));
    let covering = |byte, range: &str| {
        met(When::get().covering(byte), "GET", &format!("range: bytes={range}\r\n"))
    };
    assert!(covering(3, "2-3") && covering(2, "2-3") && covering(9, "2-"));
    assert!(!covering(4, "2-3") && !covering(1, "2-3"));
    assert!(met(When::get().covering(5), "GET", ""), "a whole object has each byte");
    // A share is equal for equal seeds, and about as large as asked.
    let share = |seed| {
        bench.proxy.set([(When::get().share(300, seed), Fault::status(500))]);
        (0..100).map(|_| bench.get().0.starts_with("HTTP/1.1 500")).collect::<Vec<_>>()
    };
    let first = share(1);
    assert_eq!(first, share(1));
    assert_ne!(first, share(2));
    let met = first.iter().filter(|met| **met).count();
    assert!((10..60).contains(&met), "{met}");
}

#[test]
fn hooks_run_at_their_request_and_byte() {
    let bench = Bench::new();
    let calls = Arc::new(AtomicU64::new(0));
    let hook = |by| {
        let calls = Arc::clone(&calls);
        Arc::new(move || {
            calls.fetch_add(by, Ordering::SeqCst);
        })
    };
    bench.proxy.set([
        (When::get().after(1), Fault::Call(hook(1))),
        (When::get().after(1), Fault::CallAt(4, hook(10))),
        (When::get().after(1), Fault::CallAt(11, hook(100))),
        (When::get().after(1), Fault::Delay(Duration::from_millis(1))),
        (When::get(), Fault::Jitter(Duration::from_millis(1), Random::new(1))),
    ]);
    assert_eq!(body(&bench.get().0), BODY);
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    assert_eq!(body(&bench.get().0), BODY);
    assert_eq!(calls.load(Ordering::SeqCst), 11);
}

#[test]
fn stopped_server_answers_nothing() {
    let bench = Bench::new();
    let Bench { proxy, server, _dir } = bench;
    drop(server);
    let mut socket = TcpStream::connect(proxy.address()).unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // Some systems report the end as a reset.
    drop(socket.read_to_end(&mut answer));
    assert_eq!(answer, b"");
    let address = proxy.address();
    drop(proxy);
    assert!(TcpStream::connect(address).is_err());
}
