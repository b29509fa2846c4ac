//! Where shards rest: tiers of memory, NVMe and slower disks, filled once, read by record, recovered
//! after a crash.
//!
//! The directory is the database. A shard is there when its sidecar is; everything the store keeps
//! in memory (recency, open files, who is filling what) can be thrown away at any instant.
//!
//! ```text
//!   Store ── which tier a shard is read from, comes to, moves to   store.rs, store/
//!     ├─ Ledger ── what fetching came to, and for whom             ledger.rs
//!     ├─ Journal ── what comes in, for whoever listens             journal.rs
//!     ├─ Forecast ── what jobs will read, and so who goes last     forecast.rs
//!     └─ Tier ── who is here, who may stay, how the device is       tier.rs, tier/
//!          ├─ Budget ── bytes reserved before they are written      budget.rs
//!          ├─ Shares ── whose data set and tenant's they are        shares.rs
//!          ├─ Directory ── names, lock, commit, recovery            directory.rs
//!          │    └─ Files ── calls that change a directory           files.rs
//!          └─ Shard ── one shard, arriving or whole                 shard.rs
//!               └─ Fill ── origin → frames → disk + index           fill.rs
//! ```
//! One rule above all: no byte leaves a [`Placed`] that was not compared with the checksum taken
//! when the shard streamed in from its origin.

mod budget;
mod dataset;
mod directory;
mod files;
mod fill;
mod forecast;
mod fsck;
mod journal;
mod ledger;
mod pins;
mod shard;
mod shares;
mod store;
mod tenant;
mod tier;
mod traffic;

pub use dataset::{Cache, Dataset};
pub use directory::{Occupant, ShardName, occupant};
pub use files::{Extent, Files, LocalFiles};
pub use fill::{FILLS, FRAME_BYTES, Fills, PART_BYTES, Start};
pub use forebay_policy::Evict;
pub use forecast::{Expected, ForecastReport, ForeseenJob, Refusal};
pub use fsck::{Checkup, Fault, FaultKind, fsck};
pub use journal::{Happened, Listener, Work};
pub use ledger::{Charged, NO_JOB, OTHERS};
pub use shard::{Lease, Placed, Progress, Shard, Verdict};
pub use shares::check_promises;
pub use store::{
    Brought, Checked, Claim, Copy, Explained, Foreseen, Quota, Reading, Room, Said, Store,
    StoreConfig, StoreRules,
};
pub use tenant::Tenant;
pub use tier::{
    Class, Condition, Counters, DiskConfig, Effects, Flaw, Holding, Holdings, KeepFree, Kept, Mode,
    OPEN_SHARDS, Past, Scrub, ShareEffect, TierConfig, TierEffect, TierLimits, TierReport, Urgency,
    Watermarks,
};
pub use traffic::DatasetTraffic;
