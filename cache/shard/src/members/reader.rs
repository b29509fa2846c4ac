//! Reading of a member index: the directory when it is opened, then the blocks that are wanted.
//!
//! Positioned reads rather than a map of the file: a file that is cut while it is mapped kills the
//! process, pages of a map count as its memory, and an index in a bucket has no map. A scan reads
//! each block once, so it needs no cache.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use forebay_error::{Doing, Error, ErrorKind, Result};

use super::block;
use super::coding::wrong;
use super::column::Column;
use super::directory::{ColumnInfo, Directory, IndexedShard};
use super::{BLOCK_MAX, FIXED_REGIONS, KEYS, MEMBERS, SUM_BYTES};
use crate::checksum::crc32c;
use crate::index::{Index, Sample};
use crate::manifest::Manifest;

/// The format that this version writes and reads.
const FORMAT: u32 = 1;

/// First bytes of an index; the version follows.
const MAGIC: [u8; 8] = *b"\x89FBMEMB\n";

/// Bytes of the head: magic, version, and zeros that round it up.
const HEAD_BYTES: usize = 16;

/// The head.
pub(super) const HEAD: [u8; HEAD_BYTES] = head();

/// Bytes of the trailer: place, length and CRC32C of the directory, version, magic, CRC32C of all
/// that.
const TRAILER_BYTES: usize = 8 + 8 + SUM_BYTES + 4 + MAGIC.len() + SUM_BYTES;

/// Longest run that is read at once rather than block by block: a column of a shard of usual size.
const RUN_AT_ONCE: u64 = 256 << 10;

const fn head() -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    let (magic, version) = head.split_at_mut(MAGIC.len());
    magic.copy_from_slice(&MAGIC);
    version.split_at_mut(4).0.copy_from_slice(&FORMAT.to_le_bytes());
    head
}

/// Returns the trailer behind a directory at byte `at`.
pub(super) fn trailer(at: u64, directory: &[u8]) -> Vec<u8> {
    let mut trailer = Vec::with_capacity(TRAILER_BYTES);
    trailer.extend_from_slice(&at.to_le_bytes());
    trailer.extend_from_slice(&(directory.len() as u64).to_le_bytes());
    trailer.extend_from_slice(&crc32c(directory).to_le_bytes());
    trailer.extend_from_slice(&FORMAT.to_le_bytes());
    trailer.extend_from_slice(&MAGIC);
    trailer.extend_from_slice(&crc32c(&trailer).to_le_bytes());
    trailer
}

/// Bytes that can be read anywhere: a file, or an object by ranges.
pub trait ReadAt: Send + Sync {
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// Those of the medium.
    fn bytes(&self) -> Result<u64>;

    /// Fills `into` with the bytes from `at` on.
    ///
    /// # Errors
    /// Those of the medium; an end before the last byte.
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<()>;
}

impl ReadAt for File {
    fn bytes(&self) -> Result<u64> {
        Ok(self.metadata().doing("read the member index")?.len())
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.read_exact_at(into, at).doing("read the member index")
    }
}

/// An open member index.
pub struct MemberIndex {
    from: Box<dyn ReadAt>,
    /// Name in errors.
    name: String,
    directory: Directory,
    /// First byte of each run, as [`Directory::runs`] has their lengths.
    starts: Vec<u64>,
}

impl fmt::Debug for MemberIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberIndex").field("name", &self.name).finish_non_exhaustive()
    }
}

