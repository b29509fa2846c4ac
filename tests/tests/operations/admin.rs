//! The admin API: what is asked of a daemon over HTTP, who may, and what becomes of those who do
//! not keep to it.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use forebay_client::{Deadline, Next};
use forebay_config::settings::NodeConfig;
use forebay_error::{Error, ErrorKind};
use forebay_store::{Dataset, Evict, Mode};
use forebay_tests::{
    Answer, Daemon, Origin, PATIENCE, admin, daemon_status, epoch, eventually, followed, job,
    loader, next, play, reported_error,
};
use forebay_wire::frame;
use forebay_wire::message::{Begin, Request};
use serde_json::{Value, json};

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SAMPLES: u64 = 40;

struct Bench {
    origin: Origin,
    daemon: Daemon,
    _disk: tempfile::TempDir,
}

/// Sends these bytes; returns the answer until the other side closes.
fn raw(socket: &Path, sent: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    // It may hang up before all is sent.
    let _ = stream.write_all(sent);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// The answer to one request.
fn exchange(socket: &Path, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let headers = format!("host: localhost\r\n{headers}");
    Answer::to(UnixStream::connect(socket).unwrap(), (method, path), &headers, body)
}

const JSON: &str = "content-type: application/json\r\n";

impl Bench {
    fn new(shards: u64) -> Self {
        Self::with(shards, |_, _| {})
    }

    /// `change`: what is otherwise in the node's configuration, told what a shard takes.
    fn with(shards: u64, change: impl FnOnce(&mut NodeConfig, u64)) -> Self {
        let (origin, disk) = (Origin::with_shards(shards, SAMPLES, &SIZES), Daemon::disk());
        let mut config = Daemon::config(disk.path(), 1 << 30);
        change(&mut config, origin.bytes("0.tar").len() as u64);
        let daemon = Daemon::try_start(config).unwrap();
        Self { origin, daemon, _disk: disk }
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        exchange(self.daemon.socket(), method, path, JSON, &body.to_string())
    }

    fn get(&self, path: &str) -> Result<Value, Error> {
        admin(self.daemon.socket())?.get(path, &Deadline::after(PATIENCE))
    }

    fn origin(&self) -> Value {
        json!(self.origin.environment())
    }
}

/// A job as it is told, but for how long ago its trainer said something.
fn at_once(mut job: Value) -> Value {
    job["progress"]["heard_seconds_ago"] = 0.into();
    job
}

#[test]
fn parts_of_the_status_equal_the_whole() {
    let bench = Bench::new(2);
    let loader = loader(bench.daemon.address(), job(&bench.origin, Origin::urls(2))).unwrap();
    play(&loader, 0, 0).unwrap().assert_whole(2, SAMPLES, &SIZES);
    bench.daemon.settle();
    eventually("the trainer has told all", || {
        bench.get("/api/v1/jobs").unwrap()[0]["progress"]["samples"] == 2 * SAMPLES
    });
    let status = bench.get("/api/v1/status").unwrap();
    assert_eq!(bench.get("/api/v1/tiers").unwrap()[0]["name"], "nvme");
    assert_eq!(bench.get("/api/v1/tiers/nvme").unwrap()["shards"], 2);
    let jobs = bench.get("/api/v1/jobs").unwrap();
    let number = &jobs[0]["session"];
    let alone = bench.get(&format!("/api/v1/jobs/{number}")).unwrap();
    let [listed, alone, told] =
        [&jobs[0], &alone, &status["jobs"][0]].map(|job| at_once(job.clone()));
    assert_eq!((&listed, jobs.as_array().unwrap().len()), (&told, 1));
    assert_eq!(listed, alone);
    assert_eq!(listed["progress"]["samples"], 2 * SAMPLES);
    assert_eq!(bench.get("/healthz").unwrap(), json!({ "ok": true }));
    assert_eq!(bench.get("/readyz").unwrap(), json!({ "ok": true }));
    let overview = bench.get("/api/v1/overview").unwrap();
    assert_eq!(
        (&overview["jobs"], &overview["tiers"][0]["used_bytes"]),
        (&1.into(), &status["tiers"][0]["used_bytes"])
    );
    // It names nobody and nothing that belongs to anybody.
    let said = overview.to_string();
    for secret in ["bucket", "/cache", jobs[0]["name"].as_str().unwrap()] {
        assert!(!said.contains(secret), "{said}");
    }
}

#[test]
fn missing_things_are_answered_with_problems() {
    let bench = Bench::new(1);
    for path in [
        "/index.html",
        "/api/v1/nothing",
        "/api/v1/tiers/none",
        "/api/v1/jobs/7",
        "/api/v1/warm-ups/7",
    ] {
        bench.ask("GET", path, &Value::Null).assert_problem(404, "NotFound");
    }
    bench.ask("DELETE", "/api/v1/scrubs/7", &Value::Null).assert_problem(404, "NotFound");
    let answer = bench.ask("PATCH", "/api/v1/tiers/nvme", &Value::Null);
    answer.assert_problem(405, "Invalid");
    assert!(
        answer.head.contains("allow: get,head,put") || answer.head.contains("allow: put,get,head"),
        "{}",
        answer.head
    );
    // As the command line has it: kind, place and advice.
    let error = bench.get("/api/v1/tiers/none").unwrap_err();
    assert_eq!((error.kind(), error.place("tier")), (ErrorKind::NotFound, Some("none")));
    assert_eq!(error.advice(), Some("name one of nvme"));
}

#[test]
fn invalid_requests_are_rejected_and_change_nothing() {
    let bench = Bench::new(1);
    let tier = "/api/v1/tiers/nvme";
    for body in
        [json!({ "mode": "gone" }), json!({}), json!({ "mode": "disabled", "more": 1 }), json!([])]
    {
        bench.ask("PUT", tier, &body).assert_problem(400, "Invalid");
    }
    bench
        .ask("PUT", &format!("{tier}?dry_run=perhaps"), &json!({ "mode": "disabled" }))
        .assert_problem(400, "Invalid");
    bench.ask("GET", "/api/v1/jobs/-1", &Value::Null).assert_problem(400, "Invalid");
    bench.ask("POST", "/api/v1/checks", &json!({ "urls": [] })).assert_problem(400, "Invalid");
    bench.ask("POST", "/api/v1/warm-ups", &json!({ "urls": [] })).assert_problem(400, "Invalid");
    let socket = bench.daemon.socket();
    exchange(socket, "PUT", tier, "", "{\"mode\": \"disabled\"}").assert_problem(415, "Invalid");
    exchange(socket, "PUT", tier, JSON, "{\"mode\":").assert_problem(400, "Invalid");
    let large = format!("{{\"mode\": \"{}\"}}", "x".repeat(2_000_000));
    exchange(socket, "PUT", tier, JSON, &large).assert_problem(413, "Invalid");
    assert_eq!(bench.get(tier).unwrap()["mode"], "enabled");
    // A rehearsal changes nothing; the same without it does.
    let disabled = json!({ "mode": "disabled" });
    assert_eq!(
        bench.ask("PUT", &format!("{tier}?dry_run=true"), &disabled).document()["mode"],
        "enabled"
    );
    assert_eq!(bench.get("/readyz").unwrap(), json!({ "ok": true }));
    assert_eq!(bench.ask("PUT", tier, &disabled).document()["mode"], "disabled");
    bench.ask("GET", "/readyz", &Value::Null).assert_problem(503, "Unavailable");
}

/// Long work over HTTP: told line by line, or going on by itself, and stopped.
#[test]
fn long_work_is_followed_left_and_stopped() {
    let bench = Bench::new(3);
    let socket = bench.daemon.socket();
    let asked = json!({ "urls": Origin::urls(3), "origin": bench.origin() });
    let told = followed(socket, "/api/v1/warm-ups?follow=true", &asked).unwrap();
    let last = told.last().unwrap();
    assert_eq!((&last["done"], &last["fetched"]), (&true.into(), &3.into()), "{last}");
    let number = &last["number"];
    assert_eq!(bench.get(&format!("/api/v1/warm-ups/{number}")).unwrap(), *last);

    let checks = json!({ "urls": [Origin::url("2.tar"), Origin::url("none.tar"), "nonsense:"], "origin": bench.origin(), "verify": true });
    let found = followed(socket, "/api/v1/checks", &checks).unwrap();
    assert_eq!(
        (&found[0]["copy"], &found[0]["url"]),
        (&"whole".into(), &Origin::url("2.tar").into())
    );
    assert_eq!(
        (&found[1]["copy"], &found[1]["origin"]["kind"]),
        (&"absent".into(), &"NotFound".into())
    );
    assert_eq!(found[2]["error"]["kind"], "Invalid");

    let scrubbed = followed(socket, "/api/v1/scrubs?follow=true", &Value::Null).unwrap();
    assert_eq!(scrubbed.last().unwrap()["shards_done"], 3);
    assert_eq!(bench.get("/api/v1/scrubs").unwrap()[0], *scrubbed.last().unwrap());

    // One that goes on by itself is there after its answer, until it is stopped.
    bench.daemon.forget(&Origin::url("0.tar"), false).unwrap();
    let slow =
        json!({ "urls": [Origin::url("0.tar")], "origin": bench.origin(), "bandwidth": 1000 });
    bench.origin.server.stall(&Origin::key("0.tar"), 1000);
    let begun = bench.ask("POST", "/api/v1/warm-ups", &slow);
    assert_eq!(begun.status, 201, "{}", begun.body);
    let path = format!("/api/v1/warm-ups/{}", begun.document()["number"]);
    assert_eq!(bench.get(&path).unwrap()["done"], false);
    assert_eq!(bench.ask("DELETE", &path, &Value::Null).status, 200);
    eventually("it is stopped", || bench.get(&path).unwrap()["done"] == true);
    bench.ask("DELETE", &path, &Value::Null).assert_problem(404, "NotFound");
    bench.origin.server.release(&Origin::key("0.tar"));
}

/// A follower that goes takes its work along; whoever left it to the daemon does not.
#[test]
fn work_ends_when_its_follower_disconnects() {
    let bench = Bench::new(1);
    bench.origin.server.stall(&Origin::key("0.tar"), 1000);
    let asked = json!({ "urls": Origin::urls(1), "origin": bench.origin() }).to_string();
    let mut follower = UnixStream::connect(bench.daemon.socket()).unwrap();
    let length = asked.len();
    let head = format!(
        "POST /api/v1/warm-ups?follow=true HTTP/1.1\r\nhost: x\r\n{JSON}content-length: {length}\r\n\r\n"
    );
    follower.write_all(head.as_bytes()).unwrap();
    follower.write_all(asked.as_bytes()).unwrap();
    let mut first = [0; 64];
    follower.read_exact(&mut first).unwrap();
    assert!(first.starts_with(b"HTTP/1.1 200 OK"));
    assert_eq!(bench.get("/api/v1/warm-ups/1").unwrap()["done"], false);
    drop(follower);
    eventually("it ended", || bench.get("/api/v1/warm-ups/1").unwrap()["done"] == true);
    bench.origin.server.release(&Origin::key("0.tar"));
}

#[test]
fn stopped_job_gets_an_error_and_starts_nothing() {
    let bench = Bench::new(2);
    let loader = loader(bench.daemon.address(), job(&bench.origin, Origin::urls(2))).unwrap();
    loader.start(Begin::at(0, 0)).unwrap();
    assert!(matches!(next(&loader).unwrap(), Next::Batch(_)));
    let number = bench.daemon.status()["jobs"][0]["session"].clone();
    let path = format!("/api/v1/jobs/{number}");
    assert_eq!(bench.ask("DELETE", &format!("{path}?dry_run=true"), &Value::Null).status, 200);
    let other = epoch(bench.daemon.address(), job(&bench.origin, Origin::urls(2)));
    other.unwrap().assert_whole(2, SAMPLES, &SIZES);
    assert_eq!(bench.ask("DELETE", &path, &Value::Null).document()["session"], number);
    let error = loop {
        match next(&loader) {
            Ok(Next::Batch(_)) => {}
            Ok(_) => panic!("the epoch ended"),
            Err(error) => break error,
        }
    };
    let again = play(&loader, 1, 0).unwrap_err();
    for error in [error, again] {
        let told = (error.kind(), error.place("reason"));
        assert_eq!(told, (ErrorKind::Closed, Some("stopped")), "{error}");
    }
    // Others are not stopped.
    epoch(bench.daemon.address(), job(&bench.origin, Origin::urls(2)))
        .unwrap()
        .assert_whole(2, SAMPLES, &SIZES);
}

/// One socket, two languages: nobody is taken for the other, and who says too little is let go.
#[test]
fn trainers_and_admins_share_a_socket() {
    let bench = Bench::new(1);
    let loader = loader(bench.daemon.address(), job(&bench.origin, Origin::urls(1))).unwrap();
    let socket = bench.daemon.socket();
    // Frames of lengths whose first bytes are letters: 65 is an A.
    for name in [0x41 - 3, 0x5A - 3, 0x4745 - 4] {
        let hello = Request::Hello { protocol: 4, release: "x".repeat(name) };
        let hello = frame::encode(&hello).unwrap();
        assert!(hello[0].is_ascii_uppercase(), "{}", hello[0]);
        let answer = raw(socket, &hello);
        assert!(answer.contains(env!("CARGO_PKG_VERSION")), "{answer:?}");
    }
    // A request that arrives byte by byte.
    let mut slow = UnixStream::connect(socket).unwrap();
    for byte in b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" {
        slow.write_all(&[*byte]).unwrap();
    }
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    for sent in [&b""[..], b"G", b"GET", b"\0\0", b"\x01\x00\x00"] {
        assert_eq!(raw(socket, sent), "", "{sent:?}");
    }
    for sent in [&b"\xff\xff\xff\xff"[..], b"1234 nonsense"] {
        assert!(!raw(socket, sent).starts_with("HTTP"), "{sent:?}");
    }
    play(&loader, 0, 0).unwrap().assert_whole(1, SAMPLES, &SIZES);
    assert_eq!(loader.stats().reconnects, 0);
}

