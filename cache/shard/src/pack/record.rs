//! Record of a packing in progress: a small file beside the manifest that outlives the process.
//!
//! A shard counts as done only if the record names the very plan being carried out; otherwise no
//! present file is kept, and none is replaced.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::shard::at;

/// The format this version writes and reads.
const FORMAT: u32 = 1;

/// More is no record.
const MAX_BYTES: u64 = 4096;

/// For people who find the file.
const NOTE: &str = "`forebay pack` identifies its own shards by this file, to resume";

#[derive(Serialize, Deserialize)]
struct Document {
    note: String,
    version: u32,
    plan: String,
    shards: u64,
}

/// A plan's record, locked against others who would pack the same.
pub(super) struct Record {
    _lock: File,
}

/// Returns the path of the record of a manifest's shards.
fn path_of(manifest: &Path) -> PathBuf {
    let mut path = manifest.to_owned().into_os_string();
    path.push(".plan");
    path.into()
}

/// Returns false if no shard of `plan` can be present yet.
pub(super) fn judge(plan: &Plan) -> Result<bool> {
    let path = path_of(&plan.manifest_path);
    match File::open(&path) {
        Ok(file) => judge_against(plan, &path, read(&file).map_err(at(&path))?.as_ref()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => judge_against(plan, &path, None),
        Err(error) => Err(at(&path)(Error::from_io("read the packing record", &error))),
    }
}

fn judge_against(plan: &Plan, path: &Path, found: Option<&Document>) -> Result<bool> {
    if found.is_some_and(|found| found.plan == plan.hash) {
        return Ok(true);
    }
    // No shard of another plan may remain, even if it had more of them.
    let count = (plan.shards.len() as u64).max(found.map_or(0, |found| found.shards));
    let names = (0..count).map(|number| plan.pattern.path(number));
    let Some(taken) = names
        .chain([plan.manifest_path.clone()])
        .chain(plan.classes_path())
        .find(|path| path.symlink_metadata().is_ok())
    else {
        return Ok(false);
    };
    Err(match found {
        Some(_) => Error::new(
            ErrorKind::Invalid,
            "other samples or options were used here: nothing is overwritten",
        )
        .at("path", taken.display())
        .at("record", path.display())
        .advise(
            "give the same input and options to resume; else choose another name, or remove the old shards, their manifest and the record",
        ),
        None => Error::new(ErrorKind::Invalid, "a file that would be written exists already")
            .at("path", taken.display())
            .advise("choose another name, or remove the old shards and their manifest first"),
    })
}

impl Record {
    /// Takes hold of the output for `plan`, and says whether shards of it may be there.
    ///
    /// # Errors
    /// As [`judge`]; `Unavailable` if somebody else packs there.
    pub(super) fn claim(plan: &Plan) -> Result<(Self, bool)> {
        let path = path_of(&plan.manifest_path);
        let claim = || {
            let open =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let mut file = open.doing("write the packing record")?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let what = "another `forebay pack` is working on these shards";
                    return Err(
                        Error::new(ErrorKind::Unavailable, what).advise("wait until it ends")
                    );
                }
                Err(TryLockError::Error(error)) => {
                    return Err(Error::from_io("lock the packing record", &error));
                }
            }
            let again = judge_against(plan, &path, read(&file)?.as_ref())?;
            if !again {
                write(&mut file, plan).doing("write the packing record")?;
            }
            Ok((Self { _lock: file }, again))
        };
        claim().map_err(at(&path))
    }
}

/// Reads a record; none if it was never completely written: then nothing was made under it.
fn read(file: &File) -> Result<Option<Document>> {
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text).doing("read the packing record")?;
    let document = serde_json::from_slice(&text).ok();
    Ok(document.filter(|document: &Document| document.version == FORMAT))
}

fn write(file: &mut File, plan: &Plan) -> io::Result<()> {
    let document = Document {
        note: NOTE.to_owned(),
        version: FORMAT,
        plan: plan.hash.clone(),
        shards: plan.shards.len() as u64,
    };
    let mut text = serde_json::to_vec(&document)?;
    text.push(b'\n');
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&text)?;
    file.sync_all()
}
