//! Defaults of an embedded daemon: size of its cache, memory.

use std::io::Stderr;
use std::path::Path;

use forebay_client::{LOG_MAX, existing};
use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, ftruncate};

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
    let limit = group_memory(&groups, Path::new("/sys/fs/cgroup"));
    let total = limit.map_or(total, |limit| limit.min(total));
    usize::try_from((total / SHARE_OF_MEMORY).min(MEMORY_MAX)).unwrap_or(usize::MAX)
}

/// The tightest limit on the memory of control groups (cgroups(7)), as `/proc/self/cgroup` names
/// them; `root` is where they are mounted. A limit of any group above counts.
fn group_memory(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            list if list.split(',').any(|one| one == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let group = root.join(path.trim_start_matches('/'));
        let read = |group: &Path| std::fs::read_to_string(group.join(file)).ok();
        // No limit is a word in version 2, and beyond any machine in version 1.
        let limit = |group: &Path| read(group)?.trim().parse::<u64>().ok();
        group.ancestors().take_while(|group| group.starts_with(&root)).filter_map(limit).min()
    });
    limits.min()
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
    fn tightest_control_group_limits_memory() {
        let root = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("job/memory.max", "1073741824\n");
        put("job/step/memory.max", "max\n");
        put("memory/slurm/memory.limit_in_bytes", "536870912\n");
        put("memory/memory.limit_in_bytes", "9223372036854771712\n");
        let limit = |groups: &str| group_memory(groups, root.path());
        assert_eq!(limit("0::/job/step\n"), Some(1 << 30));
        assert_eq!(limit("0::/job\n"), Some(1 << 30));
        assert_eq!(limit("0::/other\n"), None);
        assert_eq!(limit("4:cpu,memory:/slurm/uid_1\n2:pids:/\n0::/\n"), Some(512 << 20));
        assert_eq!(limit(""), None);
    }

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
