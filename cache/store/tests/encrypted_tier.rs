//! A store with an encrypted tier: filled, read, restarted, harmed.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_error::{ErrorKind, Result};
use forebay_source::{Limits, Options, Sources};
use forebay_store::{
    Class, Condition, DiskConfig, Encryption, FRAME_BYTES, Shard, Store, StoreConfig, TierConfig,
    Urgency,
};
use forebay_testkit::InMemory;
use forebay_uring::{Arena, Engine, EngineConfig, GRANULE, LentRegion, Region};

const URL: &str = "memory://private/0.tar";
const ID: &str = "00112233445566778899aabbccddeeff";
const MEMBER: usize = 30_000;
/// Two parts and a bit.
const MEMBERS: usize = 300;

/// A tar of members that differ from place to place.
fn tar() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for number in 0..MEMBERS {
        let mut header = tar::Header::new_gnu();
        header.set_size(MEMBER as u64);
        let bytes = pattern(MEMBER, number as u64);
        archive.append_data(&mut header, format!("{number:06}.bin"), &bytes[..]).unwrap();
    }
    archive.into_inner().unwrap()
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let word = |at: u64| (at ^ (seed << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..len as u64).flat_map(word).take(len).collect()
}

struct Bench {
    disk: tempfile::TempDir,
    origin: Arc<InMemory>,
    frames: Arena,
}

impl Bench {
    fn new() -> Self {
        let frames = Arena::new(Region::create("frames", FRAME_BYTES).unwrap());
        Self { disk: tempfile::tempdir().unwrap(), origin: Arc::new(InMemory::new(tar())), frames }
    }

    fn key(&self, name: &str, first: u8) -> Encryption {
        let path = self.disk.path().join(name);
        let bytes: Vec<u8> = (0..32).map(|at| first.wrapping_add(at)).collect();
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        Encryption::KeyFile(path)
    }

    fn cache(&self) -> PathBuf {
        self.disk.path().join("cache")
    }

    async fn open(&self, encryption: Option<&Encryption>) -> Store {
        let engine = Engine::start(EngineConfig::default()).unwrap();
        let tier = |name: &str, path: PathBuf, encryption: Option<&Encryption>| TierConfig {
            name: name.to_owned(),
            class: Class::Nvme,
            capacity: 1 << 28,
            watermarks: None,
            disk: Some(DiskConfig {
                encryption: encryption.cloned(),
                ..DiskConfig::at(path, engine.clone())
            }),
        };
        // The second one is there so that the store opens without the first.
        let tiers = vec![
            tier("a", self.cache(), encryption),
            tier("b", self.disk.path().join("other"), None),
        ];
        let (datasets, tenants, checkpoints) = (Vec::new(), Vec::new(), Vec::new());
        let look_after = Duration::from_secs(3600);
        let config = StoreConfig { tiers, datasets, tenants, checkpoints, look_after, state: None };
        let sources = Sources::new(Vec::new(), Limits::default()).unwrap();
        let sources = sources.with("memory", self.origin.clone());
        Store::open(config, sources, self.frames.clone()).await.unwrap()
    }

    /// Reads and checks all members.
    async fn read(&self, store: &Store) -> Result<()> {
        let lease = store.shard(URL, &Options::default(), Urgency::Needed).await?;
        lease.settled().await?;
        let members = lease.index().index().members;
        assert_eq!(members.len(), MEMBERS);
        for (number, member) in members.iter().enumerate() {
            let range = member.offset..member.end();
            let footprint = Shard::footprint(&range);
            let len = (footprint.end - footprint.start) as usize;
            let span = self.frames.lease(len).await?;
            let mut placed = lease.read(vec![(range, span)]).await.remove(0);
            let from = placed.check(member)?;
            let span = placed.into_span();
            let from = from - span.offset();
            assert!(span[from..from + MEMBER] == pattern(MEMBER, number as u64), "{number}");
        }
        Ok(())
    }

    /// Files of the tier, without the lock.
    fn content(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut all = BTreeMap::new();
        let mut folders = vec![self.cache()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true => folders.push(entry.path()),
                    false => drop(all.insert(entry.path(), fs::read(entry.path()).unwrap())),
                }
            }
        }
        all.remove(&self.cache().join("LOCK"));
        all
    }

    fn data(&self) -> PathBuf {
        let files = self.content().into_keys();
        files.into_iter().find(|path| path.extension().is_some_and(|end| end == "tar")).unwrap()
    }
}

async fn close(store: Store) {
    store.close().await;
}

