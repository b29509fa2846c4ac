//! Checks and repairs of cache directories with faults of every kind.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::fs;
use std::path::PathBuf;

use forebay_shard::checksum::crc32c;
use forebay_shard::{BLOCK_BYTES, HEAD_BYTES, Index, Origin, Partial, Sidecar};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::directory::ShardName;

const BYTES: u64 = 100;

struct Fixture {
    root: TempDir,
}

impl Fixture {
    /// An empty cache.
    fn new() -> Self {
        let of = Self { root: TempDir::new().unwrap() };
        drop(of.open());
        of
    }

    fn open(&self) -> Directory {
        Directory::open(self.root.path(), Arc::new(LocalFiles), &Keys::default()).unwrap()
    }

    fn origin(number: usize) -> Origin {
        let (endpoint, url) = ("file".to_owned(), format!("/d/{number}.tar"));
        Origin { endpoint, url, version: "v1".to_owned() }
    }

    /// Path of a shard's data file, with an ending.
    fn path(&self, number: usize, ending: &str) -> PathBuf {
        let name = ShardName::new(&Self::origin(number));
        self.root.path().join("shards").join(format!("{}{ending}", name.as_str()))
    }

    /// Stores a whole shard.
    fn store(&self, number: usize) {
        let origin = Self::origin(number);
        let name = ShardName::new(&origin);
        let (tenant, compressed_len, index) = (None, None, Index::default());
        let sidecar =
            Sidecar { origin, tenant, len: BYTES, compressed_len, blocks: vec![0], index };
        fs::write(self.path(number, ""), [0; BYTES as usize]).unwrap();
        self.open().commit(&name, &sidecar, None).unwrap();
    }

    /// Stores a part of a shard.
    fn record(&self, number: usize) {
        let origin = Self::origin(number);
        let name = ShardName::new(&origin);
        let partial = Partial { origin, tenant: None, len: BLOCK_BYTES, blocks: vec![None] };
        self.open().save_partial(&name, &partial).unwrap();
        fs::write(self.path(number, ""), [0; 10]).unwrap();
    }

    fn edit(&self, number: usize, ending: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let path = self.path(number, ending);
        let mut bytes = fs::read(&path).unwrap();
        edit(&mut bytes);
        fs::write(path, bytes).unwrap();
    }

    /// Puts something into the directory. Returns the kind of its fault, if it is one.
    fn put(&self, number: usize, thing: Thing) -> Option<FaultKind> {
        match thing {
            Thing::Whole => self.store(number),
            Thing::Part => self.record(number),
            Thing::TornData => {
                self.store(number);
                self.edit(number, "", |bytes| bytes.truncate(50));
            }
            Thing::TornHead => {
                self.store(number);
                self.edit(number, ".idx", |bytes| bytes.truncate(50));
            }
            Thing::WrongBody => {
                self.store(number);
                self.edit(number, ".idx", |bytes| bytes[HEAD_BYTES] ^= 1);
            }
            Thing::Data => fs::write(self.path(number, ""), b"torn").unwrap(),
            Thing::Aside => fs::write(self.path(number, ".idx.new"), b"torn").unwrap(),
            Thing::Newer => {
                self.store(number);
                self.edit(number, ".idx", |bytes| make_newer(bytes));
            }
            Thing::Foreign => {
                let name = format!("shards/notes {number}");
                fs::write(self.root.path().join(name), b"mine").unwrap();
            }
        }
        match thing {
            Thing::Whole | Thing::Part => None,
            Thing::TornData | Thing::TornHead | Thing::WrongBody => Some(FaultKind::Broken),
            Thing::Data | Thing::Aside => Some(FaultKind::Leftover),
            Thing::Newer => Some(FaultKind::Newer),
            Thing::Foreign => Some(FaultKind::Foreign),
        }
    }

    /// Checks the cache, and sorts its faults: leftovers come in no order.
    fn check(&self, repair: bool) -> Checkup {
        let mut found = fsck(self.root.path(), repair, None, |_, _| {}).unwrap();
        found.faults.sort_by(|one, other| one.file.cmp(&other.file));
        found
    }

    /// Number of files beside the lock and the format.
    fn files(&self) -> usize {
        fs::read_dir(self.root.path().join("shards")).unwrap().count()
    }
}

