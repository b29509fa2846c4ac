//! `fsck`: checks a cache directory and repairs it.
//!
//! Without `repair` nothing changes. With it, `fsck` removes the files that a start would
//! remove, and damaged sidecars that a start does not read. Bytes of shards are checked by `scrub`.

use std::path::Path;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::directory::{Directory, Finding, Keys};
use crate::encryption::Secret;
use crate::files::LocalFiles;

/// Kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultKind {
    /// Left by unfinished work; useless.
    Leftover,
    /// A shard that cannot be served.
    Broken,
    /// Written by a newer release: left alone.
    Newer,
    /// Not written by Forebay: left alone.
    Foreign,
}

/// A fault in the directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The file, or the shard's data file, within the directory's `shards`.
    pub file: String,
    /// Kind of fault.
    pub kind: FaultKind,
    /// Reason for the finding.
    pub why: String,
    /// True if the file was removed.
    pub repaired: bool,
}

/// Result of `fsck`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Checkup {
    /// Shards that can be served.
    pub shards: u64,
    /// Bytes of these shards.
    pub bytes: u64,
    /// Partial shards.
    pub partial: u64,
    /// All faults.
    pub faults: Vec<Fault>,
}

impl Checkup {
    /// Returns true if no fault is left that Forebay should repair.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let ours = |fault: &&Fault| matches!(fault.kind, FaultKind::Leftover | FaultKind::Broken);
        self.faults.iter().filter(ours).all(|fault| fault.repaired)
    }
}

/// Checks the cache directory `root`. Calls `progress` with the number of checked files and of all
/// files. `secret`: that of an encrypted directory.
///
/// # Errors
/// `NotFound` if there is no cache; `Invalid` if a daemon uses it, or if it has another key; errors
/// of listing it or of removing a file.
pub fn fsck(
    root: &Path,
    repair: bool,
    secret: Option<Secret>,
    mut progress: impl FnMut(u64, u64),
) -> Result<Checkup> {
    if !root.join("FORMAT").exists() {
        return Err(Error::new(ErrorKind::NotFound, "the directory holds no Forebay cache")
            .at("directory", root.display())
            .advise("name a directory from the daemon's configuration"));
    }
    let keys = Keys { secret: secret.map(Arc::new), is_check: true };
    let directory = Directory::open(root, Arc::new(LocalFiles), &keys)?;
    let findings = directory.survey()?;
    let total = findings.len() as u64;
    let mut checkup = Checkup::default();
    for (done, finding) in (1..).zip(findings) {
        let fault = |file: &str, kind, why: String| {
            Some(Fault { file: file.to_owned(), kind, why, repaired: false })
        };
        let (fault, shard) = match finding {
            Finding::Whole(found) => match directory.read_sidecar(&found.name) {
                Ok(_) => {
                    checkup.shards += 1;
                    checkup.bytes += found.bytes;
                    (None, None)
                }
                Err(error) => {
                    let file = found.name.as_str();
                    (fault(file, FaultKind::Broken, error.to_string()), Some(found.name.clone()))
                }
            },
            Finding::Partial(_) => {
                checkup.partial += 1;
                (None, None)
            }
            Finding::Broken { name, why } => {
                (fault(name.as_str(), FaultKind::Broken, why), Some(name))
            }
            Finding::Leftover { file, why } => {
                (fault(&file, FaultKind::Leftover, why.to_owned()), None)
            }
            Finding::Newer { name, .. } => {
                let why = "a newer release wrote it".to_owned();
                (fault(name.as_str(), FaultKind::Newer, why), None)
            }
            Finding::Foreign { file } => {
                (fault(&file, FaultKind::Foreign, "it is not Forebay's".to_owned()), None)
            }
        };
        if let Some(mut fault) = fault {
            if repair {
                match (&shard, fault.kind) {
                    (Some(name), _) => directory.remove(name)?,
                    (None, FaultKind::Leftover) => directory.remove_file(&fault.file)?,
                    (None, _) => {}
                }
                fault.repaired = shard.is_some() || fault.kind == FaultKind::Leftover;
            }
            checkup.faults.push(fault);
        }
        progress(done, total);
    }
    Ok(checkup)
}

#[cfg(test)]
mod tests;