impl MemberIndex {
    /// Opens the index that is a file.
    ///
    /// # Errors
    /// `NotFound` if there is none; as [`MemberIndex::new`].
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).doing("open the member index");
        let file = file.map_err(|error| error.at("path", path.display()))?;
        Self::new(Box::new(file), path.display().to_string())
    }

    /// Opens an index; `name` names it in errors.
    ///
    /// # Errors
    /// `Corrupt` for a damaged one; `Invalid` for one of another format, or none at all.
    pub fn new(from: Box<dyn ReadAt>, name: String) -> Result<Self> {
        let opened = || {
            let (directory, at) = Self::directory(&*from)?;
            let (starts, end) = starts(&directory)?;
            let fills = end == at;
            fills.then_some((directory, starts)).ok_or_else(|| wrong("its runs do not fill it"))
        };
        let (directory, starts) = opened().map_err(|error| error.at("path", &name))?;
        Ok(Self { from, name, directory, starts })
    }

    /// Reads the directory, and its place.
    fn directory(from: &dyn ReadAt) -> Result<(Directory, u64)> {
        let bytes = from.bytes()?;
        let least = (HEAD_BYTES + TRAILER_BYTES) as u64;
        let other = |what: &str| {
            Error::new(ErrorKind::Invalid, what).advise("write it with `forebay index --members`")
        };
        if bytes < least {
            return Err(other("the file is no member index"));
        }
        let mut head = [0; HEAD_BYTES];
        from.read_at(0, &mut head)?;
        if head[..MAGIC.len()] != MAGIC {
            return Err(other("the file is no member index"));
        }
        if head != HEAD {
            return Err(other("the member index has another format than this version reads"));
        }
        let mut trailer = [0; TRAILER_BYTES];
        let end = bytes - TRAILER_BYTES as u64;
        from.read_at(end, &mut trailer)?;
        let (fixed, sum) = trailer.split_at(TRAILER_BYTES - SUM_BYTES);
        if crc32c(fixed).to_le_bytes() != sum {
            return Err(wrong("it ends early, or its trailer is damaged"));
        }
        let number = |at: usize| u64::from_le_bytes(fixed[at..at + 8].try_into().expect("8 bytes"));
        let (at, len) = (number(0), number(8));
        if at.checked_add(len) != Some(end) {
            return Err(wrong("its directory does not end at its trailer"));
        }
        // Not more than the file has.
        let len = usize::try_from(len).map_err(|_| wrong("its directory is too long"))?;
        let mut directory = vec![0; len];
        from.read_at(at, &mut directory)?;
        if crc32c(&directory).to_le_bytes() != fixed[16..16 + SUM_BYTES] {
            return Err(wrong("its directory does not match its checksum").at("offset", at));
        }
        Ok((Directory::decode(&directory)?, at))
    }

    /// Rejects the index of another manifest.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check(&self, manifest: &Manifest) -> Result<()> {
        if self.directory.manifest == manifest.hash()
            && self.shards().len() == manifest.shards().len()
        {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Invalid, "the member index belongs to another manifest")
            .at("path", &self.name)
            .advise("write both again with `forebay index --members`"))
    }

    /// The name in errors.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The columns.
    #[must_use]
    pub fn columns(&self) -> &[ColumnInfo] {
        &self.directory.columns
    }

    /// The fields, by their numbers.
    #[must_use]
    pub fn fields(&self) -> &[String] {
        &self.directory.fields
    }

    /// The shards, in the order of the manifest.
    #[must_use]
    pub fn shards(&self) -> &[IndexedShard] {
        &self.directory.shards
    }

    /// Reads a column of a shard, block by block.
    ///
    /// # Errors
    /// `Corrupt` for damaged bytes; those of the medium.
    pub fn column(
        &self,
        shard: usize,
        column: usize,
    ) -> Result<impl Iterator<Item = Result<Column>> + '_> {
        let run = self.run(shard, FIXED_REGIONS + column, Reading::Whole)?;
        let info = &self.directory.shards[shard];
        Ok((0..info.blocks()).map(move |block| {
            let decode = |bytes: &[u8]| Column::decode(bytes, info.samples_of(block));
            run.block(block).and_then(|bytes| decode(&bytes)).map_err(|error| self.at(error, shard))
        }))
    }

    /// Reads keys and members of block `block` of a shard. Field numbers are those of
    /// [`MemberIndex::fields`]; the reason why a sample is bad is not kept.
    ///
    /// # Errors
    /// `Corrupt` for damaged bytes; those of the medium.
    pub fn samples(&self, shard: usize, block: u64) -> Result<Index> {
        self.decode_samples(shard, block).map_err(|error| self.at(error, shard))
    }

    fn decode_samples(&self, shard: usize, number: u64) -> Result<Index> {
        let info = &self.directory.shards[shard];
        let samples = info.samples_of(number);
        let members = self.run(shard, MEMBERS, Reading::Block)?.block(number)?;
        let rows = block::members(&members, samples, self.fields().len(), info.bytes)?;
        let keys = block::keys(&self.run(shard, KEYS, Reading::Block)?.block(number)?, samples)?;
        let mut index = Index { fields: self.fields().to_vec(), ..Index::default() };
        for ((members, is_bad), key) in rows.into_iter().zip(keys) {
            let start = index.members.len() as u32;
            let (offset, end) = (
                members.first().map_or(0, |member| member.offset),
                members.last().map_or(0, crate::index::Member::end),
            );
            index.members.extend(members);
            let members = start..index.members.len() as u32;
            let bad = is_bad.then(|| "the sample was bad when it was indexed".to_owned());
            index.samples.push(Sample { key, offset, end, members, bad });
        }
        Ok(index)
    }

    /// Reads every byte, and compares it with its checksum.
    ///
    /// # Errors
    /// `Corrupt` for damaged bytes; those of the medium.
    pub fn verify(&self) -> Result<()> {
        for (shard, info) in self.directory.shards.iter().enumerate() {
            let mut members = 0;
            for block in 0..info.blocks() {
                members += self.samples(shard, block)?.members.len() as u64;
            }
            if members != info.members {
                return Err(self.at(wrong("a shard has another number of members"), shard));
            }
            for region in [MEMBERS, KEYS] {
                self.run(shard, region, Reading::Block)?;
            }
            for column in 0..self.columns().len() {
                self.column(shard, column)?.try_for_each(|column| column.map(drop))?;
            }
        }
        Ok(())
    }

    fn at(&self, error: Error, shard: usize) -> Error {
        error.at("path", &self.name).at("shard", shard)
    }

    fn run(&self, shard: usize, region: usize, reading: Reading) -> Result<Run<'_>> {
        let place = shard * self.directory.regions() + region;
        let (start, len) = (self.starts[place], self.directory.runs[place]);
        let blocks = self.directory.shards[shard].blocks();
        let at_once = reading == Reading::Whole && len <= RUN_AT_ONCE;
        let opened = Run::open(&*self.from, (start, len), blocks, at_once);
        opened.map_err(|error| self.at(error, shard).at("offset", start))
    }
}