fn tier(store: &Store) -> (Condition, String) {
    let report = store.tiers().remove(0);
    (report.condition, report.why.unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_tier_serves_after_a_restart_with_its_key_alone() {
    let bench = Bench::new();
    let key = bench.key("a.key", 1);
    let store = bench.open(Some(&key)).await;
    bench.read(&store).await.unwrap();
    close(store).await;
    let windows: std::collections::HashSet<_> = bench.origin.bytes().chunks_exact(64).collect();
    for (path, bytes) in bench.content() {
        let seen = |part: &[u8]| part.iter().any(|byte| *byte != 0) && windows.contains(part);
        assert!(!bytes.chunks(64).any(seen), "{} shows its bytes", path.display());
        let shows = |word: &[u8]| bytes.windows(word.len()).any(|part| part == word);
        assert!(!shows(b"private") && !shows(b"ustar"), "{} shows words", path.display());
    }
    let before = bench.content();
    for (encryption, why) in [
        (Some(bench.key("b.key", 2)), "wrong-key"),
        (Some(Encryption::Ephemeral), "key-kind"),
        (None, "encrypted"),
    ] {
        let store = bench.open(encryption.as_ref()).await;
        let (condition, found) = tier(&store);
        assert!(condition == Condition::Down && found.contains(why), "{condition:?} {found}");
        close(store).await;
        assert!(bench.content() == before, "{why}: something was changed");
    }
    let store = bench.open(Some(&key)).await;
    bench.read(&store).await.unwrap();
    assert_eq!(store.counters().fills, 0, "nothing is fetched again");
    assert_eq!(store.scrub(true, |_| ()).await.unwrap().wrong, 0);
    // Two blocks change their places: each is noise there.
    let data = fs::OpenOptions::new().read(true).write(true).open(bench.data()).unwrap();
    let mut blocks = [[0; GRANULE], [0; GRANULE]];
    let places = [20, 60].map(|block| block * GRANULE as u64);
    for (block, place) in blocks.iter_mut().zip(places) {
        data.read_exact_at(block, place).unwrap();
    }
    data.write_all_at(&blocks[1], places[0]).unwrap();
    data.write_all_at(&blocks[0], places[1]).unwrap();
    assert_eq!(bench.read(&store).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(store.scrub(false, |_| ()).await.unwrap().dropped, 1);
    bench.read(&store).await.unwrap();
    close(store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ephemeral_tier_starts_empty_and_takes_no_checkpoints() {
    let bench = Bench::new();
    let allowed = ["a".to_owned()];
    for _ in 0..2 {
        let store = bench.open(Some(&Encryption::Ephemeral)).await;
        store.scanned().await.unwrap();
        assert_eq!((tier(&store).0, store.tiers()[0].counters.shards), (Condition::Normal, 0));
        bench.read(&store).await.unwrap();
        let error = store.stage(ID, 100, &allowed).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        close(store).await;
        assert!(bench.data().exists());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn staged_bytes_are_encrypted_and_come_back() {
    let bench = Bench::new();
    let key = bench.key("a.key", 1);
    let allowed = ["a".to_owned()];
    let (len, padded) = (9_000, 12_288);
    let lent = LentRegion::create("lent", 1 << 20, usize::MAX).unwrap();
    lent.fill(0, &pattern(len, 7)).unwrap();
    let store = bench.open(Some(&key)).await;
    let file = store.stage(ID, padded, &allowed).await.unwrap();
    file.write(0, lent.span(0..padded).unwrap()).await.unwrap();
    file.seal(len as u64, b"{\"url\":\"s3://private\"}".to_vec()).await.unwrap();
    drop(file);
    close(store).await;
    let staged = bench.cache().join("checkpoints").join(ID);
    assert!(fs::read(&staged).unwrap()[..64] != pattern(len, 7)[..64]);
    assert_eq!(staged.metadata().unwrap().len(), padded);
    let record = fs::read(Path::new(&format!("{}.rec", staged.display()))).unwrap();
    assert!(!record.windows(7).any(|part| part == b"private"));
    let store = bench.open(Some(&key)).await;
    let (mut found, failed) = store.staged().await;
    assert_eq!((found.len(), failed.len()), (1, 0));
    let found = found.remove(0);
    assert_eq!(found.record, b"{\"url\":\"s3://private\"}");
    lent.fill(0, &vec![0; len]).unwrap();
    found.file.read_lent(0, lent.span(0..padded).unwrap(), len).await.unwrap();
    let mut back = vec![0; len];
    lent.span(0..len as u64).unwrap().copy_to(&mut back).unwrap();
    assert!(back == pattern(len, 7));
    let span = bench.frames.lease(len).await.unwrap();
    assert!(found.file.read(0, span, len).await.unwrap()[..len] == pattern(len, 7)[..]);
    drop(found);
    close(store).await;
}
