//! Shards that are files: local disks, NFS, Lustre, GPFS.
//!
//! Its rule: bytes go from the file system into the span past the page cache, and a file that
//! changed under the read is noticed by its inode, length and time after it.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_uring::{Engine, Open, Span};

use crate::Source;
use crate::stat::{Stat, changed};

/// Files of this machine's file systems.
pub(crate) struct Posix {
    engine: Engine,
}

impl Posix {
    pub(crate) fn new(engine: Engine) -> Self {
        Self { engine }
    }
}

#[async_trait]
impl Source for Posix {
    async fn stat(&self, url: &str) -> Result<Stat> {
        let path = path_of(url)?;
        // A network file system may take seconds to answer.
        let stat = tokio::task::spawn_blocking(move || rustix::fs::stat(&path)).await;
        let stat = stat.map_err(|_| Error::new(ErrorKind::Closed, "the runtime is stopping"))?;
        let stat = stat.doing("look at the shard").map_err(|error| error.at("url", url))?;
        stat_of(&stat).map_err(|error| error.at("url", url))
    }

    async fn read_part(&self, url: &str, stat: &Stat, offset: u64, into: Span) -> Result<Span> {
        let want = stat.part_len(offset, into.len()).map_err(|error| error.at("url", url))?;
        let at = |error: Error| error.at("url", url);
        let file = self.engine.open(&path_of(url)?, Open::Read).await.map_err(at)?;
        let done = self.engine.read(&file, offset, into).await;
        let got = done.result.map_err(at)?;
        let now = rustix::fs::fstat(file.as_fd()).doing("look at the shard").map_err(at)?;
        if stat_of(&now).map_err(at)?.version != stat.version || got < want {
            return Err(changed(url));
        }
        Ok(done.span)
    }

    fn endpoint(&self) -> &str {
        "file"
    }
}

/// The path that a bare path or a `file:` URL names; it must be absolute.
pub(crate) fn path_of(url: &str) -> Result<PathBuf> {
    let path = match url.strip_prefix("file:") {
        Some(rest) => rest.strip_prefix("//").unwrap_or(rest),
        None => url,
    };
    if Path::new(path).is_absolute() && !path.contains('\0') {
        return Ok(PathBuf::from(path));
    }
    let error = Error::new(ErrorKind::Invalid, "a shard's path must be absolute");
    Err(error.at("url", url).advise("write /path/to/shard.tar or file:///path/to/shard.tar"))
}

fn stat_of(stat: &rustix::fs::Stat) -> Result<Stat> {
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
        return Err(Error::new(ErrorKind::Invalid, "the shard is not a regular file"));
    }
    let len = u64::try_from(stat.st_size)
        .map_err(|_| Error::new(ErrorKind::Corrupt, "the shard has a negative length"))?;
    let (inode, seconds, rest) = (stat.st_ino, stat.st_mtime, stat.st_mtime_nsec);
    Ok(Stat { len, version: format!("{inode:x}-{len:x}-{seconds}.{rest:09}"), strong: false })
}