/// A hostile request ends its own connection, with an answer if there is one, and nothing else.
#[test]
fn hostile_requests_end_only_their_own_connection() {
    let bench = Bench::new(1);
    let loader = loader(bench.daemon.address(), job(&bench.origin, Origin::urls(1))).unwrap();
    loader.start(Begin::at(0, 0)).unwrap();
    let socket = bench.daemon.socket();
    let huge = format!("GET /healthz HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    let many: String = (0..500).map(|n| format!("h{n}: x\r\n")).collect();
    let many = format!("GET /healthz HTTP/1.1\r\nhost: x\r\n{many}\r\n");
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "z".repeat(1 << 20));
    for (what, sent) in [("a huge header", huge), ("many headers", many), ("a long path", long)] {
        let answer = raw(socket, sent.as_bytes());
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{what}: {answer}");
    }
    for sent in [
        "GET /healthz HTTP/1.1\r\nhost",
        "GET / HTTP/9.9\r\n\r\n",
        "PUT /api/v1/tiers/nvme HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
        "POST /api/v1/scrubs HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /api/v1/checks HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
    ] {
        let answer = raw(socket, sent.as_bytes());
        assert!(!answer.starts_with("HTTP/1.1 2") || sent.contains("scrubs"), "{sent:?}: {answer}");
    }
    // What is sent ahead of its turn is answered in its turn.
    let two = "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n".repeat(20);
    let answers = {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.write_all(two.as_bytes()).unwrap();
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answers = String::new();
        stream.read_to_string(&mut answers).unwrap();
        answers
    };
    assert_eq!(answers.matches("{\"ok\":true}").count(), 21, "{answers}");
    assert_eq!(bench.get("/api/v1/tiers/nvme").unwrap()["mode"], "enabled");
    play(&loader, 1, 0).unwrap().assert_whole(1, SAMPLES, &SIZES);
}

