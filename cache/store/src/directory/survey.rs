//! Survey of a cache directory: whole shards, leftovers of unfinished work, and foreign files.
//!
//! A shard is whole only if the head of its sidecar is valid, the head names this file, and
//! the data has exactly the length in the head. A survey changes nothing. Files with foreign names
//! are never removed.

use std::collections::HashMap;
use std::fs::{self, DirEntry, File};
use std::io::Read;
use std::time::SystemTime;

use forebay_error::{Doing, Result};
use forebay_shard::{HEAD_BYTES, Head};

use super::{Directory, PARTIAL, PARTIAL_ASIDE, SIDECAR, SIDECAR_ASIDE, ShardName};
use crate::directory::{ObjectKey, object_key};

/// A shard found on the tier.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) name: ShardName,
    pub(crate) object: ObjectKey,
    pub(crate) url: String,
    pub(crate) tenant: Option<String>,
    pub(crate) bytes: u64,
    pub(crate) written: SystemTime,
}

/// Something found in the directory.
#[derive(Debug)]
pub(crate) enum Finding {
    /// A shard that can be served.
    Whole(Found),
    /// A shard that a fill can resume.
    Partial(Found),
    /// A file of a fill that did not end.
    Leftover { file: String, why: &'static str },
    /// A shard that cannot be served.
    Broken { name: ShardName, why: String },
    /// A shard written by a newer release.
    Newer { name: ShardName, bytes: u64 },
    /// A file that Forebay did not write.
    Foreign { file: String },
}

// The head of an encrypted sidecar is a block of the cipher.
const _: () = assert!(HEAD_BYTES == forebay_uring::GRANULE, "a head is one block");

/// First bytes of a sidecar.
enum SidecarHead {
    Ours(Head, SystemTime),
    Newer,
}

impl Directory {
    /// Lists everything in the directory, shards oldest first.
    ///
    /// # Errors
    /// If the directory cannot be listed.
    pub(crate) fn survey(&self) -> Result<Vec<Finding>> {
        let mut data = HashMap::new();
        let (mut sidecars, mut partials) = (Vec::new(), Vec::new());
        let mut findings = Vec::new();
        for entry in fs::read_dir(&self.shards).doing("list the shard directory")? {
            let entry = entry.doing("list the shard directory")?;
            let file = match own_file_name(&entry) {
                Ok(file) => file,
                Err(file) => {
                    findings.push(Finding::Foreign { file });
                    continue;
                }
            };
            if file.ends_with(SIDECAR_ASIDE) || file.ends_with(PARTIAL_ASIDE) {
                findings.push(Finding::Leftover { file, why: "its write was not finished" });
            } else if let Some(name) = file.strip_suffix(PARTIAL) {
                partials.push(name.to_owned());
            } else if let Some(name) = file.strip_suffix(SIDECAR) {
                sidecars.push(name.to_owned());
            } else if let Ok(metadata) = entry.metadata() {
                data.insert(file, metadata.len());
            }
        }
        let mut whole = Vec::new();
        for file in sidecars {
            let name = ShardName::from_file(&file);
            match self.classify(&name, data.remove(&file)) {
                Finding::Whole(found) => whole.push(found),
                other => findings.push(other),
            }
        }
        for file in partials {
            let name = ShardName::from_file(&file);
            let found = data.get(&file).and_then(|_| self.partial_shard(&name));
            findings.push(match found {
                Some(found) => {
                    data.remove(&file);
                    Finding::Partial(found)
                }
                None => {
                    let why = "its record names no shard that a fill can resume";
                    Finding::Leftover { file: format!("{file}{PARTIAL}"), why }
                }
            });
        }
        let left = |file| Finding::Leftover { file, why: "it has no sidecar" };
        findings.extend(data.into_keys().map(left));
        whole.sort_by_key(|shard| shard.written);
        findings.extend(whole.into_iter().map(Finding::Whole));
        Ok(findings)
    }

    /// URL of a shard that is stored here.
    pub(crate) fn url_of(&self, name: &ShardName) -> Option<String> {
        match self.sidecar_head(name) {
            Ok(SidecarHead::Ours(head, _)) => Some(head.origin.url),
            Ok(SidecarHead::Newer) => None,
            Err(_) => self.partial_shard(name).map(|found| found.url),
        }
    }

    /// Finds this one shard, if it is whole. Notes a name that a newer release holds.
    pub(crate) fn probe(&self, name: &ShardName) -> Option<Found> {
        // Without metadata there is no data here; the listing handles the rest.
        let len = fs::metadata(self.data(name)).ok()?.len();
        match self.classify(name, Some(len)) {
            Finding::Whole(found) => Some(found),
            Finding::Newer { name, .. } => {
                self.reserve_name(name);
                None
            }
            _ => None,
        }
    }

