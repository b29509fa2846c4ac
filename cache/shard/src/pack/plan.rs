//! Assignment of samples to shards, decided before a byte is written.
//!
//! The plan gives each shard's length to the byte, and the written file is checked against it. Two
//! plans that would write anything differently have different hashes.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZero;
use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay_error::{Doing, Error, ErrorKind, Result};
use sha2::{Digest, Sha256};

use super::archive::END_BYTES;
use super::balance::{Limits, divide, too_large};
use super::columns::Columns;
use super::origin::Origin;
use super::pattern::Pattern;
use super::sample::{Content, Sample};
use super::{folder, list, mds, photos, table, tars};
use crate::expand::{Commands, expand_list};
use crate::manifest::{Manifest, ManifestShard};

/// Input of packing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// A folder: every file below it is a field of the sample that its name says.
    Folder(PathBuf),
    /// A folder of folders, each of which is a class: as `Folder`, and a field `cls` with the
    /// number of the sample's class, in the order of names.
    ClassFolder(PathBuf),
    /// A folder that Mosaic Streaming wrote.
    Mds {
        /// The folder.
        path: PathBuf,
        /// Options of its columns.
        columns: Columns,
    },
    /// Parquet files that hold the samples: every row is one.
    Tables {
        /// The files, in the order of their rows.
        paths: Vec<PathBuf>,
        /// Options of their columns.
        columns: Columns,
    },
    /// A list, CSV or Parquet: every row is a sample.
    List {
        /// The list.
        path: PathBuf,
        /// Folder of the files it names; `None`: beside it.
        root: Option<PathBuf>,
    },
    /// Tars: every sample of each.
    Tars {
        /// The tars, in the order of their samples.
        paths: Vec<PathBuf>,
        /// True if each key is prefixed with its tar's name.
        prefix_keys: bool,
        /// True if the members of each key of a tar are gathered, and its samples sorted by key.
        sort: bool,
    },
}

/// Input and options of packing.
#[derive(Debug, Clone)]
pub struct Packing {
    /// From what.
    pub input: Input,
    /// The shards' names, such as `out-{:06d}.tar`.
    pub pattern: String,
    /// Limits on their size.
    pub limits: Limits,
    /// The seed of the samples' order; `None`: the order of the input.
    pub shuffle: Option<u64>,
    /// Path of the manifest; `None`: beside the shards, `out.json` for those above.
    pub manifest: Option<PathBuf>,
    /// True if photos get an index of their scan, by which crops are decoded faster.
    pub jpeg_index: bool,
    /// Number of threads.
    pub threads: NonZero<usize>,
}

/// A shard as it is planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// Path.
    pub path: PathBuf,
    /// Number of samples.
    pub samples: u64,
    /// Length of the file, in bytes.
    pub bytes: u64,
}

/// Result of planning. Make one with [`Packing::plan`], and carry it out with [`Plan::pack`].
#[derive(Debug)]
pub struct Plan {
    /// Files of many samples.
    pub(super) origins: Vec<Origin>,
    /// Columns of tables that are read.
    pub(super) columns: Vec<String>,
    pub(super) samples: Vec<Sample>,
    /// Each with its samples.
    pub(super) shards: Vec<(Packed, Range<usize>)>,
    pub(super) pattern: Pattern,
    pub(super) manifest: Manifest,
    pub(super) manifest_path: PathBuf,
    /// Names of classes by field, numbered from 0.
    pub(super) classes: BTreeMap<String, Vec<String>>,
    pub(super) hash: String,
    pub(super) threads: NonZero<usize>,
}

