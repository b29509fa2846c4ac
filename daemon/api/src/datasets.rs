//! Data sets: the rule of each, and its cached bytes.

use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;
use forebay_error::printable;
use forebay_store::{Cache, Evict};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A data set, and what it holds on all tiers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DatasetReport {
    /// Name; `(rest)` holds the shards that no rule matches.
    pub name: String,
    /// Pattern of its URLs.
    pub r#match: String,
    /// Caching of its shards.
    pub cache: Cache,
    /// Eviction policy.
    pub evict: Evict,
    /// True if its shards are never evicted.
    pub pin: bool,
    /// Seconds after which a copy is fetched again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// Seconds before which a copy is not evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dont_evict_seconds: Option<u64>,
    /// Bytes reserved for it.
    pub min_bytes: u64,
    /// Bytes it may hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// Priority; shards of lower ones are evicted first.
    pub priority: i32,
    /// True if only shards that are used again are kept.
    pub scan_bypass: bool,
    /// Tiers it may use; empty: any.
    pub tiers: Vec<String>,
    /// Limit of bytes a second from its origins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<u64>,
    /// True if its shards are shared with the other nodes of the cluster.
    pub peers: bool,
    /// Number of nodes of the cluster that keep each of its shards.
    pub copies: u8,
    /// Bytes it holds.
    pub used_bytes: u64,
    /// Shards, arriving ones included.
    pub shards: usize,
}

/// Two lines of text.
impl fmt::Display for DatasetReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: u64| ByteSize(bytes).display().iec().to_string();
        let time = |seconds: u64| humantime::format_duration(Duration::from_secs(seconds));
        write!(
            f,
            "{}  {}  {} in {} shards",
            printable(&self.name),
            printable(&self.r#match),
            size(self.used_bytes),
            self.shards
        )?;
        let tiers = printable(&self.tiers.join(", "));
        let parts = [
            Some(format!("evict {}", self.evict.name())),
            (self.cache == Cache::Never).then(|| "never cached".to_owned()),
            self.pin.then(|| "pinned".to_owned()),
            (self.min_bytes > 0).then(|| format!("at least {}", size(self.min_bytes))),
            self.max_bytes.map(|max| format!("at most {}", size(max))),
            self.ttl_seconds.map(|ttl| format!("fetched again after {}", time(ttl))),
            self.dont_evict_seconds.map(|keep| format!("kept for {}", time(keep))),
            self.scan_bypass.then(|| "kept only if used again".to_owned()),
            self.bandwidth.map(|rate| format!("{}/s at most", size(rate))),
            (self.priority != 0).then(|| format!("priority {}", self.priority)),
            (!tiers.is_empty()).then(|| format!("on {tiers}")),
            (!self.peers).then(|| "not shared with other nodes".to_owned()),
            (self.copies > 1).then(|| format!("on {} nodes of the cluster", self.copies)),
        ];
        write!(f, "\n        {}", parts.into_iter().flatten().collect::<Vec<_>>().join("; "))
    }
}
