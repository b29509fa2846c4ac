//! Where a fill puts its parts.

use std::sync::{Arc, OnceLock};

use forebay_error::Result;
use forebay_uring::{DiskFile, Engine, Frozen};

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
}

/// A shard in memory: one piece per part.
#[derive(Debug)]
pub(crate) struct Blocks(Vec<OnceLock<Frozen>>);

impl Blocks {
    /// Room for `len` bytes; the pieces come one by one.
    pub(crate) fn new(len: u64) -> Self {
        let parts = usize::try_from(len.div_ceil(PART_BYTES as u64)).unwrap_or(usize::MAX);
        Self((0..parts).map(|_| OnceLock::new()).collect())
    }

    pub(super) fn put(&self, part: usize, bytes: Frozen) {
        // A part arrives once.
        let _first = self.0[part].set(bytes);
    }

    /// Copies from `offset` on until `into` is full; false if a part is not there.
    pub(crate) fn copy(&self, offset: u64, into: &mut [u8]) -> bool {
        let mut part = usize::try_from(offset / PART_BYTES as u64).unwrap_or(usize::MAX);
        let mut at = usize::try_from(offset % PART_BYTES as u64).expect("below a part's size");
        let mut done = 0;
        while done < into.len() {
            let Some(block) = self.0.get(part).and_then(OnceLock::get) else { return false };
            let len = (PART_BYTES - at).min(into.len() - done);
            let Some(bytes) = block.get(at..at + len) else { return false };
            into[done..done + len].copy_from_slice(bytes);
            (done, at, part) = (done + len, 0, part + 1);
        }
        true
    }
}
