//! Counts of the server.

use std::collections::BTreeMap;

/// Requests and bytes served. Keys are `bucket/key`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests of every kind, rejected ones included.
    pub requests: u64,
    /// HEAD requests per key.
    pub heads: BTreeMap<String, u64>,
    /// GET requests per key.
    pub gets: BTreeMap<String, u64>,
    /// Body bytes handed to the connection per key, by GET.
    pub bytes: BTreeMap<String, u64>,
    /// Bodies stalled at this moment.
    pub stalled: u64,
}
