//! What the store asks of a file system beside moving shards' bytes, which is the engine's.
//!
//! One rule: every call that changes what a directory says goes through here, so that its order is
//! seen in one place, and a test can put a file system underneath that fails, fills up or forgets.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Bytes of a file system, all of it and what is left to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its size.
    pub total: u64,
    /// What an unprivileged user may still write.
    pub available: u64,
    /// Whether it lies in memory (tmpfs, ramfs).
    pub in_memory: bool,
}

/// A file system, as a tier's directory uses it. Calls block.
pub trait Files: Debug + Send + Sync {
    /// Writes a new file (or over an old one) with mode 0600, and makes its bytes durable.
    ///
    /// # Errors
    /// As the system calls say.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Renames a file over another.
    ///
    /// # Errors
    /// As the system call says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// As the system call says; a file that is gone already is `NotFound`.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Cuts a file to its length.
    ///
    /// # Errors
    /// As the system calls say.
    fn truncate(&self, path: &Path, len: u64) -> io::Result<()>;

    /// Makes what a directory says durable.
    ///
    /// # Errors
    /// As the system calls say.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// How large the file system behind a directory is, and how much of it is left.
    ///
    /// # Errors
    /// As the system call says.
    fn extent(&self, path: &Path) -> io::Result<Extent>;

    /// What tells this directory from another that takes its place: device and inode.
    ///
    /// # Errors
    /// As the system call says.
    fn identity(&self, path: &Path) -> io::Result<(u64, u64)>;
}

/// The machine's own file systems.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalFiles;

/// `statfs` says so of tmpfs (linux/magic.h) …
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// … and of ramfs.
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
        // The field's width differs between machines; both magics fit its lower 32 bits.
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
