//! Four nodes that share their caches.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use forebay_store::TierReport;
use forebay_tests::{ClusterFiles, Daemon, Origin, epoch, job_with};
use forebay_wire::message::Open;
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
        let origin = Origin::with_shards(SHARDS, SAMPLES, &SIZES);
        let data_bytes = (0..SHARDS).map(|n| origin.bytes(&format!("{n}.tar")).len() as u64).sum();
        let disks: Vec<_> = (0..NODES).map(|_| Daemon::disk()).collect();
        let nodes = (0..NODES).map(|_| None).collect();
        let mut bench = Self { origin, files: ClusterFiles::new(NODES), nodes, disks, data_bytes };
        (0..NODES).for_each(|number| bench.start(number));
        bench
    }

    fn start(&mut self, number: usize) {
        let disk = self.disks[number].path();
        let config = self.files.config(number, disk, 2 * self.data_bytes, &self.origin);
        self.nodes[number] = Some(Daemon::try_start(config).unwrap());
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
