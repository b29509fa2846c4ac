//! Staged files of checkpoints in a tier's directory.
//!
//! ```text
//!   checkpoints/<id>            bytes of a file
//!   checkpoints/<id>.rec        its record: the file is staged when this is
//!   checkpoints/<id>.rec.new    a record being written
//! ```
//! The bytes are synced before the record names them. The record is replaced whole as the upload
//! goes on. A removal begins with the record. What a crash leaves without a record was never
//! promised to anyone, and is removed at the next start.

use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind as IoErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use forebay_checkpoint::FileId;
use forebay_error::{Doing, Error, Result};

use super::{Directory, make_private};

/// Ending of a record's name,
const RECORD: &str = ".rec";

/// and while it is being written.
const RECORD_ASIDE: &str = ".rec.new";

/// Unit of a file's disk space, as stat(2) counts it.
const SECTOR: u64 = 512;

/// A staged file that was found at a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundStaged {
    /// Name.
    pub(crate) id: String,
    /// Bytes that it takes on the disk.
    pub(crate) bytes: u64,
}

impl Directory {
    fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    /// Path of a staged file's bytes.
    pub(crate) fn staged(&self, id: &str) -> PathBuf {
        self.checkpoints().join(id)
    }

    fn staged_record(&self, id: &str) -> PathBuf {
        self.checkpoints().join(format!("{id}{RECORD}"))
    }

    /// Creates the folder of staged files, durably, if it is missing.
    pub(crate) fn prepare_staging(&self) -> Result<()> {
        let folder = self.checkpoints();
        if folder.exists() {
            return Ok(());
        }
        self.check_identity()?;
        make_private(&folder)
            .and_then(|()| self.files.sync_directory(&self.root))
            .doing("create the folder of checkpoints")
            .map_err(|error| error.at("path", folder.display()))
    }

    /// Cuts a staged file to its length; whole blocks stay of an encrypted one.
    pub(crate) fn trim_staged(&self, id: &str, len: u64) -> Result<()> {
        let path = self.staged(id);
        let len = self.stored_len(len);
        let cut = self.files.truncate(&path, len).doing("truncate a checkpoint's file");
        cut.map_err(|error| error.at("path", path.display()))
    }

    /// Replaces the record of a staged file.
    pub(crate) fn save_record(&self, id: &str, record: &[u8]) -> Result<()> {
        self.put(&self.staged_record(id), &self.record_aside(id), record)
    }

    /// Writes the first record of a staged file, durably; the file is not visible yet.
    pub(crate) fn write_record(&self, id: &str, record: &[u8]) -> Result<()> {
        self.write_aside(&self.staged_record(id), &self.record_aside(id), record)
    }

    /// Makes a staged file visible whose bytes and record are durable.
    pub(crate) fn reveal_record(&self, id: &str) -> Result<()> {
        self.reveal(&self.staged_record(id), &self.record_aside(id), None)
    }

    /// Removes the record of a file that does not become visible.
    pub(crate) fn drop_record(&self, id: &str) -> Result<()> {
        self.remove_path(&self.record_aside(id))
    }

    fn record_aside(&self, id: &str) -> PathBuf {
        self.checkpoints().join(format!("{id}{RECORD_ASIDE}"))
    }

    /// Reads the record of a staged file.
    pub(crate) fn read_record(&self, id: &str) -> Result<Vec<u8>> {
        let path = self.staged_record(id);
        self.read_sealed(&path).map_err(|error| error.at("path", path.display()))
    }

    /// Removes a staged file, its record first. Missing files are no error.
    pub(crate) fn remove_staged(&self, id: &str) -> Result<()> {
        self.check_identity()?;
        let paths = [self.staged_record(id), self.staged(id)];
        paths.iter().try_for_each(|path| self.remove_path(path))
    }

