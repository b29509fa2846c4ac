//! Second copies of checkpoints on another node of a cluster.

use std::path::Path;

use forebay_client::Level;
use forebay_config::settings::NodeConfig;
use forebay_error::ErrorKind;
use forebay_peers::Peers;
use forebay_peers::replicas::FileBytes;
use forebay_testkit::{Fault, FaultProxy, S3Server, When};
use forebay_tests::{
    ClusterFiles, Daemon, SavingNode, eventually, flip, metadata, patterned as bytes,
    saves_anywhere,
};

const MIB: usize = 1 << 20;

/// Room of a node's tier.
const ROOM: u64 = 256 << 20;

/// Two nodes that save to a store behind a proxy.
struct Bench {
    home: SavingNode,
    keeper: SavingNode,
    proxy: FaultProxy,
    files: ClusterFiles,
    _server: S3Server,
}

impl Bench {
    fn new() -> Self {
        Self::with(|_| {})
    }

    /// The keeper's configuration is changed.
    fn with(change: impl Fn(&mut NodeConfig)) -> Self {
        let (server, proxy, mut home) = SavingNode::behind_proxy();
        let mut keeper = home.another();
        let files = ClusterFiles::new(2);
        home.daemon = None;
        keeper.daemon = None;
        let mut bench = Self { home, keeper, proxy, files, _server: server };
        bench.start_home();
        let mut config = config(&bench.files, 1, bench.keeper.cache.path());
        change(&mut config);
        bench.keeper.daemon = Some(Daemon::try_start(config).unwrap());
        bench
    }

    fn start_home(&mut self) {
        let config = config(&self.files, 0, self.home.cache.path());
        self.home.daemon = Some(Daemon::try_start(config).unwrap());
    }

    fn start_keeper(&mut self) {
        let config = config(&self.files, 1, self.keeper.cache.path());
        self.keeper.daemon = Some(Daemon::try_start(config).unwrap());
    }

    /// The store answers nothing from here on.
    fn close_store(&self) {
        self.proxy.set([(When::any(), Fault::ResetBeforeHead)]);
    }

    /// Saves a checkpoint of two files on the home.
    fn save(&self) {
        self.home.save("a", 1, &bytes(9 * MIB + 1, 1));
        self.home.save("b", 2, &bytes(0, 2));
        self.home.commit(100, &[1, 2], false);
    }

    /// Reads that checkpoint from the store, through a node that has none of it.
    fn assert_published(&self) {
        let other = self.home.another();
        assert_eq!(other.load(".metadata").unwrap(), metadata(100));
        assert!(other.load("a").unwrap() == bytes(9 * MIB + 1, 1));
        assert!(other.load("b").unwrap().is_empty());
    }

    fn kept_bytes(&self) -> u64 {
        self.keeper.daemon().node().checkpoints.report().kept_bytes
    }
}

/// Node of a cluster of two that saves anywhere.
fn config(files: &ClusterFiles, number: usize, cache: &Path) -> NodeConfig {
    let mut config = saves_anywhere(Daemon::config(cache, ROOM));
    config.memory += 64 << 20;
    config.cluster = Some(files.settings(number));
    config
}

fn peers(node: &SavingNode) -> &Peers {
    node.daemon().node().cluster.as_ref().unwrap().peers()
}

/// Bears promise 12: a replicated checkpoint survives the loss of its home.
#[test]
fn keeper_publishes_the_checkpoint_of_a_lost_home() {
    let mut bench = Bench::new();
    bench.close_store();
    bench.save();
    bench.home.wait(Level::Replicated).unwrap();
    assert_eq!(bench.kept_bytes(), 9 * MIB as u64 + 1 + metadata(100).len() as u64);
    assert_eq!(bench.keeper.staged().len(), 3);
    // Copies are none of the keeper's files.
    assert_eq!(bench.keeper.daemon().node().checkpoints.report().checkpoints, []);
    // They outlast the keeper's daemon.
    bench.keeper.daemon = None;
    bench.start_keeper();
    eventually("the keeper has its copies again", || bench.kept_bytes() > 0);
    // With disk and all.
    bench.home.daemon = None;
    bench.home.cache = Daemon::disk();
    bench.proxy.clear();
    assert_eq!(bench.keeper.place("").resume().unwrap(), 3);
    bench.keeper.wait(Level::Published).unwrap();
    assert_eq!(bench.kept_bytes(), 0);
    bench.assert_published();
}

