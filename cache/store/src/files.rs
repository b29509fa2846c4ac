//! File system calls of the store, except reads and writes of shards, which belong to the engine.
//!
//! Every call that changes a directory goes through here. So the order of changes shows in
//! one place, and a test can use a file system that fails, fills up or loses unsynced data.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Size and free space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Size in bytes.
    pub total: u64,
    /// Bytes that an unprivileged user may still write.
    pub available: u64,
    /// True if the file system lies in memory (tmpfs, ramfs).
    pub in_memory: bool,
}

/// File system of a tier's directory. Calls block.
pub trait Files: Debug + Send + Sync {
    /// Writes a file with mode 0600, replacing an old one, and makes its bytes durable.
    ///
    /// # Errors
    /// Those of the system calls.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Renames a file over another.
    ///
    /// # Errors
    /// Those of the system call.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Those of the system call; `NotFound` if the file is missing.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Cuts a file to its length.
    ///
    /// # Errors
    /// Those of the system calls.
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()>;

    /// Makes the entries of a directory durable.
    ///
    /// # Errors
    /// Those of the system calls.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// Returns the size and the free space of a directory's file system.
    ///
    /// # Errors
    /// Those of the system call.
    fn extent(&self, path: &Path) -> io::Result<Extent>;

    /// Returns device and inode of a directory, to detect another one in its place.
    ///
    /// # Errors
    /// Those of the system call.
    fn identity(&self, path: &Path) -> io::Result<(u64, u64)>;
}

/// File systems of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalFiles;

/// File system type of tmpfs in `statfs` (linux/magic.h),
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// and of ramfs.
const RAMFS_MAGIC: u64 = 0x8584_58f6;

impl Files for LocalFiles {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn truncate(&self, path: &Path, len: u64) -> io::Result<()> {
        OpenOptions::new().write(true).open(path)?.set_len(len)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn extent(&self, path: &Path) -> io::Result<Extent> {
        let stat = rustix::fs::statfs(path)?;
        let block = u64::try_from(stat.f_bsize).unwrap_or_default();
        // The width of this field differs between machines; both numbers fit its lower 32 bits.
        let kind = stat.f_type as u64 & u64::from(u32::MAX);
        Ok(Extent {
            total: stat.f_blocks.saturating_mul(block),
            available: stat.f_bavail.saturating_mul(block),
            in_memory: [TMPFS_MAGIC, RAMFS_MAGIC].contains(&kind),
        })
    }

    fn identity(&self, path: &Path) -> io::Result<(u64, u64)> {
        let meta = fs::metadata(path)?;
        Ok((meta.dev(), meta.ino()))
    }
}

#[cfg(test)]
mod tests;
