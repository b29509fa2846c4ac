//! Stores a daemon reads for each user, and patterns in their requests.

use std::fs;
use std::net::ToSocketAddrs;
use std::process::Command;

use forebay_client::{Connection, Deadline};
use forebay_error::ErrorKind;
use forebay_shard::Manifest;
use forebay_source::{Rule, Rules};
use forebay_testkit::{ACCESS_KEY, Nginx, Requirement, SECRET_KEY, skip};
use forebay_tests::{Daemon, Origin, PATIENCE, UserHome, epoch, job, reported_error};
use tempfile::TempDir;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 3_000..3_001;
const SAMPLES: u64 = 4;

/// More than one message holds.
const MANY: usize = 5_000;

#[test]
fn daemon_lists_more_than_one_message_holds() {
    let (origin, disk) = (Origin::new(), Daemon::disk());
    fs::create_dir(origin.path("many")).unwrap();
    for n in 0..MANY {
        fs::write(origin.path(&format!("many/{n:05}.tar")), b"").unwrap();
    }
    let daemon = Daemon::start(disk.path());
    let deadline = Deadline::after(PATIENCE);
    let connection = Connection::open(daemon.socket(), &deadline).unwrap();
    let list = |pattern: &str| {
        connection.list(pattern, origin.environment(), &deadline).map(|(urls, _)| urls)
    };
    let listed = list("s3://bucket/many/0*.tar").unwrap();
    let all: Vec<_> = (0..MANY).map(|n| Origin::url(&format!("many/{n:05}.tar"))).collect();
    assert_eq!(listed, all);
    // The connection is good for more, whatever came of it.
    assert_eq!(list("s3://bucket/many/1*.tar").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(list("s3://bucket/many/00000.t?r").unwrap(), all[..1]);
}

/// The command line of a user with nothing but a profile in their home.
#[test]
fn patterns_keep_order_and_use_the_jobs_profile() {
    let origin = Origin::with_shards(5, SAMPLES, &SIZES);
    let (home, folder) = (UserHome::new(ACTOR), TempDir::new().unwrap());
    let aws = folder.path().join(".aws");
    fs::create_dir(&aws).unwrap();
    let keys = format!("aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n");
    fs::write(aws.join("credentials"), format!("[train]\n{keys}")).unwrap();
    let manifest = folder.path().join("m.json");
    let index = |spec: &str| -> Command {
        let mut command = home.forebay(&["index", spec, "-o", manifest.to_str().unwrap()]);
        command
            .env("HOME", folder.path())
            .env("AWS_PROFILE", "train")
            .env("AWS_ENDPOINT_URL", origin.server.endpoint());
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CONFIG_FILE"] {
            command.env_remove(name);
        }
        command
    };
    let spec = "s3://bucket/3.tar::s3://bucket/[0-1].tar::s3://bucket/2.tar";
    let done = index(spec).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let read = Manifest::read(&manifest).unwrap();
    let order: Vec<_> = read.shards().iter().map(|shard| shard.url.as_str()).collect();
    let wanted: Vec<_> = [3, 0, 1, 2].map(|n| Origin::url(&format!("{n}.tar"))).to_vec();
    assert_eq!(order, wanted);
    let none = index("s3://bucket/none-*.tar").output().unwrap();
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert_eq!(none.status.code(), Some(1), "{said}");
    assert_eq!(reported_error(&said).kind(), ErrorKind::NotFound, "{said}");
    assert!(said.contains("none-*.tar"), "{said}");
    // Without the profile, the daemon that runs has none for this job, though it had for the
    // others.
    let denied = index("s3://bucket/4.tar").env_remove("AWS_PROFILE").output().unwrap();
    assert_eq!(denied.status.code(), Some(4), "{}", String::from_utf8_lossy(&denied.stderr));
}

