//! Carrying a plan out: what is missing is written, several shards at once, and then the manifest.
//!
//! It may be stopped at any moment, and the same again ends where it would have ended.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_error::{Doing, Error, ErrorKind, Result};

use super::parallel::each;
use super::plan::{Packed, Plan};
use super::record::{self, Record};
use super::shard::{self, at, partial};

impl Plan {
    /// Returns the number of shards already present; writes nothing.
    pub fn rehearse(&self) -> Result<usize> {
        match record::judge(self)? {
            true => Ok(self.shards.len() - self.missing()?.len()),
            false => Ok(0),
        }
    }

    /// Writes the shards that are not there, and the manifest; how many were there. `progress` is
    /// told of bytes, those of shards that were there first.
    ///
    /// # Errors
    /// As [`Plan::rehearse`]; `Unavailable` if another process packs the same; `Corrupt` if an
    /// input is not what was planned any more; `Full` if the disk is. What is whole by then stays,
    /// and the same plan goes on from there.
    pub fn pack(&self, progress: &(dyn Fn(u64) + Sync)) -> Result<usize> {
        // A rejected plan creates nothing.
        record::judge(self)?;
        for folder in self.folders() {
            fs::create_dir_all(folder).doing("create the shards' folder").map_err(at(folder))?;
        }
        let (_record, again) = Record::claim(self)?;
        let missing = match again {
            true => self.missing()?,
            false => {
                // No shard may outlive its record, whatever happens to the machine.
                sync_folder(folder_of(&self.manifest_path))?;
                (0..self.shards.len()).collect()
            }
        };
        self.sweep(&missing)?;
        progress(self.bytes() - missing.iter().map(|&at| self.shards[at].0.bytes).sum::<u64>());
        let kept = self.shards.len() - missing.len();
        let done = AtomicUsize::new(kept);
        let write = |number: usize, stop: &_| {
            shard::write(self, &self.shards[missing[number]], progress, stop)?;
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        let written = each(missing.len(), self.threads, write).and_then(|_| {
            // The names must be on the disk before a manifest promises them.
            self.folders().try_for_each(sync_folder)?;
            self.write_classes()?;
            self.write_manifest()
        });
        written.map_err(|error| stopped(error, done.load(Ordering::Relaxed), self.shards.len()))?;
        Ok(kept)
    }

    /// The shards that are still to be written, where the record says whose those are that lie
    /// there.
    fn missing(&self) -> Result<Vec<usize>> {
        let mut missing = Vec::new();
        for (number, Packed { path, bytes, .. }) in self.shards().enumerate() {
            match path.symlink_metadata() {
                Ok(found) if found.is_file() && found.len() == *bytes => {}
                Ok(_) => {
                    let what = "a shard's length has changed since it was packed";
                    return Err(at(path)(Error::new(ErrorKind::Corrupt, what))
                        .advise("remove it, and pack again: the others are kept"));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(number),
                Err(error) => return Err(at(path)(Error::from_io("find a shard", &error))),
            }
        }
        Ok(missing)
    }

    /// Removes what a killed process left beside shards that it had just put into place. Beside the
    /// missing ones it is overwritten.
    fn sweep(&self, missing: &[usize]) -> Result<()> {
        let mut missing = missing.iter().peekable();
        for (number, shard) in self.shards().enumerate() {
            if missing.next_if_eq(&&number).is_some() {
                continue;
            }
            match fs::remove_file(partial(&shard.path)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(at(&shard.path)(Error::from_io("remove the remains", &error)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes the names of classes, if there are any.
    fn write_classes(&self) -> Result<()> {
        let Some(path) = self.classes_path() else { return Ok(()) };
        let text = serde_json::to_string_pretty(&self.classes).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("the classes are no JSON: {error}"))
        })?;
        replace(&path, &text, "write the classes")
    }

    fn write_manifest(&self) -> Result<()> {
        replace(&self.manifest_path, &self.manifest.to_json()?, "write the manifest")
    }

    /// The folders that are written into, each once if the shards are in one.
    fn folders(&self) -> impl Iterator<Item = &Path> {
        let mut folders: Vec<&Path> = self.shards().map(|shard| folder_of(&shard.path)).collect();
        folders.push(folder_of(&self.manifest_path));
        folders.sort_unstable();
        folders.dedup();
        folders.into_iter()
    }
}

/// Replaces a document at once: readers see none, or all of it.
fn replace(path: &Path, text: &str, doing: &str) -> Result<()> {
    let partial = partial(path);
    let write = || {
        let mut file = File::create(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&partial, path)
    };
    if let Err(error) = write() {
        drop(fs::remove_file(&partial));
        return Err(at(path)(Error::from_io(doing, &error)));
    }
    sync_folder(folder_of(path))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .doing("sync the shards' folder")
        .map_err(at(folder))
}

/// Says how far it came, and where the way goes on.
fn stopped(error: Error, done: usize, all: usize) -> Error {
    let error = error.at("whole_shards", format!("{done} of {all}"));
    match error.kind() {
        ErrorKind::Full => error.advise(
            "free space, and run the same command again: it resumes with the missing shards",
        ),
        _ => error,
    }
}
