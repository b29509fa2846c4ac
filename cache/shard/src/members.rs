//! Member index: key, members and small columns of every sample of a data set, in one file beside
//! the manifest.
//!
//! A reader opens the directory at the end of the file and reads only the blocks that it needs, by
//! positioned reads: nothing grows with the number of samples but the directory, which grows with
//! that of the shards. Every byte is covered by a CRC32C, and nothing is believed before it is
//! checked.
//!
//! ```text
//!   head      magic, version                                             16 bytes
//!   members   of shard 0, of shard 1, …     layout, offset, length, CRC32C of each member
//!   keys      of shard 0, of shard 1, …     each without the beginning it shares with the one before
//!   column 0  of shard 0, of shard 1, …     integers, floats or texts; a bitmap of those present
//!   …
//!   directory manifest, fields, columns; samples, bytes, version and digest of each shard
//!   trailer   place and CRC32C of the directory                          36 bytes
//! ```
//! Members, keys and each column are *regions*; a shard's part of a region is a *run*: blocks of
//! [`BLOCK_SAMPLES`] samples, and a table of their lengths behind them. Each column lies together,
//! so a filter reads the columns that it names and nothing else.

mod block;
mod coding;
mod column;
mod digest;
mod directory;
mod extract;
mod reader;
mod values;
mod writer;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use column::{Column, Values};
pub use digest::Digest;
pub use directory::{ColumnInfo, ColumnKind, IndexedShard};
pub use extract::{ColumnSource, Extraction, Wanted};
pub use reader::{MemberIndex, ReadAt};
pub use values::{TEXT_MAX, Value};
pub use writer::Writer;

/// Samples of a block: 4 KiB of a column of 4 bytes, and some 30 KiB of members, which one
/// random read brings.
pub const BLOCK_SAMPLES: usize = 1024;

/// Largest block in bytes: a hostile length must not make a reader allocate more. 1024 samples of
/// a hundred members take 1 MiB.
const BLOCK_MAX: usize = 16 << 20;

/// Columns of an index at most. Each is a region and a number for each shard in the directory.
pub const COLUMNS_MAX: usize = 64;

/// Fields of an index at most: data sets have a handful, and a block names them in 16 bits.
const FIELDS_MAX: usize = 1 << 16;

/// Regions before those of the columns: members and keys.
const FIXED_REGIONS: usize = 2;

/// Region of the members.
const MEMBERS: usize = 0;

/// Region of the keys.
const KEYS: usize = 1;

/// Bytes of a CRC32C.
const SUM_BYTES: usize = 4;

/// The path of the member index of a manifest.
#[must_use]
pub fn path_of(manifest: &Path) -> PathBuf {
    let mut path = OsString::from(manifest);
    path.push(".members");
    path.into()
}
