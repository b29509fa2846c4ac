//! Checkpoints: saved on a node, uploaded, published as a whole, restored.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_client::{
    CheckpointPlace, CheckpointReader, CheckpointWriter, Commit, FileId, Level, SaveConfig, Watch,
};
use forebay_config::settings::Writers;
use forebay_error::{Error, ErrorKind, Result};
use forebay_store::CheckpointRule;
use forebay_testkit::{ACCESS_KEY, Ceph, Fault, FaultProxy, S3Server, SECRET_KEY, When, skip};
use forebay_tests::{Daemon, Origin, TestSource, eventually, flip};
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// Time for one answer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A node, and the store that its checkpoints go to.
struct Bench {
    daemon: Option<Daemon>,
    cache: TempDir,
    folder: TempDir,
    environment: BTreeMap<String, String>,
    url: String,
}

impl Bench {
    /// A node that saves to a folder.
    fn new() -> Self {
        let folder = Daemon::disk();
        let url = folder.path().join("run/step-1").to_str().unwrap().to_owned();
        Self::to(url, BTreeMap::new(), folder)
    }

    fn to(url: String, environment: BTreeMap<String, String>, folder: TempDir) -> Self {
        let cache = Daemon::disk();
        let daemon = Some(start(cache.path(), 1 << 30));
        Self { daemon, cache, folder, environment, url }
    }

    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    fn restart(&mut self) {
        self.daemon = None;
        self.daemon = Some(start(self.cache.path(), 1 << 30));
    }

    fn place(&self, name: &str) -> CheckpointPlace {
        self.place_at(&self.url, name)
    }

    fn place_at(&self, url: &str, name: &str) -> CheckpointPlace {
        CheckpointPlace {
            address: self.daemon().address(),
            url: url.to_owned(),
            name: name.to_owned(),
            origin: self.environment.clone(),
            timeout: PATIENCE,
            watch: Watch::default(),
        }
    }

    fn writer(&self, name: &str, id: u8, expected: u64) -> Result<CheckpointWriter> {
        let (place, is_lone, job) = (self.place(name), false, "test".to_owned());
        CheckpointWriter::open(SaveConfig { place, id: [id; 16], expected, is_lone, job })
    }

    fn save(&self, name: &str, id: u8, bytes: &[u8]) {
        let mut writer = self.writer(name, id, bytes.len() as u64).unwrap();
        writer.write(bytes).unwrap();
        assert_eq!(writer.finish(None).unwrap(), bytes.len() as u64);
    }

    fn commit(&self, id: u8, files: &[u8], overwrite: bool) {
        let mut writer = self.writer(".metadata", id, 0).unwrap();
        writer.write(&metadata(id)).unwrap();
        let files = files.iter().map(|id| [*id; 16]).collect::<Vec<FileId>>();
        writer.finish(Some(Commit { files, step: Some(1), overwrite })).unwrap();
    }

    fn wait(&self, level: Level) -> Result<()> {
        self.place("").wait(level)
    }

    fn load(&self, name: &str) -> Result<Vec<u8>> {
        load(&self.place(name))
    }

    /// The object in the folder.
    fn object(&self, name: &str) -> PathBuf {
        Path::new(&self.url).join(name)
    }

    /// Staged files on the disk.
    fn staged(&self) -> Vec<PathBuf> {
        let listed = fs::read_dir(self.cache.path().join("checkpoints")).into_iter().flatten();
        let paths = listed.flatten().map(|entry| entry.path());
        paths.filter(|path| path.extension().is_none()).collect()
    }
}

/// A node that saves anywhere.
fn start(cache: &Path, capacity: u64) -> Daemon {
    let mut config = Daemon::config(cache, capacity);
    let rule = CheckpointRule::new("**").unwrap();
    let rule = CheckpointRule { tiers: vec!["nvme".to_owned()], ..rule };
    config.access.writers = vec![Writers { rule: rule.clone(), allow: None }];
    config.checkpoints = vec![rule];
    Daemon::try_start(config).unwrap()
}

fn load(place: &CheckpointPlace) -> Result<Vec<u8>> {
    let mut reader = CheckpointReader::open(place)?;
    let mut bytes = vec![0; usize::try_from(reader.len()).unwrap()];
    assert_eq!(reader.read_at(0, &mut bytes)?, bytes.len());
    Ok(bytes)
}

