//! The audit log of a daemon that runs: what is in it, how large it grows, and what a full disk
//! costs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use forebay_tests::{Mount, SharedNode, eventually, reported_error};
use forebay_wire::PROTOCOL;
use forebay_wire::frame::{self, Receiver};
use forebay_wire::message::{Reply, Request};
use serde_json::Value;

use crate::ACTOR;

/// A socket by which root is nobody of rank.
const PODS: &str = "run/pods.sock";

fn node(audit: &str) -> Option<SharedNode> {
    let more = format!(
        "[[tenant]]\nname = 'pods'\n[[listen]]\npath = '{{}}/{PODS}'\ntenant = 'pods'\n[audit]\n{audit}\n"
    );
    SharedNode::new("", &more)
}

/// Runs a command of root's on the daemon's own socket.
fn admin(node: &SharedNode, arguments: &[&str]) -> (i32, String) {
    let done = node.forebay("run/d.sock", (0, 0), &BTreeMap::new(), arguments);
    (done.status.code().unwrap(), String::from_utf8(done.stdout).unwrap())
}

/// Has a shard of this number evicted, whose URL is as long as a line's may be and longer.
fn evict(node: &SharedNode, number: u64) {
    let url = format!("s3://bucket/{number:06}/{}", "x".repeat(1100));
    assert_eq!(admin(node, &["dataset", "evict", &url]).0, 0);
}

/// Those that are whole: one may just be written.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
    whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Bears promise 8: what somebody changed is noted, whoever it was, over restarts, for the daemon's
/// user to read and nobody else.
#[test]
fn audit_log_keeps_changes_over_restarts() {
    let Some(mut node) = node("path = '{}/log/audit.jsonl'") else { return };
    for (change, code) in [("drain", 0), ("enable", 0)] {
        assert_eq!(admin(&node, &["tier", change, "nvme"]).0, code);
    }
    assert_ne!(admin(&node, &["tier", "drain", "tape"]).0, 0);
    node.end();
    node.start();
    let url = "s3://b/0.tar?signature=s";
    assert_eq!(admin(&node, &["dataset", "evict", "--dry-run", url]).0, 0);
    assert_eq!(admin(&node, &["dataset", "evict", url]).0, 0);
    node.end();
    let told: Vec<_> = node
        .audit()
        .iter()
        .map(|line| {
            let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
            [text("event"), text("outcome"), text("what"), text("url")].join(" ").trim().to_owned()
        })
        .collect();
    let wanted = [
        "start done",
        "tier done drain nvme",
        "tier done enable nvme",
        "tier failed drain tape",
        "stop done",
        "start done",
        "evict done  s3://b/0.tar",
        "stop done",
    ];
    assert_eq!(told, wanted);
    let found = fs::metadata(node.path("log/audit.jsonl")).unwrap();
    assert_eq!((found.mode() & 0o777, found.uid()), (0o600, SharedNode::user()));
}

#[test]
fn audit_log_stays_within_its_size() {
    let Some(node) = node("path = '{}/log/audit.jsonl'\nmax_size = '64KiB'\nkeep = 2") else {
        return;
    };
    // Of over a kilobyte: four files' worth.
    for number in 0..200 {
        evict(&node, number);
    }
    let number = |line: &Value| {
        let url = line["url"].as_str().unwrap_or_default();
        url.get(12..18).and_then(|digits| digits.parse::<u64>().ok())
    };
    eventually("the last is written", || {
        lines(&node.path("log/audit.jsonl")).last().and_then(number) == Some(199)
    });
    let mut names: Vec<_> =
        fs::read_dir(node.path("log")).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    assert_eq!(names.len(), 3, "{names:?}");
    let mut numbers = Vec::new();
    for path in names.iter().rev() {
        let found = fs::metadata(path).unwrap();
        assert!(found.len() <= 64 << 10, "{path:?} has {}", found.len());
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
        numbers.extend(lines(path).iter().filter_map(number));
    }
    let whole: Vec<_> = (200 - numbers.len() as u64..200).collect();
    assert_eq!(numbers, whole, "what is kept is the last, without a gap");
    assert_eq!(node.status()["audit"]["lost"], 0);
}

