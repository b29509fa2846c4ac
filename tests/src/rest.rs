//! What rests in a cache directory, and harm done to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_shard::{HEAD_BYTES, Head, Partial, checksum};

/// The format in which sidecars are written.
pub const FORMAT: u32 = 4;

/// One that no release has come to yet.
const FORMAT_TO_COME: u32 = 99;

/// The format that knew no tenants.
const FORMAT_WITHOUT_TENANTS: u32 = 2;

/// Where a sidecar says its format, its head's checksum, from format 4 on the length of an object that
/// is compressed, and from format 3 on that of its tenant's name.
const FORMAT_AT: std::ops::Range<usize> = 8..12;
const CRC_AT: std::ops::Range<usize> = 12..16;
const COMPRESSED_AT: std::ops::Range<usize> = 48..56;
const TENANT_AT: std::ops::Range<usize> = 62..64;

/// The file among a cache's `shards` whose name ends like this, if there is one.
#[must_use]
pub fn resting(shards: &Path, ending: &str) -> Option<PathBuf> {
    let mut files = fs::read_dir(shards).ok()?.flatten().map(|entry| entry.path());
    files.find(|path| path.to_string_lossy().ends_with(ending))
}

/// Flips a bit of the byte at `at`.
///
/// # Panics
/// If there is no such byte.
pub fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("the file exists");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("the byte exists");
    file.write_all_at(&[byte[0] ^ 0x10], at).expect("the file is writable");
}

/// The format that a sidecar says it has.
///
/// # Panics
/// If it cannot be read.
#[must_use]
pub fn format_of(sidecar: &Path) -> u32 {
    let bytes = fs::read(sidecar).expect("the sidecar exists");
    u32::from_le_bytes(bytes[FORMAT_AT].try_into().expect("four bytes"))
}

/// Makes the sidecar of a plain tar what the release before would have written.
///
/// # Panics
/// If it cannot be rewritten, or is of a compressed object.
pub fn to_format_before(sidecar: &Path) {
    rewrite(sidecar, FORMAT - 1, |bytes| without(bytes, COMPRESSED_AT));
}

/// Makes the sidecar of a plain tar, and no tenant's, what a release would have written that knew none.
///
/// # Panics
/// If it cannot be rewritten, is of a compressed object, or has a tenant.
pub fn to_format_without_tenants(sidecar: &Path) {
    rewrite(sidecar, FORMAT_WITHOUT_TENANTS, |bytes| {
        without(bytes, TENANT_AT);
        without(bytes, COMPRESSED_AT);
    });
}

/// Takes an empty field out of a sidecar's head.
fn without(bytes: &mut Vec<u8>, field: std::ops::Range<usize>) {
    let field: Vec<u8> = bytes.drain(field).collect();
    assert!(field.iter().all(|byte| *byte == 0), "no release before could have said that");
    // What follows moves up; zeros fill the head behind it.
    let end = HEAD_BYTES - field.len();
    bytes.splice(end..end, field);
}

/// Makes a sidecar one of a release to come, as sound as its writer would.
///
/// # Panics
/// If it cannot be rewritten.
pub fn to_format_to_come(sidecar: &Path) {
    rewrite(sidecar, FORMAT_TO_COME, |_| ());
}

fn rewrite(sidecar: &Path, format: u32, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(sidecar).expect("the sidecar exists");
    bytes[FORMAT_AT].copy_from_slice(&format.to_le_bytes());
    change(&mut bytes);
    bytes[CRC_AT].fill(0);
    let crc = checksum::crc32c(&bytes[..HEAD_BYTES]);
    bytes[CRC_AT].copy_from_slice(&crc.to_le_bytes());
    fs::write(sidecar, bytes).expect("the sidecar is writable");
}

/// A cache's `shards`, as whoever looks at the directory sees them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Rest {
    /// Data files with a sound sidecar of the same length: their URLs and bytes.
    pub whole: BTreeMap<String, (String, u64)>,
    /// Data files with a sound record, and the bytes that their shards will have.
    pub partial: BTreeMap<String, u64>,
    /// Every other file.
    pub others: BTreeSet<String>,
}

impl Rest {
    /// Looks. What comes and goes meanwhile may be seen in part: ask again until nothing is under way.
    #[must_use]
    pub fn of(cache: &Path) -> Self {
        let shards = cache.join("shards");
        let listed = fs::read_dir(&shards).into_iter().flatten().flatten();
        let names = listed.filter_map(|entry| entry.file_name().into_string().ok());
        let mut rest = Self { others: names.collect(), ..Self::default() };
        let sidecars = rest.others.iter().filter(|name| name.ends_with(".idx")).cloned();
        for sidecar in sidecars.collect::<Vec<_>>() {
            let data = sidecar.trim_end_matches(".idx").to_owned();
            let bytes = fs::read(shards.join(&sidecar)).unwrap_or_default();
            let head = bytes.get(..HEAD_BYTES).and_then(|head| Head::decode(head).ok());
            let len = fs::metadata(shards.join(&data)).map(|about| about.len()).ok();
            if let (Some(head), Some(len)) = (head, len)
                && head.len == len
            {
                rest.others.remove(&sidecar);
                rest.others.remove(&data);
                rest.whole.insert(data, (head.origin.url, len));
            }
        }
        let records = rest.others.iter().filter(|name| name.ends_with(".part")).cloned();
        for record in records.collect::<Vec<_>>() {
            let data = record.trim_end_matches(".part").to_owned();
            let bytes = fs::read(shards.join(&record)).unwrap_or_default();
            if let Ok(partial) = Partial::decode(&bytes)
                && rest.others.contains(&data)
            {
                rest.others.remove(&record);
                rest.others.remove(&data);
                rest.partial.insert(data, partial.len);
            }
        }
        rest
    }

    /// Bytes of shards, arriving ones by what they will have.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.whole.values().map(|(_, len)| len).sum::<u64>() + self.partial.values().sum::<u64>()
    }
}
