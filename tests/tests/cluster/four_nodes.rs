//! Four nodes that share their caches.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use forebay_client::{Loader, Next};
use forebay_config::settings::{Allow, AuditConfig, NodeConfig, NodeTenant, TenantLimits};
use forebay_error::ErrorKind;
use forebay_peers::message::{Presence, ShardRequest};
use forebay_peers::{Fallback, PeerReport};
use forebay_source::{Options, Rule, Rules};
use forebay_store::{Dataset, Evict, KeepFree, StoreRules, Tenant, TierLimits, TierReport};
use forebay_testkit::shard;
use forebay_tests::{
    Answer, ClusterFiles, Daemon, Epoch, Flaw, Origin, cached_file, config, epoch, eventually,
    flip, job_with, next, play,
};
use forebay_wire::message::{Begin, Extent, Open, Shuffle};
use serde_json::Value;
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
        let files = ClusterFiles::new(NODES);
        let origin = files.origin(SHARDS, SAMPLES, &SIZES);
        let data_bytes = (0..SHARDS).map(|n| origin.bytes(&format!("{n}.tar")).len() as u64).sum();
        let disks: Vec<_> = (0..NODES).map(|_| Daemon::disk()).collect();
        let nodes = (0..NODES).map(|_| None).collect();
        let mut bench = Self { origin, files, nodes, disks, data_bytes };
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

    /// Has node 0 read all shards, and flips a bit of one that node 1 owns. Returns that shard.
    fn corrupt_owned(&self) -> u64 {
        self.read_all(0);
        (0..NODES).for_each(|number| self.node(number).settle());
        let shard = self.owned(1)[0];
        let folder = self.disks[1].path().join("shards");
        flip(&cached_file(&folder, &format!("-{shard}.tar")).unwrap(), 30_000);
        shard
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

    /// Gives a node other rules.
    fn rule(&self, number: usize, datasets: Vec<Dataset>) {
        let tier = TierLimits {
            name: "nvme".to_owned(),
            capacity: 2 * self.data_bytes,
            keep_free: KeepFree::Bytes(0),
            watermarks: None,
        };
        let (tenants, tiers) = (Vec::new(), vec![tier]);
        let sources = self.config(number).sources;
        let checkpoints = Vec::new();
        let rules = StoreRules { datasets, tenants, checkpoints, tiers, sources };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(self.node(number).node().store().reconfigure(rules, false)).unwrap();
    }

    /// Shards on each node.
    fn shards_here(&self) -> Vec<usize> {
        (0..NODES).map(|number| self.tier(number).counters.shards).collect()
    }

    fn wait_for_second_copies(&self) {
        eventually("each shard rests on two nodes", || {
            self.shards_here().iter().sum::<usize>() as u64 == 2 * SHARDS
        });
        (0..NODES).for_each(|number| self.node(number).settle());
    }
}

