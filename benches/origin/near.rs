//! Servers on loopback.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_source::Options;
use forebay_store::PART_BYTES;
use forebay_testkit::{ACCESS_KEY, Bucket, Ceph, Fault, FaultProxy, Nginx, SECRET_KEY, When};
use serde_json::{Value, json};

use crate::contest::{contest, spread};
use crate::far::{far_end, is_over_a_link};
use crate::rivals::Object;
use crate::run::Fresh;
use crate::{BUCKET, Bench, KEY};

/// Lifetime of the links that let tools read without keys.
const LINK_SECONDS: u64 = 3600;

/// Readers of the same shards.
const RANKS: usize = 8;
/// Shards that they read.
const SHARDS: usize = 4;

/// Parts of a thousand that come late, by so many times what one takes.
const LATE_MILLE: u64 = 10;
const LATE_BY: u32 = 100;

/// Shards for a 95th percentile.
const TAIL_SHARDS: usize = 20;

/// An object of a web server.
pub(crate) fn on_the_web(base: &str, bytes: u64) -> Object {
    Object {
        link: format!("{base}/{BUCKET}/{KEY}"),
        rclone: format!(":http,url='{base}':{BUCKET}/{KEY}"),
        environment: BTreeMap::new(),
        bytes,
    }
}

fn options(address: SocketAddr, (access, secret): (&str, &str)) -> Options {
    Options::default()
        .with("AWS_ENDPOINT_URL", &format!("http://{address}"))
        .with("AWS_ACCESS_KEY_ID", access)
        .with("AWS_SECRET_ACCESS_KEY", secret)
}

fn in_a_bucket(address: SocketAddr, keys: (&str, &str), bytes: u64) -> Object {
    let link = Bucket::open(address, BUCKET, keys).unwrap().link(KEY, LINK_SECONDS).unwrap();
    let set = |name: &str, value: &str| (format!("RCLONE_S3_{name}"), value.to_owned());
    let environment = BTreeMap::from([
        set("PROVIDER", "Other"),
        set("ENDPOINT", &format!("http://{address}")),
        set("ACCESS_KEY_ID", keys.0),
        set("SECRET_ACCESS_KEY", keys.1),
    ]);
    Object { link, rclone: format!(":s3:{BUCKET}/{KEY}"), environment, bytes }
}

/// Cold fetches.
pub(crate) fn cold(bench: &Bench) -> Value {
    let mut told = serde_json::Map::new();
    let nginx = Nginx::start(bench.root.path()).unwrap();
    let object = on_the_web(&nginx.http(), bench.bytes);
    println!(" http from nginx");
    told.insert("http_nginx".into(), contest(bench, &object.link, &Options::default(), &object));
    let url = format!("s3://{BUCKET}/{KEY}");
    // It looks at no signature: the tools are spared theirs.
    println!(" s3 from nginx");
    let signed = options(nginx.address(), (ACCESS_KEY, SECRET_KEY));
    told.insert("s3_nginx".into(), contest(bench, &url, &signed, &object));
    drop(nginx);
    if let Some(missing) = Ceph::missing() {
        println!(" s3 from Ceph: not measured without {}", missing.name());
        return Value::Object(told);
    }
    println!(" s3 from Ceph");
    let ceph = Ceph::start().unwrap();
    let keys = (Ceph::ACCESS_KEY, Ceph::SECRET_KEY);
    let shard = std::fs::read(bench.root.path().join(BUCKET).join(KEY)).unwrap();
    Bucket::make(ceph.gateway(), BUCKET, keys).unwrap().put(KEY, &shard).unwrap();
    drop(shard);
    let object = in_a_bucket(ceph.gateway(), keys, bench.bytes);
    told.insert("s3_ceph".into(), contest(bench, &url, &options(ceph.gateway(), keys), &object));
    Value::Object(told)
}

/// Names of further shards with the same bytes.
pub(crate) fn more(bench: &Bench, count: usize) -> Vec<String> {
    let folder = bench.root.path().join(BUCKET);
    let make = |n| {
        let name = format!("{n}.tar");
        // A file of its own in name only: servers read the same pages.
        drop(std::fs::hard_link(folder.join(KEY), folder.join(&name)));
        name
    };
    (0..count).map(make).collect()
}

