//! Shards that are files: local disks, NFS, Lustre, GPFS.
//!
//! Files are touched by readers alone ([`Readers`] says why), past the page cache, and
//! one that changed under the read is noticed by its inode, length and time after it. A read ends
//! where a stripe or a block of the file system does, as [`Stat::layout`] tells it.
//!
//! A file is opened by its path, with the daemon's rights; or by the client whose job names it,
//! with the client's, and then each client that reads the shard has shown that it can open it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::Span;

use crate::bill::Bill;
use crate::queue::Rank;
use crate::readers::{Client, ClientReaders, Loan, PIECE, Readers, Request, Turn};
use crate::stat::{Stat, changed};
use crate::{RangeRead, Source};

/// Endpoint in the cache keys of files.
pub(crate) const ENDPOINT: &str = "file";

/// Files of this machine's file systems.
pub(crate) struct Posix {
    opened: Opened,
    /// With whom what is said of a file may be shared.
    scope: String,
}

/// Way to open files.
#[derive(Clone)]
enum Opened {
    /// By their paths.
    Named(Readers),
    /// By a client.
    ByClient(Readers, ClientReaders),
}

impl Opened {
    async fn ask(&self, path: &str, request: &Request, servers: Vec<u32>) -> Result<Loan> {
        match self {
            Self::Named(readers) => readers.ask(Path::new(path), request, servers).await,
            Self::ByClient(_, client) => client.ask(request, servers).await,
        }
    }
}

impl Posix {
    /// Files that the daemon opens.
    pub(crate) fn new(readers: Readers) -> Self {
        Self { opened: Opened::Named(readers), scope: ENDPOINT.to_owned() }
    }

    /// Files that a client opens, by its readers.
    pub(crate) fn of_client(readers: Readers, client: &Client, by_client: ClientReaders) -> Self {
        let scope = format!("{ENDPOINT} of {}", client.name);
        Self { opened: Opened::ByClient(readers, by_client), scope }
    }
}

#[async_trait]
impl Source for Posix {
    async fn stat(&self, url: &str) -> Result<Stat> {
        let path = path_of(url)?;
        let request = Request::Stat { path: path.to_owned() };
        let found = self.opened.ask(path, &request, Vec::new()).await;
        found.map(|found| found.answer().stat.clone()).map_err(|error| error.at("url", url))
    }

    async fn range_read<'a>(
        &'a self,
        url: &'a str,
        stat: &'a Stat,
        range: Range<u64>,
        rank: &'a Rank,
    ) -> Result<Box<dyn RangeRead + 'a>> {
        path_of(url)?;
        let (opened, bill) = (self.opened.clone(), rank.bill().cloned());
        let (url, stat) = (url.to_owned(), stat.clone());
        Ok(Box::new(Consecutive { opened, url, stat, left: range, bill }))
    }

    async fn turn(&self, url: &str, rank: &Rank) -> Result<Turn> {
        match &self.opened {
            Opened::Named(readers) => readers.turn(Path::new(path_of(url)?), rank).await,
            Opened::ByClient(readers, client) => readers.turn_of(client, rank).await,
        }
    }

    fn endpoint(&self) -> &str {
        ENDPOINT
    }

    fn scope(&self) -> &str {
        &self.scope
    }
}

/// Consecutive bytes of a file.
struct Consecutive {
    opened: Opened,
    url: String,
    stat: Stat,
    left: Range<u64>,
    /// Bill of the reads.
    bill: Option<Arc<Bill>>,
}

#[async_trait]
impl RangeRead for Consecutive {
    async fn fill(&mut self, mut into: Span) -> Result<Span> {
        let at = |error: Error| error.at("url", &self.url);
        let path = path_of(&self.url)?;
        let left = self.left.end - self.left.start;
        let want = usize::try_from(left).map_or(into.len(), |left| left.min(into.len()));
        let mut have = 0;
        while have < want {
            let (offset, layout) = (self.left.start, &self.stat.layout);
            let len = layout.cut(offset, (want - have).min(PIECE) as u64);
            let servers = layout.servers(&(offset..offset + len));
            let version = self.stat.version.clone();
            let request = Request::Read { path: path.to_owned(), version, offset, len };
            let piece = self.opened.ask(path, &request, servers).await.map_err(at)?;
            let left = &mut into[have..want];
            let len = usize::try_from(piece.answer().len).map_or(left.len(), |n| n.min(left.len()));
            if piece.answer().stat.version != self.stat.version || len == 0 {
                return Err(changed(&self.url));
            }
            piece.copy(&mut left[..len]).map_err(at)?;
            have += len;
            self.left.start += len as u64;
            if let Some(bill) = &self.bill {
                bill.took(len as u64);
            }
        }
        Ok(into)
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
