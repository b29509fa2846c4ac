//! What the server has done.

use std::collections::BTreeMap;

/// What a server has served. Keys are `bucket/key`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests of every kind, refused ones included.
    pub requests: u64,
    /// HEAD requests per key.
    pub heads: BTreeMap<String, u64>,
    /// GET requests per key.
    pub gets: BTreeMap<String, u64>,
    /// Body bytes handed to the connection per key, by GET.
    pub bytes: BTreeMap<String, u64>,
    /// Bodies held back at this moment.
    pub stalled: u64,
}
