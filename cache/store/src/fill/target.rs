//! Where a fill puts its parts.

use std::sync::{Arc, PoisonError, RwLock};

use forebay_error::{Doing, Result};
use forebay_uring::{DiskFile, Engine, Frozen};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::PART_BYTES;
use crate::directory::{Directory, ShardName};
use crate::tier::shutting_down;

/// Where a fill puts its parts.
pub(crate) enum Target {
    /// A file of a directory.
    Disk(DiskTarget),
    /// Memory: the frames themselves stay.
    Memory(Arc<Blocks>),
    /// Nowhere: the shard is read through, and only its index stays.
    Nowhere,
}

/// A file of a directory, being written.
pub(crate) struct DiskTarget {
    pub(crate) engine: Engine,
    pub(crate) file: DiskFile,
    pub(crate) directory: Arc<Directory>,
    pub(crate) name: ShardName,
    /// Checksums of the parts that an earlier fill left here.
    pub(crate) here: Vec<Option<u32>>,
}

impl DiskTarget {
    /// Does what blocks on the directory, on a thread that may.
    pub(super) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Directory, &ShardName) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (directory, name) = (self.directory.clone(), self.name.clone());
        let done = tokio::task::spawn_blocking(move || work(&directory, &name)).await;
        done.map_err(|_| shutting_down())?
    }

    /// Sets disk space aside from `from` up to `to`, so that a full disk shows before the write.
    pub(super) async fn extend(&self, from: u64, to: u64) -> Result<()> {
        let (file, len) = (self.file.clone(), to.saturating_sub(from));
        if len == 0 {
            return Ok(());
        }
        self.on_disk(move |_, _| match fallocate(&file, FallocateFlags::empty(), from, len) {
            // No space is set aside on this file system: a full disk shows at the write.
            Err(Errno::OPNOTSUPP) => Ok(()),
            other => other.doing("reserve disk space for a shard that is unpacked"),
        })
        .await
    }
}

/// A shard in memory: one piece per part, which come one by one.
#[derive(Debug, Default)]
pub(crate) struct Blocks(RwLock<Vec<Option<Frozen>>>);

impl Blocks {
    pub(super) fn put(&self, part: usize, bytes: Frozen) {
        let mut blocks = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if part >= blocks.len() {
            blocks.resize(part + 1, None);
        }
        blocks[part] = Some(bytes);
    }

    /// Copies from `offset` on until `into` is full; false if a part is not there.
    pub(crate) fn copy(&self, offset: u64, into: &mut [u8]) -> bool {
        let mut part = usize::try_from(offset / PART_BYTES as u64).unwrap_or(usize::MAX);
        let mut at = usize::try_from(offset % PART_BYTES as u64).expect("below a part's size");
        let mut done = 0;
        while done < into.len() {
            // Held for as long as it takes to share the piece.
            let blocks = self.0.read().unwrap_or_else(PoisonError::into_inner);
            let Some(block) = blocks.get(part).cloned().flatten() else { return false };
            drop(blocks);
            let len = (PART_BYTES - at).min(into.len() - done);
            let Some(bytes) = block.get(at..at + len) else { return false };
            into[done..done + len].copy_from_slice(bytes);
            (done, at, part) = (done + len, 0, part + 1);
        }
        true
    }
}