fn metadata(id: u8) -> Vec<u8> {
    format!("metadata of {id}").into_bytes()
}

/// Bytes that differ from place to place.
fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let word = |n: u64| (n ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..len as u64).step_by(8).flat_map(word).take(len).collect()
}

/// Saves to any store, publishes and restores, on this node and on one that has nothing of it.
fn behaves(source: &TestSource) {
    let mut bench = Bench::to(source.url("run/step-1"), source.environment.clone(), Daemon::disk());
    // Blocks and parts of all kinds: none, a byte, whole ones, and a last one that is shorter.
    let lengths = [0, 1, 4 * MIB, 4 * MIB + 1, 37 * MIB + 4097];
    let files: Vec<_> = (1_u8..).zip(lengths).collect();
    for &(id, len) in &files {
        bench.save(&format!("rank/{id}"), id, &bytes(len, id.into()));
    }
    let ids: Vec<_> = files.iter().map(|(id, _)| *id).collect();
    bench.commit(100, &ids, false);
    bench.wait(Level::Staged).unwrap();
    bench.wait(Level::Uploaded).unwrap();
    bench.wait(Level::Published).unwrap();
    let restored = |bench: &Bench| {
        assert_eq!(bench.load(".metadata").unwrap(), metadata(100));
        for &(id, len) in &files {
            let name = format!("rank/{id}");
            assert!(bench.load(&name).unwrap() == bytes(len, id.into()), "{name} differs");
        }
        let run = bench.url.strip_suffix("/step-1").unwrap();
        assert_eq!(bench.place_at(run, "").latest().unwrap(), Some(bench.url.clone()));
    };
    restored(&bench);
    let error = bench.load("rank/9").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}: {error}", source.name);
    // Another node.
    bench.daemon = None;
    bench.cache = Daemon::disk();
    bench.restart();
    restored(&bench);
}

#[test]
fn checkpoints_go_to_s3s() {
    behaves(&TestSource::s3s().unwrap());
}

#[test]
fn checkpoints_go_to_moto() {
    behaves(&TestSource::moto().unwrap());
}

#[test]
fn checkpoints_go_to_azurite() {
    behaves(&TestSource::azurite().unwrap());
}

#[test]
fn checkpoints_go_to_a_disk() {
    behaves(&TestSource::disk().unwrap());
}

#[test]
fn checkpoints_go_to_ceph() {
    if let Some(missing) = Ceph::missing() {
        return skip(missing, "Ceph's daemons and mounts");
    }
    let (_files, gateway, _) = TestSource::ceph().unwrap();
    behaves(&gateway);
}

