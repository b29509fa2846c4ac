//! Progress of a trainer: batches, waits, decoders and slow samples, as it reports them.

use forebay_histogram::Times;
use serde::{Deserialize, Serialize};

use crate::message::{Bytes, Cause};

/// A trainer's progress and waits over all its epochs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Batches.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Payload bytes in them.
    pub bytes: Bytes,
    /// Nanoseconds waited for them, by cause, in the order of [`Cause::ALL`].
    pub waited_ns: [u64; Cause::ALL.len()],
    /// Nanoseconds that the present wait has lasted; 0 if there is none.
    pub waiting_ns: u64,
    /// Decoders of its images and arrays.
    pub decoded: Vec<Decoded>,
    /// Distribution of waits per batch.
    pub waits: Times,
    /// Slowest decodes and calls of user code, the slowest first.
    pub slowest: Vec<SlowSample>,
}

/// A sample that took long to decode, or to be treated by user code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlowSample {
    /// The sample's key.
    pub key: String,
    /// The shard, as errors show it.
    pub url: String,
    /// The work: `decode`, `select`, `map` or `transform`.
    pub stage: String,
    /// The field, unless the work treats whole samples.
    pub field: Option<String>,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Slow samples kept by name: one screen.
pub const SLOWEST_NAMED: usize = 16;

/// Number of rows that one decoder made for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decoded {
    /// The decoder.
    pub by: String,
    /// Reason for this decoder.
    pub why: String,
    /// Number of rows.
    pub rows: u64,
}

/// Entries of decoders per trainer: more than exist, and one screen.
pub const DECODED_NAMED: usize = 64;
