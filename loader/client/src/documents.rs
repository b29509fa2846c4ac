//! Manifests and member indexes, wherever they lie: files, or objects of a store.
//!
//! A manifest is read as a whole, for it grows with the shards. Of a member index the directory is
//! read, and then the blocks that are wanted.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_error::{Error, ErrorKind, Result, command};
use forebay_policy::access::REQUEST_BYTES;
use forebay_shard::members::{BLOCK_SAMPLES, MemberIndex, path_of};
use forebay_shard::{Index, Manifest, Member, Sample, wanted_members};
use forebay_wire::message::{Indexed, IndexedSample, Located, PartsEstimate, Picked};
use lru::LruCache;

use crate::placing::Passing;
use crate::remote::{RemoteObject, RemoteReads};

/// Longest manifest of a store: a million shards take some 150 MB.
const MANIFEST_MAX: u64 = 1 << 30;

/// Decoded blocks that are kept: the samples of a request lie in different ones, those of the next
/// request may lie in the same. Each takes some 200 KB.
const BLOCKS_KEPT: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");

/// Samples of a request whose places are sent to the daemon at most: whoever reads more at once
/// reads whole shards.
const LOCATED_MAX: usize = 1 << 18;

/// Place of a manifest and of the member index beside it.
#[derive(Debug, Clone)]
pub enum Documents {
    /// Files.
    Local(PathBuf),
    /// Objects of a store; the manifest's URL.
    Remote(String, RemoteReads),
}

impl fmt::Display for Documents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => path.display().fmt(f),
            Self::Remote(url, _) => forebay_error::shown(url).fmt(f),
        }
    }
}

impl Documents {
    /// Documents at a path, or at a URL of a store.
    #[must_use]
    pub fn at(place: &str, reads: RemoteReads) -> Self {
        match place.split_once("://") {
            Some(("file", path)) => Self::Local(path.into()),
            Some(_) => Self::Remote(place.to_owned(), reads),
            None => Self::Local(place.into()),
        }
    }

    /// Reads the manifest.
    ///
    /// # Errors
    /// As [`Manifest::read`]; the error of the store or of the daemon.
    pub fn manifest(&self) -> Result<Manifest> {
        match self {
            Self::Local(path) => Manifest::read(path),
            Self::Remote(url, reads) => {
                let bytes = RemoteObject::open(url, reads.clone())?.whole(MANIFEST_MAX)?;
                let text = String::from_utf8(bytes).map_err(|_| {
                    Error::new(ErrorKind::Invalid, "the manifest is no text").at("path", url)
                })?;
                Manifest::from_json(&text).map_err(|error| error.at("path", self))
            }
        }
    }

    /// Opens the member index of a manifest.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Invalid` for that of another manifest; as
    /// [`MemberIndex::new`].
    pub fn members(&self, manifest: &Manifest) -> Result<MemberIndex> {
        let index = self.unchecked_members()?;
        index.check(manifest)?;
        Ok(index)
    }

    /// Opens the member index, which may be that of another manifest.
    fn unchecked_members(&self) -> Result<MemberIndex> {
        match self {
            Self::Local(path) => MemberIndex::open(&path_of(path)),
            Self::Remote(url, reads) => {
                let url = path_of(Path::new(url)).to_string_lossy().into_owned();
                MemberIndex::new(Box::new(RemoteObject::open(&url, reads.clone())?), url)
            }
        }
    }

    /// Opens the member index for the samples of `urls`, which the manifest lists; none if there is
    /// no index.
    ///
    /// # Errors
    /// As [`Documents::manifest`] and [`Documents::members`].
    pub fn locator(&self, urls: &[String]) -> Result<Option<Locator>> {
        // Most data sets have no index; only for one is the manifest read again.
        let index = match self.unchecked_members() {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            index => index?,
        };
        let manifest = self.manifest()?;
        index.check(&manifest)?;
        let listed = manifest.of(urls).map_err(|error| error.at("path", self))?;
        let shards =
            listed.numbers.iter().zip(urls).map(|(number, url)| {
                (*number, is_same_object(&manifest.shards()[*number].url, url))
            });
        let blocks = Mutex::new(LruCache::new(BLOCKS_KEPT));
        Ok(Some(Locator { index, shards: shards.collect(), blocks }))
    }
}

/// Returns true if the shard that was indexed at one URL is read there, and its store gives it a
/// version that is the same for all nodes. That of a file has its inode in it, and that of a
/// command's output the time of its run.
#[must_use]
pub fn is_same_object(indexed: &str, url: &str) -> bool {
    let has_versions = command(url).is_none() && url.contains("://") && !url.starts_with("file:");
    indexed == url && has_versions
}

