//! Four nodes that share their caches.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use forebay_client::{Loader, Next};
use forebay_config::settings::NodeConfig;
use forebay_error::ErrorKind;
use forebay_peers::{Fallback, PeerReport};
use forebay_source::{Options, Rule, Rules};
use forebay_store::{Dataset, Evict, TierReport};
use forebay_testkit::shard;
use forebay_tests::{
    ClusterFiles, Daemon, Epoch, Flaw, Origin, cached_file, config, epoch, eventually, flip,
    job_with, next,
};
use forebay_wire::message::{Begin, Open};
use tempfile::TempDir;

const NODES: usize = 4;
const SHARDS: u64 = 24;
const SAMPLES: u64 = 20;
const SIZES: std::ops::Range<usize> = 30_000..30_001;

/// Nodes of a cluster, and their origin.
struct Bench {
    origin: Origin,
    files: ClusterFiles,
    nodes: Vec<Option<Daemon>>,
    disks: Vec<TempDir>,
    data_bytes: u64,
}

impl Bench {
    fn new() -> Self {
        Self::make(|_| {}, |_, _| {})
    }

    fn with(change: impl Fn(&mut NodeConfig, &Origin)) -> Self {
        Self::make(|_| {}, change)
    }

    fn after(prepare: impl Fn(&ClusterFiles)) -> Self {
        Self::make(prepare, |_, _| {})
    }

    fn make(prepare: impl Fn(&ClusterFiles), change: impl Fn(&mut NodeConfig, &Origin)) -> Self {
        let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
        let data_bytes = (0..SHARDS).map(|n| origin.bytes(&format!("{n}.tar")).len() as u64).sum();
        let disks: Vec<_> = (0..NODES).map(|_| Daemon::disk()).collect();
        let nodes = (0..NODES).map(|_| None).collect();
        let mut bench = Self { origin, files: ClusterFiles::new(NODES), nodes, disks, data_bytes };
        prepare(&bench.files);
        for number in 0..NODES {
            let mut config = bench.config(number);
            change(&mut config, &bench.origin);
            bench.nodes[number] = Some(Daemon::try_start(config).unwrap());
        }
        bench
    }

    fn config(&self, number: usize) -> NodeConfig {
        let disk = self.disks[number].path();
        self.files.config(number, disk, 2 * self.data_bytes, &self.origin)
    }

    fn start(&mut self, number: usize) {
        self.nodes[number] = Some(Daemon::try_start(self.config(number)).unwrap());
    }

    /// Shards that a node owns.
    fn owned(&self, number: usize) -> Vec<u64> {
        let store = self.node(0).node().store();
        let owner = |n: &u64| store.owner(&Origin::url(&format!("{n}.tar"))).unwrap().owner;
        let name = format!("node{number}");
        (0..SHARDS).filter(|n| owner(n).as_deref() == Some(&name)).collect()
    }

    /// Members, as a node sees them.
    fn members(&self, number: usize) -> Vec<PeerReport> {
        self.node(number).node().cluster.as_ref().unwrap().report().members
    }

    fn node(&self, number: usize) -> &Daemon {
        self.nodes[number].as_ref().unwrap()
    }

    fn job(&self, shards: impl IntoIterator<Item = u64>) -> Open {
        let urls = shards.into_iter().map(|n| Origin::url(&format!("{n}.tar"))).collect();
        job_with(std::collections::BTreeMap::new(), urls)
    }

    /// Reads all shards on a node, and compares every byte.
    fn read_all(&self, number: usize) {
        let played = epoch(self.node(number).address(), self.job(0..SHARDS)).unwrap();
        assert_eq!(played.errors, []);
        played.assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    }

    /// Bytes of objects that the origin served.
    fn served(&self) -> u64 {
        (0..SHARDS).map(|n| self.origin.served(&format!("{n}.tar"))).sum()
    }

    fn tier(&self, number: usize) -> TierReport {
        self.node(number).tier("nvme")
    }
}

/// Whichever node reads, each shard comes from the origin once, and rests with its owner.
#[test]
fn each_shard_comes_from_the_origin_once() {
    let bench = Bench::new();
    (0..NODES).for_each(|number| bench.read_all(number));
    assert_eq!(bench.served(), bench.data_bytes);
    (0..NODES).for_each(|number| bench.node(number).settle());
    let shards: Vec<_> = (0..NODES).map(|number| bench.tier(number).counters.shards).collect();
    assert_eq!(shards.iter().sum::<usize>() as u64, SHARDS, "{shards:?}");
    assert!(shards.iter().all(|shards| *shards > 0), "{shards:?}");
    // Warm, nothing comes from the origin, and nothing is written.
    (0..NODES).for_each(|number| bench.read_all(number));
    assert_eq!(bench.served(), bench.data_bytes);
    let after: Vec<_> = (0..NODES).map(|number| bench.tier(number).counters.shards).collect();
    assert_eq!(after, shards);
}