    /// Lists staged files, and removes what has no record, except the files `in_use`, which are
    /// being written.
    pub(crate) fn recover_staged(&self, in_use: &HashSet<String>) -> Result<Vec<FoundStaged>> {
        let folder = self.checkpoints();
        let at = |error: Error| error.at("path", folder.display());
        let listed = match fs::read_dir(&folder) {
            Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.doing("list the checkpoints").map_err(at)?,
        };
        let mut found = Vec::new();
        for entry in listed {
            let entry = entry.doing("list the checkpoints").map_err(at)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let (id, ending) = name.split_at(name.find('.').unwrap_or(name.len()));
            // Foreign files are never removed.
            if check_staged_id(id).is_err() || in_use.contains(id) {
                continue;
            }
            match ending {
                "" if self.staged_record(id).exists() => {
                    let meta = entry.metadata().doing("stat a checkpoint's file").map_err(at)?;
                    let bytes = (meta.blocks() * SECTOR).max(meta.len());
                    found.push(FoundStaged { id: id.to_owned(), bytes });
                }
                // Unfinished: its writer is gone.
                "" | RECORD_ASIDE => self.remove_path(&entry.path())?,
                RECORD if !self.staged(id).exists() => self.remove_path(&entry.path())?,
                _ => {}
            }
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }
}

/// Rejects a name that is no identity of a file: it would name another file.
///
/// # Errors
/// `Invalid`.
pub(crate) fn check_staged_id(id: &str) -> Result<()> {
    id.parse::<FileId>().map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_error::ErrorKind;

    use super::super::Keys;
    use super::*;
    use crate::files::LocalFiles;

    const ID: &str = "00112233445566778899aabbccddeeff";

    fn open(root: &std::path::Path) -> Directory {
        Directory::open(root, Arc::new(LocalFiles), &Keys::default()).unwrap()
    }

    #[test]
    fn file_is_staged_when_its_record_is() {
        let root = tempfile::tempdir().unwrap();
        let directory = open(root.path());
        assert_eq!(directory.recover_staged(&HashSet::new()).unwrap(), []);
        directory.prepare_staging().unwrap();
        fs::write(directory.staged(ID), vec![7; 10_000]).unwrap();
        directory.trim_staged(ID, 9_000).unwrap();
        directory.save_record(ID, b"first").unwrap();
        directory.save_record(ID, b"second").unwrap();
        assert_eq!(directory.read_record(ID).unwrap(), b"second");
        drop(directory);
        let directory = open(root.path());
        let found = directory.recover_staged(&HashSet::new()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].id, ID);
        assert!(found[0].bytes >= 9_000);
        directory.remove_staged(ID).unwrap();
        assert_eq!(directory.recover_staged(&HashSet::new()).unwrap(), []);
        assert!(!directory.staged(ID).exists());
    }

    #[test]
    fn files_without_a_record_are_removed_at_the_start() {
        let root = tempfile::tempdir().unwrap();
        let directory = open(root.path());
        directory.prepare_staging().unwrap();
        let other = ID.replace('0', "1");
        for id in [ID, &other] {
            fs::write(directory.staged(id), b"half").unwrap();
        }
        let aside = directory.checkpoints().join(format!("{ID}{RECORD_ASIDE}"));
        let lone = directory.checkpoints().join(format!("{}{RECORD}", ID.replace('2', "3")));
        let foreign = directory.checkpoints().join("README");
        [&aside, &lone, &foreign].iter().for_each(|path| fs::write(path, b"x").unwrap());
        let in_use = HashSet::from([other.clone()]);
        assert_eq!(directory.recover_staged(&in_use).unwrap(), []);
        assert!(directory.staged(&other).exists(), "somebody writes it");
        assert!(foreign.exists(), "foreign files stay");
        assert!(!directory.staged(ID).exists() && !aside.exists() && !lone.exists());
    }

    #[test]
    fn identities_that_are_no_file_names_are_rejected() {
        for id in ["", "..", "../shards/x", &ID[1..], &ID.to_uppercase(), &format!("{ID}0")] {
            assert_eq!(check_staged_id(id).unwrap_err().kind(), ErrorKind::Invalid, "{id}");
        }
        check_staged_id(ID).unwrap();
    }
}