/// Most memory that the places of one shard take where they are decoded: a daemon takes four times
/// as much of one request, for one job at a time.
const PLACED_BYTES: usize = 8 << 20;

/// Shards of which a block is looked at for an estimate.
const ESTIMATED: usize = 16;

/// Returns the number of the block that has the sample at a place of its shard.
fn block_of(place: u64) -> u64 {
    place / BLOCK_SAMPLES as u64
}

/// Returns the sample at a place of its shard, which this block has.
fn sample_at(block: &Index, place: u64) -> Option<&Sample> {
    // Not more than a block has.
    block.samples.get((place % BLOCK_SAMPLES as u64) as usize)
}

fn indexed(member: &Member) -> Indexed {
    let Member { field, offset, len, crc32c } = *member;
    Indexed { field, offset, len, crc32c }
}

/// A block of a member index: its shard there, and its number.
type BlockPlace = (usize, u64);

/// Places of the samples of a job, by a member index.
#[derive(Debug)]
pub struct Locator {
    index: MemberIndex,
    /// Number in the index of each of the job's shards, and true if its version counts.
    shards: Vec<(usize, bool)>,
    blocks: Mutex<LruCache<BlockPlace, Arc<Index>>>,
}

impl Locator {
    /// Returns the places of samples, by shard; none of so many that their shards are better read
    /// as a whole.
    ///
    /// # Errors
    /// `Corrupt` for a damaged index; `Invalid` for a sample that it does not have.
    pub fn locate(&self, samples: &[Picked]) -> Result<Vec<Located>> {
        if samples.len() > LOCATED_MAX {
            return Ok(Vec::new());
        }
        let mut wanted: Vec<(u32, u64)> =
            samples.iter().map(|sample| (sample.shard, sample.ordinal)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut places = Vec::with_capacity(wanted.len());
        for (shard, place) in &wanted {
            let number = self.shards.get(*shard as usize).map(|(number, _)| *number);
            let has = |number: &usize| *place < self.index.shards()[*number].samples;
            let number = number.filter(has).ok_or_else(|| {
                Error::new(ErrorKind::Invalid, "the member index does not have a sample")
                    .at("path", self.index.name())
                    .at("shard", shard)
                    .at("sample", place)
            })?;
            places.push((number, block_of(*place)));
        }
        let blocks = self.blocks(&places)?;
        let mut located: Vec<Located> = Vec::new();
        for ((shard, place), block) in wanted.into_iter().zip(blocks) {
            let sample = sample_at(&block, place).ok_or_else(|| self.damaged())?;
            let members = block.members_of(sample).iter().map(indexed).collect();
            let (key, bad) = (sample.key.clone(), sample.bad.clone());
            if located.last().is_none_or(|last| last.shard != shard) {
                located.push(self.shard(shard));
            }
            let of = located.last_mut().expect("pushed just above");
            of.samples.push((place, IndexedSample { key, bad, members }));
        }
        Ok(located)
    }

    /// Returns the places of all samples of a shard that a job reads. None are listed of a shard of
    /// too many samples, which is better read as a whole.
    ///
    /// # Errors
    /// `Corrupt` for a damaged index.
    pub fn places(&self, shard: u32, passing: Option<Vec<u64>>) -> Result<Located> {
        let (number, _) = self.of(shard)?;
        let samples = self.index.shards()[number].samples;
        let mut located = self.shard(shard);
        let of_sample = size_of::<(u64, IndexedSample)>();
        // Compared before anything is made of the index's own count.
        let count = passing.as_ref().map_or(samples, |passing| passing.len() as u64);
        if count > (PLACED_BYTES / of_sample) as u64 {
            return Ok(located);
        }
        let passing = passing.unwrap_or_else(|| (0..samples).collect());
        let mut bytes = 0;
        let mut places: Vec<BlockPlace> =
            passing.iter().map(|place| (number, block_of(*place))).collect();
        places.dedup();
        // Each block is read once: the shard is looked at once.
        let blocks = self.index.blocks(&places)?;
        let mut blocks = places.into_iter().zip(&blocks).peekable();
        for place in passing {
            while blocks.next_if(|((_, block), _)| *block < block_of(place)).is_some() {}
            let sample = blocks.peek().map(|(_, block)| *block);
            let sample = sample.and_then(|block| Some((block, sample_at(block, place)?)));
            let (block, sample) = sample.ok_or_else(|| self.damaged())?;
            let members: Vec<Indexed> = block.members_of(sample).iter().map(indexed).collect();
            let (key, bad) = (sample.key.clone(), sample.bad.clone());
            bytes += of_sample + key.len() + size_of_val(&*members);
            if bytes > PLACED_BYTES {
                located.samples.clear();
                return Ok(located);
            }
            located.samples.push((place, IndexedSample { key, bad, members }));
        }
        Ok(located)
    }

    /// Estimates the cost of what a job reads of its shards, from some blocks of the index.
    ///
    /// # Errors
    /// `Corrupt` for a damaged index.
    pub fn estimate(
        &self,
        passing: Option<&Passing>,
        fields: Option<&[Vec<String>]>,
    ) -> Result<PartsEstimate> {
        let step = self.shards.len().div_ceil(ESTIMATED).max(1);
        let (mut looked_at, mut blocks) = (Vec::new(), Vec::new());
        for (nth, shard) in (0..self.shards.len()).step_by(step).enumerate() {
            let shard = u32::try_from(shard).unwrap_or(u32::MAX);
            let chosen = passing.map(|passing| passing(shard));
            let (number, _) = self.of(shard)?;
            let all = self.index.shards()[number].blocks();
            if all > 0 && chosen.as_ref().is_none_or(|chosen| !chosen.is_empty()) {
                looked_at.push(chosen);
                blocks.push((number, nth as u64 % all));
            }
        }
        let mut estimate = PartsEstimate::default();
        let read = self.index.blocks(&blocks)?;
        for ((chosen, (_, block)), index) in looked_at.into_iter().zip(blocks).zip(read) {
            let mut end: Option<u64> = None;
            for (place, sample) in (block * BLOCK_SAMPLES as u64..).zip(&index.samples) {
                if chosen.as_ref().is_some_and(|chosen| chosen.binary_search(&place).is_err()) {
                    continue;
                }
                let members = index.members_of(sample);
                for (_, member) in wanted_members(&index.fields, members, fields).0 {
                    let gap = end.and_then(|end| member.offset.checked_sub(end));
                    match gap.filter(|gap| *gap <= REQUEST_BYTES) {
                        Some(gap) => estimate.bytes += gap,
                        None => estimate.requests += 1,
                    }
                    estimate.bytes += member.len;
                    end = Some(member.end());
                }
            }
            if let (Some(first), Some(last)) = (index.samples.first(), index.samples.last()) {
                estimate.whole_bytes += last.end.saturating_sub(first.offset);
            }
        }
        Ok(estimate)
    }

    /// Number in the index of a shard of the job, and true if its version counts.
    fn of(&self, shard: u32) -> Result<(usize, bool)> {
        self.shards.get(shard as usize).copied().ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "the job does not have this shard").at("shard", shard)
        })
    }

    fn damaged(&self) -> Error {
        Error::new(ErrorKind::Corrupt, "the member index is damaged").at("path", self.index.name())
    }

    /// A shard of the job, of which no sample is located yet.
    fn shard(&self, shard: u32) -> Located {
        let (number, has_version) = self.shards[shard as usize];
        let info = &self.index.shards()[number];
        Located {
            shard,
            version: has_version.then(|| info.version.to_string()),
            bytes: info.bytes,
            total: info.samples,
            fields: self.index.fields().to_vec(),
            samples: Vec::new(),
        }
    }

    /// Returns the block of each place; reads those that are not kept, all together.
    fn blocks(&self, places: &[BlockPlace]) -> Result<Vec<Arc<Index>>> {
        let mut found: Vec<Option<Arc<Index>>> = {
            let mut kept = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
            places.iter().map(|place| kept.get(place).cloned()).collect()
        };
        let mut missing: Vec<BlockPlace> = places
            .iter()
            .zip(&found)
            .filter(|(_, block)| block.is_none())
            .map(|(p, _)| *p)
            .collect();
        missing.dedup();
        let read: Vec<_> = self.index.blocks(&missing)?.into_iter().map(Arc::new).collect();
        let mut kept = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read = missing.into_iter().zip(read).peekable();
        let mut last: Option<(BlockPlace, Arc<Index>)> = None;
        for (place, found) in places.iter().zip(&mut found) {
            if found.is_some() {
                continue;
            }
            if let Some((of, block)) = read.next_if(|(of, _)| of == place) {
                kept.put(of, block.clone());
                last = Some((of, block));
            }
            *found = last.as_ref().filter(|(of, _)| of == place).map(|(_, block)| block.clone());
        }
        let damaged = || Error::new(ErrorKind::Corrupt, "a block of the member index is missing");
        found.into_iter().map(|block| block.ok_or_else(damaged)).collect()
    }
}
