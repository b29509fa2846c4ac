//! Contents of a cache directory, and damage done to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_shard::{HEAD_BYTES, Head, Partial, checksum};

/// Format of a sidecar without links.
pub const FORMAT: u32 = 4;

/// Format of a future release.
const FORMAT_TO_COME: u32 = 99;

/// Last format without tenants.
const FORMAT_WITHOUT_TENANTS: u32 = 2;

/// Offsets in a sidecar: its format, the checksum of its head, from format 4 on the length of a
/// compressed object, from format 3 on the length of the tenant's name.
const FORMAT_AT: std::ops::Range<usize> = 8..12;
const CRC_AT: std::ops::Range<usize> = 12..16;
const COMPRESSED_AT: std::ops::Range<usize> = 48..56;
const TENANT_AT: std::ops::Range<usize> = 62..64;

/// The file of a cache's `shards` whose name has this ending, if there is one.
#[must_use]
pub fn cached_file(shards: &Path, ending: &str) -> Option<PathBuf> {
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

/// Reads the format of a sidecar.
///
/// # Panics
/// If it cannot be read.
#[must_use]
pub fn format_of(sidecar: &Path) -> u32 {
    let bytes = fs::read(sidecar).expect("the sidecar exists");
    u32::from_le_bytes(bytes[FORMAT_AT].try_into().expect("four bytes"))
}

/// Rewrites the sidecar of a plain tar in the format of the previous release.
///
/// # Panics
/// If it cannot be rewritten, or is of a compressed object.
pub fn to_previous_format(sidecar: &Path) {
    rewrite(sidecar, FORMAT - 1, |bytes| without(bytes, COMPRESSED_AT));
}

/// Rewrites the sidecar of a plain tar without a tenant in the last format without tenants.
///
/// # Panics
/// If it cannot be rewritten, is of a compressed object, or has a tenant.
pub fn to_format_without_tenants(sidecar: &Path) {
    rewrite(sidecar, FORMAT_WITHOUT_TENANTS, |bytes| {
        without(bytes, TENANT_AT);
        without(bytes, COMPRESSED_AT);
    });
}

/// Removes an empty field from a sidecar's head.
fn without(bytes: &mut Vec<u8>, field: std::ops::Range<usize>) {
    let field: Vec<u8> = bytes.drain(field).collect();
    assert!(field.iter().all(|byte| *byte == 0), "no release before could have said that");
    // The following fields move up; zeros fill the end of the head.
    let end = HEAD_BYTES - field.len();
    bytes.splice(end..end, field);
}

/// Rewrites a sidecar as valid in the format of a future release.
///
/// # Panics
/// If it cannot be rewritten.
pub fn to_future_format(sidecar: &Path) {
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

/// Contents of a cache's `shards` directory.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct CacheContents {
    /// Data files with a valid sidecar of the same length: their URLs and bytes.
    pub whole: BTreeMap<String, (String, u64)>,
    /// Data files with a valid record, and the final bytes of their shards.
    pub partial: BTreeMap<String, u64>,
    /// Every other file.
    pub others: BTreeSet<String>,
}

impl CacheContents {
    /// Reads the directory. Call it again until nothing is under way: concurrent changes may be
    /// seen in part.
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

    /// Bytes of shards, arriving ones with their final bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.whole.values().map(|(_, len)| len).sum::<u64>() + self.partial.values().sum::<u64>()
    }
}
