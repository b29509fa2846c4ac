//! Store of shards: tiers of memory, NVMe and slower disks, filled once, read by record, recovered
//! after a crash.
//!
//! The directory is the database. A shard is there when its sidecar is. All state in memory (order
//! of use, open files, running fills) can be lost at any moment.
//!
//! ```text
//!   Store ── chooses the tier of a shard, opens, moves      store.rs, store/
//!     ├─ Tier ── table of shards, room, device              tier.rs, tier/
//!     └─ SharedState ── state shared by all tiers           shared_state.rs
//!          ├─ Fill ── origin → frames → disk + index        fill.rs, fill/
//!          │    └─ Shard ── an open shard, and its reads    shard.rs, parts.rs, blocks.rs
//!          ├─ SmallCopies ── small shards in idle frames    small_copies.rs
//!          ├─ Forecast ── announced reads of jobs           forecast.rs
//!          ├─ Ledger, Journal ── costs and events           ledger.rs, journal.rs
//!          └─ Shares ── limits of data sets and tenants     shares.rs, budget.rs
//!   Directory ── names, lock, commit, recovery              directory.rs
//!     ├─ Secret, TierCipher ── keys, ciphers of files       encryption.rs
//!     └─ Files ── calls that change a directory             files.rs
//! ```
//! Each layer imports only layers below it. Rule above all: no byte leaves a [`Placed`] without a
//! check against the checksum taken when the shard came from its origin.

mod blocks;
mod budget;
mod checkpoint_rule;
mod clock;
mod compression;
mod counters;
mod dataset;
mod device;
mod directory;
mod encryption;
mod excerpt_source;
mod files;
mod fill;
mod forecast;
mod fsck;
mod held;
mod identity;
mod journal;
mod ledger;
mod lending;
mod mounts;
mod open_shards;
mod parts;
mod pins;
mod repeats;
mod secret_file;
mod selector;
mod shard;
mod shared_state;
mod shares;
mod sizes;
mod small_copies;
mod store;
mod tenant;
mod tier;
mod traffic;

pub use checkpoint_rule::CheckpointRule;
pub use counters::{Counters, Holding, Holdings, ThroughCounters};
pub use dataset::{Cache, Dataset};
pub use device::ANSWER_TIMEOUT;
pub use directory::{Occupant, ShardName, is_encrypted, occupant};
pub use encryption::{ENCRYPTION_BYTES, Encryption, KEY_FILE_BYTES, KeyKind, Secret};
pub use files::{Extent, Files, LocalFiles};
pub use fill::{Fills, FirstBatchWait, gave_way};
pub use forebay_policy::Evict;
pub use forecast::{Expected, ForecastReport, ForeseenJob, Refusal, Scope};
pub use fsck::{Checkup, Fault, FaultKind, fsck};
pub use journal::{FetchEvent, FetchStep, Listener};
pub use ledger::{BillKey, NO_JOB, OTHERS};
pub use lending::{LendableShard, ShardLoan};
pub use open_shards::OPEN_SHARDS;
pub use repeats::Repeats;
pub use secret_file::{SecretReaders, read_secret};
pub use shard::{Placed, Progress, Shard, ShardHandle, Verdict, Waited};
pub use shares::check_promises;
pub use sizes::{FILLS, FILLS_MAX, FRAME_BYTES, PART_BYTES, SMALL_BYTES, SMALL_FILLS, frame_bytes};
pub use store::{
    AnnouncedReads, Announcement, Checked, Claim, ExcerptPlaces, Explained, FoundStagedFile,
    ObjectRange, OnChange, OriginAnswer, PeerShard, Places, Prefetched, Quota, RunStart,
    StagedFile, Store, StoreConfig, StoreRules, TierRoom, rules_digest,
};
pub use tenant::Tenant;
pub use tier::{
    Class, Condition, CopyReport, CopyState, DiskConfig, Effects, Flaw, KeepFree, Mode, Scrub,
    ShareEffect, TierConfig, TierEffect, TierLimits, TierReport, Urgency, Watermarks,
};
pub use traffic::DatasetTraffic;
