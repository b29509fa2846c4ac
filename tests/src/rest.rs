//! What rests in a cache directory, and harm done to it.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

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
