//! What has passed a proxy.

use std::collections::BTreeMap;

/// What has passed a proxy. Paths are without escapes and query: `/bucket/key`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections accepted.
    pub connections: u64,
    /// Of these, open at this moment.
    pub open: u64,
    /// Requests that came in.
    pub requests: u64,
    /// Answers by method and status; 0 is a connection that ended without one.
    pub answers: BTreeMap<(String, u16), u64>,
    /// Body bytes of objects handed to the connection, by path; what refusals say does not count.
    pub bytes: BTreeMap<String, u64>,
    /// Requests by path.
    pub asked: BTreeMap<String, u64>,
    /// Faults that met a request.
    pub faults: u64,
    /// Answers held back at this moment.
    pub stalled: u64,
}

impl Traffic {
    /// Answers to requests of this method with this status.
    #[must_use]
    pub fn answered(&self, method: &str, status: u16) -> u64 {
        self.answers.get(&(method.to_owned(), status)).copied().unwrap_or(0)
    }

    /// Body bytes of all paths.
    #[must_use]
    pub fn all_bytes(&self) -> u64 {
        self.bytes.values().sum()
    }
}
