//! Indexes of shards that are not stored here: those of data sets that are never cached.
//!
//! An index is a hint that saves one pass over a shard. If it is missing, damaged or of
//! another release, only that pass is lost. All indexes together stay below [`INDEXES_BYTES`].

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::SystemTime;

use forebay_error::{Doing, Result};
use forebay_shard::Sidecar;

use super::{Directory, SIDECAR, SIDECAR_ASIDE, ShardName, make_private};

/// Disk space for indexes, beside the tier's capacity. A sample takes some 150 bytes, so this holds
/// 28 million samples: some terabytes of images.
const INDEXES_BYTES: u64 = 4 << 30;

impl Directory {
    fn indexes(&self) -> PathBuf {
        self.root.join("indexes")
    }

    fn index(&self, name: &ShardName) -> PathBuf {
        self.indexes().join(format!("{}{SIDECAR}", name.0))
    }

    /// Saves the index of a shard that is not stored here.
    pub(crate) fn save_index(&self, name: &ShardName, sidecar: &Sidecar) -> Result<()> {
        let bytes = sidecar.encode()?;
        self.check_identity()?;
        make_private(&self.indexes()).doing("create the index folder")?;
        self.make_room_for_index(bytes.len() as u64)?;
        let aside = self.indexes().join(format!("{}{SIDECAR_ASIDE}", name.0));
        self.put(&self.index(name), &aside, &bytes)
    }

    /// Loads the saved index of a shard that is not stored here.
    pub(crate) fn load_index(&self, name: &ShardName) -> Option<Sidecar> {
        let path = self.index(name);
        // Most shards have none.
        let read = path.exists().then(|| self.read_sealed(&path))?;
        let sidecar = read.and_then(|bytes| Sidecar::decode(&bytes));
        if let Err(error) = &sidecar {
            tracing::warn!(path = %path.display(), %error, "an index is rebuilt");
        }
        // Marks it as used: the least recently used indexes are removed first. A failure only makes
        // it look older.
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        sidecar.ok()
    }

    /// Removes the index of a shard that is not stored here.
    pub(crate) fn drop_index(&self, name: &ShardName) -> Result<()> {
        self.remove_path(&self.index(name))
    }

    /// Removes the least recently used indexes until `bytes` more fit. The folder is listed only at
    /// the first index and where they might not fit: a list for each of many small shards would
    /// take longer than the shards.
    fn make_room_for_index(&self, bytes: u64) -> Result<()> {
        let mut held = self.index_bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *held = match *held {
            Some(held) if held + bytes <= INDEXES_BYTES => Some(held + bytes),
            _ => Some(self.remove_oldest_indexes(bytes)? + bytes),
        };
        Ok(())
    }

    /// Removes the least recently used indexes until `bytes` more fit. Returns the bytes of those
    /// that stay.
    fn remove_oldest_indexes(&self, bytes: u64) -> Result<u64> {
        let listed = fs::read_dir(self.indexes()).doing("list the indexes")?;
        let mut kept: Vec<_> = listed
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let found = entry.metadata().ok()?;
                Some((found.modified().ok()?, found.len(), entry.path()))
            })
            .collect();
        kept.sort();
        let mut held = kept.iter().map(|(_, len, _)| len).sum::<u64>();
        for (_, len, path) in kept {
            if held + bytes <= INDEXES_BYTES {
                break;
            }
            self.remove_path(&path)?;
            held -= len;
        }
        Ok(held)
    }
}

#[cfg(test)]
mod tests;
