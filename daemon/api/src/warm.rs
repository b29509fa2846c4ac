//! Progress of warm-ups.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Progress of a warm-up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Warming {
    /// Number on this daemon.
    pub number: u64,
    /// Shards it was asked for.
    pub shards: u64,
    /// Shards on a tier now because of it.
    pub fetched: u64,
    /// Those that were there already, or came for somebody else.
    pub cached: u64,
    /// Those that could not be had.
    pub failed: u64,
    /// Those that were not tried, because so many before them failed, or because it was stopped.
    pub untried: u64,
    /// Bytes that it brought.
    pub bytes: u64,
    /// Bytes a second, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
    /// Failures by shard, reported at the end, at most a thousand.
    pub failures: Vec<Failure>,
    /// True at the end.
    pub done: bool,
}

/// A shard that could not be had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Failure {
    /// The shard, without its query.
    pub url: String,
    /// The error's kind.
    pub kind: String,
    /// The error.
    pub error: String,
}