#[test]
fn node_reads_only_stores_its_sources_name() {
    let (origin, disk) = (Origin::with_shards(2, SAMPLES, &SIZES), Daemon::disk());
    let mut rule = Rule::new("s3://bucket/").unwrap();
    rule.endpoint = Some(origin.server.endpoint());
    let mut config = Daemon::config(disk.path(), 1 << 20);
    config.sources = Rules::new(vec![rule]).unwrap();
    let daemon = Daemon::try_start(config).unwrap();
    let mut open = job(&origin, Origin::urls(2));
    // It is the administrator who says where.
    open.origin.insert("AWS_ENDPOINT_URL".to_owned(), "http://127.0.0.1:1".to_owned());
    assert_eq!(epoch(daemon.address(), open.clone()).unwrap().samples.len(), 2 * SAMPLES as usize);
    // A file is read as the job's own process opens it, whatever the rules.
    open.urls = vec![origin.path("0.tar").to_str().unwrap().to_owned()];
    assert_eq!(epoch(daemon.address(), open.clone()).unwrap().samples.len(), SAMPLES as usize);
    for url in ["s3://elsewhere/0.tar", "http://169.254.169.254/0.tar"] {
        open.urls = vec![url.to_owned()];
        let error = epoch(daemon.address(), open.clone()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains("[[source]]"), "{error}");
    }
}

/// Addresses of the node's own machine are reached through a rule only: not without one, and by no
/// detour.
#[test]
fn node_connects_to_itself_only_by_a_source_rule() {
    let (named, other) = (TempDir::new().unwrap(), Origin::with_shards(1, SAMPLES, &SIZES));
    fs::create_dir(named.path().join("bucket")).unwrap();
    fs::write(named.path().join("bucket/0.tar"), other.bytes("0.tar")).unwrap();
    let target = format!("{}/bucket/", other.server.endpoint());
    let named = Nginx::leading(named.path(), "/elsewhere/", &target).unwrap();
    let played = |rules: Rules, url: &str, origin: &Origin| {
        let disk = Daemon::disk();
        let mut config = Daemon::config(disk.path(), 1 << 20);
        config.sources = rules;
        let daemon = Daemon::try_start(config).unwrap();
        let mut open = job(origin, vec![url.to_owned()]);
        open.patience_ms = 0;
        epoch(daemon.address(), open).map(|epoch| epoch.samples.len() as u64)
    };
    let none = || Rules::new(Vec::new()).unwrap();
    let one = || Rules::new(vec![Rule::new(&format!("{}/", named.http())).unwrap()]).unwrap();
    let direct = format!("{}/bucket/0.tar", named.http());
    let led = format!("{}/elsewhere/0.tar", named.http());
    let port = other.server.address().port();
    // A name of this machine's that is none of those that are known as such.
    let by_name = format!("http://ip6-localhost:{port}/bucket/0.tar");
    let resolves = ("ip6-localhost", port).to_socket_addrs().is_ok();
    assert_eq!(played(one(), &direct, &other).unwrap(), SAMPLES);
    let before = other.server.counts().requests;
    let mut refused = vec![
        (none(), direct.as_str(), "no rule at all"),
        (none(), "s3://bucket/0.tar", "an endpoint of a job's"),
        (one(), led.as_str(), "a redirect of a server that is named"),
    ];
    if resolves {
        refused.push((none(), by_name.as_str(), "a name"));
    } else {
        skip(Requirement::SecondName, "ip6-localhost is unknown");
    }
    for (rules, url, what) in refused {
        let error = played(rules, url, &other).err().unwrap_or_else(|| panic!("{what}"));
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{what}: {error}");
        assert!(error.to_string().contains("[[source]]"), "{what}: {error}");
    }
    assert_eq!(other.server.counts().requests, before, "it was never asked");
    // A user's own daemon goes where its user goes.
    for url in [direct.as_str(), led.as_str(), "s3://bucket/0.tar"] {
        assert_eq!(played(Rules::default(), url, &other).unwrap(), SAMPLES, "{url}");
    }
}
