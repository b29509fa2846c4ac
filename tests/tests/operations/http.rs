//! The admin API over TCP: who gets what without the token, with it, and from a browser.

#![allow(clippy::print_stdout, reason = "a skipped test says so")]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use forebay_testkit::{Certificate, tool};
use forebay_tests::{Answer, Daemon, FRAMES, Installation, Installed, eventually};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ACTOR;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const JSON: &str = "content-type: application/json\r\n";

/// Requests that the fuzzer makes of each operation, at most.
const EXAMPLES: &str = "25";

/// Connections that the daemon holds at once, and some that hang: whole rounds of them.
const CONNECTIONS: usize = 64;
const HANGING: usize = 3 * CONNECTIONS;

struct Bench {
    address: SocketAddr,
    daemon: Installed,
    disk: TempDir,
}

/// A configuration with this in its [daemon].
fn installation(disk: &Path, daemon: &str) -> Installation {
    let cache = disk.join("cache");
    let tiers = format!("[[tier]]\nname = 'nvme'\npath = {cache:?}\ncapacity = '1GiB'\n");
    let ram = "[[tier]]\nname = 'ram'\nclass = 'memory'\ncapacity = '16MiB'\n";
    let memory = FRAMES as u64 + (128 << 20);
    Installation::new(ACTOR, disk, memory, &format!("{daemon}{tiers}{ram}"))
}

