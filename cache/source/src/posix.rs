//! Shards that are files: local disks, NFS, Lustre, GPFS.
//!
//! Its rule: files are touched by readers alone ([`Readers`] says why), past the page cache, and one
//! that changed under the read is noticed by its inode, length and time after it.

use std::path::Path;

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::Span;

use crate::Source;
use crate::readers::{PIECE, Readers, Request, Turn};
use crate::stat::{Stat, changed};

/// Files of this machine's file systems.
pub(crate) struct Posix {
    readers: Readers,
}

impl Posix {
    pub(crate) fn new(readers: Readers) -> Self {
        Self { readers }
    }
}

#[async_trait]
impl Source for Posix {
    async fn stat(&self, url: &str) -> Result<Stat> {
        let path = path_of(url)?;
        let request = Request::Stat { path: path.to_owned() };
        let found = self.readers.ask(Path::new(path), &request).await;
        found.map(|found| found.answer().stat.clone()).map_err(|error| error.at("url", url))
    }

    async fn read_part(&self, url: &str, stat: &Stat, offset: u64, mut into: Span) -> Result<Span> {
        let at = |error: Error| error.at("url", url);
        let (path, want) = (path_of(url)?, stat.part_len(offset, into.len()).map_err(at)?);
        let mut have = 0;
        while have < want {
            let request = Request::Read {
                path: path.to_owned(),
                offset: offset + have as u64,
                len: (want - have).min(PIECE) as u64,
            };
            let piece = self.readers.ask(Path::new(path), &request).await.map_err(at)?;
            let left = &mut into[have..want];
            let len = usize::try_from(piece.answer().len).map_or(left.len(), |n| n.min(left.len()));
            if piece.answer().stat.version != stat.version || len == 0 {
                return Err(changed(url));
            }
            piece.copy(&mut left[..len]).map_err(at)?;
            have += len;
        }
        Ok(into)
    }

    async fn turn(&self, url: &str) -> Result<Turn> {
        self.readers.turn(Path::new(path_of(url)?)).await
    }

    fn endpoint(&self) -> &str {
        "file"
    }
}

/// The path that a bare path or a `file:` URL names; it must be absolute.
pub(crate) fn path_of(url: &str) -> Result<&str> {
    let path = match url.strip_prefix("file:") {
        Some(rest) => rest.strip_prefix("//").unwrap_or(rest),
        None => url,
    };
    if Path::new(path).is_absolute() && !path.contains('\0') {
        return Ok(path);
    }
    let error = Error::new(ErrorKind::Invalid, "a shard's path must be absolute");
    Err(error.at("url", url).advise("write /path/to/shard.tar or file:///path/to/shard.tar"))
}