/// Seconds that a tool takes for the first part, on a connection of its own.
pub(crate) fn part_by_curl(url: &str) -> f64 {
    let begin = Instant::now();
    let part = Command::new("curl")
        .args(["--silent", "--fail", "--output", "/dev/null", "--range"])
        .arg(format!("0-{}", PART_BYTES - 1))
        .arg(url)
        .status();
    assert!(part.unwrap().success());
    begin.elapsed().as_secs_f64()
}

/// Eight readers that want the same shards at once.
pub(crate) fn ranks(bench: &Bench) -> Value {
    let nginx = Nginx::start(bench.root.path()).unwrap();
    let proxy = FaultProxy::start(nginx.address()).unwrap();
    let shards = more(bench, SHARDS);
    let fresh = Fresh::open(&bench.directory);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let (fresh, shards, proxy) = (&fresh, &shards, &proxy);
            scope.spawn(move || {
                for n in 0..SHARDS {
                    // Each begins elsewhere, so that all are wanted at once.
                    let name = &shards[(n + rank) % SHARDS];
                    let url = format!("{}/{BUCKET}/{name}", proxy.endpoint());
                    fresh.runtime.block_on(async {
                        let urgency = forebay_store::Urgency::Needed;
                        let options = Options::default();
                        let lease = fresh.store.shard(&url, &options, urgency).await.unwrap();
                        lease.wait(u64::MAX).await.unwrap();
                    });
                }
            });
        }
    });
    let (passed, set) = (proxy.traffic().all_bytes(), bench.bytes * SHARDS as u64);
    println!(
        "  {RANKS} readers: {passed} bytes of {set} passed, in {:.2} s",
        begin.elapsed().as_secs_f64()
    );
    json!({ "readers": RANKS, "origin_bytes": passed, "data_set_bytes": set })
}

/// Shards of which some parts come late.
pub(crate) fn tail(bench: &Bench) -> Value {
    let nginx = match is_over_a_link() {
        true => far_end(bench).nginx,
        false => Nginx::start(bench.root.path()).unwrap(),
    };
    let proxy = FaultProxy::start(nginx.address()).unwrap();
    let shards = more(bench, TAIL_SHARDS);
    let play = || {
        let mut seconds: Vec<f64> = Vec::new();
        for name in &shards {
            let fresh = Fresh::open(&bench.directory);
            let begin = Instant::now();
            fresh.fetch(&format!("{}/{BUCKET}/{name}", proxy.endpoint()), &Options::default());
            seconds.push(begin.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        seconds
    };
    let passed = || proxy.traffic().all_bytes();
    let undisturbed = play();
    let url = format!("{}/{BUCKET}/{KEY}", proxy.endpoint());
    let parts = (0..bench.rounds).map(|_| part_by_curl(&url)).collect();
    let late = Duration::from_secs_f64(spread(parts)[0]) * LATE_BY;
    let before = passed();
    proxy.set([(When::get().share(LATE_MILLE, 1), Fault::Delay(late))]);
    let disturbed = play();
    let more = passed() - before;
    let hit = proxy.traffic().faults;
    let excess = more as f64 / (bench.bytes * TAIL_SHARDS as u64) as f64 - 1.0;
    let p95 = |sorted: &[f64]| sorted[(sorted.len() * 95).div_ceil(100) - 1];
    let ratio = p95(&disturbed) / p95(&undisturbed);
    println!(
        "  p95 of {TAIL_SHARDS} shards: undisturbed {:.3} s, with {} of 1000 requests, which were {hit}, {:.3} s late {:.3} s: {ratio:.2}; {:.2} % more bytes",
        p95(&undisturbed),
        LATE_MILLE,
        late.as_secs_f64(),
        p95(&disturbed),
        excess * 100.0
    );
    json!({
        "undisturbed_seconds": undisturbed, "disturbed_seconds": disturbed,
        "late_by_seconds": late.as_secs_f64(), "ratio_of_p95": ratio, "excess_bytes": excess,
        "part_bytes": PART_BYTES, "late_requests": hit,
    })
}
