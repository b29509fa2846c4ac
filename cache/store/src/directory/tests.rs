//! Names of shards, the lock, the order of commits, and recovery.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::io;
use std::time::Duration;

use forebay_shard::{BLOCK_BYTES, Index};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::files::LocalFiles;

pub(super) fn origin(url: &str, version: &str) -> Origin {
    Origin { endpoint: "file".to_owned(), url: url.to_owned(), version: version.to_owned() }
}

pub(super) fn sidecar(origin: &Origin, len: u64) -> Sidecar {
    Sidecar {
        origin: origin.clone(),
        tenant: Some("red".to_owned()),
        len,
        compressed_len: None,
        blocks: vec![0; usize::try_from(len.div_ceil(BLOCK_BYTES)).unwrap()],
        index: Index::default(),
    }
}

pub(super) fn open() -> (TempDir, Directory) {
    let root = TempDir::new().unwrap();
    let directory = Directory::open(root.path(), Arc::new(LocalFiles), &Keys::default()).unwrap();
    (root, directory)
}

/// Stores a shard of `len` bytes whose sidecar is of `told` bytes.
pub(super) fn store(directory: &Directory, url: &str, len: u64, told: u64) -> ShardName {
    let origin = origin(url, "v1");
    let name = ShardName::new(&origin);
    fs::write(directory.data(&name), vec![0; usize::try_from(len).unwrap()]).unwrap();
    directory.commit(&name, &sidecar(&origin, told), None).unwrap();
    name
}

/// Records an unfinished shard of two blocks.
fn record(directory: &Directory, url: &str) -> ShardName {
    let origin = origin(url, "v1");
    let name = ShardName::new(&origin);
    let blocks = vec![Some(1), None];
    let partial = Partial { origin, tenant: None, len: 2 * BLOCK_BYTES, blocks };
    directory.save_partial(&name, &partial).unwrap();
    name
}

