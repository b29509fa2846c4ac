//! What a start finds: whole shards, and leftovers to sweep.
//!
//! One rule: a shard is kept only if its sidecar's head is sound, the head names this very file,
//! and the data has exactly the length the head says. Bodies are checked at first use.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::time::SystemTime;

use forebay_error::{Doing, Result};
use forebay_shard::{HEAD_BYTES, Head};

use super::{Directory, SIDECAR, SIDECAR_ASIDE, ShardName};

/// A whole shard on the tier.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) name: ShardName,
    pub(crate) url: String,
    pub(crate) bytes: u64,
    pub(crate) written: SystemTime,
}

impl Directory {
    /// Lists whole shards, oldest first, and removes everything else the store may have left.
    ///
    /// # Errors
    /// If the directory cannot be listed; a single bad entry is removed and logged.
    pub(crate) fn recover(&self) -> Result<Vec<Found>> {
        let mut data = HashMap::new();
        let mut sidecars = Vec::new();
        for entry in fs::read_dir(&self.shards).doing("list the shard directory")? {
            let entry = entry.doing("list the shard directory")?;
            let Ok(file) = entry.file_name().into_string() else { continue };
            if file.ends_with(SIDECAR_ASIDE) {
                self.sweep(&file, "a sidecar was being written");
            } else if let Some(name) = file.strip_suffix(SIDECAR) {
                sidecars.push(name.to_owned());
            } else if let Ok(metadata) = entry.metadata() {
                data.insert(file, metadata.len());
            }
        }
        let mut found = Vec::new();
        for file in sidecars {
            let name = ShardName::of_file(&file);
            match (self.head(&name), data.remove(&file)) {
                (Ok((head, written)), Some(len))
                    if len == head.len && ShardName::new(&head.origin) == name =>
                {
                    found.push(Found { name, url: head.origin.url, bytes: len, written });
                }
                (Ok(_), Some(_)) => self.discard(&name, "its data is not what its sidecar says"),
                (Ok(_), None) => self.discard(&name, "its data is missing"),
                (Err(error), _) => {
                    self.discard(&name, &error.to_string());
                }
            }
        }
        for file in data.into_keys() {
            self.sweep(&file, "it has no sidecar");
        }
        found.sort_by_key(|shard| shard.written);
        Ok(found)
    }

    fn head(&self, name: &ShardName) -> Result<(Head, SystemTime)> {
        let mut file = File::open(self.sidecar(name)).doing("open a sidecar")?;
        let written = file.metadata().and_then(|meta| meta.modified()).doing("stat a sidecar")?;
        let mut bytes = vec![0; HEAD_BYTES];
        file.read_exact(&mut bytes).doing("read a sidecar's head")?;
        Ok((Head::decode(&bytes)?, written))
    }

    fn discard(&self, name: &ShardName, why: &str) {
        tracing::warn!(shard = name.as_str(), why, "discarded a shard found on the tier");
        if let Err(error) = self.remove(name) {
            tracing::error!(shard = name.as_str(), %error, "failed to discard a shard");
        }
    }

    fn sweep(&self, file: &str, why: &str) {
        tracing::info!(file, why, "swept a leftover of an unfinished fill");
        if let Err(error) = fs::remove_file(self.shards.join(file)) {
            tracing::error!(file, %error, "failed to sweep a leftover");
        }
    }
}