/// The document names every path that is served, and what it says of answers is so for these.
#[test]
fn openapi_document_lists_served_paths() {
    let bench = Bench::new(1);
    let document = bench.get("/api/v1/openapi.json").unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    let unknown_path = bench.ask("GET", "/none", &Value::Null).document()["detail"].clone();
    for (path, methods) in paths {
        for method in methods.as_object().unwrap().keys() {
            let path =
                path.replace("{name}", "none").replace("{session}", "0").replace("{number}", "0");
            let answer = bench.ask(&method.to_uppercase(), &path, &json!(0));
            assert_ne!(answer.status, 405, "{method} {path}");
            assert!(answer.status < 500, "{method} {path}: {}", answer.body);
            if answer.status == 404 {
                // The path exists, its object does not.
                assert_ne!(answer.document()["detail"], unknown_path, "{method} {path}");
            }
        }
    }
    assert!(daemon_status(bench.daemon.socket()).is_ok());
}

/// The explanation follows a shard: never requested, in flight, cached, pinned, evicted, too large.
#[test]
fn explain_reports_the_state_of_a_shard() {
    let bench = Bench::with(2, |config, shard| {
        let pinned =
            Dataset { pin: true, ..Dataset::new("keep", "s3://bucket/1.tar", Evict::Lru).unwrap() };
        let small = Dataset {
            max_bytes: Some(shard / 2),
            ..Dataset::new("small", "s3://bucket/small.tar", Evict::Sieve).unwrap()
        };
        config.datasets = vec![pinned, small];
    });
    let explain =
        |url: &str| bench.get(&format!("/api/v1/shards?url={}", url.replace('/', "%2F"))).unwrap();
    // One sentence at least of why and of what comes next; of how many facts they are is told
    // beside.
    let explain = |url: &str| {
        let told = explain(url);
        for key in ["why", "next"] {
            assert!(told[key].as_array().is_some_and(|all| !all.is_empty()), "{key}: {told}");
        }
        told
    };
    let names = |told: &Value, key: &str, word: &str| {
        let all = told[key].as_array().unwrap();
        assert!(all.iter().any(|one| one.as_str().unwrap().contains(word)), "{word}: {told}");
    };
    let zero = explain(&Origin::url("0.tar"));
    assert_eq!((&zero["dataset"], &zero["origin"]), (&Value::Null, &Value::Null), "{zero}");
    names(&zero, "why", "[[dataset]]");
    names(&zero, "next", "nvme");
    assert_eq!(zero["copies"], json!([]));
    let play = |urls| drop(epoch(bench.daemon.address(), job(&bench.origin, urls)).unwrap());
    play(Origin::urls(2));
    bench.daemon.settle();
    let zero = explain(&Origin::url("0.tar"));
    names(&zero, "why", "nvme");
    assert_eq!(
        (&zero["copies"][0]["tier"], &zero["copies"][0]["uses"]),
        (&"nvme".into(), &1.into())
    );
    assert_eq!(zero["copies"][0]["state"], "whole");
    eventually("nobody reads it", || {
        explain(&Origin::url("0.tar"))["copies"][0]["in_use"] == false
    });
    let zero = explain(&Origin::url("0.tar"));
    let one = explain(&Origin::url("1.tar"));
    names(&one, "why", "keep");
    assert_eq!((&one["dataset"], &one["pinned"]), (&"keep".into(), &true.into()), "{one}");
    assert_eq!(zero["pinned"], false, "{zero}");
    assert_ne!(one["next"], zero["next"], "one is pinned, the other may be evicted");
    bench.daemon.forget(&Origin::url("1.tar"), false).unwrap();
    assert_eq!(explain(&Origin::url("1.tar"))["copies"], json!([]));
    // Of a quota it says what is wrong.
    bench.origin.put("small.tar", &bench.origin.bytes("0.tar"));
    let refused = epoch(bench.daemon.address(), job(&bench.origin, vec![Origin::url("small.tar")]));
    drop(refused);
    let small = explain(&Origin::url("small.tar"));
    names(&small, "why", "small");
    let [bytes, most] =
        [&small["origin"]["bytes"], &small["quotas"][0]["max_bytes"]].map(Value::as_u64);
    assert!(bytes > most && most.is_some(), "{small}");
    // What a URL may hold of secrets is not repeated.
    let secret = explain("https://user:word@host/a.tar?signature=s");
    assert_eq!(secret["url"], "https://host/a.tar");
    bench.ask("GET", "/api/v1/shards", &Value::Null).assert_problem(400, "Invalid");

    let sets = bench.get("/api/v1/datasets").unwrap();
    let names: Vec<_> =
        sets.as_array().unwrap().iter().map(|set| set["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["keep", "small", "(rest)"]);
    assert_eq!((&sets[0]["pin"], &sets[2]["shards"]), (&true.into(), &1.into()));
    assert_eq!(bench.get("/api/v1/datasets/keep").unwrap(), sets[0]);
    bench.ask("GET", "/api/v1/datasets/none", &Value::Null).assert_problem(404, "NotFound");
}

/// The same by the command line, in words and as JSON, with its exit codes.
#[test]
fn command_line_reports_the_same_as_the_api() {
    let bench = Bench::new(1);
    let loader = loader(bench.daemon.address(), job(&bench.origin, Origin::urls(1))).unwrap();
    play(&loader, 0, 0).unwrap().assert_whole(1, SAMPLES, &SIZES);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(ACTOR);
        command.args(arguments);
        command.env("FOREBAY_DAEMON", format!("unix:{}", bench.daemon.socket().display()));
        let ended = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (ended.status.code().unwrap(), text(ended.stdout), text(ended.stderr))
    };
    let json = |arguments: &[&str]| {
        let (code, out, err) = run(&[arguments, &["--json"]].concat());
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<Value>(&out).unwrap()
    };
    let name = bench.get("/api/v1/jobs").unwrap()[0]["name"].as_str().unwrap().to_owned();
    let listed = |jobs: Value| at_once(jobs[0].clone());
    assert_eq!(listed(json(&["job", "ls"])), listed(bench.get("/api/v1/jobs").unwrap()));
    let number = json(&["job", "ls"])[0]["session"].to_string();
    assert_eq!(json(&["job", "show", &number])["name"], name.as_str());
    let (_, shown, _) = run(&["job", "show", &number]);
    assert!(shown.contains("40 samples") && shown.contains("5 batches"), "{shown}");
    assert_eq!(json(&["dataset", "ls"])[0]["name"], "(rest)");
    assert_eq!(json(&["dataset", "show", "(rest)"])["shards"], 1);
    let url = Origin::url("0.tar");
    assert_eq!(json(&["explain", &url])["copies"][0]["tier"], "nvme");
    for (arguments, words) in [
        (&["job", "ls"][..], name.as_str()),
        (&["job", "stop", &number, "--dry-run"], name.as_str()),
        (&["dataset", "ls"], "clairvoyant"),
        (&["explain", &url], "nvme"),
        (&["tier", "ls"], "nvme"),
        (&["status"], "nvme"),
    ] {
        let (code, out, err) = run(arguments);
        assert!(code == 0 && out.contains(words), "{arguments:?}: {out} {err}");
    }
    play(&loader, 1, 0).unwrap().assert_whole(1, SAMPLES, &SIZES);
    assert_eq!(run(&["job", "stop", &number]).0, 0);
    assert!(play(&loader, 2, 0).is_err());
    for arguments in
        [&["job", "show", "77"][..], &["job", "stop", "77"], &["dataset", "show", "none"]]
    {
        let (code, _, err) = run(arguments);
        let kind = reported_error(&err).kind();
        assert_eq!((code, kind), (1, ErrorKind::NotFound), "{arguments:?}: {err}");
    }
    assert_eq!(run(&["job", "show", "x"]).0, 2);
}

/// A pin keeps a shard that an LRU cache would evict, over a restart too, until it is removed.
#[test]
#[expect(clippy::too_many_lines, reason = "one course of events, in order")]
fn pin_keeps_a_shard_until_it_is_removed() {
    let (origin, disk) = (Origin::with_shards(6, SAMPLES, &SIZES), Daemon::disk());
    let shard = origin.bytes("0.tar").len() as u64;
    let shard =
        (0..6).fold(shard, |most, n| most.max(origin.bytes(&format!("{n}.tar")).len() as u64));
    let start = || {
        let mut config = Daemon::config(disk.path(), 3 * shard);
        let rule = |name, matches| Dataset::new(name, matches, Evict::Lru).unwrap();
        config.datasets = vec![rule("two", "s3://bucket/2.tar"), rule("others", "s3://bucket/*")];
        Daemon::try_start(config).unwrap()
    };
    let ask = |daemon: &Daemon, method: &str, path: &str, body: &Value| {
        exchange(daemon.socket(), method, path, JSON, &body.to_string())
    };
    let read = |daemon: &Daemon, n: u64| {
        epoch(daemon.address(), job(&origin, vec![Origin::url(&format!("{n}.tar"))])).unwrap();
        daemon.settle();
    };
    let is_here = |daemon: &Daemon, n: u64| {
        let url = Origin::url(&format!("{n}.tar")).replace('/', "%2F");
        let told =
            ask(daemon, "GET", &format!("/api/v1/shards?url={url}"), &Value::Null).document();
        told["copies"].as_array().unwrap().iter().any(|copy| copy["state"] == "whole")
    };
    let daemon = start();
    // One that is here, one that comes later, by a URL and by a data set's name.
    read(&daemon, 0);
    let wanted = json!({ "pins": [Origin::url("0.tar"), "two"] });
    let would = ask(&daemon, "POST", "/api/v1/pins?dry_run=true", &wanted).document();
    assert_eq!((&would[0]["shards"], &would[1]["shards"]), (&1.into(), &0.into()), "{would}");
    assert_eq!(ask(&daemon, "GET", "/api/v1/pins", &Value::Null).document(), json!([]));
    assert_eq!(ask(&daemon, "POST", "/api/v1/pins", &wanted).status, 200);
    let pins = json!([Origin::url("0.tar"), "s3://bucket/2.tar"]);
    assert_eq!(ask(&daemon, "GET", "/api/v1/pins", &Value::Null).document(), pins);
    for n in [2, 1, 3, 4, 5, 1] {
        read(&daemon, n);
    }
    assert!(is_here(&daemon, 0) && is_here(&daemon, 2) && is_here(&daemon, 1));
    daemon.stop();
    let daemon = start();
    for n in [3, 4, 5] {
        read(&daemon, n);
    }
    assert_eq!(ask(&daemon, "GET", "/api/v1/pins", &Value::Null).document(), pins);
    assert!(is_here(&daemon, 0) && is_here(&daemon, 2));
    let url = Origin::url("0.tar").replace('/', "%2F");
    let told = ask(&daemon, "GET", &format!("/api/v1/shards?url={url}"), &Value::Null).document();
    assert_eq!((&told["copies"][0]["pinned"], &told["pinned"]), (&true.into(), &false.into()));
    let taken = ask(&daemon, "DELETE", &format!("/api/v1/pins?pin={url}"), &Value::Null);
    assert_eq!(taken.document(), json!(["s3://bucket/2.tar"]));
    ask(&daemon, "DELETE", &format!("/api/v1/pins?pin={url}"), &Value::Null)
        .assert_problem(404, "NotFound");
    for n in [3, 4, 5] {
        read(&daemon, n);
    }
    assert!(!is_here(&daemon, 0) && is_here(&daemon, 2));
    ask(&daemon, "POST", "/api/v1/pins", &json!({ "pins": ["s3://b/***"] }))
        .assert_problem(422, "Invalid");
    ask(&daemon, "POST", "/api/v1/pins", &json!({ "pins": [""] })).assert_problem(422, "Invalid");
    // By a pattern, and back: what is pinned by another stays pinned.
    assert_eq!(
        ask(&daemon, "POST", "/api/v1/pins", &json!({ "pins": ["s3://bucket/[25].tar"] }))
            .document()[0]["shards"],
        2
    );
    read(&daemon, 0);
    read(&daemon, 1);
    assert!(is_here(&daemon, 5) && is_here(&daemon, 2));
    assert_eq!(
        ask(&daemon, "DELETE", "/api/v1/pins?pin=s3%3A%2F%2Fbucket%2F%5B25%5D.tar", &Value::Null)
            .status,
        200
    );
    read(&daemon, 0);
    read(&daemon, 1);
    read(&daemon, 0);
    assert!(!is_here(&daemon, 5) && is_here(&daemon, 2));
}

#[test]
fn shards_are_evicted_by_pattern_and_by_data_set() {
    let bench = Bench::with(5, |config, _| {
        config.datasets = vec![Dataset::new("low", "s3://bucket/[01].tar", Evict::Lru).unwrap()];
    });
    epoch(bench.daemon.address(), job(&bench.origin, Origin::urls(5))).unwrap();
    bench.daemon.settle();
    let evict = |what: &str, dry: bool| {
        let path = format!("/api/v1/evictions?dry_run={dry}");
        let told = bench.ask("POST", &path, &json!({ "urls": [what] })).document();
        let urls =
            told.as_array().unwrap().iter().map(|one| one["url"].as_str().unwrap().to_owned());
        urls.collect::<Vec<_>>()
    };
    let urls =
        |all: &[u64]| all.iter().map(|n| Origin::url(&format!("{n}.tar"))).collect::<Vec<_>>();
    assert_eq!(evict("low", true), urls(&[0, 1]));
    assert_eq!(evict("(rest)", true), urls(&[2, 3, 4]));
    assert_eq!(evict("s3://bucket/[34].tar", false), urls(&[3, 4]));
    assert_eq!(evict("s3://bucket/**", true), urls(&[0, 1, 2]));
    assert_eq!(evict("low", false), urls(&[0, 1]));
    assert_eq!(bench.daemon.tier("nvme").counters.shards, 1);
    assert_eq!(evict("s3://bucket/none-*.tar", false), urls(&[]));
    // Of a tier that is away nobody knows what it holds.
    bench.daemon.change("nvme", Mode::Disabled).unwrap();
    bench
        .ask("POST", "/api/v1/evictions", &json!({ "urls": ["low"] }))
        .assert_problem(503, "Unavailable");
}

/// Content of a tier's key file.
const KEY: &[u8; 32] = b"a-secret-key-of-thirty-two-bytes";

/// A bundle has what is there, and says what is not; it is for its owner alone, and never replaces
/// a file.
#[test]
#[expect(clippy::too_many_lines, reason = "one course of events, in order")]
fn support_bundle_holds_its_files_and_no_secrets() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new(1);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bundle.tar");
    let config = folder.path().join("forebay.toml");
    // The key of a tier, as doctor reads it.
    let key = folder.path().join("n.key");
    std::fs::write(&key, KEY).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o400)).unwrap();
    let tier = format!(
        "[[tier]]\nname = 'n'\npath = '/mnt/n'\ncapacity = '1GiB'\n\
         encryption = {{ key_file = {key:?} }}\n"
    );
    std::fs::write(&config, format!("{tier}[leases]\nredis = 'redis://u:secret@h:1'\n")).unwrap();
    // In place of systemd's, which few machines that test have.
    let journal = folder.path().join("journalctl");
    std::fs::write(&journal, "#!/bin/sh\necho \"of $*\"\n").unwrap();
    std::fs::set_permissions(&journal, std::fs::Permissions::from_mode(0o700)).unwrap();
    let run = |more: &[&str]| {
        let mut command = Command::new(ACTOR);
        command.args([
            "support-bundle",
            "--output",
            file.to_str().unwrap(),
            "--config",
            config.to_str().unwrap(),
        ]);
        command.args(more).env("XDG_RUNTIME_DIR", folder.path());
        command.env("PATH", folder.path());
        // The machine may have a private daemon of its own.
        command.env_remove("FOREBAY_CACHE").env("XDG_CACHE_HOME", folder.path());
        command.env("FOREBAY_DAEMON", format!("unix:{}", bench.daemon.socket().display()));
        command.output().unwrap()
    };
    assert!(run(&["--dry-run"]).status.success() && !file.exists());
    let told = run(&["--json"]);
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert!(
        told["files"].as_array().unwrap().iter().any(|one| one["missing"].is_string()),
        "{told}"
    );
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let digits: String = KEY.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut names = Vec::new();
    let mut bundle = tar::Archive::new(std::fs::File::open(&file).unwrap());
    for entry in bundle.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        assert!(!text.contains("secret") && !text.contains(&digits), "{name}");
        if name.ends_with("status.json") {
            let status: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(status["tiers"][0]["name"], "nvme");
        }
        for (file, words) in [
            ("metrics.txt", "forebay_tier_used_bytes{tier=\"nvme\"}"),
            ("costs.json", "\"(total)\""),
            ("node-daemon.log", "of --unit forebayd --lines 5000 "),
        ] {
            assert!(!name.ends_with(file) || text.contains(words), "{name}: {text}");
        }
        names.push(name);
    }
    for name in [
        "about.json",
        "status.json",
        "metrics.txt",
        "costs.json",
        // It has no file to go by.
        "config-diff.txt.missing",
        "config.toml",
        "doctor.txt",
        "node-daemon.log",
        "private-daemon.log.missing",
        "machine/meminfo",
    ] {
        assert!(names.contains(&format!("forebay-support/{name}")), "{name}: {names:?}");
    }
    // Without a journal that is said in its place.
    std::fs::remove_file(&journal).unwrap();
    let told = String::from_utf8(run(&["--dry-run"]).stdout).unwrap();
    let is_missing = |line: &str| line.contains("node-daemon.log") && line.contains("missing");
    assert!(told.lines().any(is_missing), "{told}");
    let again = run(&[]);
    let error = reported_error(&String::from_utf8_lossy(&again.stderr));
    assert_eq!((again.status.code(), error.kind()), (Some(1), ErrorKind::Invalid), "{error}");
    assert!(std::fs::metadata(&file).is_ok_and(|found| found.len() > 0), "it was left");
}

