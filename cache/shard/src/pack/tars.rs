//! Samples of tars that exist already.
//!
//! The output has the samples that a loader would read, one by one. A sample that a loader would
//! report as bad, or that would become ambiguous, is rejected, never dropped.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::num::NonZero;
use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};

use super::origin::{Origin, numbered};
use super::parallel::each;
use super::sample::{Content, Sample};
use crate::index::Index;
use crate::indexer::{Indexer, ShardBytes};

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
) -> Result<(Vec<Origin>, Vec<Sample>)> {
    let read = |number: usize, _: &_| {
        let path = &paths[number];
        samples_of(path, number, prefix, sort).map_err(|error| error.at("url", path.display()))
    };
    let (tars, samples): (Vec<_>, Vec<_>) = each(paths.len(), threads, read)?.into_iter().unzip();
    Ok((tars, samples.into_iter().flatten().collect()))
}

fn samples_of(
    path: &Path,
    number: usize,
    prefix: bool,
    sort: bool,
) -> Result<(Origin, Vec<Sample>)> {
    let number = numbered(number)?;
    let tar = Origin::look(path)?;
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
        (field, member.len, Content::Piece { file: tar, offset: member.offset })
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
