//! Shards from what lies in files: a folder, a list, tables, shards of MDS, or tars that exist.
//!
//! The same input makes the same bytes, however many threads write them and however often
//! they were stopped. Headers carry no time, owner or mode of the source, and a shard gets its name
//! only when it is whole on the disk.
//!
//! | part | answers |
//! |---|---|
//! | `folder`, `list`, `mds`, `table`, `tars` | which samples are there, and where do their bytes lie? |
//! | `columns` | which field does a column of a table become? |
//! | `photos` | which photos get an index, and how long is it? |
//! | `balance` | where does one shard end and the next begin? |
//! | `plan` | which sample goes into which shard, and is it the plan of last time? |
//! | `record` | whose are the shards that lie there? |
//! | `archive`, `shard`, `work` | how do they come to the disk? |

mod archive;
mod balance;
mod columns;
mod folder;
mod list;
mod mds;
mod origin;
mod parallel;
mod pattern;
mod photos;
mod plan;
mod record;
mod sample;
mod shard;
mod table;
mod tars;
mod work;

use std::path::Path;

pub use balance::Limits;
pub use columns::Columns;
pub use pattern::check_pattern;
pub use plan::{Input, Packed, Packing, Plan};
pub use table::is_table;

/// Returns true if `path` is a list of samples, by its name.
#[must_use]
pub fn is_list(path: &Path) -> bool {
    list::is_list(path)
}

/// Returns true if `path` is a Parquet file, by its name.
#[must_use]
pub fn is_parquet(path: &Path) -> bool {
    list::is_parquet(path)
}

/// Returns true if a folder has an index as Mosaic Streaming writes it.
#[must_use]
pub fn is_mds(folder: &Path) -> bool {
    mds::is_folder(folder)
}
