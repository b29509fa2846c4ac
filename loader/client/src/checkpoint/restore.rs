//! Published checkpoints, copied to local folders.
//!
//! Files arrive in a folder beside the wanted one, which gets its name once all of them are there
//! and synced: nobody takes a part for the whole.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use forebay_checkpoint::{FileName, METADATA};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_wire::checkpoint::BLOCK;

use super::push::LISTING;
use super::{CheckpointPlace, CheckpointReader};

/// Bytes read at a time: a block of the checksums.
const PIECE: usize = BLOCK as usize;

impl CheckpointPlace {
    /// Copies all files of a published checkpoint to a new folder. `progress` hears the bytes
    /// copied so far, and of all. The list of files that [`super::Push`] adds is left out.
    ///
    /// # Errors
    /// `Invalid` for a folder that holds something; `NotFound` if nothing is published there;
    /// `Corrupt` if the bytes are not those that were saved; those of the disk.
    pub fn restore(&self, folder: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let at = |error: Error| error.at("folder", folder.display());
        let is_empty = match std::fs::read_dir(folder) {
            Ok(mut entries) => entries.next().is_none(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => true,
            Err(error) => return Err(error).doing("list the folder").map_err(at),
        };
        if !is_empty {
            return Err(at(Error::new(ErrorKind::Invalid, "the folder holds files already")
                .advise("name a new folder, or empty this one")));
        }
        let published = self.list()?;
        let all: u64 = published.files.iter().map(|file| file.len).sum();
        let absolute = std::path::absolute(folder).doing("find the folder").map_err(at)?;
        let (Some(above), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            return Err(at(Error::new(ErrorKind::Invalid, "the folder has no name")));
        };
        std::fs::create_dir_all(above).doing("make a folder").map_err(at)?;
        let prefix = format!(".{}-", name.to_string_lossy());
        let mut maker = tempfile::Builder::new();
        // As any folder that a user makes, by the umask.
        maker.prefix(&prefix).suffix(".forebay").permissions(Permissions::from_mode(0o777));
        let partial = maker.tempdir_in(above).doing("make a folder").map_err(at)?;
        let mut done = 0;
        for file in published.files {
            let name = FileName::new(file.name)?;
            self.copy(&name, partial.path(), &mut |bytes| {
                done += bytes;
                progress(done, all.max(done));
            })?;
        }
        sync_folders(partial.path()).map_err(at)?;
        std::fs::rename(partial.path(), &absolute).doing("name the folder").map_err(at)?;
        // It has another name, and stays.
        let _ = partial.keep();
        File::open(above).and_then(|above| above.sync_all()).doing("sync a folder").map_err(at)
    }

    /// Copies a file; the list of a pushed folder is none of its files.
    fn copy(&self, name: &FileName, to: &Path, advance: &mut dyn FnMut(u64)) -> Result<()> {
        let place = Self { name: name.to_string(), ..self.clone() };
        let mut reader = CheckpointReader::open(&place)?;
        let path = to.join(name.as_str());
        let at = |error: Error| error.at("path", path.display());
        if let Some(above) = path.parent() {
            std::fs::create_dir_all(above).doing("make a folder").map_err(at)?;
        }
        let mut file = File::create_new(&path).doing("make a file").map_err(at)?;
        let (mut offset, mut piece) = (0, vec![0; PIECE]);
        loop {
            (self.watch.0)()?;
            let read = reader.read_at(offset, &mut piece)?;
            if read == 0 {
                break;
            }
            if offset == 0 && name.as_str() == METADATA && piece[..read].starts_with(LISTING) {
                return std::fs::remove_file(&path).doing("remove a file").map_err(at);
            }
            file.write_all(&piece[..read]).doing("write a file").map_err(at)?;
            offset += read as u64;
            advance(read as u64);
        }
        file.sync_all().doing("sync a file").map_err(at)
    }
}

/// Makes the names of all files below a folder durable.
fn sync_folders(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder).doing("list a folder")? {
        let entry = entry.doing("list a folder")?;
        if entry.file_type().doing("stat a file")?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    File::open(folder).and_then(|folder| folder.sync_all()).doing("sync a folder")
}
