//! `forebay doctor` as scripts and people see it: its document, its exit codes, its side effects.
//!
//! Only facts that hold on every machine are asserted.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use forebay_error::ErrorKind;
use forebay_testkit::{Nginx, shard};
use forebay_tests::{Daemon, UserHome, reported_error};
use serde_json::Value;
use tempfile::TempDir;

use crate::ACTOR;

/// Result of a run.
struct Looked {
    code: i32,
    out: String,
    err: String,
}

/// Checks of every machine.
const OF_THE_MACHINE: [&str; 13] = [
    "config",
    "io_uring",
    "memlock",
    "huge_pages",
    "memory",
    "cgroup_memory",
    "cgroup_cpu",
    "cgroup_pids",
    "descriptors",
    "socket",
    "programs",
    "certificates",
    "clock",
];

/// Checks of each tier on a disk.
const OF_A_TIER: [&str; 5] = ["directory", "file_system", "space", "disk", "direct_io"];

fn look(home: &UserHome, arguments: &[&str]) -> Looked {
    let mut command = home.forebay(&[&["doctor"], arguments].concat());
    let output = command.env_remove("FOREBAY_IO").stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Looked {
        code: output.status.code().unwrap(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// The document, after what holds of every one.
fn document(looked: &Looked) -> Value {
    let document: Value = serde_json::from_str(&looked.out).unwrap();
    assert_eq!(document["release"], env!("CARGO_PKG_VERSION"));
    let checks = document["checks"].as_array().unwrap();
    for verdict in ["ok", "warn", "wrong", "skipped"] {
        let count = checks.iter().filter(|check| check["verdict"] == verdict).count();
        assert_eq!(document["counts"][verdict], count, "{verdict}");
    }
    let mut counted = 0;
    for check in checks {
        counted += 1;
        assert!(check["check"].is_string() && !check["found"].as_str().unwrap().is_empty());
        let to_mend = ["warn", "wrong"].map(Value::from).contains(&check["verdict"]);
        assert_eq!(to_mend, check["mend"].is_string(), "{check}");
        assert!(!check["found"].as_str().unwrap().contains('\n'), "one line: {check}");
    }
    let counts = document["counts"].as_object().unwrap().values();
    assert_eq!(counts.filter_map(Value::as_u64).sum::<u64>(), counted);
    let wrong = document["counts"]["wrong"].as_u64().unwrap();
    assert_eq!(looked.code, i32::from(wrong > 0), "{}", looked.err);
    assert_eq!(looked.err.is_empty(), wrong == 0, "{}", looked.err);
    for name in OF_THE_MACHINE {
        assert!(checks.iter().any(|check| check["check"] == name), "no {name}");
    }
    document
}

/// The one finding of a check, of a tier or of none.
fn finding<'a>(document: &'a Value, check: &str, tier: Option<&str>) -> &'a Value {
    let is_it = |one: &&Value| one["check"] == check && one["tier"].as_str() == tier;
    let mut found = document["checks"].as_array().unwrap().iter().filter(is_it);
    let one = found.next().unwrap_or_else(|| panic!("no {check} of {tier:?} in {document:#}"));
    assert!(found.next().is_none(), "{check} of {tier:?} twice");
    one
}

/// A configuration with one tier in `cache`.
fn config(folder: &Path, socket: &Path, cache: &Path, capacity: &str) -> PathBuf {
    let path = folder.join("forebay.toml");
    let text = format!(
        "[daemon]\nsocket = {socket:?}\nmemory = \"512MiB\"\n\
         [[tier]]\nname = \"nvme0\"\npath = {cache:?}\ncapacity = \"{capacity}\"\n\
         [[tier]]\nname = \"ram\"\nclass = \"memory\"\ncapacity = \"64MiB\"\n"
    );
    fs::write(&path, text).unwrap();
    path
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn doctor_checks_a_private_daemon_and_changes_nothing() {
    let home = UserHome::new(ACTOR);
    let looked = look(&home, &["--json"]);
    let document = document(&looked);
    for check in OF_A_TIER {
        finding(&document, check, Some("cache"));
    }
    assert_eq!(finding(&document, "config", None)["verdict"], "ok");
    assert_eq!(finding(&document, "directory", Some("cache"))["verdict"], "ok");
    assert_ne!(finding(&document, "direct_io", Some("cache"))["verdict"], "skipped");
    let socket = finding(&document, "socket", None);
    assert!(socket["figures"].get("pid").is_none(), "no daemon answers: {socket}");
    assert!(home.daemons().is_empty());
    assert_eq!(names(home.shards().parent().unwrap()), [""; 0]);
}

/// A program of credentials that cannot be started is named, with its profile.
#[test]
fn doctor_checks_programs_of_profiles() {
    let (home, folder) = (UserHome::new(ACTOR), Daemon::disk());
    let (profiles, program) = (folder.path().join("config"), folder.path().join("keys"));
    let text = format!("[profile ml]\ncredential_process = {} --json\n", program.display());
    fs::write(&profiles, text).unwrap();
    let look = |profile: &str| {
        let mut command = home.forebay(&["doctor", "--json"]);
        command.env("AWS_CONFIG_FILE", &profiles).env("AWS_PROFILE", profile);
        let output = command.env_remove("FOREBAY_IO").stdin(Stdio::null()).output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        finding(&document, "programs", None).clone()
    };
    let found = look("ml");
    assert_eq!(found["verdict"], "wrong", "{found}");
    let told = found["found"].as_str().unwrap();
    assert!(told.contains(program.to_str().unwrap()) && told.contains("profile=ml"), "{found}");
    assert_eq!(look("other")["verdict"], "ok");
    fs::write(&program, b"#!/bin/sh\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(look("ml")["verdict"], "wrong", "it cannot be executed");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(look("ml")["verdict"], "ok");
}

#[test]
fn doctor_creates_no_missing_directory() {
    let home = UserHome::new(ACTOR);
    let folder = Daemon::disk();
    let cache = folder.path().join("a/b");
    let document = document(&look(&home, &["--cache", cache.to_str().unwrap(), "--json"]));
    let directory = finding(&document, "directory", Some("cache"));
    assert_eq!(directory["verdict"], "ok");
    // Its nearest folder is named in its stead.
    let found = directory["found"].as_str().unwrap();
    let named = [folder.path(), &cache].map(|path| found.contains(path.to_str().unwrap()));
    assert_eq!(named, [true, false], "{directory}");
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn doctor_uses_the_configuration_and_finds_the_daemon() {
    let disk = Daemon::disk();
    let daemon = Daemon::start(disk.path());
    let (home, folder) = (UserHome::new(ACTOR), Daemon::disk());
    let cache = folder.path().join("cache");
    let path = config(folder.path(), daemon.socket(), &cache, "8MiB");
    let document = document(&look(&home, &["--config", path.to_str().unwrap(), "--json"]));
    let read = finding(&document, "config", None);
    assert_eq!((&read["verdict"], &read["figures"]["tiers"]), (&"ok".into(), &2.into()));
    for check in OF_A_TIER {
        finding(&document, check, Some("nvme0"));
    }
    let space = finding(&document, "space", Some("nvme0"));
    assert_eq!(
        (&space["verdict"], &space["figures"]["capacity_bytes"]),
        (&"ok".into(), &(8 << 20).into())
    );
    let socket = finding(&document, "socket", None);
    assert_eq!(
        (&socket["verdict"], &socket["figures"]["pid"]),
        (&"ok".into(), &std::process::id().into())
    );
    assert!(!cache.exists());
}

/// A node's other sockets, port, token and log are checked if configured, and left as they are.
#[test]
fn doctor_checks_sockets_port_token_and_audit_log() {
    let (home, folder) = (UserHome::new(ACTOR), Daemon::disk());
    let at = |name: &str| folder.path().join(name);
    let path = config(folder.path(), &at("f.sock"), &at("cache"), "8MiB");
    let look = |arguments: &[&str]| {
        let config = ["--config", path.to_str().unwrap(), "--json"];
        document(&look(&home, &[&config, arguments].concat()))
    };
    let checks = ["listen", "http", "token", "audit"];
    let without = look(&[]);
    for one in without["checks"].as_array().unwrap() {
        assert!(!checks.iter().any(|check| one["check"] == *check), "{one}");
    }
    let text = fs::read_to_string(&path).unwrap();
    let daemon = format!("[daemon]\nhttp = '127.0.0.1:0'\ntoken_file = {:?}", at("token"));
    let more = format!(
        "[[listen]]\npath = {:?}\n[audit]\npath = {:?}\n",
        at("pods/f.sock"),
        at("log/audit.jsonl")
    );
    fs::write(&path, text.replace("[daemon]", &daemon) + &more).unwrap();
    let document = look(&[]);
    for (check, verdict) in checks.iter().zip(["ok", "ok", "wrong", "ok"]) {
        assert_eq!(finding(&document, check, None)["verdict"], verdict, "{document:#}");
    }
    assert_eq!(names(folder.path()), ["forebay.toml"]);
}

#[test]
fn doctor_reports_lines_and_exits_with_1() {
    let (home, folder) = (UserHome::new(ACTOR), Daemon::disk());
    let cache = folder.path().join("cache");
    fs::create_dir(&cache).unwrap();
    fs::write(cache.join("thesis.tex"), "dear to somebody").unwrap();
    let socket = folder.path().join("f.sock");
    let path = config(folder.path(), &socket, &cache, "1EiB");
    let arguments = ["--config", path.to_str().unwrap()];
    let looked = look(&home, &[&arguments[..], &["--json"]].concat());
    let document = document(&looked);
    assert_eq!(looked.code, 1);
    let line = |line: u32| format!("{}:{line}", path.display());
    for (check, place) in [("directory", line(6)), ("space", line(7))] {
        let finding = finding(&document, check, Some("nvme0"));
        assert_eq!(finding["verdict"], "wrong", "{finding}");
        assert!(finding["mend"].as_str().unwrap().contains(&place), "{finding}");
    }
    assert_eq!(names(&cache), ["thesis.tex"]);
    let told = look(&home, &arguments);
    assert_eq!(told.code, 1);
    let is_space = |line: &str| ["wrong", "space", "nvme0"].iter().all(|word| line.contains(word));
    assert!(told.out.lines().any(is_space) && told.out.contains(&line(7)), "{}", told.out);
    assert_eq!(reported_error(&told.err).kind(), ErrorKind::Invalid, "{}", told.err);
    let last = told.out.trim_end().lines().last().unwrap();
    let counts = ["ok", "warn", "wrong", "skipped"]
        .map(|verdict| (verdict, document["counts"][verdict].to_string()));
    assert!(counts.iter().all(|(verdict, n)| last.contains(verdict) && last.contains(n)), "{last}");
}

#[test]
fn doctor_checks_the_machine_without_a_configuration() {
    let (home, folder) = (UserHome::new(ACTOR), TempDir::new().unwrap());
    let path = folder.path().join("forebay.toml");
    for text in [None, Some("[[tier]]\nname = 'a'\ncolour = 'red'\n")] {
        if let Some(text) = text {
            fs::write(&path, text).unwrap();
        }
        let looked = look(&home, &["--config", path.to_str().unwrap(), "--json"]);
        let document = document(&looked);
        assert_eq!(looked.code, 1);
        assert_eq!(finding(&document, "config", None)["verdict"], "wrong");
        assert_eq!(finding(&document, "memlock", None)["verdict"], "skipped");
    }
}

#[test]
fn doctor_takes_another_engine_and_a_probe() {
    let home = UserHome::new(ACTOR);
    let document = document(&look(&home, &["--io", "threads", "--probe", "--json"]));
    assert_eq!(finding(&document, "io_uring", None)["verdict"], "skipped");
    assert_eq!(finding(&document, "memlock", None)["verdict"], "skipped");
    let probe = finding(&document, "probe", Some("cache"));
    assert!(probe["figures"]["read_bytes_per_second"].as_f64().unwrap() > 0.0, "{probe}");
    assert_eq!(names(home.shards().parent().unwrap()), [""; 0]);
}

#[test]
fn wrong_usage_exits_with_2_and_help_lists_options() {
    let home = UserHome::new(ACTOR);
    assert_eq!(look(&home, &["--config", "/a", "--cache", "/b"]).code, 2);
    assert_eq!(look(&home, &["--io", "magic"]).code, 2);
    let help = look(&home, &["--help"]);
    assert_eq!(help.code, 0);
    for word in ["--config", "--probe", "sudo -u", "--json"] {
        assert!(help.out.contains(word), "no {word:?} in {}", help.out);
    }
    assert!(help.out.lines().all(|line| line.chars().count() <= 110), "{}", help.out);
}

/// Without certificates https fails with what mends it, and all else goes on.
#[test]
fn missing_certificates_are_told_by_doctor_and_by_stores() {
    let (home, folder) = (UserHome::new(ACTOR), TempDir::new().unwrap());
    fs::write(folder.path().join("0.tar"), shard(3, 0, &(10..20))).unwrap();
    let server = Nginx::start(folder.path()).unwrap();
    // As a system has them where nobody installed ca-certificates.
    let none = folder.path().join("none");
    fs::create_dir(&none).unwrap();
    let bare = |arguments: &[&str]| {
        let mut command = home.forebay(arguments);
        command.env("SSL_CERT_DIR", &none).env_remove("SSL_CERT_FILE").env_remove("AWS_CA_BUNDLE");
        command.stdin(Stdio::null()).output().unwrap()
    };
    let looked: Value = serde_json::from_slice(&bare(&["doctor", "--json"]).stdout).unwrap();
    let found = finding(&looked, "certificates", None);
    assert_eq!(found["verdict"], "warn", "{found}");
    assert_eq!(found["figures"]["authorities"], 0);
    let manifest = folder.path().join("m.json").display().to_string();
    let index = |root: String| bare(&["index", &format!("{root}/0.tar"), "-o", &manifest]);
    let indexed = index(server.https());
    let error = reported_error(&String::from_utf8(indexed.stderr).unwrap());
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(error.place("check"), Some("authorities"), "{error}");
    assert_eq!(error.place("ssl_cert_dir"), none.to_str(), "{error}");
    assert!(index(server.http()).status.success());
}
