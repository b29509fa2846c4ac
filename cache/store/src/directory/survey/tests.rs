//! Findings in a directory with torn, foreign, misplaced and newer files.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use forebay_shard::{BLOCK_BYTES, Partial};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::directory::tests::{make_newer, open, origin, sidecar, store};
use crate::directory::{HASH_DIGITS, Keys, object_key};
use crate::files::{Extent, Files, LocalFiles};

/// A finding, by its kind and its file.
fn told(finding: &Finding) -> (&'static str, String) {
    match finding {
        Finding::Whole(found) => ("whole", found.name.as_str().to_owned()),
        Finding::Partial(found) => ("partial", found.name.as_str().to_owned()),
        Finding::Leftover { file, .. } => ("leftover", file.clone()),
        Finding::Broken { name, .. } => ("broken", name.as_str().to_owned()),
        Finding::Newer { name, .. } => ("newer", name.as_str().to_owned()),
        Finding::Foreign { file } => ("foreign", file.clone()),
    }
}

fn survey(directory: &Directory) -> Vec<(&'static str, String)> {
    let mut found: Vec<_> = directory.survey().unwrap().iter().map(told).collect();
    found.sort();
    found
}

/// Findings of these kinds, sorted as a survey's.
fn sorted<const N: usize>(wanted: &[(&'static str, String); N]) -> Vec<(&'static str, String)> {
    let mut wanted = wanted.to_vec();
    wanted.sort();
    wanted
}

/// Records an unfinished shard of two blocks, with its data.
fn record(directory: &Directory, url: &str) -> ShardName {
    let origin = origin(url, "v1");
    let name = ShardName::new(&origin);
    let (tenant, blocks) = (Some("red".to_owned()), vec![Some(7), None]);
    let partial = Partial { origin, tenant, len: 2 * BLOCK_BYTES, blocks };
    directory.save_partial(&name, &partial).unwrap();
    fs::write(directory.data(&name), [0; 10]).unwrap();
    name
}

fn shards(root: &TempDir) -> std::path::PathBuf {
    root.path().join("shards")
}

/// Damage of a file.
#[derive(Debug, Clone)]
enum Damage {
    /// One bit differs.
    Flip(prop::sample::Index, u8),
    /// The end is missing.
    Cut(prop::sample::Index),
}

impl Damage {
    /// Damages the first `len` bytes of a file.
    fn apply(&self, path: &Path, len: usize) {
        let mut bytes = fs::read(path).unwrap();
        match self {
            Self::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
            Self::Cut(at) => bytes.truncate(at.index(len)),
        }
        fs::write(path, bytes).unwrap();
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (any::<prop::sample::Index>(), 0_u8..8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        any::<prop::sample::Index>().prop_map(Damage::Cut),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// No damage of a sidecar's head passes for a shard.
    #[test]
    fn damaged_head_is_never_a_shard(damage in damage()) {
        let (_root, directory) = open();
        let good = store(&directory, "/d/0.tar", 100, 100);
        let bad = store(&directory, "/d/1.tar", 100, 100);
        damage.apply(&directory.sidecar(&bad), HEAD_BYTES);
        let text = |name: &ShardName| name.as_str().to_owned();
        let wanted = sorted(&[("whole", text(&good)), ("broken", text(&bad))]);
        prop_assert_eq!(survey(&directory), wanted);
        prop_assert!(directory.probe(&bad).is_none() && directory.url_of(&bad).is_none());
        prop_assert!(directory.probe(&good).is_some());
    }

    /// No damage of a record passes for a shard that a fill can resume.
    #[test]
    fn damaged_record_is_never_resumed(damage in damage()) {
        let (_root, directory) = open();
        let (good, bad) = (record(&directory, "/d/0.tar"), record(&directory, "/d/1.tar"));
        let path = directory.partial(&bad);
        damage.apply(&path, fs::read(&path).unwrap().len());
        let text = |name: &ShardName| name.as_str().to_owned();
        let wanted = sorted(&[
            ("partial", text(&good)),
            ("leftover", text(&bad)),
            ("leftover", format!("{}{PARTIAL}", bad.as_str())),
        ]);
        prop_assert_eq!(survey(&directory), wanted);
        prop_assert!(directory.url_of(&bad).is_none());
        let partial = directory.recover().unwrap().partial;
        prop_assert_eq!(partial.len(), 1);
        prop_assert_eq!(partial[0].tenant.as_deref(), Some("red"));
        prop_assert!(!directory.data(&bad).exists() && directory.data(&good).exists());
    }
}

#[test]
fn length_of_the_data_decides() {
    let (_root, directory) = open();
    for (len, told_len, is_whole) in
        [(0, 0, true), (1, 0, false), (0, 1, false), (4096, 4096, true), (4097, 4096, false)]
    {
        let name = store(&directory, "/d/0.tar", len, told_len);
        assert_eq!(directory.probe(&name).is_some(), is_whole, "{len} {told_len}");
        let kind = if is_whole { "whole" } else { "broken" };
        assert_eq!(survey(&directory), [(kind, name.as_str().to_owned())]);
    }
}

#[test]
fn foreign_names_are_never_removed() {
    let (root, directory) = open();
    let whole = store(&directory, "/d/0.tar", 10, 10);
    let (hash, rest) = whole.as_str().split_at(HASH_DIGITS);
    let names = [
        "notes.txt".to_owned(),
        // Endings alone make no shard.
        ".idx".to_owned(),
        "notes.part".to_owned(),
        "notes.idx.new".to_owned(),
        format!("{}{rest}", &hash[1..]),
        format!("{}{rest}", hash.to_uppercase().replace(|c: char| c.is_ascii_digit(), "A")),
        format!("{hash}_0.tar"),
        hash.to_owned(),
    ];
    for name in &names {
        fs::write(shards(&root).join(name), b"mine").unwrap();
    }
    let raw = shards(&root).join(OsStr::from_bytes(b"\xff\xfe-0.tar"));
    fs::write(&raw, b"mine").unwrap();
    let found = survey(&directory);
    assert_eq!(found.len(), names.len() + 2);
    assert_eq!(found.iter().filter(|(kind, _)| *kind == "foreign").count(), names.len() + 1);
    assert_eq!(directory.recover().unwrap().whole.len(), 1);
    assert!(names.iter().all(|name| shards(&root).join(name).exists()) && raw.exists());
}

#[test]
fn only_plain_files_are_shards() {
    let (root, directory) = open();
    let [folder, link] = ["/d/0.tar", "/d/1.tar"].map(|url| ShardName::new(&origin(url, "v1")));
    fs::create_dir(directory.data(&folder)).unwrap();
    let precious = root.path().join("precious");
    fs::write(&precious, [0; 10]).unwrap();
    symlink(&precious, directory.data(&link)).unwrap();
    let linked = ("broken", link.as_str().to_owned());
    assert!(survey(&directory).iter().all(|(kind, _)| *kind == "foreign"));
    directory.recover().unwrap();
    assert!(directory.data(&folder).exists() && directory.data(&link).is_symlink());
    // A sidecar beside them makes no shard of them either.
    directory.commit(&link, &sidecar(&origin("/d/1.tar", "v1"), 10), None).unwrap();
    assert!(survey(&directory).contains(&linked));
    directory.recover().unwrap();
    assert!(precious.exists());
}

#[test]
fn unfinished_writes_are_leftovers() {
    let (_root, directory) = open();
    let name = store(&directory, "/d/0.tar", 10, 10);
    for ending in [SIDECAR_ASIDE, PARTIAL_ASIDE] {
        fs::write(directory.shards.join(format!("{}{ending}", name.as_str())), b"torn").unwrap();
    }
    let of = |ending: &str| format!("{}{ending}", name.as_str());
    let wanted = [
        ("leftover", of(SIDECAR_ASIDE)),
        ("leftover", of(PARTIAL_ASIDE)),
        ("whole", name.as_str().to_owned()),
    ];
    assert_eq!(survey(&directory), sorted(&wanted));
    assert_eq!(directory.recover().unwrap().whole.len(), 1);
    assert_eq!(survey(&directory), [("whole", name.as_str().to_owned())]);
}

#[test]
fn record_beside_a_whole_shard_is_a_leftover() {
    let (_root, directory) = open();
    let name = store(&directory, "/d/0.tar", 10, 10);
    // A crash between the commit and the removal of the record.
    record(&directory, "/d/0.tar");
    let text = name.as_str().to_owned();
    let leftover = ("leftover", format!("{text}{PARTIAL}"));
    assert_eq!(survey(&directory), sorted(&[leftover, ("whole", text)]));
    let recovered = directory.recover().unwrap();
    assert_eq!((recovered.whole.len(), recovered.partial.len()), (1, 0));
    assert!(!directory.has_partial(&name) && directory.data(&name).exists());
}

#[test]
fn record_of_another_shard_is_a_leftover() {
    let (_root, directory) = open();
    let (name, other) = (record(&directory, "/d/0.tar"), ShardName::new(&origin("/d/1.tar", "v1")));
    fs::rename(directory.partial(&name), directory.partial(&other)).unwrap();
    fs::rename(directory.data(&name), directory.data(&other)).unwrap();
    assert!(survey(&directory).iter().all(|(kind, _)| *kind == "leftover"));
    // The alternative name is one of this shard.
    let alternate = name.alternate();
    fs::rename(directory.partial(&other), directory.partial(&alternate)).unwrap();
    fs::rename(directory.data(&other), directory.data(&alternate)).unwrap();
    assert_eq!(survey(&directory), [("partial", alternate.as_str().to_owned())]);
}

#[test]
fn shard_under_its_alternative_name_is_whole() {
    let (_root, directory) = open();
    let name = store(&directory, "/d/0.tar", 10, 10);
    let alternate = name.alternate();
    fs::rename(directory.sidecar(&name), directory.sidecar(&alternate)).unwrap();
    fs::rename(directory.data(&name), directory.data(&alternate)).unwrap();
    let found = directory.probe(&alternate).unwrap();
    assert_eq!((found.name, found.url.as_str(), found.bytes), (alternate, "/d/0.tar", 10));
    assert_eq!(found.object, object_key(&origin("/d/0.tar", "v2")), "of any version");
}

#[test]
fn shards_of_a_newer_release_are_kept_and_counted() {
    let (_root, directory) = open();
    let names = ["/d/0.tar", "/d/1.tar"].map(|url| store(&directory, url, 100, 100));
    names.iter().for_each(|name| make_newer(&directory.sidecar(name)));
    // Only that release knows which data its sidecar needs.
    fs::remove_file(directory.data(&names[1])).unwrap();
    assert_eq!(directory.name_for(&names[0]), names[0]);
    assert!(directory.probe(&names[0]).is_none());
    assert_eq!(directory.name_for(&names[0]), names[0].alternate(), "a probe finds it, too");
    assert_eq!(directory.url_of(&names[0]), None);
    let recovered = directory.recover().unwrap();
    assert_eq!((recovered.newer_bytes, recovered.whole.len()), (100, 0));
    assert_eq!(directory.name_for(&names[1]), names[1].alternate());
    assert!(names.iter().all(|name| directory.sidecar(name).exists()));
}

/// A file system that takes no removals.
#[derive(Debug)]
struct StuckFiles;

impl Files for StuckFiles {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        LocalFiles.write(path, bytes)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        LocalFiles.rename(from, to)
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        LocalFiles.truncate(path, len)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
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
fn recovery_serves_shards_beside_files_that_stay() {
    let root = TempDir::new().unwrap();
    let directory = Directory::open(root.path(), Arc::new(StuckFiles), &Keys::default()).unwrap();
    let whole = store(&directory, "/d/0.tar", 10, 10);
    let broken = store(&directory, "/d/1.tar", 9, 10);
    let leftover = ShardName::new(&origin("/d/2.tar", "v1"));
    fs::write(directory.data(&leftover), b"torn").unwrap();
    let recovered = directory.recover().unwrap();
    assert_eq!(recovered.whole.len(), 1);
    assert_eq!(recovered.whole[0].name, whole);
    assert!(directory.sidecar(&broken).exists() && directory.data(&leftover).exists());
}