/// Nothing is visible while a file of the commit is missing, and all of it once the last one is
/// there, whichever node it comes from.
#[test]
fn checkpoint_is_visible_once_all_files_are() {
    let bench = Bench::new();
    let other = Bench { url: bench.url.clone(), ..Bench::new() };
    bench.save("0", 1, &bytes(5 * MIB, 1));
    bench.commit(3, &[1, 2], false);
    bench.wait(Level::Uploaded).unwrap();
    eventually("the receipt is there", || bench.object(".forebay").exists());
    assert!(!bench.object(".metadata").exists());
    assert_eq!(bench.load(".metadata").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(bench.place_at(bench.url.rsplit_once('/').unwrap().0, "").latest().unwrap(), None);
    other.save("1", 2, &bytes(100, 2));
    other.wait(Level::Uploaded).unwrap();
    bench.wait(Level::Published).unwrap();
    other.wait(Level::Published).unwrap();
    assert!(other.load("0").unwrap() == bytes(5 * MIB, 1));
    assert_eq!(bench.load("1").unwrap(), bytes(100, 2));
}

/// A store that is away delays uploads. A daemon that ends meanwhile goes on after its restart,
/// once somebody gives it the credentials that it never wrote down.
#[test]
fn uploads_outlive_store_and_daemon() {
    let folder = Daemon::disk();
    let server = S3Server::start(folder.path()).unwrap();
    fs::create_dir_all(folder.path().join("bucket")).unwrap();
    let proxy = FaultProxy::start(server.address()).unwrap();
    let environment = BTreeMap::from(
        [
            ("AWS_ENDPOINT_URL", proxy.endpoint()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    let mut bench = Bench::to("s3://bucket/run/step-1".to_owned(), environment, folder);
    // The third part of the upload and all that follows fail.
    proxy.set([(
        When::put().of("partNumber=3"),
        Fault::Refuse { status: 503, code: "SlowDown", retry_after: None },
    )]);
    bench.save("0", 1, &bytes(70 * MIB, 1));
    bench.commit(2, &[1], false);
    bench.wait(Level::Staged).unwrap();
    proxy.wait_until(|traffic| traffic.faults > 0);
    bench.restart();
    bench.wait(Level::Staged).unwrap();
    let records = fs::read_dir(bench.cache.path().join("checkpoints")).unwrap().flatten();
    let records = records.map(|entry| entry.path()).filter(|path| path.extension().is_some());
    for record in records {
        let text = String::from_utf8_lossy(&fs::read(record).unwrap()).into_owned();
        assert!(!text.contains(SECRET_KEY) && !text.contains(ACCESS_KEY), "a secret is there");
    }
    proxy.clear();
    bench.wait(Level::Published).unwrap();
    assert!(bench.load("0").unwrap() == bytes(70 * MIB, 1));
}

#[test]
fn file_that_differs_from_its_checksums_is_never_uploaded() {
    let mut bench = Bench::new();
    // The store is away for as long as its folder is a file.
    let run = bench.folder.path().join("run");
    fs::write(&run, b"in the way").unwrap();
    bench.save("0", 1, &bytes(9 * MIB, 1));
    bench.daemon = None;
    let [staged] = &bench.staged()[..] else { panic!("one file is staged") };
    flip(staged, 5 * MIB as u64);
    fs::remove_file(&run).unwrap();
    bench.restart();
    let error = bench.wait(Level::Uploaded).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(error.place("offset"), Some(&*(4 * MIB).to_string()), "{error}");
    assert!(!bench.object("0").exists());
    bench.restart();
    assert_eq!(bench.wait(Level::Uploaded).unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(!bench.object("0").exists());
}

/// Wrong bytes on this node's disk are read from the store.
#[test]
fn damaged_local_copy_is_restored_from_the_store() {
    let bench = Bench::new();
    bench.save("0", 1, &bytes(9 * MIB, 1));
    bench.commit(2, &[1], false);
    bench.wait(Level::Published).unwrap();
    let large = |path: &PathBuf| fs::metadata(path).unwrap().len() > MIB as u64;
    let staged = bench.staged().into_iter().find(large).unwrap();
    for at in [0, 5 * MIB, 9 * MIB - 1] {
        flip(&staged, at as u64);
    }
    assert!(bench.load("0").unwrap() == bytes(9 * MIB, 1));
    // Neither copy is right.
    flip(&bench.object("0"), 5 * MIB as u64);
    assert_eq!(bench.load("0").unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn published_checkpoint_is_replaced_only_on_request() {
    let bench = Bench::new();
    bench.save("a", 1, b"first");
    bench.commit(2, &[1], false);
    bench.wait(Level::Published).unwrap();
    bench.save("b", 3, b"second");
    bench.commit(4, &[3], false);
    let error = bench.wait(Level::Published).unwrap_err();
    assert_eq!((error.kind(), error.place("reason")), (ErrorKind::Invalid, Some("exists")));
    assert_eq!(bench.load(".metadata").unwrap(), metadata(2));
    bench.save("c", 5, b"third");
    bench.commit(6, &[5], true);
    eventually("the checkpoint is replaced", || {
        fs::read(bench.object(".metadata")).unwrap() == metadata(6)
    });
    assert_eq!(bench.load("c").unwrap(), b"third");
    eventually("files of the old one are removed", || !bench.object("a").exists());
}

#[test]
fn file_of_its_own_replaces_the_object() {
    let bench = Bench::new();
    let save = |bytes: &[u8], id: u8| {
        let (place, job) = (bench.place("model.pt"), "test".to_owned());
        let config = SaveConfig { place, id: [id; 16], expected: 0, is_lone: true, job };
        let mut writer = CheckpointWriter::open(config).unwrap();
        writer.write(bytes).unwrap();
        writer.finish(None).unwrap();
        // This node sees it at once.
        assert!(bench.load("model.pt").unwrap() == bytes);
    };
    for id in 1..=5_u8 {
        save(&bytes(usize::from(id) * MIB, id.into()), id);
    }
    let place = bench.place_at(&format!("{}/model.pt", bench.url), "");
    place.wait(Level::Published).unwrap();
    let object = bench.object("model.pt");
    eventually("the last one wins", || fs::read(&object).unwrap() == bytes(5 * MIB, 5));
    let error =
        bench.place_at(&format!("{}/other", bench.url), "").wait(Level::Staged).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

/// Room is asked for before the first byte, and shards that nobody reads make it.
#[test]
fn checkpoint_takes_the_room_of_shards() {
    let cache = Daemon::disk();
    let origin = Origin::with_shards(8, 10, &(400_000..400_001));
    let (daemon, folder) = (start(cache.path(), 40 << 20), Daemon::disk());
    let url = folder.path().join("run/step-1").to_str().unwrap().to_owned();
    let environment = BTreeMap::new();
    let bench = Bench { daemon: Some(daemon), cache, folder, environment, url };
    let urls = (0..8).map(|n| Origin::url(&format!("{n}.tar"))).collect();
    let job = forebay_tests::job_with(origin.environment(), urls);
    assert_eq!(forebay_tests::epoch(bench.daemon().address(), job).unwrap().errors, []);
    bench.daemon().settle();
    let shards = || bench.daemon().tier("nvme").counters.shards;
    assert_eq!(shards(), 8);
    let error = bench.writer("0", 1, 41 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.advice().is_some());
    bench.save("0", 2, &bytes(20 * MIB, 2));
    assert!((1..8).contains(&shards()), "{} shards are left", shards());
    // A file of unknown length is told as soon as it does not fit any more.
    let mut writer = bench.writer("1", 3, 0).unwrap();
    let error = (0..100).find_map(|_| writer.write(&bytes(MIB, 3)).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    drop(writer);
    eventually("its room is free again", || bench.staged().len() == 1);
}

/// Copies of what is in the store are no reason to reject a checkpoint.
#[test]
fn local_copies_give_way_to_new_checkpoints() {
    let mut bench = Bench::new();
    bench.daemon = None;
    bench.daemon = Some(start(bench.cache.path(), 40 << 20));
    for round in 1..=4_u8 {
        bench.url = format!("{}-{round}", bench.url);
        let (file, metadata) = (2 * round, 2 * round + 1);
        bench.save("0", file, &bytes(30 * MIB, round.into()));
        bench.commit(metadata, &[file], false);
        bench.wait(Level::Published).unwrap();
        assert!(bench.load("0").unwrap() == bytes(30 * MIB, round.into()));
    }
}

#[test]
fn unfinished_file_leaves_nothing() {
    let mut bench = Bench::new();
    let mut writer = bench.writer("0", 1, 100 << 20).unwrap();
    writer.write(&bytes(30 * MIB, 1)).unwrap();
    let used = || bench.daemon().tier("nvme").counters.used_bytes;
    assert_eq!(used(), 100 << 20);
    drop(writer);
    eventually("the file is removed", || bench.staged().is_empty() && used() == 0);
    // A daemon that is gone before its client says so at the next start.
    let mut writer = bench.writer("0", 2, 0).unwrap();
    writer.write(&bytes(30 * MIB, 1)).unwrap();
    bench.daemon = None;
    let failed: Error = writer.write(&bytes(200 * MIB, 1)).unwrap_err();
    assert!(matches!(failed.kind(), ErrorKind::Closed | ErrorKind::Unavailable), "{failed}");
    bench.restart();
    assert_eq!(bench.staged(), [] as [PathBuf; 0]);
}

#[test]
fn names_and_places_that_lead_elsewhere_are_rejected() {
    let bench = Bench::new();
    for name in ["", "..", "../x", "a/../../x", ".forebay/x", "/x", "a//b"] {
        let error = bench.writer(name, 1, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{name}: {error}");
    }
    for url in ["", "http://127.0.0.1:1/x", "https://h/x", "pipe:cat", "ftp://h/x"] {
        let (place, is_lone) = (bench.place_at(url, "x"), false);
        let config =
            SaveConfig { place, id: [1; 16], expected: 0, is_lone, job: "test".to_owned() };
        let error = CheckpointWriter::open(config).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error}");
    }
    assert_eq!(bench.staged(), [] as [PathBuf; 0]);
}
