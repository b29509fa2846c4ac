//! Reading of a member index: the directory when it is opened, then the blocks that are wanted.
//!
//! Positioned reads rather than a map of the file: a file that is cut while it is mapped kills the
//! process, pages of a map count as its memory, and an index in a bucket has no map. A scan reads
//! each block once, so it needs no cache.

use std::fmt;
use std::fs::File;
use std::ops::Range;
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

/// Longest run of a file that is read as a whole for one of its blocks: two reads of a page cost
/// more than one of four.
const FILE_AT_ONCE: u64 = 16 << 10;

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

    /// Fills each piece with the bytes from its place on, all at once where reads can overlap.
    ///
    /// # Errors
    /// As [`ReadAt::read_at`].
    fn read_all(&self, pieces: &mut [(u64, Vec<u8>)]) -> Result<()> {
        pieces.iter_mut().try_for_each(|(at, into)| self.read_at(*at, into))
    }

    /// Longest run that is better read as a whole than by its table and a block, one after the
    /// other.
    fn at_once(&self) -> u64 {
        FILE_AT_ONCE
    }
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
        let decoded = |bytes: [Vec<u8>; FIXED_REGIONS]| self.decode((shard, block), &bytes);
        let read = |region| self.run(shard, region, Reading::Block)?.block(block);
        let read = || Ok([read(MEMBERS)?, read(KEYS)?]);
        read().and_then(decoded).map_err(|error| self.at(error, shard))
    }

    /// Reads keys and members of several blocks, each given by its shard and its number there, in
    /// two rounds of reads at most: short runs or the tables of long ones, then blocks of those.
    ///
    /// # Errors
    /// As [`MemberIndex::samples`].
    pub fn blocks(&self, wanted: &[(usize, u64)]) -> Result<Vec<Index>> {
        let mut shards: Vec<usize> = wanted.iter().map(|(shard, _)| *shard).collect();
        shards.sort_unstable();
        shards.dedup();
        let at_once = self.from.at_once();
        let extents = shards.iter().flat_map(|shard| FIXED.map(|region| (*shard, region)));
        let extents: Vec<Extent> = extents
            .map(|(shard, region)| self.extent(shard, region, |len| len <= at_once))
            .collect::<Result<_>>()?;
        let mut heads = extents.iter().map(Extent::piece).collect::<Result<Vec<_>>>()?;
        self.from.read_all(&mut heads).map_err(|error| error.at("path", &self.name))?;
        let mut runs = Vec::with_capacity(extents.len());
        for (extent, (_, bytes)) in extents.iter().zip(heads) {
            let run = Run::new(&*self.from, extent, bytes);
            runs.push(run.map_err(|error| self.at(error, extent.shard))?);
        }
        let of = |shard: &usize| FIXED_REGIONS * shards.binary_search(shard).expect("listed above");
        let mut pieces = Vec::new();
        for (shard, block) in wanted {
            for run in &runs[of(shard)..][..FIXED_REGIONS] {
                let place = run.place(*block).map_err(|error| self.at(error, *shard))?;
                match &run.whole {
                    Some(_) => {}
                    None => pieces.push((run.start + place.start, zeros(place.end - place.start)?)),
                }
            }
        }
        self.from.read_all(&mut pieces).map_err(|error| error.at("path", &self.name))?;
        let mut pieces = pieces.into_iter();
        let mut decode = |(shard, block): (usize, u64)| {
            let mut bytes: [Vec<u8>; FIXED_REGIONS] = Default::default();
            for (run, bytes) in runs[of(&shard)..][..FIXED_REGIONS].iter().zip(&mut bytes) {
                *bytes = match run.cut(block)? {
                    Some(cut) => cut,
                    None => checked(pieces.next().unwrap_or_default().1, block)?,
                };
            }
            self.decode((shard, block), &bytes)
        };
        let decoded = wanted.iter().map(|one| decode(*one).map_err(|error| self.at(error, one.0)));
        decoded.collect()
    }

    /// Decodes a block's members and keys.
    fn decode(
        &self,
        (shard, number): (usize, u64),
        [members, keys]: &[Vec<u8>; FIXED_REGIONS],
    ) -> Result<Index> {
        let info = &self.directory.shards[shard];
        let samples = info.samples_of(number);
        let rows = block::members(members, samples, self.fields().len(), info.bytes)?;
        let keys = block::keys(keys, samples)?;
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
        let at_once = |len| reading == Reading::Whole && len <= RUN_AT_ONCE;
        let extent = self.extent(shard, region, at_once)?;
        let opened = || {
            let (at, mut bytes) = extent.piece()?;
            self.from.read_at(at, &mut bytes)?;
            Run::new(&*self.from, &extent, bytes)
        };
        opened().map_err(|error| self.at(error, shard).at("offset", extent.start))
    }

    /// Returns the place of a run; `at_once` says of a length if it is read as a whole.
    fn extent(&self, shard: usize, region: usize, at_once: impl Fn(u64) -> bool) -> Result<Extent> {
        let place = shard * self.directory.regions() + region;
        let (start, len) = (self.starts[place], self.directory.runs[place]);
        let sums = self.directory.shards[shard].blocks().checked_add(1);
        let table = sums.and_then(|sums| sums.checked_mul(SUM_BYTES as u64));
        let table = table.filter(|bytes| *bytes <= len);
        let table = table.ok_or_else(|| wrong("a run is shorter than its table"));
        let table = table.map_err(|error| self.at(error, shard).at("offset", start))?;
        Ok(Extent { shard, start, len, table, is_whole: at_once(len) })
    }
}

