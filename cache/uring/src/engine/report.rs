//! State of an engine for an operator.
//!
//! It reads the running engine, never the requested settings.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::counters::{Counters, Durations};

/// Kind of the running engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// io_uring on one thread.
    Ring,
    /// Blocking calls on a pool of threads.
    Threads {
        /// Reason io_uring is not used.
        reason: String,
    },
    /// tokio-uring on one thread, for comparison.
    #[cfg(feature = "tokio-uring")]
    TokioUring,
}

/// State of an engine at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EngineReport {
    /// The engine's name.
    pub name: String,
    /// Kind of the running engine, and the reason if it is the second choice.
    pub kind: EngineKind,
    /// Most operations the kernel works on at once; the number of threads in a pool.
    pub in_flight_limit: u32,
    /// Set-up flags the kernel granted to the ring; empty for a pool.
    pub ring_flags: Vec<String>,
    /// The NUMA node whose processors the engine's threads keep to: the disk's, where the machine
    /// has several and [`crate::EngineConfig::near`] names a directory on it.
    pub node: Option<u32>,
    /// Bytes of attached regions that are registered with the ring.
    pub registered_bytes: usize,
    /// Bytes of attached regions whose registration was refused.
    pub unregistered_bytes: usize,
    /// Reason memory is unregistered: the latest error.
    pub refusal: Option<String>,
    /// Open files of this engine.
    pub files: usize,
    /// Those in the engine's own table of files; a pool has none.
    pub registered_files: usize,
    /// Those that go through the page cache.
    pub buffered_files: usize,
    /// Counters since its start.
    pub counters: Counters,
    /// Durations of its operations; only metrics show them.
    #[serde(skip)]
    pub durations: Durations,
}
