//! Data sets: rules of admins for shards, selected by their URLs.
//!
//! A shard belongs to the first data set whose pattern matches its URL. If none matches, it
//! belongs to the rest of the tier.

mod covers;

use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};
use glob::{MatchOptions, Pattern};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::compression::Compression;
pub(crate) use covers::covers;
use forebay_policy::Evict;

/// `*` stays within one folder, `**` crosses folders, as in other tools.
pub(crate) const MATCHING: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// Maximum number of copies in a cluster: with two, the loss of a node reads nothing again; a third
/// one would take the room of other shards.
const MAX_COPIES: u8 = 2;

/// Caching of a data set's shards.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Copies are kept on the tiers that accept them.
    #[default]
    Always,
    /// No copies are kept: shards are indexed once and read where they are.
    Never,
}

/// Rules for the shards of one data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// Name, for admins.
    pub name: String,
    /// URLs that belong to the data set.
    pub matches: Pattern,
    /// Caching: keep copies, or none.
    pub cache: Cache,
    /// Eviction policy.
    pub evict: Evict,
    /// Shards are never evicted. A shard that does not fit is rejected.
    pub pin: bool,
    /// Lifetime of a copy. An older copy is dropped and fetched anew on its next use.
    pub ttl: Option<Duration>,
    /// Time after its fetch during which a copy is not evicted.
    pub dont_evict_time: Option<Duration>,
    /// Bytes that other data sets cannot evict.
    pub min_bytes: u64,
    /// Maximum number of bytes.
    pub max_bytes: Option<u64>,
    /// Shards of data sets with a lower priority are evicted first.
    pub priority: i32,
    /// Shards read only once are evicted first; shards that are used again stay.
    pub scan_bypass: bool,
    /// Names of the tiers it may use; empty: all.
    pub tiers: Vec<String>,
    /// Maximum bytes per second that its fills take from their origins.
    pub bandwidth: Option<u64>,
    /// Shards are shared with the other nodes of the cluster.
    pub peers: bool,
    /// Number of nodes of the cluster that keep each shard: 1 to [`MAX_COPIES`].
    pub copies: u8,
}

impl Dataset {
    /// Creates a data set with an eviction policy and no other rules.
    ///
    /// # Errors
    /// `Invalid` for an invalid pattern.
    pub fn new(name: &str, matches: &str, evict: Evict) -> Result<Self> {
        let matches = Pattern::new(matches).map_err(|error| {
            Error::new(ErrorKind::Invalid, format!("`match` is not a valid pattern: {error}"))
                .at("dataset", name)
                .at("match", matches)
        })?;
        Ok(Self {
            name: name.to_owned(),
            matches,
            cache: Cache::Always,
            evict,
            pin: false,
            ttl: None,
            dont_evict_time: None,
            min_bytes: 0,
            max_bytes: None,
            priority: 0,
            scan_bypass: false,
            tiers: Vec::new(),
            bandwidth: None,
            peers: true,
            copies: 1,
        })
    }

    /// Returns true if the data set may use this tier.
    #[must_use]
    pub fn allows(&self, tier: &str) -> bool {
        self.tiers.is_empty() || self.tiers.iter().any(|name| name == tier)
    }

    /// Returns true if `url` matches.
    #[must_use]
    pub fn has(&self, url: &str) -> bool {
        self.matches.matches_with(url, MATCHING)
    }

    /// Returns true if shards of this data set are read where they are. A compressed shard, or one
    /// that comes only as a whole, has no members that can be read there.
    #[must_use]
    pub fn is_read_in_place(&self, url: &str) -> bool {
        self.cache == Cache::Never
            && !Compression::is_promised(url)
            && forebay_error::command(url).is_none()
    }

    /// Returns true if every URL that `other` matches is certain to match this data set.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        covers(self.matches.as_str(), other.matches.as_str())
    }

    /// Rejects rules that contradict each other.
    ///
    /// # Errors
    /// `Invalid` naming the data set and the options.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: &str| {
            Err(Error::new(ErrorKind::Invalid, what.to_owned()).at("dataset", &self.name))
        };
        if self.max_bytes.is_some_and(|max| max < self.min_bytes) {
            return refuse("quota.max is below quota.min");
        }
        if self.cache == Cache::Never {
            let says = [
                self.pin,
                self.ttl.is_some(),
                self.dont_evict_time.is_some(),
                self.min_bytes > 0,
                self.max_bytes.is_some(),
                self.scan_bypass,
                !self.tiers.is_empty(),
                self.copies > 1,
            ];
            if says.contains(&true) {
                return refuse("a data set with `cache = \"never\"` takes no options about copies");
            }
            if !["/", "file:"].iter().any(|start| self.matches.as_str().starts_with(start)) {
                return refuse("only files are read in place: `match` must be a path");
            }
        }
        if !(1..=MAX_COPIES).contains(&self.copies) {
            return refuse("`copies` of a data set is 1 or 2");
        }
        if self.copies > 1 && !self.peers {
            return refuse("`copies` of a data set need `peers`: the other copy is a peer's");
        }
        if self.pin && self.ttl.is_some() {
            return refuse("`ttl` and `pin` of a data set exclude each other");
        }
        if let (Some(ttl), Some(keep)) = (self.ttl, self.dont_evict_time)
            && ttl < keep
        {
            return refuse("`ttl` is shorter than `dont_evict_time`");
        }
        Ok(())
    }
}
