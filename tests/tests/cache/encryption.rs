//! Encrypted tiers: noise on the disk, right bytes for jobs, and nothing deleted for a wrong key.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_client::Level;
use forebay_config::settings::{NodeConfig, NodeTier};
use forebay_error::ErrorKind;
use forebay_store::{Class, Condition, Dataset, Encryption, Evict, Mode};
use forebay_tests::{
    ClusterFiles, Daemon, Installation, Origin, SavingNode, cached_file, epoch, eventually, flip,
    job, job_with, loader, patterned, play, saves_anywhere, walk,
};
use rustix::process::Signal;

use crate::ACTOR;

const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SAMPLES: u64 = 40;
const SHARDS: u64 = 2;
const MIB: usize = 1 << 20;

/// Shards of two nodes, of which each owns some, and samples of each: 140 kB.
const PEER_SHARDS: u64 = 12;
const PEER_SAMPLES: u64 = 4;

/// Bytes that plain files would share with their origin at any place.
const SEEN: usize = 32;

/// An origin, a disk with the tiers' directories, and key files.
struct Bench {
    origin: Origin,
    disk: tempfile::TempDir,
    keys: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self {
            origin: Origin::with_shards(SHARDS, SAMPLES, &SIZES),
            disk: Daemon::disk(),
            keys: Daemon::disk(),
        }
    }

    /// A key file of 32 bytes that follow each other from `first` on.
    fn key(&self, name: &str, first: u8) -> Encryption {
        let bytes: Vec<u8> = (0..32).map(|at| first.wrapping_add(at)).collect();
        self.put_key(name, &bytes)
    }

    fn put_key(&self, name: &str, bytes: &[u8]) -> Encryption {
        let path = self.keys.path().join(name);
        let aside = self.keys.path().join("aside");
        fs::write(&aside, bytes).unwrap();
        fs::set_permissions(&aside, Permissions::from_mode(0o400)).unwrap();
        fs::rename(aside, &path).unwrap();
        Encryption::KeyFile(path)
    }

    fn cache(&self, tier: &str) -> PathBuf {
        self.disk.path().join(tier)
    }

    fn config(&self, tiers: &[(&str, Option<Encryption>)]) -> NodeConfig {
        let tier = |(name, encryption): &(&str, Option<Encryption>)| NodeTier {
            encryption: encryption.clone(),
            ..NodeTier::at(name, Class::Nvme, self.cache(name), 1 << 28)
        };
        let mut config = Daemon::config(&self.cache(tiers[0].0), 1);
        config.tiers = tiers.iter().map(tier).collect();
        config.memory += tiers.len() * forebay_store::ENCRYPTION_BYTES;
        config.look_after = Duration::from_millis(50);
        config
    }

    fn start(&self, tiers: &[(&str, Option<Encryption>)]) -> Daemon {
        Daemon::try_start(self.config(tiers)).unwrap()
    }

    fn one(&self, encryption: Option<&Encryption>) -> Daemon {
        self.start(&[("a", encryption.cloned())])
    }

    /// A daemon that starts whatever the tier does: it has another.
    fn beside(&self, encryption: Option<&Encryption>) -> Daemon {
        self.start(&[("b", None), ("a", encryption.cloned())])
    }

    /// Plays all shards; returns the number of fetches since the daemon's start.
    fn play(&self, daemon: &Daemon) -> u64 {
        let open = job(&self.origin, Origin::urls(SHARDS));
        epoch(daemon.address(), open).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
        daemon.settle();
        daemon.node().store().counters().fills
    }

    /// A tier that a daemon filled and left.
    fn filled(encryption: Option<&Encryption>) -> Self {
        let bench = Self::new();
        bench.refill(encryption);
        bench
    }

    fn refill(&self, encryption: Option<&Encryption>) {
        let daemon = self.one(encryption);
        assert_eq!(self.play(&daemon), SHARDS);
    }

    fn file(&self, ending: &str) -> PathBuf {
        cached_file(&self.cache("a").join("shards"), ending).unwrap()
    }

    /// Files of a tier, without those that every daemon writes anew.
    fn content(&self, tier: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let files = walk(&self.cache(tier)).into_iter();
        let files = files.filter(|path| !path.ends_with("LOCK"));
        files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }
}

