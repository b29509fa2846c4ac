//! Shards from what lies in files: a folder, a list, or tars that exist already.
//!
//! The same input makes the same bytes, however many threads write them and however often
//! they were stopped. Headers carry no time, owner or mode of the source, and a shard gets its name
//! only when it is whole on the disk.
//!
//! | part | answers |
//! |---|---|
//! | `folder`, `list`, `tars` | which samples are there, and where do their bytes lie? |
//! | `balance` | where does one shard end and the next begin? |
//! | `plan` | which sample goes into which shard, and is it the plan of last time? |
//! | `record` | whose are the shards that lie there? |
//! | `archive`, `shard`, `work` | how do they come to the disk? |

mod archive;
mod balance;
mod folder;
mod list;
mod parallel;
mod pattern;
mod plan;
mod record;
mod sample;
mod shard;
mod tars;
mod work;

use std::path::Path;

pub use balance::Limits;
pub use pattern::check_pattern;
pub use plan::{Input, Packed, Packing, Plan};

/// Returns true if `path` is a list of samples, by its name.
#[must_use]
pub fn is_list(path: &Path) -> bool {
    list::is_list(path)
}