/// A disk that takes no more lines costs lines, which are counted and told, and nothing else.
#[test]
fn full_disk_loses_counted_audit_lines_only() {
    let Some(disk) = Mount::new("size=64k,mode=777") else { return };
    let path = disk.path().join("audit.jsonl");
    let Some(node) = node(&format!("path = '{}'", path.display())) else { return };
    let filler = disk.path().join("filler");
    let mut file = File::create(&filler).unwrap();
    while file.write_all(&[0; 1024]).is_ok() {}
    let mut forgotten = 0;
    // What is left of the log's last page takes a few, and then a short one that tells of those
    // that are lost.
    eventually("it says so", || {
        evict(&node, forgotten);
        forgotten += 1;
        node.status()["audit"]["failing"].is_string()
    });
    let (_, told) = admin(&node, &["status"]);
    let status = node.status();
    let failing = status["audit"]["failing"].as_str().unwrap();
    let is_told = |line: &str| line.starts_with("audit ") && line.contains(failing);
    assert!(told.lines().any(is_told), "{told}");
    assert!(status["audit"]["lost"].as_u64().unwrap() > 0, "{status}");
    drop(file);
    fs::remove_file(&filler).unwrap();
    let last = || {
        let last = lines(&path);
        last.iter().any(|line| line["url"].to_string().contains("/999999/"))
    };
    evict(&node, 999_999);
    eventually("lines are written again", last);
    let counted = || {
        let lines = lines(&path);
        let lost: u64 = lines.iter().filter_map(|line| line["count"].as_u64()).sum();
        (lost, lines.iter().filter(|line| line["event"] == "evict").count() as u64)
    };
    eventually("what was lost is told", || counted().0 + counted().1 == forgotten + 1);
    let audit = node.status()["audit"].clone();
    assert!(audit.get("failing").is_none() && audit["lost"] == counted().0, "{audit}");
}

/// Repeated denials are logged a few times a second, and counted; other lines stay.
#[test]
fn repeated_denials_do_not_displace_other_lines() {
    let Some(node) = node("path = '{}/log/audit.jsonl'") else { return };
    let socket = UnixStream::connect(node.path(PODS)).unwrap();
    let mut receiver = Receiver::default();
    let mut ask = |request: &Request| -> Reply {
        frame::send(&socket, &frame::encode(request).unwrap(), &[]).unwrap();
        receiver.receive(&socket).unwrap()
    };
    let hello = Request::Hello { protocol: PROTOCOL, release: "test".to_owned() };
    assert!(matches!(ask(&hello), Reply::Welcome { .. }));
    for number in 0..2000 {
        let pattern = format!("s3://bucket/{number}/*.tar");
        let list = Request::List { pattern, origin: BTreeMap::new() };
        assert!(matches!(ask(&list), Reply::Failed { .. }));
    }
    let path = node.path("log/audit.jsonl");
    let counted = || {
        let lines = lines(&path);
        let noted = lines.iter().filter(|line| line["event"] == "list").count() as u64;
        let lost: u64 = lines.iter().filter_map(|line| line["count"].as_u64()).sum();
        (noted, lost)
    };
    eventually("all are accounted for", || {
        let (noted, lost) = counted();
        noted + lost == 2000
    });
    assert!(counted().0 < 1000, "{:?}", counted());
}

/// A daemon that is to keep an audit log and cannot does not run without one.
#[test]
fn daemon_does_not_start_without_its_audit_log() {
    let Some(mut node) = node("path = '{}/log/audit.jsonl'") else { return };
    node.end();
    fs::remove_file(node.path("log/audit.jsonl")).unwrap();
    fs::create_dir(node.path("log/audit.jsonl")).unwrap();
    let mut daemon = Command::new(ACTOR);
    daemon.args(["daemon", "--config"]).arg(node.path("forebay.toml")).stderr(Stdio::piped());
    let ended = daemon.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(reported_error(&said).place("audit").is_some(), "{said}");
}
