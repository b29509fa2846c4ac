//! Files that hold many samples each, as they were when the packing was planned.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};

use super::sample::Stamp;

/// A file that samples are taken from, as it was when it was planned.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) path: PathBuf,
    pub(super) len: u64,
    pub(super) stamp: Stamp,
}

impl Origin {
    pub(super) fn look(path: &Path) -> Result<Self> {
        let file = std::fs::metadata(path).doing("read a file's size")?;
        if !file.is_file() {
            return Err(Error::new(ErrorKind::Invalid, "it is not a regular file"));
        }
        Ok(Self { path: path.to_owned(), len: file.len(), stamp: Stamp::of(&file) })
    }

    /// Opens it, if it is still as it was.
    pub(super) fn open(&self) -> Result<File> {
        open_unchanged(&self.path, self.len, self.stamp)
    }
}

/// Opens a file that is still as it was planned.
pub(super) fn open_unchanged(path: &Path, len: u64, stamp: Stamp) -> Result<File> {
    let file = File::open(path).doing("open a file")?;
    let now = file.metadata().doing("measure a file")?;
    match (now.len(), Stamp::of(&now)) == (len, stamp) {
        true => Ok(file),
        false => Err(changed()),
    }
}

/// A file is not what was planned any more.
pub(super) fn changed() -> Error {
    Error::new(ErrorKind::Corrupt, "a file was changed while it was packed")
        .advise("when writing has stopped, remove the packed shards, and pack again")
}

/// Returns the number of a file among the inputs.
pub(super) fn numbered(number: usize) -> Result<u32> {
    u32::try_from(number)
        .map_err(|_| Error::new(ErrorKind::Invalid, "too many files in one packing"))
}

/// A section of an open file.
pub(super) struct Section<'a> {
    pub(super) file: &'a File,
    pub(super) offset: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read_at(into, self.offset)?;
        self.offset += got as u64;
        Ok(got)
    }
}
