//! What fetching came to, for whoever asked first.
//!
//! Its rule: a bill rides on the rank of what is fetched, so whatever is shared is on one bill alone: that of whoever asked
//! first. Counts only grow.

use std::sync::atomic::{AtomicU64, Ordering};

/// What was fetched for one asker.
#[derive(Debug, Default)]
pub struct Bill {
    requests: AtomicU64,
    origin_bytes: AtomicU64,
    written_bytes: AtomicU64,
}

/// The counts of a [`Bill`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Billed {
    /// Requests to stores over a network, those among them that were repeated or sent twice.
    pub requests: u64,
    /// Payload bytes that they brought, each counted once.
    pub origin_bytes: u64,
    /// Bytes written to tiers.
    pub written_bytes: u64,
}

impl Bill {
    /// Notes one request.
    pub fn asked(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.origin_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes bytes that were written to a tier.
    pub fn wrote(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What is on it by now.
    #[must_use]
    pub fn read(&self) -> Billed {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Billed {
            requests: read(&self.requests),
            origin_bytes: read(&self.origin_bytes),
            written_bytes: read(&self.written_bytes),
        }
    }
}