/// Rewrites a sidecar's head as one of a later format.
pub(super) fn make_newer(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[8..12].copy_from_slice(&99_u32.to_le_bytes());
    bytes[12..16].fill(0);
    let crc = forebay_shard::checksum::crc32c(&bytes[..forebay_shard::HEAD_BYTES]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    fs::write(path, bytes).unwrap();
}

proptest! {
    /// A name is one file name that a listing recognizes, whatever the URL holds.
    #[test]
    fn names_are_safe_file_names(url in "\\PC{0,80}", version in "\\PC{0,20}") {
        let name = ShardName::new(&origin(&url, &version));
        let file = name.as_str();
        prop_assert!(file.is_ascii() && !file.contains('/') && file.len() <= 255);
        prop_assert!(ShardName::is_shard_file(file));
        prop_assert!(!file.ends_with(SIDECAR) && !file.ends_with(PARTIAL));
        prop_assert!(!file.ends_with(SIDECAR_ASIDE) && !file.ends_with(PARTIAL_ASIDE));
        let other = ShardName::new(&origin(&url, &format!("{version}2")));
        prop_assert!(other != name && other.label() == name.label());
        let alternate = name.alternate();
        prop_assert!(alternate != name && ShardName::is_shard_file(alternate.as_str()));
        prop_assert_eq!(alternate.label(), name.label());
    }

    /// Saved recency is read back; damaged recency is dropped.
    #[test]
    fn recency_survives_a_restart(hashes in prop::collection::vec(any::<u64>(), 0..40), at in any::<prop::sample::Index>()) {
        let (_root, directory) = open();
        prop_assert_eq!(directory.load_recency(), Vec::<u64>::new());
        directory.save_recency(&hashes).unwrap();
        prop_assert_eq!(directory.load_recency(), hashes);
        let path = directory.root().join("RECENCY");
        let mut bytes = fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        prop_assert_eq!(directory.load_recency(), Vec::<u64>::new());
    }
}

#[test]
fn names_tell_endpoint_url_and_version_apart() {
    let of = |endpoint: &str, url: &str, version: &str| {
        let [endpoint, url, version] = [endpoint, url, version].map(str::to_owned);
        ShardName::new(&Origin { endpoint, url, version })
    };
    let names = [of("a", "b", "c"), of("ab", "", "c"), of("a", "bc", ""), of("", "ab", "c")];
    for (at, name) in names.iter().enumerate() {
        assert!(names[at + 1..].iter().all(|other| other != name && other.hash() != name.hash()));
    }
    assert_eq!(of("a", "b", "c"), names[0]);
}

/// An excerpt is found by the URL of its shard, but is not that shard.
#[test]
fn excerpts_have_names_of_their_own() {
    for url in ["s3://bucket/0.tar", "s3://bucket/an.excerpt", "s3://bucket/0.idx"] {
        let whole = ShardName::new(&origin(url, "\"v\""));
        let version = crate::excerpt_source::excerpt_version("\"v\"", &"0f".repeat(16));
        let excerpt = origin(url, &version);
        let name = ShardName::new(&excerpt);
        assert!(name.is_excerpt() && !whole.is_excerpt(), "{url}");
        assert_eq!(name.label(), whole.label());
        assert!(name != whole && object_key(&excerpt) != object_key(&origin(url, "\"v\"")));
    }
}

#[test]
fn only_one_daemon_opens_a_directory() {
    let (root, directory) = open();
    let error = Directory::open(root.path(), Arc::new(LocalFiles), &Keys::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let pid = std::process::id().to_string();
    assert_eq!(error.place("pid"), Some(pid.as_str()));
    drop(directory);
    Directory::open(root.path(), Arc::new(LocalFiles), &Keys::default()).unwrap();
}

#[test]
fn foreign_directory_is_rejected_and_kept() {
    let root = TempDir::new().unwrap();
    assert_eq!(occupant(root.path()).unwrap(), Occupant::Nobody);
    let precious = root.path().join("thesis.tex");
    fs::write(&precious, b"chapter 1").unwrap();
    let error = Directory::open(root.path(), Arc::new(LocalFiles), &Keys::default()).unwrap_err();
    assert_eq!((error.kind(), error.place("found")), (ErrorKind::Invalid, Some("thesis.tex")));
    assert_eq!(fs::read(&precious).unwrap(), b"chapter 1");
    fs::remove_file(&precious).unwrap();
    drop(Directory::open(root.path(), Arc::new(LocalFiles), &Keys::default()).unwrap());
    assert_eq!(occupant(root.path()).unwrap(), Occupant::Cache);
    fs::write(root.path().join("FORMAT"), "forebay 2\n").unwrap();
    let error = occupant(root.path()).unwrap_err();
    assert_eq!((error.kind(), error.place("found")), (ErrorKind::Invalid, Some("forebay 2")));
}

/// File system calls of a directory, in order.
#[derive(Debug, Default)]
struct RecordedFiles(Mutex<Vec<String>>);

impl RecordedFiles {
    fn note(&self, call: &str, path: &Path) {
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let ending = file.find(".idx").or(file.find(".part")).map_or("data", |at| &file[at..]);
        let what = if file == "shards" { "shards" } else { ending };
        self.0.lock().unwrap().push(format!("{call} {what}"));
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Files for RecordedFiles {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.note("write", path);
        LocalFiles.write(path, bytes)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note("rename", to);
        LocalFiles.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.note("remove", path);
        LocalFiles.remove(path)
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        LocalFiles.truncate(path, len)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.note("sync", path);
        LocalFiles.sync_directory(path)
    }

    fn extent(&self, path: &Path) -> io::Result<Extent> {
        LocalFiles.extent(path)
    }

    fn identity(&self, path: &Path) -> io::Result<(u64, u64)> {
        LocalFiles.identity(path)
    }
}

#[test]
fn sidecar_appears_last_and_goes_first() {
    let root = TempDir::new().unwrap();
    let files = Arc::new(RecordedFiles::default());
    let directory = Directory::open(root.path(), files.clone(), &Keys::default()).unwrap();
    files.take();
    let recorded = record(&directory, "/d/0.tar");
    files.take();
    let name = store(&directory, "/d/0.tar", 100, 100);
    assert_eq!(name, recorded);
    // The record of the unfinished shard goes only once the sidecar is durable.
    assert_eq!(files.take(), ["write .idx.new", "rename .idx", "sync shards", "remove .part"]);
    // Most shards have none.
    store(&directory, "/d/1.tar", 100, 100);
    assert_eq!(files.take(), ["write .idx.new", "rename .idx", "sync shards"]);
    directory.remove(&name).unwrap();
    assert_eq!(files.take(), ["remove .idx", "remove .part", "remove data"]);
    directory.remove(&name).unwrap();
}

#[test]
fn replaced_directory_is_never_written() {
    let (root, directory) = open();
    let shards = root.path().join("shards");
    fs::rename(&shards, root.path().join("away")).unwrap();
    fs::create_dir(&shards).unwrap();
    let origin = origin("/d/0.tar", "v1");
    let name = ShardName::new(&origin);
    let errors = [
        directory.commit(&name, &sidecar(&origin, 100), None).unwrap_err(),
        directory.remove(&name).unwrap_err(),
        directory.save_recency(&[1]).unwrap_err(),
    ];
    for error in errors {
        let found = (error.kind(), error.place("reason"));
        assert_eq!(found, (ErrorKind::Unavailable, Some("replaced")));
    }
    assert_eq!(fs::read_dir(&shards).unwrap().count(), 0);
}

#[test]
fn moved_shard_keeps_its_age() {
    let (_root, directory) = open();
    let origin = origin("/d/0.tar", "v1");
    let name = ShardName::new(&origin);
    fs::write(directory.data(&name), [0; 100]).unwrap();
    let since = SystemTime::now() - Duration::from_secs(5000);
    directory.commit(&name, &sidecar(&origin, 100), Some(since)).unwrap();
    let found = directory.probe(&name).expect("it is whole");
    assert_eq!((found.written, found.bytes), (since, 100));
    assert_eq!((found.url.as_str(), found.tenant.as_deref()), ("/d/0.tar", Some("red")));
}

#[test]
fn recovery_keeps_whole_shards_and_removes_the_rest() {
    let (root, directory) = open();
    let shards = root.path().join("shards");
    let whole = store(&directory, "/d/whole.tar", 100, 100);
    let short = store(&directory, "/d/short.tar", 99, 100);
    let lost = store(&directory, "/d/lost.tar", 100, 100);
    fs::remove_file(directory.data(&lost)).unwrap();
    // A sidecar that names another shard than its file name does.
    let other = ShardName::new(&origin("/d/other.tar", "v1"));
    fs::copy(directory.sidecar(&whole), directory.sidecar(&other)).unwrap();
    fs::write(directory.data(&other), [0; 100]).unwrap();
    let torn = store(&directory, "/d/torn.tar", 100, 100);
    fs::write(directory.sidecar(&torn), [0; 40]).unwrap();
    let unfinished = ShardName::new(&origin("/d/unfinished.tar", "v1"));
    fs::write(directory.data(&unfinished), [0; 10]).unwrap();
    let aside = shards.join(format!("{}{SIDECAR_ASIDE}", unfinished.as_str()));
    fs::write(&aside, [0; 10]).unwrap();
    let foreign = shards.join("notes.txt");
    fs::write(&foreign, b"mine").unwrap();
    let recovered = directory.recover().unwrap();
    let names: Vec<_> = recovered.whole.iter().map(|found| found.name.clone()).collect();
    assert_eq!(names, std::slice::from_ref(&whole));
    assert!(recovered.partial.is_empty() && recovered.newer_bytes == 0);
    for name in [&short, &lost, &other, &torn, &unfinished] {
        assert!(!directory.data(name).exists() && !directory.sidecar(name).exists(), "{name:?}");
    }
    assert!(!aside.exists());
    assert_eq!(fs::read(&foreign).unwrap(), b"mine");
    // A second recovery has nothing left to do.
    assert_eq!(directory.survey().unwrap().len(), 2);
    assert_eq!(directory.url_of(&whole).as_deref(), Some("/d/whole.tar"));
}

#[test]
fn shards_are_recovered_oldest_first() {
    let (_root, directory) = open();
    let now = SystemTime::now();
    let ages = [300_u64, 100, 200];
    for age in ages {
        let origin = origin(&format!("/d/{age}.tar"), "v1");
        let name = ShardName::new(&origin);
        fs::write(directory.data(&name), [0; 10]).unwrap();
        let since = now - Duration::from_secs(age);
        directory.commit(&name, &sidecar(&origin, 10), Some(since)).unwrap();
    }
    let found = directory.recover().unwrap().whole;
    let urls: Vec<_> = found.iter().map(|found| found.url.as_str()).collect();
    assert_eq!(urls, ["/d/300.tar", "/d/200.tar", "/d/100.tar"]);
}

#[test]
fn record_of_an_unfinished_shard_needs_its_data() {
    let (_root, directory) = open();
    let (resumable, useless) = (record(&directory, "/d/0.tar"), record(&directory, "/d/1.tar"));
    fs::write(directory.data(&resumable), [0; 10]).unwrap();
    assert!(directory.has_partial(&useless));
    let recovered = directory.recover().unwrap();
    assert_eq!(recovered.partial.len(), 1);
    let found = &recovered.partial[0];
    assert_eq!((&found.name, found.bytes), (&resumable, 2 * BLOCK_BYTES));
    assert!(directory.has_partial(&resumable) && !directory.has_partial(&useless));
    assert!(directory.probe(&resumable).is_none(), "a part is no whole shard");
    assert_eq!(directory.url_of(&resumable).as_deref(), Some("/d/0.tar"));
}

#[test]
fn shard_of_a_newer_release_keeps_its_name() {
    let (_root, directory) = open();
    let name = store(&directory, "/d/0.tar", 100, 100);
    make_newer(&directory.sidecar(&name));
    let recovered = directory.recover().unwrap();
    assert_eq!((recovered.whole.len(), recovered.newer_bytes), (0, 100));
    assert!(directory.data(&name).exists());
    // This release stores the shard under another name, beside it.
    let here = directory.name_for(&name);
    assert_ne!(here, name);
    let origin = origin("/d/0.tar", "v1");
    fs::write(directory.data(&here), [0; 100]).unwrap();
    directory.commit(&here, &sidecar(&origin, 100), None).unwrap();
    assert_eq!(directory.probe(&here).map(|found| found.name), Some(here));
}

#[test]
fn damaged_index_is_no_index() {
    let (root, directory) = open();
    let origin = origin("/d/0.tar", "v1");
    let (name, saved) = (ShardName::new(&origin), sidecar(&origin, 100));
    assert!(directory.load_index(&name).is_none());
    directory.save_index(&name, &saved).unwrap();
    assert_eq!(directory.load_index(&name).map(|index| index.origin), Some(origin));
    let file = root.path().join("indexes").join(format!("{}{SIDECAR}", name.as_str()));
    let mut bytes = fs::read(&file).unwrap();
    bytes[20] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert!(directory.load_index(&name).is_none());
    directory.drop_index(&name).unwrap();
    directory.drop_index(&name).unwrap();
    assert!(!file.exists());
}

#[test]
fn rejected_directory_is_left_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("notes.txt"), "of others").unwrap();
    let error = Directory::open(root.path(), Arc::new(LocalFiles), &Keys::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(error.place("found"), Some("notes.txt"), "{error}");
    let left: Vec<_> = fs::read_dir(root.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
}
