//! Descriptors that a client passes to a reader.
//!
//! Nothing is believed of them but what the kernel says: that it is a regular file, open
//! for reading, on which file system. A client may be a file system itself and then tells inode,
//! length and time as it likes; which file system it is, it cannot choose. So that is part of the
//! version, and a file of a client's own making is never taken for another's.

use std::os::fd::{AsFd, OwnedFd};

use forebay_error::{Doing, Error, ErrorKind, Result};
use rustix::fs::OFlags;

use super::{File, Opener, stat_of};
use crate::stat::Stat;

/// Files kept open, each for the parts to come: two shards are fetched at once, and records of a
/// few more are read through.
const KEPT: usize = 8;

/// A file that the client opened.
pub(super) struct Open {
    path: String,
    version: String,
    /// Identity of its file system, the suffix of versions.
    pub(super) tag: String,
    pub(super) file: File,
}

/// Files the client opened, the last first.
pub(super) struct Passed {
    opener: Opener,
    kept: Vec<Open>,
}

impl Passed {
    pub(super) fn new(opener: Opener) -> Self {
        Self { opener, kept: Vec::with_capacity(KEPT) }
    }

    /// The file as the client opens it now.
    pub(super) fn open(&mut self, path: &str) -> Result<&mut Open> {
        self.kept.retain(|open| open.path != path);
        let fd = (self.opener)(path)?;
        check(&fd)?;
        let stat = rustix::fs::fstat(&fd).doing("stat the shard")?;
        let said = stat_of(&stat)?;
        let kind = rustix::fs::fstatfs(&fd).doing("stat the shard's file system")?.f_type;
        let number = rustix::fs::fstatvfs(&fd).doing("stat the shard's file system")?.f_fsid;
        let tag = format!("@{kind:x}.{:x}.{number:x}", stat.st_dev);
        let version = tagged(said, &tag).version;
        let open = Open { path: path.to_owned(), version, tag, file: File::of(fd)? };
        self.kept.truncate(KEPT - 1);
        self.kept.insert(0, open);
        Ok(&mut self.kept[0])
    }

    /// The file, if need be as the client opens it now; it may be of another version all the same.
    pub(super) fn of_version(&mut self, path: &str, version: &str) -> Result<&mut Open> {
        let is_it = |open: &Open| open.path == path && open.version == version;
        let Some(at) = self.kept.iter().position(is_it) else { return self.open(path) };
        self.kept[..=at].rotate_right(1);
        Ok(&mut self.kept[0])
    }
}

/// Refuses what cannot be read, or would be more than reading.
fn check(fd: &OwnedFd) -> Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd.as_fd()).doing("stat a descriptor")?;
    let access = flags & OFlags::ACCMODE;
    if flags.contains(OFlags::PATH) || !(access == OFlags::RDONLY || access == OFlags::RDWR) {
        let what = "the job sent a descriptor that is not open for reading";
        return Err(Error::new(ErrorKind::PermissionDenied, what));
    }
    Ok(())
}

/// Length and version, with the file system that they are of.
pub(super) fn tagged(stat: Stat, tag: &str) -> Stat {
    Stat { version: format!("{}{tag}", stat.version), ..stat }
}