impl Packing {
    /// Looks at everything that is to be packed, and decides what goes where. Of the payload, at
    /// most the headers of photos are read.
    ///
    /// # Errors
    /// `Invalid` where a pattern, a name or a limit makes no sense, or a key comes twice;
    /// `NotFound` if there is nothing to pack; `Corrupt` and `BadSample` for a tar that a loader
    /// would not read whole; what the file system says.
    pub fn plan(&self) -> Result<Plan> {
        let pattern = Pattern::parse(&self.pattern)?;
        let Gathered { origins, mut samples, columns, classes } = self.gather(&pattern)?;
        if samples.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "there are no samples to pack"));
        }
        self.refuse_a_key_twice(&samples, &origins)?;
        if self.jpeg_index {
            photos::plan_indexes(&mut samples, &origins, self.threads)?;
        }
        if let Some(seed) = self.shuffle {
            if !columns.is_empty() {
                let what = "the rows of Parquet files are packed in their order";
                return Err(Error::new(ErrorKind::Invalid, what)
                    .advise("pack without --shuffle, and then the shards with it"));
            }
            shuffle(seed, &mut samples);
        }
        let shards = self.divide(&pattern, &samples)?;
        let manifest = manifest(&shards)?;
        let manifest_path = self.manifest.clone().unwrap_or_else(|| pattern.manifest());
        let hash = hash(&origins, &samples, &shards, &classes);
        let classes_path = classes_path(&manifest_path);
        for (shard, _) in &shards {
            if shard.path == manifest_path || shard.path == classes_path {
                let error = Error::new(ErrorKind::Invalid, "the manifest has a shard's name");
                return Err(error.at("path", manifest_path.display()));
            }
        }
        let threads = self.threads;
        Ok(Plan {
            origins,
            columns,
            samples,
            shards,
            pattern,
            manifest,
            manifest_path,
            classes,
            hash,
            threads,
        })
    }

    fn gather(&self, pattern: &Pattern) -> Result<Gathered> {
        let mut gathered = Gathered::default();
        match &self.input {
            Input::Folder(path) => {
                refuse_within(path, pattern)?;
                gathered.samples = folder::samples(path)?;
            }
            Input::ClassFolder(path) => {
                refuse_within(path, pattern)?;
                let (samples, classes) = folder::classified(path)?;
                gathered.samples = samples;
                gathered.classes.insert(folder::CLASS.to_owned(), classes);
            }
            Input::List { path, root } => gathered.samples = list::samples(path, root.as_deref())?,
            Input::Mds { path, columns } => {
                refuse_within(path, pattern)?;
                (gathered.origins, gathered.samples) = mds::samples(path, columns)?;
            }
            Input::Tables { paths, columns } => {
                let (origins, samples, tables) =
                    table::samples(paths, columns, self.jpeg_index, self.threads)?;
                gathered.classes = tables.classes;
                (gathered.origins, gathered.samples) = (origins, samples);
                gathered.columns = tables.columns;
            }
            Input::Tars { paths, prefix_keys, sort } => {
                for path in paths {
                    if pattern.names(path) {
                        let what = "an input shard has the name of an output shard";
                        return Err(Error::new(ErrorKind::Invalid, what)
                            .at("path", path.display())
                            .advise("choose other names by -o, or another folder"));
                    }
                }
                (gathered.origins, gathered.samples) =
                    tars::samples(paths, *prefix_keys, *sort, self.threads)?;
            }
        }
        Ok(gathered)
    }

    /// Two samples of one key that come to lie side by side would be read as one.
    fn refuse_a_key_twice(&self, samples: &[Sample], tars: &[Origin]) -> Result<()> {
        let mut seen = HashMap::with_capacity(samples.len());
        for (at, sample) in samples.iter().enumerate() {
            let Some(first) = seen.insert(sample.key(), at) else { continue };
            let error = Error::new(ErrorKind::Invalid, "two samples have the same key");
            let error = error.at("key", sample.key());
            let place = |at: usize| place(&samples[at], tars).unwrap_or((at + 1).to_string());
            return Err(match &self.input {
                Input::Tars { .. } if tar_of(&samples[first]) == tar_of(&samples[at]) => {
                    error.at("first", place(first)).at("second", place(at)).advise(
                        "the members of a sample lie apart in this tar; give --sort to gather them",
                    )
                }
                Input::Tars { prefix_keys: false, .. } => error
                    .at("first", place(first))
                    .at("second", place(at))
                    .advise("give --prefix-keys: each key gets its shard's name in front"),
                Input::Tars { .. } => error.at("first", place(first)).at("second", place(at)),
                _ => error.at("row", first + 1).at("row", at + 1),
            });
        }
        Ok(())
    }

    fn divide(&self, pattern: &Pattern, samples: &[Sample]) -> Result<Vec<(Packed, Range<usize>)>> {
        let limits = self.limits;
        if limits.samples == 0 || limits.bytes == 0 {
            return Err(Error::new(ErrorKind::Invalid, "a shard needs room for one sample"));
        }
        let lengths: Vec<u64> = samples.iter().map(Sample::tar_bytes).collect();
        if lengths.iter().try_fold(0u64, |sum, bytes| sum.checked_add(*bytes)).is_none() {
            return Err(Error::new(ErrorKind::Invalid, "the samples are too long"));
        }
        let ends = divide(&lengths, limits)
            .map_err(|(at, bytes)| too_large(bytes, limits).at("key", samples[at].key()))?;
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let shards = starts.zip(&ends).enumerate().map(|(number, (start, &end))| {
            let bytes = lengths[start..end].iter().sum::<u64>() + END_BYTES;
            let (path, samples) = (pattern.path(number as u64), (end - start) as u64);
            (Packed { path, samples, bytes }, start..end)
        });
        Ok(shards.collect())
    }
}