/// Files below a folder that show bytes of `plain` or one of the `words`.
fn shown(folder: &Path, plain: &[&[u8]], words: &[&[u8]]) -> Vec<PathBuf> {
    // Zeros are everywhere.
    let windows = plain.iter().flat_map(|bytes| bytes.chunks_exact(SEEN));
    let seen: HashSet<&[u8]> = windows.filter(|part| part.iter().any(|byte| *byte != 0)).collect();
    let files = walk(folder);
    assert!(files.iter().any(|path| fs::metadata(path).unwrap().len() > 100_000), "{files:?}");
    let shows = |path: &PathBuf| {
        let bytes = fs::read(path).unwrap();
        let has = |word: &&[u8]| bytes.windows(word.len()).any(|part| part == *word);
        bytes.windows(SEEN).any(|part| seen.contains(part)) || words.iter().any(has)
    };
    files.into_iter().filter(shows).collect()
}

#[test]
fn files_of_an_encrypted_tier_show_no_plain_bytes() {
    let bench = Bench::new();
    let key = bench.key("a.key", 1);
    let secret: Vec<u8> = (1..33).collect();
    let shards = [bench.origin.bytes("0.tar"), bench.origin.bytes("1.tar")];
    let plain: Vec<&[u8]> = shards.iter().map(Vec::as_slice).collect();
    for encryption in [key.clone(), Encryption::Ephemeral] {
        bench.refill(Some(&encryption));
        let words: [&[u8]; 4] = [b"s3://", b"ustar", &secret, b"FOREBAY\x1a"];
        assert_eq!(shown(&bench.cache("a"), &plain, &words), [] as [PathBuf; 0]);
        fs::remove_dir_all(bench.cache("a")).unwrap();
    }
    // The same search finds them in a plain tier.
    bench.refill(None);
    assert_eq!(shown(&bench.cache("a"), &plain, &[]).len() as u64, SHARDS);
}

/// Bears promise 4 for encrypted tiers: what was whole is served after a restart.
#[test]
fn encrypted_shards_are_served_after_a_restart() {
    let bench = Bench::new();
    let key = bench.key("a.key", 1);
    bench.refill(Some(&key));
    let daemon = bench.one(Some(&key));
    assert_eq!(bench.play(&daemon), 0, "nothing is fetched again");
    assert_eq!(daemon.tier("a").counters.corruptions, 0);
}

#[test]
fn wrong_key_takes_the_tier_down_and_deletes_nothing() {
    let bench = Bench::new();
    let key = bench.key("a.key", 1);
    bench.refill(Some(&key));
    let before = bench.content("a");
    let refused = |encryption: Option<Encryption>, word: &str| {
        let daemon = bench.beside(encryption.as_ref());
        let tier = daemon.tier("a");
        assert_eq!(tier.condition, Condition::Down);
        assert!(tier.why.as_ref().unwrap().contains(word), "{:?}", tier.why);
        drop(daemon);
        assert!(bench.content("a") == before, "{word}: something was changed");
    };
    refused(Some(bench.key("other.key", 2)), "wrong-key");
    refused(Some(bench.put_key("short.key", &[7; 31])), "32 bytes");
    refused(Some(Encryption::KeyFile(bench.keys.path().join("none.key"))), "none.key");
    refused(Some(Encryption::Ephemeral), "key-kind");
    refused(None, "encrypted");
    // Without another tier, the daemon says why it does not start.
    let error = Daemon::try_start(bench.config(&[("a", None)])).map(drop).unwrap_err();
    assert!(error.to_string().contains("encrypted"), "{error}");
    assert!(bench.content("a") == before);
    // The right key, put in its place later, brings the tier back.
    let late = bench.key("late.key", 2);
    let daemon = bench.beside(Some(&late));
    assert_eq!(daemon.tier("a").condition, Condition::Down);
    bench.key("late.key", 1);
    eventually("the tier is back", || daemon.tier("a").condition == Condition::Normal);
    assert_eq!(bench.play(&daemon), 0);
}