/// Regions that every index has.
const FIXED: [usize; FIXED_REGIONS] = [MEMBERS, KEYS];

/// Place of a run, and the part of it that is read first.
struct Extent {
    shard: usize,
    start: u64,
    len: u64,
    /// Bytes of the table, with its checksum, at the end.
    table: u64,
    /// True if all of it is read at once, not the table alone.
    is_whole: bool,
}

impl Extent {
    /// The first read of the run: its place, and memory for it.
    fn piece(&self) -> Result<(u64, Vec<u8>)> {
        let bytes = if self.is_whole { self.len } else { self.table };
        Ok((self.start + self.len - bytes, zeros(bytes)?))
    }
}

fn zeros(bytes: u64) -> Result<Vec<u8>> {
    Ok(vec![0; usize::try_from(bytes).map_err(|_| wrong("a run is too long"))?])
}

/// Compares a block with the checksum behind it, which is cut off.
fn checked(mut bytes: Vec<u8>, number: u64) -> Result<Vec<u8>> {
    let sum = bytes.split_off(bytes.len().saturating_sub(SUM_BYTES));
    match crc32c(&bytes).to_le_bytes() == *sum {
        true => Ok(bytes),
        false => Err(wrong("a block does not match its checksum").at("block", number)),
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
    /// A run of which `bytes` were read: all of them, or the table at its end.
    fn new(from: &'a dyn ReadAt, extent: &Extent, bytes: Vec<u8>) -> Result<Self> {
        let Extent { start, len, table: table_bytes, is_whole, .. } = *extent;
        let table = bytes.len().checked_sub(table_bytes as usize).map(|at| &bytes[at..]);
        let table = table.ok_or_else(|| wrong("a run is shorter than its table"))?;
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
        Ok(Self { from, start, whole: is_whole.then_some(bytes), places })
    }

    /// Returns the place of a block in the run.
    fn place(&self, number: u64) -> Result<Range<u64>> {
        let none = || wrong("there is no such block");
        let number = usize::try_from(number).map_err(|_| none())?;
        let ends = self.places.get(number).zip(self.places.get(number.saturating_add(1)));
        ends.map(|(begin, end)| *begin..*end).ok_or_else(none)
    }

    /// Cuts a block out of the run, if all of it was read.
    fn cut(&self, number: u64) -> Result<Option<Vec<u8>>> {
        let place = self.place(number)?;
        let Some(whole) = &self.whole else { return Ok(None) };
        // Places end with the run, as compared when it was opened.
        checked(whole[place.start as usize..place.end as usize].to_vec(), number).map(Some)
    }

    /// Reads a block.
    fn block(&self, number: u64) -> Result<Vec<u8>> {
        if let Some(cut) = self.cut(number)? {
            return Ok(cut);
        }
        let place = self.place(number)?;
        let mut bytes = zeros(place.end - place.start)?;
        self.from.read_at(self.start + place.start, &mut bytes)?;
        checked(bytes, number)
    }
}
