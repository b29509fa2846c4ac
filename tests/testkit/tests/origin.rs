//! Tests of the origin over raw sockets: answers, counts, faults.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use forebay_testkit::S3Server;

/// Sends one request on a connection of its own and returns the whole answer.
fn ask(address: &str, request: &str, headers: &str) -> String {
    let mut socket = open(address, request, headers);
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

fn open(address: &str, request: &str, headers: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).unwrap();
    let text = format!("{request} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n");
    socket.write_all(text.as_bytes()).unwrap();
    socket
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

fn server() -> (tempfile::TempDir, S3Server, String) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("bbb")).unwrap();
    std::fs::write(dir.path().join("bbb/k.tar"), "0123456789").unwrap();
    let server = S3Server::start(dir.path()).unwrap();
    let address = server.address().to_string();
    (dir, server, address)
}

#[test]
fn plain_requests_get_files_ranges_and_rejections() {
    let (_dir, server, address) = server();
    let whole = ask(&address, "GET /bbb/k.tar", "");
    assert!(whole.starts_with("HTTP/1.1 200"), "{whole}");
    assert_eq!(body(&whole), "0123456789");
    let part = ask(&address, "GET /bbb/k.tar", "range: bytes=2-4\r\n");
    assert!(part.starts_with("HTTP/1.1 206") && part.contains("bytes 2-4/10"), "{part}");
    assert_eq!(body(&part), "234");
    let head = ask(&address, "HEAD /bbb/k.tar", "");
    assert!(head.contains("content-length: 10") && body(&head).is_empty(), "{head}");
    for (request, headers, status) in [
        ("GET /bbb/no.tar", "", "404"),
        ("GET /bbb/../bbb/k.tar", "", "400"),
        ("GET /bbb/k.tar", "range: bytes=10-\r\n", "416"),
        ("GET /bbb/k.tar", "if-match: \"other\"\r\n", "412"),
        ("PUT /bbb/k.tar", "content-length: 0\r\n", "403"),
        ("GET /bbb/k.tar", "authorization: AWS4-HMAC-SHA256 nonsense\r\n", "400"),
    ] {
        let answer = ask(&address, request, headers);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{request}: {answer}");
    }
    let counts = server.counts();
    assert_eq!((counts.requests, counts.heads["bbb/k.tar"], counts.gets["bbb/k.tar"]), (9, 1, 5));
    assert_eq!(counts.bytes["bbb/k.tar"], 13);
}

#[test]
fn bodies_stall_at_a_byte_and_continue_when_released() {
    let (_dir, server, address) = server();
    server.stall("bbb/k.tar", 4);
    let mut socket = open(&address, "GET /bbb/k.tar", "range: bytes=2-7\r\n");
    server.wait_until(|counts| counts.stalled == 1);
    assert_eq!(server.counts().bytes["bbb/k.tar"], 2);
    server.release("bbb/k.tar");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert_eq!(body(&answer), "234567");
    assert_eq!(server.counts().stalled, 0);
}

#[test]
fn each_fault_is_used_once() {
    let (_dir, server, address) = server();
    server.cut("bbb/k.tar", 3, 1);
    assert_eq!(body(&ask(&address, "GET /bbb/k.tar", "")), "012");
    assert_eq!(body(&ask(&address, "GET /bbb/k.tar", "")), "0123456789");
    server.fail_next(1, 503);
    assert!(ask(&address, "HEAD /bbb/k.tar", "").starts_with("HTTP/1.1 503"));
    server.deny("bbb/k.tar", true);
    assert!(ask(&address, "GET /bbb/k.tar", "").starts_with("HTTP/1.1 403"));
    server.deny("bbb/k.tar", false);
    assert!(ask(&address, "GET /bbb/k.tar", "").starts_with("HTTP/1.1 200"));
}

#[test]
fn server_is_gone_when_dropped() {
    let (_dir, server, address) = server();
    drop(server);
    assert!(TcpStream::connect(&address).is_err());
}

#[test]
fn program_prints_its_address_and_ends_with_its_input() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("bbb")).unwrap();
    std::fs::write(dir.path().join("bbb/k"), "hello").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_forebay-origin"))
        .args(["--until-eof", "--dir", dir.path().to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap();
    assert_eq!(body(&ask(address, "GET /bbb/k", "")), "hello");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