    /// Classifies a sidecar beside data of `len` bytes, or beside none.
    fn classify(&self, name: &ShardName, len: Option<u64>) -> Finding {
        let broken = |why: &str| Finding::Broken { name: name.clone(), why: why.to_owned() };
        match (self.sidecar_head(name), len) {
            (Ok(SidecarHead::Newer), len) => {
                Finding::Newer { name: name.clone(), bytes: len.unwrap_or_default() }
            }
            (Err(error), _) => broken(&error.to_string()),
            (Ok(SidecarHead::Ours(..)), None) => broken("its data is missing"),
            (Ok(SidecarHead::Ours(head, written)), Some(len)) => {
                let right = ShardName::new(&head.origin);
                let is_whole = len == self.stored_len(head.len);
                if is_whole && (*name == right || *name == right.alternate()) {
                    let object = object_key(&head.origin);
                    let (name, url, tenant) = (name.clone(), head.origin.url, head.tenant);
                    return Finding::Whole(Found {
                        name,
                        object,
                        url,
                        tenant,
                        bytes: head.len,
                        written,
                    });
                }
                broken("its data differs from its sidecar")
            }
        }
    }

    /// A shard that a fill can resume, if its record is valid.
    fn partial_shard(&self, name: &ShardName) -> Option<Found> {
        let partial = self.read_partial(name).ok()?;
        let written = fs::metadata(self.partial(name)).and_then(|meta| meta.modified()).ok()?;
        let right = ShardName::new(&partial.origin);
        (*name == right || *name == right.alternate()).then(|| Found {
            name: name.clone(),
            object: object_key(&partial.origin),
            url: partial.origin.url,
            tenant: partial.tenant,
            bytes: partial.len,
            written,
        })
    }

    fn sidecar_head(&self, name: &ShardName) -> Result<SidecarHead> {
        let path = self.sidecar(name);
        let mut file = File::open(&path).doing("open a sidecar")?;
        let written = file.metadata().and_then(|meta| meta.modified()).doing("stat a sidecar")?;
        let mut bytes = vec![0; HEAD_BYTES];
        file.read_exact(&mut bytes).doing("read a sidecar's head")?;
        self.unseal_head(&path, &mut bytes)?;
        match Head::is_newer(&bytes) {
            true => Ok(SidecarHead::Newer),
            false => Ok(SidecarHead::Ours(Head::decode(&bytes)?, written)),
        }
    }

    /// Recovers a directory at a start: lists whole shards, removes useless files, and logs foreign
    /// files without touching them.
    ///
    /// # Errors
    /// If the directory cannot be listed. A single bad entry is removed and logged.
    pub(crate) fn recover(&self) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        for finding in self.survey()? {
            match finding {
                Finding::Whole(found) => recovered.whole.push(found),
                Finding::Partial(found) => recovered.partial.push(found),
                Finding::Leftover { file, why } => self.remove_leftover(&file, why),
                Finding::Broken { name, why } => self.remove_broken(&name, &why),
                Finding::Newer { name, bytes } => {
                    tracing::warn!(
                        shard = name.as_str(),
                        "kept a shard of a newer release; its bytes count"
                    );
                    recovered.newer_bytes += bytes;
                    self.reserve_name(name);
                }
                Finding::Foreign { file } => {
                    tracing::warn!(file, "kept a file that is not Forebay's");
                }
            }
        }
        Ok(recovered)
    }

    fn remove_broken(&self, name: &ShardName, why: &str) {
        tracing::warn!(shard = name.as_str(), why, "discarded a shard found on the tier");
        if let Err(error) = self.remove(name) {
            tracing::error!(shard = name.as_str(), %error, "failed to discard a shard");
        }
    }

    fn remove_leftover(&self, file: &str, why: &str) {
        tracing::info!(file, why, "removed a leftover of an unfinished fill");
        if let Err(error) = self.remove_file(file) {
            tracing::error!(file, %error, "failed to remove a leftover");
        }
    }
}

/// Result of a recovery.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    /// Shards, oldest first.
    pub(crate) whole: Vec<Found>,
    /// Shards that a fill can resume.
    pub(crate) partial: Vec<Found>,
    /// Bytes of shards written by a newer release.
    pub(crate) newer_bytes: u64,
}

/// Returns the name of a file that Forebay wrote: a plain file, named by a hash, a separator and
/// the shard's own name. Returns other names as errors.
fn own_file_name(entry: &DirEntry) -> Result<String, String> {
    let file = entry.file_name().into_string().map_err(|raw| raw.to_string_lossy().into_owned())?;
    let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
    match is_file && ShardName::is_shard_file(&file) {
        true => Ok(file),
        false => Err(file),
    }
}

#[cfg(test)]
mod tests;