/// Both nodes bring the same files, after the home was only away.
#[test]
fn home_that_comes_back_finds_its_checkpoint_published() {
    let mut bench = Bench::new();
    bench.close_store();
    bench.save();
    bench.home.wait(Level::Replicated).unwrap();
    bench.home.daemon = None;
    bench.proxy.clear();
    bench.keeper.place("").resume().unwrap();
    bench.keeper.wait(Level::Published).unwrap();
    bench.start_home();
    bench.home.wait(Level::Published).unwrap();
    bench.assert_published();
}

#[test]
fn copies_go_once_the_files_are_in_the_store() {
    let bench = Bench::new();
    bench.close_store();
    bench.save();
    bench.home.wait(Level::Replicated).unwrap();
    assert!(bench.kept_bytes() > 0);
    bench.proxy.clear();
    bench.home.wait(Level::Published).unwrap();
    eventually("the keeper drops its copies", || bench.kept_bytes() == 0);
    assert_eq!(bench.keeper.staged(), Vec::<std::path::PathBuf>::new());
    // What is in the store has the level without a copy.
    bench.home.wait(Level::Replicated).unwrap();
    assert_eq!(bench.kept_bytes(), 0);
}

#[test]
fn level_outlasts_a_restart_without_the_keeper() {
    let mut bench = Bench::new();
    bench.close_store();
    bench.save();
    bench.home.wait(Level::Replicated).unwrap();
    (bench.home.daemon, bench.keeper.daemon) = (None, None);
    bench.start_home();
    bench.home.wait(Level::Replicated).unwrap();
    // A further save has no copy, and gets none.
    bench.home.save_alone("c", 3, &bytes(100, 3));
    let lone = format!("{}/c", bench.home.url);
    let error = bench.home.place_at(&lone, "").wait(Level::Replicated).unwrap_err();
    assert_eq!((error.kind(), error.place("node")), (ErrorKind::Unavailable, Some("node1")));
    bench.start_keeper();
    eventually("the keeper answers", || {
        bench.home.place_at(&lone, "").wait(Level::Replicated).is_ok()
    });
}

#[test]
fn copies_that_a_keeper_cannot_keep_are_errors() {
    let no_rule = Bench::with(|config| {
        config.access.writers.clear();
        config.checkpoints.clear();
    });
    no_rule.close_store();
    no_rule.save();
    let error = no_rule.home.wait(Level::Replicated).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    let no_room = Bench::with(|config| config.checkpoints[0].max_bytes = Some(9 << 20));
    no_room.close_store();
    no_room.save();
    let error = no_room.home.wait(Level::Replicated).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    let alone = no_room.home.another();
    alone.save("a", 1, &bytes(10, 1));
    let error = alone.wait(Level::Replicated).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// A bit that flipped on the home's disk is not copied.
#[test]
fn corrupt_file_has_no_second_copy() {
    let bench = Bench::new();
    bench.close_store();
    bench.home.save("a", 1, &bytes(9 * MIB, 1));
    flip(&bench.home.staged()[0], 5 * MIB as u64);
    let error = bench.home.wait(Level::Replicated).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    eventually("nothing of it stays", || bench.keeper.staged().is_empty());
}

#[test]
fn nodes_read_only_files_that_they_are_to_keep() {
    let bench = Bench::new();
    bench.close_store();
    bench.home.save("a", 1, &bytes(MIB, 1));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ask = |len| {
        let asked = FileBytes { id: "01".repeat(16), start: 0, len };
        let mut into = vec![0; 4096];
        runtime.block_on(peers(&bench.keeper).file_bytes("node0", &asked, &mut into)).map(|()| into)
    };
    assert_eq!(ask(4096).unwrap_err().kind(), ErrorKind::NotFound);
    bench.home.wait(Level::Replicated).unwrap();
    assert!(ask(4096).unwrap() == bytes(MIB, 1)[..4096]);
    assert_eq!(ask(0).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(ask(u64::MAX).unwrap_err().kind(), ErrorKind::Invalid);
}
