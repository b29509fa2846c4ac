//! Lists on a real Redis and a real Valkey server.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_cluster::{MAX_MEMBERS, Ring};
use forebay_config::settings::MembersSource;
use forebay_error::ErrorKind;
use forebay_members::Members;
use forebay_redis::Server;
use forebay_testkit::Redis;
use redis::{FromRedisValue, cmd};
use tokio::sync::watch::Receiver;

use super::nodes::{Neighbours, has, member, names, reports, start};

/// The set of the group.
const SET: &str = "forebay:{pool}:members";

macro_rules! on_both_servers {
    ($($behaviour:ident)*) => {
        mod redis_server {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::Redis::start().unwrap()).await;
            })*
        }

        mod valkey_server {
            $(#[tokio::test]
            async fn $behaviour() {
                super::$behaviour(super::Redis::valkey().unwrap()).await;
            })*
        }
    };
}

on_both_servers! {
    nodes_find_each_other
    silent_node_is_forgotten
    lost_server_changes_nothing
    hanging_server_changes_nothing
    foreign_entries_are_left_out
    foreign_key_is_reported
    too_long_list_is_rejected
    nodes_of_one_name_are_reported_by_address
    node_with_another_address_replaces_itself
    entry_of_the_future_expires
}

fn source(server: &Redis) -> MembersSource {
    MembersSource::Redis(server.url())
}

/// A node whose address ends in `number`.
async fn node(server: &Redis, name: &str, number: u8) -> Members {
    start(source(server), member(name, &format!("10.0.0.{number}:9481"))).await.unwrap()
}

async fn run<T: FromRedisValue>(server: &Redis, arguments: &[&str]) -> T {
    let server = Server::new(&server.url()).unwrap();
    let mut command = cmd(arguments[0]);
    command.arg(&arguments[1..]);
    command.query_async(&mut server.connection()).await.unwrap()
}

/// Milliseconds since 1970 by the server's clock, which is this machine's.
fn now() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()
}

/// Sizes of a ring, from now until nobody follows its list.
async fn sizes(mut changed: Receiver<Arc<Ring>>) -> Vec<usize> {
    let mut sizes = vec![changed.borrow_and_update().members().len()];
    while changed.changed().await.is_ok() {
        sizes.push(changed.borrow_and_update().members().len());
    }
    sizes
}

async fn nodes_find_each_other(server: Redis) {
    let a = node(&server, "a", 1).await;
    has(&a, &["a"]).await;
    let b = node(&server, "b", 2).await;
    has(&b, &["a", "b"]).await;
    has(&a, &["a", "b"]).await;
    assert_eq!(a.ring(), b.ring());
    let report = a.report();
    assert!(report.is_listed && !report.is_frozen && report.last_error.is_none(), "{report:?}");
    // Another group is another cluster.
    let own = member("c", "10.0.0.3:9481");
    let greet = Arc::new(Neighbours::default());
    let c = Members::start(source(&server), own, "other", greet).await.unwrap();
    has(&c, &["c"]).await;
    b.leave().await.unwrap();
    has(&a, &["a"]).await;
    // Who leaves follows the list on.
    has(&b, &["a"]).await;
    assert!(!b.report().is_listed && a.report().is_listed);
    // And may come back.
    b.join().await.unwrap();
    has(&a, &["a", "b"]).await;
    has(&b, &["a", "b"]).await;
    assert!(b.report().is_listed);
}

async fn silent_node_is_forgotten(server: Redis) {
    let a = node(&server, "a", 1).await;
    let b = node(&server, "b", 2).await;
    has(&a, &["a", "b"]).await;
    drop(b);
    has(&a, &["a"]).await;
}

/// The server comes back without its data: each node stays a member for the others.
async fn lost_server_changes_nothing(mut server: Redis) {
    let (a, b) = (node(&server, "a", 1).await, node(&server, "b", 2).await);
    has(&a, &["a", "b"]).await;
    has(&b, &["a", "b"]).await;
    let seen = [&a, &b].map(|node| tokio::spawn(sizes(node.changed())));
    server.stop();
    for node in [&a, &b] {
        let report = reports(node, |report| report.is_frozen).await;
        assert!(report.last_error.is_some() && report.is_listed, "{report:?}");
    }
    server.restart().unwrap();
    for node in [&a, &b] {
        reports(node, |report| !report.is_frozen).await;
    }
    let c = node(&server, "c", 3).await;
    for node in [&a, &b, &c] {
        has(node, &["a", "b", "c"]).await;
    }
    drop((a, b));
    for seen in seen {
        assert_eq!(seen.await.unwrap(), [2, 3]);
    }
}

/// The server accepts connections and answers nobody for longer than anybody waits.
async fn hanging_server_changes_nothing(server: Redis) {
    let (a, b) = (node(&server, "a", 1).await, node(&server, "b", 2).await);
    has(&a, &["a", "b"]).await;
    let seen = tokio::spawn(sizes(a.changed()));
    run::<()>(&server, &["CLIENT", "PAUSE", "12000", "ALL"]).await;
    reports(&a, |report| report.is_frozen && report.members.len() == 2).await;
    reports(&a, |report| !report.is_frozen).await;
    drop((a, b));
    assert_eq!(seen.await.unwrap(), [2]);
}