#[test]
fn encryption_of_a_plain_tier_is_refused() {
    let bench = Bench::filled(None);
    let before = bench.content("a");
    for encryption in [bench.key("a.key", 1), Encryption::Ephemeral] {
        let daemon = bench.beside(Some(&encryption));
        let tier = daemon.tier("a");
        assert_eq!(tier.condition, Condition::Down);
        assert!(tier.why.unwrap().contains("plain"));
        drop(daemon);
        assert!(bench.content("a") == before, "something was changed");
    }
}

/// Bears promise 1 for encrypted tiers: a flipped bit, a block in another place and a shard under
/// another name are corrupt.
#[test]
fn changed_and_moved_blocks_are_never_served() {
    let bench = Bench::new();
    let key = bench.key("a.key", 1);
    bench.refill(Some(&key));
    let block = forebay_uring::GRANULE as u64;
    let (first, second) = (bench.file("-0.tar"), bench.file("-1.tar"));
    let read = |path: &Path, at: u64| {
        let mut bytes = vec![0; block as usize];
        fs::File::open(path).unwrap().read_exact_at(&mut bytes, at * block).unwrap();
        bytes
    };
    let write = |path: &Path, at: u64, bytes: &[u8]| {
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(bytes, at * block).unwrap();
    };
    // The end of the file is long after these.
    let harms: [(&str, u64, &dyn Fn()); 3] = [
        ("a flipped bit", 1, &|| flip(&first, 20 * block + 77)),
        ("two blocks swapped", 1, &|| {
            let (a, b) = (read(&first, 20), read(&first, 60));
            write(&first, 20, &b);
            write(&first, 60, &a);
        }),
        ("a block of another shard", 2, &|| {
            let (a, b) = (read(&first, 20), read(&second, 20));
            write(&first, 20, &b);
            write(&second, 20, &a);
        }),
    ];
    for (what, corruptions, harm) in harms {
        harm();
        let daemon = bench.one(Some(&key));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let found = runtime.block_on(daemon.node().store().scrub(true, |_| ())).unwrap();
        assert_eq!(found.wrong, corruptions, "{what}");
        assert_eq!(bench.play(&daemon), corruptions, "{what}");
        assert_eq!(daemon.tier("a").counters.corruptions, corruptions, "{what}");
        let clean = runtime.block_on(daemon.node().store().scrub(false, |_| ())).unwrap();
        assert_eq!((clean.wrong, clean.shards), (0, SHARDS), "{what}");
    }
}

#[test]
fn ephemeral_tier_starts_empty_and_lives_with_its_daemon() {
    let bench = Bench::filled(Some(&Encryption::Ephemeral));
    let foreign = bench.cache("a").join("shards/README");
    fs::write(&foreign, "not Forebay's").unwrap();
    let daemon = bench.one(Some(&Encryption::Ephemeral));
    assert_eq!(daemon.tier("a").counters.shards, 0);
    assert!(cached_file(&bench.cache("a").join("shards"), ".tar").is_none(), "noise is removed");
    assert!(foreign.exists());
    assert_eq!(bench.play(&daemon), SHARDS);
    // Its device may leave and come back: the daemon has the key.
    daemon.change("a", Mode::Disabled).unwrap();
    eventually("it is back", || daemon.change("a", Mode::Enabled).is_ok());
    eventually("it is listed", || daemon.tier("a").counters.shards as u64 == SHARDS);
    assert_eq!(bench.play(&daemon), SHARDS, "nothing is fetched again");
}

/// The way to another key: everything moves to another tier, and the empty one takes the new key.
#[test]
fn drained_tier_takes_another_key() {
    let bench = Bench::new();
    let (old, new) = (bench.key("old.key", 1), bench.key("new.key", 2));
    let daemon = bench.start(&[("a", Some(old.clone())), ("b", None)]);
    assert_eq!(bench.play(&daemon), SHARDS);
    daemon.change("a", Mode::Draining).unwrap();
    eventually("a is empty", || daemon.tier("a").counters.used_bytes == 0);
    assert_eq!(daemon.tier("b").counters.shards as u64, SHARDS);
    assert_eq!(bench.play(&daemon), SHARDS, "nothing is fetched again");
    drop(daemon);
    for n in 0..SHARDS {
        let name = format!("{n}.tar");
        let moved = cached_file(&bench.cache("b").join("shards"), &name).unwrap();
        assert!(fs::read(moved).unwrap() == bench.origin.bytes(&name), "{name} is plain there");
    }
    let daemon = bench.start(&[("a", Some(new.clone())), ("b", None)]);
    assert_eq!(daemon.tier("a").condition, Condition::Normal);
    daemon.change("b", Mode::Draining).unwrap();
    eventually("b is empty", || daemon.tier("b").counters.used_bytes == 0);
    assert_eq!(daemon.tier("a").counters.shards as u64, SHARDS);
    assert_eq!(bench.play(&daemon), 0, "read under the new key");
    drop(daemon);
    let daemon = bench.start(&[("b", None), ("a", Some(old))]);
    assert_eq!(daemon.tier("a").condition, Condition::Down, "the old key is none any more");
}

