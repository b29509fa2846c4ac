//! Third-party servers start, answer, and leave nothing behind.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use forebay_testkit::{Azurite, Bucket, Ceph, Certificate, Moto, Nginx, skip};

fn get(address: SocketAddr, target: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    write!(socket, "GET {target} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn is_gone(address: SocketAddr) -> bool {
    TcpStream::connect(address).is_err()
}

#[test]
fn nginx_serves_http_and_https_with_each_certificate() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("k"), "hello").unwrap();
    for (certificate, verdict) in [
        (Certificate::Good, "ok"),
        (Certificate::Expired, "expired"),
        (Certificate::WrongName, "mismatch"),
        (Certificate::SelfSigned, "self-signed"),
    ] {
        let nginx = Nginx::with(root.path(), certificate).unwrap();
        assert!(get(nginx.address(), "/k").ends_with("\r\n\r\nhello"));
        assert!(get(nginx.address(), "/denied/k").starts_with("HTTP/1.1 403"));
        // Judged by another TLS library.
        let judge = Command::new("openssl")
            .args(["s_client", "-brief", "-verify_return_error", "-verify_ip", "127.0.0.1"])
            .arg("-CAfile")
            .arg(nginx.authority())
            .arg("-connect")
            .arg(nginx.https().trim_start_matches("https://"))
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&judge.stderr).to_lowercase();
        assert!(said.contains(verdict), "{certificate:?}: {said}");
        assert_eq!(judge.status.success(), certificate == Certificate::Good, "{said}");
        let address = nginx.address();
        drop(nginx);
        assert!(is_gone(address));
    }
}

#[test]
fn moto_and_azurite_store_objects() {
    let moto = Moto::start().unwrap();
    let bucket = Bucket::make(moto.address(), "bucket", ("AK", "SK")).unwrap();
    bucket.put("a b+c%.txt", b"hello").unwrap();
    let answer = get(moto.address(), "/bucket/a%20b%2Bc%25.txt");
    assert!(answer.starts_with("HTTP/1.1 403"), "unsigned requests are refused: {answer}");
    let azurite = Azurite::start().unwrap();
    azurite.put("container", None).unwrap();
    azurite.put("container/a b+c%.txt", Some(b"hello")).unwrap();
    assert!(azurite.put("no-container/k", Some(b"hello")).is_err());
    let (moto, azurite) = {
        let addresses = (moto.address(), azurite.address());
        drop((moto, azurite));
        addresses
    };
    assert!(is_gone(moto) && is_gone(azurite));
}

#[test]
fn ceph_serves_objects_and_files() {
    if let Some(missing) = Ceph::missing() {
        return skip(missing, "Ceph's daemons and mounts");
    }
    let ceph = Ceph::start().unwrap();
    let keys = (Ceph::ACCESS_KEY, Ceph::SECRET_KEY);
    let bucket = Bucket::make(ceph.gateway(), "bucket", keys).unwrap();
    bucket.put("k", b"hello").unwrap();
    assert!(Bucket::make(ceph.gateway(), "other", (Ceph::ACCESS_KEY, "wrong")).is_err());
    let file = ceph.mount().join("k");
    std::fs::write(&file, "hello").unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), b"hello");
    let (gateway, mount) = (ceph.gateway(), ceph.mount());
    drop(ceph);
    assert!(is_gone(gateway) && !mount.exists());
}