async fn foreign_entries_are_left_out(server: Redis) {
    let score = now().to_string();
    let long = "x".repeat(2000);
    for entry in ["nonsense", "{\"name\":\"n\"}", &long] {
        run::<()>(&server, &["ZADD", SET, &score, entry]).await;
    }
    let bad = r#"{"name":"no/de","address":"h:1","slots":1}"#;
    run::<()>(&server, &["ZADD", SET, &score, bad]).await;
    let more = r#"{"name":"b","address":"h:1","slots":1,"rack":"r7"}"#;
    run::<()>(&server, &["ZADD", SET, &score, more]).await;
    let a = node(&server, "a", 1).await;
    has(&a, &["a", "b"]).await;
    let report = a.report();
    assert_eq!((report.left_out, report.is_frozen), (4, false), "{report:?}");
}

async fn foreign_key_is_reported(server: Redis) {
    run::<()>(&server, &["SET", SET, "something else"]).await;
    let a = node(&server, "a", 1).await;
    let report = a.report();
    assert!(report.is_frozen && report.members.is_empty(), "{report:?}");
    assert!(report.last_error.unwrap().contains(SET));
    run::<()>(&server, &["DEL", SET]).await;
    has(&a, &["a"]).await;
    assert_eq!(a.report().last_error, None);
}

async fn too_long_list_is_rejected(server: Redis) {
    let a = node(&server, "a", 1).await;
    let score = now().to_string();
    let entries: Vec<_> = (0..MAX_MEMBERS)
        .map(|n| format!(r#"{{"name":"n{n}","address":"h:1","slots":1}}"#))
        .collect();
    let mut command = vec!["ZADD", SET];
    command.extend(entries.iter().flat_map(|entry| [score.as_str(), entry.as_str()]));
    run::<()>(&server, &command).await;
    let report = reports(&a, |report| report.is_frozen).await;
    assert_eq!((names(&a.ring()), report.is_listed), (vec!["a"], true), "{report:?}");
}

async fn nodes_of_one_name_are_reported_by_address(server: Redis) {
    let b = node(&server, "b", 1).await;
    let first = node(&server, "a", 2).await;
    has(&b, &["a", "b"]).await;
    let second = node(&server, "a", 3).await;
    for node in [&b, &first, &second] {
        let report = reports(node, |report| report.is_frozen).await;
        let error = report.last_error.unwrap();
        assert!(error.contains("10.0.0.2:9481") && error.contains("10.0.0.3:9481"), "{error}");
        assert_eq!(names(&node.ring()), ["a", "b"]);
    }
}

/// A node that was killed comes back at another address, before its entry expires.
async fn node_with_another_address_replaces_itself(server: Redis) {
    let b = node(&server, "b", 1).await;
    drop(node(&server, "a", 2).await);
    has(&b, &["a", "b"]).await;
    let again = node(&server, "a", 3).await;
    assert_eq!(again.ring().member("a").unwrap().address, "10.0.0.3:9481");
    let is_there = |members: &Members| members.ring().member("a").unwrap().address.clone();
    let report = reports(&b, |_| is_there(&b) == "10.0.0.3:9481").await;
    assert!(!report.is_frozen, "{report:?}");
}

/// The server's clock was set back: what it wrote before expires all the same.
async fn entry_of_the_future_expires(server: Redis) {
    let later = (now() + Duration::from_secs(3600).as_millis()).to_string();
    let entry = r#"{"name":"b","address":"h:1","slots":1}"#;
    run::<()>(&server, &["ZADD", SET, &later, entry]).await;
    let a = node(&server, "a", 1).await;
    let scores: Vec<(String, f64)> = run(&server, &["ZRANGE", SET, "0", "-1", "WITHSCORES"]).await;
    let latest = now() as f64;
    assert!(scores.iter().all(|(_, score)| *score <= latest), "{scores:?}");
    let entries: HashSet<_> = scores.into_iter().map(|(entry, _)| entry).collect();
    assert!(entries.contains(entry), "{entries:?}");
    has(&a, &["a"]).await;
}

#[tokio::test]
async fn wrong_password_is_reported_without_being_shown() {
    let server = Redis::with_password("right").unwrap();
    for url in [server.url(), server.url_with("hunter2")] {
        let own = member("a", "10.0.0.1:9481");
        let a = start(MembersSource::Redis(url.clone()), own).await.unwrap();
        let report = a.report();
        assert!(report.is_frozen && report.members.is_empty(), "{report:?}");
        assert!(!format!("{report:?}").contains("hunter2"), "{report:?}");
        let server = Server::new(&url).unwrap();
        let error = cmd("PING").query_async::<()>(&mut server.connection()).await.unwrap_err();
        let error = server.failed(&error);
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    let own = member("a", "10.0.0.1:9481");
    let a = start(MembersSource::Redis(server.url_with("right")), own).await.unwrap();
    has(&a, &["a"]).await;
}

#[tokio::test]
async fn node_starts_without_its_server() {
    let mut server = Redis::start().unwrap();
    server.stop();
    let a = node(&server, "a", 1).await;
    let report = a.report();
    assert!(report.is_frozen && report.members.is_empty() && !report.is_listed, "{report:?}");
    server.restart().unwrap();
    has(&a, &["a"]).await;
}

#[tokio::test]
async fn invalid_address_is_an_error_at_the_start() {
    let own = member("a", "10.0.0.1:9481");
    let error = start(MembersSource::Redis("h:6379".to_owned()), own).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}
