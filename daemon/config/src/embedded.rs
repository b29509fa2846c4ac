//! Defaults of an embedded daemon: size of its cache, memory.

use std::io::Stderr;
use std::path::Path;

use forebay_client::{LOG_MAX, existing};
use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, ftruncate};

use crate::control_groups::ControlGroups;

/// Largest share of the free space that an embedded cache takes …
const SHARE_OF_FREE: f64 = 0.5;

/// … and at most this many bytes: a laptop's or a shared node's disk is not ours to fill.
const CAPACITY_MAX: u64 = 500_000_000_000;

/// Share of what is free now that stays free whatever is asked for. Of what is free, not of the
/// whole disk: on a disk that others have filled to nine tenths a cache is worth no less.
const LEFT_FREE: f64 = 0.1;

/// Share of the machine's memory for frames and slabs, at most.
const SHARE_OF_MEMORY: u64 = 4;

/// Memory beyond which more slab does not feed a node faster.
const MEMORY_MAX: u64 = 16 << 30;

/// Bytes an embedded cache in `directory` may hold: half of what is free (what it holds already
/// counts as free), at most 500 GB; what `wanted` says instead, up to nine tenths of what is free.
pub fn capacity(directory: &Path, wanted: Option<u64>) -> Result<u64> {
    let space = rustix::fs::statvfs(existing(directory)).doing("read the disk's free space")?;
    let held = held_bytes(directory);
    let free = space.f_bavail.saturating_mul(space.f_frsize).saturating_add(held);
    let most = (free as f64 * (1.0 - LEFT_FREE)) as u64;
    let default = ((free as f64 * SHARE_OF_FREE) as u64).min(CAPACITY_MAX);
    match wanted.unwrap_or(default).min(most) {
        0 => Err(Error::new(ErrorKind::Full, "the disk is too full for a cache")
            .at("directory", directory.display())
            .at("free", free)
            .advise("free some space, or set FOREBAY_CACHE to another disk")),
        capacity => Ok(capacity),
    }
}

/// Bytes of frames and slabs an embedded daemon may have: a share of the machine's memory, or of
/// its control group's, such as a container's or a batch job's.
pub fn memory() -> usize {
    let info = rustix::system::sysinfo();
    let unit = u64::from(info.mem_unit.max(1));
    #[allow(clippy::useless_conversion, reason = "the field's width differs between targets")]
    let total = u64::from(info.totalram).saturating_mul(unit);
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = ControlGroups::of(&groups, Path::new("/sys"));
    let total = groups.memory_max().map_or(total, |(limit, _)| limit.min(total));
    usize::try_from((total / SHARE_OF_MEMORY).min(MEMORY_MAX)).unwrap_or(usize::MAX)
}

/// Standard error for one more line, started anew if it is a log that has grown too long.
pub fn log() -> Stderr {
    let stderr = std::io::stderr();
    // Only what is appended to, as a launcher opens it: elsewhere a cut would leave a hole.
    let appended = fcntl_getfl(&stderr).is_ok_and(|flags| flags.contains(OFlags::APPEND));
    let too_long = |found: rustix::fs::Stat| {
        let len = u64::try_from(found.st_size).unwrap_or(0);
        FileType::from_raw_mode(found.st_mode).is_file() && len > LOG_MAX
    };
    if appended && fstat(&stderr).is_ok_and(too_long) {
        // A log that cannot be cut is still a log.
        let _ = ftruncate(&stderr, 0);
    }
    stderr
}

/// Bytes of the shards in a cache directory.
pub fn held_bytes(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory.join("shards")) else { return 0 };
    entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_leaves_room_on_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("not/made/yet");
        let space = rustix::fs::statvfs(directory.path()).unwrap();
        let free = space.f_bavail * space.f_frsize;
        let default = capacity(&below, None).unwrap();
        assert!(default <= free / 2 + (1 << 30) && default <= CAPACITY_MAX);
        assert!(capacity(&below, Some(u64::MAX)).unwrap() < free);
        assert_eq!(capacity(&below, Some(1 << 20)).unwrap(), 1 << 20);
    }
}
