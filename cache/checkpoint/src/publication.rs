//! Publication of an attempt: receipts of all files, then the manifest, then `.metadata`.
//!
//! A state machine without I/O. It gives out the next step and is told what was done. It may be
//! built anew from the record and the receipts at any moment: steps that were done before are given
//! out again, never in another order, and `.metadata` never before every file has its receipt.

use std::collections::HashMap;

use forebay_error::{Error, ErrorKind, Result};

use crate::id::FileId;
use crate::manifest::{Entry, Manifest};
use crate::name::FileName;
use crate::receipt::Receipt;
use crate::record::{Commit, Progress, Record};

/// Next step of a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Receipts of these files are missing: their daemons still upload.
    Await(Vec<FileId>),
    /// Put this manifest where none of another attempt is, then call
    /// [`Publication::note_manifest`].
    PutManifest(Manifest),
    /// Put `.metadata` where none is, then call [`Publication::note_metadata`].
    PutMetadata,
    /// The checkpoint is visible.
    Done,
}

/// Publication of one attempt, at the daemon that has its `.metadata`.
#[derive(Debug, Clone)]
pub struct Publication {
    metadata: Entry,
    saved_at_ms: u64,
    commit: Commit,
    /// Each file of the commit, and its receipt once that was seen.
    receipts: HashMap<FileId, Option<Receipt>>,
    names: HashMap<FileName, FileId>,
    done: Done,
}

/// Last step that was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Done {
    Nothing,
    Manifest,
    Metadata,
}

impl Publication {
    /// Begins the publication that the record of a `.metadata` asks for, or goes on with it after a
    /// crash.
    ///
    /// # Errors
    /// `Invalid` if the record has no commit.
    pub fn new(record: &Record) -> Result<Self> {
        let Record { id, name, len, blocks, commit, progress, staged_at_ms, .. } = record.clone();
        let commit = commit.ok_or_else(|| {
            let what = "the file has no commit: it makes nothing visible";
            Error::new(ErrorKind::Invalid, what).at("name", &name).at("id", id)
        })?;
        let done = match progress {
            Progress::Published { .. } => Done::Metadata,
            _ => Done::Nothing,
        };
        Ok(Self {
            metadata: Entry { id, name, len, blocks, tag: None },
            saved_at_ms: staged_at_ms,
            receipts: commit.ids.iter().map(|id| (*id, None)).collect(),
            commit,
            names: HashMap::new(),
            done,
        })
    }

    /// Returns the next step; a manifest says that it was published at `now_ms`.
    #[must_use]
    pub fn next(&self, now_ms: u64) -> Step {
        match self.done {
            Done::Metadata => return Step::Done,
            Done::Manifest => return Step::PutMetadata,
            Done::Nothing => {}
        }
        let missing: Vec<_> = self.missing().collect();
        if !missing.is_empty() {
            return Step::Await(missing);
        }
        let receipts = self.commit.ids.iter().filter_map(|id| self.receipt(*id));
        Step::PutManifest(Manifest {
            attempt: self.metadata.id,
            files: receipts.map(Entry::from).collect(),
            metadata: self.metadata.clone(),
            saved_at_ms: self.saved_at_ms,
            published_at_ms: now_ms,
            step: self.commit.step,
            before: None,
        })
    }

    /// Returns the files without a receipt, in the order of the commit.
    pub fn missing(&self) -> impl Iterator<Item = FileId> {
        self.commit.ids.iter().copied().filter(|id| self.receipt(*id).is_none())
    }

    fn receipt(&self, id: FileId) -> Option<&Receipt> {
        self.receipts.get(&id)?.as_ref()
    }

    /// Notes a receipt. The same receipt again changes nothing; of one file uploaded twice, the
    /// later receipt counts.
    ///
    /// # Errors
    /// `Invalid` for a receipt that the commit does not name, for two files with one name (two
    /// ranks wrote the same file), and for two files with one id. The attempt can then never be
    /// published.
    pub fn note_receipt(&mut self, receipt: Receipt) -> Result<()> {
        let refuse = |what: &str| {
            let error = Error::new(ErrorKind::Invalid, what.to_owned());
            error.at("name", &receipt.name).at("id", receipt.id)
        };
        if !self.receipts.contains_key(&receipt.id) {
            return Err(refuse("the commit does not name this file"));
        }
        if receipt.name.is_metadata() {
            return Err(refuse("a file of the attempt has the name of its `.metadata`"));
        }
        if let Some(other) = self.names.get(&receipt.name).filter(|other| **other != receipt.id) {
            return Err(refuse("two files of a checkpoint have the same name")
                .at("other", other)
                .advise("let each rank write files of its own names"));
        }
        match self.receipt(receipt.id) {
            Some(before) if !before.is_of_same_file(&receipt) => {
                return Err(refuse("two receipts with one id are of different files"));
            }
            // A repetition in another order must not bring an older tag back.
            Some(before) if before.uploaded_at_ms > receipt.uploaded_at_ms => return Ok(()),
            _ => {}
        }
        self.names.insert(receipt.name.clone(), receipt.id);
        self.receipts.insert(receipt.id, Some(receipt));
        Ok(())
    }

    /// Notes that the manifest is at the origin. Noting it again changes nothing.
    ///
    /// # Errors
    /// `Invalid` while receipts are missing.
    pub fn note_manifest(&mut self) -> Result<()> {
        if self.done == Done::Nothing && self.missing().next().is_some() {
            return Err(self.early("a manifest was put while receipts are missing"));
        }
        self.done = self.done.max(Done::Manifest);
        Ok(())
    }

    /// Notes that `.metadata` is at the origin. Noting it again changes nothing.
    ///
    /// # Errors
    /// `Invalid` before the manifest was noted.
    pub fn note_metadata(&mut self) -> Result<()> {
        if self.done == Done::Nothing {
            return Err(self.early("`.metadata` was put before its manifest"));
        }
        self.done = Done::Metadata;
        Ok(())
    }

    fn early(&self, what: &str) -> Error {
        Error::new(ErrorKind::Invalid, what.to_owned()).at("id", self.metadata.id)
    }
}

#[cfg(test)]
mod tests;