impl Plan {
    /// The shards, in order.
    pub fn shards(&self) -> impl Iterator<Item = &Packed> {
        self.shards.iter().map(|(shard, _)| shard)
    }

    /// Returns the manifest `forebay index` would write.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the path of the manifest.
    #[must_use]
    pub fn manifest_path(&self) -> &Path {
        &self.manifest_path
    }

    /// Names of classes by field, numbered from 0.
    #[must_use]
    pub fn classes(&self) -> &BTreeMap<String, Vec<String>> {
        &self.classes
    }

    /// Path of the file with the names of classes, if there are any.
    #[must_use]
    pub fn classes_path(&self) -> Option<PathBuf> {
        (!self.classes.is_empty()).then(|| classes_path(&self.manifest_path))
    }

    /// Returns the number of photos that get an index, and the bytes of the indexes. That of a
    /// damaged photo is empty.
    #[must_use]
    pub fn indexes(&self) -> (u64, u64) {
        let fields = self.samples.iter().flat_map(Sample::fields);
        let indexes = fields.map(|field| field.index_bytes).filter(|bytes| *bytes > 0);
        indexes.fold((0, 0), |(count, all), bytes| (count + 1, all + bytes))
    }

    /// Bytes of all shards.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shards().map(|shard| shard.bytes).sum()
    }
}

/// Samples of an input, and what they come from.
#[derive(Default)]
struct Gathered {
    origins: Vec<Origin>,
    columns: Vec<String>,
    samples: Vec<Sample>,
    classes: BTreeMap<String, Vec<String>>,
}

/// Returns the path of the names of classes: `out.classes.json` beside `out.json`.
fn classes_path(manifest: &Path) -> PathBuf {
    manifest.with_extension("classes.json")
}

/// Returns the number of the tar that a sample was taken from, if it was.
fn tar_of(sample: &Sample) -> Option<u32> {
    match sample.fields().first()?.content {
        Content::Piece { file, .. } => Some(file),
        _ => None,
    }
}

/// The tar and the offset of a sample that was taken from one.
fn place(sample: &Sample, tars: &[Origin]) -> Option<String> {
    match sample.fields().first()?.content {
        Content::Piece { file, offset } => {
            Some(format!("{} at {offset}", tars.get(file as usize)?.path.display()))
        }
        _ => None,
    }
}

