//! Folders of other tools, published as checkpoints.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use forebay_checkpoint::METADATA;
use forebay_error::{Doing, Error, ErrorKind, Result, shown};
use serde::Serialize;

use super::{CheckpointPlace, CheckpointWriter, Commit, FileId, SaveConfig};

/// Bytes read at a time.
const PIECE: usize = 4 << 20;

/// Folders within folders: deeper ones lead in circles by links.
const DEPTH: usize = 32;

/// A folder to publish.
#[derive(Debug)]
pub struct Push<'a> {
    /// The folder. Links are followed.
    pub folder: &'a Path,
    /// Place of the checkpoint.
    pub place: &'a CheckpointPlace,
    /// Step of the training, for `keep` of the node's rule.
    pub step: Option<u64>,
    /// True to replace a checkpoint that is published there.
    pub overwrite: bool,
    /// Name of the job, shown to admins.
    pub job: &'a str,
}

/// Content of a pushed folder's `.metadata`: the files of the folder. Torch's own is a pickle.
#[derive(Serialize)]
struct Listing<'a> {
    files: Vec<&'a str>,
    step: Option<u64>,
}

/// Start of a [`Listing`] as text.
pub(super) const LISTING: &[u8] = b"{\"files\":";

impl Push<'_> {
    /// Saves all files, and has them published as one checkpoint. Returns once they are durable on
    /// this node. `progress` hears the bytes saved so far, and of all.
    ///
    /// # Errors
    /// `NotFound` without such a folder; `Invalid` for a folder without files, or with one that
    /// cannot be part of a checkpoint, and if a checkpoint is published there that is not to be
    /// replaced; those of [`CheckpointWriter`].
    pub fn run(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let mut names = Vec::new();
        list(self.folder, "", DEPTH, &mut names)?;
        if names.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "the folder holds no files")
                .at("folder", self.folder.display()));
        }
        if !self.overwrite {
            self.look()?;
        }
        let all: u64 = names.iter().map(|(_, bytes)| bytes).sum();
        let mut done = 0;
        let mut advance = |bytes: u64| {
            done += bytes;
            progress(done, all.max(done));
        };
        let mut files = Vec::with_capacity(names.len());
        for (name, bytes) in &names {
            files.push(self.save(name, *bytes, &mut advance)?);
        }
        let listing =
            Listing { files: names.iter().map(|(name, _)| &**name).collect(), step: self.step };
        let text = serde_json::to_vec(&listing).doing("list the files")?;
        let mut metadata = CheckpointWriter::open(self.config(METADATA, text.len() as u64)?)?;
        metadata.write(&text)?;
        let Self { step, overwrite, .. } = *self;
        metadata.finish(Some(Commit { files, step, overwrite })).map(drop)
    }

    /// Looks for a published checkpoint before anything is saved. The daemon looks again before it
    /// touches an object that is there.
    fn look(&self) -> Result<()> {
        match self.place.list() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            // A store that is away delays no save: the upload will tell.
            Err(error) if error.kind() == ErrorKind::Unavailable => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(Error::new(ErrorKind::Invalid, "a checkpoint is published there already")
                .at("url", shown(&self.place.url))
                .at("reason", "exists")
                .advise(
                    "save to another URL, or replace it: overwrite=True (`forebay checkpoint push \
                     --overwrite`)",
                )),
        }
    }

    /// Saves a file; returns its identity.
    fn save(&self, name: &str, bytes: u64, advance: &mut dyn FnMut(u64)) -> Result<FileId> {
        let path = self.folder.join(name);
        let at = |error: Error| error.at("path", path.display());
        let config = self.config(name, bytes)?;
        let id = config.id;
        let mut writer = CheckpointWriter::open(config)?;
        let mut file = File::open(&path).doing("open a file").map_err(at)?;
        let mut piece = vec![0; PIECE];
        loop {
            (self.place.watch.0)()?;
            match file.read(&mut piece).doing("read a file").map_err(at)? {
                0 => break,
                read => {
                    writer.write(&piece[..read])?;
                    advance(read as u64);
                }
            }
        }
        writer.finish(None)?;
        Ok(id)
    }

    fn config(&self, name: &str, expected: u64) -> Result<SaveConfig> {
        let place = CheckpointPlace { name: name.to_owned(), ..self.place.clone() };
        SaveConfig::drawn(place, expected, false, self.job)
    }
}

/// Lists the files below a folder with their lengths, by name.
fn list(folder: &Path, prefix: &str, depth: usize, into: &mut Vec<(String, u64)>) -> Result<()> {
    let at = |error: Error| error.at("folder", folder.display());
    let invalid = |what: &str, name: &str| {
        Err(at(Error::new(ErrorKind::Invalid, what.to_owned()).at("name", name)))
    };
    if depth == 0 {
        return invalid("the folder is too deep, or a link leads in a circle", prefix);
    }
    let listed = std::fs::read_dir(folder.join(prefix)).doing("list a folder").map_err(at)?;
    let mut entries = listed.collect::<std::io::Result<Vec<_>>>().doing("list a folder")?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let Some(name) = name.to_str() else {
            return invalid("a file's name is no text", &name.display().to_string());
        };
        let name = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
        let facts = std::fs::metadata(entry.path()).doing("stat a file").map_err(at)?;
        if facts.is_dir() {
            list(folder, &name, depth - 1, into)?;
        } else if !facts.is_file() {
            return invalid("the folder holds a special file", &name);
        } else if name == METADATA {
            return invalid(
                "the folder holds .metadata, which makes a checkpoint visible: save it with \
                 forebay.checkpoint.Writer",
                &name,
            );
        } else {
            into.push((name, facts.len()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_begins_as_a_restore_expects() {
        for step in [None, Some(1)] {
            let text = serde_json::to_vec(&Listing { files: vec!["a"], step }).unwrap();
            assert!(text.starts_with(LISTING));
        }
    }

    #[test]
    fn folders_are_listed_by_name_and_odd_ones_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        std::fs::create_dir_all(path.join("b/c")).unwrap();
        for (name, bytes) in [("b/c/x", 3), ("a", 1), ("b/y", 2)] {
            std::fs::write(path.join(name), vec![0; bytes]).unwrap();
        }
        std::os::unix::fs::symlink("../a", path.join("b/link")).unwrap();
        let listed = || {
            let mut names = Vec::new();
            list(path, "", DEPTH, &mut names).map(|()| names)
        };
        let names = listed().unwrap();
        let wanted = [("a", 1), ("b/c/x", 3), ("b/link", 1), ("b/y", 2)];
        assert_eq!(names, wanted.map(|(name, bytes)| (name.to_owned(), bytes)));
        let rejected = || listed().unwrap_err();
        std::os::unix::fs::symlink("..", path.join("b/up")).unwrap();
        assert_eq!(rejected().kind(), ErrorKind::Invalid, "a circle");
        std::fs::remove_file(path.join("b/up")).unwrap();
        std::fs::write(path.join(METADATA), "").unwrap();
        assert_eq!(rejected().place("name"), Some(METADATA));
        std::fs::remove_file(path.join(METADATA)).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path.join("s")).unwrap();
        assert_eq!(rejected().place("name"), Some("s"));
        std::fs::remove_dir_all(path).unwrap();
        assert_eq!(rejected().kind(), ErrorKind::NotFound);
    }
}
