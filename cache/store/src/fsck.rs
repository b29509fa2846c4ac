//! `fsck`: what is wrong with a cache directory, and what of it can be mended.
//!
//! One rule: without `repair` nothing changes; with it, only files are removed that a start would
//! remove, too, and sidecars that are damaged where a start does not look. Bytes of shards are
//! `scrub`'s to check.

use std::path::Path;
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::directory::{Directory, Finding};
use crate::files::LocalFiles;

/// What is wrong with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultKind {
    /// Left by work that did not end; of no use.
    Leftover,
    /// A shard that cannot be served.
    Broken,
    /// Written by a newer release: left alone.
    Newer,
    /// Not Forebay's: left alone.
    Foreign,
}

/// Something that should not be there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The file, or the shard's data file, within the directory's `shards`.
    pub file: String,
    /// What is wrong.
    pub kind: FaultKind,
    /// Why it is taken for that.
    pub why: String,
    /// Whether it was removed.
    pub repaired: bool,
}

/// What `fsck` found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Checkup {
    /// Shards that can be served.
    pub shards: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Shards of which a part is here.
    pub partial: u64,
    /// Everything else.
    pub faults: Vec<Fault>,
}

impl Checkup {
    /// Whether nothing is wrong any more that Forebay would have to mend.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let ours = |fault: &&Fault| matches!(fault.kind, FaultKind::Leftover | FaultKind::Broken);
        self.faults.iter().filter(ours).all(|fault| fault.repaired)
    }
}

/// Checks the cache directory `root`, telling `progress` how many of how many files are done.
///
/// # Errors
/// `NotFound` if there is no cache; `Invalid` if a daemon uses it; whatever keeps it from being
/// listed, or a file from being removed.
pub fn fsck(root: &Path, repair: bool, mut progress: impl FnMut(u64, u64)) -> Result<Checkup> {
    if !root.join("FORMAT").exists() {
        return Err(Error::new(ErrorKind::NotFound, "there is no cache of Forebay's here")
            .at("directory", root.display())
            .advise("name the directory that the daemon's configuration names"));
    }
    let directory = Directory::open(root, Arc::new(LocalFiles))?;
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