/// A folder that is packed into itself would hold other files the next time, and nothing could go
/// on.
fn refuse_within(folder: &Path, pattern: &Pattern) -> Result<()> {
    let at = |error: Error| error.at("path", folder.display());
    let inner = std::path::absolute(pattern.path(0)).doing("find the shards' folder")?;
    let inner = inner.ancestors().skip(1).find_map(|folder| folder.canonicalize().ok());
    let outer = folder.canonicalize().doing("find the folder").map_err(at)?;
    match inner.is_some_and(|inner| inner.starts_with(outer)) {
        true => Err(at(Error::new(
            ErrorKind::Invalid,
            "the shards would be written into the input folder",
        ))
        .advise("name another folder by -o, such as -o '../out-{:06d}.tar'")),
        false => Ok(()),
    }
}

/// Puts samples into the order of a hash of seed and key: it depends on nothing else, so one sample
/// more or less leaves the others in their order.
fn shuffle(seed: u64, samples: &mut [Sample]) {
    samples.sort_by_cached_key(|sample| {
        let mut sha = Sha256::new();
        sha.update(b"forebay pack shuffle 1");
        sha.update(seed.to_le_bytes());
        sha.update(sample.key().as_bytes());
        <[u8; 32]>::from(sha.finalize())
    });
}

/// Returns the manifest as `forebay index` would write it: absolute paths.
fn manifest(shards: &[(Packed, Range<usize>)]) -> Result<Manifest> {
    let mut paths = Vec::with_capacity(shards.len());
    for (shard, _) in shards {
        let path = std::path::absolute(&shard.path).doing("find the shards' folder")?;
        let path = path.into_os_string().into_string().map_err(|_| {
            Error::new(ErrorKind::Invalid, "the working directory's name is not UTF-8")
        })?;
        paths.push(path);
    }
    let urls = expand_list(&paths, Commands::Refused)?.into_iter().zip(shards);
    Manifest::new(
        urls.map(|(url, (shard, _))| ManifestShard {
            url,
            samples: shard.samples,
            bytes: Some(shard.bytes),
        })
        .collect(),
    )
}

/// Covers whatever decides a shard's name or bytes; of files, how long they are and when they were
/// written.
fn hash(
    origins: &[Origin],
    samples: &[Sample],
    shards: &[(Packed, Range<usize>)],
    classes: &BTreeMap<String, Vec<String>>,
) -> String {
    let mut sha = Sha256::new();
    let mut put = |bytes: &[u8]| {
        sha.update((bytes.len() as u64).to_le_bytes());
        sha.update(bytes);
    };
    put(b"forebay pack 1");
    for origin in origins {
        put(&origin.len.to_le_bytes());
        put(&origin.stamp.bytes());
    }
    for name in classes.iter().flat_map(|(field, names)| std::iter::once(field).chain(names)) {
        put(name.as_bytes());
    }
    for (shard, held) in shards {
        put(shard.path.file_name().unwrap_or_default().as_encoded_bytes());
        put(&shard.samples.to_le_bytes());
        for field in samples[held.clone()].iter().flat_map(Sample::fields) {
            put(field.name.as_bytes());
            put(&field.len.to_le_bytes());
            if field.index_bytes > 0 {
                put(&field.index_bytes.to_le_bytes());
            }
            match &field.content {
                Content::File(_, stamp) => put(&stamp.bytes()),
                Content::Text(text) => put(text.as_bytes()),
                Content::Piece { file, offset } => {
                    put(&file.to_le_bytes());
                    put(&offset.to_le_bytes());
                }
                Content::Headed { head, file, offset } => {
                    put(head);
                    put(&file.to_le_bytes());
                    put(&offset.to_le_bytes());
                }
                Content::Cell { file, row, column } => {
                    put(&file.to_le_bytes());
                    put(&row.to_le_bytes());
                    put(&column.to_le_bytes());
                }
            }
        }
    }
    hex(&sha.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
