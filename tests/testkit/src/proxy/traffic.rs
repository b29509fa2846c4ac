//! Counts of a proxy's traffic.

use std::collections::BTreeMap;

/// Traffic of a proxy. Paths have neither escapes nor query: `/bucket/key`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Connections accepted.
    pub connections: u64,
    /// Connections open at this moment.
    pub open: u64,
    /// Requests that came in.
    pub requests: u64,
    /// Answers by method and status; status 0 is a connection that ended without an answer.
    pub answers: BTreeMap<(String, u16), u64>,
    /// Body bytes of objects handed to the connection, by path, without error documents.
    pub bytes: BTreeMap<String, u64>,
    /// Requests by path.
    pub asked: BTreeMap<String, u64>,
    /// Faults that met a request.
    pub faults: u64,
    /// Answers stalled at this moment.
    pub stalled: u64,
}

impl Traffic {
    /// Number of answers to this method with this status.
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
