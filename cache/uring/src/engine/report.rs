//! What an operator sees of an engine.
//!
//! Its rule: it tells what is, read from the running engine, never what was asked for.

use serde::Serialize;
use utoipa::ToSchema;

use super::counters::{Counters, Durations};

/// Which engine runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// io_uring on one thread.
    Ring,
    /// Blocking calls on a pool of threads.
    Threads {
        /// Why not io_uring.
        reason: String,
    },
    /// tokio-uring on one thread, for comparison.
    #[cfg(feature = "tokio-uring")]
    TokioUring,
}

/// State of an engine at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct EngineReport {
    /// The engine's name.
    pub name: String,
    /// Which engine runs, and why if it is the second choice.
    pub kind: EngineKind,
    /// Most operations the kernel works on at once; the number of threads in a pool.
    pub in_flight_limit: u32,
    /// Set-up flags the kernel granted to the ring; empty for a pool.
    pub ring_flags: Vec<&'static str>,
    /// The NUMA node whose processors the engine's threads keep to: the disk's, where the machine
    /// has several and [`crate::EngineConfig::near`] names a directory on it.
    pub node: Option<u32>,
    /// Bytes of attached regions that are registered with the ring.
    pub registered_bytes: usize,
    /// Bytes of attached regions whose registration was refused.
    pub unregistered_bytes: usize,
    /// Why memory is unregistered: the latest refusal.
    pub refusal: Option<String>,
    /// Open files of this engine.
    pub files: usize,
    /// Those in the engine's own table of files; a pool has none.
    pub registered_files: usize,
    /// Those that go through the page cache.
    pub buffered_files: usize,
    /// What the engine has done since it started.
    pub counters: Counters,
    /// How long its operations took; metrics tell of them, a status does not.
    #[serde(skip)]
    pub durations: Durations,
}