fn token(disk: &Path, mode: u32) -> String {
    let path = disk.join("token");
    fs::write(&path, format!("{TOKEN}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    format!("token_file = {path:?}\n")
}

impl Bench {
    fn new() -> Self {
        Self::with(|disk| token(disk, 0o600))
    }

    fn with(daemon: impl Fn(&Path) -> String) -> Self {
        let disk = Daemon::disk();
        let http = "http = '127.0.0.1:0'\nhttp_names = ['Node7.example.org']\n";
        let installation = installation(disk.path(), &format!("{http}{}", daemon(disk.path())));
        let started = installation.start();
        Self { address: started.http_address(), daemon: started, disk }
    }

    fn ask(&self, what: (&str, &str), headers: &str, body: &str) -> Answer {
        let headers = match headers.to_ascii_lowercase().contains("host:") {
            true => headers.to_owned(),
            false => format!("host: {}\r\n{headers}", self.address),
        };
        Answer::to(TcpStream::connect(self.address).unwrap(), what, &headers, body)
    }

    fn mode(&self) -> Value {
        let answer = self.ask(("GET", "/api/v1/tiers/nvme"), &bearer(TOKEN), "");
        answer.document()["mode"].clone()
    }
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

#[test]
fn requests_without_a_token_get_health_and_overview() {
    let bench = Bench::new();
    let page = ["/", "/page.css", "/page.js"];
    for path in page {
        let answer = bench.ask(("GET", path), "", "");
        assert!(answer.head.contains("content-security-policy: default-src 'none'"), "{path}");
        assert!(answer.head.contains("x-content-type-options: nosniff"), "{path}");
    }
    let open = ["/healthz", "/readyz", "/api/v1/overview", "/metrics", "/api/v1/openapi.json"];
    let open = [&page[..], &open].concat();
    for path in &open {
        assert_eq!(bench.ask(("GET", path), "", "").status, 200, "{path}");
    }
    let told = |headers: &str| {
        bench.ask(("GET", "/api/v1/overview"), headers, "").document()["is_admin"].clone()
    };
    assert_eq!((told(""), told(&bearer(TOKEN))), (false.into(), true.into()));
    let document = bench.ask(("GET", "/api/v1/openapi.json"), "", "").document();
    for (path, methods) in document["paths"].as_object().unwrap() {
        if open.contains(&path.as_str()) {
            continue;
        }
        let path =
            path.replace("{name}", "nvme").replace("{session}", "1").replace("{number}", "1");
        for method in methods.as_object().unwrap().keys() {
            let what = (&*method.to_uppercase(), &*path);
            let disabled = json!({ "mode": "disabled" }).to_string();
            for headers in [
                String::new(),
                bearer("x"),
                bearer(&TOKEN[1..]),
                format!("authorization: Basic {TOKEN}\r\n"),
            ] {
                let answer = bench.ask(what, &format!("{headers}{JSON}"), &disabled);
                answer.assert_problem(401, "PermissionDenied");
                assert!(!answer.body.contains("0123"), "{}", answer.body);
            }
        }
    }
    assert_eq!(bench.mode(), "enabled");
    let disabled = json!({ "mode": "disabled" }).to_string();
    let put = ("PUT", "/api/v1/tiers/nvme");
    assert_eq!(bench.ask(put, &format!("{}{JSON}", bearer(TOKEN)), &disabled).status, 200);
    assert_eq!(bench.mode(), "disabled");
    assert!(!bench.daemon.log().contains(TOKEN), "the token is in the log");
}

/// A name that leads here by somebody else's name service, and a page that is not the daemon's own.
#[test]
fn cross_site_requests_are_rejected() {
    let bench = Bench::new();
    let get = ("GET", "/api/v1/status");
    let port = bench.address.port();
    for host in [
        "evil.example",
        "evil.example:80",
        "localhost.evil.example",
        "node7.example.org.evil",
        "",
        "a b",
        "x@y",
    ] {
        let headers = format!("host: {host}\r\n{}", bearer(TOKEN));
        let answer = bench.ask(get, &headers, "");
        assert!([400, 421].contains(&answer.status), "{host}: {} {}", answer.status, answer.body);
    }
    for host in [
        format!("127.0.0.1:{port}"),
        format!("LOCALHOST:{port}"),
        "localhost".into(),
        "[::1]:80".into(),
        "node7.example.org".into(),
        format!("node7.EXAMPLE.org:{port}"),
    ] {
        let headers = format!("host: {host}\r\n{}", bearer(TOKEN));
        assert_eq!(bench.ask(get, &headers, "").status, 200, "{host}");
    }
    let twice = format!("host: localhost\r\nhost: evil.example\r\n{}", bearer(TOKEN));
    assert_eq!(bench.ask(get, &twice, "").status, 400);
    let elsewhere = ("GET", "http://evil.example/api/v1/status");
    assert_eq!(
        bench.ask(elsewhere, &format!("host: localhost\r\n{}", bearer(TOKEN)), "").status,
        421
    );
    for origin in [
        "http://evil.example",
        "null",
        "https://localhost",
        "http://localhost:1",
        "http://127.0.0.1",
        "file://",
    ] {
        let headers = format!("host: localhost:{port}\r\norigin: {origin}\r\n{}", bearer(TOKEN));
        let answer = bench.ask(get, &headers, "");
        answer.assert_problem(403, "PermissionDenied");
        assert!(!answer.head.contains("access-control-allow"), "{}", answer.head);
    }
    let own =
        format!("host: localhost:{port}\r\norigin: http://localhost:{port}\r\n{}", bearer(TOKEN));
    assert_eq!(bench.ask(get, &own, "").status, 200);
}

#[test]
fn no_token_file_means_no_admin_over_tcp() {
    let bench = Bench::with(|_| String::new());
    assert_eq!(bench.ask(("GET", "/api/v1/overview"), "", "").status, 200);
    for headers in [String::new(), bearer(TOKEN), bearer("")] {
        bench.ask(("GET", "/api/v1/status"), &headers, "").assert_problem(401, "PermissionDenied");
    }
}

#[test]
fn daemon_rejects_a_token_file_others_can_read() {
    for (mode, daemon, words) in
        [(0o644, "http = '127.0.0.1:0'\n", "mode=644"), (0o600, "", "`http`")]
    {
        let disk = Daemon::disk();
        let installation =
            installation(disk.path(), &format!("{daemon}{}", token(disk.path(), mode)));
        let config = disk.path().join("forebay.toml");
        let mut command = installation.forebay(&["daemon", "--config", config.to_str().unwrap()]);
        let ended = command.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && said.contains(words), "{said}");
    }
}

/// Bears promise 8 over TCP: what is refused, and what is changed, is noted, with where it came
/// from.
#[test]
fn tcp_changes_and_denials_are_audited() {
    let bench = Bench::with(|disk| {
        let log = disk.join("audit.jsonl");
        format!("{}[audit]\npath = {log:?}\n", token(disk, 0o600))
    });
    let disabled = json!({ "mode": "disabled" }).to_string();
    let put = ("PUT", "/api/v1/tiers/ram");
    assert_eq!(bench.ask(put, JSON, &disabled).status, 401);
    assert_eq!(bench.ask(put, &format!("{}{JSON}", bearer("guess")), &disabled).status, 401);
    assert_eq!(bench.ask(("GET", "/healthz"), "host: evil.example\r\n", "").status, 421);
    assert_eq!(bench.ask(put, &format!("{}{JSON}", bearer(TOKEN)), &disabled).status, 200);
    let told = || -> Vec<(String, String, String)> {
        let text = fs::read_to_string(bench.disk.path().join("audit.jsonl")).unwrap();
        let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
        let lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let lines = lines.filter(|line| line["by"].to_string().contains("127.0.0.1:"));
        let text = |line: &Value, key: &str| line[key].as_str().unwrap_or_default().to_owned();
        lines
            .map(|line| (text(&line, "event"), text(&line, "outcome"), text(&line, "what")))
            .collect()
    };
    eventually("all is noted", || told().len() == 4);
    let line = |event: &str, outcome: &str, what: &str| (event.into(), outcome.into(), what.into());
    assert_eq!(
        told(),
        [
            line("tier", "denied", "PUT /api/v1/tiers/ram"),
            line("http", "denied", "PUT /api/v1/tiers/ram"),
            line("http", "denied", "GET /healthz"),
            line("tier", "done", "disable ram"),
        ]
    );
}

/// Certificates and keys of the daemon and of people, each signed by an authority of its own.
struct Certificates(TempDir);

impl Certificates {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        for (name, certificate) in [
            ("daemon", Certificate::Good),
            ("admin", Certificate::Good),
            ("stranger", Certificate::Good),
            ("self", Certificate::SelfSigned),
        ] {
            fs::create_dir(folder.path().join(name)).unwrap();
            certificate.make(&folder.path().join(name)).unwrap();
        }
        // Over since yesterday; its authority is one of the admins', too.
        let (late, admin) = (folder.path().join("late"), folder.path().join("admin"));
        fs::create_dir(&late).unwrap();
        Certificate::Expired.make(&late).unwrap();
        let both = [late, admin.clone()].map(|at| fs::read(at.join("authority.pem")).unwrap());
        fs::write(admin.join("authority.pem"), both.concat()).unwrap();
        Self(folder)
    }

    fn path(&self, whose: &str, file: &str) -> PathBuf {
        self.0.path().join(whose).join(file)
    }

    /// Returns the daemon's TLS settings for them.
    fn tls(&self, authority: Option<&str>) -> String {
        let [cert, key] = ["certificate.pem", "key.pem"].map(|file| self.path("daemon", file));
        let authority = authority.map(|whose| self.path(whose, "authority.pem"));
        let client_ca = authority.map(|path| format!(", client_ca = {path:?}")).unwrap_or_default();
        format!("http_tls = {{ cert = {cert:?}, key = {key:?}{client_ca} }}\n")
    }

    /// A connection to the daemon by somebody who shows this certificate, or none.
    fn connect(&self, address: SocketAddr, whose: Option<&str>) -> impl Read + Write + use<> {
        let mut roots = RootCertStore::empty();
        let authority = self.path("daemon", "authority.pem");
        roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots);
        let config = match whose {
            None => config.with_no_client_auth(),
            Some(whose) => {
                let [chain, key] =
                    ["certificate.pem", "key.pem"].map(|file| self.path(whose, file));
                let chain = vec![CertificateDer::from_pem_file(chain).unwrap()];
                let key = PrivateKeyDer::from_pem_file(key).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let name = ServerName::from(address.ip());
        let inside = ClientConnection::new(config.into(), name).unwrap();
        StreamOwned::new(inside, TcpStream::connect(address).unwrap())
    }

    fn ask(&self, bench: &Bench, whose: Option<&str>, what: (&str, &str), headers: &str) -> Answer {
        let body = json!({ "mode": "disabled" }).to_string();
        let body = if what.0 == "PUT" { body.as_str() } else { "" };
        let headers = format!("host: {}\r\n{headers}{JSON}", bench.address);
        Answer::to(self.connect(bench.address, whose), what, &headers, body)
    }

    /// Returns a certificate's fingerprint, as `openssl` prints it.
    fn fingerprint(&self, whose: &str) -> String {
        let mut openssl = Command::new("openssl");
        openssl.args(["x509", "-noout", "-fingerprint", "-sha256", "-in"]);
        let said = openssl.arg(self.path(whose, "certificate.pem")).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        said.trim().rsplit_once('=').unwrap().1.to_owned()
    }
}

/// Bears promise 8 over TLS: an admin's certificate is as good as the token, nobody else's is
/// anything, and what was done with it says so.
#[test]
fn client_certificate_makes_an_admin() {
    let certificates = Certificates::new();
    let bench = Bench::with(|disk| {
        let log = disk.join("audit.jsonl");
        let tls = certificates.tls(Some("admin"));
        format!("{}{tls}[audit]\npath = {log:?}\n", token(disk, 0o600))
    });
    let status = ("GET", "/api/v1/status");
    // Nobody is spoken to outside of it.
    let mut plain = TcpStream::connect(bench.address).unwrap();
    let _ = plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said);
    assert!(!said.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&said));
    // Without a certificate it is as without TLS.
    assert_eq!(certificates.ask(&bench, None, ("GET", "/healthz"), "").status, 200);
    certificates.ask(&bench, None, status, "").assert_problem(401, "PermissionDenied");
    assert_eq!(certificates.ask(&bench, None, status, &bearer(TOKEN)).status, 200);
    // With one.
    assert_eq!(certificates.ask(&bench, Some("admin"), status, "").status, 200);
    let put = ("PUT", "/api/v1/tiers/ram");
    assert_eq!(certificates.ask(&bench, Some("admin"), put, "").status, 200);
    let guess = certificates.ask(&bench, Some("admin"), status, &bearer("guess"));
    guess.assert_problem(401, "PermissionDenied");
    let page = format!("origin: https://evil.example\r\n{}", bearer(TOKEN));
    certificates.ask(&bench, Some("admin"), status, &page).assert_problem(403, "PermissionDenied");
    // Others' are worse than none.
    for whose in ["stranger", "self", "late", "daemon"] {
        let mut stream = certificates.connect(bench.address, Some(whose));
        let _ = stream
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(said.is_empty(), "{whose}: {}", String::from_utf8_lossy(&said));
    }
    let told = || -> Vec<Value> {
        let text = fs::read_to_string(bench.disk.path().join("audit.jsonl")).unwrap();
        let (whole, _) = text.rsplit_once('\n').unwrap_or_default();
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let is = |line: &Value, event: &str, outcome: &str| {
        line["event"] == event && line["outcome"] == outcome
    };
    eventually("who was turned away is noted", || {
        let lines = told();
        lines.iter().filter(|line| is(line, "connect", "denied")).count() == 4
    });
    let lines = told();
    let done = lines.iter().find(|line| is(line, "tier", "done")).unwrap();
    assert_eq!(done["certificate"], certificates.fingerprint("admin"), "{done}");
    assert!(done["by"].as_str().unwrap().starts_with("127.0.0.1:"), "{done}");
}

/// An authority that is not named makes no admin: certificates are not even asked for.
#[test]
fn token_alone_makes_an_admin_without_client_ca() {
    let certificates = Certificates::new();
    let bench = Bench::with(|disk| format!("{}{}", token(disk, 0o600), certificates.tls(None)));
    let status = ("GET", "/api/v1/status");
    for whose in [None, Some("admin")] {
        assert_eq!(certificates.ask(&bench, whose, status, &bearer(TOKEN)).status, 200);
        certificates.ask(&bench, whose, status, "").assert_problem(401, "PermissionDenied");
    }
}

#[test]
fn daemon_rejects_invalid_tls_files() {
    let certificates = Certificates::new();
    let refused = |http: &str, tls: &str, words: &str| {
        let disk = Daemon::disk();
        let installation = installation(disk.path(), &format!("{http}{tls}"));
        let config = disk.path().join("forebay.toml");
        let mut command = installation.forebay(&["daemon", "--config", config.to_str().unwrap()]);
        let ended = command.output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(!ended.status.success() && said.contains(words), "{words}: {said}");
    };
    let http = "http = '127.0.0.1:0'\n";
    let good = certificates.tls(Some("admin"));
    refused("", &good, "`http`");
    refused(http, &good.replace("/daemon/key.pem", "/admin/key.pem"), "cert=");
    refused(http, &good.replace("/daemon/key.pem", "/none.pem"), "/none.pem)");
    refused(http, &good.replace("/admin/authority.pem", "/admin/extensions"), "client_ca=");
    refused(http, &good.replace("cert = \"/", "cert = \""), "http_tls");
    refused(http, &good.replace("client_ca", "client_CA"), "`client_CA`");
    let open = fs::Permissions::from_mode(0o644);
    fs::set_permissions(certificates.path("daemon", "key.pem"), open).unwrap();
    refused(http, &good, "mode=644");
}

/// Those who never end their handshake are let go, and keep nobody out meanwhile.
#[test]
fn hanging_handshakes_do_not_block_others() {
    let certificates = Certificates::new();
    let bench =
        Bench::with(|disk| format!("{}{}", token(disk, 0o600), certificates.tls(Some("admin"))));
    let connect = |_| TcpStream::connect(bench.address).unwrap();
    let mut hanging: Vec<_> = (0..HANGING).map(connect).collect();
    for (at, socket) in hanging.iter_mut().enumerate() {
        // Nothing, or the beginning of a first message.
        let sent = [&b""[..], b"\x16", b"\x16\x03\x01\x02\x00\x01"];
        let _ = socket.write_all(sent[at % sent.len()]);
    }
    assert_eq!(certificates.ask(&bench, Some("admin"), ("GET", "/healthz"), "").status, 200);
    for mut socket in hanging {
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
    }
    assert_eq!(certificates.ask(&bench, None, ("GET", "/healthz"), "").status, 200);
}

/// Connections without a whole request yield to new ones, the oldest first. They are bounded, and
/// closed in the end.
#[test]
fn hanging_connections_do_not_block_others() {
    let bench = Bench::new();
    let connect = |_| TcpStream::connect(bench.address).unwrap();
    let mut hanging: Vec<_> = (0..HANGING).map(connect).collect();
    for (at, socket) in hanging.iter_mut().enumerate() {
        let sent = [
            "",
            "G",
            "GET /healthz HTTP/1.1\r\nhost: loc",
            "POST /api/v1/checks HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n",
        ];
        let _ = socket.write_all(sent[at % sent.len()].as_bytes());
    }
    assert_eq!(bench.ask(("GET", "/healthz"), "", "").status, 200);
    // The deadline of a request's head closes none of these before all older ones.
    let newest = hanging.iter_mut().enumerate().skip(HANGING - CONNECTIONS / 2);
    for (at, socket) in newest.filter(|(at, _)| at % 4 != 3) {
        socket.set_nonblocking(true).unwrap();
        let read = socket.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(read, Err(ErrorKind::WouldBlock), "{at}");
        socket.set_nonblocking(false).unwrap();
    }
    // In the end each of them is closed by the daemon.
    for mut socket in hanging {
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
    }
    assert_eq!(bench.ask(("GET", "/healthz"), "", "").status, 200);
}

/// A fuzzer that reads the document finds nothing that is answered otherwise than it says.
#[test]
fn served_answers_match_the_openapi_document() {
    let bench = Bench::new();
    let config = bench.disk.path().join("schemathesis.toml");
    // What a daemon cannot do now it says by 503 and 507; what no schema can refuse, by 422.
    let expected = "[checks.not_a_server_error]\nexpected-statuses = ['2xx', '3xx', '4xx', 503, 507]\n\
         [checks.positive_data_acceptance]\n\
         expected-statuses = ['2xx', 401, 403, 404, 409, 422, 503, 507]\n";
    fs::write(&config, expected).unwrap();
    let mut fuzzer = Command::new(tool("schemathesis/bin/schemathesis").unwrap());
    fuzzer.arg("--config-file").arg(&config).arg("run");
    fuzzer.arg(format!("http://{}/api/v1/openapi.json", bench.address));
    fuzzer.args(["--header", &format!("Authorization: Bearer {TOKEN}")]);
    fuzzer.args(["--max-examples", EXAMPLES, "--generation-deterministic", "--no-color"]);
    fuzzer.args(["--request-timeout", "30"]);
    fuzzer.args(["--phases", "examples,coverage,fuzzing", "--suppress-health-check", "all"]);
    let ended = fuzzer.current_dir(bench.disk.path()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{said}{}", String::from_utf8_lossy(&ended.stderr));
    println!("{}", said.lines().rev().take(12).collect::<Vec<_>>().join("\n"));
    assert_eq!(bench.ask(("GET", "/healthz"), "", "").status, 200);
    assert!(!bench.daemon.log().contains("panicked"), "{}", bench.daemon.log());
}
