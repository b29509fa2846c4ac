//! What rests in a cache directory, and harm done to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_shard::{HEAD_BYTES, Head, Partial};

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
