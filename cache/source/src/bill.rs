//! Bills for fetched bytes.
//!
//! A bill rides on the rank of a fetch, so a shared fetch is on one bill only: that of the first
//! requester. Counters only grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes fetched for one requester.
#[derive(Debug, Default)]
pub struct Bill {
    /// Job, if it is a job's bill.
    job: Option<Arc<str>>,
    requests: AtomicU64,
    origin_bytes: AtomicU64,
    file_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// The counts of a [`Bill`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Billed {
    /// Requests to stores over a network, those among them that were repeated or sent twice.
    pub requests: u64,
    /// Payload bytes that they brought, each counted once.
    pub origin_bytes: u64,
    /// Bytes of files, and of what commands say: no store sent them.
    pub file_bytes: u64,
    /// Bytes written to tiers on disks.
    pub written_bytes: u64,
}

impl Bill {
    /// An empty one of this job.
    #[must_use]
    pub fn of(job: Option<Arc<str>>) -> Self {
        Self { job, ..Self::default() }
    }

    /// Returns the job, if it is a job's bill.
    #[must_use]
    pub fn job(&self) -> Option<&str> {
        self.job.as_deref()
    }

    /// Notes one request.
    pub fn asked(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.origin_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn took(&self, bytes: u64) {
        self.file_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes bytes that were written to a disk.
    pub fn wrote(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the amounts so far.
    #[must_use]
    pub fn read(&self) -> Billed {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Billed {
            requests: read(&self.requests),
            origin_bytes: read(&self.origin_bytes),
            file_bytes: read(&self.file_bytes),
            written_bytes: read(&self.written_bytes),
        }
    }
}