/// A node that is gone costs its shards a fetch more, and no sample.
#[test]
fn shards_of_a_lost_node_come_from_the_origin() {
    let mut bench = Bench::new();
    bench.read_all(0);
    let owned: Vec<_> = (0..NODES).map(|number| bench.owned(number)).collect();
    bench.nodes[1] = None;
    bench.read_all(0);
    let again: u64 =
        owned[1].iter().map(|n| bench.origin.bytes(&format!("{n}.tar")).len() as u64).sum();
    assert!(again > 0, "node1 owned nothing");
    // Their records: the rest of each was read before.
    let read = bench.served() - bench.data_bytes;
    assert!(read > 0 && read <= again, "{read} of {again}");
    let down: Vec<_> = bench.members(0).into_iter().filter(|member| member.is_down).collect();
    assert_eq!(down.iter().map(|member| member.name.as_str()).collect::<Vec<_>>(), ["node1"]);
    let failed = down[0].fallbacks.iter().find(|(why, _)| *why == Fallback::Connection);
    assert!(failed.is_some_and(|(_, count)| *count > 0), "{:?}", down[0].fallbacks);
    // It comes back with what it had.
    bench.start(1);
    eventually("the node is back", || {
        bench.read_all(2);
        bench.members(2).iter().all(|member| !member.is_down)
    });
    assert!(bench.served() <= bench.data_bytes + 2 * again, "{} more", bench.served());
}

/// A node leaves in the middle of an epoch: its shards go on at the byte.
#[test]
fn epoch_survives_the_loss_of_a_node() {
    let mut bench = Bench::new();
    let loader = Loader::open(config(bench.node(0).address(), bench.job(0..SHARDS))).unwrap();
    loader.start(Begin::at(0, 0)).unwrap();
    let mut epoch = Epoch::default();
    for batch in 0.. {
        match next(&loader).unwrap() {
            Next::Batch(taken) => epoch.take(&taken),
            Next::End(end) => {
                epoch.errors.extend(end.errors);
                break;
            }
        }
        if batch == 3 {
            bench.nodes[1] = None;
            bench.nodes[2] = None;
        }
    }
    assert_eq!(epoch.errors, []);
    epoch.assert_whole(SHARDS as u32, SAMPLES, &SIZES);
}

/// A shard that is replaced is read in one version.
#[test]
fn replaced_shard_is_never_mixed() {
    let bench = Bench::new();
    bench.read_all(0);
    let foreign = bench.owned(1)[0];
    let other = shard(SAMPLES, 1000, &SIZES);
    bench.origin.put(&format!("{foreign}.tar"), &other);
    let read = |number: usize| {
        let played = epoch(bench.node(number).address(), bench.job([foreign])).unwrap();
        let keys: Vec<_> = played.samples.iter().map(|sample| sample.key.clone()).collect();
        (played.errors, keys.len())
    };
    // All of the old one or all of the new one; each sample was compared with its checksum.
    for number in 0..NODES {
        assert_eq!(read(number), (Vec::new(), SAMPLES as usize), "node{number}");
    }
}

/// A bit that flips on the owner's disk is found by whoever reads it, and mended by the owner.
#[test]
fn flipped_bit_on_the_owner_is_never_served() {
    let bench = Bench::new();
    bench.read_all(0);
    (0..NODES).for_each(|number| bench.node(number).settle());
    let foreign = bench.owned(1)[0];
    let file =
        cached_file(&bench.disks[1].path().join("shards"), &format!("-{foreign}.tar")).unwrap();
    flip(&file, 30_000);
    bench.read_all(0);
    eventually("the owner dropped its copy", || bench.tier(1).counters.corruptions == 1);
    let seen = bench.members(0).into_iter().find(|member| member.name == "node1").unwrap();
    assert_eq!(seen.fallbacks, [(Fallback::Corrupt, 1)]);
    bench.read_all(1);
    bench.read_all(2);
}

/// Data sets that are not shared stay with each node.
#[test]
fn unshared_data_sets_are_fetched_by_each_node() {
    let bench = Bench::with(|config, _| {
        let private = Dataset::new("private", "**", Evict::Clairvoyant).unwrap();
        config.datasets = vec![Dataset { peers: false, ..private }];
    });
    bench.read_all(0);
    bench.read_all(1);
    assert_eq!(bench.served(), 2 * bench.data_bytes);
    assert_eq!(bench.node(0).node().store().owner(&Origin::url("0.tar")).unwrap().owner, None);
}

/// Jobs with credentials of their own read alone: others may not have what only they may read.
#[test]
fn jobs_with_their_own_credentials_read_alone() {
    let bench = Bench::with(|config, origin| {
        let mut rule = Rule::new("s3://bucket/").unwrap();
        rule.region = Some("us-east-1".to_owned());
        rule.endpoint = Some(origin.server.endpoint());
        config.sources = Rules::new(vec![rule]).unwrap();
    });
    let mut job = bench.job(0..SHARDS);
    job.origin = bench.origin.environment();
    for number in [0, 1] {
        epoch(bench.node(number).address(), job.clone()).unwrap();
    }
    assert_eq!(bench.served(), 2 * bench.data_bytes);
}

