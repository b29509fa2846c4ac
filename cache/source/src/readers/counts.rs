//! Counters of readers: bytes delivered, and failures.
//!
//! Counters only grow, so those of clients' readers are kept for all clients together, and outlive
//! each of them.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_error::{Error, ErrorKind};
use forebay_histogram::{Histogram, Times};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Counters of readers.
#[derive(Debug, Default)]
pub(super) struct Counts {
    bytes: AtomicU64,
    failures: AtomicU64,
    /// Durations of answers.
    pub(super) answered_in: Histogram,
}

/// Bytes and requests of file readers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileCounts {
    /// Bytes that they read.
    pub bytes: u64,
    /// Looks at files, and reads, that ended in an error.
    pub failures: u64,
    /// Durations of answered requests; only metrics show them.
    #[serde(skip)]
    pub answers: Times,
}

impl Counts {
    /// A request brought so many bytes.
    pub(super) fn brought(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A request ended so. Who is gone, or stops, failed at nothing.
    pub(super) fn failed(&self, error: &Error) {
        if error.kind() != ErrorKind::Closed {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> FileCounts {
        FileCounts {
            bytes: self.bytes.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            answers: self.answered_in.read(),
        }
    }
}