/// Returns the first byte of each run, and the byte behind the last. Runs of one region follow
/// each other.
fn starts(directory: &Directory) -> Result<(Vec<u64>, u64)> {
    let regions = directory.regions();
    let mut starts = vec![0; directory.runs.len()];
    let mut at = HEAD_BYTES as u64;
    for region in 0..regions {
        for place in (region..starts.len()).step_by(regions) {
            starts[place] = at;
            let end = at.checked_add(directory.runs[place]);
            at = end.ok_or_else(|| wrong("the length of a run overflows"))?;
        }
    }
    Ok((starts, at))
}

/// Way to read a run: all of its blocks, or one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Whole,
    Block,
}

/// A shard's part of a region.
struct Run<'a> {
    from: &'a dyn ReadAt,
    start: u64,
    /// All of it, if it is short.
    whole: Option<Vec<u8>>,
    /// First byte of each block in the run, and the end of the last.
    places: Vec<u64>,
}

impl<'a> Run<'a> {
    /// Opens the run of `blocks` blocks that is at these bytes (start, length); reads all of it, or
    /// the table alone.
    fn open(
        from: &'a dyn ReadAt,
        (start, len): (u64, u64),
        blocks: u64,
        at_once: bool,
    ) -> Result<Self> {
        let size = |bytes: u64| usize::try_from(bytes).map_err(|_| wrong("a run is too long"));
        let table_bytes =
            blocks.checked_mul(SUM_BYTES as u64).and_then(|b| b.checked_add(SUM_BYTES as u64));
        let table_bytes = table_bytes.filter(|bytes| *bytes <= len);
        let table_bytes = table_bytes.ok_or_else(|| wrong("a run is shorter than its table"))?;
        let mut bytes = vec![0; size(if at_once { len } else { table_bytes })?];
        from.read_at(if at_once { start } else { start + len - table_bytes }, &mut bytes)?;
        let table = &bytes[bytes.len() - size(table_bytes)?..];
        let (table, sum) = table.split_at(table.len() - SUM_BYTES);
        if crc32c(table).to_le_bytes() != sum {
            return Err(wrong("a table does not match its checksum"));
        }
        let mut places = vec![0];
        let mut at = 0_u64;
        for len in table.chunks_exact(SUM_BYTES) {
            let len = u32::from_le_bytes(len.try_into().expect("4 bytes"));
            if len as usize > BLOCK_MAX {
                return Err(wrong("a block is too long"));
            }
            at += u64::from(len) + SUM_BYTES as u64;
            places.push(at);
        }
        if at != len - table_bytes {
            return Err(wrong("the blocks of a run do not fill it"));
        }
        Ok(Self { from, start, whole: at_once.then_some(bytes), places })
    }

    /// Reads a block.
    fn block(&self, number: u64) -> Result<Vec<u8>> {
        let number = usize::try_from(number).map_err(|_| wrong("there is no such block"))?;
        let ends = self.places.get(number).zip(self.places.get(number + 1));
        let (begin, end) = ends.ok_or_else(|| wrong("there is no such block"))?;
        // Blocks are bounded, and so are runs that are kept whole.
        let (begin, len) = (*begin, (end - begin) as usize);
        let mut bytes = match &self.whole {
            Some(whole) => whole[begin as usize..begin as usize + len].to_vec(),
            None => {
                let mut bytes = vec![0; len];
                self.from.read_at(self.start + begin, &mut bytes)?;
                bytes
            }
        };
        let sum = bytes.split_off(len - SUM_BYTES);
        match crc32c(&bytes).to_le_bytes() == *sum {
            true => Ok(bytes),
            false => Err(wrong("a block does not match its checksum").at("block", number)),
        }
    }
}
