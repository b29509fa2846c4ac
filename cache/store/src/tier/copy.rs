//! Reports on copies of a shard.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// State of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CopyState {
    /// The whole shard, in the origin's version.
    Whole,
    /// A part of the shard: the next fetch resumes from it.
    Partial,
    /// The shard is arriving.
    Arriving,
    /// The good part of a malformed archive.
    Broken,
    /// Another version than the origin's.
    Stale,
    /// No copy.
    Absent,
}

/// A copy of a shard, and the reasons that keep it or evict it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CopyReport {
    /// Name of the tier.
    pub tier: String,
    /// State of the copy.
    pub state: CopyState,
    /// True if it is an excerpt: the members that a job wanted.
    #[serde(default)]
    pub excerpt: bool,
    /// Bytes it takes.
    pub bytes: u64,
    /// Tenant charged for it.
    pub tenant: Option<String>,
    /// Seconds since it was fetched.
    pub age_seconds: u64,
    /// Uses by jobs since then.
    pub uses: u32,
    /// True if a reader has it open, or is about to: it is not evicted.
    pub in_use: bool,
    /// True if a job has it in its window: it is evicted only as a last resort.
    pub claimed: bool,
    /// True if an admin pinned it.
    pub pinned: bool,
    /// True if it was not admitted by its policy: it is evicted first.
    pub passes: bool,
    /// True if the minimum of its data set or its tenant protects it from others.
    pub within_minimum: bool,
    /// Seconds until its data set allows its eviction.
    pub kept_for_seconds: Option<u64>,
    /// Seconds until it is too old to be served.
    pub stale_in_seconds: Option<u64>,
    /// Estimated seconds until a job that announced its reads needs it.
    pub needed_in_seconds: Option<f64>,
}
