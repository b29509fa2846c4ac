//! Shards from files: WebDataset tars that roll over by samples or bytes.
//!
//! Its rule: the same files make the same bytes. Headers carry no time, owner or mode of the source,
//! samples and fields are sorted, and a shard gets its name only when it is whole on disk.

mod folder;
mod pattern;
mod writer;

pub use folder::{pack_folder, plan_folder};
pub use pattern::check_pattern;
pub use writer::{Limits, Packed, Writer};
