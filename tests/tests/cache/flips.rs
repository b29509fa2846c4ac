//! One wrong bit in every region of a shard and of its sidecar: found each time, served never.
//!
//! A member's bytes are checked when they are read; the sidecar when the shard is opened, and by
//! `fsck`; everything else by `scrub`. `upkeep.rs` and `integrity.rs` have the whole daemon meet
//! some of these; here each region is covered, on disks of each sector size that this machine can
//! have.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay_shard::{HEAD_BYTES, Sidecar};
use forebay_store::{FaultKind, fsck};
use forebay_testkit::{Random, Requirement, for_seeds, image, label, say, shard, skip};
use forebay_tests::{BareStoreConfig, Daemon, LoopDisk, SIZES, cached_file, eventually, flip};

/// A block and a half.
const SAMPLES: u64 = 150;

/// Bytes of each region that are flipped: its first, its last, and one in between.
const BETWEEN: u64 = 1;

/// A tar's headers and padding come in these.
const RECORD: u64 = 512;

/// Room for the shard and whatever comes beside it.
const CAPACITY: u64 = 64 << 20;

/// When a wrong bit is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// By whoever reads the member.
    Read,
    /// By whoever opens the shard, and by `fsck`.
    Open,
    /// By `scrub` only: nobody is served from it.
    Scrub,
}

struct Region {
    name: &'static str,
    ending: &'static str,
    bytes: Range<u64>,
    found: Found,
}

/// Every region of the data file: of a member at the front, in the middle and at the end.
fn regions_of_data(sidecar: &Sidecar) -> Vec<Region> {
    let members = &sidecar.index.members;
    let mut regions = Vec::new();
    let mut add = |name, bytes: Range<u64>, found| {
        regions.push(Region { name, ending: "-0.tar", bytes, found });
    };
    for at in [0, 1, members.len() / 2, members.len() - 1] {
        let member = &members[at];
        add("a member's header", member.offset - RECORD..member.offset, Found::Scrub);
        add("a member's bytes", member.offset..member.end(), Found::Read);
        add(
            "a member's padding",
            member.end()..member.end().next_multiple_of(RECORD),
            Found::Scrub,
        );
    }
    let last = members[members.len() - 1].end().next_multiple_of(RECORD);
    add("the end blocks", last..sidecar.len, Found::Scrub);
    regions
}

/// Every field of the sidecar, in the order of its layout (`cache/shard/src/sidecar.rs`).
fn regions_of_sidecar(sidecar: &Sidecar, len: u64) -> Vec<Region> {
    let (origin, index) = (&sidecar.origin, &sidecar.index);
    let mut regions = Vec::new();
    let mut at = 0;
    let mut add = |name, bytes: usize| {
        let bytes = at..at + bytes as u64;
        at = bytes.end;
        regions.push(Region { name, ending: "-0.tar.idx", bytes, found: Found::Open });
        at
    };
    for (name, bytes) in [
        ("the magic", 8),
        ("the format", 4),
        ("the head's checksum", 4),
        ("the shard's length", 8),
        ("the body's length", 8),
        ("the body's checksum", 4),
        ("the number of fields", 4),
        ("the number of members", 4),
        ("the number of samples", 4),
        ("the lengths of the names", 6),
        ("the endpoint", origin.endpoint.len()),
        ("the URL", origin.url.len()),
        ("the version", origin.version.len()),
    ] {
        add(name, bytes);
    }
    let head = add("", 0);
    add("the head's zeros", HEAD_BYTES - usize::try_from(head).unwrap());
    add("the blocks' checksums", 4 * sidecar.blocks.len());
    for field in &index.fields {
        add("a field's length", 4);
        add("a field's name", field.len());
    }
    for number in 0..index.members.len() {
        // The first and the last; the others are like them.
        match number == 0 || number + 1 == index.members.len() {
            true => {
                for (name, bytes) in [
                    ("a member's field", 4),
                    ("a member's offset", 8),
                    ("a member's length", 8),
                    ("a member's checksum", 4),
                ] {
                    add(name, bytes);
                }
            }
            false => drop(add("other members", 24)),
        }
    }
    for sample in &index.samples {
        add("a sample's number of members", 4);
        add("a key's length", 4);
        add("a key", sample.key.len());
        add("the length of a reason", 4);
    }
    assert_eq!(add("", 0), len, "the layout is another");
    regions.retain(|region| !region.bytes.is_empty());
    regions
}

