//! Samples of tars that exist already.
//!
//! The output has the samples that a loader would read, one by one. A sample that a loader would
//! report as bad, or that would become ambiguous, is rejected, never dropped.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};

use super::parallel::each;
use super::sample::{Content, Sample, Stamp};
use crate::index::Index;
use crate::indexer::{Indexer, ShardBytes};

/// A tar that samples are taken from, as it was when it was planned.
#[derive(Debug)]
pub(super) struct Tar {
    pub(super) path: PathBuf,
    pub(super) len: u64,
    pub(super) stamp: Stamp,
}

/// Every sample of `paths`, in their order; with `prefix`, keys begin with their tar's name; with
/// `sort`, members of one key of a tar are one sample, and its samples come in the order of keys.
///
/// # Errors
/// The indexer's error, with the tar's path; `BadSample` for a sample that a loader would report as
/// bad.
pub(super) fn samples(
    paths: &[PathBuf],
    prefix: bool,
    sort: bool,
    threads: NonZero<usize>,
) -> Result<(Vec<Tar>, Vec<Sample>)> {
    let read = |number: usize, _: &_| {
        let path = &paths[number];
        samples_of(path, number, prefix, sort).map_err(|error| error.at("url", path.display()))
    };
    let (tars, samples): (Vec<_>, Vec<_>) = each(paths.len(), threads, read)?.into_iter().unzip();
    Ok((tars, samples.into_iter().flatten().collect()))
}

fn samples_of(path: &Path, number: usize, prefix: bool, sort: bool) -> Result<(Tar, Vec<Sample>)> {
    let number = u32::try_from(number)
        .map_err(|_| Error::new(ErrorKind::Invalid, "too many shards in one packing"))?;
    let tar = Tar::look(path)?;
    let index = Indexer::new(Headers(tar.open()?), tar.len).finish().map_err(unpack_first)?;
    let mut found: Vec<&crate::index::Sample> = index.samples.iter().collect();
    if sort {
        // Stable: members stay in the order of the tar.
        found.sort_by(|a, b| a.key.cmp(&b.key));
    }
    let samples = found.chunk_by(|a, b| sort && a.key == b.key).map(|pieces| {
        let found = pieces[0];
        let at = |error: Error| error.at("offset", found.offset);
        if let Some(why) = pieces.iter().find_map(|piece| piece.bad.as_ref()) {
            let error = Error::new(ErrorKind::BadSample, why.as_str()).at("key", &found.key);
            return Err(at(error).advise("repair the shard first: nothing is dropped silently"));
        }
        let key = match prefix {
            true => format!("{}/{}", stem(path), found.key),
            false => found.key.clone(),
        };
        Sample::new(&key, pieces.iter().flat_map(|piece| parts(&index, piece, number))).map_err(at)
    });
    Ok((tar, samples.collect::<Result<_>>()?))
}

fn parts<'a>(
    index: &'a Index,
    sample: &'a crate::index::Sample,
    tar: u32,
) -> impl Iterator<Item = (&'a str, u64, Content)> {
    index.members_of(sample).iter().map(move |member| {
        let field = index.fields[member.field as usize].as_str();
        (field, member.len, Content::Piece { tar, offset: member.offset })
    })
}

/// The indexer's advice is for who uploads shards.
fn unpack_first(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Invalid => error.advise("unpack it first, as by `gunzip -k` or `zstd -d`"),
        _ => error,
    }
}

/// A tar's name without its ending, as keys begin with.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.strip_suffix(".tar").unwrap_or(&name).to_owned()
}

impl Tar {
    fn look(path: &Path) -> Result<Self> {
        let file = std::fs::metadata(path).doing("read the shard's size")?;
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

/// A tar's headers; its payload is not read, and has no checksums. It is read once, when it is
/// packed.
struct Headers(File);

impl Read for Headers {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Seek for Headers {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

impl ShardBytes for Headers {
    fn crc32c(&mut self, _offset: u64, _len: u64) -> Result<u32> {
        Ok(0)
    }
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
