//! Where shards rest: one directory on NVMe, filled once, read by record, recovered after a crash.
//!
//! The directory is the database. A shard is there when its sidecar is; everything the store keeps
//! in memory (recency, open files, who is filling what) can be thrown away at any instant.
//!
//! ```text
//!   Store ── who has which shard, who may stay           store.rs
//!     ├─ Budget ── bytes reserved before they are written   budget.rs
//!     ├─ Directory ── names, lock, commit, recovery         directory.rs
//!     └─ Shard ── one shard, arriving or whole              shard.rs
//!          └─ Fill ── origin → frames → disk + index        fill.rs
//! ```
//! One rule above all: no byte leaves a [`Placed`] that was not compared with the checksum taken
//! when the shard streamed in from its origin.

mod budget;
mod dataset;
mod directory;
pub mod evict;
mod fill;
mod fsck;
mod shard;
mod store;

pub use dataset::Dataset;
pub use directory::ShardName;
pub use evict::Evict;
pub use fill::{FILLS, FRAME_BYTES, PART_BYTES};
pub use fsck::{Checkup, Fault, FaultKind, fsck};
pub use shard::{Lease, Placed, Progress, Shard};
pub use store::{Claim, Counters, Flaw, Holding, Scrub, Store, StoreConfig, Urgency};