/// A job of many readers reads slabs that are decrypted in place, while the shards still arrive.
#[test]
fn arriving_shards_are_read_while_they_are_encrypted() {
    let bench = Bench::new();
    let daemon = bench.one(Some(&Encryption::Ephemeral));
    let loader = loader(daemon.address(), job(&bench.origin, Origin::urls(SHARDS))).unwrap();
    for number in 0..3 {
        play(&loader, number, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    }
    daemon.settle();
    // Writes of a busy disk may have taken until now.
    play(&loader, 3, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    assert!(daemon.tier("a").counters.tier_read_bytes > 0, "the tier was read");
}

#[test]
fn checkpoints_are_staged_encrypted_and_restored() {
    let bench = Bench::new();
    let key = bench.key("a.key", 1);
    let start = |cache: &Path, encryption: &Encryption| {
        let mut config = saves_anywhere(Daemon::config(cache, 1 << 30));
        config.tiers[0].encryption = Some(encryption.clone());
        config.memory += forebay_store::ENCRYPTION_BYTES;
        Daemon::try_start(config).unwrap()
    };
    let mut node = SavingNode::to_folder();
    node.daemon = None;
    node.cache = Daemon::disk();
    node.daemon = Some(start(node.cache.path(), &key));
    let files: Vec<_> = (1_u8..).zip([1, 4 * MIB, 9 * MIB + 4097]).collect();
    let plain: Vec<_> = files.iter().map(|&(id, len)| patterned(len, id.into())).collect();
    for ((id, _), bytes) in files.iter().zip(&plain) {
        node.save(&format!("rank/{id}"), *id, bytes);
    }
    node.commit(100, &[1, 2, 3], false);
    node.wait(Level::Published).unwrap();
    let parts: Vec<&[u8]> = plain.iter().map(Vec::as_slice).collect();
    let folder = node.cache.path().join("checkpoints");
    assert_eq!(shown(&folder, &parts, &[b"rank/", b"step-1"]), [] as [PathBuf; 0]);
    let restored = |node: &SavingNode| {
        for ((id, _), bytes) in files.iter().zip(&plain) {
            assert!(node.load(&format!("rank/{id}")).unwrap() == *bytes, "rank/{id} differs");
        }
    };
    restored(&node);
    node.daemon = None;
    node.daemon = Some(start(node.cache.path(), &key));
    restored(&node);
    // From the disk of the node: the store is gone.
    assert!(node.staged().len() >= files.len());

    // A staged file outlives its daemon, and a key that does not is no place for it.
    node.daemon = None;
    node.cache = Daemon::disk();
    node.daemon = Some(start(node.cache.path(), &Encryption::Ephemeral));
    let error = node.writer("rank/9", 9, 100).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// A daemon that is killed leaves an encrypted directory that the next one, and `fsck` with the key
/// of the configuration, can read.
#[test]
fn killed_daemon_leaves_a_readable_encrypted_tier() {
    let bench = Bench::new();
    let folder = tempfile::tempdir().unwrap();
    let Encryption::KeyFile(key) = bench.key("a.key", 1) else { unreachable!("it is a file") };
    let memory = Daemon::config(folder.path(), 1).memory + forebay_store::ENCRYPTION_BYTES;
    let rest = |encryption: &str| {
        format!(
            "[[tier]]\nname = 'a'\npath = {:?}\ncapacity = '256MiB'\n{encryption}\n{}",
            bench.cache("a"),
            bench.origin.rule()
        )
    };
    let encrypted = rest(&format!("encryption = {{ key_file = {key:?} }}"));
    let installation = Installation::new(ACTOR, folder.path(), memory as u64, &encrypted);
    let address = || forebay_client::Address::Unix(installation.socket());
    let played = || {
        let open = job(&bench.origin, Origin::urls(SHARDS));
        epoch(address(), open).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    };
    let whole = || {
        let status = forebay_tests::daemon_status(&installation.socket()).unwrap();
        status["tiers"][0]["shards"] == SHARDS && status["tiers"][0]["fills"] == SHARDS
    };
    let daemon = installation.start();
    played();
    eventually("all is whole", whole);
    daemon.signal(Signal::KILL);
    drop(daemon);
    let daemon = installation.start();
    played();
    let status = forebay_tests::daemon_status(&installation.socket()).unwrap();
    assert_eq!(status["tiers"][0]["fills"], 0, "{status}");
    assert_eq!(status["tiers"][0]["encryption"], "key-file");
    // The key, as text or as it is, is in nothing that the daemon says.
    let digits: String = fs::read(&key).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    let told = format!("{status} {}", daemon.log());
    assert!(!told.contains(&digits) && !told.contains("\u{1}\u{2}\u{3}"), "the key is shown");
    daemon.signal(Signal::KILL);
    drop(daemon);

    let fsck = |text: &str| {
        installation.configure(text);
        let mut command = installation.forebay(&["fsck", "--json", "--repair", "--config"]);
        command.arg(installation.config()).arg(bench.cache("a"));
        let told = command.output().unwrap();
        (told.status.code(), String::from_utf8(told.stdout).unwrap())
    };
    let before = bench.content("a");
    let (code, told) = fsck(&rest(""));
    assert_eq!(code, Some(1), "without the key: {told}");
    let (_, told) = fsck(&rest("encryption = 'ephemeral'"));
    assert!(told.is_empty() && bench.content("a") == before, "nothing was deleted: {told}");
    let (code, told) = fsck(&encrypted);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((code, &told["shards"]), (Some(0), &SHARDS.into()), "{told}");
}

/// Two nodes with keys of different kinds: what one serves, the other has by its own key.
#[test]
fn nodes_with_encrypted_tiers_serve_each_other() {
    let bench = Bench::new();
    let files = ClusterFiles::new(2);
    let origin = files.origin(PEER_SHARDS, PEER_SAMPLES, &SIZES);
    let twice = Dataset { copies: 2, ..Dataset::new("twice", "**", Evict::Clairvoyant).unwrap() };
    let encryptions = [bench.key("a.key", 1), Encryption::Ephemeral];
    let start = |number: usize| {
        let cache = bench.cache(&format!("node{number}"));
        let mut config = files.config(number, &cache, 1 << 28, &origin);
        config.tiers[0].encryption = Some(encryptions[number].clone());
        config.memory += forebay_store::ENCRYPTION_BYTES;
        config.datasets = vec![twice.clone()];
        Daemon::try_start(config).unwrap()
    };
    let nodes = [start(0), start(1)];
    let read_all = |node: &Daemon| {
        let open = job_with(BTreeMap::new(), Origin::urls(PEER_SHARDS));
        epoch(node.address(), open).unwrap().assert_whole(PEER_SHARDS as u32, PEER_SAMPLES, &SIZES);
    };
    read_all(&nodes[0]);
    eventually("each shard rests on both nodes", || {
        nodes.iter().all(|node| node.tier("nvme").counters.shards as u64 == PEER_SHARDS)
    });
    nodes.iter().for_each(Daemon::settle);
    nodes.iter().for_each(read_all);
    let names: Vec<_> = (0..PEER_SHARDS).map(|n| format!("{n}.tar")).collect();
    let shards: Vec<_> = names.iter().map(|name| origin.bytes(name)).collect();
    let plain: Vec<&[u8]> = shards.iter().map(Vec::as_slice).collect();
    for (at, name) in names.iter().enumerate() {
        assert_eq!(origin.served(name), shards[at].len() as u64, "{name} was fetched once");
    }
    for number in 0..nodes.len() {
        let cache = bench.cache(&format!("node{number}"));
        assert_eq!(shown(&cache, &plain, &[b"s3://", b"ustar"]), [] as [PathBuf; 0]);
    }
}