/// A certificate that is none of the cluster's is rejected on both sides, and costs no sample.
#[test]
fn invalid_certificates_are_rejected() {
    for flaw in [Flaw::Stranger, Flaw::Expired, Flaw::Good] {
        let bench = Bench::after(|files| {
            let name = if flaw == Flaw::Good { "elsewhere.invalid" } else { "node1" };
            files.sign("node1", name, flaw);
        });
        bench.read_all(0);
        let seen = bench.members(0).into_iter().find(|member| member.name == "node1").unwrap();
        let rejected = seen.fallbacks.iter().find(|(why, _)| *why == Fallback::Certificate);
        assert!(rejected.is_some(), "{flaw:?}: {:?}", seen.fallbacks);
        // Its own jobs go on, too.
        bench.read_all(1);
        let sees = bench.members(1).into_iter().find(|member| member.name == "node0").unwrap();
        let rejected = sees.fallbacks.iter().find(|(why, _)| *why == Fallback::Certificate);
        assert!(rejected.is_some(), "{flaw:?}: {:?}", sees.fallbacks);
    }
}

/// A node that joins takes its shards from those that owned them before.
#[test]
fn joining_node_asks_its_predecessor() {
    let bench = Bench::after(|files| files.list(&files.members()[..NODES - 1]));
    assert!(!bench.members(3).iter().any(|member| member.is_self));
    bench.read_all(0);
    assert_eq!(bench.served(), bench.data_bytes);
    (0..NODES).for_each(|number| bench.node(number).settle());
    bench.files.list(bench.files.members());
    eventually("all nodes have the new list", || {
        (0..NODES).all(|number| bench.members(number).len() == NODES)
    });
    bench.read_all(0);
    bench.read_all(3);
    bench.node(3).settle();
    assert_eq!(bench.tier(3).counters.shards, bench.owned(3).len());
    assert_eq!(bench.served(), bench.data_bytes, "nothing was fetched again");
}

/// A list that becomes malformed changes nothing, and is told.
#[test]
fn malformed_member_list_freezes_the_last_one() {
    let bench = Bench::new();
    std::fs::write(bench.files.member_list(), "node0 127.0.0.1:1\nnode0 127.0.0.1:2\n").unwrap();
    let report = || bench.node(0).node().cluster.as_ref().unwrap().report();
    eventually("the list is frozen", || report().is_frozen);
    assert_eq!(report().members.len(), NODES);
    assert!(report().list_error.is_some());
    bench.read_all(0);
    assert_eq!(bench.served(), bench.data_bytes);
}

/// A warm-up on one node warms the cluster.
#[test]
fn warm_up_fills_the_caches_of_all_owners() {
    let bench = Bench::new();
    let urls = Origin::urls(SHARDS);
    let store = bench.node(0).node().store();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let held = std::sync::atomic::AtomicU64::new(0);
    for url in &urls {
        let fetched = runtime.block_on(store.prefetch(url, &Options::default(), &held)).unwrap();
        assert_eq!(runtime.block_on(fetched.settled()), Ok(()));
    }
    assert_eq!(bench.served(), bench.data_bytes);
    (0..NODES).for_each(|number| bench.node(number).settle());
    let shards: Vec<_> = (0..NODES).map(|number| bench.tier(number).counters.shards).collect();
    let owned: Vec<_> = (0..NODES).map(|number| bench.owned(number).len()).collect();
    assert_eq!(shards, owned);
}

/// A compressed shard is unpacked by its owner, and read by the others as the plain tar.
#[test]
fn compressed_shards_are_read_as_plain_tars() {
    let bench = Bench::new();
    let names: Vec<_> = (0..8).map(|n| format!("{n}.tar.gz")).collect();
    for (n, name) in (0..).zip(&names) {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, &shard(SAMPLES, n, &SIZES)).unwrap();
        bench.origin.put(name, &packed.finish().unwrap());
    }
    let mut job = bench.job([]);
    job.urls = names.iter().map(|name| Origin::url(name)).collect();
    for number in 0..NODES {
        let played = epoch(bench.node(number).address(), job.clone()).unwrap();
        assert_eq!(played.errors, []);
        played.assert_whole(8, SAMPLES, &SIZES);
    }
    let served: u64 = names.iter().map(|name| bench.origin.served(name)).sum();
    let packed: u64 = names.iter().map(|name| bench.origin.bytes(name).len() as u64).sum();
    assert_eq!(served, packed, "each was fetched once");
}

/// A node does not use a key that other users could have read.
#[test]
fn key_that_others_may_read_is_rejected() {
    let (files, origin, disk) = (ClusterFiles::new(1), Origin::new(), Daemon::disk());
    let start = || Daemon::try_start(files.config(0, disk.path(), 1 << 30, &origin));
    let key = files.settings(0).tls.key;
    for mode in [0o644, 0o640 | 0o020] {
        std::fs::set_permissions(&key, Permissions::from_mode(mode)).unwrap();
        let error = start().err().unwrap();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{mode:o}: {error}");
        assert_eq!(error.place("key"), Some(&*key.display().to_string()));
        assert!(error.advice().is_some());
    }
    std::fs::set_permissions(&key, Permissions::from_mode(0o400)).unwrap();
    drop(start().unwrap());
}