/// A data set of which two nodes keep each shard.
fn two_copies() -> Dataset {
    Dataset { copies: 2, ..Dataset::new("twice", "**", Evict::Clairvoyant).unwrap() }
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
    // As the origin promises, on which the tests below rely.
    assert!(shards.iter().all(|shards| *shards >= 3), "{shards:?}");
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
    // Their records: the rest of each was read before.
    let read = bench.served() - bench.data_bytes;
    assert!(read > 0 && read <= again, "{read} of {again}");
    // A slow machine may be past the time for which it counts as down.
    let members = bench.members(0);
    let has_failed = |member: &&PeerReport| {
        let mut counts = member.fallbacks.iter();
        counts.any(|(why, count)| *why == Fallback::Connection && *count > 0)
    };
    let failed: Vec<_> = members.iter().filter(has_failed).map(|member| &*member.name).collect();
    assert_eq!(failed, ["node1"]);
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
    bench.corrupt_owned();
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

/// Each node tells a digest of its rules; another one is told, and not for ever.
#[test]
fn nodes_with_other_rules_are_told() {
    let bench = Bench::make(
        |_| {},
        |config, _| {
            if config.cluster.as_ref().is_some_and(|cluster| cluster.name == "node1") {
                config.datasets = vec![Dataset::new("all", "**", Evict::Clairvoyant).unwrap()];
            }
        },
    );
    let greeted = |number: usize| {
        let members = bench.members(0).into_iter();
        members.filter(|member| !member.is_self).map(|member| member.greeted).nth(number).unwrap()
    };
    eventually("all nodes are greeted", || (0..NODES - 1).all(|other| greeted(other).is_some()));
    let same = |number| greeted(number).is_some_and(|greeted| greeted.has_same_rules);
    assert_eq!([same(0), same(1), same(2)], [false, true, true]);
    assert!((0..NODES - 1).all(|other| greeted(other).is_some_and(|one| !one.is_skewed())));
    // Both digests are shown.
    let rules = |number: usize| bench.node(number).node().cluster.as_ref().unwrap().report().rules;
    assert!(rules(0) != rules(1) && rules(0) == rules(2));
}

/// A node is ready for its jobs whatever becomes of the others.
#[test]
fn readiness_does_not_depend_on_other_nodes() {
    let mut bench = Bench::new();
    (1..NODES).for_each(|number| bench.nodes[number] = None);
    std::fs::write(bench.files.member_list(), "").unwrap();
    eventually("the list is frozen", || {
        bench.node(0).node().cluster.as_ref().unwrap().report().is_frozen
    });
    // Each of them is asked, and does not answer.
    bench.read_all(0);
    let failed = |member: &PeerReport| {
        member.fallbacks.iter().any(|(why, count)| *why == Fallback::Connection && *count > 0)
    };
    assert_eq!(bench.members(0).iter().filter(|member| failed(member)).count(), NODES - 1);
    assert_eq!(ask(bench.node(0), "GET", "/readyz", "").status, 200);
}

/// Sends a request to a node's API.
fn ask(node: &Daemon, method: &str, path: &str, body: &str) -> Answer {
    let socket = UnixStream::connect(node.socket()).unwrap();
    let json = "host: localhost\r\ncontent-type: application/json\r\n";
    Answer::to(socket, (method, path), json, body)
}

/// An explanation names the owner of a shard and the next candidate, and what each has of it.
#[test]
fn explanation_names_the_nodes_that_have_a_shard() {
    let mut bench = Bench::new();
    let shard = bench.owned(1)[0];
    let explained = |bench: &Bench, number: usize| {
        let path = format!("/api/v1/shards?url={}", Origin::url(&format!("{shard}.tar")));
        let answer = ask(bench.node(number), "GET", &path, "");
        assert_eq!(answer.status, 200, "{}", answer.body);
        let Value::Object(placement) = answer.document()["placement"].take() else {
            panic!("no placement: {}", answer.body)
        };
        placement
    };
    let before = explained(&bench, 0);
    assert_eq!(before["owner"]["node"], "node1");
    assert_eq!([&before["owner"]["presence"], &before["next"]["presence"]], ["absent", "absent"]);
    bench.read_all(0);
    bench.node(1).settle();
    for number in [0, 1] {
        let after = explained(&bench, number);
        assert_eq!(after["owner"]["presence"], "whole", "node{number}");
        assert_eq!(after["owner"]["is_self"], number == 1);
        assert_eq!(after["next"]["presence"], "absent");
    }
    assert_eq!(bench.served(), bench.data_bytes, "nothing was fetched to explain");
    bench.nodes[1] = None;
    let gone = explained(&bench, 0);
    assert!(gone["owner"]["presence"].is_null() && gone["owner"]["error"].is_string(), "{gone:?}");
}

/// The owner of a shard judges the tenant of another node's job by its own rules, and both nodes
/// note what it rejects.
#[test]
fn owner_judges_the_tenants_of_other_nodes() {
    let logs = TempDir::new().unwrap();
    let log = |name: &str| logs.path().join(format!("{name}.jsonl"));
    let bench = Bench::with(|config, _| {
        let name = config.cluster.as_ref().unwrap().name.clone();
        config.audit = Some(AuditConfig { path: log(&name), max_bytes: 1 << 20, keep: 1 });
        config.datasets = vec![Dataset::new("photos", "**", Evict::Clairvoyant).unwrap()];
        let allow = Allow { tenants: vec!["vision".to_owned()], ..Allow::default() };
        config.access.allow.insert("photos".to_owned(), allow);
        config.tenants = ["vision", "speech"].map(tenant).into();
    });
    let foreign = bench.owned(1)[0];
    let peers = bench.node(0).node().store().peers().unwrap().clone();
    let request = |tenant: Option<&str>| ShardRequest {
        endpoint: bench.origin.server.endpoint(),
        url: Origin::url(&format!("{foreign}.tar")),
        version: None,
        only_cached: true,
        is_awaited: false,
        tenant: tenant.map(str::to_owned),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let asked = |tenant| runtime.block_on(peers.presence("node1", &request(tenant)));
    // A node of an older release names no tenant.
    for tenant in [None, Some("vision")] {
        assert_eq!(asked(tenant), Ok(Presence::Absent), "{tenant:?}");
    }
    for tenant in ["speech", "unknown"] {
        let error = asked(Some(tenant)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert_eq!((error.place("tenant"), error.place("node")), (Some(tenant), Some("node1")));
    }
    let noted = |name: &str, event: &str| {
        let text = std::fs::read_to_string(log(name)).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let lines = lines.filter(|line| line["event"] == event && line["outcome"] == "denied");
        lines.map(|line| (line["tenant"].clone(), line["by"].clone())).collect::<Vec<_>>()
    };
    let wanted = |by: &str| ["speech", "unknown"].map(|name| (Value::from(name), Value::from(by)));
    eventually("the owner noted both", || noted("node1", "peer_read") == wanted("node0"));
    eventually("the asker noted both", || noted("node0", "peer_ask") == wanted("node1"));
    // The node is not at fault.
    assert!(bench.members(0).iter().all(|member| !member.is_down));
}

fn tenant(name: &str) -> NodeTenant {
    NodeTenant {
        rule: Tenant { name: name.to_owned(), min_bytes: 0, max_bytes: None },
        groups: Vec::new(),
        limits: TenantLimits::default(),
    }
}

/// A connection that is rejected is in the audit log.
#[test]
fn rejected_connections_are_audited() {
    let logs = TempDir::new().unwrap();
    let log = logs.path().join("audit.jsonl");
    let bench = Bench::make(
        |files| files.sign("node1", "node1", Flaw::Stranger),
        |config, _| {
            if config.cluster.as_ref().is_some_and(|cluster| cluster.name == "node0") {
                let path = log.clone();
                config.audit = Some(AuditConfig { path, max_bytes: 1 << 20, keep: 1 });
            }
        },
    );
    bench.read_all(1);
    eventually("it is noted", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.contains("\"peer_connect\"")
    });
}

/// A node whose list is a file learns what to change; it says that it leaves, and serves on.
#[test]
fn draining_node_serves_on_and_says_what_to_do() {
    let bench = Bench::new();
    bench.read_all(0);
    (0..NODES).for_each(|number| bench.node(number).settle());
    let put = |draining: bool, query: &str| {
        let path = format!("/api/v1/cluster{query}");
        let answer = ask(bench.node(1), "PUT", &path, &format!("{{\"draining\": {draining}}}"));
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.document()
    };
    assert_eq!(put(true, "?dry_run=true")["is_draining"], false);
    let told = put(true, "");
    assert_eq!((&told["is_draining"], &told["is_listed"]), (&true.into(), &true.into()));
    let list = bench.files.member_list();
    assert!(told["advice"].as_str().unwrap().contains(list.to_str().unwrap()), "{told}");
    let seen = || {
        let node = bench.members(0).into_iter().find(|member| member.name == "node1").unwrap();
        node.greeted.is_some_and(|greeted| greeted.is_draining)
    };
    // It is listed until an administrator changes the list, and serves what it owns.
    bench.read_all(2);
    assert_eq!(bench.served(), bench.data_bytes);
    let others: Vec<_> =
        bench.files.members().iter().filter(|member| member.name != "node1").cloned().collect();
    bench.files.list(&others);
    eventually("all nodes have the new list", || {
        (0..NODES).all(|number| bench.members(number).len() == NODES - 1)
    });
    assert_eq!(put(true, "")["advice"], Value::Null);
    // A node that is not listed asks nobody, and nobody is blamed.
    bench.read_all(1);
    assert!(bench.members(1).iter().all(|member| !member.is_down));
    bench.files.list(bench.files.members());
    eventually("it is listed again", || bench.members(0).len() == NODES);
    eventually("the others know that it drains", seen);
    assert_eq!(put(false, "")["advice"], Value::Null);
}

/// With two copies each shard is read from the origin once, rests on two nodes, and the loss of one
/// reads nothing again: not on nodes that read the data before, nor on one that did not.
#[test]
fn second_copies_outlast_a_node() {
    let mut bench = Bench::with(|config, _| config.datasets = vec![two_copies()]);
    bench.read_all(0);
    bench.wait_for_second_copies();
    assert_eq!(bench.served(), bench.data_bytes);
    bench.nodes[1] = None;
    for number in [0, 2, 3] {
        bench.read_all(number);
    }
    assert_eq!(bench.served(), bench.data_bytes, "nothing was fetched again");
}

/// A reload that asks for second copies makes them.
#[test]
fn reload_makes_second_copies() {
    let bench = Bench::new();
    bench.read_all(0);
    (0..NODES).for_each(|number| bench.node(number).settle());
    assert_eq!(bench.shards_here().iter().sum::<usize>() as u64, SHARDS);
    for number in 0..NODES {
        bench.rule(number, vec![two_copies()]);
    }
    bench.wait_for_second_copies();
    assert_eq!(bench.served(), bench.data_bytes);
}

/// A second copy is compared block by block where it comes from: a bit that flipped on the owner's
/// disk does not spread.
#[test]
fn second_copy_of_a_corrupt_copy_comes_from_the_origin() {
    let bench = Bench::new();
    let flipped = bench.corrupt_owned();
    for number in 0..NODES {
        bench.rule(number, vec![two_copies()]);
    }
    eventually("the owner dropped its copy", || bench.tier(1).counters.corruptions == 1);
    (0..NODES).for_each(|number| bench.read_all(number));
    let again = bench.origin.bytes(&format!("{flipped}.tar")).len() as u64;
    assert!(bench.served() <= bench.data_bytes + 2 * again, "{} more", bench.served());
}

/// Records of a batch that lie in one shard of another node are asked for together.
#[test]
fn records_of_a_batch_share_a_request() {
    let bench = Bench::new();
    let (samples, foreign) = (400, bench.owned(1)[0]);
    let other = shard(samples, foreign, &(20_000..20_001));
    bench.origin.put(&format!("{foreign}.tar"), &other);
    let mut job = bench.job([foreign]);
    job.order.shuffle = Shuffle::Window;
    job.order.batch_size = 40;
    let play = || epoch(bench.node(0).address(), job.clone()).unwrap();
    assert_eq!(play().errors, []);
    bench.node(1).settle();
    let asked = || {
        let members = bench.members(0);
        members.iter().find(|member| member.name == "node1").unwrap().requests
    };
    let before = asked();
    let played = play();
    assert_eq!((played.errors, played.samples.len() as u64), (Vec::new(), samples));
    // A batch of 40 samples of 20 KB is some 35 ranges, and fits one request.
    let (asked, batches) = (asked() - before, samples / 40);
    assert!(asked <= batches + 2, "{asked} requests for {batches} batches");
}

/// A compressed shard comes to its new owner from the origin: other nodes have only the plain tar.
#[test]
fn joining_node_fetches_compressed_shards() {
    let bench = Bench::after(|files| files.list(&files.members()[..NODES - 1]));
    // Half of them are to go to the node that joins. Of 400 names, a quarter does.
    let endpoint = bench.origin.server.endpoint();
    let moves = |name: &String| bench.files.owner(&endpoint, &Origin::url(name)) == "node3";
    let (moving, others): (Vec<_>, Vec<_>) =
        (0..400).map(|n| format!("{n}.tar.gz")).partition(moves);
    let names: Vec<_> = moving.into_iter().take(4).chain(others.into_iter().take(4)).collect();
    for (n, name) in (0..).zip(&names) {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, &shard(SAMPLES, n, &SIZES)).unwrap();
        bench.origin.put(name, &packed.finish().unwrap());
    }
    let mut job = bench.job([]);
    job.urls = names.iter().map(|name| Origin::url(name)).collect();
    let read = |number: usize| {
        let played = epoch(bench.node(number).address(), job.clone()).unwrap();
        assert_eq!(played.errors, []);
        played.assert_whole(8, SAMPLES, &SIZES);
    };
    read(0);
    (0..NODES).for_each(|number| bench.node(number).settle());
    bench.files.list(bench.files.members());
    eventually("all nodes have the new list", || {
        (0..NODES).all(|number| bench.members(number).len() == NODES)
    });
    read(3);
    read(0);
    bench.node(3).settle();
    assert_eq!(bench.tier(3).counters.shards, 4);
}

/// A job that knows beforehand what it will read, in the same order in each epoch.
fn foreseen(bench: &Bench) -> Open {
    let mut job = bench.job(0..SHARDS);
    job.counts = Some(vec![SAMPLES; SHARDS as usize]);
    job
}

impl Bench {
    /// A loader on a node for a job whose sizes are known.
    fn loader(&self, number: usize, job: Open) -> Loader {
        let bytes = vec![self.data_bytes / SHARDS; SHARDS as usize];
        let mut config = config(self.node(number).address(), job);
        config.session.extent = Some(Extent { bytes, ranks: (0, 1) });
        Loader::open(config).unwrap()
    }

    /// Bytes of shards that a node received from others.
    fn received(&self, number: usize) -> u64 {
        self.members(number).iter().map(|member| member.received_bytes).sum()
    }

    fn is_here(&self, number: usize, shard: &str) -> bool {
        let folder = self.disks[number].path().join("shards");
        cached_file(&folder, &format!("-{shard}.tar")).is_some()
    }

    /// Fills the room of node 0 with guests, by a job that reads everything there. Returns the next
    /// epoch.
    ///
    /// A shard is copied while the job reads it. On a busy machine it may be read before its copy
    /// begins, so some come with a later epoch.
    fn take_guests(&self, loader: &Loader) -> u64 {
        play(loader, 0, 0).unwrap();
        (0..NODES).for_each(|number| self.node(number).settle());
        for epoch in 1..12 {
            play(loader, epoch, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
            self.node(0).settle();
            if self.tier(0).counters.shards as u64 == SHARDS {
                return epoch + 1;
            }
        }
        let missing: Vec<_> = (0..SHARDS).filter(|n| !self.is_here(0, &n.to_string())).collect();
        panic!("shards {missing:?} are not here");
    }
}

/// A node with room to spare copies what its job reads again, once, and reads nothing of other
/// nodes afterwards.
#[test]
fn guests_fill_the_room_to_spare() {
    let bench = Bench::new();
    let loader = bench.loader(0, foreseen(&bench));
    let next = bench.take_guests(&loader);
    let before = (bench.received(0), bench.tier(0).counters.written_bytes);
    play(&loader, next, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    assert_eq!((bench.received(0), bench.tier(0).counters.written_bytes), before);
    assert_eq!(bench.served(), bench.data_bytes, "each shard came from the origin once");
    // No other node reads, so none has guests.
    for number in 1..NODES {
        assert_eq!(bench.tier(number).counters.shards, bench.owned(number).len());
    }
}

/// Shards that a node owns take the room of guests, never that of each other while a guest is left.
#[test]
fn guests_go_before_all_that_a_node_owns() {
    let bench = Bench::with(|config, _| config.tiers[0].capacity /= 2);
    let loader = bench.loader(0, foreseen(&bench));
    bench.take_guests(&loader);
    let others: Vec<_> = (SHARDS..SHARDS + 200).map(|n| format!("{n}")).collect();
    let store = bench.node(0).node().store();
    let is_own = |name: &&String| {
        let owner = store.owner(&Origin::url(&format!("{name}.tar"))).unwrap();
        owner.is_self
    };
    let others: Vec<_> = others.iter().filter(is_own).take(6).collect();
    assert_eq!(others.len(), 6);
    for name in &others {
        bench.origin.put(&format!("{name}.tar"), &shard(SAMPLES, 7, &SIZES));
    }
    let urls: Vec<_> = others.iter().map(|name| Origin::url(&format!("{name}.tar"))).collect();
    let job = job_with(std::collections::BTreeMap::new(), urls);
    assert_eq!(epoch(bench.node(0).address(), job).unwrap().errors, []);
    bench.node(0).settle();
    let own = bench.owned(0).into_iter().map(|n| n.to_string());
    for name in own.chain(others.iter().map(|name| (*name).clone())) {
        assert!(bench.is_here(0, &name), "{name} is gone");
    }
    assert_eq!(bench.tier(0).counters.shards as u64, SHARDS, "guests have the rest");
    drop(loader);
}

/// A node keeps what it owns for all ranks: it fetches the shards that only others read.
#[test]
fn owner_foresees_the_reads_of_all_ranks() {
    let bench = Bench::new();
    let mut job = foreseen(&bench);
    (job.order.lanes, job.order.world_size, job.order.batch_size) = (Some(4), 4, 8);
    // Each rank reads a quarter of the list, the same in each epoch.
    let quarter = |n: u64| (n * 4 / SHARDS) as u32;
    let of_others = |rank: u32| {
        let owned = bench.owned(0).into_iter();
        owned.filter(|n| quarter(*n) != rank).collect::<Vec<_>>()
    };
    job.order.rank = (0..4).max_by_key(|rank| of_others(*rank).len()).unwrap();
    // Not empty: one of two ranks does not read the first shard that node0 owns.
    let of_others = of_others(job.order.rank);
    let loader = bench.loader(0, job);
    play(&loader, 0, 0).unwrap();
    eventually("node0 fetched what the other ranks will read", || {
        of_others.iter().all(|n| bench.is_here(0, &n.to_string()))
    });
}
