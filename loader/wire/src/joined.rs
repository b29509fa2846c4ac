//! Part of messages about joined shards: tars whose samples of one key form one sample.

use serde::{Deserialize, Serialize};

/// Consecutive shards of a job, and the parts that complete their samples.
///
/// Shards of the other parts follow all shards of first parts in the job's list: those of the first
/// join, part by part, then those of the next join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// First of the shards in the job's list.
    pub first: u32,
    /// Number of shards of each part.
    pub shards: u32,
    /// Names of the parts, two at least. A name stands before the names of its part's fields, with
    /// a dot between; fields of a part without a name (empty) keep theirs.
    pub parts: Vec<String>,
}