/// Bytes to flip in the regions. Of regions that are many and alike a few are taken.
fn places(regions: &[Region], random: &mut Random) -> Vec<(usize, u64)> {
    let mut seen = std::collections::BTreeMap::<&str, u64>::new();
    let mut places = Vec::new();
    for (number, region) in regions.iter().enumerate() {
        let times = seen.entry(region.name).or_default();
        *times += 1;
        let is_one_of_many = region.ending == "-0.tar.idx" && *times > 2;
        if is_one_of_many && !random.percent(1) {
            continue;
        }
        let between = (0..BETWEEN).map(|_| random.within(region.bytes.clone()));
        let mut of: Vec<_> =
            [region.bytes.start, region.bytes.end - 1].into_iter().chain(between).collect();
        of.sort_unstable();
        of.dedup();
        places.extend(of.into_iter().map(|at| (number, at)));
    }
    places
}

/// A cache with one shard, under `root`.
struct Bench {
    cache: PathBuf,
    url: String,
    tar: Vec<u8>,
    right: Vec<Vec<u8>>,
}

impl Bench {
    fn new(root: &Path) -> Self {
        let tar = shard(SAMPLES, 0, &SIZES);
        let path = root.join("0.tar");
        fs::write(&path, &tar).unwrap();
        let members = |i| [image(0, i, &SIZES), label(0, i).into_bytes()];
        let right = (0..SAMPLES).flat_map(members).collect();
        let url = format!("file://{}", path.display());
        Self { cache: root.join("cache"), url, tar, right }
    }

    fn file(&self, ending: &str) -> PathBuf {
        cached_file(&self.cache.join("shards"), ending).unwrap()
    }

    /// Reads the shard with a new store. Whatever lies on the disk, the bytes are the origin's, and
    /// at the end so is the file. Says how often it was fetched, found wrong when it was opened or
    /// read, and found wrong by a scrub before and after the read.
    fn read(&self) -> (u64, u64, u64) {
        let bare = BareStoreConfig::new(self.cache.clone(), CAPACITY).open();
        assert!(bare.read_all(&self.url).unwrap() == self.right, "wrong bytes were served");
        let settled = || {
            let counters = bare.store.counters();
            counters.misses == counters.ended()
        };
        eventually("it is whole", settled);
        let scrub = bare.runtime.block_on(bare.store.scrub(false, |_| ())).unwrap();
        let (fills, corruptions) = (bare.store.counters().fills, bare.store.counters().corruptions);
        if scrub.wrong > 0 {
            assert!(bare.read_all(&self.url).unwrap() == self.right);
            eventually("it is whole", settled);
        }
        bare.end();
        assert!(fs::read(self.file("-0.tar")).unwrap() == self.tar, "it was not healed");
        (fills, corruptions, scrub.wrong)
    }

    fn run(&self, random: &mut Random) -> usize {
        assert_eq!(self.read(), (1, 0, 0));
        let bytes = fs::read(self.file("-0.tar.idx")).unwrap();
        let sidecar = Sidecar::decode(&bytes).unwrap();
        let mut regions = regions_of_data(&sidecar);
        regions.extend(regions_of_sidecar(&sidecar, bytes.len() as u64));
        let places = places(&regions, random);
        for (number, at) in &places {
            let Region { name, ending, found, .. } = &regions[*number];
            flip(&self.file(ending), *at);
            let what = format!("{name}, byte {at} of {ending}");
            let checkup = fsck(&self.cache, false, None, |_, _| {}).unwrap();
            let kinds: Vec<_> = checkup.faults.iter().map(|fault| fault.kind).collect();
            let (fills, corruptions, scrubbed) = self.read();
            match found {
                Found::Open => {
                    assert_eq!(kinds, [FaultKind::Broken], "fsck: {what}");
                    assert_eq!((fills, scrubbed), (1, 0), "{what}");
                }
                Found::Read => assert_eq!((fills, corruptions, scrubbed), (1, 1, 0), "{what}"),
                // Counted before the scrub dropped it.
                Found::Scrub => assert_eq!((fills, scrubbed), (0, 1), "{what}"),
            }
        }
        places.len()
    }
}

/// Bears promise 1 (origin bytes or nothing): on the disk that holds the build, and on disks with
/// sectors of 512 bytes and of 4 KiB. One after the other: their stores share the frames.
#[test]
fn flipped_bits_are_found_in_every_place() {
    for_seeds("FOREBAY_FLIPS_SEED", "FOREBAY_FLIPS_ROUNDS", 1, |seed| {
        let mut random = Random::new(seed);
        let disk = Daemon::disk();
        let flips = Bench::new(disk.path()).run(&mut random);
        say(&format!("{flips} flips, all found"));
        for sector in [512, 4096] {
            match LoopDisk::new(sector) {
                Err(why) => skip(Requirement::Loop, &format!("sectors of {sector} bytes: {why}")),
                Ok(disk) => {
                    let flips = Bench::new(&disk.path()).run(&mut random);
                    say(&format!("{flips} flips on sectors of {sector} bytes, all found"));
                }
            }
        }
    });
}
