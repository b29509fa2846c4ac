//! Directory of a member index: whose it is, what it holds, and the extent of each run.

use forebay_error::{Error, ErrorKind, Result};

use super::coding::{Bytes, put, put_text, wrong};
use super::{BLOCK_SAMPLES, COLUMNS_MAX, FIELDS_MAX, FIXED_REGIONS, SUM_BYTES};

/// Kind of a column's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// No sample has one.
    Empty,
    /// Integers.
    Int,
    /// Numbers, of which one at least is no integer.
    Float,
    /// Texts.
    Text,
}

impl ColumnKind {
    const ALL: [Self; 4] = [Self::Empty, Self::Int, Self::Float, Self::Text];

    /// Returns the kind of a column that has values of both kinds; None where texts and numbers
    /// meet.
    #[must_use]
    pub fn with(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Empty, one) | (one, Self::Empty) => Some(one),
            (Self::Text, Self::Text) => Some(Self::Text),
            (Self::Text, _) | (_, Self::Text) => None,
            (Self::Int, Self::Int) => Some(Self::Int),
            _ => Some(Self::Float),
        }
    }

    /// Returns the kind's name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Int => "integer",
            Self::Float => "float",
            Self::Text => "text",
        }
    }
}

/// A column of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnInfo {
    /// Name, as filters use it.
    pub name: String,
    /// Kind of its values.
    pub kind: ColumnKind,
}

/// One shard of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexedShard {
    /// Number of samples.
    pub samples: u64,
    /// Number of members.
    pub members: u64,
    /// Length of the plain tar in bytes.
    pub bytes: u64,
    /// Digest of its samples: see [`super::Digest`].
    pub digest: u32,
    /// Version of the object when it was indexed, as its store reports it; empty if unknown.
    pub version: Box<str>,
}

impl IndexedShard {
    /// Returns the number of blocks of each of its runs.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.samples.div_ceil(BLOCK_SAMPLES as u64)
    }

    /// Returns the number of samples of a block; 0 behind the last.
    #[must_use]
    pub fn samples_of(&self, block: u64) -> usize {
        let left = self.samples.saturating_sub(block.saturating_mul(BLOCK_SAMPLES as u64));
        left.min(BLOCK_SAMPLES as u64) as usize
    }
}

/// A directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Directory {
    /// Hash of the manifest.
    pub(super) manifest: String,
    pub(super) fields: Vec<String>,
    pub(super) columns: Vec<ColumnInfo>,
    pub(super) shards: Vec<IndexedShard>,
    /// Bytes of each run, shard by shard: members, keys, each column.
    pub(super) runs: Vec<u64>,
}

impl Directory {
    /// Returns the number of regions.
    pub(super) fn regions(&self) -> usize {
        FIXED_REGIONS + self.columns.len()
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut into = Vec::new();
        put_text(&self.manifest, &mut into);
        put(BLOCK_SAMPLES as u64, &mut into);
        put(self.fields.len() as u64, &mut into);
        self.fields.iter().for_each(|field| put_text(field, &mut into));
        put(self.columns.len() as u64, &mut into);
        for column in &self.columns {
            put_text(&column.name, &mut into);
            let kind = ColumnKind::ALL.iter().position(|kind| *kind == column.kind);
            put(kind.unwrap_or_default() as u64, &mut into);
        }
        put(self.shards.len() as u64, &mut into);
        let runs = self.runs.chunks(self.regions());
        for (shard, runs) in self.shards.iter().zip(runs) {
            put(shard.samples, &mut into);
            put(shard.members, &mut into);
            put(shard.bytes, &mut into);
            into.extend_from_slice(&shard.digest.to_le_bytes());
            put_text(&shard.version, &mut into);
            runs.iter().for_each(|run| put(*run, &mut into));
        }
        into
    }

    /// Reads a directory.
    ///
    /// # Errors
    /// `Corrupt` for bytes that [`Directory::encode`] does not write; `Invalid` for an index with
    /// blocks of another size.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut bytes = Bytes(bytes);
        let manifest = bytes.text()?.to_owned();
        let block_samples = bytes.number()?;
        if block_samples != BLOCK_SAMPLES as u64 {
            let what = "the member index has blocks of another size";
            return Err(Error::new(ErrorKind::Invalid, what)
                .at("samples", block_samples)
                .advise("write it again with `forebay index --members`"));
        }
        let fields = bytes.up_to(FIELDS_MAX.min(bytes.0.len()))?;
        let fields = (0..fields).map(|_| Ok(bytes.text()?.to_owned()));
        let fields = fields.collect::<Result<Vec<_>>>()?;
        let count = bytes.up_to(COLUMNS_MAX)?;
        let mut columns: Vec<ColumnInfo> = Vec::with_capacity(count);
        for _ in 0..count {
            let name = bytes.text()?.to_owned();
            let kind = ColumnKind::ALL[bytes.up_to(ColumnKind::ALL.len() - 1)?];
            if columns.iter().any(|column| column.name == name) {
                return Err(wrong("two columns have one name"));
            }
            columns.push(ColumnInfo { name, kind });
        }
        let mut directory = Self { manifest, fields, columns, ..Self::default() };
        let regions = directory.regions();
        // Each shard takes more bytes than one.
        let count = bytes.up_to(bytes.0.len())?;
        for _ in 0..count {
            let shard = IndexedShard {
                samples: bytes.number()?,
                members: bytes.number()?,
                bytes: bytes.number()?,
                digest: u32::from_le_bytes(bytes.array()?),
                version: bytes.text()?.into(),
            };
            // A run has a checksum for each block and one for its table.
            let least = shard.blocks().saturating_mul(2 * SUM_BYTES as u64);
            for _ in 0..regions {
                let run = bytes.number()?;
                if run < least {
                    return Err(wrong("a run is shorter than its blocks"));
                }
                directory.runs.push(run);
            }
            directory.shards.push(shard);
        }
        bytes.end()?;
        Ok(directory)
    }
}