#[test]
fn top_prints_as_many_documents_as_asked() {
    let bench = Bench::new(1);
    let mut top = Command::new(ACTOR);
    top.args(["top", "--json", "--count", "2"]);
    top.env("FOREBAY_DAEMON", format!("unix:{}", bench.daemon.socket().display()));
    let ended = top.output().unwrap();
    let lines = String::from_utf8(ended.stdout).unwrap();
    let looks: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(looks.len(), 2);
    assert!(looks[0]["uptime_seconds"].as_f64() < looks[1]["uptime_seconds"].as_f64());
    let mut screen = Command::new(ACTOR);
    screen.arg("top").env("FOREBAY_DAEMON", format!("unix:{}", bench.daemon.socket().display()));
    assert_eq!(screen.output().unwrap().status.code(), Some(2), "nobody sees it");
}

/// While a batch does not come, and when it came: whose fault it was.
#[test]
fn job_shows_the_cause_it_waits_for() {
    let bench = Bench::new(2);
    let server = &bench.origin.server;
    server.stall(&Origin::key("1.tar"), 0);
    let loader = loader(bench.daemon.address(), job(&bench.origin, Origin::urls(2))).unwrap();
    let progress = || bench.daemon.status()["jobs"][0]["progress"].clone();
    let seconds = |of: &Value| of.as_f64().unwrap_or(0.0);
    let waiting = || seconds(&progress()["waiting_seconds"]);
    std::thread::scope(|scope| {
        let playing = scope.spawn(|| play(&loader, 0, 0).unwrap());
        eventually("it waits for as long as two of its words are apart", || {
            waiting() > 2.0 && !progress()["lately"].is_null()
        });
        let lately = progress()["lately"].clone();
        assert!(seconds(&lately["waited_share"]) > 0.5, "{lately}");
        server.release(&Origin::key("1.tar"));
        playing.join().unwrap().assert_whole(2, SAMPLES, &SIZES);
    });
    // The last word may still be on its way.
    eventually("all is told", || {
        let told = progress();
        told["samples"] == 2 * SAMPLES && told["waiting_seconds"] == 0.0
    });
    let told = progress();
    assert_eq!((&told["samples"], &told["waiting_seconds"]), (&(2 * SAMPLES).into(), &0.0.into()));
    let causes = told["waited_seconds"].as_object().unwrap();
    assert!(seconds(&causes["origin"]) > 2.0, "{told}");
    let others: f64 =
        causes.iter().filter(|(cause, _)| *cause != "origin").map(|(_, of)| seconds(of)).sum();
    assert!(others < seconds(&causes["origin"]), "{told}");
    let stats = loader.stats();
    let counted: f64 = stats.wait.by_cause.iter().map(|(_, seconds)| seconds).sum();
    let summed: f64 = causes.values().map(seconds).sum();
    assert!((counted - summed).abs() < 1e-6, "{counted} {summed}");
    assert_eq!(told["tier_bytes"].as_u64().unwrap(), stats.tier_bytes);

    // Who forgets its own counts takes nothing back.
    loader.reset_stats();
    play(&loader, 1, 0).unwrap();
    eventually("both epochs are told", || progress()["samples"] == 4 * SAMPLES);
}