/// Makes a sidecar one of a later format.
fn make_newer(bytes: &mut [u8]) {
    bytes[8..12].copy_from_slice(&99_u32.to_le_bytes());
    bytes[12..16].fill(0);
    let crc = crc32c(&bytes[..HEAD_BYTES]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
}

/// Something in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Thing {
    Whole,
    Part,
    TornData,
    TornHead,
    WrongBody,
    Data,
    Aside,
    Newer,
    Foreign,
}

const THINGS: [Thing; 9] = [
    Thing::Whole,
    Thing::Part,
    Thing::TornData,
    Thing::TornHead,
    Thing::WrongBody,
    Thing::Data,
    Thing::Aside,
    Thing::Newer,
    Thing::Foreign,
];

#[test]
fn directory_without_a_cache_stays_as_it_is() {
    let root = TempDir::new().unwrap();
    for path in [root.path().to_owned(), root.path().join("missing")] {
        let error = fsck(&path, true, None, |_, _| {}).unwrap_err();
        let directory = path.display().to_string();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.place("directory"), Some(directory.as_str()));
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn directory_of_a_running_daemon_is_rejected() {
    let of = Fixture::new();
    let directory = of.open();
    let error = fsck(of.root.path(), false, None, |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    drop(directory);
    assert_eq!(of.check(false), Checkup::default());
}

#[test]
fn every_kind_of_fault_is_found() {
    for thing in THINGS {
        let of = Fixture::new();
        let kind = of.put(0, thing);
        let found = of.check(false);
        assert_eq!(found.faults.iter().map(|fault| fault.kind).next(), kind, "{thing:?}");
        assert!(found.faults.iter().all(|fault| !fault.repaired && !fault.why.is_empty()));
        let counts = (found.shards, found.bytes, found.partial);
        let wanted = match thing {
            Thing::Whole => (1, BYTES, 0),
            Thing::Part => (0, 0, 1),
            _ => (0, 0, 0),
        };
        assert_eq!(counts, wanted, "{thing:?}");
        let is_ours = matches!(kind, Some(FaultKind::Broken | FaultKind::Leftover));
        assert_eq!(found.is_clean(), !is_ours, "{thing:?}");
    }
}

#[test]
fn fault_names_its_file() {
    let of = Fixture::new();
    of.put(0, Thing::WrongBody);
    of.put(1, Thing::Aside);
    of.put(2, Thing::Foreign);
    let mut files: Vec<_> = of.check(false).faults.into_iter().map(|fault| fault.file).collect();
    files.sort();
    let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let mut wanted = [name(of.path(0, "")), name(of.path(1, ".idx.new")), "notes 2".to_owned()];
    wanted.sort();
    assert_eq!(files, wanted);
}

#[test]
fn progress_counts_up_to_the_number_of_findings() {
    let of = Fixture::new();
    for (number, thing) in THINGS.into_iter().enumerate() {
        of.put(number, thing);
    }
    let mut told = Vec::new();
    fsck(of.root.path(), false, None, |done, total| told.push((done, total))).unwrap();
    let total = THINGS.len() as u64;
    assert_eq!(told, (1..=total).map(|done| (done, total)).collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// A repair removes faults of Forebay's own, and nothing else.
    #[test]
    fn repair_leaves_shards_and_foreign_files(
        things in prop::collection::vec(prop::sample::select(THINGS.to_vec()), 0..8),
    ) {
        let of = Fixture::new();
        let put = |(number, thing): (usize, &Thing)| of.put(number, *thing);
        let mut faults: Vec<_> = things.iter().enumerate().filter_map(put).collect();
        let before = (of.check(false), of.files());
        prop_assert_eq!((of.check(false), of.files()), before, "a check changes nothing");
        let repaired = of.check(true);
        prop_assert!(repaired.is_clean());
        let mut found: Vec<_> = repaired.faults.iter().map(|fault| fault.kind).collect();
        let key = |kind: &FaultKind| *kind as u8;
        faults.sort_by_key(key);
        found.sort_by_key(key);
        prop_assert_eq!(found, faults);
        let left = of.check(true);
        let foreign = |kind| matches!(kind, FaultKind::Newer | FaultKind::Foreign);
        prop_assert!(left.faults.iter().all(|fault| foreign(fault.kind) && !fault.repaired));
        let counts = |of: &Checkup| (of.shards, of.bytes, of.partial);
        prop_assert_eq!(counts(&left), counts(&repaired));
        let files = things.iter().map(|thing| match thing {
            Thing::Whole | Thing::Part | Thing::Newer => 2,
            Thing::Foreign => 1,
            _ => 0,
        });
        prop_assert_eq!(of.files(), files.sum::<usize>());
    }
}
